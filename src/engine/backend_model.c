/* A model on its device: a thread that owns a runner, and runs steps in the order in which they come.
 *
 * A step: operations; drafts for the sequences that verify some; one pass through the model, while other threads make
 * masks for the sequences that have grammars; draws; copies of states. Drafts are kept when they equal the draw at
 * their place. Each output position has one draw from the target distribution, a pure function of the sample's seed
 * and the position: what was drafted only decides how many draws a step gives, so the target distribution holds
 * trivially, and a text has the same tokens with and without drafts. */
#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/pool.h"
#include "engine/backend.h"
#include "engine/masks.h"
#include "engine/rules.h"
#include "kern/device.h"
#include "parallel/comm.h"

typedef struct {
    bool decoding, ended;
    uint32_t pos;
    ds_token next; /* token at pos, not processed */
} live;

_Static_assert(DS_MAX_DRAWS == DS_DEV_MAX_DRAFTS + 1 && (int)DS_MAX_TOP == (int)DS_DEV_MAX_TOP, "a sequence is drawn for in one call");

/* One sequence of the step that runs. */
typedef struct {
    uint32_t row; /* of the step */
    uint32_t pos;
    uint32_t drafts;
    ds_token token[DS_DEV_MAX_DRAFTS + 1];
    float chance[DS_DEV_MAX_DRAFTS]; /* that all drafts up to here are kept, as the confidence head sees it */
    uint32_t logit;                  /* the first row of logits, counted in the step */
    uint32_t to_draw;                /* rows from which is still to be drawn: all of them, or 0 */
    bool held;                       /* its masks aren't there: the step leaves it where it was */
} job;

/* A step waits for late masks for this part of the time that its pass took; where there is nobody else, whom it would
 * hold up, so long. Then their rows are held back and computed again in the next one. */
enum { MASK_PATIENCE = 8, MASK_PATIENCE_ALONE_NS = 20000000 };

typedef struct {
    ds_backend base;
    const ds_model *m;
    ds_runner *run;
    ds_pool *pool;
    ds_backend_size size;

    /* [device] */
    live *slot;
    job *jobs;
    uint32_t n_jobs;
    ds_seq *seqs;
    uint32_t *drafting; /* jobs that draft */
    ds_draft_seq *draft_seqs;
    ds_token *draft_ids;
    float *conf;
    uint32_t *drawing; /* jobs that are drawn for now */
    uint32_t *ahead;   /* slots of the sequences that drafts are made ahead for */
    uint32_t n_ahead;
    live *ahead_of; /* [n_ahead]: what they stand behind */
    ds_masks *masks;
    size_t n_words;       /* of a mask */
    ds_mem mem;           /* stage memory: masks, host buffers */
    uint64_t patience_ns; /* when this step has waited long enough for masks */
    float *prompt_logits; /* [vocab] */
    ds_dev_step *now;
    ds_draft_hook *hook;
    void *hook_ctx;
    uint64_t ended_ns; /* the step before */
    bool alone;        /* there are no other ranks, or not any more */

    /* [mu] */
    pthread_mutex_t mu;
    pthread_cond_t came, gone;
    ds_dev_step *queue[DS_DEV_DEPTH];
    uint32_t n_queue; /* handed over and not waited for */
    uint32_t n_done;  /* of these */
    bool stop, started;
    pthread_t thread;
} model_dev;

static ds_runner_opts runner_opts(const ds_backend_size *s, ds_pool *pool)
{
    return (ds_runner_opts){ .bf16 = s->bf16,
                             .max_rows = s->max_rows,
                             .max_seqs = s->max_seqs,
                             .max_logits = s->max_logits,
                             .max_context = s->max_context,
                             .n_blocks = s->n_blocks,
                             .n_slots = s->n_slots,
                             .n_tails = s->n_tails,
                             .no_drafts = s->no_drafts,
                             .comm = s->comm,
                             .device_logits = true,
                             .pool = pool };
}

static uint32_t drafts_of(const ds_model_layout *lay)
{
    return lay->drafts < DS_DEV_MAX_DRAFTS ? lay->drafts : DS_DEV_MAX_DRAFTS;
}

static uint64_t mask_bytes(const ds_model_layout *lay, const ds_backend_size *size)
{
    return ds_masks_words_bytes(size->max_seqs, size->no_drafts ? 0 : drafts_of(lay), ((size_t)lay->vocab + 31) / 32);
}

bool ds_backend_model_bytes(const ds_model *m, const ds_backend_size *size, ds_runner_size *out)
{
    ds_runner_opts o = runner_opts(size, NULL);
    ds_model_layout lay;

    ds_model_layout_get(m, &lay);
    if (!ds_runner_bytes(m, &o, out) || __builtin_add_overflow(out->total, mask_bytes(&lay, size), &out->total))
        return false;
    out->stage += mask_bytes(&lay, size);
    return true;
}

