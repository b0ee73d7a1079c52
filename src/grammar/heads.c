/* Heads: which tokens may follow a frame, whatever lies below its rule.
 *
 * A head is found once for each frame, by a walk of the trie of the vocabulary together with the automaton. Where that
 * leaves the rule within a token, the node of the trie is noted ("leaf"); what follows there depends on the frame below
 * alone, again, and is a head too, kept for the two. So a mask is a few heads, and stacks that were never seen before
 * cost no walk.
 *
 * Two things keep walks short. Most tokens are plain text, and where the language goes on with any plain text (of some
 * length) all of them are allowed together, and only the others are walked (trie.c). And the frames of a countdown, as
 * strings of bounded length are, share one head, that of the same without a bound: it knows of each token how many
 * calls it takes. */
#include <stdlib.h>
#include <string.h>

#include "grammar/trie_internal.h"

enum {
    FEW = 1024, /* ids: a head that allows fewer keeps a list */
    MOST_PAIRS = 512,
    IN_FRAME = 1u << 31, /* where a walk stands: a frame on an unknown stack, one that calls nothing; else a state */
};

typedef struct {
    const trie_part *part;
    bool leaves;   /* nodes where the rule ends are noted */
    bool calls;    /* of what is found calls are noted: */
    uint32_t loop; /* counted from this frame on; UNKNOWN: `given` */
    uint32_t call; /* the stack while a call is read */
    uint8_t given;
    bool lost; /* they can't be counted */
} walk;

/* ---- where a walk stands ---- */

/* FAILED. */
static uint32_t enter(ds_grammar *g, uint32_t frame)
{
    ds_gstate s;

    if (g->frames.p[frame].n_calls == 0)
        return frame | IN_FRAME;
    if (g->frames.p[frame].open == UNKNOWN) {
        if ((s = ds_automaton_state(g, frame, STACK_OPEN)) == FAILED)
            return FAILED;
        g->frames.p[frame].open = s;
    }
    return g->frames.p[frame].open;
}

/* 0: nothing fits; FAILED. */
static inline uint32_t step(ds_grammar *g, uint32_t from, uint8_t byte)
{
    uint32_t class = g->class_of[byte], to;

    if (from & IN_FRAME) {
        from &= ~(uint32_t)IN_FRAME;
        to = g->words.p[g->frames.p[from].next + class];
        if (to == UNKNOWN)
            to = ds_automaton_frame_step(g, from, class);
        return to == 0 || to == FAILED ? to : g->frames.p[to].n_calls ? enter(g, to) : to | IN_FRAME;
    }
    to = g->words.p[g->states.p[from].next + class];
    return to == UNKNOWN ? ds_automaton_step(g, from, byte) : to;
}

static inline bool leaves(const ds_grammar *g, uint32_t at)
{
    return at & IN_FRAME ? g->frames.p[at & ~(uint32_t)IN_FRAME].ends : g->states.p[at].leaves;
}

/* ---- counting calls ---- */

typedef enum { BETWEEN, INSIDE, PAST, LOST } stand;

/* Where a state stands that was reached from BETWEEN or INSIDE: between two calls, inside one, behind the last. LOST:
 * in two of these at once. */
static stand stand_of(const ds_grammar *g, const walk *w, ds_gstate s)
{
    const ds_state *at = g->states.p + s;
    uint32_t frame = g->words.p[at->kernel], stack = g->words.p[at->kernel + 1];
    const ds_frame *f = g->frames.p + frame;

    for (uint32_t i = 0; i < at->n_kernel; i += 2)
        if (at->n_kernel > 2 && g->words.p[at->kernel + i + 1] == w->call)
            return LOST;
    if (stack != w->call)
        return frame == w->loop && stack == STACK_OPEN ? BETWEEN : PAST;
    return !f->ends ? INSIDE : f->n_nodes == 1 ? BETWEEN : LOST;
}

/* Calls after one more byte. */
static uint8_t count(const ds_grammar *g, walk *w, uint8_t calls, uint32_t from, uint32_t to)
{
    stand before, after;

    if (w->loop == UNKNOWN || calls & PAST_CALLS)
        return calls;
    before = stand_of(g, w, from);
    after = stand_of(g, w, to);
    if (after == LOST || calls + 1 == PAST_CALLS)
        w->lost = true;
    if (after == PAST) {
        w->lost |= before == INSIDE;
        return calls | PAST_CALLS;
    }
    return (uint8_t)(calls + (before == BETWEEN));
}

/* ---- walks ---- */

