/* From the queue to a seat and back: waiting lists, prefix hits, admission by memory, preemption. */
#include <assert.h>
#include <string.h>

#include "engine/engine_internal.h"
#include "policy/queue.h"

/* Where a replay would do, a prompt is cut for the sake of a saved state only if it's long enough for a step more
 * not to matter. */
enum { WORTH_A_CUT = 1024 };

/* ---- waiting lists ----------------------------------------------------------------------------------------------- */

void ds_eng_enqueue(ds_eng_loop *e, ds_eng_sample *s)
{
    uint32_t l = s->level;
    ds_eng_sample *after = e->level_tail[l];

    while (after && after->order > s->order) /* new ones belong here; only who comes back after preemption walks to the front */
        after = after->prev;
    s->state = S_WAITING;
    s->queued_us = e->now_us;
    s->prev = after;
    s->next = after ? after->next : e->level_head[l];
    if (s->next)
        s->next->prev = s;
    else
        e->level_tail[l] = s;
    if (after)
        after->next = s;
    else
        e->level_head[l] = s;
    e->n_waiting++;
}

void ds_eng_dequeue(ds_eng_loop *e, ds_eng_sample *s)
{
    assert(s->state == S_WAITING); /* whoever is FETCHING lets go first */
    if (s->prev)
        s->prev->next = s->next;
    else
        e->level_head[s->level] = s->next;
    if (s->next)
        s->next->prev = s->prev;
    else
        e->level_tail[s->level] = s->prev;
    s->prev = s->next = NULL;
    e->n_waiting--;
}

/* ---- giving back ------------------------------------------------------------------------------------------------- */

static void release_blocks(ds_eng_loop *e, ds_eng_sample *s)
{
    while (s->n_blocks > 0)
        ds_blocks_unref(&e->blocks, s->blocks[--s->n_blocks]);
    s->shared_partial = false;
}

static void release_parked(ds_eng_loop *e, ds_eng_sample *s)
{
    if (s->parked == DS_NONE)
        return;
    ds_states_unpin(&e->states, s->parked);
    s->parked = DS_NONE;
    e->n_parked--;
}

static void release_seat(ds_eng_loop *e, ds_eng_sample *s)
{
    if (s->seat == DS_NONE)
        return;
    if (s->dev.grammar)
        e->dev->fn->forget(e->dev, &s->dev, s->seat);
    ds_states_give_seat(&e->states, s->seat);
    s->seat = DS_NONE;
    e->running[s->run_index] = e->running[--e->n_running];
    e->running[s->run_index]->run_index = s->run_index;
}

void ds_eng_release(ds_eng_loop *e, ds_eng_sample *s)
{
    assert(s->busy_until <= e->done);
    ds_eng_let_go(e, s);
    release_blocks(e, s);
    release_parked(e, s);
    release_seat(e, s);
    if (s->tail != DS_NONE)
        e->tail[e->n_free_tails++] = s->tail;
    s->tail = DS_NONE;
    if (s->fork_state != DS_NONE)
        ds_states_unpin(&e->states, s->fork_state);
    s->fork_state = DS_NONE;
    s->fork = false;
}

/* Back to the queue with nothing but its tokens. */
static void restart(ds_eng_loop *e, ds_eng_sample *s)
{
    ds_eng_release(e, s);
    e->turn.recomputed_tokens += s->pos;
    s->pos = s->pos_max = 0;
    s->n_published = 0;
    s->fetch_over = s->fetch_waits = false;
    s->fetch_until_us = 0;
    ds_eng_enqueue(e, s);
}