/* ---- operations -------------------------------------------------------------------------------------------------- */

static void copy_slot(model_dev *d, uint32_t src, uint32_t dst)
{
    ds_runner_copy_slot(d->run, src, dst);
    d->slot[dst] = d->slot[src];
}

static void save_slot(model_dev *d, const ds_dev_op *op)
{
    uint8_t *to = d->base.stage.states + op->dst * d->base.stage.state_bytes;
    const live *l = &d->slot[op->src];

    ds_kv_state_write(to, &(ds_kv_state){ .pos = l->pos,
                                          .next = l->decoding ? l->next : -1,
                                          .decoding = l->decoding,
                                          .ended = l->ended,
                                          .approx = op->approx,
                                          .dec_start = op->dec_start,
                                          .slot_bytes = d->base.slot_bytes });
    ds_runner_save_slot(d->run, op->src, to + DS_KV_STATE_HEADER);
}

static void load_slot(model_dev *d, const ds_dev_op *op)
{
    const uint8_t *from = d->base.stage.states + op->src * d->base.stage.state_bytes;
    ds_kv_state s;
    ds_err err;
    ds_rc rc = ds_kv_state_read(&s, from, &err);

    assert(rc == DS_OK); /* whoever filled the buffer has looked */
    (void)rc;
    ds_runner_load_slot(d->run, op->dst, from + DS_KV_STATE_HEADER);
    d->slot[op->dst] = (live){ .decoding = s.decoding, .ended = s.ended, .pos = s.pos, .next = s.next };
}

static void run_op(model_dev *d, const ds_dev_op *op)
{
    const ds_store_stage *stage = &d->base.stage;

    switch (op->kind) {
    case DS_DEV_RESET:
        ds_runner_reset_slot(d->run, op->dst);
        d->slot[op->dst] = (live){ 0 };
        break;
    case DS_DEV_COPY_SLOT:
        copy_slot(d, op->src, op->dst);
        break;
    case DS_DEV_COPY_BLOCK:
        ds_runner_copy_block(d->run, op->src, op->dst);
        break;
    case DS_DEV_SAVE_BLOCK:
        ds_runner_save_block(d->run, op->src, stage->blocks + op->dst * stage->block_bytes);
        break;
    case DS_DEV_LOAD_BLOCK:
        ds_runner_load_block(d->run, op->dst, stage->blocks + op->src * stage->block_bytes);
        break;
    case DS_DEV_SAVE_SLOT:
        save_slot(d, op);
        break;
    case DS_DEV_LOAD_SLOT:
        load_slot(d, op);
        break;
    }
}

/* ---- drafts ------------------------------------------------------------------------------------------------------ */

/* The drafts of all sequences together stay within the step's rows: the least likely ends go first. */
static void cut_to_budget(model_dev *d, uint32_t budget, float least_chance)
{
    uint32_t total = 0;

    for (uint32_t i = 0; i < d->n_jobs; i++) {
        job *j = &d->jobs[i];
        while (j->drafts > 1 && j->chance[j->drafts - 1] < least_chance)
            j->drafts--;
        total += j->drafts;
    }
    for (; total > budget; total--) {
        job *worst = NULL;
        for (uint32_t i = 0; i < d->n_jobs; i++)
            if (d->jobs[i].drafts > 0 && (!worst || d->jobs[i].chance[d->jobs[i].drafts - 1] < worst->chance[worst->drafts - 1]))
                worst = &d->jobs[i];
        worst->drafts--;
    }
}

/* Draft sequence of a row whose live position is `pos` and has `token`. */
static ds_draft_seq draft_seq(const ds_dev_rows *r, uint32_t pos, ds_token token)
{
    /* what the sample's own random numbers would pick: with equal distributions they are the draws themselves */
    return (ds_draft_seq){ .slot = r->slot,
                           .pos = pos,
                           .token = token,
                           .win_lo = r->sample->dec_start,
                           .how = ds_sampler_how(r->sample->sampler),
                           .index = pos + 1 - r->sample->n_prompt };
}

static void take_drafts(model_dev *d, const ds_dev_step *s, job *j, const ds_token *ids, const float *conf)
{
    const ds_dev_sample *sample = s->rows[j->row].sample;
    float chance = 1.0f;

    for (uint32_t t = 0; t < j->drafts; t++) {
        j->token[t + 1] = ids[t];
        j->chance[t] = chance *= conf[t];
    }
    if (d->hook)
        d->hook(d->hook_ctx, sample->cookie, sample->sample, j->pos - sample->n_prompt, j->token + 1, j->drafts);
}

