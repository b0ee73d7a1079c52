/* Whether two patterns can match one text: both automata side by side. */
#include <stdlib.h>

#include "base/hash.h"
#include "grammar/grammar_internal.h"

enum { MOST_PAIRS = 8192 };

typedef struct {
    ds_grammar *g[2];
    ds_gstate pair[MOST_PAIRS][2];
    uint16_t slot[2 * MOST_PAIRS]; /* number + 1, by content */
    uint32_t n;
} product;

static ds_grammar *automaton(ds_str pattern)
{
    const ds_regex_opts inside = { .search = true, .ecma = true };
    ds_forest f;
    ds_grammar *g = NULL;
    ds_err err;
    uint32_t t, rule;

    ds_forest_init(&f, NULL);
    rule = ds_rule_new(&f, 0);
    if (ds_regex_tree(&f, pattern.p, pattern.n, &inside, &t, &err) == DS_OK && !f.failed) {
        f.rules.p[rule] = t;
        if (ds_grammar_build(&g, &f, NULL, "pattern", &err) != DS_OK)
            g = NULL;
    }
    ds_forest_free(&f);
    return g;
}

/* False: there is no room. */
static bool add(product *p, ds_gstate a, ds_gstate b)
{
    ds_gstate key[2] = { a, b };
    uint32_t at = (uint32_t)ds_hash64(key, sizeof key, 0) % (2 * MOST_PAIRS);

    for (; p->slot[at]; at = (at + 1) % (2 * MOST_PAIRS))
        if (p->pair[p->slot[at] - 1][0] == a && p->pair[p->slot[at] - 1][1] == b)
            return true;
    if (p->n == MOST_PAIRS)
        return false;
    p->pair[p->n][0] = a;
    p->pair[p->n][1] = b;
    p->slot[at] = (uint16_t)++p->n;
    return true;
}

static bool apart(product *p)
{
    if (!add(p, ds_grammar_start(p->g[0]), ds_grammar_start(p->g[1])))
        return false;
    for (uint32_t i = 0; i < p->n; i++) {
        if (ds_grammar_accepts(p->g[0], p->pair[i][0]) && ds_grammar_accepts(p->g[1], p->pair[i][1]))
            return false;
        for (int byte = 0; byte < 256; byte++) {
            ds_gstate a = ds_automaton_step(p->g[0], p->pair[i][0], (uint8_t)byte);
            ds_gstate b = a ? ds_automaton_step(p->g[1], p->pair[i][1], (uint8_t)byte) : 0;
            if (a == FAILED || b == FAILED || (a && b && !add(p, a, b)))
                return false;
        }
    }
    return true;
}

bool ds_regex_apart(ds_str a, ds_str b)
{
    product *p = calloc(1, sizeof *p);
    bool yes;

    if (!p)
        return false;
    p->g[0] = automaton(a);
    p->g[1] = p->g[0] ? automaton(b) : NULL;
    yes = p->g[1] && apart(p);
    ds_grammar_destroy(p->g[0]);
    ds_grammar_destroy(p->g[1]);
    free(p);
    return yes;
}