void ds_eng_settle(ds_eng_loop *e, ds_eng_step *st)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < e->n_prefilling; i++)
        if (e->prefilling[i]->state == S_PROMPT)
            e->prefilling[kept++] = e->prefilling[i];
    e->n_prefilling = kept;
    for (uint32_t i = 0; i < e->n_running;) {
        ds_eng_sample *s = e->running[i];
        uint32_t state;
        i++;
        if (s->state != S_LEAVING || s->busy_until > e->done || (s->then == THEN_PARK && !st))
            continue;
        switch (s->then) {
        case THEN_END:
            ds_eng_release(e, s);
            ds_eng_gone(e, s);
            break;
        case THEN_PARK:
            state = ds_eng_take_state(e, st);
            if (state != DS_NONE) {
                ds_eng_op(st, DS_DEV_COPY_SLOT, s->seat, ds_states_slot(&e->states, state));
                s->busy_until = st->dev.no;
                s->parked = state;
                s->then = THEN_PARKED;
                e->n_parked++;
                continue;
            }
            e->turn.preempted_recomputed++;
            restart(e, s);
            break;
        case THEN_RECOMPUTE:
            restart(e, s);
            break;
        case THEN_PARKED:
            release_seat(e, s);
            ds_eng_enqueue(e, s);
            break;
        }
        i--; /* another one stands there now */
    }
}

/* ---- preemption -------------------------------------------------------------------------------------------------- */

/* Is a to be sent away rather than b? */
static bool worse(const ds_eng_sample *a, const ds_eng_sample *b)
{
    return ds_queue_worse(&(ds_queue_place){ a->level, a->order, a->index }, &(ds_queue_place){ b->level, b->order, b->index });
}

static ds_eng_sample *worst_parked(const ds_eng_loop *e)
{
    ds_eng_sample *w = NULL;

    for (uint32_t l = 0; e->n_parked > 0 && l < N_LEVELS; l++)
        for (ds_eng_sample *s = e->level_head[l]; s; s = s->next)
            if (s->parked != DS_NONE && (!w || worse(s, w)))
                w = s;
    return w;
}

/* The worst one that holds what came for it from the store and isn't `but`. */
static ds_eng_sample *worst_holder(const ds_eng_loop *e, const ds_eng_sample *but)
{
    ds_eng_sample *w = NULL;

    for (uint32_t l = 0; e->n_holding > 0 && l < N_LEVELS; l++)
        for (ds_eng_sample *s = e->level_head[l]; s; s = s->next)
            if (s->holds && s != but && (!w || worse(s, w)))
                w = s;
    return w;
}

/* What came for it from the store is needed elsewhere. It may still be there when its turn comes. */
static void take_back(ds_eng_loop *e, ds_eng_sample *s)
{
    ds_eng_let_go(e, s);
    s->fetch_over = true;
}

static void send_away(ds_eng_loop *e, ds_eng_sample *s, ds_eng_then then)
{
    s->state = S_LEAVING;
    s->then = then;
    if (then == THEN_PARK) {
        e->turn.preempted_parked++;
        return;
    }
    e->turn.preempted_recomputed++;
    if (s->busy_until <= e->done)
        release_blocks(e, s); /* the rest at the next turn */
}

/* A parked one loses its state and blocks, and stays in the queue. */
static void unpark(ds_eng_loop *e, ds_eng_sample *s)
{
    e->turn.preempted_recomputed++;
    e->turn.recomputed_tokens += s->pos;
    release_blocks(e, s);
    release_parked(e, s);
    s->pos = s->pos_max = 0;
    s->n_published = 0;
    s->fetch_over = s->fetch_waits = false;
    s->fetch_until_us = 0;
}

bool ds_eng_make_room(ds_eng_loop *e, const ds_eng_sample *for_whom)
{
    ds_eng_sample *w = NULL, *p = worst_holder(e, NULL);

    if (p) { /* who only waits goes first */
        take_back(e, p);
        return true;
    }
    for (uint32_t i = 0; i < e->n_running; i++) {
        ds_eng_sample *s = e->running[i];
        if (s->state == S_LEAVING) {
            if (s->n_blocks > 0 && s->then != THEN_PARK && s->then != THEN_PARKED)
                return false; /* somebody's blocks come back soon */
            continue;
        }
        if (!w || worse(s, w))
            w = s;
    }
    p = worst_parked(e);
    if (p && (!w || worse(p, w))) {
        unpark(e, p);
        return true;
    }
    if (!w)
        return false;
    send_away(e, w, THEN_RECOMPUTE);
    return w != for_whom && ds_blocks_available(&e->blocks) > 0;
}

/* A seat for somebody of a better priority than a running one. Who was admitted has at least one token before it is
 * sent away again, so that seats don't change hands without end; and what it won by waiting stays won. */
