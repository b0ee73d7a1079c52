/* Members of a body: their types, and refusals that name them. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "recipe/request_internal.h"

/* The tail is kept whole, so a path too long loses its head. */
void ds_path_text(char *out, size_t cap, const ds_path *at, const char *key)
{
    const ds_path *steps[64];
    size_t n = 0, len = 0;
    char text[1024];

    for (; at && n < sizeof steps / sizeof *steps; at = at->up)
        steps[n++] = at;
    text[0] = 0;
    while (n > 0 && len < sizeof text) {
        const ds_path *s = steps[--n];
        int w = s->key ? snprintf(text + len, sizeof text - len, "%s%s", len ? "." : "", s->key)
                       : snprintf(text + len, sizeof text - len, "[%u]", s->index);

        len += w > 0 ? (size_t)w : 0;
    }
    if (key && len < sizeof text) {
        int w = snprintf(text + len, sizeof text - len, "%s%s", len ? "." : "", key);

        len += w > 0 ? (size_t)w : 0;
    }
    if (len >= sizeof text)
        len = sizeof text - 1;
    if (len < cap)
        memcpy(out, text, len + 1);
    else
        snprintf(out, cap, "...%s", text + (len - (cap - 4)));
}

static void fill(ds_api_error *e, int status, const char *type, const char *code, const ds_path *at, const char *key, const char *fmt,
                 va_list ap)
{
    char param[sizeof e->param], text[sizeof e->message];

    ds_path_text(param, sizeof param, at, key);
    vsnprintf(text, sizeof text, fmt, ap);
    if (param[0])
        ds_api_fail(e, status, type, code, param, "%s: %s", param, text);
    else
        ds_api_fail(e, status, type, code, param, "%s", text);
}

void ds_rp_type(ds_rp *p, const ds_path *at, const char *key, const char *fmt, ...)
{
    va_list ap;

    if (p->rc != DS_OK)
        return;
    p->rc = DS_E_FORMAT;
    va_start(ap, fmt);
    fill(p->why, 400, NULL, NULL, at, key, fmt, ap);
    va_end(ap);
}

void ds_rp_refuse(ds_rp *p, ds_stage stage, const ds_path *at, const char *key, const char *fmt, ...)
{
    va_list ap;

    if (p->rc != DS_OK || (p->held_stage != DS_STAGE_TYPE && p->held_stage <= stage))
        return;
    p->held_stage = stage;
    va_start(ap, fmt);
    fill(&p->held, 400, NULL, NULL, at, key, fmt, ap);
    va_end(ap);
}

void ds_rp_refuse_status(ds_rp *p, ds_stage stage, int status, const char *type, const char *code, const ds_path *at, const char *key,
                         const char *fmt, ...)
{
    va_list ap;

    if (p->rc != DS_OK || (p->held_stage != DS_STAGE_TYPE && p->held_stage <= stage))
        return;
    p->held_stage = stage;
    va_start(ap, fmt);
    fill(&p->held, status, type, code, at, key, fmt, ap);
    va_end(ap);
}

void ds_rp_oom(ds_rp *p)
{
    if (p->rc == DS_OK)
        p->rc = ds_fail(p->err, DS_E_NOMEM, "request: out of memory");
}

bool ds_rp_stop(ds_rp *p)
{
    if (p->mem->failed)
        ds_rp_oom(p);
    return p->rc != DS_OK;
}

void ds_fields(const ds_json *obj, const char *const *names, size_t n, const ds_json **f)
{
    for (size_t i = 0; i < n; i++)
        f[i] = NULL;
    if (!ds_json_is(obj, DS_JSON_OBJECT))
        return;
    for (const ds_json *m = obj->child; m; m = m->next) {
        if (m->type == DS_JSON_NULL)
            continue;
        for (size_t i = 0; i < n; i++)
            if (names[i][0] == m->key[0] && strlen(names[i]) == m->key_len && memcmp(names[i], m->key, m->key_len) == 0) {
                f[i] = m;
                break;
            }
    }
}

static bool wrong(ds_rp *p, const ds_json *v, const ds_path *at, const char *key, const char *want)
{
    ds_rp_type(p, at, key, "expected %s, got %s", want, ds_json_type_name(v));
    return false;
}

bool ds_rp_str(ds_rp *p, const ds_json *v, const ds_path *at, const char *key, ds_str *out)
{
    if (!v || p->rc != DS_OK)
        return false;
    if (v->type != DS_JSON_STRING)
        return wrong(p, v, at, key, "a string");
    *out = ds_json_str_of(v);
    return true;
}

