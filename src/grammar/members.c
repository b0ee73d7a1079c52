/* Members of an object in any order, or so many of them: the part of the network that is made while texts are read.
 *
 * Which keys may come depends on those that were there: with n keys in any order that are 2^n places, of which texts
 * see few. So the network has a node "members" that stands for what is left, and becomes branches and calls when a
 * frame needs it. Each item is a rule; nodes for equal rests are one.
 *
 * The content of such a node, in g->words: object, phase, the node behind, how many came (as far as bounds ask), and a
 * bit for each item that can't come any more. In front of it stands the node of its branches, 0: not yet made; the
 * node itself stays as it is, for random members. */
#include "grammar/grammar_internal.h"

#include <string.h>

#include "base/rng.h"

enum { OBJECT, PHASE, AFTER, COUNT, DISTINCT, BITS };
#define DISTINCT_EXTRA (1u << 31) /* beside the number: a name that isn't declared came */
enum { FIRST, BEHIND, NEXT };     /* phases: nothing came; behind an item; behind a separator */

static uint32_t content_size(const ds_members *m)
{
    return BITS + (m->n + 31) / 32;
}

static bool gone(const uint32_t *c, uint32_t i)
{
    return c[BITS + i / 32] >> i % 32 & 1;
}

static bool item_lives(const ds_grammar *g, const uint32_t *rank, uint32_t rule)
{
    return rank[g->start.p[rule]] != UNKNOWN;
}

/* Whether the end can still be reached from a content. rank: of nodes, UNKNOWN: leads nowhere. */
static bool can_end(const ds_grammar *g, const uint32_t *rank, const uint32_t *c)
{
    const ds_members *m = g->members.p + c[OBJECT];
    uint32_t needed = 0, more = 0;
    bool extra = m->extra && item_lives(g, rank, m->extra);

    for (uint32_t i = 0; i < m->n; i++) {
        const ds_member_item *item = g->items.p + m->first + i;
        if (gone(c, i))
            continue;
        needed += item->needed;
        more += item_lives(g, rank, item->rule);
        if (item->needed && !item_lives(g, rank, item->rule))
            return false;
    }
    if (c[COUNT] + needed > m->max)
        return false;
    more += extra && !(c[DISTINCT] & DISTINCT_EXTRA);
    if (m->max != UNKNOWN && more > m->max - c[COUNT])
        more = m->max - c[COUNT];
    return (c[DISTINCT] & ~DISTINCT_EXTRA) + more >= m->min;
}

/* Distinct names count for the lower bound; of names that aren't declared only the first does, for the next may be
 * the same. */
static void count(const ds_members *m, uint32_t *c, bool extra)
{
    uint32_t n = c[DISTINCT] & ~DISTINCT_EXTRA;

    if (m->max != UNKNOWN)
        c[COUNT]++;
    if (n < m->min && !(extra && (c[DISTINCT] & DISTINCT_EXTRA)))
        n++;
    c[DISTINCT] = n | (c[DISTINCT] & DISTINCT_EXTRA) | (extra ? DISTINCT_EXTRA : 0);
}

/* c becomes what is left after item i (m->n: one that isn't declared); false: that can't come now. */
static bool take(const ds_grammar *g, uint32_t *c, uint32_t i)
{
    const ds_members *m = g->members.p + c[OBJECT];

    if (c[COUNT] >= m->max || (i < m->n && gone(c, i)))
        return false;
    for (uint32_t k = 0; k < i && m->ordered; k++) {
        if (!gone(c, k) && g->items.p[m->first + k].needed)
            return false;
        c[BITS + k / 32] |= 1u << k % 32;
    }
    if (i < m->n)
        c[BITS + i / 32] |= 1u << i % 32;
    count(m, c, i == m->n);
    return true;
}

static bool done(const ds_grammar *g, const uint32_t *c)
{
    const ds_members *m = g->members.p + c[OBJECT];

    for (uint32_t i = 0; i < m->n; i++)
        if (!gone(c, i) && g->items.p[m->first + i].needed)
            return false;
    return (c[DISTINCT] & ~DISTINCT_EXTRA) >= m->min;
}

static bool same(const ds_grammar *g, uint32_t node, const uint32_t *p, uint32_t n)
{
    const uint32_t *c = g->words.p + g->member_nodes.p[node].content;

    return content_size(g->members.p + c[OBJECT]) == n && memcmp(c, p, n * sizeof *p) == 0;
}

/* A node as the bounds allow; FAILED. */
static uint32_t node(ds_grammar *g, ds_node_kind kind, uint32_t a, uint32_t b)
{
    if (a == FAILED || b == FAILED || !PUSH(g, g->nodes, ((ds_node){ .kind = (uint8_t)kind, .a = a, .b = b })) || !PUSH(g, g->mark, 0))
        return FAILED;
    return g->nodes.n - 1;
}