/* Tokens order[first .. end) are found. */
static bool find_tokens(ds_grammar *g, const walk *w, uint32_t first, uint32_t end, uint8_t calls)
{
    uint32_t n = end - first;

    if (n == 0)
        return true;
    if (!ROOM(g, g->ids, n) || (w->calls && !ROOM(g, g->id_calls, n)))
        return false;
    memcpy(g->ids.p + g->ids.n, w->part->order + first, n * sizeof *g->ids.p);
    g->ids.n += n;
    g->walked += n / 2;
    if (w->calls) {
        memset(g->id_calls.p + g->id_calls.n, calls, n);
        g->id_calls.n += n;
    }
    return true;
}

/* Finds kinds of bytes all of which lead from a frame back to it. */
static bool find_same(ds_grammar *g, const ds_token_trie *t, uint32_t frame)
{
    uint32_t other = 0;

    for (uint32_t b = 0; b < 256; b++) {
        uint32_t to = step(g, frame | IN_FRAME, (uint8_t)b);
        if (to == FAILED)
            return false;
        if (to != (frame | IN_FRAME))
            other |= 1u << t->byte_kind[b];
    }
    g->frames.p[frame].same = ~other;
    g->frames.p[frame].turns = true;
    return true;
}

/* Everything below a node can be read in the frame, which is never left. */
static inline bool all_below(const ds_grammar *g, const walk *w, const trie_node *n, uint32_t at)
{
    const ds_frame *f = g->frames.p + (at & ~(uint32_t)IN_FRAME);

    return at & IN_FRAME && f->turns && !w->calls && !(w->leaves && f->ends) && !(n->below & ~f->same);
}

static bool find_leaf(ds_grammar *g, const walk *w, uint32_t node, uint8_t calls)
{
    return PUSH(g, g->found, node) && (!w->calls || PUSH(g, g->found_calls, calls | PAST_CALLS));
}

/* Tokens below a node, where the text stands in `at`, that can be read. */
static bool walk_below(ds_grammar *g, const ds_token_trie *t, walk *w, uint32_t node, uint32_t at, uint8_t calls)
{
    const trie_node *nodes = w->part->nodes;
    uint32_t base = nodes[node].depth, end = nodes[node].skip, *path = g->path.p, seen = 0;
    uint8_t *path_calls = g->path_calls.p;

    path[0] = at;
    path_calls[0] = calls;
    for (uint32_t i = node + 1; i < end && !w->lost; seen++) {
        const trie_node *n = nodes + i;
        uint32_t depth = n->depth - base, from = path[depth - 1], to = step(g, from, n->byte), next = i + 1;
        if (to == FAILED)
            return false;
        if (to == 0) {
            i = n->skip;
            continue;
        }
        path[depth] = to;
        path_calls[depth] = w->calls ? count(g, w, path_calls[depth - 1], from, to) : 0;
        if (to == from && to & IN_FRAME && !g->frames.p[to & ~(uint32_t)IN_FRAME].turns && !find_same(g, t, to & ~(uint32_t)IN_FRAME))
            return false;
        if (n->skip > next && all_below(g, w, n, to))
            next = n->skip;
        else if (w->leaves && n->skip > next && leaves(g, to) && !find_leaf(g, w, i, path_calls[depth]))
            return false;
        if (n->first < nodes[next].first && !find_tokens(g, w, n->first, nodes[next].first, path_calls[depth]))
            return false;
        i = next;
    }
    g->walked += seen;
    return true;
}

static bool walk_part(ds_grammar *g, const ds_token_trie *t, walk *w, uint32_t at)
{
    if (w->leaves && leaves(g, at) && !find_leaf(g, w, 0, w->given))
        return false;
    for (uint32_t b = 0; b < 256 && !w->lost; b++) {
        uint32_t i = w->part->child[b], to = i ? step(g, at, (uint8_t)b) : 0;
        const trie_node *n = w->part->nodes + i;
        uint8_t calls;
        if (to == FAILED)
            return false;
        if (to == 0)
            continue;
        calls = w->calls ? count(g, w, w->given, at, to) : 0;
        if (!find_tokens(g, w, n[0].first, n[1].first, calls) ||
            (w->leaves && n->skip > i + 1 && leaves(g, to) && !find_leaf(g, w, i, calls)) || !walk_below(g, t, w, i, to, calls))
            return false;
    }
    return true;
}

static bool begin(ds_grammar *g, const ds_token_trie *t)
{
    g->ids.n = g->id_calls.n = g->found.n = g->found_calls.n = 0;
    return ROOM(g, g->path, t->max_depth + 1) && ROOM(g, g->path_calls, t->max_depth + 1);
}

/* ---- plain text ---- */

static void find_sorts(ds_grammar *g, const ds_token_trie *t)
{
    if (g->n_sorts)
        return;
    for (uint32_t b = 0; b < 256; b++)
        if (b == 0 || g->class_of[b] != g->class_of[b - 1] || t->plain_class[b] != t->plain_class[b - 1])
            if (t->plain[0][b] != NOT_PLAIN || b >= 0x80) /* others are in no plain text */
                g->sorts[g->n_sorts++] = (uint8_t)b;
}

