/* EBNF: whatever is accepted has members, and they match at every split. */
#include <string.h>

#include "grammar/grammar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int ok)
{
    if (!ok)
        __builtin_trap();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const ds_grammar_opts small = { .max_nodes = 5000, .max_states = 2000, .max_bytes = 4 << 20 };
    ds_grammar *g;
    ds_err err = { 0 };
    ds_buf b = { 0 };
    ds_rc rc = ds_grammar_ebnf(&g, (const char *)data, size, &small, &err);

    must(rc == DS_OK || rc == DS_E_ARG);
    if (rc != DS_OK) {
        must(!g && err.msg[0]);
        return 0;
    }
    for (uint64_t i = 0; i < 3; i++) {
        ds_gstate s = ds_grammar_start(g), t = s;
        size_t taken, one;
        ds_buf_clear(&b);
        must(ds_grammar_sample(g, size, i, &b, &err) == DS_OK);
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
    return 0;
}
