/* The way of a request, and what happens to instances. */
#include "sim/sim.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/none.h"
#include "base/rng.h"
#include "kv/hit.h"
#include "kv/layout.h"
#include "sim/sim_internal.h"

enum { REPLAY = 128, SEED_STREAM = 1 << 21 };
static const double full_wait_us = 5e6; /* prompt work ahead of a mixed rank that counts as full */

static void seek_all(sim *s);

void sim_out_of_memory(sim *s)
{
    if (s->rc == DS_OK)
        s->rc = ds_fail(s->err, DS_E_NOMEM, "out of memory with %llu live requests",
                        (unsigned long long)(s->r->sum.arrived - s->r->sum.done - s->r->sum.failed));
}

void sim_put(sim *s, double at_ns, uint32_t what, uint32_t who, uint64_t which)
{
    if (at_ns < 1.8e19 && !ds_sim_events_put(&s->q, (uint64_t)at_ns, what, who, which))
        sim_out_of_memory(s);
}

/* ---- lists ---- */

void sim_push(sim *s, sim_list *l, uint32_t request)
{
    s->req[request].next = DS_NONE;
    *(l->head == DS_NONE ? &l->head : &s->req[l->tail].next) = request;
    l->tail = request;
}

uint32_t sim_pop(sim *s, sim_list *l)
{
    uint32_t id = l->head;

    l->head = s->req[id].next;
    if (l->head == DS_NONE)
        l->tail = DS_NONE;
    return id;
}

uint32_t sim_whose_turn(const sim *s, const sim_list lists[SIM_LEVELS])
{
    enum { AGEING_MS = 10000 };
    uint32_t best = DS_NONE;
    ds_queue_wait b = { 0 };

    for (uint32_t l = 0; l < SIM_LEVELS; l++) {
        uint32_t id = lists[l].head;
        ds_queue_wait w;
        if (id == DS_NONE)
            continue;
        w = (ds_queue_wait){ .level = l, .waited_us = (s->now_ns - s->req[id].waits_ns) / 1000, .order = s->req[id].waits_ns };
        if (best == DS_NONE || ds_queue_before(&w, &b, AGEING_MS)) {
            best = l;
            b = w;
        }
    }
    return best;
}

static uint32_t new_request(sim *s)
{
    uint32_t id = s->free_req, epoch;

    if (id == DS_NONE) {
        uint32_t cap = s->cap_req ? s->cap_req * 2 : 1024;
        sim_request *req = realloc(s->req, cap * sizeof *req);
        if (!req) {
            sim_out_of_memory(s);
            return DS_NONE;
        }
        memset(req + s->cap_req, 0, (cap - s->cap_req) * sizeof *req);
        for (uint32_t i = s->cap_req; i < cap; i++)
            req[i].next = i + 1 < cap ? i + 1 : DS_NONE;
        s->free_req = s->cap_req;
        s->req = req;
        s->cap_req = cap;
        id = s->free_req;
    }
    s->free_req = s->req[id].next;
    s->n_req++;
    epoch = s->req[id].epoch + 1;
    s->req[id] = (sim_request){ .epoch = epoch, .rank = DS_NONE };
    return id;
}

static void free_request(sim *s, uint32_t id)
{
    free(s->req[id].ask.blocks);
    s->req[id].ask.blocks = NULL;
    s->req[id].state = SIM_FREE;
    s->req[id].epoch++;
    s->req[id].next = s->free_req;
    s->free_req = id;
    s->n_req--;
}

/* ---- figures ---- */

static ds_sim_bin *bin(sim *s)
{
    ds_sim_result *r = s->r;

    while (s->now_ns / s->bin_ns >= DS_SIM_BINS) { /* half as many, twice as long */
        for (uint32_t i = 0; i < DS_SIM_BINS / 2; i++) {
            ds_sim_bin *a = &r->bins[2 * i], *b = &r->bins[2 * i + 1], m = *a;
            m.arrived += b->arrived;
            m.done += b->done;
            m.failed += b->failed;
            m.input_tokens += b->input_tokens;
            m.output_tokens += b->output_tokens;
            m.waiting = a->waiting > b->waiting ? a->waiting : b->waiting;
            m.decoding = a->decoding > b->decoding ? a->decoding : b->decoding;
            m.live = a->live > b->live ? a->live : b->live;
            for (uint32_t k = 0; k < DS_SIM_ROLES; k++)
                m.ready[k] = !a->seen || (b->seen && b->ready[k] < a->ready[k]) ? b->ready[k] : a->ready[k];
            m.seen = a->seen || b->seen;
            r->bins[i] = m;
        }
        memset(&r->bins[DS_SIM_BINS / 2], 0, DS_SIM_BINS / 2 * sizeof *r->bins);
        s->bin_ns *= 2;
    }
    return &r->bins[s->now_ns / s->bin_ns];
}

