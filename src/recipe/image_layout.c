/* How many positions of the prompt an image takes. (recipe spec 2.8) */
#include <math.h>

#include "recipe/request_internal.h"

#define MAX_ROUNDS 10

typedef struct {
    uint64_t w, h;
} size2;

void ds_image_rule_init(ds_image_rule *rule)
{
    *rule = (ds_image_rule){ .patch = 14, .merge = 3, .max_tokens = 1024, .min_pixels = 544 * 544 };
}

static uint64_t round_up(uint64_t x, uint64_t to)
{
    return (x + to - 1) / to * to;
}

static size2 grid(const ds_image_rule *k, size2 s)
{
    return (size2){ (round_up(s.w, k->patch) / k->patch + k->merge - 1) / k->merge,
                    (round_up(s.h, k->patch) / k->patch + k->merge - 1) / k->merge };
}

static uint64_t cost(size2 g)
{
    return g.h * (g.w + 1) + 2;
}

static size2 one_round(const ds_image_rule *k, size2 s)
{
    double w = (double)s.w, h = (double)s.h, patch = k->patch, room = (double)k->max_tokens - 2, r, mw, mh, b;
    uint64_t cell = (uint64_t)k->patch * k->merge;
    size2 out;

    if (s.w && s.h && w * h < (double)k->min_pixels) {
        double scale = sqrt((double)k->min_pixels / (w * h));

        w = trunc(w * scale);
        h = trunc(h * scale);
    }
    out = (size2){ round_up((uint64_t)w, k->patch), round_up((uint64_t)h, k->patch) };
    if (cost(grid(k, out)) <= k->max_tokens)
        return out;
    r = h / w;
    mw = sqrt(room / r + 0.25) - 0.5;
    mh = mw * r;
    if (mw < 1)
        return (size2){ cell, (k->max_tokens - 2) / 2 * cell };
    if (mh < 1)
        return (size2){ (k->max_tokens - 3) * cell, cell };
    b = fmin(floor(mw) * (double)cell / w, floor(mh) * (double)cell / h);
    return (size2){ (uint64_t)floor(w * b / patch) * k->patch, (uint64_t)floor(h * b / patch) * k->patch };
}

ds_rc ds_image_layout_by(ds_image *image, const ds_image_rule *k, ds_err *err)
{
    size2 s = { image->width, image->height }, g;

    if (k->patch < 1 || k->patch > 256 || k->merge < 1 || k->merge > 16 || k->max_tokens < 8 || k->max_tokens > 65536 ||
        k->min_pixels > (uint64_t)1 << 32 || !(k->max_wh_ratio >= 0))
        return ds_fail(err, DS_E_ARG, "image size rule out of range: patch %u, merge %u, %u tokens", k->patch, k->merge, k->max_tokens);
    if (!s.w || !s.h)
        return ds_fail(err, DS_E_ARG, "image of %u x %u pixels", image->width, image->height);
    if (k->max_wh_ratio > 0 && (double)s.w > (double)s.h * k->max_wh_ratio)
        s.w = (uint64_t)((double)s.h * k->max_wh_ratio);
    for (int i = 0; i < MAX_ROUNDS; i++) {
        size2 next = one_round(k, s);
        bool same = next.w == s.w && next.h == s.h;

        s = next;
        g = grid(k, s);
        if (same && s.w && s.h && cost(g) <= k->max_tokens) {
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

ds_rc ds_image_layout(ds_image *image, ds_err *err)
{
    ds_image_rule rule;

    ds_image_rule_init(&rule);
    return ds_image_layout_by(image, &rule, err);
}

ds_rc ds_request_layout_image_by(ds_request *r, uint32_t i, uint32_t width, uint32_t height, const ds_image_rule *rule, ds_err *err)
{
    if (i >= r->info.n_images)
        return ds_fail(err, DS_E_ARG, "image %u: the request has %u", i, r->info.n_images);
    r->images[i].width = width;
    r->images[i].height = height;
    return ds_image_layout_by(&r->images[i], rule, err);
}

ds_rc ds_request_layout_image(ds_request *r, uint32_t i, uint32_t width, uint32_t height, ds_err *err)
{
    ds_image_rule rule;

    ds_image_rule_init(&rule);
    return ds_request_layout_image_by(r, i, width, height, &rule, err);
}

size_t ds_request_image_extra_tokens(const ds_request *r)
{
    size_t n = 0;

    for (uint32_t i = 0; i < r->info.n_images; i++)
        if (r->images[i].tokens)
            n += r->images[i].tokens - 1;
    return n;
}

size_t ds_request_expand_images(const ds_request *r, ds_token image_id, ds_token *ids, size_t n_ids, size_t cap)
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