/* The node of a content, which lies in g->rest. */
static uint32_t node_of(ds_grammar *g)
{
    uint32_t n = content_size(g->members.p + g->rest.p[OBJECT]), at = g->words.n + 1, made;
    ds_slot *slot = ds_automaton_find(g, &g->member_table, g->rest.p, n, same);

    if (!slot)
        return FAILED;
    if (slot->number)
        return g->member_nodes.p[slot->number - 1].node;
    if (!PUSH(g, g->words, 0))
        return FAILED;
    for (uint32_t i = 0; i < n; i++)
        if (!PUSH(g, g->words, g->rest.p[i]))
            return FAILED;
    made = node(g, N_MEMBERS, g->rest.p[AFTER], at);
    if (made == FAILED || !PUSH(g, g->member_nodes, ((ds_member_node){ made, at })))
        return FAILED;
    g->member_table.n++;
    slot->number = g->member_nodes.n;
    return made;
}

static bool load(ds_grammar *g, uint32_t content)
{
    uint32_t n = content_size(g->members.p + g->words.p[content + OBJECT]);

    g->rest.n = 0;
    for (uint32_t i = 0; i < n; i++)
        if (!PUSH(g, g->rest, g->words.p[content + i]))
            return false;
    return true;
}

/* Branches over the items that can come first. */
static uint32_t keys(ds_grammar *g, uint32_t content)
{
    uint32_t m = g->words.p[content + OBJECT], all = UNKNOWN;

    for (uint32_t i = 0; i <= g->members.p[m].n; i++) {
        uint32_t rule = i < g->members.p[m].n ? g->items.p[g->members.p[m].first + i].rule : g->members.p[m].extra, one;
        if (!load(g, content))
            return FAILED;
        if (rule == 0 || !item_lives(g, g->rank.p, rule) || !take(g, g->rest.p, i) || !can_end(g, g->rank.p, g->rest.p))
            continue;
        g->rest.p[PHASE] = BEHIND;
        one = node_of(g);
        one = one == FAILED ? FAILED : node(g, N_CALL, one, rule);
        all = all == UNKNOWN ? one : node(g, N_SPLIT, one, all);
        if (all == FAILED)
            return FAILED;
    }
    return all == UNKNOWN ? node(g, N_DEAD, 0, 0) : all;
}

uint32_t ds_members_expand(ds_grammar *g, uint32_t at)
{
    uint32_t content = g->nodes.p[at].b, after = g->nodes.p[at].a, phase = g->words.p[content + PHASE];
    bool ends = done(g, g->words.p + content);
    uint32_t go = g->words.p[content - 1];

    if (go)
        return go;
    if (phase == BEHIND) {
        if (!load(g, content))
            return FAILED;
        g->rest.p[PHASE] = NEXT;
        go = node_of(g);
        go = go == FAILED ? FAILED : node(g, N_CALL, go, g->members.p[g->words.p[content + OBJECT]].separator);
    } else {
        go = keys(g, content);
    }
    if (phase != NEXT && ends)
        go = node(g, N_SPLIT, after, go);
    if (go != FAILED)
        g->words.p[content - 1] = go;
    return go;
}

bool ds_members_begin(ds_grammar *g, uint32_t object, uint32_t after, uint32_t *content)
{
    uint32_t n = content_size(g->members.p + object);

    if (!PUSH(g, g->words, 0))
        return false;
    *content = g->words.n;
    for (uint32_t i = 0; i < n; i++)
        if (!PUSH(g, g->words, i == OBJECT ? object : i == AFTER ? after : i == PHASE ? FIRST : 0))
            return false;
    return true;
}

bool ds_members_live(const ds_grammar *g, const uint32_t *rank, uint32_t at)
{
    return rank[g->nodes.p[at].a] != UNKNOWN && can_end(g, rank, g->words.p + g->nodes.p[at].b);
}

/* ---- random ones ---- */

bool ds_members_draw(const ds_grammar *g, uint32_t at, uint64_t seed, uint64_t number, uint64_t *drawn, bool few, ds_buf *rules)
{
    uint32_t c[BITS + MOST_MEMBERS / 32], rest[BITS + MOST_MEMBERS / 32], best[BITS + MOST_MEMBERS / 32], content = g->nodes.p[at].b;
    const ds_members *m = g->members.p + g->words.p[content + OBJECT];
    size_t size = content_size(m) * sizeof *c;

    memcpy(c, g->words.p + content, size);
    for (;;) {
        uint64_t r = ds_rng_u64(seed, number, (*drawn)++);
        uint32_t n = 0, rule = UNKNOWN;
        if (done(g, c) && (few || r % 4 == 0 || rules->len > 64 * sizeof rule))
            return true;
        for (uint32_t i = 0; i <= m->n; i++) { /* one of those that can come; in a hurry, if possible one that must */
            uint32_t one = i < m->n ? g->items.p[m->first + i].rule : m->extra;
            bool must = i < m->n && g->items.p[m->first + i].needed;
            memcpy(rest, c, size);
            if (!one || !item_lives(g, g->rank.p, one) || !take(g, rest, i) || !can_end(g, g->rank.p, rest))
                continue;
            if (n++ == 0 || (few ? must : (r >> 32) % n == 0)) {
                rule = one;
                memcpy(best, rest, size);
            }
        }
        if (rule == UNKNOWN)
            return true;
        memcpy(c, best, size);
        if (!ds_buf_put(rules, &rule, sizeof rule))
            return false;
    }
}