/* Waits for the drafts that were made ahead, before anything else is put on the device. */
static void fetch_ahead(model_dev *d)
{
    uint64_t begin = ds_now_ns();
    ds_err err;

    if (!d->n_ahead)
        return;
    if (ds_runner_drafted(d->run, d->draft_ids, d->conf, &err) != DS_OK)
        d->n_ahead = 0; /* drafts are never needed */
    d->now->draft_ns += ds_now_ns() - begin;
}

/* Drafts of the step before that stand behind this job's token; -1: none. */
static int64_t ahead_for(const model_dev *d, const ds_dev_rows *r, const job *j)
{
    for (uint32_t k = 0; k < d->n_ahead; k++)
        if (d->ahead[k] == r->slot)
            return d->ahead_of[k].pos == j->pos && d->ahead_of[k].next == j->token[0] ? (int64_t)k : -1;
    return -1;
}

static void make_drafts(model_dev *d, ds_dev_step *s)
{
    uint32_t n = 0, B = d->base.drafts, group;
    uint64_t begin = ds_now_ns();

    for (uint32_t i = 0; i < d->n_jobs; i++) {
        job *j = &d->jobs[i];
        const ds_dev_rows *r = &s->rows[j->row];
        int64_t k = j->drafts ? ahead_for(d, r, j) : -1;
        if (j->drafts == 0)
            continue;
        if (k >= 0) {
            take_drafts(d, s, j, d->draft_ids + k * B, d->conf + k * B);
            continue;
        }
        d->draft_seqs[n] = draft_seq(r, j->pos, j->token[0]);
        d->drafting[n++] = i;
    }
    d->n_ahead = 0;
    group = B && d->size.max_rows / B < d->size.max_seqs ? d->size.max_rows / B : d->size.max_seqs;
    for (uint32_t first = 0; first < n; first += group) {
        uint32_t some = n - first < group ? n - first : group;
        ds_err err;
        ds_rc rc = ds_runner_draft(d->run, d->draft_seqs + first, some, d->draft_ids, d->conf, &err);
        for (uint32_t k = 0; k < some; k++) {
            job *j = &d->jobs[d->drafting[first + k]];
            if (rc == DS_OK)
                take_drafts(d, s, j, d->draft_ids + k * B, d->conf + k * B);
            else /* drafts are never needed; if the model is broken, the rows below will say so */
                j->drafts = 0;
        }
    }
    cut_to_budget(d, s->draft_rows, s->least_chance);
    if (n > 0)
        s->draft_ns += ds_now_ns() - begin;
}

/* ---- masks ------------------------------------------------------------------------------------------------------- */

/* Questions go out when the drafts are known, so that they are answered during the pass. */
static void ask_for_masks(model_dev *d, const ds_dev_step *s)
{
    for (uint32_t i = 0; i < d->n_jobs; i++) {
        job *j = &d->jobs[i];
        const ds_dev_rows *r = &s->rows[j->row];
        if (r->sample->grammar && (r->decode || r->draw))
            ds_masks_ask(d->masks, r->slot, r->sample, j->token + 1, &j->drafts);
    }
}

static void dev_forget(ds_backend *b, ds_dev_sample *s, uint32_t slot)
{
    (void)s;
    ds_masks_forget(((model_dev *)b)->masks, slot);
}

/* The masks of a job's rows. False: they aren't there yet. */
static bool masks_of(model_dev *d, job *j, ds_sample_rows *q)
{
    const ds_dev_rows *r = &d->now->rows[j->row];
    uint32_t rows = 0;

    if (ds_masks_poll(d->masks, r->slot, &q->allowed, &rows) != DS_MASKS_THERE)
        return false;
    q->allowed_ld = d->n_words;
    if (q->n > rows)
        q->n = rows;
    return true;
}

/* A row that is held back is computed again as a decoding one, of a token. */
static bool can_be_held(const model_dev *d, const job *j)
{
    const ds_dev_rows *r = &d->now->rows[j->row];

    return r->decode || !r->image || !r->image[r->n - 1];
}

/* Nothing can be drawn until more masks are there: waits for one, or holds back who waits. */
static void wait_for_masks(model_dev *d)
{
    bool others = false, late = false;

    for (uint32_t i = 0; i < d->n_jobs; i++) {
        const job *j = &d->jobs[i];
        others = others || (!j->to_draw && !j->held);
        late = late || (j->to_draw && can_be_held(d, j));
    }
    if (ds_masks_wait(d->masks, others && late ? d->patience_ns : ds_now_ns() + MASK_PATIENCE_ALONE_NS))
        return;
    for (uint32_t i = 0; i < d->n_jobs; i++) {
        job *j = &d->jobs[i];
        if (!j->to_draw || !can_be_held(d, j))
            continue;
        j->held = true;
        j->to_draw = 0;
    }
}

/* ---- draws ------------------------------------------------------------------------------------------------------- */

/* Where the first row that is drawn from stands. */
static uint32_t first_draw_pos(const ds_dev_rows *r, const job *j)
{
    return r->decode ? j->pos : r->pos + r->n - 1;
}

