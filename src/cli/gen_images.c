/* Pictures of a request through the model's vision tower. */
#include <stdlib.h>
#include <string.h>

#include <ds/image.h>

#include "cli/gen_request.h"

static ds_rc embed(ds_cli_gen *g, const ds_picture *p, ds_gen_image *out, ds_err *err)
{
    float *e = calloc(p->layout.tokens, ds_llm_hidden(g->llm) * sizeof *e);

    out->embedding = e;
    out->n = p->layout.tokens;
    memcpy(out->digest, p->digest, sizeof out->digest);
    return e ? ds_llm_embed(g->llm, p, e, err) : ds_fail(err, DS_E_NOMEM, "out of memory for a picture of %u tokens", p->layout.tokens);
}

/* Each placeholder becomes as many as its picture has tokens; the pictures' places among them. */
static ds_rc place(ds_cli_request *q, const ds_picture *pictures, uint32_t n, ds_token token, ds_err *err)
{
    size_t cap = q->ids.n + ds_request_image_extra_tokens(q->chat), at = 0;
    ds_token *p = realloc(q->ids.p, cap * sizeof *p);

    if (!p)
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    q->ids.p = p;
    q->ids.cap = cap;
    q->ids.n = ds_request_expand_images(q->chat, token, p, q->ids.n, cap);
    if (q->ids.n == 0)
        return ds_fail(err, DS_E_FORMAT, "messages: placeholders and pictures differ");
    for (uint32_t i = 0; i < n; i++) {
        while (at < q->ids.n && p[at] != token)
            at++;
        q->images[i].pos = (uint32_t)at;
        at += pictures[i].layout.tokens;
    }
    return DS_OK;
}

/* A slow server doesn't hold up the end of the program. */
static bool canceled(void *ctx)
{
    (void)ctx;
    return ds_cli_signal() != 0;
}

ds_rc ds_cli_request_images(ds_cli_request *q, ds_cli_gen *g, ds_err *err)
{
    const ds_request_info_data *info = ds_request_info(q->chat);
    ds_picture *pictures;
    ds_images_opts o;
    ds_api_error why;
    ds_token token;
    ds_rc rc;

    if (info->n_images == 0)
        return DS_OK;
    ds_images_opts_init(&o);
    if (!ds_llm_pictures(g->llm, &o.prepare.rule, &token))
        return ds_fail(err, DS_E_FORMAT, "%s: this model takes no images", info->images[0].param);
    o.no_fetch = !g->fetch;
    o.fetch.canceled = canceled;
    pictures = calloc(info->n_images, sizeof *pictures);
    q->images = calloc(info->n_images, sizeof *q->images);
    if (!pictures || !q->images) {
        free(pictures);
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    }
    q->n_images = info->n_images;
    rc = ds_request_images(q->chat, pictures, &o, &why, err);
    if (rc == DS_OK)
        rc = place(q, pictures, info->n_images, token, err);
    for (uint32_t i = 0; i < info->n_images; i++) {
        if (rc == DS_OK)
            rc = embed(g, &pictures[i], &q->images[i], err);
        ds_picture_free(&pictures[i]);
    }
    free(pictures);
    return rc;
}
