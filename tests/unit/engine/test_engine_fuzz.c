/* Random arrivals, lengths, shared prefixes, accepted counts, cancels, deadlines, priorities and tiny pools on the
 * null backend, which checks every read of KV and window state by value. After every turn of the loop: all
 * invariants of ds_engine_check. Every request ends exactly once, with the tokens that it has alone. Half of the
 * engines have a store that is late, loses things and refuses others (fake_store.h); memory runs out now and then.
 *
 *   test_engine_fuzz [steps [seed]]     every round has a seed of its own, printed when it fails */
#include <time.h>

#include "base/clock.h"
#include "base/rng.h"
#include "engine/engine_internal.h"
#include "fake_store.h"
#include "left.h"
#include "fault.h"
#include "test.h"

enum { MAX_CONTEXT = 1600, VOCAB = 61, MAX_LIVE = 24, MAX_N = 3, STOP_ID = 60, PREFIXES = 8, TURNS = 4000 };

static uint64_t round_seed, n_draws, now_ns;
static fake_store *store;   /* NULL: this round has none */
static uint32_t n_prefixes; /* more than the device has place for, where something is behind it */

static uint32_t rnd(uint32_t below)
{
    return (uint32_t)(ds_rng_u64(round_seed, 9, n_draws++) % below);
}

static bool chance(uint32_t percent)
{
    return rnd(100) < percent;
}

/* What the test knows of a request. */
typedef struct {
    uint64_t id;
    bool live, cancelled, has_deadline, scored, fork_stopped[MAX_N];
    uint32_t n_scored;
    uint32_t n, n_prompt, max_tokens, limit, prefix_ids;
    uint64_t seed;
    uint32_t n_stop_ids, n_stop;
    uint64_t h0; /* of the prompt */
    ds_gen_request q;
    int32_t prompt[MAX_CONTEXT];
    ds_engine_export *leaving; /* asked for */
    bool moved;                /* its record is there, and it is to go on from it */
    struct {
        uint64_t h;
        uint32_t n_tokens;
        bool started, ended;
        char text[2];    /* the last two bytes, for the stop string "AB" */
        int32_t next;    /* that comes unless the text ends */
        uint64_t read_h; /* of what the grammar was told */
        uint32_t n_read;
    } s[MAX_N];
    bool constrained;
    uint32_t density; /* of the grammar: tokens in 8 that it allows */
    ds_gen_grammar grammar;
} shadow;

static shadow known[MAX_LIVE];
static int32_t prefix[PREFIXES][4096];
static uint64_t n_ended, n_no_memory, n_moved, n_moved_constrained, n_lost;
static ds_gen_stats sum; /* what all rounds together did: a fuzzer that never preempts proves nothing about preemption */

static const char *token_bytes(void *ctx, int32_t id, size_t *n)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    (void)ctx;
    *n = 1;
    return &letters[id];
}

__attribute__((noreturn, format(printf, 1, 2))) static void stop(const char *fmt, ...)
{
    char text[300];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    fprintf(stderr, "round seed %llu, after %llu draws: %s\n", (unsigned long long)round_seed, (unsigned long long)n_draws, text);
    abort();
}

/* Time passes with the turns and nowhere else: a seed gives one course of events. */
static uint64_t clock_now(void *ctx)
{
    (void)ctx;
    return now_ns;
}

static void clock_sleep(void *ctx, uint64_t ns)
{
    (void)ctx;
    now_ns = ns > now_ns ? ns : now_ns;
}

static ds_store new_store(ds_engine_opts *o, const ds_engine_stub *stub)
{
    uint64_t block_bytes, slot_bytes;

    ds_backend_null_bytes(stub, &block_bytes, &slot_bytes);
    store = fake_store_new(&(fake_store_opts){ .rnd = rnd,
                                               .records = 1 + rnd(chance(50) ? 20 : 120),
                                               .per_cent = chance(20) ? 100 : 2 + rnd(60),
                                               .fails = chance(50) ? 0 : rnd(30),
                                               .on_commit = chance(60) },
                           block_bytes, slot_bytes + DS_KV_STATE_HEADER);
    o->kv_memory = block_bytes * (1 + rnd(chance(50) ? 4 : 40)) + (slot_bytes + DS_KV_STATE_HEADER) * (1 + rnd(2));
    o->fetches = 1 + rnd(4);
    o->fetch_ms = 1;
    return fake_store_store(store);
}