static void preempt_for(ds_eng_loop *e, const ds_eng_sample *head)
{
    ds_eng_sample *w = NULL;

    if (head->req->fork_pending && e->states.n_pinned + 2 > e->states.n_saved)
        return; /* it couldn't begin: there is no state to reserve besides the one for who leaves */

    for (uint32_t i = 0; i < e->n_running; i++) {
        if (e->running[i]->state == S_LEAVING)
            return;
        if (e->running[i]->state == S_DECODE && e->running[i]->n_out > e->running[i]->admit_out && (!w || worse(e->running[i], w)))
            w = e->running[i];
    }
    if (w && w->run_level > head->level)
        send_away(e, w, THEN_PARK);
}

/* ---- prefix hits ------------------------------------------------------------------------------------------------- */

typedef struct {
    ds_hit_kind kind;
    uint32_t pos;   /* tokens that need not be computed */
    uint32_t state; /* DS_HIT_STATE; DS_NONE: it is in the store */
    bool approx;    /* what is found there rests on a replay, or is one; of what is in the store nobody knows yet */
    bool exact;     /* only what is exact was looked at */
    uint32_t there; /* blocks that are there, whatever the hit makes of them */
    uint32_t most;  /* that could be of use */
} found;

typedef enum { DEVICE_ONLY, AND_STORED_BLOCKS, AND_STORED_STATES } where;

uint32_t ds_eng_device_block(const ds_eng_loop *e, const ds_eng_sample *s, uint32_t i, bool exact)
{
    uint32_t b = ds_blocks_find(&e->blocks, &s->keys[i]);
    return b != DS_NONE && exact && e->blocks.approx[b] ? DS_NONE : b;
}

/* How many of a sample's first `most` blocks are there; of these, in front of the first approximate one, *n_exact. */
static uint32_t blocks_there(const ds_eng_loop *e, const ds_eng_sample *s, uint32_t most, bool exact, where look, uint32_t *n_exact)
{
    uint32_t have = 0, promised = 0; /* promised: blocks that the store has, up to here */

    *n_exact = most;
    for (; have < most; have++) {
        uint32_t block = ds_eng_device_block(e, s, have, exact);
        if (block == DS_NONE && have >= promised && look != DEVICE_ONLY)
            promised = have + e->store->fn->match(e->store->ctx, &s->keys[have], most - have, exact);
        if (block == DS_NONE && have >= promised)
            break;
        if (block != DS_NONE && e->blocks.approx[block] && *n_exact > have)
            *n_exact = have;
    }
    return have;
}

typedef struct {
    ds_eng_loop *e;
    const ds_eng_sample *s;
    where look;
    bool exact;
    uint64_t now_us;
    uint32_t state; /* of the last yes; DS_NONE: it is in the store */
    bool approx;
} state_search;

/* Is there a saved state behind the block that ends at pos? One on the device goes before one in the store. */
static bool has_state(void *ctx, uint32_t pos, bool own)
{
    state_search *x = ctx;
    const ds_eng_loop *e = x->e;
    const ds_key *key = &x->s->keys[pos / DS_KV_BLOCK_TOKENS - 1];
    uint32_t i = ds_states_find(&x->e->states, key, x->now_us), dec_start;

    x->state = i;
    x->approx = i != DS_NONE && e->states.approx[i];
    if (i != DS_NONE && !(x->exact && x->approx) && !(own && e->states.dec_start[i] != x->s->dev.dec_start))
        return true;
    x->state = DS_NONE;
    x->approx = false; /* of what is in the store nobody knows yet */
    return x->look == AND_STORED_STATES && e->store->fn->match_state(e->store->ctx, key, x->exact, &dec_start) &&
           !(own && dec_start != x->s->dev.dec_start);
}

static ds_hit_ask asks(const ds_eng_loop *e, const ds_eng_sample *s)
{
    return (ds_hit_ask){ .prompt = s->req->n_prompt,
                         .margin = e->hit_margin,
                         .strict = ds_eng_is_strict(e, s),
                         .any_state = e->o->mode == DS_ENGINE_EXACT,
                         .back = s->admitted ? s->goal : 0,
                         .replay_at = s->first_hit == DS_HIT_REPLAY ? s->first_hit_pos : 0 };
}

