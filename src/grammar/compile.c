/* Trees to the network of nodes: repeats written out, code points as bytes, dead ends cut, left recursion refused.
 *
 * Each tree is compiled with the node that comes after it, from its end to its beginning, so that tails are shared. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "grammar/grammar_internal.h"

enum {
    STEPS_FOR_A_NODE = 8, /* trees visited for each node that is allowed: empty ones make none */
    DEEPEST_TREE = 2000,
    LONG_COUNTDOWN = 8, /* shorter ones aren't worth to be known */
};

typedef struct {
    ds_grammar *g;
    const ds_forest *f;
    uint64_t steps;
    uint32_t depth;
    bool deep;
} compiler;

static uint32_t node(compiler *c, ds_node_kind kind, uint32_t a, uint32_t b)
{
    ds_grammar *g = c->g;

    if (g->nodes.n >= g->opts.max_nodes) {
        g->full = "nodes";
        return FAILED;
    }
    if (a == FAILED || b == FAILED || !PUSH(g, g->nodes, ((ds_node){ .kind = (uint8_t)kind, .a = a, .b = b })))
        return FAILED;
    return g->nodes.n - 1;
}

static uint32_t split(compiler *c, uint32_t a, uint32_t b)
{
    return a == b ? a : node(c, N_SPLIT, a, b);
}

static uint32_t bytes(compiler *c, uint8_t lo, uint8_t hi, uint32_t next)
{
    uint32_t i = node(c, N_BYTE, next, 0);

    if (i != FAILED) {
        c->g->nodes.p[i].lo = lo;
        c->g->nodes.p[i].hi = hi;
    }
    return i;
}

/* All code points lo..hi as byte sequences. A range is cut where the length of its form changes, and then where its
 * first and last form would not agree in all bytes but for a tail that runs through everything. */
static uint32_t code_points(compiler *c, uint32_t lo, uint32_t hi, uint32_t next, uint32_t acc)
{
    static const uint32_t last[] = { 0x7f, 0x7ff, 0xffff, 0x10ffff };
    char a[4], b[4];
    size_t n;

    for (int i = 0; i < 4; i++)
        if (lo <= last[i] && hi > last[i]) {
            acc = code_points(c, lo, last[i], next, acc);
            lo = last[i] + 1;
        }
    for (uint32_t shift = 6; shift < 21 && hi > 0x7f; shift += 6) {
        uint32_t m = (1u << shift) - 1;
        if ((lo & ~m) == (hi & ~m))
            break;
        if (lo & m) {
            acc = code_points(c, lo, lo | m, next, acc);
            lo = (lo | m) + 1;
            return code_points(c, lo, hi, next, acc);
        }
        if ((hi & m) != m) {
            acc = code_points(c, hi & ~m, hi, next, acc);
            hi = (hi & ~m) - 1;
            return code_points(c, lo, hi, next, acc);
        }
    }
    n = ds_utf8_encode(a, lo);
    ds_utf8_encode(b, hi);
    for (size_t i = n; i-- > 0;)
        next = bytes(c, (uint8_t)a[i], (uint8_t)b[i], next);
    return acc == UNKNOWN ? next : split(c, next, acc);
}

static uint32_t compile(compiler *c, uint32_t tree, uint32_t next);

static uint32_t repeat(compiler *c, const ds_tree *t, uint32_t next)
{
    uint32_t end = next, first = c->g->nodes.n, n = t->max - t->min, loop;

    if (t->max == TREE_UNBOUNDED) {
        uint32_t body;
        loop = node(c, N_SPLIT, next, next);
        if (loop == FAILED || (body = compile(c, t->a, loop)) == FAILED)
            return FAILED;
        c->g->nodes.p[loop].a = body;
        next = loop;
    } else {
        for (uint32_t i = 0; i < n && next != FAILED; i++)
            next = split(c, compile(c, t->a, next), end);
    }
    for (uint32_t i = 0; i < t->min && next != FAILED; i++)
        next = compile(c, t->a, next);
    if (t->max != TREE_UNBOUNDED && t->max > LONG_COUNTDOWN && c->f->trees.p[t->a].kind == T_CALL && next != FAILED) {
        uint32_t again = node(c, N_SPLIT, end, end);
        loop = again == FAILED ? FAILED : compile(c, t->a, again);
        if (loop == FAILED || !PUSH(c->g, c->g->countdowns, ((ds_countdown){ first, n, t->min, again })))
            return FAILED;
        c->g->nodes.p[again].a = loop;
    }
    return next;
}

