/* States, built as they are needed: frames (sets of nodes of one rule), stacks of frames, and states (sets of places).
 *
 * A frame is deterministic: each byte class leads to one frame. A state is too. Both are kept with their numbers by
 * content, so a number means the same as long as the grammar lives. */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "grammar/grammar_internal.h"

enum {
    MOST_PLACES = 1024,     /* of a state: ambiguity that piles up */
    MOST_EFFORT = 16 << 20, /* of one mask or one piece of text; some 0.3 s */
};

static bool spend(ds_grammar *g, uint32_t n)
{
    g->effort += n;
    if (g->effort <= MOST_EFFORT)
        return true;
    g->full = "steps for one token";
    return false;
}

bool ds_grammar_grow(ds_grammar *g, void **p, uint32_t n, uint32_t more, uint32_t *cap, size_t size)
{
    uint64_t to = *cap ? *cap + *cap / 2 : 64;
    void *q;

    if (to < (uint64_t)n + more)
        to = (uint64_t)n + more;
    if (to > UINT32_MAX || g->bytes + (to - *cap) * size > g->opts.max_bytes) {
        g->full = "bytes";
        return false;
    }
    q = realloc(*p, to * size);
    if (!q)
        return false;
    g->bytes += (to - *cap) * size;
    *p = q;
    *cap = (uint32_t)to;
    return true;
}

ds_rc ds_grammar_failed(const ds_grammar *g, ds_err *err)
{
    if (!g->full)
        return ds_fail(err, DS_E_NOMEM, "the grammar is out of memory");
    return ds_fail(err, DS_E_AGAIN, "the grammar is too large: it needs more %s than the %zu that are allowed", g->full,
                   strcmp(g->full, "bytes") == 0    ? g->opts.max_bytes
                   : strcmp(g->full, "nodes") == 0  ? (size_t)g->opts.max_nodes
                   : strcmp(g->full, "places") == 0 ? (size_t)MOST_PLACES
                   : strcmp(g->full, "states") == 0 ? (size_t)g->opts.max_states
                                                    : (size_t)MOST_EFFORT);
}

/* ---- numbers by content ---- */

ds_slot *ds_automaton_find(ds_grammar *g, ds_table *t, const uint32_t *p, uint32_t n, ds_same_fn *same)
{
    uint32_t h = (uint32_t)ds_hash64(p, (size_t)n * sizeof *p, n);

    if (2 * (t->n + 1) > t->cap) {
        uint32_t cap = t->cap ? 2 * t->cap : 64;
        ds_slot *slot;
        if (g->bytes + (size_t)(cap - t->cap) * sizeof *slot > g->opts.max_bytes) {
            g->full = "bytes";
            return NULL;
        }
        slot = calloc(cap, sizeof *slot);
        if (!slot)
            return NULL;
        for (uint32_t i = 0; i < t->cap; i++)
            if (t->slot[i].number) {
                uint32_t at = t->slot[i].hash & (cap - 1);
                while (slot[at].number)
                    at = (at + 1) & (cap - 1);
                slot[at] = t->slot[i];
            }
        g->bytes += (size_t)(cap - t->cap) * sizeof *slot;
        free(t->slot);
        t->slot = slot;
        t->cap = cap;
    }
    for (uint32_t at = h & (t->cap - 1);; at = (at + 1) & (t->cap - 1)) {
        ds_slot *slot = t->slot + at;
        if (!slot->number)
            slot->hash = h;
        if (!slot->number || (slot->hash == h && same(g, slot->number - 1, p, n)))
            return slot;
    }
}

/* Room in words, filled from p or (NULL) with `fill`; FAILED. */
static uint32_t words_new(ds_grammar *g, const uint32_t *p, uint32_t n, uint32_t fill)
{
    uint32_t at = g->words.n;

    if (!ROOM(g, g->words, n))
        return FAILED;
    for (uint32_t i = 0; i < n; i++)
        g->words.p[at + i] = p ? p[i] : fill;
    g->words.n += n;
    return at;
}

