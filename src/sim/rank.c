/* One rank: prompts in chunks beside sequences that decode. */
#include <math.h>
#include <stdlib.h>

#include "base/none.h"
#include "base/rng.h"
#include "policy/chunk.h"
#include "sim/sim_internal.h"

enum { TRAIN_ROWS = 2000, TRAIN_STREAM = 1 << 20 };

/* The drafts' controller knows what it would have learnt long ago. */
static void train(const ds_sim_plan *p, sim_rank *k)
{
    ds_spec_init(&k->spec, p->n_kept, -1);
    for (uint32_t row = 0; row < TRAIN_ROWS && p->n_kept > 0; row++) {
        uint32_t kept = 0;
        while (kept < p->n_kept && ds_rng_unit(p->seed, TRAIN_STREAM, row * DS_SPEC_MAX + kept) < p->kept[kept])
            kept++;
        ds_spec_learn_row(&k->spec, p->n_kept, kept);
    }
    for (uint32_t drafts = 0; drafts <= p->n_kept; drafts++)
        for (uint32_t n = 1; n <= 256; n *= 2)
            for (double context = 1e3; context <= 1e6; context *= 10.0) {
                double q = n * (1.0 + drafts), draft_us = drafts ? n * k->machine->draft_s * 1e6 : 0.0;
                ds_cost_work x = { q, q * context, q * (1.0 + drafts) };
                ds_spec_learn_step(&k->spec, &x, ds_cost_of(&k->machine->cost, &x) + draft_us, draft_us, drafts ? n : 0);
            }
}

void sim_rank_init(sim *s, sim_rank *k)
{
    k->slow = 1.0;
    k->joining = (sim_list){ DS_NONE, DS_NONE };
    for (uint32_t l = 0; l < SIM_LEVELS; l++)
        k->prompts[l] = (sim_list){ DS_NONE, DS_NONE };
    /* Alike for ranks of one machine. */
    for (const sim_rank *other = s->ranks; other < k; other++)
        if (other->machine == k->machine) {
            k->spec = other->spec;
            return;
        }
    train(s->p, k);
}

bool sim_rank_idle(const sim_rank *k)
{
    return !k->running;
}

/* ---- sequences that decode, by when they have all ---- */

static bool add_end(sim *s, sim_rank *k, double at, uint32_t request)
{
    uint32_t i = k->n_ends;

    if (k->n_ends == k->cap_ends) {
        uint32_t cap = k->cap_ends ? k->cap_ends * 2 : 16;
        sim_end *ends = realloc(k->ends, cap * sizeof *ends);
        if (!ends) {
            sim_out_of_memory(s);
            return false;
        }
        k->ends = ends;
        k->cap_ends = cap;
    }
    k->n_ends++;
    for (; i > 0 && at < k->ends[(i - 1) / 2].at; i = (i - 1) / 2)
        k->ends[i] = k->ends[(i - 1) / 2];
    k->ends[i] = (sim_end){ at, request };
    return true;
}

static uint32_t take_end(sim_rank *k)
{
    uint32_t request = k->ends[0].request, i = 0;
    sim_end e = k->ends[--k->n_ends];

    for (;;) {
        uint32_t c = 2 * i + 1;
        if (c >= k->n_ends)
            break;
        if (c + 1 < k->n_ends && k->ends[c + 1].at < k->ends[c].at)
            c++;
        if (k->ends[c].at >= e.at)
            break;
        k->ends[i] = k->ends[c];
        i = c;
    }
    k->ends[i] = e;
    return request;
}

static void join_now(sim *s, sim_rank *k)
{
    while (k->joining.head != DS_NONE) {
        uint32_t id = sim_pop(s, &k->joining);
        sim_request *q = &s->req[id];
        q->joined = k->given - q->given;
        k->context += (double)q->ask.input + q->given;
        if (!add_end(s, k, k->given + (q->ask.output - q->given), id))
            return;
    }
}

/* ---- steps ---- */

static double steps_ns(const sim_rank *k, double n)
{
    return n * k->step_ns + k->more_ns * n * (n - 1.0) / 2.0;
}

