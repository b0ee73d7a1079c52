/* Lark: whatever is accepted has members, and they match at every split. */
#include "grammar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ds_grammar *g;
    ds_err err = { 0 };
    ds_rc rc = ds_grammar_lark(&g, (const char *)data, size, &small, &err);

    check_grammar(g, rc, &err, size, NULL, NULL);
    return 0;
}