/* A grammar that allows some tokens, by a hash of all in front, whichever the prompt was. */
static bool allows(const shadow *k, uint64_t h, int32_t token)
{
    return ds_backend_null_fold(h ^ k->density, token) >> 40 & 1 || ds_backend_null_fold(h, token + 1000) % 8 < k->density;
}

/* The token that a sample has alone behind a text. */
static int32_t alone(const shadow *k, uint32_t sample, uint64_t h)
{
    int32_t token = ds_backend_null_token(h, ds_sample_seed(k->seed, sample), VOCAB);

    for (uint32_t i = 0; k->constrained && !allows(k, h, token); i++, token = (token + 1) % VOCAB)
        if (i == VOCAB)
            stop("the grammar allows nothing");
    return token;
}

static uint32_t masks(void *ctx, uint32_t sample, const int32_t *drafts, uint32_t n, uint32_t *words, size_t ld)
{
    const shadow *k = ctx;
    uint64_t h = k->s[sample].read_h;
    uint32_t row = 0;

    if (!k->live || k->s[sample].ended || k->s[sample].n_read < k->s[sample].n_tokens)
        stop("masks for a sample that ended, or before its tokens were read");
    for (;; row++) {
        memset(words + row * ld, 0, (VOCAB + 31) / 32 * sizeof *words);
        for (int32_t i = 0; i < VOCAB; i++)
            words[row * ld + (uint32_t)i / 32] |= (uint32_t)allows(k, h, i) << (i % 32);
        if (row == n || !allows(k, h, drafts[row]))
            return row + 1;
        h = ds_backend_null_fold(h, drafts[row]);
    }
}

static void accept(void *ctx, uint32_t sample, const int32_t *tokens, uint32_t n)
{
    shadow *k = ctx;

    for (uint32_t i = 0; i < n; i++) {
        if (tokens[i] != alone(k, sample, k->s[sample].read_h))
            stop("the grammar is told token %d at its place %u", tokens[i], k->s[sample].n_read);
        k->s[sample].read_h = ds_backend_null_fold(k->s[sample].read_h, tokens[i]);
        k->s[sample].n_read++;
    }
}

static const ds_gen_grammar_fn grammar_fn = { masks, accept };

static ds_engine *new_engine(void)
{
    static const uint32_t contexts[] = { 140, 260, 300, 513, 900, 1600 };
    bool behind = chance(70);
    uint32_t context = contexts[behind ? 2 + rnd(4) : rnd(6)], least = ds_eng_blocks_for(context);
    ds_engine_stub stub = { .vocab = VOCAB, .drafts = rnd(7), .seed = round_seed, .verify = true };
    ds_engine_opts o = { .mode = chance(50) ? DS_ENGINE_CED : DS_ENGINE_EXACT,
                         .no_replay = chance(30),
                         .no_prefix_cache = chance(10),
                         .max_context = context,
                         .max_running = 1 + rnd(6),
                         .max_requests = 4 + rnd(MAX_LIVE - 4),
                         .max_samples = MAX_N,
                         .kv_blocks = least + rnd(behind ? least + 1 : 2 * least + 2),
                         .saved_states = 2 + rnd(8),
                         .prefills = 1 + rnd(3),
                         .step_tokens = chance(30) ? 1 + rnd(30) : 64 + rnd(600),
                         .handoff = chance(70) ? 1 + rnd(4) : 0,
                         .verify_rows = 1 + rnd(20),
                         .target_tbt_us = chance(50) ? 1 + rnd(300) : 0,
                         .ageing_ms = 1 + rnd(20),
                         .state_ttl_ms = chance(20) ? 1 : 0,
                         .clock = { .now_ns = clock_now, .sleep_until_ns = clock_sleep },
                         .token_bytes = token_bytes };
    static ds_store the_store;
    ds_engine *e;
    ds_err err;

    store = NULL;
    n_prefixes = behind ? 3 + rnd(PREFIXES - 2) : 3;
    if (!o.no_prefix_cache && behind && chance(70)) {
        the_store = new_store(&o, &stub);
        o.store = &the_store;
    } else if (!o.no_prefix_cache && behind) { /* 1 block and 1 state to more than the device has */
        o.kv_memory = 2700 + rnd(chance(50) ? 6000 : 100000);
    }
    o.drafts = stub.drafts == 0 ? 0 : chance(40) ? DS_ENGINE_DRAFTS_AUTO : (int)rnd(stub.drafts + 1);
    assert_ok(ds_engine_create_stub(&e, &stub, &o, &err));
    return e;
}