/* ---- frames ---- */

static bool frame_same(const ds_grammar *g, uint32_t f, const uint32_t *p, uint32_t n)
{
    return g->frames.p[f].n_nodes == n && memcmp(g->words.p + g->frames.p[f].nodes, p, n * sizeof *p) == 0;
}

static void sort(uint32_t *p, uint32_t n)
{
    for (uint32_t gap = n / 2; gap; gap = gap == 2 ? 1 : gap * 5 / 11)
        for (uint32_t i = gap; i < n; i++) {
            uint32_t x = p[i], k = i;
            for (; k >= gap && p[k - gap] > x; k -= gap)
                p[k] = p[k - gap];
            p[k] = x;
        }
}

static void set_begin(ds_grammar *g)
{
    g->set.n = 0;
    g->stamp++;
}

/* Adds a node, or through splits those behind it. */
static bool set_add(ds_grammar *g, uint32_t from)
{
    g->work.n = 0;
    if (!PUSH(g, g->work, from))
        return false;
    while (g->work.n) {
        uint32_t i = g->work.p[--g->work.n];
        const ds_node *d = g->nodes.p + i;
        if (!spend(g, 1))
            return false;
        if (g->mark.p[i] == g->stamp || d->kind == N_DEAD)
            continue;
        g->mark.p[i] = g->stamp;
        if (d->kind == N_MEMBERS) {
            uint32_t go = ds_members_expand(g, i);
            if (go == FAILED || !PUSH(g, g->work, go))
                return false;
            continue;
        }
        if (d->kind == N_SPLIT ? !(PUSH(g, g->work, d->a) && PUSH(g, g->work, d->b)) : !PUSH(g, g->set, i))
            return false;
    }
    return true;
}

/* The frame of the set. */
static uint32_t set_end(ds_grammar *g)
{
    ds_slot *slot;
    uint32_t at, next;
    ds_frame f = { .n_nodes = g->set.n, .calls = UNKNOWN, .open = UNKNOWN, .head = UNKNOWN, .loop = UNKNOWN };

    sort(g->set.p, g->set.n);
    slot = ds_automaton_find(g, &g->frame_table, g->set.p, g->set.n, frame_same);
    if (!slot)
        return FAILED;
    if (slot->number)
        return slot->number - 1;
    if (g->frames.n >= g->opts.max_states) {
        g->full = "states";
        return FAILED;
    }
    at = words_new(g, g->set.p, g->set.n, 0);
    next = words_new(g, NULL, g->n_classes, 0);
    if (at == FAILED || next == FAILED)
        return FAILED;
    f.nodes = at;
    f.next = next;
    for (uint32_t i = 0; i < g->set.n; i++) {
        const ds_node *d = g->nodes.p + g->set.p[i];
        f.ends |= d->kind == N_END;
        f.bytes |= d->kind == N_BYTE;
        f.n_calls += d->kind == N_CALL;
        for (uint32_t class = g->class_of[d->lo]; d->kind == N_BYTE && class <= g->class_of[d->hi]; class ++)
            g->words.p[next + class] = UNKNOWN;
    }
    if (!PUSH(g, g->frames, f))
        return FAILED;
    g->frame_table.n++;
    slot->number = g->frames.n;
    return g->frames.n - 1;
}

static uint32_t frame_of(ds_grammar *g, uint32_t node)
{
    set_begin(g);
    return set_add(g, node) ? set_end(g) : FAILED;
}

uint32_t ds_automaton_frame_step(ds_grammar *g, uint32_t frame, uint32_t class)
{
    uint32_t to = g->words.p[g->frames.p[frame].next + class];
    ds_frame f = g->frames.p[frame];

    if (to != UNKNOWN)
        return to;
    set_begin(g);
    for (uint32_t i = 0; i < f.n_nodes; i++) {
        const ds_node *d = g->nodes.p + g->words.p[f.nodes + i];
        if (d->kind == N_BYTE && d->lo <= g->class_byte[class] && g->class_byte[class] <= d->hi && !set_add(g, d->a))
            return FAILED;
    }
    to = set_end(g);
    if (to != FAILED)
        g->words.p[f.next + class] = to;
    return to;
}

