/* Masks: the trie of a vocabulary walked together with the automaton.
 *
 * What may follow a frame while its rule stays open doesn't depend on the stack: it is found once for each frame
 * ("head"), by a walk on a stack that nobody knows. Where that walk leaves the rule within a token, only the tokens
 * below that node of the trie are walked again, with the stack that there is.
 *
 * Two things keep the walks short. Most tokens are plain text, and where the language goes on with any plain text (of
 * some length) all of them are allowed together, and only the others are walked (trie.c). And of the places in a
 * string of bounded length, those far from its end differ only in the few tokens that are longer than the rest. */
#include <stdlib.h>
#include <string.h>

#include "grammar/trie_internal.h"

enum {
    FEW = 1024, /* ids: a head that allows fewer keeps a list */
    LONG = 32,  /* characters of a token; longer ones are a part of their own */
    MOST_PAIRS = 512,
};

/* Tokens that end at a node are found. */
static bool find_tokens(ds_grammar *g, const trie_part *part, const trie_node *n)
{
    for (uint32_t k = n[0].first; k < n[1].first; k++) {
        uint32_t id = part->order[k], bit = 1u << id % 32;
        if (g->extra[id / 32] & bit)
            continue;
        g->extra[id / 32] |= bit;
        if (g->n_extra++ < FEW && !PUSH(g, g->ids, id))
            return false;
    }
    return true;
}

/* Tokens below a node, where the text stands in s, that can be read. leaves: nodes that others lie below, and where
 * s->leaves, are noted in g->found. */
static bool walk_below(ds_grammar *g, const trie_part *part, uint32_t node, ds_gstate s, bool leaves)
{
    const trie_node *nodes = part->nodes;
    uint32_t base = nodes[node].depth, end = nodes[node].skip;
    ds_gstate *path = g->path.p;

    path[0] = s;
    for (uint32_t i = node + 1; i < end;) {
        const trie_node *n = nodes + i;
        ds_gstate from = path[n->depth - 1 - base], to = g->words.p[g->states.p[from].next + g->class_of[n->byte]];
        if (to == UNKNOWN && (to = ds_automaton_step(g, from, n->byte)) == FAILED)
            return false;
        if (to == 0) {
            i = n->skip;
            continue;
        }
        path[n->depth - base] = to;
        if (n[0].first < n[1].first && !find_tokens(g, part, n))
            return false;
        if (leaves && n->skip > i + 1 && g->states.p[to].leaves && !PUSH(g, g->found, i))
            return false;
        i++;
    }
    return true;
}

static bool walk(ds_grammar *g, const ds_token_trie *t, const trie_part *part, uint32_t node, ds_gstate s, bool leaves)
{
    while (g->path.n <= t->max_depth)
        if (!PUSH(g, g->path, 0))
            return false;
    if (node)
        return walk_below(g, part, node, s, leaves);
    for (uint32_t b = 0; b < 256; b++) {
        uint32_t i = part->child[b];
        ds_gstate to = i ? ds_automaton_step(g, s, (uint8_t)b) : 0;
        if (to == FAILED)
            return false;
        if (to == 0)
            continue;
        if (!find_tokens(g, part, part->nodes + i) || (leaves && g->states.p[to].leaves && !PUSH(g, g->found, i)) ||
            !walk_below(g, part, i, to, leaves))
            return false;
    }
    return true;
}

/* Room for what a walk finds. */
static bool begin_walks(ds_grammar *g, const ds_token_trie *t)
{
    uint32_t n_words = ds_token_trie_words(t);

    g->ids.n = g->n_extra = 0;
    if (g->extra)
        return true;
    if (g->bytes + n_words * sizeof *g->extra > g->opts.max_bytes) {
        g->full = "bytes";
        return false;
    }
    g->extra = calloc(n_words + 1, sizeof *g->extra);
    g->bytes += g->extra ? n_words * sizeof *g->extra : 0;
    return g->extra != NULL;
}

static void end_walks(ds_grammar *g, const ds_token_trie *t)
{
    if (g->n_extra > g->ids.n)
        memset(g->extra, 0, ds_token_trie_words(t) * sizeof *g->extra);
    for (uint32_t i = 0; i < g->ids.n; i++)
        g->extra[g->ids.p[i] / 32] = 0;
    g->n_extra = g->ids.n = 0;
}

/* Bytes that stand for all others of their class, here and in plain text. */
static uint32_t sorts_of(const ds_grammar *g, const ds_token_trie *t, uint8_t *byte)
{
    uint32_t n = 0;

    for (uint32_t b = 0; b < 256; b++)
        if (b == 0 || g->class_of[b] != g->class_of[b - 1] || t->plain_class[b] != t->plain_class[b - 1])
            byte[n++] = (uint8_t)b;
    return n;
}