static void add(ds_engine *e)
{
    static const ds_str stops[] = { { "AB", 2 }, { "zz", 2 } };
    shadow *k = NULL;
    static const int32_t stop_ids[] = { STOP_ID };
    ds_gen_request q = { .sampling = DS_SAMPLING_DEFAULT };
    uint32_t context = e->o.max_context, shared;
    ds_err err;
    ds_rc rc;

    for (uint32_t i = 0; i < MAX_LIVE && !k; i++)
        if (!known[i].live)
            k = &known[i];
    if (!k)
        return;
    *k = (shadow){ .n = chance(25) ? 1 + rnd(MAX_N) : 1, .seed = rnd(4), .n_stop_ids = chance(30), .n_stop = chance(30) ? 2 : 0 };
    k->n_prompt = chance(10) ? 1 : chance(50) ? 1 + rnd(context - 1) : 1 + rnd(context < 400 ? context - 1 : 400);
    k->max_tokens = chance(15) ? 1 : chance(50) ? 1 + rnd(20) : 1 + rnd(300);
    k->limit = k->max_tokens < context - k->n_prompt ? k->max_tokens : context - k->n_prompt;
    shared = chance(70) ? k->n_prompt : rnd(k->n_prompt + 1);
    if (chance(30) && shared > 10)
        shared -= rnd(10);
    for (uint32_t i = 0, p = rnd(n_prefixes); i < k->n_prompt; i++) {
        k->prompt[i] = i < shared ? prefix[p][i] : (int32_t)rnd(VOCAB - 1);
        k->h0 = ds_backend_null_fold(k->h0, k->prompt[i]);
    }
    for (uint32_t i = 0; i < k->n; i++)
        k->s[i].h = k->s[i].read_h = k->h0;
    k->constrained = chance(40);
    k->density = rnd(8);
    k->grammar = (ds_gen_grammar){ .fn = &grammar_fn, .ctx = k };
    q.prompt = k->prompt;
    q.n_prompt = k->n_prompt;
    q.max_tokens = k->max_tokens;
    q.n = k->n;
    q.sampling.seed = k->seed;
    q.stop_ids = stop_ids;
    q.n_stop_ids = k->n_stop_ids;
    q.stop = stops;
    q.n_stop = k->n_stop;
    q.priority = rnd(3);
    q.no_cache = chance(5);
    q.replay = chance(30) ? DS_REPLAY_NEVER : DS_REPLAY_FREE;
    q.prompt_logprobs = k->scored = chance(10);
    q.n_prompt_top = rnd(3);
    q.cache_domain = chance(10) ? "other" : NULL;
    q.logprobs = chance(5);
    q.n_top = rnd(3);
    q.deadline_us = chance(5) ? 1 + rnd(3000) : 0;
    q.cookie = (uintptr_t)k;
    q.grammar = k->constrained ? &k->grammar : NULL;
    k->has_deadline = q.deadline_us != 0;
    if (chance(4)) { /* memory runs out somewhere in it */
        fault_arm(1 + rnd(20), chance(50));
        rc = ds_engine_add(e, &q, &k->id, &err);
        if (fault_disarm() != (rc == DS_E_NOMEM))
            stop("add without memory: %s", rc == DS_OK ? "done" : err.msg);
        n_no_memory += rc == DS_E_NOMEM;
    } else {
        rc = ds_engine_add(e, &q, &k->id, &err);
    }
    if (rc != DS_OK && rc != DS_E_AGAIN && rc != DS_E_NOMEM)
        stop("add: %s", err.msg);
    k->live = rc == DS_OK;
    k->q = q;
}

/* Somebody is to leave for another engine, which is this one. */
static void export_one(ds_engine *e)
{
    shadow *k = &known[rnd(MAX_LIVE)];
    ds_err err;
    ds_rc rc;

    if (!k->live || k->leaving || k->moved)
        return;
    rc = ds_engine_export_begin(&k->leaving, e, k->id, (ds_engine_export_how){ chance(60), chance(30) }, &err);
    if (rc != DS_E_ARG && (rc != DS_OK || !e->o.handoff || k->n > 1 || k->scored)) /* it may be over, and nobody has read that */
        stop("export: %d, %s", rc, err.msg);
}

