/* All pictures of a request: wherever they come from, to what the vision tower takes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "image/image_internal.h"
#include "recipe/media_text.h"

void ds_images_opts_init(ds_images_opts *o)
{
    *o = (ds_images_opts){ .max_inline_bytes = (size_t)64 << 20, .max_pixel_bytes = (size_t)1 << 30 };
    ds_prepare_opts_init(&o->prepare);
    ds_fetch_opts_init(&o->fetch);
}

typedef struct {
    ds_request *r;
    const ds_request_info_data *info;
    ds_picture *pictures;
    const ds_images_opts *opts;
    ds_api_error *why;
    ds_err *err;
    size_t inline_bytes, pixel_bytes;
    ds_fetch_item *items; /* [n_items]: those to be fetched … */
    uint32_t *image_of;   /* … and which picture each is */
    size_t n_items;
    uint32_t worst; /* the first picture that was refused while fetching; its refusal is in *why */
} job;

static ds_rc refuse(job *j, uint32_t i, int status, const char *text)
{
    const char *param = j->info->images[i].param;

    return ds_api_fail(j->why, status, NULL, NULL, param, "%s: %s", param, text);
}

/* Bytes to picture i and its layout in the request. */
static ds_rc take(job *j, uint32_t i, const unsigned char *bytes, size_t n)
{
    ds_picture *p = &j->pictures[i];
    ds_rc rc = ds_image_prepare(p, bytes, n, &j->opts->prepare, j->err);

    if (rc == DS_OK)
        rc = ds_request_layout_image_by(j->r, i, p->layout.width, p->layout.height, &j->opts->prepare.rule, j->err);
    if (rc == DS_E_FORMAT)
        return refuse(j, i, 400, j->err->msg);
    if (rc != DS_OK)
        return rc;
    if (p->pixels)
        j->pixel_bytes += (size_t)p->layout.fitted_w * p->layout.fitted_h * 3;
    if (j->pixel_bytes > j->opts->max_pixel_bytes)
        return refuse(j, i, 400, "the images of the request are too many or too large together");
    return DS_OK;
}

static ds_rc from_data(job *j, uint32_t i)
{
    const ds_image *im = &j->info->images[i];
    size_t about = im->percent ? im->source.n / 3 : im->source.n / 4 * 3, n; /* percent: the least it can become */
    unsigned char *bytes;
    ds_rc rc;

    if (about > j->opts->max_inline_bytes - j->inline_bytes)
        return refuse(j, i, 400, "the images of the request have too many bytes together");
    rc = ds_image_bytes(im, &bytes, &n, j->err);
    if (rc == DS_E_FORMAT)
        return refuse(j, i, 400, j->err->msg);
    if (rc != DS_OK)
        return rc;
    if (n > j->opts->max_inline_bytes - j->inline_bytes) {
        free(bytes);
        return refuse(j, i, 400, "the images of the request have too many bytes together");
    }
    j->inline_bytes += n;
    rc = take(j, i, bytes, n);
    free(bytes);
    return rc;
}

static ds_rc from_file(job *j, uint32_t i)
{
    const ds_request_io *io = j->opts->io;
    const unsigned char *bytes;
    const char *type;
    size_t n;
    ds_rc rc;

    if (!io || !io->file)
        return refuse(j, i, 400, "file ids are not supported; send the data or a URL");
    memset(j->why, 0, sizeof *j->why);
    rc = io->file(io->ctx, j->info->images[i].source.p, &type, &bytes, &n, j->why, j->err);
    if (rc == DS_E_FORMAT && !j->why->status)
        return refuse(j, i, 400, "no such file");
    if (rc == DS_E_FORMAT && !j->why->param[0])
        snprintf(j->why->param, sizeof j->why->param, "%s", j->info->images[i].param);
    return rc == DS_OK ? take(j, i, bytes, n) : rc;
}

static ds_rc arrived(void *ctx, ds_fetch_item *item, ds_err *err)
{
    job *j = ctx;
    uint32_t i = j->image_of[item - j->items];
    ds_api_error kept = *j->why;
    ds_rc rc;

    (void)err; /* is j->err */
    if (item->status)
        rc = refuse(j, i, item->status, item->reason);
    else
        rc = take(j, i, item->bytes, item->n);
    free(item->bytes);
    item->bytes = NULL;
    if (rc == DS_E_FORMAT) {
        if (i > j->worst)
            *j->why = kept;
        else
            j->worst = i;
        return DS_OK;
    }
    return rc;
}

static ds_rc from_addresses(job *j)
{
    ds_rc rc;

    j->worst = UINT32_MAX;
    rc = ds_fetch(j->items, j->n_items, &j->opts->fetch, arrived, j, j->err);
    return rc == DS_OK && j->worst != UINT32_MAX ? DS_E_FORMAT : rc;
}

static ds_rc run(job *j)
{
    for (uint32_t i = 0; i < j->info->n_images; i++) {
        const ds_image *im = &j->info->images[i];
        ds_rc rc = DS_OK;

        if (im->kind == DS_IMAGE_DATA)
            rc = from_data(j, i);
        else if (im->kind == DS_IMAGE_FILE)
            rc = from_file(j, i);
        else if (j->opts->no_fetch)
            rc = refuse(j, i, 400, "image addresses are not fetched here; send the data");
        else if (!j->opts->skip_urls) {
            j->items[j->n_items].url = im->source.p;
            j->image_of[j->n_items++] = i;
        }
        if (rc != DS_OK)
            return rc;
    }
    return j->n_items ? from_addresses(j) : DS_OK;
}

ds_rc ds_request_images(ds_request *r, ds_picture *pictures, const ds_images_opts *opts, ds_api_error *why, ds_err *err)
{
    ds_images_opts defaults;
    ds_err own;
    job j = { .r = r, .info = ds_request_info(r), .pictures = pictures, .opts = opts, .why = why, .err = err ? err : &own };
    size_t n = j.info->n_images;
    ds_rc rc;

    memset(why, 0, sizeof *why);
    memset(pictures, 0, n * sizeof *pictures);
    if (n == 0)
        return DS_OK;
    if (!opts) {
        ds_images_opts_init(&defaults);
        j.opts = &defaults;
    }
    j.items = calloc(n, sizeof *j.items);
    j.image_of = calloc(n, sizeof *j.image_of);
    rc = j.items && j.image_of ? run(&j) : ds_fail(j.err, DS_E_NOMEM, "%zu images: out of memory", n);
    free(j.items);
    free(j.image_of);
    for (size_t i = 0; rc != DS_OK && i < n; i++)
        ds_picture_free(&pictures[i]);
    if (rc == DS_E_FORMAT)
        ds_fail(j.err, rc, "%s", why->message);
    return rc;
}