/* Decimal digits without leading zero, read from the left: one node for each remainder. */
static uint32_t multiples(compiler *c, uint32_t m, uint32_t next)
{
    ds_grammar *g = c->g;
    uint32_t base, first = UNKNOWN;

    /* remainder r: split(next if r == 0, chain of ten digits); nodes are laid out at fixed places, so they can refer to each other */
    base = g->nodes.n;
    for (uint32_t r = 0; r < m; r++)
        for (uint32_t d = 0; d < 20; d++)
            if (node(c, N_DEAD, 0, 0) == FAILED)
                return FAILED;
    for (uint32_t r = 0; r < m; r++) {
        ds_node *p = g->nodes.p + base + 20 * r;
        for (uint32_t d = 0; d < 10; d++) {
            p[d] =
                (ds_node){ .kind = N_BYTE, .lo = (uint8_t)('0' + d), .hi = (uint8_t)('0' + d), .a = base + 20 * ((10 * r + d) % m) + 10 };
            p[10 + d] = (ds_node){ .kind = N_SPLIT,
                                   .a = base + 20 * r + d,
                                   .b = d < 9    ? base + 20 * r + 11 + d
                                        : r == 0 ? next
                                                 : base + 20 * r };
        }
    }
    for (uint32_t d = 1; d < 10; d++) {
        uint32_t one = bytes(c, (uint8_t)('0' + d), (uint8_t)('0' + d), base + 20 * (d % m) + 10);
        first = first == UNKNOWN ? one : split(c, one, first);
    }
    return split(c, bytes(c, '0', '0', next), first);
}

/* items: [tree, needed]…; a separator stands between those that are there. `min` != 0: tree of what may follow any
 * number of times. */
static uint32_t chain(compiler *c, const ds_tree *t, uint32_t next)
{
    const uint32_t *item = c->f->items.p + t->a;
    uint32_t separator = item[0], more = item[1], n = t->b, later = next, first;

    item += 2;
    if (more) {
        uint32_t loop = node(c, N_SPLIT, next, next), body;
        if (loop == FAILED || (body = compile(c, separator, compile(c, more, loop))) == FAILED)
            return FAILED;
        c->g->nodes.p[loop].a = body;
        later = loop;
    }
    first = more ? split(c, compile(c, more, later), next) : next;
    if (first == FAILED)
        return FAILED;
    for (uint32_t i = n; i-- > 0;) { /* later: something stands before item i; first: nothing does */
        bool needed = item[2 * i + 1];
        uint32_t with = compile(c, item[2 * i], later), after = compile(c, separator, with);
        first = needed ? with : split(c, with, first);
        later = needed ? after : split(c, after, later);
        if (first == FAILED || later == FAILED)
            return FAILED;
    }
    return first;
}

static uint32_t compile_one(compiler *c, uint32_t tree, uint32_t next)
{
    const ds_forest *f = c->f;
    uint32_t acc = UNKNOWN;

    for (;;) {
        const ds_tree *t = f->trees.p + tree;

        if (next == FAILED)
            return FAILED;
        if (++c->steps > (uint64_t)c->g->opts.max_nodes * STEPS_FOR_A_NODE) {
            c->g->full = "nodes";
            return FAILED;
        }
        switch (t->kind) {
        case T_CAT:
            next = compile(c, t->b, next);
            tree = t->a;
            continue;
        case T_EMPTY:
            return next;
        case T_NONE:
            return node(c, N_DEAD, 0, 0);
        case T_TEXT:
            for (uint32_t i = t->b; i-- > 0 && next != FAILED;)
                next = bytes(c, (uint8_t)f->pool.p[t->a + i], (uint8_t)f->pool.p[t->a + i], next);
            return next;
        case T_CLASS:
            for (uint32_t i = 0; i < t->b; i++)
                acc = code_points(c, f->ranges.p[t->a + i].lo, f->ranges.p[t->a + i].hi, next, acc);
            return acc;
        case T_ALT:
            acc = compile(c, t->b, next);
            for (tree = t->a; f->trees.p[tree].kind == T_ALT && acc != FAILED; tree = f->trees.p[tree].a)
                acc = split(c, compile(c, f->trees.p[tree].b, next), acc);
            return acc == FAILED ? FAILED : split(c, compile(c, tree, next), acc);
        case T_REPEAT:
            return repeat(c, t, next);
        case T_CALL:
            return node(c, N_CALL, next, t->a);
        case T_CHAIN:
            return chain(c, t, next);
        case T_MEMBERS:
            acc = node(c, N_MEMBERS, next, 0);
            if (acc == FAILED || !ds_members_begin(c->g, t->a, next, &c->g->nodes.p[acc].b))
                return FAILED;
            return acc;
        case T_DIGITS:
            return multiples(c, t->a, next);
        }
    }
}