/* Prompts of a step that has `x` in it already: in the order of their turns, each as far as it may go. */
static void take_prompts(sim *s, sim_rank *k, ds_cost_work *x)
{
    sim_list at[SIM_LEVELS];
    uint32_t rows = 0, level;
    bool alone = k->n_ends == 0;

    for (uint32_t l = 0; l < SIM_LEVELS; l++)
        at[l] = k->prompts[l];
    k->n_step = 0;
    while (k->n_step < k->group->prompts && rows < k->group->rows && (level = sim_whose_turn(s, at)) != DS_NONE) {
        uint32_t id = at[level].head, left = s->req[id].prompt - s->req[id].pos, room = k->group->rows - rows;
        ds_chunk c = { .cost = &k->machine->cost,
                       .work = *x,
                       .pos = s->req[id].pos,
                       .most = left < room ? left : room,
                       .budget_us = (uint32_t)(k->group->budget_s * 1e6),
                       .alone = alone,
                       .first = k->n_step == 0 };
        uint32_t take = ds_chunk_rows(&c);
        if (take == 0)
            break;
        ds_cost_add(x, take, c.pos);
        rows += take;
        k->step[k->n_step] = id;
        k->rows[k->n_step++] = take;
        if (take < left)
            break;
        at[level].head = s->req[id].next;
    }
}

/* How many equal steps until the first sequence has all. */
static uint32_t steps_to_end(const sim_rank *k)
{
    double n = ceil((k->ends[0].at - k->given) / k->tokens - 1e-9);

    return n < 1.0 ? 1 : n > 1e9 ? 1000000000 : (uint32_t)n;
}

static void start(sim *s, uint32_t rank)
{
    sim_rank *k = &s->ranks[rank];
    ds_cost_work x = { 0 };
    double n, all = 1.0;
    uint32_t drafts = 0;

    join_now(s, k);
    n = k->n_ends;
    if (k->n_ends == 0 && k->n_prompts == 0)
        return;
    k->tokens = 1.0;
    if (k->n_ends > 0) {
        drafts = ds_spec_choose(&k->spec, k->n_ends, k->context, k->group->rows);
        for (uint32_t d = 0; d < drafts; d++)
            k->tokens += all *= s->p->kept[d];
        x = (ds_cost_work){ n * (1.0 + drafts), k->context * (1.0 + drafts), n * (1.0 + drafts) * (1.0 + drafts) };
    }
    take_prompts(s, k, &x);
    k->steps = k->n_ends > 0 && k->n_step == 0 ? steps_to_end(k) : 1;
    k->step_ns = (ds_cost_of(&k->machine->cost, &x) * 1e3 + (drafts ? n * k->machine->draft_s * 1e9 : 0.0)) * k->slow;
    k->more_ns = k->machine->cost.coef[2] * (1.0 + drafts) * n * k->tokens * 1e3 * k->slow;
    k->start_ns = s->now_ns;
    k->end_ns = s->now_ns + (uint64_t)ceil(steps_ns(k, k->steps));
    k->running = true;
    sim_put(s, (double)k->end_ns, EV_STEP, rank, ++k->gen);
}

/* Of the equal steps under way, how many are over. */
static uint32_t steps_over(const sim *s, const sim_rank *k)
{
    double gone = (double)(s->now_ns - k->start_ns);
    uint32_t over = 0, not_over = k->steps + 1;

    while (not_over - over > 1) {
        uint32_t n = over + (not_over - over) / 2;
        if (steps_ns(k, n) <= gone)
            over = n;
        else
            not_over = n;
    }
    return over;
}

/* Somebody waits for the next step: of equal steps the one that is under way is the last. */
static void hurry(sim *s, uint32_t rank)
{
    sim_rank *k = &s->ranks[rank];
    uint32_t n;

    if (!k->running) {
        start(s, rank);
        return;
    }
    if (k->steps == 1)
        return;
    n = steps_over(s, k) + 1;
    if (n >= k->steps)
        return;
    k->steps = n;
    k->end_ns = k->start_ns + (uint64_t)ceil(steps_ns(k, n));
    sim_put(s, (double)k->end_ns, EV_STEP, rank, ++k->gen);
}