/* *yes: everything that begins a plain text of at most `most` characters (0: of any length) can be read from `at`, and
 * with w->calls, each character in one call. Asks for each pair of a state there and here; gives up on many. false:
 * memory or a bound. */
static bool reads_plain(ds_grammar *g, const ds_token_trie *t, const walk *w, uint32_t at, uint32_t most, bool *yes)
{
    struct {
        uint32_t at;
        uint16_t row, length;
    } seen[MOST_PAIRS];
    uint16_t slot[4 * MOST_PAIRS]; /* of a pair its newest number + 1 */
    uint32_t n = 1, cap = most ? MOST_PAIRS : MOST_PAIRS / 8, n_slots = 4 * cap;

    *yes = false;
    memset(slot, 0, n_slots * sizeof *slot);
    seen[0].at = at;
    seen[0].row = seen[0].length = 0;
    for (uint32_t k = 0; k < n; k++)
        for (uint32_t i = 0; i < g->n_sorts && (most == 0 || seen[k].row || seen[k].length < most); i++) {
            uint8_t row = t->plain[seen[k].row][g->sorts[i]];
            uint16_t length = (uint16_t)(seen[k].length + (most && seen[k].row == 0));
            uint32_t to, s;
            if (row == NOT_PLAIN)
                continue;
            to = step(g, seen[k].at, g->sorts[i]);
            if (to == 0 || to == FAILED)
                return to == 0;
            if (w->calls && stand_of(g, w, to) != (row ? INSIDE : BETWEEN))
                return true;
            for (s = (to * 31 + row) % n_slots; slot[s]; s = (s + 1) % n_slots)
                if (seen[slot[s] - 1].at == to && seen[slot[s] - 1].row == row)
                    break;
            if (slot[s] && seen[slot[s] - 1].length <= length)
                continue;
            if (n == cap)
                return true;
            seen[n].at = to;
            seen[n].row = row;
            seen[n++].length = length;
            slot[s] = (uint16_t)n;
        }
    *yes = true;
    return true;
}

/* ---- heads ---- */

static bool take(ds_grammar *g, void *out, const void *p, size_t bytes)
{
    void *q;

    if (bytes == 0)
        return true;
    if (g->bytes + bytes > g->opts.max_bytes) {
        g->full = "bytes";
        return false;
    }
    q = malloc(bytes);
    if (!q)
        return false;
    g->bytes += bytes;
    memcpy(q, p, bytes);
    memcpy(out, &q, sizeof q);
    return true;
}

/* Few ids as a list, many as bits. */
static bool take_ids(ds_grammar *g, const ds_token_trie *t, ds_head *h)
{
    uint32_t n_words = ds_token_trie_words(t);

    if (g->ids.n <= FEW || h->counted) {
        h->n_ids = g->ids.n;
        return take(g, &h->ids, g->ids.p, g->ids.n * sizeof *g->ids.p);
    }
    if (g->bytes + n_words * sizeof *h->bits > g->opts.max_bytes) {
        g->full = "bytes";
        return false;
    }
    h->bits = calloc(n_words, sizeof *h->bits);
    if (!h->bits)
        return false;
    g->bytes += n_words * sizeof *h->bits;
    for (uint32_t i = 0; i < g->ids.n; i++)
        h->bits[g->ids.p[i] / 32] |= 1u << g->ids.p[i] % 32;
    return true;
}

/* What was found becomes a head, the last. */
static bool keep(ds_grammar *g, const ds_token_trie *t, const walk *w, ds_head h)
{
    h.counted = w->calls;
    h.n_leaves = g->found.n;
    if (take_ids(g, t, &h) && take(g, &h.calls, g->id_calls.p, g->id_calls.n) &&
        take(g, &h.leaf_calls, g->found_calls.p, g->found_calls.n) && take(g, &h.leaves, g->found.p, g->found.n * sizeof *g->found.p) &&
        PUSH(g, g->heads, h))
        return true;
    free(h.calls);
    free(h.leaf_calls);
    free(h.ids);
    free(h.bits);
    free(h.leaves);
    return false;
}

