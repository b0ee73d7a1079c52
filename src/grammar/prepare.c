/* What masks will need, found ahead: heads of the places where much can follow, for these take the longest.
 *
 * Frames are visited from the beginning of each rule on, near ones first, as far as the budget goes. */
#include <stdlib.h>
#include <string.h>

#include "grammar/trie_internal.h"

enum {
    MOST_FRAMES = 4096,
    MOST_WALKED = 60000,  /* nodes of the trie and tokens; some 0.5 ms */
    MOST_NODES = 1 << 17, /* of the network */
    A_SHARE = 8,          /* of the grammar's bounds */
    MANY_BYTES = 24,      /* where as many may follow, a head is worth it */
    MANY_STARTS = 10,     /* bytes that calls may begin with */
    MANY_WAYS = 4,        /* to such places, or ends */
    MANY_BELOW = 1500,    /* nodes of the trie below leaves */
    MORE_WORDS = 16384,   /* room for states to come */
    MORE_STATES = 256,
};

typedef struct {
    uint32_t rule, after, of; /* a call: the frame after it, of another rule */
} call;

typedef struct {
    ds_grammar *g;
    const ds_token_trie *t;
    uint64_t until;
    uint32_t rule[MOST_FRAMES]; /* of each frame; UNKNOWN: not reached */
    bool begun[MOST_FRAMES];    /* a mask may ask for it; that of a rule's beginning is part of the caller's */
    uint32_t queue[MOST_FRAMES], n;
    VEC(call) calls;
} plan;

static bool within(const plan *p)
{
    const ds_grammar *g = p->g;

    return g->walked < p->until && g->effort < MOST_NODES && g->bytes < g->opts.max_bytes / A_SHARE &&
           g->frames.n + g->states.n < g->opts.max_states / A_SHARE;
}

static void reach(plan *p, uint32_t frame, uint32_t rule, bool begun)
{
    if (frame < MOST_FRAMES)
        p->begun[frame] |= begun;
    if (frame > 0 && frame < MOST_FRAMES && p->rule[frame] == UNKNOWN) {
        p->rule[frame] = rule;
        p->queue[p->n++] = frame;
    }
}

/* ASCII bytes that may follow in the rule. */
static uint32_t n_bytes(const ds_grammar *g, uint32_t frame)
{
    const ds_frame *f = g->frames.p + frame;
    uint32_t n = 0;

    for (uint32_t i = 0; i < f->n_nodes; i++) {
        const ds_node *d = g->nodes.p + g->words.p[f->nodes + i];
        n += d->kind == N_BYTE && d->lo < 0x80 ? d->hi - d->lo + 1u : 0;
    }
    return n;
}

/* Whether many bytes may follow, those that calls begin with too. false: memory or a bound. */
static bool starts(plan *p, uint32_t frame, bool *many)
{
    ds_grammar *g = p->g;
    ds_gstate s = ds_automaton_state(g, frame, STACK_OPEN);
    uint32_t n = 0;

    for (uint32_t b = 0; b < 128 && s != FAILED; b++)
        n += g->words.p[g->states.p[s].next + g->class_of[b]] != 0;
    *many = n >= MANY_STARTS;
    return s != FAILED;
}

/* Frames that a byte leads to. *much: many tokens may come, or may after one byte. false: memory or a bound. */
static bool follow(plan *p, uint32_t frame, bool *much)
{
    ds_grammar *g = p->g;
    uint32_t ways = 0;

    for (uint32_t i = 0; i < g->frames.p[frame].n_nodes; i++) {
        ds_node d = g->nodes.p[g->words.p[g->frames.p[frame].nodes + i]];
        for (uint32_t class = g->class_of[d.lo]; d.kind == N_BYTE && class <= g->class_of[d.hi]; class ++) {
            uint32_t to = ds_automaton_frame_step(g, frame, class);
            if (to == FAILED)
                return false;
            reach(p, to, p->rule[frame], true);
            ways += d.lo < 0x80 && (g->frames.p[to].ends || n_bytes(g, to) >= MANY_BYTES);
        }
    }
    *much = ways >= MANY_WAYS || n_bytes(g, frame) >= MANY_BYTES;
    return true;
}