static void look(sim *s)
{
    ds_sim_bin *b = bin(s);
    uint32_t ready[DS_SIM_ROLES] = { 0 };

    for (uint32_t i = 0; i < s->n_inst; i++)
        ready[s->p->groups[s->inst[i].group].role] += s->inst[i].st.state == DS_INSTANCE_READY;
    for (uint32_t k = 0; k < DS_SIM_ROLES; k++)
        b->ready[k] = b->seen && b->ready[k] < ready[k] ? b->ready[k] : ready[k];
    b->seen = true;
    b->waiting = s->n_waiting + s->n_seeking > b->waiting ? s->n_waiting + s->n_seeking : b->waiting;
    b->decoding = s->n_decoding > b->decoding ? s->n_decoding : b->decoding;
    b->live = s->n_req > b->live ? s->n_req : b->live;
}

static bool counted(const sim *s, const sim_request *q)
{
    return (double)q->ask.at_ns >= s->p->warmup_s * 1e9;
}

/* ---- what the balancers see ---- */

void sim_rank_changed(sim *s, uint32_t rank)
{
    ds_live_sum sum = ds_live_at(s->live, rank);
    uint32_t row = s->row_of[rank];

    s->ahead_us[rank] = sum.weight.work_us;
    if (s->ranks[rank].group->role != DS_SIM_PREFILL) {
        s->decode[row].requests = sum.records;
        s->decode[row].kv_tokens = sum.weight.tokens;
        s->decode[row].prefill_us = sum.weight.work_us;
    }
}

static void instance_changed(sim *s, uint32_t i)
{
    const ds_sim_group *g = &s->p->groups[s->inst[i].group];
    bool ready = s->inst[i].st.state == DS_INSTANCE_READY;

    if (g->role == DS_SIM_PREFILL)
        s->prefill[s->row_of[s->inst[i].first_rank]].ready = ready;
    else
        for (uint32_t k = 0; k < g->ranks; k++)
            s->decode[s->row_of[s->inst[i].first_rank + k]].ready = ready;
}

static void leave_rank(sim *s, uint32_t id)
{
    sim_request *q = &s->req[id];

    if (q->rank == DS_NONE)
        return;
    ds_live_end(s->live, q->live);
    sim_rank_changed(s, q->rank);
    q->rank = DS_NONE;
}

static bool enter_rank(sim *s, uint32_t id, uint32_t rank)
{
    sim_request *q = &s->req[id];
    ds_live_weight w = { .tokens = (uint64_t)q->ask.input + q->ask.output, .work_us = q->pos < q->prompt ? q->work_us : 0 };

    q->live = ds_live_add(s->live, 0, rank, &w);
    if (!q->live) {
        sim_out_of_memory(s);
        return false;
    }
    q->rank = rank;
    sim_rank_changed(s, rank);
    return true;
}

/* ---- ends ---- */

static void fail(sim *s, uint32_t id, uint64_t *cause)
{
    s->r->sum.failed++;
    bin(s)->failed++;
    ++*cause;
    if (s->req[id].ask.session != DS_NONE)
        ds_sim_loads_end(s->loads, s->req[id].ask.session);
    free_request(s, id);
}

static void keep_text(sim *s, const sim_request *q, uint64_t tokens)
{
    bool ok = true;

    if (!s->store)
        return;
    for (uint32_t b = 0; b < q->ask.n_blocks && ok; b++) {
        uint64_t at = (uint64_t)b * DS_SIM_TRACE_BLOCK, left = q->ask.input > at ? q->ask.input - at : 0;
        if (left > 0)
            ok =
                ds_sim_store_put(s->store, q->ask.blocks[b], q->ask.load, left < DS_SIM_TRACE_BLOCK ? left : DS_SIM_TRACE_BLOCK, s->now_ns);
    }
    if (q->ask.text)
        ok = ds_sim_store_put(s->store, q->ask.text, q->ask.load, q->ask.text_grows ? tokens : q->ask.text_tokens, s->now_ns);
    if (!ok)
        sim_out_of_memory(s);
}

void sim_done(sim *s, uint32_t id)
{
    sim_request *q = &s->req[id];
    ds_sim_sum *sum = &s->r->sum;
    ds_sim_bin *b = bin(s);

    leave_rank(s, id);
    sum->done++;
    b->done++;
    sum->output_tokens += q->ask.output - q->given;
    b->output_tokens += q->ask.output;
    b->input_tokens += q->ask.input;
    sum->done_output_tokens += q->ask.output;
    if (counted(s, q)) {
        uint64_t first = q->first_ns - q->ask.at_ns, rest = s->now_ns - q->first_ns;
        double pace = q->ask.output > 1 ? (double)rest / (q->ask.output - 1) : 0.0;
        sum->counted++;
        ds_times_add(&sum->first, first);
        ds_times_add(&sum->total, s->now_ns - q->ask.at_ns);
        if (q->ask.output > 1)
            ds_times_add(&sum->pace, (uint64_t)pace);
        if ((double)first <= s->p->first_s * 1e9 && pace <= s->p->gap_s * 1e9) {
            sum->good++;
            sum->good_tokens += q->ask.output;
        }
    }
    keep_text(s, q, (uint64_t)q->ask.input + q->ask.output);
    if (q->ask.session != DS_NONE) {
        uint64_t at = ds_sim_loads_answered(s->loads, q->ask.session, &q->ask, s->now_ns);
        if (at != UINT64_MAX) {
            sim_put(s, (double)at, EV_TURN, q->ask.session, 0);
            s->pending_turns++;
        }
    }
    free_request(s, id);
}

