/* One of a list of strings. */
#include <stdlib.h>

#include "grammar/grammar_internal.h"

ds_rc ds_grammar_choices(ds_grammar **out, const ds_json *list, const ds_grammar_opts *opts, ds_err *err)
{
    ds_forest f;
    uint32_t *words, i = 0;
    ds_rc rc = DS_OK;

    *out = NULL;
    if (!ds_json_is(list, DS_JSON_ARRAY))
        return ds_fail(err, DS_E_ARG, "choices: a list of strings is needed, not %s", ds_json_type_name(list));
    ds_forest_init(&f, opts);
    words = malloc(list->n * sizeof *words + 1);
    if (!words)
        rc = ds_fail(err, DS_E_NOMEM, "choices: out of memory");
    for (const ds_json *v = list->child; v && rc == DS_OK; v = v->next, i++)
        if (ds_json_is(v, DS_JSON_STRING))
            words[i] = ds_tree_text(&f, v->text, v->text_len);
        else
            rc = ds_fail(err, DS_E_ARG, "choices[%u]: a string is needed, not %s", i, ds_json_type_name(v));
    if (rc == DS_OK)
        ds_rule_new(&f, ds_tree_words(&f, words, i));
    free(words);
    if (rc == DS_OK)
        rc = ds_grammar_build(out, &f, NULL, "choices", err);
    ds_forest_free(&f);
    return rc;
}