/* What the rule (kv/hit.h) makes of what is there. One whose bits are those of a cold run passes over what rests on a
 * replay when it comes back; a reproducible one does so from the start. */
static found find_hit(ds_eng_loop *e, ds_eng_sample *s, where look, uint64_t now_us)
{
    ds_hit_ask q = asks(e, s);
    state_search x = { .e = e, .s = s, .look = look, .exact = s->req->reproducible || (s->admitted && !s->approx), .now_us = now_us };
    found f = { .state = DS_NONE, .exact = x.exact, .most = ds_hit_most(&q) };
    uint32_t n_exact;
    ds_hit h;

    if (s->req->no_cache)
        return f;
    f.most = f.most < s->n_keys ? f.most : s->n_keys;
    f.there = blocks_there(e, s, f.most, f.exact, look, &n_exact);
    h = ds_hit_find(&q, f.there, has_state, &x);
    f.kind = h.kind;
    f.pos = h.pos;
    if (h.kind == DS_HIT_STATE) {
        f.state = x.state;
        f.approx = x.state != DS_NONE && (h.pos / DS_KV_BLOCK_TOKENS > n_exact || x.approx);
    }
    f.approx = f.approx || h.kind == DS_HIT_REPLAY;
    return f;
}

/* What the store promises on top of what the device has: a longer prefix, or a state where there was none. */
static bool is_better(const found *p, const found *f)
{
    return p->pos > f->pos || (p->pos == f->pos && p->kind == DS_HIT_STATE && f->kind != DS_HIT_STATE);
}

/* The block behind those that the device has is on its way to somebody else. */
static bool next_is_expected(const ds_eng_loop *e, const ds_eng_sample *s, const found *f)
{
    return e->fetches.n_under_way > 0 && !s->req->no_cache && f->there < f->most && ds_blocks_is_expected(&e->blocks, &s->keys[f->there]);
}

/* Somebody is computing more of this prompt's prefix than is there now: it pays to wait. */
static bool prefix_is_coming(ds_eng_loop *e, const ds_eng_sample *s, const found *f)
{
    uint32_t most = ds_hit_cap(s->req->n_prompt, e->hit_margin) / DS_KV_BLOCK_TOKENS;
    bool needs_state = ds_eng_is_strict(e, s);

    if (s->req->no_cache || s->admitted)
        return false;
    for (uint32_t i = 0; i < e->n_running;
         i++) { /* also those that are planned to the end of their prompt: its blocks are published with the result */
        ds_eng_sample *o = e->running[i];
        uint32_t lo = 0, hi = most, border;
        if ((o->state != S_PROMPT && o->state != S_DECODE) || o->req->no_cache || o->pos >= o->goal || (o->approx && s->req->reproducible))
            continue;
        if (hi > o->n_keys)
            hi = o->n_keys;
        if (hi > o->goal / DS_KV_BLOCK_TOKENS)
            hi = o->goal / DS_KV_BLOCK_TOKENS;
        while (lo < hi) { /* keys are a chain: equal up to some block, different behind it */
            uint32_t mid = (lo + hi + 1) / 2;
            if (memcmp(&o->keys[mid - 1], &s->keys[mid - 1], sizeof(ds_key)) == 0)
                lo = mid;
            else
                hi = mid - 1;
        }
        border = lo * DS_KV_BLOCK_TOKENS;
        if (border <= f->pos || o->pos >= border)
            continue;
        if (!needs_state)
            return true;
        for (uint32_t k = 0; k < o->n_snap; k++)
            if (o->snap[k] == border && o->pos < border)
                return true;
        if (o->pos_max < border && o->n_snap < MAX_SNAPS) {
            o->snap[o->n_snap++] = border;
            return true;
        }
    }
    return false;
}

/* ---- admission --------------------------------------------------------------------------------------------------- */

typedef enum { ADMITTED, NOT_YET, NO_MEMORY } verdict;

