/* Random members: a walk through the network that turns towards the end the longer it is. */
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "grammar/grammar_internal.h"

enum { LONG = 200 /* bytes: from here on only the shortest way out */, MOST = 1 << 20 };

static bool room(uint32_t **stack, uint32_t *cap, uint32_t n)
{
    uint32_t more = n > 64 ? 2 * n : 64, *p;

    if (n <= *cap)
        return true;
    p = realloc(*stack, more * sizeof *p);
    if (!p)
        return false;
    *stack = p;
    *cap = more;
    return true;
}

/* Pushes drawn items with separators between them; where to begin. */
static uint32_t members(const ds_grammar *g, uint32_t object, const ds_buf *rules, uint32_t *stack, uint32_t *depth)
{
    size_t n = rules->len / sizeof(uint32_t);
    uint32_t rule;

    while (n-- > 0) {
        memcpy(&rule, rules->p + n * sizeof rule, sizeof rule);
        stack[(*depth)++] = g->start.p[rule];
        if (n)
            stack[(*depth)++] = g->start.p[g->members.p[object].separator];
    }
    return stack[--*depth];
}

ds_rc ds_grammar_sample(const ds_grammar *g, uint64_t seed, uint64_t number, ds_buf *out, ds_err *err)
{
    uint32_t *stack = NULL, depth = 0, cap = 0, at = g->start.p[0];
    uint64_t drawn = 0;
    size_t from = out->len;
    ds_rc rc = DS_OK;

    while (rc == DS_OK) {
        const ds_node *n = g->nodes.p + at;
        uint64_t r = n->kind == N_BYTE || n->kind == N_SPLIT ? ds_rng_u64(seed, number, drawn++) : 0;

        if (n->kind == N_END) {
            if (depth == 0)
                break;
            at = stack[--depth];
        } else if (n->kind == N_BYTE) {
            ds_buf_putc(out, (char)(n->lo + r % (n->hi - n->lo + 1u)));
            at = n->a;
        } else if (n->kind == N_SPLIT) {
            bool a = g->rank.p[n->a] != UNKNOWN, b = g->rank.p[n->b] != UNKNOWN;
            if (a && b) /* a few bytes in, every turn is more likely the shorter one */
                a = drawn + out->len - from > LONG || depth > LONG || r % LONG < drawn ? g->rank.p[n->a] < g->rank.p[n->b]
                                                                                       : (r >> 32 & 1) != 0;
            at = a ? n->a : n->b;
        } else {
            ds_buf rules = { 0 };
            bool few = drawn + out->len - from > LONG || depth > LONG;
            if ((n->kind == N_MEMBERS && !ds_members_draw(g, at, seed, number, &drawn, few, &rules)) ||
                !room(&stack, &cap, depth + 1 + 2 * (uint32_t)(rules.len / sizeof *stack))) {
                ds_buf_free(&rules);
                rc = ds_fail(err, DS_E_NOMEM, "sample: out of memory");
                break;
            }
            stack[depth++] = n->a;
            if (n->kind == N_CALL)
                at = g->start.p[n->b];
            else
                at = members(g, g->words.p[n->b], &rules, stack, &depth);
            ds_buf_free(&rules);
        }
        if (out->len - from > MOST)
            rc = ds_fail(err, DS_E_AGAIN, "sample: the shortest end is more than %d bytes away", MOST);
    }
    free(stack);
    if (rc == DS_OK && out->oom)
        rc = ds_fail(err, DS_E_NOMEM, "sample: out of memory");
    return rc;
}