/* A token of the output, for the masks behind it. */
static void remember(ds_dev_sample *s, ds_token token)
{
    uint32_t most = s->rules ? ds_rules_memory(s->rules) : 0;

    if (s->grammar)
        s->unread[s->n_unread++] = token;
    if (s->n_tail == most && most)
        memmove(s->tail, s->tail + 1, --s->n_tail * sizeof *s->tail);
    if (most)
        s->tail[s->n_tail++] = token;
}

/* What the rules leave of each row's mask, or of all tokens where there is none. */
static void apply_rules(model_dev *d, const job *j, ds_sample_rows *q, uint32_t *words)
{
    const ds_dev_sample *s = d->now->rows[j->row].sample;
    ds_token tail[DS_RULES_MAX_LENGTH + DS_DEV_MAX_DRAFTS];
    uint32_t n = s->n_tail;

    if (n)
        memcpy(tail, s->tail, n * sizeof *tail);
    for (uint32_t i = 0; i < q->n; i++) {
        if (i > 0)
            tail[n++] = j->token[i];
        ds_rules_mask(s->rules, tail, n, q->allowed != NULL, words + i * d->n_words);
    }
    q->allowed = words;
    q->allowed_ld = d->n_words;
}

/* What is drawn for a job. False: not yet. */
static bool ask(model_dev *d, job *j, ds_sample_rows *q)
{
    const ds_dev_rows *r = &d->now->rows[j->row];
    const ds_dev_sample *s = r->sample;

    *q = (ds_sample_rows){ .how = *ds_sampler_how(s->sampler),
                           .index = first_draw_pos(r, j) + 1 - s->n_prompt,
                           .row = j->logit,
                           .n = j->to_draw,
                           .n_top = s->n_top,
                           .logprobs = s->logprobs };
    if (s->grammar && !masks_of(d, j, q))
        return false;
    for (uint32_t i = 0; i + 1 < q->n; i++)
        q->draft[i] = j->token[i + 1];
    if (s->rules)
        apply_rules(d, j, q, ds_masks_words(d->masks, r->slot));
    return true;
}

static void take_draws(const model_dev *d, job *j, const ds_drawn *drawn, const ds_logprob *top)
{
    const ds_dev_rows *r = &d->now->rows[j->row];
    ds_dev_sample *s = r->sample;
    ds_dev_out *out = &d->now->out[j->row];

    for (uint32_t i = 0; i < drawn->n && !out->ended; i++) {
        uint32_t k = out->n_tokens++;
        out->token[k] = drawn->token[i];
        out->logprob[k] = drawn->logprob[i];
        for (uint32_t t = 0; t < s->n_top; t++)
            out->top[k * DS_DEV_MAX_TOP + t] = (ds_gen_logprob){ top[i * DS_MAX_TOP + t].id, top[i * DS_MAX_TOP + t].logprob };
        remember(s, drawn->token[i]);
        out->ended = (drawn->stopped && i + 1 == drawn->n) || first_draw_pos(r, j) + k + 2 >= s->limit;
    }
    if (drawn->none || drawn->n == 0)
        out->rc = DS_E_ARG;
}

/* Log-probabilities of the prompt's tokens, each from the row in front of it. Rare, and so done by the host, on
 * copies. */
static ds_rc score_prompt(model_dev *d, const ds_dev_rows *r, uint32_t first)
{
    ds_dev_sample *s = r->sample;
    uint32_t V = d->base.vocab, top = s->n_prompt_top;
    const float *logits = d->prompt_logits;
    ds_logprob best[DS_DEV_MAX_TOP];

    for (uint32_t i = 0; i < r->n && r->pos + i + 1 < s->n_prompt; i++) {
        uint32_t at = r->pos + i + 1, id = (uint32_t)s->prompt[at], rank = 1;
        ds_rc rc;
        if (id >= V) /* inside an image */
            continue;
        rc = ds_runner_read_logits(d->run, first + i, d->prompt_logits, NULL);
        if (rc != DS_OK)
            return rc;
        ds_logprobs(logits, V, (ds_token)id, &s->prompt_lp[at], best, top);
        for (uint32_t t = 0; t < V; t++)
            rank += logits[t] > logits[id];
        s->prompt_rank[at] = rank;
        for (uint32_t t = 0; t < top; t++)
            s->prompt_top[(size_t)at * top + t] = (ds_gen_logprob){ best[t].id, best[t].logprob };
    }
    return DS_OK;
}

/* What a job's n logits, from row `first` of the step's on, are for. */
static void use_logits(const model_dev *d, job *j, uint32_t first, uint32_t n)
{
    const ds_dev_rows *r = &d->now->rows[j->row];
    bool scored = !r->decode && r->all_logits;

    j->logit = scored ? first + n - 1 : first;
    j->to_draw = scored ? r->draw : n;
}