uint32_t ds_automaton_first(ds_grammar *g, uint32_t rule)
{
    return frame_of(g, g->start.p[rule]);
}

/* The rules that a frame calls, each with the frame after it: calls of the same rule are one. */
bool ds_automaton_calls(ds_grammar *g, uint32_t frame)
{
    ds_frame f = g->frames.p[frame];
    uint32_t at = g->words.n, n = 0;

    if (f.calls != UNKNOWN)
        return true;
    if (words_new(g, NULL, 2 * f.n_calls, UNKNOWN) == FAILED)
        return false;
    for (uint32_t i = 0; i < f.n_nodes; i++) {
        ds_node d = g->nodes.p[g->words.p[f.nodes + i]]; /* a copy: closures may add nodes */
        uint32_t k = 0, after;
        if (d.kind != N_CALL)
            continue;
        while (k < n && g->words.p[at + 2 * k] != d.b)
            k++;
        if (k < n)
            continue;
        set_begin(g);
        for (k = i; k < f.n_nodes; k++) {
            const ds_node *e = g->nodes.p + g->words.p[f.nodes + k];
            if (e->kind == N_CALL && e->b == d.b && !set_add(g, e->a))
                return false;
        }
        after = set_end(g);
        if (after == FAILED)
            return false;
        g->words.p[at + 2 * n] = d.b;
        g->words.p[at + 2 * n + 1] = after;
        n++;
    }
    g->frames.p[frame].calls = at;
    g->frames.p[frame].n_calls = n;
    return true;
}

/* ---- stacks ---- */

static bool stack_same(const ds_grammar *g, uint32_t s, const uint32_t *p, uint32_t n)
{
    return n == 2 && g->stacks.p[s].frame == p[0] && g->stacks.p[s].below == p[1];
}

/* UNKNOWN: too deep. A frame at which its rule does nothing but end leaves no trace: lists that call themselves at
 * their end stay flat. */
uint32_t ds_automaton_push(ds_grammar *g, uint32_t frame, uint32_t below)
{
    uint32_t key[2] = { frame, below };
    ds_slot *slot;
    const ds_frame *f = g->frames.p + frame;

    if (f->ends && f->n_nodes == 1)
        return below;
    if (g->stacks.p[below].depth >= DS_GRAMMAR_DEPTH)
        return UNKNOWN;
    slot = ds_automaton_find(g, &g->stack_table, key, 2, stack_same);
    if (!slot)
        return FAILED;
    if (slot->number)
        return slot->number - 1;
    if (!PUSH(g, g->stacks, ((ds_stack){ frame, below, g->stacks.p[below].depth + 1 })))
        return FAILED;
    g->stack_table.n++;
    slot->number = g->stacks.n;
    return g->stacks.n - 1;
}

/* Whether two sets are the same but for one node of each. */
static bool same_but(const ds_grammar *g, uint32_t frame, uint32_t node, uint32_t other, uint32_t its_node)
{
    const ds_frame *f = g->frames.p + frame, *o = g->frames.p + other;
    uint32_t k = 0;

    if (f->n_nodes != o->n_nodes)
        return false;
    for (uint32_t i = 0; i < f->n_nodes; i++) {
        if (g->words.p[f->nodes + i] == node)
            continue;
        k += g->words.p[o->nodes + k] == its_node;
        if (g->words.p[f->nodes + i] != g->words.p[o->nodes + k++])
            return false;
    }
    return true;
}

