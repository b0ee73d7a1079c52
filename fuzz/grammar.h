/* What every target of a grammar's front end does: an input is a language or is refused with a reason; members of the
 * language can be drawn, and are in it at every split. */
#ifndef DS_FUZZ_GRAMMAR_H
#define DS_FUZZ_GRAMMAR_H

#include <string.h>

#include "grammar/grammar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const ds_grammar_opts small = { .max_nodes = 5000, .max_states = 2000, .max_bytes = 4 << 20 };

static inline void must(int ok)
{
    if (!ok)
        __builtin_trap();
}

/* What rc says of g; `fits` judges each member (NULL: nobody does). Destroys g. */
static inline void check_grammar(ds_grammar *g, ds_rc rc, const ds_err *why, size_t seed, void (*fits)(void *ctx, const ds_buf *b),
                                 void *ctx)
{
    ds_buf b = { 0 };
    ds_err err;

    must(rc == DS_OK || rc == DS_E_ARG);
    if (rc != DS_OK) {
        must(!g && why->msg[0]);
        return;
    }
    for (uint64_t i = 0; i < 3; i++) {
        ds_gstate s = ds_grammar_start(g), t = s;
        size_t taken, one;
        ds_buf_clear(&b);
        must(ds_grammar_sample(g, seed, i, &b, &err) == DS_OK);
        if (fits)
            fits(ctx, &b);
        rc = ds_grammar_read(g, &s, b.p, b.len, &taken, &err);
        must(rc == DS_OK || rc == DS_E_AGAIN);
        if (rc != DS_OK)
            break;
        must(taken == b.len && ds_grammar_accepts(g, s));
        for (size_t k = 0; k < b.len; k++)
            must(ds_grammar_read(g, &t, b.p + k, 1, &one, &err) == DS_OK && one == 1);
        must(t == s);
    }
    ds_buf_free(&b);
    ds_grammar_destroy(g);
}

#endif