/* ---- prompts ---- */

static bool has_state(void *ctx, uint32_t pos, bool own)
{
    (void)pos;
    return *(const bool *)ctx && !own;
}

/* How much of the prompt is there already. */
static void match(sim *s, sim_request *q)
{
    uint64_t tokens = 0, idle_ns = 0;
    bool warm = false;
    ds_hit_ask a = { .prompt = q->prompt, .margin = ds_hit_margin(REPLAY) };
    ds_hit h;

    if (q->ask.known_hit != DS_NONE && q->kept == 0) { /* as it was recorded, cut by the rule already */
        q->pos = q->hit = q->ask.known_hit < q->prompt ? q->ask.known_hit : q->prompt - 1;
        q->replay = 0;
        return;
    }
    if (q->kept > 0)
        tokens = q->kept;
    else if (s->store && q->ask.text) {
        tokens = ds_sim_store_get(s->store, q->ask.text, s->now_ns, &idle_ns);
        tokens = tokens < q->ask.text_tokens ? tokens : q->ask.text_tokens;
    } else if (s->store)
        for (uint32_t b = 0; b < q->ask.n_blocks; b++) {
            uint64_t idle, have = ds_sim_store_get(s->store, q->ask.blocks[b], s->now_ns, &idle);
            tokens += have;
            idle_ns = idle > idle_ns ? idle : idle_ns;
            if (have < DS_SIM_TRACE_BLOCK)
                break;
        }
    warm = tokens > 0 && (double)idle_ns <= s->p->window_s * 1e9;
    h = ds_hit_find(&a, (uint32_t)(tokens / DS_KV_BLOCK_TOKENS), has_state, &warm);
    q->hit = h.kind == DS_HIT_NONE ? 0 : h.pos;
    q->replay = h.kind == DS_HIT_REPLAY ? (q->hit < REPLAY ? q->hit : REPLAY) : 0;
    q->pos = q->hit - q->replay;
}

static const ds_cost *a_cost(const sim *s)
{
    uint32_t g = 0;

    while (s->p->groups[g].role == DS_SIM_DECODE)
        g++;
    return &s->p->machines[s->p->groups[g].machine].cost;
}

static uint32_t a_chunk(const sim *s)
{
    uint32_t g = 0;

    while (s->p->groups[g].role == DS_SIM_DECODE)
        g++;
    return s->p->groups[g].rows;
}

static void submit(sim *s, uint32_t id)
{
    sim_request *q = &s->req[id];

    q->prompt = q->ask.input + q->given;
    q->had = q->given;
    q->state = SIM_WAITS;
    q->waits_ns = s->now_ns;
    match(s, q);
    q->tier = ds_prefill_tier(q->prompt);
    q->work_us = ds_prefill_work_us(a_cost(s), q->pos, q->prompt - q->pos, a_chunk(s));
    s->came_us[q->tier] += q->work_us;
    sim_push(s, &s->waiting[s->mixed ? 0 : q->tier][s->p->loads[q->ask.load].priority], id);
    s->n_waiting++;
}

static void place(sim *s, uint32_t id, uint32_t rank)
{
    sim_request *q = &s->req[id];
    double bytes = q->hit * s->p->token_bytes;

    if (counted(s, q))
        ds_times_add(&s->r->sum.wait, s->now_ns - q->waits_ns);
    if (!enter_rank(s, id, rank))
        return;
    s->taken_us[rank] += q->work_us;
    q->state = SIM_FETCHES;
    s->r->sum.fetched_bytes += bytes;
    if (q->hit > 0 && bytes * s->p->fetch_s_byte + s->p->latency_s > 0.0)
        sim_put(s, (double)s->now_ns + (bytes * s->p->fetch_s_byte + s->p->latency_s) * 1e9, EV_FETCHED, id, q->epoch);
    else
        sim_rank_prompt(s, rank, id);
}

/* The next of the prefill groups that are ready, or the one with fewest requests. DS_NONE: none is ready. */
static uint32_t plain_prefill(sim *s, bool least)
{
    uint32_t best = DS_NONE;
    uint64_t fewest = 0;

    for (uint32_t k = 0; k < s->n_prefill; k++) {
        uint32_t row = least ? k : (s->turn[0] + k) % s->n_prefill;
        const sim_instance *i = &s->inst[s->prefill_inst[row]];
        uint64_t n = 0;
        if (!s->prefill[row].ready)
            continue;
        if (!least) {
            s->turn[0] = row + 1;
            return row;
        }
        for (uint32_t r = 0; r < s->prefill[row].ranks; r++)
            n += ds_live_at(s->live, i->first_rank + r).records;
        if (best == DS_NONE || n < fewest) {
            best = row;
            fewest = n;
        }
    }
    return best;
}