/* The countdown that a call is part of, and what it is bound to; NULL: none. */
static const ds_countdown *countdown_of(const ds_grammar *g, uint32_t node, uint32_t *limit)
{
    uint32_t lo = 0, hi = g->countdowns.n;

    while (lo < hi) { /* the last that begins at or before the node */
        uint32_t mid = (lo + hi) / 2;
        if (g->countdowns.p[mid].first <= node)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo > 0) {
        const ds_countdown *c = g->countdowns.p + lo - 1;
        uint32_t i = node - c->first;
        if (i < 2 * c->n && i % 2 == 0) {
            *limit = ds_limit((uint64_t)i / 2 + 1, 0);
            return c;
        }
        if (i >= 2 * c->n && i - 2 * c->n < c->needed) {
            i -= 2 * c->n;
            *limit = ds_limit((uint64_t)c->n + i + 1, i + 1);
            return c;
        }
    }
    return NULL;
}

/* Whether the loop of a countdown is nothing but calls of one rule, that reads something and calls no other, and then
 * what follows them. */
static bool plain_loop(ds_grammar *g, uint32_t loop, uint32_t rule, bool *yes)
{
    uint32_t first = ds_automaton_first(g, rule);

    *yes = false;
    if (first == FAILED || !ds_automaton_calls(g, loop))
        return false;
    for (uint32_t k = 0; k < g->frames.p[loop].n_calls; k++)
        if (g->words.p[g->frames.p[loop].calls + 2 * k] == rule)
            *yes = g->words.p[g->frames.p[loop].calls + 2 * k + 1] == loop && !g->frames.p[first].ends && !g->frames.p[first].n_calls;
    return true;
}

bool ds_automaton_loop(ds_grammar *g, uint32_t frame)
{
    ds_frame f = g->frames.p[frame];
    const ds_countdown *c = NULL;
    uint32_t call = 0, limit = NO_LIMIT, loop = frame;
    bool yes = true;

    if (f.loop != UNKNOWN)
        return true;
    for (uint32_t i = 0; i < f.n_nodes && yes && g->countdowns.n; i++) {
        uint32_t node = g->words.p[f.nodes + i];
        const ds_countdown *one = g->nodes.p[node].kind == N_CALL ? countdown_of(g, node, &limit) : NULL;
        yes = !one || !c; /* two at once: not that simple */
        if (one) {
            c = one;
            call = node;
        }
    }
    if (c && yes) {
        uint32_t rule = g->nodes.p[call].b, again = g->nodes.p[c->loop].a;
        bool needed = call - c->first >= 2 * c->n;
        loop = frame_of(g, c->loop);
        if (loop == FAILED || !plain_loop(g, loop, rule, &yes))
            return false;
        yes = yes && (needed ? f.n_nodes == 1 : same_but(g, frame, call, loop, again));
    }
    if (!c || !yes) {
        loop = frame;
        limit = NO_LIMIT;
    }
    g->frames.p[frame].loop = loop;
    g->frames.p[frame].limit = limit;
    return true;
}

/* ---- states ---- */

static bool state_same(const ds_grammar *g, uint32_t s, const uint32_t *p, uint32_t n)
{
    return g->states.p[s].n_kernel + 1 == n && memcmp(g->words.p + g->states.p[s].kernel, p, n * sizeof *p) == 0;
}

static bool pair_add(ds_grammar *g, void *list, uint32_t frame, uint32_t stack)
{
    VEC(uint32_t) *v = list;

    if (!spend(g, v->n / 2))
        return false;
    for (uint32_t i = 0; i < v->n; i += 2)
        if (v->p[i] == frame && v->p[i + 1] == stack)
            return true;
    if (v->n >= 2 * MOST_PLACES) {
        g->full = "places";
        return false;
    }
    return PUSH(g, *v, frame) && PUSH(g, *v, stack);
}

/* Pairs sorted by frame, then stack: few as a rule. */
static void pairs_sort(uint32_t *p, uint32_t n)
{
    for (uint32_t i = 2; i < n; i += 2) {
        uint32_t a = p[i], b = p[i + 1], k = i;
        for (; k && (p[k - 2] > a || (p[k - 2] == a && p[k - 1] > b)); k -= 2) {
            p[k] = p[k - 2];
            p[k + 1] = p[k - 1];
        }
        p[k] = a;
        p[k + 1] = b;
    }
}