/* Drafts for the next step, made while the host looks at what this one drew: on a device that works beside it, and
 * where all draws are made at once, for a second round needs the logits, and drafts take their place. */
static void draft_ahead(model_dev *d, const job *jobs, uint32_t n_jobs, uint32_t n)
{
    uint32_t B = d->base.drafts;
    bool some = false, all = d->base.device->async && n == n_jobs && n * B <= d->size.max_rows;
    ds_err err;

    for (uint32_t i = 0; i < n_jobs && all; i++) {
        const ds_dev_rows *r = &d->now->rows[jobs[i].row];
        uint32_t pos = first_draw_pos(r, &jobs[i]) + 1; /* of the first token drawn */
        some = some || (r->decode && r->drafts);
        all = !(!r->decode && r->all_logits);
        d->draft_seqs[i] = draft_seq(r, pos, 0);
        d->ahead[i] = r->slot;
    }
    if (some && all && ds_runner_draft_ahead(d->run, d->draft_seqs, n, &err) == DS_OK)
        d->n_ahead = n;
}

/* One round of draws, of all jobs whose masks are there. 0: of none; *late: masks of some aren't there. */
static uint32_t put_draws(model_dev *d, job *jobs, uint32_t n_jobs, bool *late)
{
    ds_sample_rows *rows = ds_runner_sample_rows(d->run);
    uint32_t n = 0;

    *late = false;
    for (uint32_t i = 0; i < n_jobs; i++) {
        if (!jobs[i].to_draw)
            continue;
        if (ask(d, &jobs[i], &rows[n]))
            d->drawing[n++] = i;
        else
            *late = true;
    }
    if (n > 0)
        ds_runner_sample(d->run, n);
    return n;
}

static void take_round(model_dev *d, job *jobs, uint32_t n)
{
    const ds_logprob *top;
    const ds_drawn *drawn = ds_runner_drawn(d->run, &top);

    for (uint32_t i = 0; i < n; i++) {
        job *j = &jobs[d->drawing[i]];
        const ds_dev_rows *r = &d->now->rows[j->row];
        take_draws(d, j, &drawn[i], top + (size_t)i * DS_MAX_DRAWS * DS_MAX_TOP);
        if (r->sample->grammar)
            ds_masks_used(d->masks, r->slot);
        j->to_draw = 0;
    }
}

/* Jobs from number `kept` on left the step that ran: they are as good as never begun. */
static void forget(model_dev *d, ds_dev_step *s, uint32_t kept)
{
    s->cut = s->cut || kept < d->n_jobs;
    while (d->n_jobs > kept)
        s->out[d->jobs[--d->n_jobs].row].skipped = true;
}

/* Rows of n jobs through the model, and tokens from their logits. The host waits once, but for masks that
 * come late and for scores. A failure: nothing was drawn. */