static uint32_t compile(compiler *c, uint32_t tree, uint32_t next)
{
    uint32_t at;

    if (c->depth >= DEEPEST_TREE) {
        c->deep = true;
        return FAILED;
    }
    c->depth++;
    at = compile_one(c, tree, next);
    c->depth--;
    return at;
}

/* ---- what leads where ---- */

typedef struct {
    uint32_t *from, *list; /* predecessors of node i: list[from[i] .. from[i+1]) */
    uint32_t *queue, *rank;
    uint8_t *wants;
} graph;

static void graph_free(graph *r)
{
    free(r->from);
    free(r->list);
    free(r->queue);
    free(r->rank);
    free(r->wants);
}

/* The k-th node that node i looks at; UNKNOWN: there are no more. */
static uint32_t look(const ds_grammar *g, uint32_t i, uint32_t k)
{
    const ds_node *n = g->nodes.p + i;
    const ds_members *m;

    if (n->kind == N_END || n->kind == N_DEAD || k > (n->kind != N_BYTE) + (n->kind == N_MEMBERS ? UINT16_MAX : 0u))
        return UNKNOWN;
    if (k == 0)
        return n->a;
    if (n->kind != N_MEMBERS)
        return n->kind == N_CALL ? g->start.p[n->b] : n->b;
    m = g->members.p + g->words.p[n->b];
    if (k <= m->n)
        return g->start.p[g->items.p[m->first + k - 1].rule];
    return k == m->n + 1 && m->extra ? g->start.p[m->extra] : UNKNOWN;
}

static bool graph_init(graph *r, const ds_grammar *g)
{
    uint32_t n = g->nodes.n, to;
    size_t edges = 2 * (size_t)n;

    for (uint32_t i = 0; i < g->members.n; i++)
        edges += g->members.p[i].n + 2u;
    *r = (graph){ .from = calloc((size_t)n + 2, sizeof *r->from),
                  .list = malloc(edges * sizeof *r->list),
                  .queue = malloc((size_t)n * sizeof *r->queue),
                  .rank = malloc((size_t)n * sizeof *r->rank),
                  .wants = malloc(n) };
    if (!r->from || !r->list || !r->queue || !r->rank || !r->wants)
        return false;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; (to = look(g, i, k)) != UNKNOWN; k++)
            r->from[to + 2]++;
    for (uint32_t i = 2; i < n + 2; i++)
        r->from[i] += r->from[i - 1];
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; (to = look(g, i, k)) != UNKNOWN; k++)
            r->list[r->from[to + 1]++] = i;
    return true;
}

/* Gives every node from which the end of its rule can be reached its rank, in the order in which that becomes known;
 * others UNKNOWN. empty: without a byte. */
static void graph_rank(graph *r, const ds_grammar *g, bool empty)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < g->nodes.n; i++) {
        const ds_node *d = g->nodes.p + i;
        r->rank[i] = UNKNOWN;
        r->wants[i] = d->kind == N_CALL ? 2 : d->kind == N_DEAD || (empty && d->kind == N_BYTE) ? 255 : 1;
        if (d->kind == N_END) {
            r->rank[i] = n;
            r->queue[n++] = i;
        }
    }
    for (uint32_t at = 0; at < n; at++)
        for (uint32_t k = r->from[r->queue[at]]; k < r->from[r->queue[at] + 1]; k++) {
            uint32_t p = r->list[k];
            bool live = r->rank[p] == UNKNOWN && r->wants[p] != 255;
            if (live && (g->nodes.p[p].kind == N_MEMBERS ? ds_members_live(g, r->rank, p) : --r->wants[p] == 0)) {
                r->rank[p] = n;
                r->queue[n++] = p;
            }
        }
}