static bool visit_calls(plan *p, uint32_t frame)
{
    ds_grammar *g = p->g;

    if (!ds_automaton_calls(g, frame))
        return false;
    for (uint32_t k = 0; k < g->frames.p[frame].n_calls; k++) {
        call c = { g->words.p[g->frames.p[frame].calls + 2 * k], g->words.p[g->frames.p[frame].calls + 2 * k + 1], p->rule[frame] };
        uint32_t first = ds_automaton_first(g, c.rule);
        if (first == FAILED || !PUSH(g, p->calls, c))
            return false;
        reach(p, first, c.rule, false);
        reach(p, c.after, c.of, true);
    }
    return true;
}

/* Where the rule of a head may end within many tokens, what comes then. */
static bool visit_below(plan *p, uint32_t head, uint32_t rule)
{
    ds_grammar *g = p->g;
    const ds_head *h = g->heads.p + head;
    const trie_node *nodes = p->t->parts[h->part].nodes;
    uint32_t many = 0;

    for (uint32_t i = 0; i < h->n_leaves && many < MANY_BELOW; i++)
        many += h->leaves[i] ? nodes[h->leaves[i]].skip - h->leaves[i] : 0;
    for (uint32_t k = 0; k < p->calls.n && many >= MANY_BELOW && within(p); k++) {
        uint32_t below, limit;
        if (p->calls.p[k].rule == rule && !ds_head_below(g, p->t, head, p->calls.p[k].after, &below, &limit))
            return false;
    }
    return true;
}

static bool run(plan *p)
{
    ds_grammar *g = p->g;
    uint32_t first = ds_automaton_first(g, 0), at = 0;

    if (first == FAILED)
        return false;
    reach(p, first, 0, true);
    for (; at < p->n && within(p); at++) {
        uint32_t frame = p->queue[at], loop, head, limit;
        bool much;
        if (!ds_automaton_loop(g, frame))
            return false;
        loop = g->frames.p[frame].loop;
        if (loop != frame) { /* all frames of the countdown have the same head */
            reach(p, loop, p->rule[frame], true);
            if (g->frames.p[loop].head == UNKNOWN && !ds_head_of(g, p->t, frame, &head, &limit))
                return false;
            continue;
        }
        if (!follow(p, frame, &much) || !visit_calls(p, frame) ||
            (g->frames.p[frame].n_calls && !much && p->begun[frame] && !starts(p, frame, &much)) ||
            (much && p->begun[frame] && !ds_head_of(g, p->t, frame, &head, &limit)))
            return false;
    }
    for (uint32_t i = 0; i < at && within(p); i++)
        if (g->frames.p[p->queue[i]].head < FAILED && !visit_below(p, g->frames.p[p->queue[i]].head, p->rule[p->queue[i]]))
            return false;
    /* Room for what a text needs, so that no mask has to move everything. */
    return ROOM(g, g->words, g->words.n / 2 + MORE_WORDS) && ROOM(g, g->states, MORE_STATES) && ROOM(g, g->frames, MORE_STATES) &&
           ROOM(g, g->stacks, MORE_STATES);
}

ds_rc ds_grammar_prepare(ds_grammar *g, const ds_token_trie *t, ds_err *err)
{
    plan *p = malloc(sizeof *p);
    bool ok;

    if (!p)
        return ds_fail(err, DS_E_NOMEM, "grammar: out of memory");
    if (g->trie && g->trie != t) {
        free(p);
        return ds_fail(err, DS_E_ARG, "a grammar is used with one vocabulary");
    }
    g->trie = t;
    ds_grammar_call(g);
    p->g = g;
    p->t = t;
    p->until = g->walked + MOST_WALKED;
    memset(p->rule, 0xff, sizeof p->rule);
    memset(p->begun, 0, sizeof p->begun);
    p->n = 0;
    memset(&p->calls, 0, sizeof p->calls);
    ok = run(p);
    g->bytes -= p->calls.cap * sizeof *p->calls.p;
    free(p->calls.p);
    free(p);
    return ok ? DS_OK : ds_grammar_failed(g, err);
}
