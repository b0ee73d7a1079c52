/* Images and documents of a request: where they come from. Nothing is fetched or decoded here. (recipe spec 2.8,
 * 4.6) */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/utf8.h"
#include "recipe/media_text.h"
#include "recipe/request_internal.h"

#define MAX_URL 8192

static ds_image *add_image(ds_rp *p, ds_parts *content, const ds_path *at, const char *key)
{
    ds_request *r = p->r;
    ds_image *im;
    char where[160];

    if (p->o->encoding == DS_ENC_V4) {
        ds_rp_refuse(p, DS_STAGE_MESSAGES, at, key, "this model takes no images");
        return NULL;
    }
    if (r->info.n_images >= p->o->max_images) {
        ds_rp_refuse(p, DS_STAGE_MESSAGES, at, key, "more than %u images", p->o->max_images);
        return NULL;
    }
    if (r->info.n_images == r->cap_images) {
        uint32_t cap = r->cap_images ? r->cap_images * 2 : 4;
        ds_image *bigger = ds_region_array(p->mem, cap, sizeof *bigger);

        if (!bigger)
            return NULL;
        if (r->cap_images)
            memcpy(bigger, r->images, r->cap_images * sizeof *bigger);
        r->images = bigger;
        r->cap_images = cap;
    }
    if (!ds_parts_image(content, p->mem, r->info.n_images))
        return NULL;
    im = &r->images[r->info.n_images++];
    ds_path_text(where, sizeof where, at, key);
    im->param = ds_region_str(p->mem, where, strlen(where)).p;
    return im;
}

static bool set_detail(ds_rp *p, ds_image *im, const ds_json *detail, const ds_path *at, const char *key)
{
    static const ds_image_detail levels[] = { DS_DETAIL_LOW, DS_DETAIL_HIGH, DS_DETAIL_ORIGINAL, DS_DETAIL_AUTO };
    int i = ds_rp_enum(p, detail, at, key, "low|high|original|auto");

    if (im)
        im->detail = i >= 0 ? levels[i] : DS_DETAIL_HIGH;
    return i >= 0;
}

/* The canonical name of an image type, or NULL. */
static const char *image_type(ds_str type)
{
    static const char *const names[][2] = { { "image/jpeg", "image/jpeg" },
                                            { "image/jpg", "image/jpeg" },
                                            { "image/png", "image/png" },
                                            { "image/gif", "image/gif" },
                                            { "image/webp", "image/webp" } };

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strlen(names[i][0]) == type.n && strncasecmp(names[i][0], type.p, type.n) == 0)
            return names[i][1];
    return NULL;
}

static bool text_type(ds_str type)
{
    static const char *const names[] = { "application/json", "application/xml",        "application/yaml", "application/x-yaml",
                                         "application/toml", "application/javascript", "application/x-sh", "application/sql" };

    if (type.n >= 5 && strncasecmp(type.p, "text/", 5) == 0)
        return true;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strlen(names[i]) == type.n && strncasecmp(names[i], type.p, type.n) == 0)
            return true;
    return false;
}

/* data:[TYPE][;param]*[;base64],BODY */
static bool split_data_url(ds_rp *p, ds_str url, ds_str *type, ds_str *body, bool *base64)
{
    const char *from = url.p + 5, *comma = memchr(from, ',', url.n - 5), *semi;

    if (!comma)
        return false;
    semi = memchr(from, ';', (size_t)(comma - from));
    *type = ds_region_str(p->mem, from, (size_t)((semi ? semi : comma) - from));
    *base64 = comma - from >= 7 && strncasecmp(comma - 7, ";base64", 7) == 0;
    *body = (ds_str){ comma + 1, url.n - (size_t)(comma + 1 - url.p) };
    return type->p != NULL;
}

static bool is_data_url(ds_str url)
{
    return url.n >= 5 && strncasecmp(url.p, "data:", 5) == 0;
}

void ds_rp_image_url(ds_rp *p, ds_parts *content, const ds_json *url, const ds_json *detail, const ds_path *at, const char *key,
                     const char *detail_key)
{
    ds_str s, type, body;
    bool base64;
    const char *canonical;
    char word[96];
    ds_image *im;

    if (!ds_rp_str(p, url, at, key, &s))
        return;
    im = add_image(p, content, at, key);
    set_detail(p, im, detail, at, detail_key);
    if (!im || ds_rp_stop(p))
        return;
    if (is_data_url(s)) {
        if (!split_data_url(p, s, &type, &body, &base64)) {
            ds_rp_refuse(p, DS_STAGE_MESSAGES, at, key, "a data URL without a comma");
            return;
        }
        canonical = image_type(type);
        if (!canonical) {
            ds_rp_refuse(p, DS_STAGE_MESSAGES, at, key,
                         "image type '%s' is not supported; expected one of: image/jpeg, image/png, image/gif, image/webp",
                         ds_str_word(word, sizeof word, type));
            return;
        }
        im->kind = DS_IMAGE_DATA;
        im->media_type = ds_lit(canonical);
        im->source = body;
        im->percent = !base64;
        if (!body.n)
            ds_rp_refuse(p, DS_STAGE_MESSAGES, at, key, "the data URL is empty");
        return;
    }
    if (s.n < 8 || (strncasecmp(s.p, "http://", 7) != 0 && strncasecmp(s.p, "https://", 8) != 0)) {
        ds_rp_refuse(p, DS_STAGE_MESSAGES, at, key, "expected a data: or http(s): URL");
        return;
    }
    if (s.n > MAX_URL) {
        ds_rp_refuse(p, DS_STAGE_MESSAGES, at, key, "the URL has %zu bytes, at most %d are taken", s.n, MAX_URL);
        return;
    }
    im->kind = DS_IMAGE_URL;
    im->source = s;
}