static void take_seat(ds_eng_loop *e, ds_eng_step *st, ds_eng_sample *s)
{
    ds_eng_dequeue(e, s);
    s->seat = ds_states_take_seat(&e->states);
    assert(s->seat != DS_NONE);
    s->run_index = e->n_running;
    e->running[e->n_running++] = s;
    s->busy_until = st->dev.no;
    s->admit_out = s->n_out;
    s->run_level = ds_queue_aged(s->level, e->now_us - s->queued_us, e->o->ageing_ms);
    for (int i = 0; i < DS_DEV_DEPTH; i++)
        s->in_rows[i] = 0;
}

static uint32_t watermark(const ds_eng_loop *e)
{
    return e->n_running; /* each may want a block soon */
}

static verdict admit_parked(ds_eng_loop *e, ds_eng_step *st, ds_eng_sample *s)
{
    uint32_t copy = DS_NONE, last = s->n_blocks - 1;

    if (s->shared_partial) {
        if (ds_blocks_available(&e->blocks) < 1 + watermark(e))
            return NO_MEMORY;
        copy = ds_eng_take_block(e, st);
        ds_eng_op(st, DS_DEV_COPY_BLOCK, s->blocks[last], copy);
        ds_eng_after_step(st, AFTER_UNREF, s->blocks[last]);
        s->blocks[last] = copy;
        s->shared_partial = false;
    }
    take_seat(e, st, s);
    ds_eng_op(st, DS_DEV_COPY_SLOT, ds_states_slot(&e->states, s->parked), s->seat);
    ds_eng_after_step(st, AFTER_UNPIN, s->parked);
    s->parked = DS_NONE;
    e->n_parked--;
    s->state = S_DECODE;
    return ADMITTED;
}

static void want_snap(ds_eng_sample *s, uint32_t border)
{
    if (border == 0 || border > s->goal || border <= s->pos || s->n_snap == MAX_SNAPS)
        return;
    for (uint32_t i = 0; i < s->n_snap; i++)
        if (s->snap[i] == border)
            return;
    s->snap[s->n_snap++] = border;
}

static void begin_prompt(ds_eng_loop *e, ds_eng_step *st, ds_eng_sample *s, const found *f)
{
    uint32_t n = s->req->n_prompt, window = e->dev->window;

    s->state = S_PROMPT;
    e->prefilling[e->n_prefilling++] = s;
    if (e->o->mode == DS_ENGINE_CED)
        s->tail = e->tail[--e->n_free_tails];
    s->hit = f->pos;
    s->pos = f->pos;
    s->enc_win = s->store_from = s->replayed = 0;
    s->n_published = f->pos / DS_KV_BLOCK_TOKENS;
    s->replay_first = false;
    s->approx = f->approx;
    if (s->scored) /* a reader may have it by now */
        s->dev.prompt_lp = NULL;
    if (f->kind == DS_HIT_STATE) {
        ds_states_pin(&e->states, f->state);
        ds_eng_op(st, DS_DEV_COPY_SLOT, ds_states_slot(&e->states, f->state), s->seat);
        ds_eng_after_step(st, AFTER_UNPIN, f->state);
    } else {
        ds_eng_op(st, DS_DEV_RESET, 0, s->seat);
    }
    if (f->kind == DS_HIT_REPLAY) {
        uint32_t keep = e->o->replay_keep ? e->o->replay_keep : window;
        s->enc_win = f->pos > keep ? f->pos - keep : 0;
        s->store_from = f->pos;
        s->replayed = f->pos - s->enc_win;
        s->replay_first = true;
        s->pos = s->enc_win;
    }
    s->pos_max = s->pos;
    s->n_snap = 0;
    if (!s->req->no_cache && (ds_eng_is_strict(e, s) || s->goal - s->pos >= WORTH_A_CUT)) {
        want_snap(s, ds_hit_cap(n, e->hit_margin));
        want_snap(s, n / DS_KV_BLOCK_TOKENS * DS_KV_BLOCK_TOKENS);
    }
}