/* Everything that can be reached from the kernel without a byte, into g->places. */
static bool close_places(ds_grammar *g, ds_state *s)
{
    uint32_t kept = 0;

    g->places.n = 0;
    for (uint32_t i = 0; i < s->n_kernel; i++)
        if (!PUSH(g, g->places, g->kernel.p[i]))
            return false;
    for (uint32_t at = 0; at < g->places.n; at += 2) {
        uint32_t frame = g->places.p[at], stack = g->places.p[at + 1];
        if (g->frames.p[frame].ends) {
            if (stack == STACK_EMPTY)
                s->ends = true;
            else if (stack == STACK_OPEN)
                s->leaves = true;
            else if (!pair_add(g, &g->places, g->stacks.p[stack].frame, g->stacks.p[stack].below))
                return false;
        }
        if (!ds_automaton_calls(g, frame))
            return false;
        for (uint32_t k = 0; k < g->frames.p[frame].n_calls; k++) {
            uint32_t rule = g->words.p[g->frames.p[frame].calls + 2 * k];
            uint32_t up = ds_automaton_push(g, g->words.p[g->frames.p[frame].calls + 2 * k + 1], stack), first;
            if (up == UNKNOWN)
                continue;
            if (up == FAILED || (first = ds_automaton_first(g, rule)) == FAILED || !pair_add(g, &g->places, first, up))
                return false;
        }
    }
    for (uint32_t at = 0; at < g->places.n; at += 2)
        if (g->frames.p[g->places.p[at]].bytes) {
            g->places.p[kept++] = g->places.p[at];
            g->places.p[kept++] = g->places.p[at + 1];
        }
    g->places.n = kept;
    return true;
}

/* The state of g->kernel, which takes `avoid` in. */
static ds_gstate state_of_kernel(ds_grammar *g, uint32_t avoid)
{
    ds_slot *slot;
    ds_state s = { .n_kernel = g->kernel.n, .mask = UNKNOWN, .avoid = avoid };

    pairs_sort(g->kernel.p, g->kernel.n);
    if (!PUSH(g, g->kernel, avoid))
        return FAILED;
    slot = ds_automaton_find(g, &g->state_table, g->kernel.p, g->kernel.n, state_same);
    if (!slot)
        return FAILED;
    if (slot->number)
        return slot->number - 1;
    if (g->states.n >= g->opts.max_states) {
        g->full = "states";
        return FAILED;
    }
    if (!close_places(g, &s))
        return FAILED;
    s.n_places = g->places.n;
    s.kernel = words_new(g, g->kernel.p, g->kernel.n, 0);
    s.places = words_new(g, g->places.p, g->places.n, 0);
    s.next = words_new(g, NULL, g->n_classes, 0);
    if (s.kernel == FAILED || s.places == FAILED || s.next == FAILED || !PUSH(g, g->states, s))
        return FAILED;
    for (uint32_t i = 0; i < g->places.n; i += 2)
        for (uint32_t class = 0; class < g->n_classes; class ++)
            if (g->words.p[g->frames.p[g->places.p[i]].next + class])
                g->words.p[s.next + class] = UNKNOWN;
    g->state_table.n++;
    slot->number = g->states.n;
    return g->states.n - 1;
}

ds_gstate ds_automaton_state(ds_grammar *g, uint32_t frame, uint32_t stack)
{
    g->kernel.n = 0;
    return pair_add(g, &g->kernel, frame, stack) ? state_of_kernel(g, 0) : FAILED;
}