/* A rule that can call itself before it has read a byte, or -1. rank: which nodes can be passed without one. */
static int64_t left_recursive(const ds_grammar *g, const graph *r, bool *oom)
{
    uint32_t n = g->nodes.n, rules = g->start.n, top = 0;
    uint8_t *color = calloc(rules, 1), *seen = calloc(n, 1);
    uint32_t *stack = malloc(2 * ((size_t)n + rules + 1) * sizeof *stack), *rule_of = malloc((size_t)rules * sizeof *rule_of), depth = 0;
    int64_t found = -1;

    *oom = !color || !seen || !stack || !rule_of;
    /* One walk for each rule; `stack` holds nodes to look at, and below them the rules that are open: UNKNOWN marks where a rule's nodes begin. */
    for (uint32_t root = 0; root < rules && found < 0 && !*oom; root++) {
        if (color[root])
            continue;
        color[root] = 1;
        rule_of[depth++] = root;
        stack[top++] = UNKNOWN;
        stack[top++] = g->start.p[root];
        while (top && found < 0) {
            uint32_t i = stack[--top];
            const ds_node *d;
            if (i == UNKNOWN) {
                color[rule_of[--depth]] = 2;
                continue;
            }
            if (seen[i])
                continue;
            d = g->nodes.p + i;
            seen[i] = 1;
            if (d->kind == N_MEMBERS && r->rank[i] != UNKNOWN) { /* no item is needed; those there are begin with a byte */
                stack[top++] = d->a;
            } else if (d->kind == N_SPLIT) {
                stack[top++] = d->a;
                stack[top++] = d->b;
            } else if (d->kind == N_CALL) {
                if (r->rank[g->start.p[d->b]] != UNKNOWN)
                    stack[top++] = d->a;
                if (color[d->b] == 1)
                    found = d->b;
                else if (color[d->b] == 0) {
                    color[d->b] = 1;
                    rule_of[depth++] = d->b;
                    stack[top++] = UNKNOWN;
                    stack[top++] = g->start.p[d->b];
                }
            }
        }
    }
    free(color);
    free(seen);
    free(stack);
    free(rule_of);
    return found;
}

/* Rows of an automaton over bytes that finds the first of some texts: each row stands for a beginning of one, and
 * goes where the longest end of what was read, that is a beginning, leads. */
static bool avoid_init(ds_grammar *g, const ds_buf *never)
{
    const uint8_t *p = (const uint8_t *)never->p;
    uint16_t *back, *queue;
    uint32_t rows = 1, n = 0;
    bool ok;

    if (never->len == 0)
        return true;
    g->n_avoid = (uint32_t)never->len + 1; /* at most: one for each byte, and the start */
    g->avoid = calloc(g->n_avoid, sizeof *g->avoid);
    back = calloc(2 * (size_t)g->n_avoid, sizeof *back);
    ok = g->avoid && back && g->n_avoid < AVOIDED;
    queue = back + g->n_avoid;
    for (size_t at = 0; ok && at < never->len; at += 1u + p[at]) { /* a trie; 0 is no child, for nothing leads to the start */
        uint32_t row = 0;
        for (uint32_t i = 1; i <= p[at] && row != AVOIDED; i++) {
            uint16_t *to = &g->avoid[row][p[at + i]];
            if (i == p[at])
                *to = AVOIDED;
            else if (*to == 0)
                *to = (uint16_t)rows++;
            row = *to;
        }
    }
    for (uint32_t b = 0; ok && b < 256; b++)
        if (g->avoid[0][b] && g->avoid[0][b] != AVOIDED)
            queue[n++] = g->avoid[0][b];
    for (uint32_t i = 0; ok && i < n; i++)
        for (uint32_t b = 0; b < 256; b++) {
            uint16_t *to = &g->avoid[queue[i]][b], other = g->avoid[back[queue[i]]][b];
            if (*to == AVOIDED || *to == 0 || other == AVOIDED) {
                *to = *to == AVOIDED ? AVOIDED : other;
                continue;
            }
            back[*to] = other;
            queue[n++] = *to;
        }
    free(back);
    g->bytes += g->n_avoid * sizeof *g->avoid;
    for (uint32_t i = 0; ok && i < 2 * g->n_avoid; i++)
        ok = PUSH(g, g->killed, UNKNOWN);
    return ok;
}

