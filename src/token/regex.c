/* Split patterns that aren't the released ones, by PCRE2.
 *
 * Patterns apply one after another, each to every piece of the one before, so that no look-around crosses an earlier
 * border. \p, \s and \w follow Unicode. PCRE2's \s has U+180E beyond White_Space, and patterns of other engines may
 * mean other things; what PCRE2 refuses to compile is refused. A match that needs more than MATCH_LIMIT steps
 * refuses the text: patterns and text are both outside bytes. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>

#include "token/tokenizer_internal.h"

#define MAX_PATTERNS 16
#define MATCH_LIMIT 10000000u
#define HEAP_LIMIT_KIB 65536u

struct ds_tok_regex {
    /* [const] after the last add */
    pcre2_code *code[MAX_PATTERNS];
    uint32_t n;
};

struct ds_tok_regex_ctx {
    const ds_tok_regex *r;
    pcre2_match_context *limits;
    pcre2_match_data *data[MAX_PATTERNS]; /* a level's next match starts before the levels below are done with the last */
    /* of the current split */
    ds_tok_piece_fn *fn;
    void *arg;
    const char *text;
    ds_err *err;
};

ds_rc ds_tok_regex_create(ds_tok_regex **out, ds_err *err)
{
    *out = calloc(1, sizeof **out);
    return *out ? DS_OK : ds_fail(err, DS_E_NOMEM, "out of memory");
}

void ds_tok_regex_destroy(ds_tok_regex *r)
{
    if (!r)
        return;
    for (uint32_t i = 0; i < r->n; i++)
        pcre2_code_free(r->code[i]);
    free(r);
}

ds_rc ds_tok_regex_add(ds_tok_regex *r, const char *pattern, size_t n, ds_err *err)
{
    int code;
    PCRE2_SIZE at;
    PCRE2_UCHAR what[120];

    if (r->n == MAX_PATTERNS)
        return ds_fail(err, DS_E_FORMAT, "more than %d split patterns", MAX_PATTERNS);
    r->code[r->n] = pcre2_compile((PCRE2_SPTR)pattern, n, PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code, &at, NULL);
    if (!r->code[r->n]) {
        pcre2_get_error_message(code, what, sizeof what);
        return ds_fail(err, DS_E_FORMAT, "split pattern, byte %zu: %s", (size_t)at, (const char *)what);
    }
    r->n++;
    return DS_OK;
}

ds_rc ds_tok_regex_ctx_create(ds_tok_regex_ctx **out, const ds_tok_regex *r, ds_err *err)
{
    ds_tok_regex_ctx *c = calloc(1, sizeof *c);
    bool ok = c != NULL;

    *out = NULL;
    if (ok) {
        c->r = r;
        c->limits = pcre2_match_context_create(NULL);
        ok = c->limits != NULL;
        for (uint32_t i = 0; ok && i < r->n; i++) {
            c->data[i] = pcre2_match_data_create(1, NULL);
            ok = c->data[i] != NULL;
        }
    }
    if (!ok) {
        ds_tok_regex_ctx_destroy(c);
        return ds_fail(err, DS_E_NOMEM, "encoder: out of memory");
    }
    pcre2_set_match_limit(c->limits, MATCH_LIMIT);
    pcre2_set_heap_limit(c->limits, HEAP_LIMIT_KIB);
    *out = c;
    return DS_OK;
}

void ds_tok_regex_ctx_destroy(ds_tok_regex_ctx *c)
{
    if (!c)
        return;
    for (uint32_t i = 0; i < MAX_PATTERNS; i++)
        pcre2_match_data_free(c->data[i]);
    pcre2_match_context_free(c->limits);
    free(c);
}

static size_t next_char(const char *p, size_t n, size_t at)
{
    uint32_t cp;
    size_t len = ds_tok_decode((const uint8_t *)p + at, (const uint8_t *)p + n, &cp);

    return at + (len ? len : 1);
}

/* Splits valid UTF-8 by pattern `level` and all behind it. */
static ds_rc split(ds_tok_regex_ctx *c, uint32_t level, const char *p, size_t n)
{
    size_t done = 0, from = 0;

    if (n == 0)
        return DS_OK;
    if (level == c->r->n)
        return c->fn(c->arg, p, n) ? DS_OK : ds_fail(c->err, DS_E_NOMEM, "encoder: out of memory");
    while (from < n) {
        const PCRE2_SIZE *span = pcre2_get_ovector_pointer(c->data[level]);
        int got = pcre2_match(c->r->code[level], (PCRE2_SPTR)p, n, from, PCRE2_NO_UTF_CHECK, c->data[level], c->limits);
        size_t a, b;
        ds_rc rc;

        if (got == PCRE2_ERROR_NOMATCH)
            break;
        if (got == PCRE2_ERROR_NOMEMORY)
            return ds_fail(c->err, DS_E_NOMEM, "encoder: out of memory");
        if (got < 0) {
            PCRE2_UCHAR what[120];
            pcre2_get_error_message(got, what, sizeof what);
            return ds_fail(c->err, DS_E_ARG, "text, byte %zu: the tokenizer's split pattern gives up: %s", (size_t)(p - c->text) + from,
                           (const char *)what);
        }
        a = span[0];
        b = span[1];
        if (b <= a) { /* an empty match (or one that \K turned around) splits nothing */
            from = next_char(p, n, a > from ? a : from);
            continue;
        }
        if (a < done)
            a = done;
        rc = split(c, level + 1, p + done, a - done);
        if (rc == DS_OK)
            rc = split(c, level + 1, p + a, b - a);
        if (rc != DS_OK)
            return rc;
        done = from = b;
    }
    return split(c, level + 1, p + done, n - done);
}

ds_rc ds_tok_regex_split(ds_tok_regex_ctx *c, const char *text, size_t n, ds_tok_piece_fn *fn, void *arg, ds_err *err)
{
    const uint8_t *p = (const uint8_t *)text, *end = p + n;
    ds_rc rc;

    c->fn = fn;
    c->arg = arg;
    c->text = text;
    c->err = err;
    while (p < end) {
        const uint8_t *from = p;
        uint32_t cp;
        size_t len;

        while (p < end && (len = ds_tok_decode(p, end, &cp)) != 0)
            p += len;
        rc = split(c, 0, (const char *)from, (size_t)(p - from));
        if (rc != DS_OK)
            return rc;
        if (p < end && !fn(arg, (const char *)p++, 1))
            return ds_fail(err, DS_E_NOMEM, "encoder: out of memory");
    }
    return DS_OK;
}