/* DS_NONE: it waits. */
static uint32_t choose_prefill(sim *s, uint32_t tier, uint32_t id)
{
    ds_prefill_place to = { DS_NONE, 0 };

    if (s->p->prefill == DS_SIM_BALANCED) {
        uint8_t waiting = 0;
        for (uint32_t t = 0; t < DS_PREFILL_TIERS; t++)
            waiting |= (uint8_t)((sim_whose_turn(s, s->waiting[t]) != DS_NONE) << t);
        to = ds_prefill_choose(s->prefill, s->n_prefill, tier, waiting);
    } else {
        to.group = plain_prefill(s, s->p->prefill == DS_SIM_LEAST);
        for (uint32_t r = 1; to.group != DS_NONE && r < s->prefill[to.group].ranks; r++)
            if (s->prefill[to.group].rank_us[r] < s->prefill[to.group].rank_us[to.rank])
                to.rank = r;
    }
    if (to.group == DS_NONE)
        return DS_NONE;
    s->prefill[to.group].left_us -= (int64_t)s->req[id].work_us;
    s->prefill[to.group].taken_us += s->req[id].work_us;
    return s->inst[s->prefill_inst[to.group]].first_rank + to.rank;
}

/* The rank to decode on: of all that also compute prompts, or of those that only decode. */
static uint32_t choose_decode(sim *s, uint32_t id)
{
    const sim_request *q = &s->req[id];
    ds_decode_ask ask = { .kv_tokens = (uint64_t)q->ask.input + q->ask.output,
                          .prefill_us = s->mixed ? q->work_us : 0,
                          .seed = ds_rng_u64(s->p->seed, SEED_STREAM, s->r->sum.arrived + s->r->events) };
    uint32_t row = DS_NONE;

    if (s->p->decode == DS_SIM_BALANCED) {
        row = ds_decode_choose(s->decode, s->n_decode, &ask);
        return row == DS_NONE ? DS_NONE : s->decode_rank[row];
    }
    for (uint32_t k = 0; k < s->n_decode; k++) {
        uint32_t at = s->p->decode == DS_SIM_LEAST ? k : (s->turn[1] + k) % s->n_decode;
        const ds_decode_rank *d = &s->decode[at];
        if (!d->ready || d->requests >= d->max_requests || d->kv_tokens + ask.kv_tokens > d->max_kv_tokens)
            continue;
        if (s->p->decode == DS_SIM_TURNS) {
            s->turn[1] = at + 1;
            return s->decode_rank[at];
        }
        if (row == DS_NONE || d->requests < s->decode[row].requests)
            row = at;
    }
    return row == DS_NONE ? DS_NONE : s->decode_rank[row];
}

static void place_all(sim *s)
{
    for (uint32_t t = 0; t < DS_PREFILL_TIERS; t++) {
        uint32_t level;
        while (s->rc == DS_OK && (level = sim_whose_turn(s, s->waiting[t])) != DS_NONE) {
            uint32_t id = s->waiting[t][level].head, rank = s->mixed ? choose_decode(s, id) : choose_prefill(s, t, id);
            if (rank == DS_NONE)
                break;
            sim_pop(s, &s->waiting[t][level]);
            s->n_waiting--;
            place(s, id, rank);
        }
    }
}

static void arrive(sim *s, const ds_sim_ask *ask)
{
    uint32_t id;

    s->r->sum.arrived++;
    bin(s)->arrived++;
    id = new_request(s);
    if (id == DS_NONE) {
        free(ask->blocks);
        return;
    }
    s->req[id].ask = *ask;
    if (s->n_req > s->p->max_live) {
        fail(s, id, &s->r->sum.refused);
        return;
    }
    submit(s, id);
    place_all(s);
}

static void drop_late(sim *s)
{
    for (uint32_t t = 0; t < DS_PREFILL_TIERS; t++)
        for (uint32_t l = 0; l < SIM_LEVELS; l++)
            while (s->waiting[t][l].head != DS_NONE &&
                   (double)(s->now_ns - s->req[s->waiting[t][l].head].waits_ns) > s->p->max_wait_s * 1e9) {
                uint32_t id = sim_pop(s, &s->waiting[t][l]);
                s->n_waiting--;
                fail(s, id, &s->r->sum.late);
            }
}

/* ---- from prompt to answer ---- */

void sim_prompt_done(sim *s, uint32_t id)
{
    sim_request *q = &s->req[id];
    ds_sim_sum *sum = &s->r->sum;
    ds_sim_load_sum *l = &s->r->loads[q->ask.load];

    sum->prompt_tokens += q->prompt;
    sum->hit_tokens += q->hit;
    sum->computed_tokens += q->prompt - q->hit;
    sum->replayed_tokens += q->replay;
    l->requests++;
    l->prompt_tokens += q->prompt;
    l->hit_tokens += q->hit;
    l->full_hits += q->hit >= 0.9 * q->prompt;
    keep_text(s, q, q->prompt);
    if (q->first_ns == 0)
        q->first_ns = s->now_ns;
    q->given++;
    sum->output_tokens++;
    if (q->given == q->ask.output) {
        sim_done(s, id);
        return;
    }
    if (s->mixed) {
        ds_live_weight w = { .tokens = (uint64_t)q->ask.input + q->ask.output };
        ds_live_weigh(s->live, q->live, &w);
        sim_rank_changed(s, q->rank);
        sim_rank_join(s, q->rank, id);
        return;
    }
    leave_rank(s, id);
    q->state = SIM_SEEKS;
    sim_push(s, &s->seeking, id);
    s->n_seeking++;
    seek_all(s);
}