bool ds_rp_bool(ds_rp *p, const ds_json *v, const ds_path *at, const char *key, bool *out)
{
    if (!v || p->rc != DS_OK)
        return false;
    if (v->type != DS_JSON_TRUE && v->type != DS_JSON_FALSE)
        return wrong(p, v, at, key, "true or false");
    *out = v->type == DS_JSON_TRUE;
    return true;
}

bool ds_rp_i64(ds_rp *p, const ds_json *v, const ds_path *at, const char *key, int64_t *out)
{
    if (!v || p->rc != DS_OK)
        return false;
    if (v->type != DS_JSON_NUMBER)
        return wrong(p, v, at, key, "an integer");
    if (!ds_json_i64(v, out)) {
        char word[96];

        ds_str_word(word, sizeof word, (ds_str){ v->text, v->text_len });
        ds_rp_type(p, at, key, strpbrk(v->text, ".eE") ? "expected an integer, got %s" : "%s does not fit into 64 bits", word);
        return false;
    }
    return true;
}

bool ds_rp_f64(ds_rp *p, const ds_json *v, const ds_path *at, const char *key, double *out)
{
    if (!v || p->rc != DS_OK)
        return false;
    if (v->type != DS_JSON_NUMBER)
        return wrong(p, v, at, key, "a number");
    if (!ds_json_f64(v, out)) {
        char word[96];

        ds_rp_type(p, at, key, "%s is too large a number", ds_str_word(word, sizeof word, (ds_str){ v->text, v->text_len }));
        return false;
    }
    return true;
}

bool ds_rp_object(ds_rp *p, const ds_json *v, const ds_path *at, const char *key)
{
    if (!v || p->rc != DS_OK)
        return false;
    return v->type == DS_JSON_OBJECT || wrong(p, v, at, key, "an object");
}

bool ds_rp_array(ds_rp *p, const ds_json *v, const ds_path *at, const char *key)
{
    if (!v || p->rc != DS_OK)
        return false;
    return v->type == DS_JSON_ARRAY || wrong(p, v, at, key, "an array");
}

int ds_rp_enum(ds_rp *p, const ds_json *v, const ds_path *at, const char *key, const char *allowed)
{
    ds_str s;
    char word[96], list[256];
    size_t len = 0;
    int i = 0;

    if (!ds_rp_str(p, v, at, key, &s))
        return -1;
    for (const char *w = allowed; *w; i++) {
        size_t n = strcspn(w, "|");

        if (n == s.n && memcmp(w, s.p, n) == 0)
            return i;
        w += n + (w[n] == '|');
    }
    for (const char *w = allowed; *w && len + 3 < sizeof list; w++) { /* "a|b" -> "a, b" */
        if (*w == '|') {
            list[len++] = ',';
            list[len++] = ' ';
        } else {
            list[len++] = *w;
        }
    }
    list[len] = 0;
    ds_rp_type(p, at, key, "unknown value '%s', expected one of: %s", ds_str_word(word, sizeof word, s), list);
    return -1;
}

void ds_rp_missing(ds_rp *p, const ds_path *at, const char *key)
{
    ds_rp_type(p, at, key, "required, but missing");
}

const ds_json *ds_rp_parse(ds_rp *p, const char *text, size_t n)
{
    ds_err err = { 0 };
    ds_doc *d = ds_region_alloc(p->mem, sizeof *d);
    ds_rc rc;

    if (!d) {
        ds_rp_oom(p);
        return NULL;
    }
    rc = ds_json_parse(&d->doc, text, n, NULL, &err);
    if (rc == DS_E_NOMEM)
        ds_rp_oom(p);
    if (rc != DS_OK)
        return NULL;
    d->next = p->r->docs;
    p->r->docs = d;
    return ds_json_root(d->doc);
}

ds_str ds_rp_json_text(ds_rp *p, const ds_json *v, ds_json_style style)
{
    ds_buf b = { 0 };
    ds_str s;

    ds_json_write(&b, v, style);
    if (b.oom) {
        ds_rp_oom(p);
        ds_buf_free(&b);
        return (ds_str){ "", 0 };
    }
    s = ds_region_str(p->mem, b.p, b.len);
    ds_buf_free(&b);
    return s.p ? s : (ds_str){ "", 0 };
}