/* *yes: everything that begins a plain text of at most `most` characters (0: of any length) can be read from s. Asks
 * for each pair of a state there and here; gives up on many. false: memory or a bound. */
static bool reads_plain(ds_grammar *g, const ds_token_trie *t, ds_gstate s, uint32_t most, bool *yes)
{
    struct {
        ds_gstate s;
        uint16_t row, length;
    } seen[MOST_PAIRS];
    uint16_t slot[4 * MOST_PAIRS] = { 0 }; /* of a pair its newest number + 1 */
    uint8_t sorts[256];
    uint32_t n_sorts = sorts_of(g, t, sorts), n = 1, cap = most ? MOST_PAIRS : MOST_PAIRS / 8;

    *yes = false;
    seen[0].s = s;
    seen[0].row = seen[0].length = 0;
    for (uint32_t at = 0; at < n; at++)
        for (uint32_t i = 0; i < n_sorts && (most == 0 || seen[at].row || seen[at].length < most); i++) {
            uint8_t row = t->plain[seen[at].row][sorts[i]];
            uint16_t length = (uint16_t)(seen[at].length + (most && seen[at].row == 0));
            uint32_t k;
            ds_gstate to;
            if (row == NOT_PLAIN)
                continue;
            to = ds_automaton_step(g, seen[at].s, sorts[i]);
            if (to == 0 || to == FAILED)
                return to == 0;
            for (k = (to * 31 + row) % (4 * MOST_PAIRS); slot[k]; k = (k + 1) % (4 * MOST_PAIRS))
                if (seen[slot[k] - 1].s == to && seen[slot[k] - 1].row == row)
                    break;
            if (slot[k] && seen[slot[k] - 1].length <= length)
                continue;
            if (n == cap)
                return true;
            seen[n].s = to;
            seen[n].row = row;
            seen[n++].length = length;
            slot[k] = (uint16_t)n;
        }
    *yes = true;
    return true;
}

static bool take(ds_grammar *g, uint32_t **out, const uint32_t *p, uint32_t n)
{
    size_t bytes = n * sizeof *p;

    if (n == 0)
        return true;
    if (g->bytes + bytes > g->opts.max_bytes) {
        g->full = "bytes";
        return false;
    }
    *out = malloc(bytes);
    if (!*out)
        return false;
    g->bytes += bytes;
    memcpy(*out, p, bytes);
    return true;
}

/* The head of a frame. `part`: UNKNOWN, or the one part whose tokens it has beside those of the head `base`. */
static bool make_head(ds_grammar *g, const ds_token_trie *t, uint32_t frame, uint32_t part, uint32_t base)
{
    ds_gstate s = ds_automaton_state(g, frame, STACK_OPEN);
    ds_head h = { .part = part, .base = base };
    bool ok = begin_walks(g, t) && s != FAILED, plain = false;

    if (part == UNKNOWN) { /* the first part whose plain tokens fit, else all tokens */
        for (h.part = 1; h.part < N_PLAIN && ok && !plain; h.part += !plain)
            ok = reads_plain(g, t, s, t->parts[h.part].most, &plain);
        h.part = plain ? h.part : 0;
    }
    g->found.n = 0;
    ok = ok && (!g->states.p[s].leaves || PUSH(g, g->found, 0)) && walk(g, t, &t->parts[h.part], 0, s, true);
    h.n_leaves = g->found.n;
    ok = ok && take(g, &h.leaves, g->found.p, g->found.n);
    if (ok && g->n_extra > g->ids.n) {
        ok = take(g, &h.bits, g->extra, ds_token_trie_words(t));
    } else if (ok) {
        h.n_ids = g->ids.n;
        ok = take(g, &h.ids, g->ids.p, g->ids.n);
    }
    end_walks(g, t);
    if (ok && PUSH(g, g->heads, h)) {
        g->frames.p[frame].head = g->heads.n - 1;
        return true;
    }
    free(h.leaves);
    free(h.bits);
    free(h.ids);
    return false;
}

/* The frame's head is made, if it isn't there. */
static bool head_of(ds_grammar *g, const ds_token_trie *t, uint32_t frame)
{
    uint32_t near;

    if (g->frames.p[frame].head != UNKNOWN)
        return true;
    near = ds_automaton_nearer(g, frame, LONG);
    if (near == FAILED)
        return false;
    if (near == frame)
        return make_head(g, t, frame, UNKNOWN, UNKNOWN);
    if (g->frames.p[near].head == UNKNOWN && !make_head(g, t, near, UNKNOWN, UNKNOWN))
        return false;
    return make_head(g, t, frame, N_PLAIN, g->frames.p[near].head);
}