static void byte_classes(ds_grammar *g)
{
    bool border[257] = { false };

    for (uint32_t b = 0; b < 256; b++)
        for (uint32_t i = 0; i < g->n_avoid; i++)
            if (g->avoid[i][b])
                border[b] = border[b + 1] = true;

    for (uint32_t i = 0; i < g->nodes.n; i++)
        if (g->nodes.p[i].kind == N_BYTE) {
            border[g->nodes.p[i].lo] = true;
            border[g->nodes.p[i].hi + 1] = true;
        }
    g->n_classes = 1;
    for (uint32_t b = 0; b < 256; b++) {
        if (b && border[b])
            g->n_classes++;
        if (b == 0 || border[b])
            g->class_byte[g->n_classes - 1] = (uint8_t)b;
        g->class_of[b] = (uint8_t)(g->n_classes - 1);
    }
}

/* A bound that is reached while a grammar is made is the caller's to mend. */
static ds_rc too_large(const ds_grammar *g, const char *what, ds_err *err)
{
    ds_err why;

    if (ds_grammar_failed(g, &why) == DS_E_NOMEM)
        return ds_fail(err, DS_E_NOMEM, "%s: out of memory", what);
    return ds_fail(err, DS_E_ARG, "%s: %s", what, why.msg);
}

static ds_rc check(ds_grammar *g, const char *const *names, const char *what, ds_err *err)
{
    graph r;
    ds_rc rc = DS_OK;
    bool oom = !graph_init(&r, g);
    int64_t rule = -1;

    if (!oom) {
        graph_rank(&r, g, true);
        rule = left_recursive(g, &r, &oom);
    }
    if (oom) {
        rc = ds_fail(err, DS_E_NOMEM, "%s: out of memory", what);
    } else if (rule >= 0) {
        rc = ds_fail(err, DS_E_ARG, "%s: rule %s calls itself before it reads anything (left recursion)", what, names ? names[rule] : "?");
    } else {
        graph_rank(&r, g, false);
        for (uint32_t i = 0; i < g->nodes.n; i++) {
            ds_node *d = g->nodes.p + i;
            if (r.rank[i] == UNKNOWN)
                d->kind = N_DEAD;
            if (!PUSH(g, g->rank, r.rank[i])) {
                rc = too_large(g, what, err);
                break;
            }
        }
        if (rc == DS_OK && g->nodes.p[g->start.p[0]].kind == N_DEAD)
            rc = ds_fail(err, DS_E_ARG, "%s: no text is in the language", what);
    }
    graph_free(&r);
    return rc;
}

ds_rc ds_grammar_build(ds_grammar **out, const ds_forest *f, const char *const *rule_names, const char *what, ds_err *err)
{
    ds_grammar *g = calloc(1, sizeof *g);
    compiler c = { .g = g, .f = f };
    ds_rc rc = DS_OK;

    *out = NULL;
    if (!g)
        return ds_fail(err, DS_E_NOMEM, "%s: out of memory", what);
    g->opts = f->opts;
    g->bytes = sizeof *g;
    if (f->failed)
        g->full = f->large ? "nodes" : NULL;
    for (uint32_t i = 0; i < f->members.n && rc == DS_OK; i++)
        rc = PUSH(g, g->members, f->members.p[i]) ? DS_OK : DS_E_ARG;
    for (uint32_t i = 0; i < f->member_items.n && rc == DS_OK; i++)
        rc = PUSH(g, g->items, f->member_items.p[i]) ? DS_OK : DS_E_ARG;
    for (uint32_t i = 0; i < f->rules.n && !f->failed && rc == DS_OK; i++) {
        uint32_t end = node(&c, N_END, 0, 0), start = compile(&c, f->rules.p[i], end);
        if (start == FAILED || !PUSH(g, g->start, start))
            rc = DS_E_ARG;
    }
    if (c.deep)
        rc = ds_fail(err, DS_E_ARG, "%s: nested too deeply", what);
    else if (rc != DS_OK || f->failed)
        rc = too_large(g, what, err);
    else
        rc = check(g, rule_names, what, err);
    if (rc == DS_OK) {
        if (avoid_init(g, &f->never))
            byte_classes(g);
        else
            rc = too_large(g, what, err);
        if (rc == DS_OK && !ds_automaton_init(g))
            rc = too_large(g, what, err);
    }
    if (rc != DS_OK) {
        ds_grammar_destroy(g);
        return rc;
    }
    *out = g;
    return DS_OK;
}
