/* What must come next: bytes, and the tokens for them. */
#include <string.h>

#include "grammar/grammar_internal.h"

enum { LONGEST = 4096 };

/* The one byte that can follow; 256: there are several, or none. DS_E_AGAIN. */
static ds_rc only_byte(ds_grammar *g, ds_gstate s, uint32_t *byte, ds_err *err)
{
    uint32_t found = 256;

    *byte = 256;
    for (uint32_t k = 0; k < g->n_classes; k++) {
        uint32_t first = g->class_byte[k], last = k + 1 < g->n_classes ? g->class_byte[k + 1] - 1u : 255;
        ds_gstate to = ds_automaton_step(g, s, (uint8_t)first);
        if (to == FAILED)
            return ds_grammar_failed(g, err);
        if (to == 0)
            continue;
        if (found != 256 || first != last)
            return DS_OK;
        found = first;
    }
    *byte = found;
    return DS_OK;
}

ds_rc ds_grammar_forced(ds_grammar *g, ds_gstate *s, ds_buf *out, ds_err *err)
{
    ds_grammar_call(g);
    for (size_t n = 0; n < LONGEST && !ds_grammar_accepts(g, *s); n++) {
        uint32_t byte;
        ds_rc rc = only_byte(g, *s, &byte, err);
        if (rc != DS_OK || byte == 256)
            return rc;
        ds_buf_putc(out, (char)byte);
        *s = ds_automaton_step(g, *s, (uint8_t)byte);
    }
    return out->oom ? ds_fail(err, DS_E_NOMEM, "grammar: out of memory") : DS_OK;
}

/* Tokens of a text with control tokens in it; `more`: text behind it. */
static ds_rc encode(ds_encoder *e, const ds_buf *text, const char *more, ds_buf *joined, ds_ids *ids, ds_err *err)
{
    ds_run runs[64];
    size_t n = 0, at = 0;

    ds_buf_clear(joined);
    ds_buf_put(joined, text->p, text->len);
    ds_buf_puts(joined, more);
    ids->n = 0;
    if (joined->oom)
        return ds_fail(err, DS_E_NOMEM, "grammar: out of memory");
    while (at < joined->len && n < sizeof runs / sizeof *runs) {
        bool control = (uint8_t)joined->p[at] == CONTROL_BEGIN;
        const char *end = memchr(joined->p + at + control, control ? CONTROL_END : CONTROL_BEGIN, joined->len - at - control);
        size_t to = end ? (size_t)(end - joined->p) : joined->len;
        runs[n++] = (ds_run){ joined->p + at + control, to - at - control, control };
        at = to + control;
    }
    return ds_encoder_runs(e, runs, n, ids, err);
}

/* Texts that may follow s begin with one of a few characters; tokens that some of these would change are dropped. */
static ds_rc drop_unsure(ds_grammar *g, ds_gstate s, ds_encoder *e, const ds_buf *text, ds_ids *ids, ds_err *err)
{
    ds_ids with = { 0 };
    ds_buf joined = { 0 };
    ds_rc rc = DS_OK;

    for (uint32_t b = 0; b < 0xf5 && rc == DS_OK && ids->n; b++) {
        char more[4] = { (char)b };
        size_t same = 0;
        ds_gstate to = b && (b < 0x80 || b == 0xc3 || b == 0xe4 || b == 0xf0) ? ds_automaton_step(g, s, (uint8_t)b) : 0;
        if (to == FAILED)
            rc = ds_grammar_failed(g, err);
        if (to == 0 || to == FAILED)
            continue;
        if (b >= 0x80) /* a letter, an ideograph; others as if anything could follow */
            strcpy(more, b == 0xc3 ? "\xc3\xa9" : b == 0xe4 ? "\xe4\xb8\xad" : "a");
        rc = encode(e, text, more, &joined, &with, err);
        while (same < ids->n && same < with.n && ids->p[same] == with.p[same])
            same++;
        ids->n = rc == DS_OK ? same : 0;
    }
    ds_ids_free(&with);
    ds_buf_free(&joined);
    return rc;
}

ds_rc ds_grammar_jump(ds_grammar *g, const ds_token_trie *t, ds_encoder *e, ds_gstate *s, ds_ids *ids, ds_err *err)
{
    ds_buf text = { 0 }, joined = { 0 };
    ds_gstate end = *s;
    uint32_t taken = 0;
    ds_rc rc = ds_grammar_forced(g, &end, &text, err);

    ids->n = 0;
    if (rc == DS_OK && memrchr(ds_buf_str(&text), CONTROL_BEGIN, text.len) > memrchr(ds_buf_str(&text), CONTROL_END, text.len)) {
        /* cut inside a control token: several can follow */
        text.len = (size_t)((char *)memrchr(text.p, CONTROL_BEGIN, text.len) - text.p);
        end = *s;
        rc = ds_grammar_read(g, &end, text.p, text.len, &(size_t){ 0 }, err);
    }
    if (rc == DS_OK && text.len)
        rc = encode(e, &text, "", &joined, ids, err);
    if (rc == DS_OK && ids->n)
        rc = drop_unsure(g, end, e, &text, ids, err);
    if (rc == DS_OK)
        rc = ds_grammar_accept(g, t, s, ids->p, (uint32_t)ids->n, &taken, err);
    ids->n = rc == DS_OK ? taken : 0;
    ds_buf_free(&text);
    ds_buf_free(&joined);
    return rc;
}