static void note_start(ds_eng_loop *e, ds_eng_sample *s, uint64_t now_us)
{
    if (s->admitted)
        return;
    s->admitted = true;
    s->admit_us = now_us;
    s->start_event = (ds_event){ .kind = DS_EV_START,
                                 .sample = s->index,
                                 .request = s->req->id,
                                 .cookie = s->req->cookie,
                                 .start = { s->req->n_prompt, s->hit, s->replayed, now_us - s->req->added_us } };
    ds_eng_hist_add(&e->turn.queue, now_us - s->req->added_us);
    ds_eng_mark(e, s);
}

/* References to the blocks found; what the sample held is the same or goes. */
static void take_hits(ds_eng_loop *e, ds_eng_sample *s, uint32_t hits, bool exact)
{
    for (uint32_t i = 0; i < hits; i++)
        ds_blocks_ref(&e->blocks, ds_eng_device_block(e, s, i, exact));
    ds_eng_let_go(e, s);
    for (uint32_t i = 0; i < hits; i++)
        s->blocks[i] = ds_eng_device_block(e, s, i, exact);
}

/* Blocks that the sample takes from those nobody uses: some of a hit on the device, all of it that isn't there, and
 * all behind it. */
static bool fits(const ds_eng_loop *e, const ds_eng_sample *s, const found *f)
{
    uint32_t need = ds_eng_blocks_for(s->goal), hits = f->pos / DS_KV_BLOCK_TOKENS;

    for (uint32_t i = 0; i < hits; i++) {
        uint32_t b = ds_eng_device_block(e, s, i, f->exact);
        need -= b != DS_NONE && e->blocks.ref[b] > 0;
    }
    return ds_blocks_available(&e->blocks) >= need + watermark(e);
}

/* The store has more of the prefix than the device: fetch it. ADMITTED: it came at once, or there is nothing to
 * fetch. */
static verdict fetch_more(ds_eng_loop *e, ds_eng_step *st, ds_eng_sample *s, const found *f, const found *p)
{
    uint32_t n = p->pos / DS_KV_BLOCK_TOKENS;

    if (!is_better(p, f))
        return ADMITTED;
    if (!fits(e, s, p))
        return NO_MEMORY;
    if (e->fetches.n_free == 0 || ds_eng_ops_left(e, st) < 2 * n + 2)
        return NOT_YET;
    ds_eng_let_go(e, s); /* of an earlier fetch that brought a part */
    ds_eng_fetch(
        e, st, s,
        &(ds_eng_prefix){ .n = n, .exact = p->exact, .fetch_state = p->kind == DS_HIT_STATE && p->state == DS_NONE, .state = p->state });
    return s->state == S_FETCHING || s->fetch_waits ? NOT_YET : ADMITTED;
}

/* Else it would wait for memory that it has itself. */
static bool holds_only_hits(const ds_eng_loop *e, const ds_eng_sample *s, const found *f)
{
    if (s->holds && s->n_blocks > f->pos / DS_KV_BLOCK_TOKENS)
        return false;
    for (uint32_t i = 0; s->holds && i < s->n_blocks; i++)
        if (s->blocks[i] != ds_eng_device_block(e, s, i, f->exact))
            return false;
    return true;
}

/* Of what came, not all may have been of use: a miss in the middle. */
static void count_fetched(ds_eng_loop *e, const ds_eng_sample *s, uint32_t hits)
{
    uint32_t far = s->n_fetched_far < hits ? s->n_fetched_far : hits, near = s->n_fetched - s->n_fetched_far;

    near = near < hits - far ? near : hits - far;
    e->turn.hit_store_tokens += far * DS_KV_BLOCK_TOKENS;
    e->turn.hit_host_tokens += near * DS_KV_BLOCK_TOKENS;
}

/* The store had too few buffers for all that it promised; it has its time to find more. */
static bool waits_for_buffers(const ds_eng_loop *e, ds_eng_sample *s, uint64_t now_us)
{
    if (!s->fetch_waits)
        return false;
    if (s->fetch_seen == e->n_kicks + e->fetches.n_given && now_us < s->fetch_until_us)
        return true;
    s->fetch_over = s->fetch_over || now_us >= s->fetch_until_us;
    s->fetch_waits = false;
    return false;
}