static void seek_all(sim *s)
{
    while (s->seeking.head != DS_NONE && s->rc == DS_OK) {
        uint32_t id = s->seeking.head, rank = choose_decode(s, id);
        sim_request *q = &s->req[id];
        double bytes = ((double)q->ask.input + q->given) * s->p->token_bytes;
        if (rank == DS_NONE)
            return;
        sim_pop(s, &s->seeking);
        s->n_seeking--;
        if (!enter_rank(s, id, rank))
            return;
        q->state = SIM_MOVES;
        s->r->sum.moved_bytes += bytes;
        sim_put(s, (double)s->now_ns + (bytes * s->p->transfer_s_byte + s->p->latency_s) * 1e9, EV_MOVED, id, q->epoch);
    }
}

void sim_rank_rests(sim *s, uint32_t rank)
{
    if (s->ranks[rank].group->role == DS_SIM_PREFILL && s->n_waiting > 0)
        place_all(s);
}

/* ---- instances ---- */

/* Computes again what an instance takes with it: `kept` tokens are in the store. */
static void resubmit(sim *s, uint32_t id)
{
    sim_request *q = &s->req[id];

    leave_rank(s, id);
    s->r->sum.restarted++;
    s->r->sum.lost_tokens += q->pos > q->hit ? q->pos - q->hit : 0;
    q->epoch++;
    submit(s, id);
}

/* Everything leaves an instance; with its KV what decodes goes on decoding elsewhere. */
static void empty_instance(sim *s, uint32_t i, bool with_kv)
{
    uint32_t first = s->inst[i].first_rank, ranks = s->p->groups[s->inst[i].group].ranks;

    for (uint32_t k = 0; k < ranks; k++)
        sim_rank_clear(s, first + k);
    for (uint32_t id = 0; id < s->cap_req; id++) {
        sim_request *q = &s->req[id];
        if (q->state < SIM_FETCHES || q->rank == DS_NONE || q->rank < first || q->rank >= first + ranks)
            continue;
        if (q->state == SIM_MOVES || (q->state == SIM_DECODES && with_kv)) { /* where it comes from has its KV */
            leave_rank(s, id);
            q->epoch++;
            q->state = SIM_SEEKS;
            sim_push(s, &s->seeking, id);
            s->n_seeking++;
            continue;
        }
        if (q->state == SIM_DECODES)
            q->kept = s->store ? q->ask.input + q->given : 0;
        else if (with_kv && q->pos > q->hit)
            q->kept = q->pos;
        resubmit(s, id);
    }
}

static void instance_due(sim *s, uint32_t i)
{
    static const ds_instance_limits limits = { .announce_us = 5000000, .grace_us = 60000000, .move_us = 30000000, .kv_us = 60000000 };
    sim_instance *in = &s->inst[i];
    const ds_sim_group *g = &s->p->groups[in->group];
    ds_instance_facts f = { .dead = in->dead, .drain = in->drain };
    ds_instance_step step;
    uint64_t due;

    for (;;) {
        f.live = 0;
        for (uint32_t k = 0; k < g->ranks; k++)
            f.live += (uint32_t)ds_live_at(s->live, in->first_rank + k).records;
        step = ds_instance_next(&in->st, &f, &limits, s->now_ns / 1000);
        in->st = step.next;
        instance_changed(s, i);
        if (!step.move && !step.recompute)
            break;
        empty_instance(s, i, step.move);
    }
    if (in->st.state == DS_INSTANCE_READY || in->st.state == DS_INSTANCE_GONE)
        return;
    due = ds_instance_due_us(&in->st, &limits);
    if (due != UINT64_MAX) /* it is looked at each second too: what is live may end earlier */
        sim_put(s, fmin((double)due * 1e3, (double)s->now_ns + 1e9), EV_DUE, i, in->gen);
}

static void come_back(sim *s, uint32_t i)
{
    s->inst[i].st = (ds_instance){ .since_us = s->now_ns / 1000, .epoch = s->inst[i].st.epoch + 1 };
    s->inst[i].dead = s->inst[i].drain = false;
    s->inst[i].gen++;
    instance_changed(s, i);
    place_all(s);
    seek_all(s);
}

/* Instances of a role, from the first; DS_NONE: there are no more. */
static uint32_t of_role(const sim *s, ds_sim_role role, uint32_t number)
{
    for (uint32_t i = 0; i < s->n_inst; i++)
        if (s->p->groups[s->inst[i].group].role == role && number-- == 0)
            return i;
    return DS_NONE;
}