/* Its record is there: it goes on as a new request. */
static void import_one(ds_engine *e, shadow *k)
{
    ds_err err;
    ds_rc rc;

    k->s[0].read_h = k->s[0].h; /* the grammar of the second request begins where these tokens lead */
    k->s[0].n_read = k->s[0].n_tokens;
    rc = import_left(e, &k->q, k->leaving, &k->id, &err);
    if (rc == DS_E_AGAIN)
        return;
    assert_ok(rc == DS_OK ? DS_OK : ds_fail(&err, rc, "import: %s", err.msg));
    k->leaving = NULL;
    k->moved = false;
    n_moved++;
    n_moved_constrained += k->constrained;
}

/* The sample ended as one that leaves does; or it was over before. */
static bool goes_on(shadow *k)
{
    const uint8_t *record;
    size_t n;
    ds_err err;
    ds_rc rc = ds_engine_export_wait(k->leaving, 0, &record, &n, &err);

    if (rc == DS_OK && !k->cancelled) {
        k->s[0].started = k->s[0].ended = false;
        k->moved = true;
        return true;
    }
    if (rc != DS_OK && rc != DS_E_CANCELED)
        stop("an export that isn't over when its request is: %s", err.msg);
    n_lost += rc != DS_OK;
    ds_engine_export_free(k->leaving);
    k->leaving = NULL;
    return false;
}

static void got_token(const ds_engine *e, shadow *k, const ds_event *ev)
{
    uint32_t s = ev->sample;
    int32_t want = alone(k, s, k->s[s].h);

    if (k->scored && s == 0 && k->n_scored + 1 != k->n_prompt)
        stop("a token after %u of %u positions of the prompt", k->n_scored, k->n_prompt);
    if (!k->s[s].started || k->s[s].ended)
        stop("a token before the start or after the end");
    if (ev->token.index != k->s[s].n_tokens || ev->token.id != want)
        stop("token %u is %d, alone it is token %u, %d (prompt of %u)", ev->token.index, ev->token.id, k->s[s].n_tokens, want, k->n_prompt);
    if (want == STOP_ID && k->n_stop_ids)
        stop("a stop id was reported");
    k->s[s].h = ds_backend_null_fold(k->s[s].h, want);
    k->s[s].n_tokens++;
    k->s[s].text[0] = k->s[s].text[1];
    k->s[s].text[1] = *token_bytes(NULL, want, &(size_t){ 0 });
    (void)e;
}

static void got_end(shadow *k, const ds_event *ev)
{
    uint32_t s = ev->sample, n = k->s[s].n_tokens;
    int32_t next = alone(k, s, k->s[s].h);
    bool at_stop = n >= 2 && k->n_stop && (memcmp(k->s[s].text, "AB", 2) == 0 || memcmp(k->s[s].text, "zz", 2) == 0), all = true;

    if (k->s[s].ended)
        stop("an end twice");
    k->s[s].ended = true;
    n_ended++;
    if (ev->end.n_tokens != n)
        stop("the end counts %u tokens, %u came", ev->end.n_tokens, n);
    switch (ev->end.reason) {
    case DS_ENDED_STOP_ID:
        if (!k->n_stop_ids || next != STOP_ID || at_stop)
            stop("ended by a stop id that isn't there");
        break;
    case DS_ENDED_STOP_STRING:
        if (!at_stop || ev->end.cut_bytes != 2)
            stop("ended by a stop string that isn't there");
        break;
    case DS_ENDED_LENGTH:
        if (n != k->limit || at_stop)
            stop("ended by length after %u of %u tokens", n, k->limit);
        break;
    case DS_ENDED_CANCELED:
        if (!k->cancelled && !k->fork_stopped[s] && !k->leaving)
            stop("cancelled by nobody");
        break;
    case DS_ENDED_DEADLINE:
        if (!k->has_deadline)
            stop("no deadline was given");
        break;
    case DS_ENDED_FAILED:
    case DS_ENDED_LOST:
        stop("failed or lost");
    }
    for (uint32_t i = 0; i < k->n; i++)
        all = all && k->s[i].ended;
    if (all != ev->end.last)
        stop("last is %d", ev->end.last);
    if (all && k->leaving && goes_on(k))
        return;
    if (all)
        k->live = false;
}