static verdict admit_prompt(ds_eng_loop *e, ds_eng_step *st, ds_eng_sample *s, uint64_t now_us)
{
    ds_eng_request *r = s->req;
    bool fork = r->fork_pending && s->index == 0, ask;
    where look;
    uint32_t hits, state = DS_NONE;
    found f, p;
    verdict v;

    if (e->n_prefilling == e->o->prefills || (e->o->mode == DS_ENGINE_CED && e->n_free_tails == 0))
        return NOT_YET;
    if (waits_for_buffers(e, s, now_us))
        return NOT_YET;
    ask = e->store && !s->fetch_over && !r->no_cache && now_us >= e->store_rest_us;
    look = !ask ? DEVICE_ONLY : ds_states_next(&e->states) == DS_NONE ? AND_STORED_BLOCKS : AND_STORED_STATES;
    s->goal = s->n_out > 0 ? r->n_prompt + s->n_out - 1 : r->n_prompt - fork;
    f = find_hit(e, s, DEVICE_ONLY, now_us);
    p = ask ? find_hit(e, s, look, now_us) : f;
    if (next_is_expected(e, s, &f) || prefix_is_coming(e, s, &p))
        return NOT_YET;
    v = fetch_more(e, st, s, &f, &p);
    if (v != ADMITTED)
        return v;
    if (ask)
        f = find_hit(e, s, DEVICE_ONLY, now_us);
    if (!holds_only_hits(e, s, &f))
        ds_eng_let_go(e, s);
    if (!fits(e, s, &f))
        return NO_MEMORY;
    if (f.kind == DS_HIT_STATE)
        ds_states_pin(&e->states, f.state); /* taking another must not take this one */
    if (fork)
        state = ds_eng_take_state(e, st);
    if (f.kind == DS_HIT_STATE)
        ds_states_unpin(&e->states, f.state);
    if (fork && state == DS_NONE) {
        ds_eng_sample *h = e->n_running == 0 ? worst_holder(e, s) : NULL;
        if (h) /* it may have the state that is missing, and wait for one too */
            take_back(e, h);
        return NOT_YET;
    }
    s->fork = fork;
    s->fork_state = state;
    hits = f.pos / DS_KV_BLOCK_TOKENS;
    take_hits(e, s, hits, f.exact);
    for (s->n_blocks = hits; s->n_blocks < ds_eng_blocks_for(s->goal); s->n_blocks++) {
        s->blocks[s->n_blocks] = ds_eng_take_block(e, st);
        assert(s->blocks[s->n_blocks] != DS_NONE);
    }
    take_seat(e, st, s);
    begin_prompt(e, st, s, &f);
    e->turn.replayed_tokens += s->replayed;
    if (!s->admitted) {
        s->first_hit = f.kind;
        s->first_hit_pos = f.pos;
        e->turn.prompt_tokens += r->n_prompt;
        e->turn.hit_state_tokens += f.kind == DS_HIT_STATE ? f.pos : 0;
        e->turn.hit_replay_tokens += f.kind == DS_HIT_REPLAY ? f.pos : 0;
        count_fetched(e, s, hits);
    }
    note_start(e, s, now_us);
    return ADMITTED;
}

/* A sequence that comes from another engine goes on where it was, if its whole blocks are here, came with it or are in
 * the store.
 * False: they aren't, and it is computed again. */
