/* Masks of states: what their places allow together, without what completes a forbidden text; and along drafts. */
#include <stdlib.h>
#include <string.h>

#include "grammar/trie_internal.h"

/* A head is part of the mask, once. */
static bool use(ds_grammar *g, uint32_t head, uint32_t limit)
{
    for (uint32_t i = 0; i < g->used.n; i += 2)
        if (g->used.p[i] == head && g->used.p[i + 1] == limit)
            return true;
    return PUSH(g, g->used, head) && PUSH(g, g->used, limit);
}

/* What follows one place: its head, then what follows where its rule ends within a token; and where it ends at once,
 * what follows there. The stack gets shorter with each turn. */
static bool add_place(ds_grammar *g, const ds_token_trie *t, uint32_t frame, uint32_t stack)
{
    for (;;) {
        uint32_t at, limit, below = stack;
        const ds_head *h;
        bool root;

        if (!ds_head_of(g, t, frame, &at, &limit) || !use(g, at, limit))
            return false;
        h = g->heads.p + at; /* the root is always the first leaf */
        root = h->n_leaves > 0 && h->leaves[0] == 0 && (!h->counted || ds_limit_allows(limit, h->leaf_calls[0]));
        for (; below != STACK_EMPTY && g->heads.p[at].n_leaves > (g->heads.p[at].n_leaves > 0 && g->heads.p[at].leaves[0] == 0);
             below = g->stacks.p[below].below)
            if (!ds_head_below(g, t, at, g->stacks.p[below].frame, &at, &limit) || !use(g, at, limit))
                return false;
        if (!root || stack == STACK_EMPTY)
            return true;
        frame = g->stacks.p[stack].frame;
        stack = g->stacks.p[stack].below;
    }
}

/* What the mask of s is made of, kept in words: the number of heads; heads, each with its limit. */
static bool make_mask(ds_grammar *g, const ds_token_trie *t, ds_gstate s)
{
    ds_state state = g->states.p[s];
    uint32_t at;

    g->used.n = 0;
    for (uint32_t i = 0; i < state.n_kernel; i += 2)
        if (!add_place(g, t, g->words.p[state.kernel + i], g->words.p[state.kernel + i + 1]))
            return false;
    at = g->words.n;
    if (!ROOM(g, g->words, g->used.n + 1))
        return false;
    g->words.p[g->words.n++] = g->used.n / 2;
    for (uint32_t i = 0; i < g->used.n; i++)
        g->words.p[g->words.n++] = g->used.p[i];
    g->states.p[s].mask = at;
    return true;
}

static void put_words(uint32_t *words, const uint32_t *more, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        words[i] |= more[i];
}

/* Plain tokens of at most so many characters. */
static void put_plain(const ds_token_trie *t, uint32_t most, uint32_t *words)
{
    uint32_t k = most >= t->longest ? SHORT + 1 : most < SHORT ? most : SHORT;

    if (k == 0)
        return;
    put_words(words, t->shorter[k], ds_token_trie_words(t));
    for (uint32_t i = k == SHORT ? t->longer[SHORT] : t->longer[t->longest]; i < t->longer[most < t->longest ? most : t->longest]; i++)
        words[t->by_length[i] / 32] |= 1u << t->by_length[i] % 32;
}

static void put_head(const ds_token_trie *t, const ds_head *h, uint32_t limit, uint32_t *words)
{
    if (h->plain && h->counted)
        put_plain(t, limit & UINT16_MAX, words);
    else if (h->plain)
        put_words(words, t->parts[h->part].plain, ds_token_trie_words(t));
    if (h->bits)
        put_words(words, h->bits, ds_token_trie_words(t));
    for (uint32_t i = 0; i < h->n_ids; i++)
        if (!h->counted || ds_limit_allows(limit, h->calls[i]))
            words[h->ids[i] / 32] |= 1u << h->ids[i] % 32;
}

/* Tokens that complete a forbidden text, `row` of which was read already, into g->kill_ids. Row 0: those that hold a
 * whole one; every other row then has, beside these, what goes on with its own beginning. */
