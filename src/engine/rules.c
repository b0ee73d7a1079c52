#include "engine/rules.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"

struct ds_rules {
    uint32_t n_words;  /* of a mask */
    uint32_t memory;   /* see the header */
    uint32_t n_longer; /* sequences of two ids and more */
    uint32_t *always;  /* [n_words] what is drawn where no longer sequence ends */
    ds_token *ids;     /* of the longer ones, one behind the other */
    uint32_t *at;      /* [n_longer + 1] */
};

static bool has(const uint32_t *words, uint32_t id)
{
    return words[id / 32] >> (id % 32) & 1;
}

static void forbid(uint32_t *words, uint32_t id)
{
    words[id / 32] &= ~(1u << (id % 32));
}

static ds_rc check(const ds_gen_request *q, uint32_t vocab, size_t *n_ids, ds_err *err)
{
    *n_ids = 0;
    for (size_t i = 0; i < q->n_allowed; i++)
        if (q->allowed[i] < 0 || (uint32_t)q->allowed[i] >= vocab)
            return ds_fail(err, DS_E_ARG, "allowed_token_ids: token id %d is outside the vocabulary (0 .. %u)", q->allowed[i], vocab - 1);
    if (q->n_bad > DS_RULES_MAX_SEQUENCES)
        return ds_fail(err, DS_E_ARG, "bad_words: %zu sequences, at most %d", q->n_bad, DS_RULES_MAX_SEQUENCES);
    for (size_t i = 0; i < q->n_bad; i++) {
        const ds_token_seq *s = &q->bad[i];
        if (s->n == 0 || s->n > DS_RULES_MAX_LENGTH)
            return ds_fail(err, DS_E_ARG, "bad_words: a sequence of %u ids: 1..%d", s->n, DS_RULES_MAX_LENGTH);
        for (uint32_t k = 0; k < s->n; k++)
            if (s->ids[k] < 0 || (uint32_t)s->ids[k] >= vocab)
                return ds_fail(err, DS_E_ARG, "bad_words: token id %d is outside the vocabulary (0 .. %u)", s->ids[k], vocab - 1);
        *n_ids += s->n;
    }
    return DS_OK;
}

/* A mask without any id can't be drawn from. */
static bool anything(const ds_rules *r)
{
    for (uint32_t i = 0; i < r->n_words; i++)
        if (r->always[i])
            return true;
    return false;
}

static void fill(ds_rules *r, const ds_gen_request *q, uint32_t vocab)
{
    for (uint32_t i = 0; i < vocab && q->n_allowed == 0; i++)
        r->always[i / 32] |= 1u << (i % 32);
    for (size_t i = 0; i < q->n_allowed; i++)
        r->always[q->allowed[i] / 32] |= 1u << (q->allowed[i] % 32);
    for (size_t i = 0; i < q->n_bad; i++) {
        const ds_token_seq *s = &q->bad[i];
        if (s->n == 1) {
            forbid(r->always, (uint32_t)s->ids[0]);
            continue;
        }
        memcpy(r->ids + r->at[r->n_longer], s->ids, s->n * sizeof *s->ids);
        r->at[r->n_longer + 1] = r->at[r->n_longer] + s->n;
        r->n_longer++;
        r->memory = s->n - 1 > r->memory ? s->n - 1 : r->memory;
    }
}

ds_rc ds_rules_create(ds_rules **out, const ds_gen_request *q, uint32_t vocab, ds_err *err)
{
    size_t n_ids;
    ds_rc rc = check(q, vocab, &n_ids, err);
    ds_rules *r;

    *out = NULL;
    if (rc != DS_OK || (q->n_allowed == 0 && q->n_bad == 0))
        return rc;
    r = calloc(1, sizeof *r);
    if (r) {
        r->n_words = (vocab + 31) / 32;
        r->always = calloc(r->n_words, sizeof *r->always);
        r->ids = calloc(n_ids + 1, sizeof *r->ids);
        r->at = calloc(q->n_bad + 1, sizeof *r->at);
    }
    if (!r || !r->always || !r->ids || !r->at) {
        ds_rules_destroy(r);
        return ds_fail(err, DS_E_NOMEM, "engine: out of memory for the rules of a request");
    }
    fill(r, q, vocab);
    if (!anything(r)) {
        ds_rules_destroy(r);
        return ds_fail(err, DS_E_ARG, "allowed_token_ids: bad_words forbids them all");
    }
    *out = r;
    return DS_OK;
}

void ds_rules_destroy(ds_rules *r)
{
    if (!r)
        return;
    free(r->always);
    free(r->ids);
    free(r->at);
    free(r);
}

uint32_t ds_rules_memory(const ds_rules *r)
{
    return r->memory;
}

void ds_rules_mask(const ds_rules *r, const ds_token *tail, uint32_t n_tail, bool masked, uint32_t *words)
{
    for (uint32_t i = 0; i < r->n_words; i++)
        words[i] = masked ? words[i] & r->always[i] : r->always[i];
    for (uint32_t i = 0; i < r->n_longer; i++) {
        const ds_token *s = r->ids + r->at[i];
        uint32_t n = r->at[i + 1] - r->at[i] - 1, last = (uint32_t)s[n];
        if (n <= n_tail && has(words, last) && memcmp(tail + n_tail - n, s, n * sizeof *s) == 0)
            forbid(words, last);
    }
}