void sim_rank_prompt(sim *s, uint32_t rank, uint32_t request)
{
    sim_rank *k = &s->ranks[rank];

    s->req[request].state = SIM_PROMPT;
    sim_push(s, &k->prompts[s->p->loads[s->req[request].ask.load].priority], request);
    k->n_prompts++;
    hurry(s, rank);
}

void sim_rank_join(sim *s, uint32_t rank, uint32_t request)
{
    s->req[request].state = SIM_DECODES;
    s->n_decoding++;
    sim_push(s, &s->ranks[rank].joining, request);
    hurry(s, rank);
}

/* Gaps between tokens as a client sees them: a step gives what it gives at once. */
static void count_gaps(sim *s, const sim_rank *k, uint32_t steps)
{
    if (s->now_ns >= (uint64_t)(s->p->warmup_s * 1e9) && k->n_ends > 0 && steps > 0)
        ds_times_add_many(&s->r->sum.gap, (uint64_t)(steps_ns(k, steps) / steps), (uint64_t)steps * k->n_ends);
}

static void give(sim *s, sim_rank *k, uint32_t steps)
{
    count_gaps(s, k, steps);
    k->given += steps * k->tokens;
    k->context += steps * k->tokens * k->n_ends;
}

void sim_rank_step(sim *s, uint32_t rank)
{
    sim_rank *k = &s->ranks[rank];
    uint32_t prompts = k->n_step, ids[SIM_STEP_PROMPTS], rows[SIM_STEP_PROMPTS];

    k->busy_ns += k->end_ns - k->start_ns;
    give(s, k, k->steps);
    k->steps = 1; /* what follows may put more on this rank: it begins with the next step */
    for (uint32_t i = 0; i < prompts; i++) {
        ids[i] = k->step[i];
        rows[i] = k->rows[i];
    }
    k->n_step = 0;
    while (k->n_ends > 0 && k->ends[0].at <= k->given + 1e-9) {
        uint32_t id = take_end(k);
        k->context -= k->n_ends ? (double)s->req[id].ask.input + (k->given - s->req[id].joined) : k->context;
        s->n_decoding--;
        sim_done(s, id);
    }
    for (uint32_t i = 0; i < prompts; i++) {
        sim_request *q = &s->req[ids[i]];
        ds_live_weight w;
        q->pos += rows[i];
        if (q->pos < q->prompt) {
            uint32_t all = q->prompt - q->hit;
            w = (ds_live_weight){ .tokens = (uint64_t)q->ask.input + q->ask.output,
                                  .work_us = (uint64_t)((double)q->work_us * (q->prompt - q->pos) / (all ? all : 1)) };
            ds_live_weigh(s->live, q->live, &w);
            sim_rank_changed(s, rank);
            continue;
        }
        sim_pop(s, &k->prompts[s->p->loads[q->ask.load].priority]); /* they end in order */
        k->n_prompts--;
        sim_prompt_done(s, ids[i]);
    }
    k->running = false;
    start(s, rank);
    if (!k->running)
        sim_rank_rests(s, rank);
}

void sim_rank_clear(sim *s, uint32_t rank)
{
    sim_rank *k = &s->ranks[rank];

    if (k->running && k->n_ends > 0 && k->n_step == 0)
        give(s, k, steps_over(s, k));
    if (k->running)
        k->busy_ns += s->now_ns - k->start_ns;
    for (uint32_t i = 0; i < k->n_ends; i++) {
        sim_request *q = &s->req[k->ends[i].request];
        double got = floor(k->given - q->joined);
        uint32_t before = q->given;
        q->given = got < 1.0 ? q->given : got < q->ask.output ? (uint32_t)got : q->ask.output - 1;
        s->r->sum.output_tokens += q->given - before;
        s->n_decoding--;
    }
    for (uint32_t id = k->joining.head; id != DS_NONE; id = s->req[id].next)
        s->n_decoding--;
    k->n_ends = k->n_prompts = k->n_step = 0;
    k->given = k->context = 0.0;
    k->running = false;
    k->gen++;
    k->joining = (sim_list){ DS_NONE, DS_NONE };
    for (uint32_t l = 0; l < SIM_LEVELS; l++)
        k->prompts[l] = (sim_list){ DS_NONE, DS_NONE };
}