static bool make_kill(ds_grammar *g, const ds_token_trie *t, uint32_t row)
{
    uint32_t first = g->kill_ids.n;
    uint16_t *path;

    const trie_part *all = t->parts;

    for (uint32_t i = 0; i < all->n_order && row == 0; i++) { /* forbidden texts begin with '<' */
        const char *p = t->bytes + t->at[all->order[i]], *end = t->bytes + t->at[all->order[i] + 1];
        uint32_t at = 0;
        for (p = memchr(p, '<', (size_t)(end - p)); p && p < end && at != AVOIDED; p++)
            at = g->avoid[at][(uint8_t)*p];
        if (at == AVOIDED && !PUSH(g, g->kill_ids, all->order[i]))
            return false;
    }
    path = row ? malloc((t->max_depth + 1) * sizeof *path) : NULL;
    if (row && !path)
        return false;
    if (row)
        path[0] = (uint16_t)row;
    for (uint32_t i = 1; i < all->n_nodes && row;) {
        const trie_node *n = all->nodes + i;
        uint16_t to = g->avoid[path[n->depth - 1]][n->byte];
        path[n->depth] = to;
        for (uint32_t k = n->first; to == AVOIDED && k < all->nodes[n->skip].first; k++)
            if (!PUSH(g, g->kill_ids, all->order[k])) {
                free(path);
                return false;
            }
        i = to == 0 || to == AVOIDED ? n->skip : i + 1;
    }
    free(path);
    g->killed.p[2 * row] = first;
    g->killed.p[2 * row + 1] = g->kill_ids.n - first;
    return true;
}

static bool kill(ds_grammar *g, const ds_token_trie *t, uint32_t row, uint32_t *words)
{
    if (g->killed.p[2 * row] == UNKNOWN && !make_kill(g, t, row))
        return false;
    for (uint32_t i = 0; i < g->killed.p[2 * row + 1]; i++) {
        uint32_t id = g->kill_ids.p[g->killed.p[2 * row] + i];
        words[id / 32] &= ~(1u << id % 32);
    }
    return true;
}

ds_rc ds_grammar_mask(ds_grammar *g, const ds_token_trie *t, ds_gstate s, uint32_t *words, ds_err *err)
{
    ds_state at = g->states.p[s];
    const uint32_t *parts;

    if (g->trie && g->trie != t)
        return ds_fail(err, DS_E_ARG, "a grammar is used with one vocabulary");
    g->trie = t;
    ds_grammar_call(g);
    if (at.mask == UNKNOWN && !make_mask(g, t, s))
        return ds_grammar_failed(g, err);
    parts = g->words.p + g->states.p[s].mask;
    memset(words, 0, ds_token_trie_words(t) * sizeof *words);
    for (uint32_t i = 0; i < *parts; i++)
        put_head(t, g->heads.p + parts[1 + 2 * i], parts[2 + 2 * i], words);
    if (g->avoid && !(kill(g, t, 0, words) && (at.avoid == 0 || kill(g, t, at.avoid, words))))
        return ds_grammar_failed(g, err);
    return DS_OK;
}

ds_rc ds_grammar_accept(ds_grammar *g, const ds_token_trie *t, ds_gstate *s, const ds_token *ids, uint32_t n, uint32_t *taken, ds_err *err)
{
    for (*taken = 0; *taken < n; ++*taken) {
        uint32_t id = (uint32_t)ids[*taken];
        size_t len = id < t->n_tokens ? t->at[id + 1] - t->at[id] : 0, got;
        ds_gstate to = *s;
        ds_rc rc = ds_grammar_read(g, &to, t->bytes + (len ? t->at[id] : 0), len, &got, err);
        if (rc != DS_OK)
            return rc;
        if (len == 0 || got < len)
            break;
        *s = to;
    }
    return DS_OK;
}

ds_rc ds_grammar_masks(ds_grammar *g, const ds_token_trie *t, ds_gstate s, const ds_token *drafts, uint32_t n, uint32_t *words, size_t ld,
                       uint32_t *rows, ds_err *err)
{
    for (*rows = 0;;) {
        uint32_t taken;
        ds_rc rc = ds_grammar_mask(g, t, s, words + *rows * ld, err);
        if (rc != DS_OK)
            return rc;
        if (++*rows > n)
            return DS_OK;
        rc = ds_grammar_accept(g, t, &s, drafts + *rows - 1, 1, &taken, err);
        if (rc != DS_OK || taken == 0)
            return rc;
    }
}