/* What follows one place: heads into g->used, each with the stack below its rule, STACK_EMPTY: where that has no say,
 * for the rule ends at the end of a token, if at all. The stack gets shorter with each turn. */
static bool add_place(ds_grammar *g, const ds_token_trie *t, uint32_t frame, uint32_t stack)
{
    for (;;) {
        bool root = false;

        if (!head_of(g, t, frame))
            return false;
        for (uint32_t at = g->frames.p[frame].head; at != UNKNOWN; at = g->heads.p[at].base) {
            const ds_head *h = g->heads.p + at;
            bool own = h->n_leaves > 0 && h->leaves[0] == 0; /* the root is always the first */
            if (!PUSH(g, g->used, at) || !PUSH(g, g->used, h->n_leaves > own ? stack : STACK_EMPTY))
                return false;
            root |= own;
        }
        if (!root || stack == STACK_EMPTY)
            return true;
        frame = g->stacks.p[stack].frame;
        stack = g->stacks.p[stack].below;
    }
}

/* Tokens that leave the rule of a head. */
static bool walk_leaves(ds_grammar *g, const ds_token_trie *t, uint32_t head, uint32_t stack)
{
    ds_gstate s = ds_automaton_state(g, g->stacks.p[stack].frame, g->stacks.p[stack].below);
    ds_head h = g->heads.p[head];

    for (uint32_t i = 0; i < h.n_leaves && s != FAILED; i++)
        if (h.leaves[i] && !walk(g, t, &t->parts[h.part], h.leaves[i], s, false))
            return false;
    return s != FAILED;
}

/* What the mask of s is made of, kept in words: the number of heads, heads; the number of tokens, tokens. */
static bool make_mask(ds_grammar *g, const ds_token_trie *t, ds_gstate s)
{
    uint32_t n_words = ds_token_trie_words(t), at;
    ds_state state = g->states.p[s];
    bool ok = true;

    g->used.n = 0;
    for (uint32_t i = 0; i < state.n_kernel && ok; i += 2)
        ok = add_place(g, t, g->words.p[state.kernel + i], g->words.p[state.kernel + i + 1]);
    ok = ok && begin_walks(g, t);
    for (uint32_t i = 0; i < g->used.n && ok; i += 2)
        ok = g->used.p[i + 1] == STACK_EMPTY || walk_leaves(g, t, g->used.p[i], g->used.p[i + 1]);
    at = g->words.n;
    ok = ok && PUSH(g, g->words, g->used.n / 2);
    for (uint32_t i = 0; i < g->used.n && ok; i += 2)
        ok = PUSH(g, g->words, g->used.p[i]);
    ok = ok && PUSH(g, g->words, g->n_extra);
    if (ok && g->n_extra == g->ids.n)
        for (uint32_t i = 0; i < g->ids.n && ok; i++)
            ok = PUSH(g, g->words, g->ids.p[i]);
    else
        for (uint32_t i = 0; i < n_words && ok; i++)
            for (uint32_t w = g->extra[i]; w && ok; w &= w - 1)
                ok = PUSH(g, g->words, 32 * i + (uint32_t)__builtin_ctz(w));
    if (g->extra)
        end_walks(g, t);
    if (ok)
        g->states.p[s].mask = at;
    return ok;
}

static void put_mask(const ds_grammar *g, const ds_token_trie *t, const uint32_t *parts, uint32_t *words)
{
    uint32_t n_words = ds_token_trie_words(t);

    memset(words, 0, n_words * sizeof *words);
    for (uint32_t k = *parts++; k > 0; k--) {
        const ds_head *h = g->heads.p + *parts++;
        const uint32_t *plain = t->parts[h->part].plain;
        for (uint32_t i = 0; plain && i < n_words; i++)
            words[i] |= plain[i];
        for (uint32_t i = 0; h->bits && i < n_words; i++)
            words[i] |= h->bits[i];
        for (uint32_t i = 0; i < h->n_ids; i++)
            words[h->ids[i] / 32] |= 1u << h->ids[i] % 32;
    }
    for (uint32_t k = *parts++; k > 0; k--, parts++)
        words[*parts / 32] |= 1u << *parts % 32;
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

    if (g->trie && g->trie != t)
        return ds_fail(err, DS_E_ARG, "a grammar is used with one vocabulary");
    g->trie = t;
    ds_grammar_call(g);
    if (at.mask == UNKNOWN && !make_mask(g, t, s))
        return ds_grammar_failed(g, err);
    put_mask(g, t, g->words.p + g->states.p[s].mask, words);
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
