#include "cli/replay.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/file.h"

enum { FILE_MAX_BYTES = 64 << 20 };

typedef struct {
    ds_ids ids;
    char *when; /* NULL: any */
    size_t when_n;
    bool repeat, used;
} answer;

struct ds_replay {
    answer *list;
    size_t n, cap;
};

/* Markers that a model writes as one token. */
static const char *const markers[] = { "<think>", "</think>", "｜DSML｜" };

/* Output text as the model would write it: the markers are control tokens, where the tokenizer has them. */
static ds_rc encode(ds_ids *ids, ds_encoder *e, const ds_tokenizer *t, const char *text, size_t n, ds_err *err)
{
    ds_rc rc = DS_OK;

    for (const char *p = text, *end = text + n; p && p < end && rc == DS_OK;) {
        const char *at = end, *marker = NULL;
        for (size_t i = 0; i < sizeof markers / sizeof *markers; i++) {
            const char *hit = memmem(p, (size_t)(end - p), markers[i], strlen(markers[i]));
            if (hit && hit < at && ds_tokenizer_control(t, markers[i]) != DS_TOKEN_NONE) {
                at = hit;
                marker = markers[i];
            }
        }
        if (at > p)
            rc = ds_encoder_text(e, p, (size_t)(at - p), ids, err);
        if (rc == DS_OK && marker)
            rc = ds_encoder_runs(e, &(ds_run){ .p = marker, .n = strlen(marker), .control = true }, 1, ids, err);
        p = at + (marker ? strlen(marker) : 0);
    }
    return rc;
}

static ds_rc add_line(ds_replay *r, ds_encoder *e, const ds_tokenizer *t, const char *line, size_t n, ds_err *err)
{
    const ds_json *text, *when;
    ds_json_doc *doc;
    answer *a;
    ds_rc rc = ds_json_parse(&doc, line, n, NULL, err);

    if (rc != DS_OK)
        return rc;
    text = ds_json_get(ds_json_root(doc), "text");
    when = ds_json_get(ds_json_root(doc), "when");
    if (!ds_json_is(text, DS_JSON_STRING) || (when && !ds_json_is(when, DS_JSON_STRING))) {
        ds_json_free(doc);
        return ds_fail(err, DS_E_FORMAT, "expected {\"text\":\"…\"}, optionally with \"when\":\"…\"");
    }
    if (r->n == r->cap) {
        size_t cap = r->cap ? 2 * r->cap : 16;
        answer *list = realloc(r->list, cap * sizeof *list);
        if (!list) {
            ds_json_free(doc);
            return ds_fail(err, DS_E_NOMEM, "out of memory");
        }
        r->list = list;
        r->cap = cap;
    }
    a = &r->list[r->n++];
    *a = (answer){ .repeat = ds_json_is(ds_json_get(ds_json_root(doc), "repeat"), DS_JSON_TRUE) };
    if (when) {
        a->when = strdup(when->text);
        a->when_n = a->when ? strlen(a->when) : 0;
    }
    rc = when && !a->when ? ds_fail(err, DS_E_NOMEM, "out of memory") : encode(&a->ids, e, t, text->text, text->text_len, err);
    ds_json_free(doc);
    return rc;
}

ds_rc ds_replay_open(ds_replay **out, const char *path, const ds_tokenizer *t, ds_err *err)
{
    ds_replay *r = calloc(1, sizeof *r);
    ds_encoder *e = NULL;
    char *text = NULL, label[220];
    size_t n, number = 1;
    ds_rc rc = r ? ds_file_read(&text, &n, path, FILE_MAX_BYTES, err) : ds_fail(err, DS_E_NOMEM, "out of memory");

    *out = NULL;
    if (rc == DS_OK)
        rc = ds_encoder_create(&e, t, NULL, err);
    for (size_t at = 0; rc == DS_OK && at < n; number++) {
        const char *end = memchr(text + at, '\n', n - at);
        size_t len = end ? (size_t)(end - text) - at : n - at;
        if (strspn(text + at, " \t\r") < len)
            rc = add_line(r, e, t, text + at, len, err);
        if (rc != DS_OK)
            ds_err_prefix(err, rc, "%s: line %zu: ", ds_file_label(label, sizeof label, path), number);
        at += len + 1;
    }
    free(text);
    ds_encoder_destroy(e);
    if (rc != DS_OK) {
        ds_replay_close(r);
        return rc;
    }
    *out = r;
    return DS_OK;
}

void ds_replay_close(ds_replay *r)
{
    if (!r)
        return;
    for (size_t i = 0; i < r->n; i++) {
        ds_ids_free(&r->list[i].ids);
        free(r->list[i].when);
    }
    free(r->list);
    free(r);
}

const ds_ids *ds_replay_choose(ds_replay *r, const char *body, size_t n)
{
    for (size_t i = 0; i < r->n; i++) {
        answer *a = &r->list[i];
        if ((a->used && !a->repeat) || (a->when && !memmem(body, n, a->when, a->when_n)))
            continue;
        a->used = true;
        return &a->ids;
    }
    return NULL;
}
