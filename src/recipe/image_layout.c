/* How many positions of the prompt an image takes. (recipe spec 2.8) */
#include <math.h>

#include "recipe/request_internal.h"

#define PATCH 14         /* pixels */
#define CELL (3 * PATCH) /* pixels of one token's side */
#define BUDGET 1024      /* tokens of one image, its start, newlines and end included */
#define MIN_AREA (544.0 * 544.0)
#define MAX_ROUNDS 10

typedef struct {
    uint64_t w, h;
} size2;

static uint64_t round_up(uint64_t x, uint64_t to)
{
    return (x + to - 1) / to * to;
}

static size2 grid(size2 s)
{
    return (size2){ (round_up(s.w, PATCH) / PATCH + 2) / 3, (round_up(s.h, PATCH) / PATCH + 2) / 3 };
}

static uint64_t cost(size2 g)
{
    return g.h * (g.w + 1) + 2;
}

static size2 one_round(size2 s)
{
    double w = (double)s.w, h = (double)s.h, r, mw, mh, b;
    size2 out;

    if (s.w && s.h && w * h < MIN_AREA) {
        double k = sqrt(MIN_AREA / (w * h));

        w = trunc(w * k);
        h = trunc(h * k);
    }
    out = (size2){ round_up((uint64_t)w, PATCH), round_up((uint64_t)h, PATCH) };
    if (cost(grid(out)) <= BUDGET)
        return out;
    r = h / w;
    mw = sqrt((BUDGET - 2) / r + 0.25) - 0.5;
    mh = mw * r;
    if (mw < 1)
        return (size2){ CELL, (BUDGET - 2) / 2 * CELL };
    if (mh < 1)
        return (size2){ (BUDGET - 3) * CELL, CELL };
    b = fmin(floor(mw) * CELL / w, floor(mh) * CELL / h);
    return (size2){ (uint64_t)floor(w * b / PATCH) * PATCH, (uint64_t)floor(h * b / PATCH) * PATCH };
}

ds_rc ds_image_layout(ds_image *image, ds_err *err)
{
    size2 s = { image->width, image->height }, g;

    if (!s.w || !s.h)
        return ds_fail(err, DS_E_ARG, "image of %u x %u pixels", image->width, image->height);
    for (int i = 0; i < MAX_ROUNDS; i++) {
        size2 next = one_round(s);
        bool same = next.w == s.w && next.h == s.h;

        s = next;
        g = grid(s);
        if (same && s.w && s.h && cost(g) <= BUDGET) {
            image->fitted_w = (uint32_t)s.w;
            image->fitted_h = (uint32_t)s.h;
            image->rows = (uint32_t)g.h;
            image->cols = (uint32_t)g.w;
            image->tokens = (uint32_t)cost(g);
            return DS_OK;
        }
    }
    return ds_fail(err, DS_E_ARG, "image of %u x %u pixels: the size rule doesn't settle", image->width, image->height);
}

ds_rc ds_request_layout_image(ds_request *r, uint32_t i, uint32_t width, uint32_t height, ds_err *err)
{
    if (i >= r->info.n_images)
        return ds_fail(err, DS_E_ARG, "image %u: the request has %u", i, r->info.n_images);
    r->images[i].width = width;
    r->images[i].height = height;
    return ds_image_layout(&r->images[i], err);
}

size_t ds_request_image_extra_tokens(const ds_request *r)
{
    size_t n = 0;

    for (uint32_t i = 0; i < r->info.n_images; i++)
        if (r->images[i].tokens)
            n += r->images[i].tokens - 1;
    return n;
}

size_t ds_request_expand_images(const ds_request *r, uint32_t image_id, uint32_t *ids, size_t n_ids, size_t cap)
{
    size_t found = 0, total = n_ids + ds_request_image_extra_tokens(r), to = total;

    for (size_t i = 0; i < n_ids; i++)
        found += ids[i] == image_id;
    if (found != r->info.n_images || total > cap)
        return 0;
    for (size_t i = n_ids; i-- > 0 && found > 0;) { /* once no image is left before i, the rest stays where it is */
        if (ids[i] != image_id) {
            ids[--to] = ids[i];
            continue;
        }
        found--;
        for (uint32_t k = r->images[found].tokens ? r->images[found].tokens : 1; k > 0; k--)
            ids[--to] = image_id;
    }
    return total;
}