/* One after the other: which = change << 32 | how many are done. */
static void restart_next(sim *s, uint32_t change, uint32_t number)
{
    uint32_t i = of_role(s, s->p->changes[change].role, number);

    if (i == DS_NONE)
        return;
    s->inst[i].drain = true;
    instance_due(s, i);
    sim_put(s, (double)s->now_ns + 1e9, EV_RESTARTED, i, (uint64_t)change << 32 | number);
}

static void restarted(sim *s, uint32_t i, uint64_t which)
{
    const ds_sim_change *c = &s->p->changes[which >> 32];

    if (s->inst[i].st.state != DS_INSTANCE_GONE) {
        sim_put(s, (double)s->now_ns + 1e9, EV_RESTARTED, i, which);
        return;
    }
    s->inst[i].gen++;
    sim_put(s, (double)s->now_ns + c->lasts_s * 1e9, EV_BACK, i, (uint64_t)s->inst[i].gen << 32 | ((uint32_t)(which >> 32) + 1));
}

static void change(sim *s, uint32_t which)
{
    const ds_sim_change *c = &s->p->changes[which];

    if (c->what == DS_SIM_RESTART) {
        restart_next(s, which, 0);
        return;
    }
    for (uint32_t n = 0, done = 0; done < c->count && c->what != DS_SIM_TRAFFIC; n++) {
        uint32_t i = of_role(s, c->role, n);
        if (i == DS_NONE)
            break;
        if (s->inst[i].dead)
            continue;
        done++;
        if (c->what == DS_SIM_FAIL) {
            s->inst[i].dead = true;
            s->inst[i].gen++;
            instance_due(s, i);
            sim_put(s, (double)s->now_ns + c->lasts_s * 1e9, EV_BACK, i, (uint64_t)s->inst[i].gen << 32);
        } else {
            for (uint32_t k = 0; k < s->p->groups[s->inst[i].group].ranks; k++)
                s->ranks[s->inst[i].first_rank + k].slow = c->factor;
            sim_put(s, (double)s->now_ns + c->lasts_s * 1e9, EV_UNSLOW, i, 0);
        }
    }
    place_all(s);
    seek_all(s);
}

static void back(sim *s, uint32_t i, uint64_t which)
{
    uint32_t number = 0;

    if ((uint32_t)(which >> 32) != s->inst[i].gen)
        return;
    come_back(s, i);
    if (!(uint32_t)which)
        return;
    while (of_role(s, s->p->changes[(uint32_t)which - 1].role, number) != i)
        number++;
    restart_next(s, (uint32_t)which - 1, number + 1);
}

/* ---- the clock ---- */

static void next_arrival(sim *s, uint32_t load)
{
    bool more;

    if (s->rc != DS_OK)
        return;
    s->rc = ds_sim_loads_next(s->loads, load, &s->next[load], &more, s->err);
    if (s->rc != DS_OK)
        return;
    if (more)
        sim_put(s, (double)s->next[load].at_ns, EV_ARRIVE, load, 0);
    else
        s->n_open_loads--;
}

static void begin_round(sim *s)
{
    uint64_t round_us = (uint64_t)(s->p->round_s * 1e6);

    look(s);
    drop_late(s);
    for (uint32_t i = 0; i < s->n_prefill; i++) {
        const sim_instance *in = &s->inst[s->prefill_inst[i]];
        s->prefill[i].left_us = ds_prefill_refill(s->prefill[i].left_us, s->prefill[i].ranks, round_us);
        s->engines[i] = (ds_prefill_engine){ .id = s->prefill[i].id, .tiers = s->prefill[i].tiers };
        for (uint32_t k = 0; k < s->prefill[i].ranks; k++)
            s->engines[i].live_us += s->ahead_us[in->first_rank + k];
    }
    if (s->n_prefill > 0 && s->p->prefill == DS_SIM_BALANCED) {
        uint32_t n = 0;
        ds_prefill_demand(s->demand_us, s->came_us);
        for (uint32_t i = 0; i < s->n_prefill; i++) /* who isn't ready serves nobody */
            if (s->prefill[i].ready)
                s->engines[n++] = s->engines[i];
        ds_prefill_deal(s->engines, n, s->demand_us, s->tiers);
        n = 0;
        for (uint32_t i = 0; i < s->n_prefill; i++)
            if (s->prefill[i].ready)
                s->prefill[i].tiers = s->tiers[n++];
    }
    memset(s->came_us, 0, sizeof s->came_us);
    if (s->n_waiting > 0)
        place_all(s);
    sim_put(s, (double)s->now_ns + s->p->round_s * 1e9, EV_ROUND, 0, 0);
}