ds_gstate ds_automaton_step(ds_grammar *g, ds_gstate s, uint8_t byte)
{
    uint32_t class = g->class_of[byte], to = g->words.p[g->states.p[s].next + class];
    ds_state from = g->states.p[s];
    uint32_t avoid = g->avoid ? g->avoid[from.avoid][byte] : 0;

    if (to != UNKNOWN)
        return to;
    g->kernel.n = 0;
    for (uint32_t i = 0; i < from.n_places && avoid != AVOIDED; i += 2) {
        uint32_t stack = g->words.p[from.places + i + 1], frame = ds_automaton_frame_step(g, g->words.p[from.places + i], class);
        if (frame == FAILED || (frame && !pair_add(g, &g->kernel, frame, stack)))
            return FAILED;
    }
    to = g->kernel.n ? state_of_kernel(g, avoid) : 0; /* nothing fits: state 0 */
    if (to != FAILED)
        g->words.p[from.next + class] = to;
    return to;
}

bool ds_automaton_init(ds_grammar *g)
{
    uint32_t first;

    for (uint32_t i = 0; i < g->nodes.n; i++)
        if (!PUSH(g, g->mark, 0))
            return false;
    set_begin(g);
    if (set_end(g) != 0) /* frame 0 is the empty set */
        return false;
    g->kernel.n = 0;
    if (state_of_kernel(g, 0) != 0) /* state 0 is where nothing fits */
        return false;
    if (!PUSH(g, g->stacks, ((ds_stack){ 0, 0, 0 })) || !PUSH(g, g->stacks, ((ds_stack){ 0, 0, 0 }))) /* STACK_EMPTY, STACK_OPEN */
        return false;
    first = frame_of(g, g->start.p[0]);
    g->first = first == FAILED ? FAILED : ds_automaton_state(g, first, STACK_EMPTY);
    return g->first != FAILED;
}

/* ---- reading ---- */

ds_gstate ds_grammar_start(const ds_grammar *g)
{
    return g->first;
}

bool ds_grammar_accepts(const ds_grammar *g, ds_gstate s)
{
    return g->states.p[s].ends;
}

ds_rc ds_grammar_read(ds_grammar *g, ds_gstate *s, const char *text, size_t n, size_t *taken, ds_err *err)
{
    ds_grammar_call(g);
    for (*taken = 0; *taken < n; ++*taken) {
        ds_gstate to = ds_automaton_step(g, *s, (uint8_t)text[*taken]);
        if (to == FAILED)
            return ds_grammar_failed(g, err);
        if (to == 0)
            break;
        *s = to;
    }
    return DS_OK;
}

void ds_grammar_destroy(ds_grammar *g)
{
    if (!g)
        return;
    for (uint32_t i = 0; i < g->heads.n; i++) {
        free(g->heads.p[i].bits);
        free(g->heads.p[i].ids);
        free(g->heads.p[i].leaves);
        free(g->heads.p[i].calls);
        free(g->heads.p[i].leaf_calls);
    }
    free(g->nodes.p);
    free(g->start.p);
    free(g->rank.p);
    free(g->countdowns.p);
    free(g->words.p);
    free(g->frames.p);
    free(g->stacks.p);
    free(g->states.p);
    free(g->heads.p);
    free(g->frame_table.slot);
    free(g->stack_table.slot);
    free(g->state_table.slot);
    free(g->below_table.slot);
    free(g->below.p);
    free(g->mark.p);
    free(g->members.p);
    free(g->items.p);
    free(g->member_nodes.p);
    free(g->rest.p);
    free(g->member_table.slot);
    free(g->set.p);
    free(g->work.p);
    free(g->kernel.p);
    free(g->places.p);
    free(g->path.p);
    free(g->path_calls.p);
    free(g->found.p);
    free(g->found_calls.p);
    free(g->ids.p);
    free(g->id_calls.p);
    free(g->used.p);
    free(g->avoid);
    free(g->killed.p);
    free(g->kill_ids.p);
    free(g);
}

ds_grammar_stats ds_grammar_stat(const ds_grammar *g)
{
    return (ds_grammar_stats){ .nodes = g->nodes.n, .states = g->states.n, .bytes = g->bytes };
}