static void poll_some(ds_engine *e, size_t cap)
{
    static ds_event ev[64];
    size_t n = ds_engine_poll(e, ev, cap < 64 ? cap : 64);

    for (size_t i = 0; i < n; i++) {
        shadow *k = (shadow *)(uintptr_t)ev[i].cookie;
        if (!k->live || ev[i].request != k->id || ev[i].sample >= k->n)
            stop("an event of an unknown request");
        switch (ev[i].kind) {
        case DS_EV_START:
            if (k->s[ev[i].sample].started || ev[i].start.cached % 128 || (ev[i].start.cached && ev[i].start.cached + 134 > k->n_prompt) ||
                ev[i].start.n_prompt != k->n_prompt)
                stop("start with %u cached of %u", ev[i].start.cached, k->n_prompt);
            k->s[ev[i].sample].started = true;
            break;
        case DS_EV_PROMPT:
            if (!k->scored || ev[i].sample != 0 || ev[i].token.index != ++k->n_scored || k->s[0].n_tokens)
                stop("position %u of a prompt", ev[i].token.index);
            break;
        case DS_EV_TOKEN:
            got_token(e, k, &ev[i]);
            break;
        case DS_EV_END:
            got_end(k, &ev[i]);
            break;
        }
    }
}

static void check(ds_engine *e)
{
    const char *wrong = ds_engine_check(e);

    if (!wrong)
        wrong = ds_backend_null_fault(e->dev);
    if (wrong)
        stop("%s", wrong);
}

/* A turn of the loop, in which nothing may be taken from the heap. */
static bool turn(ds_engine *e)
{
    bool more;

    now_ns += 1000 * (1 + rnd(60));
    if (store)
        fake_store_turn(store);
    fault_arm(1, true);
    more = ds_engine_turn(e);
    if (fault_disarm())
        stop("the loop took memory");
    check(e);
    return more;
}

static void add_up(ds_engine *e)
{
    ds_gen_stats st;
    uint64_t *to = &sum.accepted, *from = &st.accepted;

    ds_engine_stats_get(e, &st);
    for (size_t i = 0; i < (sizeof st - offsetof(ds_gen_stats, accepted)) / sizeof *to; i++)
        to[i] += from[i];
}

/* One engine for some thousand turns; then everything ends and nothing may be left. */
static uint64_t one_round(uint64_t seed)
{
    ds_engine *e;
    uint64_t steps;
    uint32_t arrivals, idle = 0;
    bool lazy;

    round_seed = seed;
    n_draws = 0;
    now_ns = 1000000;
    memset(known, 0, sizeof known);
    e = new_engine();
    for (uint32_t p = 0; p < PREFIXES; p++)
        for (uint32_t i = 0; i < 4096; i++)
            prefix[p][i] = p > 0 && i < 200 * p ? prefix[0][i] : (int32_t)rnd(VOCAB - 1);
    arrivals = 2 + rnd(40);
    lazy = chance(20);
    for (uint32_t i = 0; i < TURNS; i++) {
        if (chance(arrivals))
            add(e);
        if (chance(2)) {
            shadow *k = &known[rnd(MAX_LIVE)];
            if (k->live && !k->moved) {
                k->cancelled = true;
                ds_engine_cancel(e, k->id);
            }
        }
        if (chance(2))
            export_one(e);
        for (uint32_t n = 0; n < MAX_LIVE; n++)
            if (known[n].moved)
                import_one(e, &known[n]);
        if (chance(1)) {
            shadow *k = &known[rnd(MAX_LIVE)];
            uint32_t s = rnd(MAX_N);
            if (k->live && s < k->n) {
                k->fork_stopped[s] = true;
                ds_engine_finish_sample(e, k->id, s);
            }
        }
        turn(e);
        if (!lazy || chance(3))
            poll_some(e, 1 + rnd(64));
    }
    if (chance(30))
        for (uint32_t i = 0; i < MAX_LIVE; i++)
            if (known[i].live && !known[i].moved && chance(50)) {
                known[i].cancelled = true;
                ds_engine_cancel(e, known[i].id);
            }
    for (idle = 0; turn(e) || !ds_engine_drain(e); idle++) {
        poll_some(e, 64);
        if (idle > 200000)
            stop("it doesn't come to an end: waiting %u, running %u, parked %u", e->loop.n_waiting, e->loop.n_running, e->loop.n_parked);
    }
    for (int i = 0; i < 1000; i++)
        poll_some(e, 64);
    for (uint32_t i = 0; i < MAX_LIVE; i++)
        if (known[i].moved) { /* no more requests are taken */
            ds_engine_export_free(known[i].leaving);
            known[i].leaving = NULL;
            known[i].live = known[i].moved = false;
        }
    check(e);
    for (uint32_t i = 0; i < MAX_LIVE; i++)
        if (known[i].live || known[i].leaving)
            stop("a request never ended");
    if (e->loop.blocks.n_idle != e->loop.blocks.n || e->loop.states.n_pinned || e->loop.states.n_free_seats != e->loop.states.n_seats ||
        e->mail.n_free_index != e->o.max_requests)
        stop("something is left: %u blocks idle of %u, %u states pinned", e->loop.blocks.n_idle, e->loop.blocks.n, e->loop.states.n_pinned);
    steps = e->loop.done;
    add_up(e);
    if (store)
        fake_store_closing(store);
    ds_engine_destroy(e);
    if (store)
        fake_store_free(store);
    return steps;
}