static void happen(sim *s, const ds_sim_event *e)
{
    sim_request *q = e->who < s->cap_req ? &s->req[e->who] : NULL;
    ds_sim_ask ask;

    switch (e->what) {
    case EV_ARRIVE:
        ask = s->next[e->who];
        s->next[e->who].blocks = NULL;
        next_arrival(s, e->who);
        arrive(s, &ask);
        break;
    case EV_TURN:
        s->pending_turns--;
        ds_sim_loads_turn(s->loads, e->who, s->now_ns, &ask);
        arrive(s, &ask);
        break;
    case EV_ROUND:
        begin_round(s);
        break;
    case EV_STEP:
        if (s->ranks[e->who].running && s->ranks[e->who].gen == e->which) {
            sim_rank_step(s, e->who);
            if (s->n_seeking > 0)
                seek_all(s);
            if (s->mixed && s->n_waiting > 0)
                place_all(s);
        }
        break;
    case EV_FETCHED:
        if (q->state == SIM_FETCHES && q->epoch == e->which)
            sim_rank_prompt(s, q->rank, e->who);
        break;
    case EV_MOVED:
        if (q->state == SIM_MOVES && q->epoch == e->which)
            sim_rank_join(s, q->rank, e->who);
        break;
    case EV_CHANGE:
        change(s, e->who);
        break;
    case EV_DUE:
        if (s->inst[e->who].gen == e->which) {
            instance_due(s, e->who);
            place_all(s);
            seek_all(s);
        }
        break;
    case EV_BACK:
        back(s, e->who, e->which);
        break;
    case EV_RESTARTED:
        restarted(s, e->who, e->which);
        break;
    default:
        for (uint32_t k = 0; k < s->p->groups[s->inst[e->who].group].ranks; k++)
            s->ranks[s->inst[e->who].first_rank + k].slow = 1.0;
    }
}

/* ---- beginning and end ---- */

static bool take_memory(sim *s)
{
    const ds_sim_plan *p = s->p;
    ds_sim_store_opts so = { .bytes_token = p->token_bytes, .capacity_bytes = p->capacity_bytes };

    for (uint32_t g = 0; g < p->n_groups; g++) {
        s->n_inst += p->groups[g].count;
        s->n_ranks += p->groups[g].count * p->groups[g].ranks;
    }
    s->ranks = calloc(s->n_ranks, sizeof *s->ranks);
    s->inst = calloc(s->n_inst, sizeof *s->inst);
    s->prefill = calloc(s->n_inst, sizeof *s->prefill);
    s->engines = calloc(s->n_inst, sizeof *s->engines);
    s->tiers = calloc(s->n_inst, 1);
    s->prefill_inst = calloc(s->n_inst, sizeof *s->prefill_inst);
    s->ahead_us = calloc(s->n_ranks, sizeof *s->ahead_us);
    s->taken_us = calloc(s->n_ranks, sizeof *s->taken_us);
    s->decode = calloc(s->n_ranks, sizeof *s->decode);
    s->decode_rank = calloc(s->n_ranks, sizeof *s->decode_rank);
    s->row_of = calloc(s->n_ranks, sizeof *s->row_of);
    s->next = calloc(p->n_loads, sizeof *s->next);
    if (!s->ranks || !s->inst || !s->prefill || !s->engines || !s->tiers || !s->prefill_inst || !s->ahead_us || !s->taken_us ||
        !s->decode || !s->decode_rank || !s->row_of || !s->next)
        s->rc = ds_fail(s->err, DS_E_NOMEM, "out of memory for %u ranks", s->n_ranks);
    if (s->rc == DS_OK)
        s->rc = ds_live_create(&s->live, &(ds_live_opts){ .records = p->max_live, .owners = 1, .places = s->n_ranks }, s->err);
    for (uint32_t i = 0; i < DS_SIM_CLASSES; i++)
        so.ttl_s[i] = i < p->n_loads ? p->loads[i].ttl_s : INFINITY;
    if (s->rc == DS_OK && p->has_store)
        s->rc = ds_sim_store_create(&s->store, &so, s->err);
    if (s->rc == DS_OK)
        s->rc = ds_sim_loads_create(&s->loads, p, s->err);
    return s->rc == DS_OK;
}