static ds_rc pass(model_dev *d, job *jobs, const ds_seq *seqs, uint32_t n_jobs, ds_err *err)
{
    uint64_t begin = ds_now_ns(), now;
    uint32_t logits = 0, n;
    bool late;
    ds_rc rc = ds_runner_step(d->run, seqs, n_jobs, NULL, err);

    if (rc != DS_OK)
        return rc;
    if (n_jobs == d->n_jobs)
        forget(d, d->now, ds_runner_kept(d->run));
    n_jobs = ds_runner_kept(d->run);
    for (uint32_t i = 0; i < n_jobs; i++) {
        use_logits(d, &jobs[i], logits, seqs[i].n_logits);
        logits += seqs[i].n_logits;
    }
    n = put_draws(d, jobs, n_jobs, &late);
    if (n > 0)
        draft_ahead(d, jobs, n_jobs, n);
    rc = ds_runner_wait(d->run, err);
    if (rc != DS_OK)
        return rc;
    now = ds_now_ns();
    d->patience_ns = now + (now - begin) / MASK_PATIENCE;
    if (n > 0)
        take_round(d, jobs, n);
    logits = 0;
    for (uint32_t i = 0; i < n_jobs; i++) {
        const ds_dev_rows *r = &d->now->rows[jobs[i].row];
        if (!r->decode && r->all_logits && d->now->out[jobs[i].row].rc == DS_OK)
            d->now->out[jobs[i].row].rc = score_prompt(d, r, logits);
        logits += seqs[i].n_logits;
    }
    while (rc == DS_OK && ((n = put_draws(d, jobs, n_jobs, &late)) > 0 || late)) {
        if (n == 0) {
            wait_for_masks(d);
            continue;
        }
        rc = ds_runner_wait(d->run, NULL);
        if (rc == DS_OK)
            take_round(d, jobs, n);
    }
    for (uint32_t i = 0; i < n_jobs && rc != DS_OK; i++)
        if (jobs[i].to_draw)
            d->now->out[jobs[i].row].rc = rc;
    return DS_OK;
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

static ds_seq rows_of(const model_dev *d, const job *j)
{
    const ds_dev_rows *r = &d->now->rows[j->row];
    ds_seq q = { .slot = r->slot, .tail = DS_NONE, .blocks = r->blocks, .n_blocks = r->n_blocks, .pos = j->pos };

    if (r->decode) {
        q.n = 1 + j->drafts;
        q.tokens = j->token;
        q.dec_from = j->pos;
        q.n_logits = q.n;
        return q;
    }
    q.gone = &r->sample->stopped;
    q.n = r->n;
    q.tail = r->tail == DS_NONE ? DS_NONE : r->tail;
    q.tokens = r->tokens;
    q.image = r->image;
    q.before = r->n_before == DS_NONE ? NULL : r->before;
    q.enc_win = r->enc_win;
    q.store_from = r->store_from;
    q.dec_from = r->dec_from;
    q.dec_win = r->dec_win;
    q.n_logits = r->all_logits ? r->n : r->draw;
    return q;
}

static void collect_jobs(model_dev *d, ds_dev_step *s)
{
    d->n_jobs = 0;
    for (uint32_t i = 0; i < s->n_rows; i++) {
        const ds_dev_rows *r = &s->rows[i];
        const live *l = &d->slot[r->slot];
        ds_dev_out *out = &s->out[i];
        job *j = &d->jobs[d->n_jobs];
        out->n_tokens = out->drafted = 0;
        out->ended = out->saved = false;
        out->rc = DS_OK;
        out->skipped = atomic_load_explicit(&r->sample->stopped, memory_order_relaxed) || (r->decode && (!l->decoding || l->ended));
        if (out->skipped)
            continue;
        j->row = i;
        j->to_draw = 0;
        j->held = false;
        j->drafts = 0;
        j->pos = r->decode ? l->pos : r->pos;
        if (r->decode) {
            uint32_t room = r->sample->limit - l->pos - 2;
            j->token[0] = l->next;
            j->drafts = r->drafts < room ? r->drafts : room;
        }
        d->n_jobs++;
    }
}

/* All sequences in one pass; if that fails each alone, so that only the guilty ones fail. */
static void forward(model_dev *d, ds_dev_step *s)
{
    uint32_t n;
    ds_err err;
    ds_rc rc;

    for (uint32_t i = 0; i < d->n_jobs; i++)
        d->seqs[i] = rows_of(d, &d->jobs[i]);
    n = d->n_jobs;
    rc = pass(d, d->jobs, d->seqs, n, &err);
    for (uint32_t i = 0; i < d->n_jobs && rc != DS_OK; i++) {
        ds_dev_out *out = &s->out[d->jobs[i].row];
        ds_rc own = rc;
        if (n > 1) {
            d->seqs[i].gone = NULL; /* to the end, each: rare, and the order of jobs stays */
            fetch_ahead(d);
            d->n_ahead = 0;
            own = pass(d, &d->jobs[i], &d->seqs[i], 1, &err);
        }
        if (own != DS_OK)
            out->rc = own;
    }
}

static void update(model_dev *d, ds_dev_step *s, const job *j)
{
    const ds_dev_rows *r = &s->rows[j->row];
    ds_dev_out *out = &s->out[j->row];
    live *l = &d->slot[r->slot];
    uint32_t n;

    if (r->decode) {
        n = out->n_tokens;
        out->drafted = j->held ? 0 : j->drafts;
        if (n > 0)
            l->next = out->token[n - 1];
    } else {
        n = out->rc == DS_OK || out->n_tokens ? r->n - j->held : 0;
        l->next = j->held ? r->tokens[n] : r->draw && out->n_tokens ? out->token[0] : r->begin;
        l->decoding = r->draw || r->begin >= 0;
        l->ended = false;
    }
    l->pos = j->pos + n;
    l->ended = out->ended || out->rc != DS_OK;
    out->pos = l->pos;
    n = r->decode ? 1 + j->drafts : r->n;
    s->q += n;
    s->qc += (double)n * j->pos;
    s->qq += (double)n * n;
    if (r->save_to != DS_NONE && !j->held && l->pos / DS_KV_BLOCK_TOKENS > j->pos / DS_KV_BLOCK_TOKENS) {
        copy_slot(d, r->slot, r->save_to);
        out->saved = true;
    }
}

static void run_step(model_dev *d, ds_dev_step *s)
{
    uint64_t begin = ds_now_ns();
    bool staged = false;

    s->cut = false;
    s->q = s->qc = s->qq = 0.0;
    s->draft_ns = 0;
    s->idle_ns = s->after_work && d->ended_ns ? begin - d->ended_ns : 0;
    d->now = s;
    fetch_ahead(d);
    for (uint32_t i = 0; i < s->n_ops; i++) {
        run_op(d, &s->ops[i]);
        staged = staged || s->ops[i].kind >= DS_DEV_SAVE_BLOCK;
    }
    collect_jobs(d, s);
    make_drafts(d, s);
    ask_for_masks(d, s);
    if (d->n_jobs > 0)
        forward(d, s);
    for (uint32_t i = 0; i < d->n_jobs; i++)
        update(d, s, &d->jobs[i]);
    for (uint32_t k = 0; k < d->n_ahead; k++)
        d->ahead_of[k] = d->slot[d->ahead[k]];
    s->ops_rc = staged ? ds_runner_staged(d->run, NULL) : DS_OK; /* rows have waited for theirs, if there were any */
    d->ended_ns = ds_now_ns();
    s->run_ns = d->ended_ns - begin;
}

/* ---- the thread -------------------------------------------------------------------------------------------------- */

/* Among other ranks: takes part in their steps until there is one of this rank's, or for good once it stops. [mu] is
 * held, but not meanwhile. */
static void attend(model_dev *d)
{
    ds_comm *c = d->size.comm;
    bool stop = d->stop;
    ds_err err;

    pthread_mutex_unlock(&d->mu);
    if (stop)
        c->fn->leave(c);
    d->alone = ds_runner_attend(d->run, &err) != DS_E_AGAIN; /* all have left, or are lost, which steps will say */
    pthread_mutex_lock(&d->mu);
}

static void *device(void *arg)
{
    model_dev *d = arg;

    pthread_mutex_lock(&d->mu);
    for (;;) {
        ds_dev_step *s;
        while (d->n_done == d->n_queue && !(d->stop && d->alone)) {
            if (d->alone)
                pthread_cond_wait(&d->came, &d->mu);
            else
                attend(d);
        }
        if (d->n_done == d->n_queue)
            break;
        s = d->queue[d->n_done];
        pthread_mutex_unlock(&d->mu);
        run_step(d, s);
        pthread_mutex_lock(&d->mu);
        d->n_done++;
        pthread_cond_signal(&d->gone);
    }
    pthread_mutex_unlock(&d->mu);
    return NULL;
}

static void dev_submit(ds_backend *b, ds_dev_step *s)
{
    model_dev *d = (model_dev *)b;

    pthread_mutex_lock(&d->mu);
    assert(d->n_queue < DS_DEV_DEPTH);
    d->queue[d->n_queue++] = s;
    pthread_cond_signal(&d->came);
    pthread_mutex_unlock(&d->mu);
    if (d->size.comm)
        d->size.comm->fn->wake(d->size.comm);
}

static void dev_wait(ds_backend *b, ds_dev_step *s)
{
    model_dev *d = (model_dev *)b;

    pthread_mutex_lock(&d->mu);
    while (d->n_done == 0)
        pthread_cond_wait(&d->gone, &d->mu);
    assert(d->queue[0] == s);
    (void)s;
    d->n_queue--;
    d->n_done--;
    for (uint32_t i = 0; i < d->n_queue; i++)
        d->queue[i] = d->queue[i + 1];
    pthread_mutex_unlock(&d->mu);
}

static void dev_destroy(ds_backend *b)
{
    model_dev *d = (model_dev *)b;

    if (d->started) {
        pthread_mutex_lock(&d->mu);
        d->stop = true;
        pthread_cond_signal(&d->came);
        pthread_mutex_unlock(&d->mu);
        if (d->size.comm)
            d->size.comm->fn->wake(d->size.comm);
        pthread_join(d->thread, NULL);
    }
    pthread_mutex_destroy(&d->mu);
    pthread_cond_destroy(&d->came);
    pthread_cond_destroy(&d->gone);
    ds_masks_destroy(d->masks);
    ds_mem_free(&d->mem);
    free(d->prompt_logits);
    free(d->drawing);
    free(d->ahead);
    free(d->ahead_of);
    free(d->slot);
    free(d->jobs);
    free(d->seqs);
    free(d->drafting);
    free(d->draft_seqs);
    free(d->draft_ids);
    free(d->conf);
    ds_runner_destroy(d->run);
    free(d);
}

void ds_backend_model_hook(ds_backend *b, ds_draft_hook *fn, void *ctx)
{
    model_dev *d = (model_dev *)b;
    d->hook = fn;
    d->hook_ctx = ctx;
}

static ds_rc take_stage(model_dev *d, ds_err *err)
{
    ds_store_stage *s = &d->base.stage;

    *s = (ds_store_stage){ .n_blocks = d->size.n_stage_blocks,
                           .n_states = d->size.n_stage_states,
                           .block_bytes = d->base.block_bytes,
                           .state_bytes = DS_KV_STATE_HEADER + d->base.slot_bytes };
    if (s->n_blocks)
        s->blocks = ds_mem_take(&d->mem, DS_MEM_STAGE, s->n_blocks * s->block_bytes, NULL);
    if (s->n_states)
        s->states = ds_mem_take(&d->mem, DS_MEM_STAGE, s->n_states * s->state_bytes, NULL);
    if ((s->n_blocks && !s->blocks) || (s->n_states && !s->states))
        return ds_fail(err, DS_E_NOMEM, "engine: out of memory for %u blocks of stage memory", s->n_blocks);
    return DS_OK;
}

static ds_rc take(model_dev *d, const ds_model_layout *lay, ds_err *err)
{
    uint32_t n = d->size.max_seqs, *words;
    ds_rc rc;

    d->slot = calloc(d->size.n_slots, sizeof *d->slot);
    d->jobs = calloc(n, sizeof *d->jobs);
    d->seqs = calloc(n, sizeof *d->seqs);
    d->drafting = calloc(n, sizeof *d->drafting);
    d->drawing = calloc(n, sizeof *d->drawing);
    d->ahead = calloc(n, sizeof *d->ahead);
    d->ahead_of = calloc(n, sizeof *d->ahead_of);
    d->draft_seqs = calloc(n, sizeof *d->draft_seqs);
    d->draft_ids = calloc((size_t)n * (DS_DEV_MAX_DRAFTS + 1), sizeof *d->draft_ids);
    d->conf = calloc((size_t)n * (DS_DEV_MAX_DRAFTS + 1), sizeof *d->conf);
    d->prompt_logits = calloc(d->base.vocab, sizeof *d->prompt_logits);
    words = ds_mem_take(&d->mem, DS_MEM_STAGE, mask_bytes(lay, &d->size), NULL);
    if (!d->slot || !d->jobs || !d->seqs || !d->drafting || !d->drawing || !d->ahead || !d->ahead_of || !d->draft_seqs || !d->draft_ids ||
        !d->conf || !d->prompt_logits || !words)
        return ds_fail(err, DS_E_NOMEM, "engine: out of memory for %u sequences", n);
    rc = take_stage(d, err);
    return rc == DS_OK ? ds_masks_create(&d->masks, n, d->size.no_drafts ? 0 : drafts_of(lay), words, d->n_words, err) : rc;
}

ds_rc ds_backend_model_create(ds_backend **out, const ds_model *m, ds_pool *pool, const ds_backend_size *size, ds_err *err)
{
    static const ds_backend_fns fns = { dev_submit, dev_wait, dev_destroy, dev_forget };
    model_dev *d = calloc(1, sizeof *d);
    ds_runner_opts ro = runner_opts(size, pool);
    ds_model_layout lay;
    ds_rc rc;
    int started;

    *out = NULL;
    if (!d)
        return ds_fail(err, DS_E_NOMEM, "engine: out of memory");
    ds_model_layout_get(m, &lay);
    d->m = m;
    d->pool = pool;
    d->size = *size;
    d->alone = !size->comm;
    d->mem.d = ds_model_device(m);
    d->n_words = ((size_t)lay.vocab + 31) / 32;
    d->base = (ds_backend){ .fn = &fns,
                            .device = ds_model_device(m),
                            .vocab = lay.vocab,
                            .drafts = drafts_of(&lay),
                            .window = lay.window,
                            .rollback = lay.rollback,
                            .lookback = lay.lookback,
                            .max_context = size->max_context,
                            .block_bytes = lay.block_bytes,
                            .slot_bytes = lay.slot_bytes };
    pthread_mutex_init(&d->mu, NULL);
    pthread_cond_init(&d->came, NULL);
    pthread_cond_init(&d->gone, NULL);
    rc = lay.drafts > DS_DEV_MAX_DRAFTS && !size->no_drafts
             ? ds_fail(err, DS_E_ARG, "engine: %u drafts a block, at most %d", lay.drafts, DS_DEV_MAX_DRAFTS)
             : DS_OK;
    if (rc == DS_OK && lay.lookback > DS_DEV_LOOKBACK)
        rc = ds_fail(err, DS_E_ARG, "engine: Engram looks %u tokens back, at most %d", lay.lookback, DS_DEV_LOOKBACK);
    if (rc == DS_OK)
        rc = take(d, &lay, err);
    if (rc == DS_OK)
        rc = ds_runner_create(&d->run, m, &ro, err);
    if (rc == DS_OK && (started = pthread_create(&d->thread, NULL, device, d)) != 0)
        rc = ds_fail(err, DS_E_IO, "engine: the device's thread can't start: %s", strerror(started));
    if (rc != DS_OK) {
        dev_destroy(&d->base);
        return rc;
    }
    d->started = true;
    pthread_setname_np(d->thread, "ds-device");
    *out = &d->base;
    return DS_OK;
}