int main(int argc, char **argv)
{
    uint64_t want = argc > 1 ? strtoull(argv[1], NULL, 10) : 200000, seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1, steps = 0,
             begin = ds_now_us(), rounds = 0;
    bool missed = true;

    printf("seeds from %llu\n", (unsigned long long)seed);
    for (; steps < want; seed++, rounds++)
        steps += one_round(seed);
    printf("%llu steps in %llu engines, %llu samples, %.1f s\n", (unsigned long long)steps, (unsigned long long)rounds,
           (unsigned long long)n_ended, (double)(ds_now_us() - begin) / 1e6);
    printf("parked %llu, recomputed %llu, tokens hit with state %llu, by replay %llu, states saved %llu, evicted %llu, blocks evicted "
           "%llu, busy %llu, tokens %llu, dropped %llu; host: tokens hit %llu, blocks saved %llu, evicted %llu, states saved %llu, evicted "
           "%llu; store: tokens hit %llu, fetches %llu, blocks %llu, states %llu, gone %llu, late %llu, busy %llu, failed %llu, corrupt "
           "%llu, not "
           "saved %llu; without memory %llu; moved %llu, ended before %llu\n",
           (unsigned long long)sum.preempted_parked, (unsigned long long)sum.preempted_recomputed, (unsigned long long)sum.hit_state_tokens,
           (unsigned long long)sum.hit_replay_tokens, (unsigned long long)sum.states_saved, (unsigned long long)sum.states_evicted,
           (unsigned long long)sum.blocks_evicted, (unsigned long long)sum.refused_busy, (unsigned long long)sum.output_tokens,
           (unsigned long long)sum.dropped_tokens, (unsigned long long)sum.hit_host_tokens, (unsigned long long)sum.host_blocks_saved,
           (unsigned long long)sum.host_blocks_evicted, (unsigned long long)sum.host_states_saved,
           (unsigned long long)sum.host_states_evicted, (unsigned long long)sum.hit_store_tokens, (unsigned long long)sum.fetches,
           (unsigned long long)sum.fetched_blocks, (unsigned long long)sum.fetched_states, (unsigned long long)sum.fetch_missed[1],
           (unsigned long long)sum.fetch_missed[2], (unsigned long long)sum.fetch_missed[3], (unsigned long long)sum.fetch_missed[4],
           (unsigned long long)sum.fetch_missed[5], (unsigned long long)sum.saves_lost, (unsigned long long)n_no_memory,
           (unsigned long long)n_moved, (unsigned long long)n_lost);
    for (int i = DS_STORE_GONE; i < DS_STORE_RESULTS; i++)
        missed = missed && sum.fetch_missed[i];
    if (steps >= 100000 &&
        !(sum.preempted_parked && sum.preempted_recomputed && sum.hit_state_tokens && sum.hit_replay_tokens && sum.states_evicted &&
          sum.blocks_evicted && sum.hit_host_tokens && sum.host_blocks_evicted && sum.host_states_evicted && sum.refused_busy && missed &&
          sum.hit_store_tokens && sum.fetched_states && sum.saves_lost && n_no_memory && n_moved && n_moved_constrained && n_lost &&
          sum.ended[DS_ENDED_STOP_ID] && sum.ended[DS_ENDED_STOP_STRING] && sum.ended[DS_ENDED_LENGTH] && sum.ended[DS_ENDED_CANCELED] &&
          sum.ended[DS_ENDED_DEADLINE])) {
        printf("something never happened\n");
        return 1;
    }
    return 0;
}