static void set_up(sim *s)
{
    const ds_sim_plan *p = s->p;
    uint32_t inst = 0, rank = 0;

    for (uint32_t g = 0; g < p->n_groups; g++)
        for (uint32_t c = 0; c < p->groups[g].count; c++, inst++) {
            const ds_sim_group *group = &p->groups[g];
            s->inst[inst] = (sim_instance){ .group = g, .first_rank = rank };
            s->mixed = s->mixed || group->role == DS_SIM_MIXED;
            if (group->role == DS_SIM_PREFILL) {
                s->prefill[s->n_prefill] = (ds_prefill_group){ .id = inst,
                                                               .ready = true,
                                                               .tiers = DS_PREFILL_ALL,
                                                               .ranks = group->ranks,
                                                               .rank_us = &s->ahead_us[rank],
                                                               .rank_taken_us = &s->taken_us[rank],
                                                               .left_us = (int64_t)(p->round_s * 1e6) * group->ranks };
                s->prefill_inst[s->n_prefill] = inst;
            }
            for (uint32_t k = 0; k < group->ranks; k++, rank++) {
                s->ranks[rank] = (sim_rank){ .instance = inst, .group = group, .machine = &p->machines[group->machine] };
                sim_rank_init(s, &s->ranks[rank]);
                if (group->role == DS_SIM_PREFILL) {
                    s->row_of[rank] = s->n_prefill;
                    continue;
                }
                s->row_of[rank] = s->n_decode;
                s->decode_rank[s->n_decode] = rank;
                s->decode[s->n_decode++] = (ds_decode_rank){ .id = rank,
                                                             .ready = true,
                                                             .max_requests = group->requests,
                                                             .max_kv_tokens = group->kv_tokens,
                                                             .max_wait_us = group->role == DS_SIM_MIXED ? (uint64_t)full_wait_us : 0 };
            }
            s->n_prefill += group->role == DS_SIM_PREFILL;
        }
    for (uint32_t t = 0; t < DS_PREFILL_TIERS; t++)
        for (uint32_t l = 0; l < SIM_LEVELS; l++)
            s->waiting[t][l] = (sim_list){ DS_NONE, DS_NONE };
    s->seeking = (sim_list){ DS_NONE, DS_NONE };
    s->free_req = DS_NONE;
    s->bin_ns = 1000000000;
    s->end_ns = p->duration_s * 1e9 < 1.8e19 ? (uint64_t)(p->duration_s * 1e9) : UINT64_MAX;
    for (uint32_t c = 0; c < p->n_changes; c++)
        sim_put(s, p->changes[c].at_s * 1e9, EV_CHANGE, c, 0);
    s->n_open_loads = p->n_loads;
    for (uint32_t l = 0; l < p->n_loads; l++)
        next_arrival(s, l);
    sim_put(s, 0.0, EV_ROUND, 0, 0);
}

static void sum_up(sim *s)
{
    ds_sim_result *r = s->r;
    uint64_t most[DS_SIM_GROUPS] = { 0 }, sum[DS_SIM_GROUPS] = { 0 }, busy[DS_SIM_GROUPS] = { 0 };

    look(s);
    r->sum.live = s->n_req;
    for (uint32_t i = 0; i < s->cap_req; i++)
        r->sum.overdue += s->req[i].state != SIM_FREE && s->req[i].first_ns == 0 && counted(s, &s->req[i]) &&
                          (double)(s->now_ns - s->req[i].ask.at_ns) > s->p->first_s * 1e9;
    r->end_s = (double)s->now_ns / 1e9;
    r->n_bins = (uint32_t)(s->now_ns / s->bin_ns) + 1;
    r->bin_s = (double)s->bin_ns / 1e9;
    if (s->store)
        r->store = ds_sim_store_sums(s->store);
    for (uint32_t k = 0; k < s->n_ranks; k++) {
        uint32_t g = s->inst[s->ranks[k].instance].group;
        sim_rank_clear(s, k);
        busy[g] += s->ranks[k].busy_ns;
        sum[g] += s->taken_us[k];
        most[g] = s->taken_us[k] > most[g] ? s->taken_us[k] : most[g];
    }
    for (uint32_t g = 0; g < s->p->n_groups; g++) {
        ds_sim_group_sum *o = &r->groups[g];
        o->instances = s->p->groups[g].count;
        o->ranks = o->instances * s->p->groups[g].ranks;
        o->busy = s->now_ns ? (double)busy[g] / (double)s->now_ns / o->ranks : 0.0;
        o->slowest = sum[g] ? (double)most[g] * o->ranks / (double)sum[g] : 0.0;
        o->price = s->p->machines[s->p->groups[g].machine].price * o->ranks;
    }
}

static void clean_up(sim *s)
{
    for (uint32_t i = 0; i < s->cap_req; i++)
        free(s->req[i].ask.blocks);
    for (uint32_t i = 0; i < s->p->n_loads && s->next; i++)
        free(s->next[i].blocks);
    for (uint32_t i = 0; i < s->n_ranks && s->ranks; i++)
        free(s->ranks[i].ends);
    ds_sim_events_free(&s->q);
    ds_sim_loads_destroy(s->loads);
    ds_sim_store_destroy(s->store);
    ds_live_destroy(s->live);
    free(s->next);
    free(s->row_of);
    free(s->decode_rank);
    free(s->decode);
    free(s->taken_us);
    free(s->ahead_us);
    free(s->prefill_inst);
    free(s->tiers);
    free(s->engines);
    free(s->prefill);
    free(s->inst);
    free(s->ranks);
    free(s->req);
}

ds_rc ds_sim_run(const ds_sim_plan *p, ds_sim_result *r, ds_err *err)
{
    sim s = { .p = p, .r = r, .err = err };
    ds_sim_event e;

    memset(r, 0, sizeof *r);
    if (take_memory(&s)) {
        set_up(&s);
        while (s.rc == DS_OK && (s.n_open_loads > 0 || s.n_req > 0 || s.pending_turns > 0) && ds_sim_events_take(&s.q, &e)) {
            if (e.at_ns > s.end_ns) {
                s.now_ns = s.end_ns;
                break;
            }
            s.now_ns = e.at_ns;
            r->events++;
            happen(&s, &e);
        }
        if (s.rc == DS_OK)
            sum_up(&s);
    }
    clean_up(&s);
    return s.rc;
}