void ds_rp_image_base64(ds_rp *p, ds_parts *content, ds_str media_type, ds_str data, const ds_path *at)
{
    const char *canonical = image_type(media_type);
    char word[96];
    ds_image *im = add_image(p, content, at, "data");

    if (!im)
        return;
    if (!canonical)
        ds_rp_refuse(p, DS_STAGE_MESSAGES, at, "media_type",
                     "'%s' is not supported; expected one of: image/jpeg, image/png, image/gif, image/webp",
                     ds_str_word(word, sizeof word, media_type));
    if (!data.n)
        ds_rp_refuse(p, DS_STAGE_MESSAGES, at, "data", "must not be empty");
    im->kind = DS_IMAGE_DATA;
    im->media_type = canonical ? ds_lit(canonical) : media_type;
    im->source = data;
}

void ds_rp_image_file(ds_rp *p, ds_parts *content, ds_str file_id, const ds_json *detail, const ds_path *at, const char *key)
{
    ds_image *im;

    if (!p->io || !p->io->file) {
        ds_rp_refuse(p, DS_STAGE_MESSAGES, at, key, "file ids are not supported; send the data or a URL");
        return;
    }
    im = add_image(p, content, at, key);
    set_detail(p, im, detail, at, "detail");
    if (im) {
        im->kind = DS_IMAGE_FILE;
        im->source = file_id;
    }
}

/* ---- documents ---- */

bool ds_rp_base64(ds_rp *p, ds_str text, ds_str *out)
{
    char *to = ds_region_alloc(p->mem, text.n / 4 * 3 + 4);
    size_t n = 0;

    if (!to || !ds_base64_decode(text, to, &n))
        return false;
    to[n] = 0;
    *out = (ds_str){ to, n };
    return true;
}

static bool decode_percent(ds_rp *p, ds_str text, ds_str *out)
{
    char *to = ds_region_alloc(p->mem, text.n + 1);
    size_t n = 0;

    if (!to || !ds_percent_decode(text, to, &n))
        return false;
    to[n] = 0;
    *out = (ds_str){ to, n };
    return true;
}

static void put_text(ds_rp *p, ds_parts *content, ds_str before, ds_str text, const ds_path *at, const char *key)
{
    if (before.n)
        text = ds_region_join(p->mem, before, text);
    ds_rp_check_text(p, DS_STAGE_MESSAGES, text, at, key);
    ds_rp_note_json(p, text);
    ds_parts_text(content, p->mem, text, "\n\n");
}

static bool ask_document(ds_rp *p, ds_parts *content, ds_str type, ds_str base64, ds_str before, const ds_path *at, const char *key)
{
    const char *text = NULL;
    size_t n = 0;
    ds_rc rc;

    if (!p->io || !p->io->document)
        return false;
    rc = p->io->document(p->io->ctx, type.p, base64.p, base64.n, &text, &n, &p->hook_why, p->err);
    if (rc == DS_E_FORMAT) {
        ds_rp_refuse_status(p, DS_STAGE_MESSAGES, p->hook_why.status, p->hook_why.type, p->hook_why.code, at, key, "%s",
                            p->hook_why.message);
        return true;
    }
    if (rc != DS_OK) {
        if (p->rc == DS_OK)
            p->rc = rc;
        return true;
    }
    put_text(p, content, before, ds_region_str(p->mem, text, n), at, key);
    return true;
}

bool ds_rp_document(ds_rp *p, ds_parts *content, ds_str media_type, ds_str base64, ds_str before, const ds_path *at)
{
    ds_str text;

    if (p->rc != DS_OK)
        return true;
    if (text_type(media_type)) {
        if (!ds_rp_base64(p, base64, &text) || !ds_utf8_valid(text.p, text.n))
            ds_rp_refuse(p, DS_STAGE_MESSAGES, at, "data", "not base64 of UTF-8 text");
        else
            put_text(p, content, before, text, at, "data");
        return true;
    }
    return ask_document(p, content, media_type, base64, before, at, "data");
}

bool ds_rp_data_url_content(ds_rp *p, ds_parts *content, ds_str url, const ds_path *at, const char *key)
{
    ds_str type, body, text;
    bool base64;

    if (p->rc != DS_OK || !is_data_url(url))
        return false;
    if (!split_data_url(p, url, &type, &body, &base64)) {
        ds_rp_refuse(p, DS_STAGE_MESSAGES, at, key, "a data URL without a comma");
        return true;
    }
    if (image_type(type)) {
        ds_image *im = add_image(p, content, at, key);

        if (im) {
            im->kind = DS_IMAGE_DATA;
            im->media_type = ds_lit(image_type(type));
            im->source = body;
            im->percent = !base64;
        }
        return true;
    }
    if (text_type(type) || !type.n) {
        if (!(base64 ? ds_rp_base64(p, body, &text) : decode_percent(p, body, &text)) || !ds_utf8_valid(text.p, text.n))
            ds_rp_refuse(p, DS_STAGE_MESSAGES, at, key, "not valid UTF-8 text");
        else
            put_text(p, content, (ds_str){ NULL, 0 }, text, at, key);
        return true;
    }
    return base64 && ask_document(p, content, type, body, (ds_str){ NULL, 0 }, at, key);
}