/* *head: FAILED where calls are to be counted and can't be. */
static bool make_head(ds_grammar *g, const ds_token_trie *t, uint32_t frame, bool counted, uint32_t *head)
{
    walk w = { .leaves = true, .calls = counted, .loop = counted ? frame : UNKNOWN };
    uint32_t at = enter(g, frame);
    ds_head h = { 0 };
    bool plain;

    if (at == FAILED || !begin(g, t) || (counted && (w.call = ds_automaton_push(g, frame, STACK_OPEN)) == FAILED))
        return false;
    find_sorts(g, t);
    if (!reads_plain(g, t, &w, at, 1, &plain)) /* nearly always enough to tell */
        return false;
    if (plain && counted) {
        if (!reads_plain(g, t, &w, at, 0, &h.plain))
            return false;
        if (h.plain && leaves(g, at)) { /* what is below begins within plain tokens: those are in no part of the trie with plain ones */
            *head = FAILED;
            return true;
        }
    }
    h.part = h.plain;
    for (uint32_t k = 1; k < N_PARTS && plain && !counted && !h.plain; k++) { /* the first part whose plain tokens fit */
        if (!reads_plain(g, t, &w, at, t->parts[k].most, &h.plain))
            return false;
        h.part = h.plain ? k : 0;
    }
    w.part = &t->parts[h.part];
    if (!walk_part(g, t, &w, at))
        return false;
    *head = w.lost ? FAILED : g->heads.n;
    return w.lost || keep(g, t, &w, h);
}

bool ds_head_of(ds_grammar *g, const ds_token_trie *t, uint32_t frame, uint32_t *head, uint32_t *limit)
{
    uint32_t loop;

    if (!ds_automaton_loop(g, frame))
        return false;
    loop = g->frames.p[frame].loop;
    if (loop != frame) {
        if (g->frames.p[loop].head == UNKNOWN) {
            if (!make_head(g, t, loop, true, head))
                return false;
            g->frames.p[loop].head = *head;
        }
        *head = g->frames.p[loop].head;
        *limit = g->frames.p[frame].limit;
        if (*head != FAILED)
            return true;
    }
    if (g->frames.p[frame].head == UNKNOWN) {
        if (!make_head(g, t, frame, false, head))
            return false;
        g->frames.p[frame].head = *head;
    }
    *head = g->frames.p[frame].head;
    *limit = NO_LIMIT;
    return true;
}

static bool below_same(const ds_grammar *g, uint32_t i, const uint32_t *p, uint32_t n)
{
    return n == 2 && g->below.p[3 * i] == p[0] && g->below.p[3 * i + 1] == p[1];
}

/* As make_head. loop: whether calls are counted from the frame on. */
static bool make_below(ds_grammar *g, const ds_token_trie *t, uint32_t head, uint32_t frame, bool loop, uint32_t *below)
{
    ds_head h = g->heads.p[head];
    walk w = { .part = t->parts + h.part, .leaves = true, .calls = h.counted || loop, .loop = loop ? frame : UNKNOWN };
    uint32_t at = enter(g, frame);

    if (at == FAILED || !begin(g, t) || (loop && (w.call = ds_automaton_push(g, frame, STACK_OPEN)) == FAILED))
        return false;
    for (uint32_t i = 0; i < h.n_leaves && !w.lost; i++) {
        uint8_t calls = h.counted ? h.leaf_calls[i] : 0;
        if (h.leaves[i] == 0) /* ends at once: that is another place */
            continue;
        if ((leaves(g, at) && !find_leaf(g, &w, h.leaves[i], calls)) || !walk_below(g, t, &w, h.leaves[i], at, calls))
            return false;
    }
    *below = w.lost ? FAILED : g->heads.n;
    return w.lost || keep(g, t, &w, (ds_head){ .part = h.part });
}

static bool find_below(ds_grammar *g, const ds_token_trie *t, uint32_t head, uint32_t frame, bool loop, uint32_t *below)
{
    uint32_t key[2] = { head, frame };
    ds_slot *slot = ds_automaton_find(g, &g->below_table, key, 2, below_same);

    if (!slot)
        return false;
    if (slot->number) {
        *below = g->below.p[3 * (slot->number - 1) + 2];
        return true;
    }
    if (!make_below(g, t, head, frame, loop, below) || !ROOM(g, g->below, 3))
        return false;
    g->below.p[g->below.n++] = head;
    g->below.p[g->below.n++] = frame;
    g->below.p[g->below.n++] = *below;
    slot->number = ++g->below_table.n;
    return true;
}

bool ds_head_below(ds_grammar *g, const ds_token_trie *t, uint32_t head, uint32_t frame, uint32_t *below, uint32_t *limit)
{
    if (!ds_automaton_loop(g, frame))
        return false;
    if (!g->heads.p[head].counted && g->frames.p[frame].loop != frame) {
        *limit = g->frames.p[frame].limit;
        if (!find_below(g, t, head, g->frames.p[frame].loop, true, below))
            return false;
        if (*below != FAILED)
            return true;
        *limit = NO_LIMIT;
    }
    return find_below(g, t, head, frame, false, below);
}
