#include "recipe/bad_words.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"

/* Notes the ids behind `from` as a sequence, unless they are none, or those of the sequence that begins at `twin`. */
static void end_sequence(ds_bad_words *b, ds_ids *ids, size_t from, size_t twin)
{
    size_t n = ids->n - from;

    if (n == from - twin && memcmp(ids->p + twin, ids->p + from, n * sizeof *ids->p) == 0)
        ids->n = from;
    else if (n)
        b->list[b->n++].n = (uint32_t)n;
}

ds_rc ds_bad_words_make(ds_bad_words *out, const ds_str *words, uint32_t n, ds_encoder *e, ds_err *err)
{
    ds_buf text = { 0 };
    ds_ids ids = { 0 };
    ds_rc rc = DS_OK;

    *out = (ds_bad_words){ .list = calloc(2 * (size_t)n + 1, sizeof *out->list) };
    if (!out->list)
        return ds_fail(err, DS_E_NOMEM, "bad_words: out of memory");
    for (uint32_t i = 0; i < n && rc == DS_OK; i++) {
        ds_str w = words[i];
        size_t first = ids.n, second;
        while (w.n > 1 && *w.p == ' ')
            w = (ds_str){ w.p + 1, w.n - 1 };
        rc = ds_encoder_text(e, w.p, w.n, &ids, err);
        if (rc != DS_OK)
            break;
        end_sequence(out, &ids, first, first);
        second = ids.n;
        ds_buf_clear(&text);
        ds_buf_putc(&text, ' ');
        if (!ds_buf_put(&text, w.p, w.n))
            rc = ds_fail(err, DS_E_NOMEM, "bad_words: out of memory");
        else
            rc = ds_encoder_text(e, text.p, text.len, &ids, err);
        if (rc == DS_OK)
            end_sequence(out, &ids, second, first);
    }
    ds_buf_free(&text);
    out->ids = ids.p;
    for (uint32_t i = 0, at = 0; i < out->n; at += out->list[i++].n)
        out->list[i].ids = out->ids + at;
    if (rc != DS_OK)
        ds_bad_words_free(out);
    return rc;
}

void ds_bad_words_free(ds_bad_words *b)
{
    free(b->ids);
    free(b->list);
    *b = (ds_bad_words){ 0 };
}