static bool admit_import(ds_eng_loop *e, ds_eng_step *st, ds_eng_sample *s, uint64_t now_us, verdict *v)
{
    uint32_t P = s->import->pos, full = P / DS_KV_BLOCK_TOKENS, n_exact, block = DS_NONE;
    bool exact = s->req->reproducible || !s->approx, ask = e->store && !s->fetch_over && now_us >= e->store_rest_us;
    found f = { .state = DS_NONE, .exact = exact, .most = full }, p;

    s->goal = P;
    *v = NOT_YET;
    if (waits_for_buffers(e, s, now_us))
        return true;
    f.there = blocks_there(e, s, full, exact, DEVICE_ONLY, &n_exact);
    f.pos = f.there * DS_KV_BLOCK_TOKENS;
    if (f.there < full) {
        p = f;
        if (next_is_expected(e, s, &f))
            return true;
        p.pos = full * DS_KV_BLOCK_TOKENS;
        if (s->import->blocks.p && !(exact && s->approx)) {
            if (!fits(e, s, &p))
                *v = NO_MEMORY;
            else if (!e->handoff_busy)
                ds_eng_land(e, st, s, full, exact);
            return true;
        }
        if (!ask || blocks_there(e, s, full, exact, AND_STORED_BLOCKS, &n_exact) < full) {
            ds_eng_drop_import(s);
            return false;
        }
        p.kind = DS_HIT_REPLAY;
        *v = fetch_more(e, st, s, &f, &p);
        if (*v != ADMITTED)
            return true;
        *v = NOT_YET; /* what came is looked at in the next turn */
        return true;
    }
    if (!holds_only_hits(e, s, &f))
        ds_eng_let_go(e, s);
    if (!fits(e, s, &f)) {
        *v = NO_MEMORY;
        return true;
    }
    if (e->handoff_busy)
        return true;
    take_hits(e, s, full, exact);
    s->n_blocks = full;
    if (P % DS_KV_BLOCK_TOKENS)
        s->blocks[s->n_blocks++] = block = ds_eng_take_block(e, st);
    take_seat(e, st, s);
    ds_eng_place_import(e, st, s, block);
    s->pos = s->pos_max = P;
    s->n_published = full;
    s->state = S_DECODE;
    *v = ADMITTED;
    return true;
}

static verdict admit(ds_eng_loop *e, ds_eng_step *st, ds_eng_sample *s, uint64_t now_us)
{
    verdict v;

    if (s->import && admit_import(e, st, s, now_us, &v))
        return v;

    if (s->parked == DS_NONE)
        return admit_prompt(e, st, s, now_us);
    v = admit_parked(e, st, s);
    if (v == ADMITTED)
        note_start(e, s, now_us);
    return v;
}

/* The level whose head is to be looked at next: the best after ageing, ties to the earlier arrival. */
static ds_eng_sample *best_head(const ds_eng_loop *e, ds_eng_sample *const head[N_LEVELS], uint64_t now_us)
{
    ds_eng_sample *best = NULL;
    ds_queue_wait first = { 0 };

    for (uint32_t l = 0; l < N_LEVELS; l++) {
        ds_queue_wait w;
        if (!head[l])
            continue;
        w = (ds_queue_wait){ l, now_us - head[l]->queued_us, head[l]->order };
        if (!best || ds_queue_before(&w, &first, e->o->ageing_ms)) {
            best = head[l];
            first = w;
        }
    }
    return best;
}

void ds_eng_admit(ds_eng_loop *e, ds_eng_step *st, uint64_t now_us)
{
    ds_eng_sample *head[N_LEVELS], *s;
    /* Those that wait for somebody's prefix, a place for prompts or a state are passed over, but not without end; unless nothing runs:
     * what they wait for may be held by somebody parked far behind. */
    uint32_t looks = 4 * e->o->prefills + 16;

    for (uint32_t l = 0; l < N_LEVELS; l++)
        head[l] = e->level_head[l];
    while ((looks > 0 || e->n_running == 0) && (s = best_head(e, head, now_us)) != NULL) {
        ds_eng_sample *next = s->next;
        uint32_t level = s->level;
        verdict v;
        looks -= looks > 0;
        if (s->state == S_FETCHING || ds_eng_leaves(s->req)) {
            head[level] = next;
            continue;
        }
        if (e->states.n_free_seats == 0) {
            preempt_for(e, s);
            return;
        }
        v = admit(e, st, s, now_us);
        if (v == NO_MEMORY && e->n_holding > 0) { /* what is kept for who comes later goes first */
            ds_eng_sample *h = worst_holder(e, s);
            if (h && (worse(h, s) || e->n_running == 0)) {
                take_back(e, h);
                v = admit(e, st, s, now_us);
            }
        }
        if (v == NO_MEMORY && e->n_running == 0 && e->n_parked > 0) { /* parked ones hold what nobody running will give back */
            ds_eng_sample *p = worst_parked(e);
            if (p) {
                unpark(e, p);
                v = admit(e, st, s, now_us);
            }
        }
        if (v == NO_MEMORY)
            return;
        head[level] = next;
    }
}
