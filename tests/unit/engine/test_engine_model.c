/* On a golden model: a request has the same bits (tokens and log-probabilities) whatever it shares the engine with:
 * other requests, any chunks, drafts on or off and kept to any depth, preemption, threads, and hits that continue
 * from saved state. What it has alone comes from engine/single.c, which has none of this machinery. */
#include <pthread.h>
#include <unistd.h>

#include "ranked.h"

#include "engine/engine_internal.h"
#include "fake_store.h"
#include "fault.h"
#include "left.h"
#include "single.h"

enum { MAX_OUT = 96, N_REQ = 7, BLOCK = 128 };

typedef struct {
    uint32_t n_prompt, max_tokens, n;
    double temperature, penalty;
    uint32_t priority;
    int32_t *prompt;
    int32_t stop[2];
    uint32_t n_stop, min_tokens;
    ds_token_seq bad[2];
    uint32_t n_bad, n_allowed;
    int32_t allowed[MAX_OUT];
    bool report_stop_id;
    bool reproducible, score;
    float score_got[512], score_want[512]; /* of the prompt's tokens, by position */
    uint32_t n_scored, rank[512];
    ds_gen_logprob top_got[512][3], top_want[512][3];
    int32_t want[4][MAX_OUT], got[4][MAX_OUT];
    float want_lp[4][MAX_OUT], got_lp[4][MAX_OUT];
    uint32_t n_want[4], n_got[4], cached, replayed;
    ds_end_reason reason[4];
    bool constrained;
    uint64_t read_h[4]; /* of what its grammar was told */
    ds_gen_grammar grammar;
} request;

static const ds_model *model, *lone; /* lone: has no other ranks */
static uint32_t vocab;

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static int32_t *random_prompt(uint32_t n, uint32_t seed)
{
    int32_t *p = malloc(n * sizeof *p);

    for (uint32_t i = 0; i < n; i++)
        p[i] = (int32_t)(next_random(&seed) % vocab);
    return p;
}

static void make_requests(request *r, uint32_t seed)
{
    static const struct {
        uint32_t n_prompt, max_tokens;
        double temperature, penalty;
    } shape[N_REQ] = { { 1, 40, 0.0, 1.0 },   { 23, 60, 1.0, 1.0 },  { 127, 30, 0.8, 1.0 }, { 128, 20, 0.0, 1.0 },
                       { 129, 30, 1.3, 1.2 }, { 260, 20, 0.0, 1.0 }, { 411, 12, 1.0, 1.0 } };

    for (uint32_t i = 0; i < N_REQ; i++)
        r[i] = (request){ .n_prompt = shape[i].n_prompt,
                          .max_tokens = shape[i].max_tokens,
                          .temperature = shape[i].temperature,
                          .penalty = shape[i].penalty,
                          .n = 1,
                          .priority = i % 3,
                          .prompt = random_prompt(shape[i].n_prompt, seed + i) };
}

static void free_requests(request *r, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        free(r[i].prompt);
}

/* ---- constraints ------------------------------------------------------------------------------------------------- */

/* One token in four, by a hash of those in front. */
static void allowed_row(uint64_t h, uint32_t *words)
{
    memset(words, 0, (vocab + 31) / 32 * sizeof *words);
    for (uint32_t t = 0; t < vocab; t++)
        words[t / 32] |= (uint32_t)((ds_backend_null_fold(h, (int32_t)t) & 3) == 0) << (t % 32);
}

static uint32_t hashed_masks(void *ctx, uint32_t sample, const int32_t *drafts, uint32_t n, uint32_t *words, size_t ld)
{
    uint64_t h = ((request *)ctx)->read_h[sample];

    assert_int_equal(ld, (vocab + 31) / 32);
    for (uint32_t row = 0;; row++, words += ld) {
        allowed_row(h, words);
        if (row == n || !(words[drafts[row] / 32] >> (drafts[row] % 32) & 1))
            return row + 1;
        h = ds_backend_null_fold(h, drafts[row]);
    }
}

static void hashed_accept(void *ctx, uint32_t sample, const int32_t *tokens, uint32_t n)
{
    request *r = ctx;

    for (uint32_t i = 0; i < n; i++)
        r->read_h[sample] = ds_backend_null_fold(r->read_h[sample], tokens[i]);
}

static const ds_gen_grammar_fn hashed = { hashed_masks, hashed_accept };

/* ---- alone ------------------------------------------------------------------------------------------------------- */

typedef struct {
    request *r;
    uint32_t sample;
    uint64_t h;
    uint32_t words[8192];
} alone_ctx;

static const uint32_t *alone_allowed(void *ctx)
{
    alone_ctx *c = ctx;

    allowed_row(c->h, c->words);
    return c->words;
}

static bool alone_token(void *ctx, const ds_single_token *t)
{
    alone_ctx *c = ctx;
    uint32_t n = c->r->n_want[c->sample]++;

    c->r->want[c->sample][n] = t->id;
    c->r->want_lp[c->sample][n] = t->logprob;
    c->h = ds_backend_null_fold(c->h, t->id);
    return true;
}

static void alone(request *r, uint32_t n, bool exact)
{
    ds_single *s;
    ds_err err;
    ds_single_opts o = { .exact = exact, .max_context = 1024 };

    assert_ok(ds_single_create(&s, lone, &o, &err));
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < r[i].n; k++) {
            alone_ctx c = { .r = &r[i], .sample = k };
            ds_single_result res;
            ds_single_request q = { .prompt = r[i].prompt,
                                    .n_prompt = r[i].n_prompt,
                                    .max_tokens = r[i].max_tokens,
                                    .sampling = DS_SAMPLING_DEFAULT,
                                    .logprobs = true,
                                    .token = alone_token,
                                    .allowed = r[i].constrained ? alone_allowed : NULL,
                                    .ctx = &c };
            q.sampling.temperature = r[i].temperature;
            q.sampling.repetition_penalty = r[i].penalty;
            q.sampling.seed = ds_sample_seed(100 + i, k);
            r[i].n_want[k] = 0;
            assert_ok(ds_single_run(s, &q, &res, &err));
        }
    ds_single_destroy(s);
}

/* ---- on the engine ----------------------------------------------------------------------------------------------- */

static ds_gen_request asked(request *r, uint32_t i)
{
    ds_gen_request q = { .prompt = r->prompt,
                         .n_prompt = r->n_prompt,
                         .max_tokens = r->max_tokens,
                         .n = r->n,
                         .sampling = DS_SAMPLING_DEFAULT,
                         .logprobs = true,
                         .priority = r->priority,
                         .stop_ids = r->stop,
                         .n_stop_ids = r->n_stop,
                         .min_tokens = r->min_tokens,
                         .report_stop_id = r->report_stop_id,
                         .bad = r->bad,
                         .n_bad = r->n_bad,
                         .allowed = r->allowed,
                         .n_allowed = r->n_allowed,
                         .replay = r->reproducible ? DS_REPLAY_NEVER : DS_REPLAY_FREE,
                         .prompt_logprobs = r->score,
                         .n_prompt_top = r->score ? 3 : 0,
                         .cookie = (uintptr_t)r };

    q.sampling.temperature = r->temperature;
    q.sampling.repetition_penalty = r->penalty;
    q.sampling.seed = 100 + i;
    r->grammar = (ds_gen_grammar){ .fn = &hashed, .ctx = r };
    q.grammar = r->constrained ? &r->grammar : NULL;
    return q;
}

static uint64_t add(ds_engine *e, request *r, uint32_t i)
{
    ds_gen_request q = asked(r, i);
    uint64_t id;
    ds_err err;

    memset(r->read_h, 0, sizeof r->read_h);
    memset(r->n_got, 0, sizeof r->n_got);
    r->n_scored = 0;
    assert_ok(ds_engine_add(e, &q, &id, &err));
    return id;
}

static void take_events(ds_engine *e)
{
    ds_event ev[32];
    size_t n;

    while ((n = ds_engine_poll(e, ev, 32)) > 0)
        for (size_t i = 0; i < n; i++) {
            request *r = (request *)(uintptr_t)ev[i].cookie;
            uint32_t s = ev[i].sample;
            if (ev[i].kind == DS_EV_START) {
                r->cached = ev[i].start.cached;
                r->replayed = ev[i].start.replayed;
            } else if (ev[i].kind == DS_EV_PROMPT) {
                uint32_t at = ev[i].token.index;
                assert_int_equal(at, ++r->n_scored);
                assert_int_equal(ev[i].token.id, r->prompt[at]);
                assert_int_equal(r->n_got[0], 0);
                assert_int_equal(s, 0);
                r->score_got[at] = ev[i].token.logprob;
                r->rank[at] = ev[i].token.rank;
                memcpy(r->top_got[at], ev[i].token.top, sizeof r->top_got[at]);
            } else if (ev[i].kind == DS_EV_TOKEN) {
                r->got[s][r->n_got[s]] = ev[i].token.id;
                r->got_lp[s][r->n_got[s]++] = ev[i].token.logprob;
            } else {
                r->reason[s] = ev[i].end.reason;
            }
        }
}

static void run_all(ds_engine *e)
{
    bool more;

    do {
        const char *wrong;
        more = ds_engine_turn(e);
        wrong = ds_engine_check(e);
        if (wrong)
            fail_msg("%s", wrong);
        take_events(e);
    } while (more);
}

static ds_engine *make_engine(ds_engine_opts o, ds_pool *pool)
{
    ds_engine *e;
    ds_err err;

    if (!o.max_context)
        o.max_context = 1024;
    if (!o.max_running)
        o.max_running = 8;
    assert_ok(test_engine_create(&e, model, pool, &o, &err));
    return e;
}

static void compare(const request *r, uint32_t n, const char *how)
{
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t s = 0; s < r[i].n; s++) {
            if (r[i].n_got[s] != r[i].n_want[s])
                fail_msg("%s: request %u sample %u: %u tokens, alone %u", how, i, s, r[i].n_got[s], r[i].n_want[s]);
            for (uint32_t k = 0; k < r[i].n_want[s]; k++)
                if (r[i].got[s][k] != r[i].want[s][k] || memcmp(&r[i].got_lp[s][k], &r[i].want_lp[s][k], sizeof(float)) != 0)
                    fail_msg("%s: request %u sample %u: token %u is %d (%.9g), alone %d (%.9g)", how, i, s, k, r[i].got[s][k],
                             (double)r[i].got_lp[s][k], r[i].want[s][k], (double)r[i].want_lp[s][k]);
        }
}

static void together(request *r, uint32_t n, ds_engine_opts o, ds_pool *pool, const char *how, ds_gen_stats *st)
{
    ds_engine *e = make_engine(o, pool);

    for (uint32_t i = 0; i < n; i++)
        add(e, &r[i], i);
    run_all(e);
    compare(r, n, how);
    if (st)
        ds_engine_stats_get(e, st);
    test_engine_destroy(e);
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

/* A model without draft blocks refuses to draft, and with automatic drafts does without. */
static void no_drafts(void)
{
    request r[N_REQ];
    ds_gen_stats st;
    ds_engine *e;
    ds_err err;

    assert_refused(test_engine_create(&e, model, NULL, &(ds_engine_opts){ .max_context = 1024, .max_running = 8, .drafts = 1 }, &err),
                   DS_E_ARG, "the model makes 0");
    make_requests(r, 5);
    alone(r, N_REQ, true);
    together(r, N_REQ, (ds_engine_opts){ .drafts = DS_ENGINE_DRAFTS_AUTO, .mode = DS_ENGINE_EXACT }, NULL, "automatic drafts", &st);
    assert_int_equal(st.drafted[0], 0);
    free_requests(r, N_REQ);
}

static void a_batch_and_any_chunks(void **state)
{
    static const uint32_t chunks[] = { 512, 24, 61, 128, 200 };

    (void)state;
    for (int mode = 0; mode < 2; mode++) {
        request r[N_REQ];
        make_requests(r, 1);
        alone(r, N_REQ, mode == DS_ENGINE_EXACT);
        for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++)
            together(r, N_REQ, (ds_engine_opts){ .mode = (ds_engine_mode)mode, .step_tokens = chunks[c] }, NULL, "batch", NULL);
        together(r, N_REQ, (ds_engine_opts){ .mode = (ds_engine_mode)mode, .max_running = 1 }, NULL, "one after the other", NULL);
        free_requests(r, N_REQ);
    }
}

static void any_number_of_threads(void **state)
{
    request r[N_REQ];
    ds_err err;

    (void)state;
    make_requests(r, 1);
    alone(r, N_REQ, false);
    for (uint32_t threads = 1; threads < 4; threads++) {
        ds_pool *pool;
        assert_ok(ds_pool_create(&pool, &(ds_pool_opts){ .n_threads = threads }, &err));
        together(r, N_REQ, (ds_engine_opts){ .drafts = ds_model_config(model)->num_nextn_predict_layers ? DS_ENGINE_DRAFTS_AUTO : 0 }, pool,
                 "threads", NULL);
        ds_pool_destroy(pool);
    }
    free_requests(r, N_REQ);
}

/* Drafts as the test wants them: the first `depth` are what comes, the next one isn't. */
static void force_depth(void *ctx, uint64_t cookie, uint32_t sample, uint32_t index, int32_t *drafts, uint32_t n)
{
    const uint32_t *depth = ctx;
    const request *r = (const request *)(uintptr_t)cookie;

    for (uint32_t i = 0; i < n && index + 1 + i < r->n_want[sample]; i++)
        drafts[i] = i < *depth ? r->want[sample][index + 1 + i] : (r->want[sample][index + 1 + i] + 1) % (int32_t)vocab;
}

static void drafts_kept_to_any_depth(void **state)
{
    uint32_t drafts = ds_model_config(model)->num_nextn_predict_layers ? ds_model_config(model)->dspark_block_size : 0;

    (void)state;
    if (drafts == 0) {
        no_drafts();
        return;
    }
    for (int mode = 0; mode < 2; mode++) {
        request r[N_REQ];
        make_requests(r, 5);
        alone(r, N_REQ, mode == DS_ENGINE_EXACT);
        for (uint32_t depth = 0; depth <= drafts; depth++) {
            ds_engine *e = make_engine(
                (ds_engine_opts){ .mode = (ds_engine_mode)mode, .drafts = (int)drafts, .verify_rows = depth % 2 ? 64 : 11 }, NULL);
            ds_gen_stats st;
            ds_backend_model_hook(e->dev, force_depth, &depth);
            for (uint32_t i = 0; i < N_REQ; i++)
                add(e, &r[i], i);
            run_all(e);
            compare(r, N_REQ, "drafts");
            ds_engine_stats_get(e, &st);
            if (depth > 0)
                assert_true(st.kept[depth - 1] > 0);
            if (depth < drafts)
                assert_int_equal(st.kept[depth], 0);
            test_engine_destroy(e);
        }
        together(r, N_REQ, (ds_engine_opts){ .mode = (ds_engine_mode)mode, .drafts = DS_ENGINE_DRAFTS_AUTO }, NULL, "automatic drafts",
                 NULL);
        together(r, N_REQ, (ds_engine_opts){ .mode = (ds_engine_mode)mode, .drafts = 1 }, NULL, "one draft", NULL);
        free_requests(r, N_REQ);
    }
}

/* Ids that came early end the text only behind min_tokens, with drafts and without. */
static void stop_ids_held_back(void **state)
{
    uint32_t drafts = ds_model_config(model)->num_nextn_predict_layers ? ds_model_config(model)->dspark_block_size : 0;
    request r[N_REQ];

    (void)state;
    make_requests(r, 17);
    alone(r, N_REQ, false);
    for (uint32_t i = 0; i < N_REQ; i++) {
        r[i].stop[0] = r[i].want[0][0];
        r[i].stop[1] = r[i].want[0][2];
        r[i].n_stop = 2;
    }
    for (uint32_t min = 0; min <= 11; min += 11) {
        for (uint32_t d = 0; d <= drafts; d += drafts ? drafts : 1) {
            ds_engine *e = make_engine((ds_engine_opts){ .drafts = (int)d }, NULL);
            for (uint32_t i = 0; i < N_REQ; i++) {
                r[i].min_tokens = min;
                add(e, &r[i], i);
            }
            run_all(e);
            test_engine_destroy(e);
            if (d)
                compare(r, N_REQ, "held back, with drafts");
            for (uint32_t i = 0; i < N_REQ; i++) {
                assert_true(min ? r[i].n_got[0] >= min : r[i].n_got[0] == 0);
                for (uint32_t k = 0; k < r[i].n_got[0]; k++)
                    assert_true(r[i].got[0][k] != r[i].stop[0] && r[i].got[0][k] != r[i].stop[1]);
                assert_true(r[i].reason[0] == DS_ENDED_STOP_ID || r[i].n_got[0] == r[i].max_tokens);
                r[i].n_want[0] = r[i].n_got[0];
                memcpy(r[i].want, r[i].got, sizeof r[i].want);
                memcpy(r[i].want_lp, r[i].got_lp, sizeof r[i].want_lp);
            }
        }
    }
    free_requests(r, N_REQ);
}

/* What one id is, reported, is that of the text where it isn't one. */
static void stop_ids_reported(void **state)
{
    request r[N_REQ];
    ds_engine *e = make_engine((ds_engine_opts){ 0 }, NULL);

    (void)state;
    make_requests(r, 17);
    alone(r, N_REQ, false);
    for (uint32_t i = 0; i < N_REQ; i++) {
        r[i].stop[0] = r[i].want[0][4];
        r[i].n_stop = 1;
        r[i].report_stop_id = true;
        for (r[i].n_want[0] = 1; r[i].want[0][r[i].n_want[0] - 1] != r[i].stop[0];)
            r[i].n_want[0]++;
        add(e, &r[i], i);
    }
    run_all(e);
    compare(r, N_REQ, "reported");
    for (uint32_t i = 0; i < N_REQ; i++)
        assert_int_equal(r[i].reason[0], DS_ENDED_STOP_ID);
    test_engine_destroy(e);
    free_requests(r, N_REQ);
}

static bool holds(const request *r)
{
    for (uint32_t k = 0; k < r->n_got[0]; k++) {
        bool allowed = r->n_allowed == 0;
        for (uint32_t i = 0; i < r->n_allowed; i++)
            allowed = allowed || r->allowed[i] == r->got[0][k];
        for (uint32_t i = 0; i < r->n_bad; i++)
            if (k + 1 >= r->bad[i].n && memcmp(&r->got[0][k + 1 - r->bad[i].n], r->bad[i].ids, r->bad[i].n * sizeof(int32_t)) == 0)
                return false;
        if (!allowed)
            return false;
    }
    return true;
}

/* Ids and sequences that may not be drawn aren't, whatever was drafted and whoever had to wait; the rest of a text is
 * the same each way. */
static void token_rules(void **state)
{
    uint32_t drafts = ds_model_config(model)->num_nextn_predict_layers ? ds_model_config(model)->dspark_block_size : 0;
    const ds_engine_opts ways[] = { { 0 },
                                    { .drafts = (int)drafts },
                                    { .max_context = 600, .kv_blocks = 5 },
                                    { .max_context = 600, .kv_blocks = 5, .drafts = (int)drafts },
                                    { .max_running = 2, .step_tokens = 50 } };
    int32_t ids[N_REQ][4];
    request r[N_REQ];

    (void)state;
    make_requests(r, 31);
    alone(r, N_REQ, false);
    for (uint32_t i = 0; i < N_REQ; i++) {
        memcpy(ids[i], r[i].want[0], sizeof ids[i]);
        r[i].bad[0] = (ds_token_seq){ ids[i] + 1, 3 };
        r[i].bad[1] = (ds_token_seq){ ids[i], 1 };
        r[i].n_bad = i % 3 ? 2 : 1;
        r[i].n_allowed = i % 2 ? 0 : 10;
        for (uint32_t k = 0; k < r[i].n_allowed; k++)
            r[i].allowed[k] = r[i].want[0][k];
        if (i == 2) { /* masks alone, the same for all rows of a step */
            r[i].n_bad = 0;
        } else if (i % 3 == 0) {
            r[i].bad[0].ids = ids[i];
            r[i].bad[0].n = 2;
        }
    }
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        ds_engine *e = make_engine(ways[w], NULL);
        for (uint32_t i = 0; i < N_REQ; i++)
            add(e, &r[i], i);
        run_all(e);
        test_engine_destroy(e);
        if (w)
            compare(r, N_REQ, "rules");
        for (uint32_t i = 0; i < N_REQ; i++) {
            assert_true(holds(&r[i]) && r[i].n_got[0] > 3);
            r[i].n_want[0] = r[i].n_got[0];
            memcpy(r[i].want, r[i].got, sizeof r[i].want);
            memcpy(r[i].want_lp, r[i].got_lp, sizeof r[i].want_lp);
        }
    }
    free_requests(r, N_REQ);
}

static void preempted_or_not(void **state)
{
    (void)state;
    for (int mode = 0; mode < 2; mode++) {
        request r[N_REQ];
        ds_gen_stats st;
        ds_engine *e;
        make_requests(r, 9);
        for (uint32_t i = 0; i < N_REQ; i++) {
            r[i].priority = 0;
            r[i].n_prompt = 96 + 5 * i;
            r[i].max_tokens = 96;
            free(r[i].prompt);
            r[i].prompt = random_prompt(r[i].n_prompt, i);
        }
        alone(r, N_REQ, mode == DS_ENGINE_EXACT);
        /* by recompute: three begin, and grow to six blocks where there are five; with saved states and without any to be found */
        together(r, N_REQ, (ds_engine_opts){ .mode = (ds_engine_mode)mode, .max_context = 600, .kv_blocks = 5 }, NULL, "few blocks", &st);
        assert_true(st.preempted_recomputed > 0);
        together(r, N_REQ, (ds_engine_opts){ .mode = (ds_engine_mode)mode, .max_context = 600, .kv_blocks = 5, .no_prefix_cache = true },
                 NULL, "few blocks, no cache", &st);
        assert_true(st.preempted_recomputed > 0);
        /* by keeping blocks: better ones come while all seats are taken */
        e = make_engine((ds_engine_opts){ .mode = (ds_engine_mode)mode, .max_running = 2 }, NULL);
        for (uint32_t i = 0; i < N_REQ; i++) {
            r[i].priority = N_REQ - 1 - i;
            add(e, &r[i], i);
            for (int k = 0; k < 12; k++)
                ds_engine_turn(e);
        }
        run_all(e);
        compare(r, N_REQ, "better ones come");
        ds_engine_stats_get(e, &st);
        assert_true(st.preempted_parked > 0);
        test_engine_destroy(e);
        free_requests(r, N_REQ);
    }
}

static void samples_of_one_prompt(void **state)
{
    static const uint32_t prompts[] = { 1, 2, 40, 128, 129, 200 };

    (void)state;
    for (int mode = 0; mode < 2; mode++)
        for (size_t k = 0; k < sizeof prompts / sizeof *prompts; k++) {
            request r = {
                .n_prompt = prompts[k], .max_tokens = 20, .temperature = 1.0, .penalty = 1.0, .n = 4, .prompt = random_prompt(prompts[k], 3)
            };
            alone(&r, 1, mode == DS_ENGINE_EXACT);
            together(&r, 1, (ds_engine_opts){ .mode = (ds_engine_mode)mode }, NULL, "samples", NULL);
            together(&r, 1,
                     (ds_engine_opts){ .mode = (ds_engine_mode)mode,
                                       .max_running = 2,
                                       .drafts = ds_model_config(model)->num_nextn_predict_layers ? 1 : 0 },
                     NULL, "samples, two seats", NULL);
            free(r.prompt);
        }
}

/* Constrained texts among others: whatever chunks, drafts that are right, wrong or not allowed, preemption, samples. */
static void constrained_texts(void **state)
{
    uint32_t drafts = ds_model_config(model)->num_nextn_predict_layers ? ds_model_config(model)->dspark_block_size : 0;

    (void)state;
    for (int mode = 0; mode < 2; mode++) {
        request r[N_REQ], four = { .n_prompt = 40, .max_tokens = 20, .temperature = 1.0, .penalty = 1.0, .n = 4, .constrained = true };
        ds_gen_stats st;
        make_requests(r, 21);
        for (uint32_t i = 0; i < N_REQ; i++) {
            r[i].constrained = i % 3 != 1;
            r[i].priority = 0;
            r[i].n_prompt = 96 + 5 * i;
            r[i].max_tokens = 96;
            free(r[i].prompt);
            r[i].prompt = random_prompt(r[i].n_prompt, i);
        }
        alone(r, N_REQ, mode == DS_ENGINE_EXACT);
        for (uint32_t depth = 0; depth <= drafts + 1; depth++) { /* the last: what the model proposes, mostly not allowed */
            ds_engine *e = make_engine((ds_engine_opts){ .mode = (ds_engine_mode)mode, .drafts = (int)drafts }, NULL);
            if (depth <= drafts)
                ds_backend_model_hook(e->dev, force_depth, &depth);
            for (uint32_t i = 0; i < N_REQ; i++)
                add(e, &r[i], i);
            run_all(e);
            compare(r, N_REQ, "constrained, with drafts");
            ds_engine_stats_get(e, &st);
            assert_true(depth == 0 || depth > drafts || st.kept[depth - 1] > 0);
            test_engine_destroy(e);
        }
        together(r, N_REQ, (ds_engine_opts){ .mode = (ds_engine_mode)mode, .step_tokens = 24 }, NULL, "constrained, small chunks", NULL);
        together(r, N_REQ, (ds_engine_opts){ .mode = (ds_engine_mode)mode, .max_context = 600, .kv_blocks = 5, .drafts = (int)drafts },
                 NULL, "constrained, few blocks", &st);
        assert_true(st.preempted_recomputed > 0);
        four.prompt = random_prompt(four.n_prompt, 3);
        alone(&four, 1, mode == DS_ENGINE_EXACT);
        together(&four, 1, (ds_engine_opts){ .mode = (ds_engine_mode)mode, .max_running = 2, .drafts = (int)drafts }, NULL,
                 "constrained samples, two seats", NULL);
        free(four.prompt);
        free_requests(r, N_REQ);
    }
}

/* Masks that wait for a gate, from question `first` on. */
static struct {
    pthread_mutex_t mu;
    pthread_cond_t opened;
    bool open;
    uint32_t calls, first;
} gate = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, 0, 0 };

static uint32_t gated_masks(void *ctx, uint32_t sample, const int32_t *drafts, uint32_t n, uint32_t *words, size_t ld)
{
    pthread_mutex_lock(&gate.mu);
    gate.calls++;
    while (gate.calls >= gate.first && !gate.open)
        pthread_cond_wait(&gate.opened, &gate.mu);
    pthread_mutex_unlock(&gate.mu);
    return hashed_masks(ctx, sample, drafts, n, words, ld);
}

static const ds_gen_grammar_fn gated = { gated_masks, hashed_accept };

static void *open_gate(void *after)
{
    if (after)
        usleep(20000);
    pthread_mutex_lock(&gate.mu);
    gate.open = true;
    pthread_cond_broadcast(&gate.opened);
    pthread_mutex_unlock(&gate.mu);
    return NULL;
}

/* While a mask isn't there, everybody else's text is finished; then that one goes on, with the tokens that it has
 * alone. A cancelled one ends when its mask is made, and nothing is asked of its grammar afterwards. */
static void a_late_mask_holds_back_its_own_rows(void **state)
{
    uint32_t drafts = ds_model_config(model)->num_nextn_predict_layers ? ds_model_config(model)->dspark_block_size : 0;
    request r[3];
    ds_err err;

    (void)state;
    for (uint32_t i = 0; i < 3; i++)
        r[i] = (request){ .n_prompt = 20,
                          .max_tokens = 40,
                          .temperature = 1.0,
                          .penalty = 1.0,
                          .n = 1,
                          .prompt = random_prompt(20, i),
                          .constrained = i < 2 };
    alone(r, 3, false);
    for (uint32_t d = 0; d <= drafts; d += drafts ? drafts : 1)
        for (uint32_t first = 1; first < 4; first++) {
            ds_engine *e = make_engine((ds_engine_opts){ .drafts = (int)d }, NULL);
            ds_gen_request q = { .prompt = r[0].prompt,
                                 .n_prompt = 20,
                                 .max_tokens = 40,
                                 .sampling = DS_SAMPLING_DEFAULT,
                                 .logprobs = true,
                                 .grammar = &r[0].grammar,
                                 .cookie = (uintptr_t)&r[0] };
            uint64_t id;
            pthread_t opener;
            bool cancel = first == 3;
            gate.open = false;
            gate.calls = 0;
            gate.first = first;
            r[0].grammar = (ds_gen_grammar){ .fn = &gated, .ctx = &r[0] };
            r[0].n_got[0] = 0;
            r[0].read_h[0] = 0;
            q.sampling.seed = 100;
            assert_ok(ds_engine_add(e, &q, &id, &err));
            add(e, &r[1], 1);
            add(e, &r[2], 2);
            while (r[1].n_got[0] < 40 || r[2].n_got[0] < 40) {
                ds_engine_turn(e);
                take_events(e);
            }
            assert_true(r[0].n_got[0] >= first - 1 && r[0].n_got[0] <= (first - 1) * (1 + d));
            if (cancel)
                ds_engine_cancel(e, id);
            assert_int_equal(pthread_create(&opener, NULL, open_gate, cancel ? &gate : NULL), 0);
            run_all(e);
            pthread_join(opener, NULL);
            if (cancel) {
                assert_int_equal(r[0].reason[0], DS_ENDED_CANCELED);
                assert_int_equal(gate.calls, first);
            } else {
                compare(r, 3, "late masks");
            }
            test_engine_destroy(e);
        }
    free_requests(r, 3);
}

/* One conversation's prompt, again and again with another length, at every length modulo a block; and what its
 * answers leave behind. */
static void hits_from_saved_state(void **state)
{
    (void)state;
    for (int mode = 0; mode < 2; mode++) {
        ds_engine_opts o = { .mode = (ds_engine_mode)mode, .no_replay = true, .saved_states = 16 };
        ds_engine *e = make_engine(o, NULL);
        int32_t *base = random_prompt(700, 77);
        uint32_t hits = 0;
        for (uint32_t len = 262; len < 262 + BLOCK; len += 1 + len % 2) {
            request r = {
                .n_prompt = len, .max_tokens = 3, .temperature = 1.0, .penalty = 1.0, .n = 1, .prompt = malloc(len * sizeof(int32_t))
            };
            memcpy(r.prompt, base, len * sizeof *base);
            if (len % 3 == 0)
                r.prompt[len - 1 - len % 100] = 5; /* the tail differs, the prefix doesn't */
            alone(&r, 1, mode == DS_ENGINE_EXACT);
            add(e, &r, 0);
            run_all(e);
            compare(&r, 1, "hit");
            assert_int_equal(r.replayed, 0);
            assert_true(r.cached <= len - 134 && r.cached % BLOCK == 0);
            hits += r.cached > 0;
            free(r.prompt);
        }
        assert_true(hits > 60);
        test_engine_destroy(e);

        /* the second turn goes on from the state that the first one's answer left */
        e = make_engine(o, NULL);
        request first = { .n_prompt = 200, .max_tokens = 90, .temperature = 1.0, .penalty = 1.0, .n = 1, .prompt = random_prompt(200, 8) };
        alone(&first, 1, mode == DS_ENGINE_EXACT);
        add(e, &first, 0);
        run_all(e);
        compare(&first, 1, "first turn");
        request second = {
            .n_prompt = 290 + 150, .max_tokens = 20, .temperature = 1.0, .penalty = 1.0, .n = 1, .prompt = malloc(440 * sizeof(int32_t))
        };
        memcpy(second.prompt, first.prompt, 200 * sizeof(int32_t));
        memcpy(second.prompt + 200, first.got[0], 90 * sizeof(int32_t));
        memcpy(second.prompt + 290, base, 150 * sizeof(int32_t));
        alone(&second, 1, mode == DS_ENGINE_EXACT);
        add(e, &second, 0);
        run_all(e);
        assert_int_equal(second.cached, 256);
        compare(&second, 1, "second turn");
        free(first.prompt);
        free(second.prompt);
        test_engine_destroy(e);
        free(base);
    }
}

/* A device pool that holds one prompt, and host memory behind it: what others pushed out comes back with the bits
 * that it had. */
static void hits_from_host_memory(void **state)
{
    ds_model_layout lay;

    (void)state;
    ds_model_layout_get(model, &lay);
    for (int way = 0; way < 4; way++) { /* exact; CED with states only; CED by replay; CED by replay, with the seed's promise */
        ds_engine_opts o = { .mode = way == 0 ? DS_ENGINE_EXACT : DS_ENGINE_CED,
                             .no_replay = way == 1,
                             .max_running = 1,
                             .kv_blocks = 8,
                             .saved_states = 2,
                             .kv_memory = 8 * (16 * lay.block_bytes + lay.slot_bytes + DS_KV_STATE_HEADER) };
        request first = { .n_prompt = 400,
                          .max_tokens = 8,
                          .temperature = 1.0,
                          .penalty = 1.0,
                          .n = 1,
                          .reproducible = way == 3,
                          .prompt = random_prompt(400, 4) };
        ds_engine *e = make_engine(o, NULL);
        ds_gen_stats st;
        ds_gen_plan plan;
        ds_err err;

        err.msg[0] = 0;
        assert_ok(ds_engine_plan_of(e, &plan));
        assert_int_equal(plan.host_blocks, 128);
        assert_int_equal(plan.host_states, 8);
        assert_true(plan.host_kv == o.kv_memory && plan.total > plan.host_kv);
        alone(&first, 1, way == 0);
        if (way == 2) { /* what the hit gives when nothing ever leaves the device */
            ds_engine *wide = make_engine((ds_engine_opts){ .mode = DS_ENGINE_CED, .max_running = 1 }, NULL);
            for (int i = 0; i < 2; i++) {
                add(wide, &first, 0);
                run_all(wide);
            }
            assert_int_equal(first.replayed, wide->dev->window);
            first.n_want[0] = first.n_got[0];
            memcpy(first.want, first.got, sizeof first.want);
            memcpy(first.want_lp, first.got_lp, sizeof first.want_lp);
            test_engine_destroy(wide);
        }
        for (int round = 0; round < 3; round++) {
            add(e, &first, 0);
            run_all(e);
            if (way != 2 || round > 0)
                compare(&first, 1, "host memory");
            assert_int_equal(first.cached, round ? 256 : 0);
            assert_int_equal(first.replayed, way == 2 && round ? e->dev->window : 0);
            ds_engine_stats_get(e, &st);
            assert_int_equal(st.hit_host_tokens, 256 * round);
            for (int other = 0; other < 2; other++) {
                request r = { .n_prompt = 900,
                              .max_tokens = 3,
                              .temperature = 1.0,
                              .penalty = 1.0,
                              .n = 1,
                              .prompt = random_prompt(900, 100 + 10 * round + other) };
                add(e, &r, 0);
                run_all(e);
                assert_int_equal(r.n_got[0], 3);
                free(r.prompt);
            }
        }
        free(first.prompt);
        test_engine_destroy(e);
    }
}

static uint32_t middle(uint32_t below)
{
    return below / 2;
}

/* All leave an engine after some tokens, go on in another with or without saved blocks, or with the tokens alone.
 * in_step: blocks that go beside the record in a step; 0: none do. */
static void hand_over(request *r, ds_engine_opts o, fake_store *store, bool gone, uint32_t in_step)
{
    ds_engine_export *x[N_REQ] = { NULL };
    ds_store fns;
    ds_engine *e;
    uint64_t id[N_REQ];
    ds_gen_stats st;
    ds_err err;

    if (store) {
        fns = fake_store_store(store);
        o.store = &fns;
    }
    o.handoff = gone ? 0 : in_step ? in_step : 1;
    e = make_engine(o, NULL);
    for (uint32_t i = 0; i < N_REQ; i++)
        id[i] = add(e, &r[i], i);
    for (bool more = true; more;) {
        more = ds_engine_turn(e);
        assert_null(ds_engine_check(e));
        take_events(e);
        if (store)
            fake_store_turn(store);
        for (uint32_t i = 0; i < N_REQ; i++)
            if (gone && r[i].n_got[0] > i)
                ds_engine_cancel(e, id[i]);
            else if (!x[i] && r[i].n_got[0] > i)
                assert_ok(ds_engine_export_begin(&x[i], e, id[i], (ds_engine_export_how){ .with_blocks = in_step > 0 }, &err));
    }
    test_engine_destroy(e);
    e = make_engine(o, NULL);
    for (uint32_t i = 0; i < N_REQ; i++) {
        ds_gen_request q = asked(&r[i], i);
        assert_int_equal(r[i].reason[0], DS_ENDED_CANCELED);
        assert_true(r[i].n_got[0] < r[i].n_want[0]);
        q.output = gone ? r[i].got[0] : NULL;
        q.n_output = gone ? r[i].n_got[0] : 0;
        assert_ok(gone ? ds_engine_add(e, &q, &id[i], &err) : import_left(e, &q, x[i], &id[i], &err));
    }
    run_all(e);
    compare(r, N_REQ, gone ? "gone on behind" : store ? "handed over" : in_step ? "handed over with blocks" : "handed over without blocks");
    ds_engine_stats_get(e, &st);
    assert_int_equal(st.computed_tokens > 0, !store && !in_step);
    test_engine_destroy(e);
}

static void handed_over(void **state)
{
    ds_model_layout lay;

    (void)state;
    ds_model_layout_get(model, &lay);
    for (int mode = 0; mode < 2; mode++)
        for (int drafts = 0; drafts < (ds_model_config(model)->num_nextn_predict_layers ? 2 : 1); drafts++) {
            ds_engine_opts o = { .mode = (ds_engine_mode)mode, .drafts = drafts ? DS_ENGINE_DRAFTS_AUTO : 0 };
            fake_store *store = fake_store_new(&(fake_store_opts){ .rnd = middle, .records = 200, .per_cent = 100, .on_commit = true },
                                               lay.block_bytes, DS_KV_STATE_HEADER + lay.slot_bytes);
            request r[N_REQ];
            make_requests(r, 9);
            alone(r, N_REQ, mode == DS_ENGINE_EXACT);
            hand_over(r, o, store, false, 2 * drafts);
            hand_over(r, o, NULL, false, 0);
            hand_over(r, o, NULL, false, 1);
            hand_over(r, o, NULL, false, 64);
            hand_over(r, o, NULL, true, 0);
            free_requests(r, N_REQ);
            fake_store_free(store);
        }
}

/* By replay: blocks are found, the window state isn't. The continuation is close, not equal; the same one is made
 * each time. */
static void hits_by_replay(void **state)
{
    ds_engine *e = make_engine((ds_engine_opts){ .mode = DS_ENGINE_CED }, NULL);
    request r = { .n_prompt = 400, .max_tokens = 8, .temperature = 0.0, .penalty = 1.0, .n = 1, .prompt = random_prompt(400, 4) };
    int32_t again[MAX_OUT];
    ds_gen_stats st;

    (void)state;
    for (int turn = 0; turn < 3; turn++) {
        add(e, &r, 0);
        run_all(e);
        assert_int_equal(r.n_got[0], 8);
        assert_int_equal(r.cached, turn ? 256 : 0);
        assert_int_equal(r.replayed, turn ? e->dev->window : 0);
        if (turn == 2)
            assert_memory_equal(again, r.got[0], 8 * sizeof *again);
        memcpy(again, r.got[0], 8 * sizeof *again);
    }
    ds_engine_stats_get(e, &st);
    assert_int_equal(st.hit_replay_tokens, 512);
    test_engine_destroy(e);
    free(r.prompt);
}

/* A longer replay: one of the whole prefix has the bits of a cold run. */
static void replays_of_any_length(void **state)
{
    const uint32_t keeps[] = { 0, 17, 100, 255, 256, 1000 };
    ds_engine_opts o = { .mode = DS_ENGINE_CED };
    float cold[8];
    ds_err err;
    ds_engine *e;

    (void)state;
    for (size_t k = 0; k < sizeof keeps / sizeof *keeps; k++) {
        request r = { .n_prompt = 400, .max_tokens = 8, .temperature = 0.0, .penalty = 1.0, .n = 1, .prompt = random_prompt(400, 4) };
        o.replay_keep = keeps[k];
        e = make_engine(o, NULL);
        for (int turn = 0; turn < 2; turn++) {
            uint32_t keep = keeps[k] ? keeps[k] : e->dev->window;
            add(e, &r, 0);
            run_all(e);
            assert_int_equal(r.replayed, turn == 0 ? 0 : keep < 256 ? keep : 256);
            if (turn == 0)
                memcpy(cold, r.got_lp[0], sizeof cold);
            else if (keep >= 256)
                assert_memory_equal(cold, r.got_lp[0], sizeof cold);
        }
        test_engine_destroy(e);
        free(r.prompt);
    }
    o.replay_keep = 1;
    assert_int_equal(test_engine_create(&e, model, NULL, &o, &err), DS_E_ARG);
    assert_non_null(strstr(err.msg, "replay_keep"));
}

/* A request that must reproduce, among others that replay and leave what they computed: it has the bits of a cold
 * run, of its own leavings, and takes the keys of theirs over. */
static void reproducible_among_replays(void **state)
{
    int32_t *base = random_prompt(900, 91);
    static const struct {
        uint32_t n_prompt;
        bool reproducible, hits;
    } turn[] = {
        { 300, false, false }, /* leaves exact blocks and no state */
        { 560, false, true },  /* replays, leaves approximate blocks behind */
        { 840, true, false },  /* neither replays nor rests on them */
        { 840, true, true },   /* goes on from the state that it left */
        { 700, true, false },  /* its blocks are exact now, but no state is at this border */
        { 700, false, true },  { 840, true, true },
    };

    (void)state;
    for (uint32_t seats = 1; seats < 3; seats++) {
        ds_engine *e = make_engine((ds_engine_opts){ .mode = DS_ENGINE_CED, .saved_states = 16, .max_running = seats }, NULL);
        for (uint32_t i = 0; i < sizeof turn / sizeof *turn; i++) {
            request r = { .n_prompt = turn[i].n_prompt,
                          .max_tokens = 8,
                          .temperature = 1.0,
                          .penalty = 1.0,
                          .n = 1 + (turn[i].reproducible && seats == 2),
                          .reproducible = turn[i].reproducible,
                          .prompt = base };
            add(e, &r, 0);
            run_all(e);
            assert_int_equal(r.cached > 0, turn[i].hits);
            if (!turn[i].reproducible)
                continue;
            assert_int_equal(r.replayed, 0);
            alone(&r, 1, false);
            compare(&r, 1, "reproducible");
        }
        test_engine_destroy(e);
    }
    free(base);
}

static ds_rc want_scores(void *ctx, const float *logits, uint32_t rows, uint32_t V, ds_err *err)
{
    request *r = ctx;
    ds_logprob top[3];

    (void)err;
    for (uint32_t i = 0; i < rows; i++, logits += V) {
        uint32_t at = ++r->n_scored;
        if (at >= r->n_prompt)
            break;
        ds_logprobs(logits, V, r->prompt[at], &r->score_want[at], top, 3);
        for (int t = 0; t < 3; t++)
            r->top_want[at][t] = (ds_gen_logprob){ top[t].id, top[t].logprob };
    }
    return DS_OK;
}

/* Log-probabilities of a prompt are those of `deepserve logits` in exact mode, bit for bit, in both modes, among
 * others and in any chunks, whatever is cached; what follows them is what exact mode says. */
static void scored_prompts(void **state)
{
    static const struct {
        uint32_t step_tokens, seats, kv_blocks;
    } how[] = { { 512, 8, 0 }, { 24, 8, 0 }, { 100, 2, 0 }, { 64, 3, 9 } };
    request r[N_REQ];
    ds_err err;

    (void)state;
    make_requests(r, 31);
    r[4].n = 2;
    alone(r, N_REQ, true);
    for (uint32_t i = 0; i < N_REQ; i++) {
        ds_runner *run;
        ds_solo solo = { 0 };
        r[i].score = true;
        assert_ok(ds_runner_create(&run, lone,
                                   &(ds_runner_opts){ .max_rows = 512, .max_logits = 512, .max_context = 512, .no_drafts = true }, &err));
        assert_ok(ds_solo_init(&solo, run, 512, false, &err));
        r[i].n_scored = 0;
        assert_ok(ds_solo_prefill(&solo, r[i].prompt, r[i].n_prompt, r[i].n_prompt, want_scores, &r[i], &err));
        ds_solo_fini(&solo);
        ds_runner_destroy(run);
    }
    for (int mode = 0; mode < 2; mode++)
        for (size_t k = 0; k < sizeof how / sizeof *how; k++) {
            ds_engine *e = make_engine((ds_engine_opts){ .mode = (ds_engine_mode)mode,
                                                         .step_tokens = how[k].step_tokens,
                                                         .max_running = how[k].seats,
                                                         .kv_blocks = how[k].kv_blocks,
                                                         .max_context = 512 },
                                       NULL);
            for (int turn = 0; turn < 2; turn++) { /* the second time others have left the same prefix */
                request other[N_REQ];
                make_requests(other, 31);
                for (uint32_t i = 0; i < N_REQ; i++) {
                    add(e, &other[i], i);
                    add(e, &r[i], i);
                }
                run_all(e);
                compare(r, N_REQ, "scored");
                for (uint32_t i = 0; i < N_REQ; i++) {
                    assert_int_equal(r[i].n_scored, r[i].n_prompt - 1);
                    assert_int_equal(r[i].cached, 0);
                    for (uint32_t at = 1; at < r[i].n_prompt; at++) {
                        if (memcmp(&r[i].score_got[at], &r[i].score_want[at], sizeof(float)) != 0)
                            fail_msg("prompt %u, position %u: %.9g, alone %.9g", i, at, (double)r[i].score_got[at],
                                     (double)r[i].score_want[at]);
                        assert_memory_equal(r[i].top_got[at], r[i].top_want[at], sizeof r[i].top_got[at]);
                        assert_int_equal(r[i].rank[at] == 1, r[i].top_got[at][0].logprob == r[i].score_got[at]);
                    }
                }
                free_requests(other, N_REQ);
            }
            test_engine_destroy(e);
        }
    free_requests(r, N_REQ);
}

/* Requests with a common prefix at the same time: the first computes it, the others wait for its blocks. */
static void waiting_for_a_prefix(void **state)
{
    (void)state;
    for (int mode = 0; mode < 2; mode++) {
        request r[4];
        ds_gen_stats st;
        int32_t *base = random_prompt(600, 21);
        for (uint32_t i = 0; i < 4; i++) {
            r[i] = (request){ .n_prompt = 420 + 30 * i,
                              .max_tokens = 5,
                              .temperature = 1.0,
                              .penalty = 1.0,
                              .n = 1,
                              .prompt = malloc(600 * sizeof(int32_t)) };
            memcpy(r[i].prompt, base, 600 * sizeof(int32_t));
            r[i].prompt[270 + i] = (int32_t)i; /* they part inside the third block */
        }
        alone(r, 4, mode == DS_ENGINE_EXACT);
        together(r, 4, (ds_engine_opts){ .mode = (ds_engine_mode)mode, .no_replay = true, .step_tokens = 64 }, NULL, "waiting", &st);
        for (uint32_t i = 1; i < 4; i++)
            assert_int_equal(r[i].cached, 256);
        assert_int_equal(st.computed_tokens, 420 + (450 + 480 + 510) - 3 * 256);
        for (uint32_t i = 0; i < 4; i++)
            free(r[i].prompt);
        free(base);
    }
}

/* Windows and rings wrap: prompts around the window's and the ring's length, answers longer than both. */
static void rings_wrap(void **state)
{
    uint32_t w = ds_model_config(model)->sliding_window;
    uint32_t lengths[] = { w - 1, w, w + 1, w + 5, w + 6, w + 7, 2 * w + 12 };

    (void)state;
    for (int mode = 0; mode < 2; mode++) {
        request r[7];
        for (uint32_t i = 0; i < 7; i++)
            r[i] = (request){ .n_prompt = lengths[i],
                              .max_tokens = 90,
                              .temperature = 1.0,
                              .penalty = 1.0,
                              .n = 1,
                              .prompt = random_prompt(lengths[i], 50 + i) };
        alone(r, 7, mode == DS_ENGINE_EXACT);
        together(r, 7,
                 (ds_engine_opts){ .mode = (ds_engine_mode)mode,
                                   .drafts = ds_model_config(model)->num_nextn_predict_layers ? DS_ENGINE_DRAFTS_AUTO : 0 },
                 NULL, "rings", NULL);
        free_requests(r, 7);
    }
}

/* Pictures: the engine's bits are those of ds_solo with the same embeddings, chunked anywhere, cold, after a hit
 * inside the picture, and after one with another picture. */
static ds_rc keep_row(void *ctx, const float *logits, uint32_t rows, uint32_t v, ds_err *err)
{
    (void)err;
    memcpy(ctx, logits + (size_t)(rows - 1) * v, v * sizeof *logits);
    return DS_OK;
}

static void greedy_alone(const int32_t *prompt, uint32_t n, const float *const *image, bool ced, int32_t *out, uint32_t n_out)
{
    ds_runner *run;
    ds_solo solo;
    float *row = calloc(vocab, sizeof *row);
    const float *logits = row;
    ds_err err;

    assert_ok(ds_runner_create(&run, lone, &(ds_runner_opts){ .max_context = 1024, .n_tails = 1, .no_drafts = true }, &err));
    assert_ok(ds_solo_init(&solo, run, 256, ced, &err));
    solo.image = image;
    assert_ok(ds_solo_prefill(&solo, prompt, n, 1, keep_row, row, &err));
    solo.image = NULL;
    for (uint32_t i = 0; i < n_out; i++) {
        out[i] = ds_argmax(logits, vocab);
        assert_ok(ds_solo_decode(&solo, &out[i], 1, &logits, &err));
    }
    ds_solo_fini(&solo);
    ds_runner_destroy(run);
    free(row);
}

/* A model without a vision tower fails that request, and the next one is answered. */
static void no_pictures(const int32_t *prompt, uint32_t n)
{
    ds_engine *e = make_engine((ds_engine_opts){ 0 }, NULL);
    float *cell = calloc(ds_model_config(model)->hidden_size, sizeof *cell);
    ds_gen_image image = { .pos = 1, .n = 1, .embedding = cell };

    for (int k = 0; k < 2; k++) {
        request r = { .n = 1 };
        ds_gen_request q = { .prompt = prompt,
                             .n_prompt = n,
                             .max_tokens = 2,
                             .sampling = DS_SAMPLING_DEFAULT,
                             .images = &image,
                             .n_images = k == 0,
                             .cookie = (uintptr_t)&r };
        uint64_t id;
        ds_err err;
        assert_ok(ds_engine_add(e, &q, &id, &err));
        run_all(e);
        assert_int_equal(r.reason[0], k == 0 ? DS_ENDED_FAILED : DS_ENDED_LENGTH);
    }
    test_engine_destroy(e);
    free(cell);
}

static void pictures(void **state)
{
    enum { N = 420, POS = 100, LEN = 90, OUT = 10 };
    uint32_t d = ds_model_config(model)->hidden_size, rnd = 3;
    float *cells[2];
    const float *at[N] = { NULL };
    int32_t *prompt = random_prompt(N, 6), want[OUT];

    (void)state;
    if (ds_model_config(model)->vision.num_hidden_layers == 0) {
        no_pictures(prompt, N);
        free(prompt);
        return;
    }
    for (int k = 0; k < 2; k++) {
        cells[k] = malloc((size_t)LEN * d * sizeof(float));
        for (uint32_t i = 0; i < LEN * d; i++)
            cells[k][i] = (float)(int)(next_random(&rnd) % 2001 - 1000) / 40000.0f;
    }
    for (uint32_t i = 0; i < LEN; i++)
        prompt[POS + i] = 1 << 20; /* nobody looks at it */
    for (int mode = 0; mode < 2; mode++)
        for (uint32_t chunk = 0; chunk < 3; chunk++) {
            static const uint32_t chunks[] = { 512, 37, 128 };
            ds_engine *e = make_engine(
                (ds_engine_opts){ .mode = (ds_engine_mode)mode, .no_replay = true, .step_tokens = chunks[chunk], .max_running = 2 }, NULL);
            for (int turn = 0; turn < 4; turn++) {
                int which = turn == 2;
                request r = { .n = 1 };
                ds_gen_image image = { .pos = POS, .n = LEN, .embedding = cells[which], .digest = { (uint8_t)which } };
                ds_gen_request q = { .prompt = prompt,
                                     .n_prompt = N,
                                     .max_tokens = OUT,
                                     .sampling = DS_SAMPLING_DEFAULT,
                                     .images = &image,
                                     .n_images = 1,
                                     .cookie = (uintptr_t)&r };
                uint64_t id;
                ds_err err;
                for (uint32_t i = 0; i < LEN; i++)
                    at[POS + i] = cells[which] + (size_t)i * d;
                greedy_alone(prompt, N, at, mode == DS_ENGINE_CED, want, OUT);
                q.sampling.temperature = 0.0;
                q.sampling.repetition_penalty = 1.0;
                assert_ok(ds_engine_add(e, &q, &id, &err));
                run_all(e);
                assert_int_equal(r.n_got[0], OUT);
                assert_memory_equal(r.got[0], want, sizeof want);
                assert_int_equal(r.cached, turn % 2 || turn == 3 ? 256 : 0);
            }
            test_engine_destroy(e);
        }
    free(cells[0]);
    free(cells[1]);
    free(prompt);
}

/* Drafts never bend the distribution: three tokens, each of two candidates, with all drafts verified. The share of
 * each of the eight texts is what the model's own probabilities say (chi-square with 7 degrees of freedom; 36 is
 * passed once in 140,000 times, and the seeds are fixed). */
static void drafts_keep_the_distribution(void **state)
{
    enum { N = 3000, DEEP = 3, TEXTS = 1 << DEEP };
    uint32_t drafts = ds_model_config(model)->num_nextn_predict_layers ? ds_model_config(model)->dspark_block_size : 0, kept = 0;
    int32_t *prompt = random_prompt(40, 12), candidate[TEXTS * 2];
    double p[TEXTS * 2] = { 0 }, chi2 = 0.0;
    uint32_t seen[TEXTS] = { 0 }, node[64] = { 0 }, total = 0;
    bool known[TEXTS] = { false };
    ds_engine *e;
    ds_gen_stats st;

    (void)state; /* a model without draft blocks draws as well */
    e = make_engine((ds_engine_opts){ .drafts = (int)drafts, .max_running = 16, .mode = DS_ENGINE_EXACT }, NULL);
    for (uint32_t first = 0; first < N; first += 50) {
        bool more;
        for (uint32_t i = 0; i < 50; i++) {
            ds_gen_request q = { .prompt = prompt,
                                 .n_prompt = 40,
                                 .max_tokens = DEEP,
                                 .sampling = DS_SAMPLING_DEFAULT,
                                 .logprobs = true,
                                 .n_top = 2,
                                 .cookie = (uintptr_t)&node[i] };
            uint64_t id;
            ds_err err;
            q.sampling.top_k = 2;
            q.sampling.seed = 7000 + first + i;
            node[i] = 1; /* of a binary tree of what was drawn so far; leaves are TEXTS .. 2 TEXTS - 1 */
            assert_ok(ds_engine_add(e, &q, &id, &err));
        }
        do {
            ds_event ev;
            more = ds_engine_turn(e);
            while (ds_engine_poll(e, &ev, 1))
                if (ev.kind == DS_EV_TOKEN) {
                    uint32_t *at = (uint32_t *)(uintptr_t)ev.cookie;
                    if (!known[*at]) {
                        double a = exp((double)ev.token.top[0].logprob), b = exp((double)ev.token.top[1].logprob);
                        known[*at] = true;
                        p[2 * *at] = a / (a + b);
                        p[2 * *at + 1] = b / (a + b);
                        candidate[*at] = ev.token.top[0].id;
                    }
                    *at = 2 * *at + (ev.token.id != candidate[*at]);
                    if (*at >= TEXTS) {
                        seen[*at - TEXTS]++;
                        total++;
                    }
                }
        } while (more);
    }
    assert_int_equal(total, N);
    for (uint32_t t = 0; t < TEXTS; t++) {
        double want = N;
        for (uint32_t at = t + TEXTS; at > 1; at /= 2)
            want *= p[at];
        chi2 += (seen[t] - want) * (seen[t] - want) / want;
    }
    if (chi2 > 36.0)
        fail_msg("chi-square is %g", chi2);
    ds_engine_stats_get(e, &st);
    for (uint32_t i = 0; i < drafts; i++)
        kept += (uint32_t)st.kept[i];
    assert_true(kept > 0 || drafts == 0);
    test_engine_destroy(e);
    free(prompt);
}

/* What doesn't fit is refused with the largest context that does, and that one fits; create takes what the plan
 * says. */
static void memory_plan(void **state)
{
    ds_engine_opts o = { .max_context = 4096, .max_running = 4 };
    ds_gen_plan whole, p;
    const char *at;
    uint32_t fits;
    ds_err err;
    ds_engine *e;

    (void)state;
    assert_ok(ds_engine_plan_get(&whole, model, &o, &err));
    assert_int_equal(whole.kv_blocks, 4 * 32);
    assert_int_equal(whole.total, whole.kv + whole.states + whole.tails + whole.tables + whole.buffers + whole.host);
    o.memory_bytes = whole.device; /* with a budget, blocks take what is left of it */
    assert_ok(ds_engine_plan_get(&p, model, &o, &err));
    assert_true(p.device <= o.memory_bytes && p.kv_blocks >= whole.kv_blocks);
    o.memory_bytes = whole.device - whole.kv; /* less than one sequence */
    assert_refused(ds_engine_plan_get(&p, model, &o, &err), DS_E_NOMEM, "the largest context that fits is");
    at = strstr(err.msg, "fits is ");
    fits = (uint32_t)strtoul(at + 8, NULL, 10);
    assert_true(fits > 1 && fits < 4096 && p.largest_context == fits);
    assert_refused(test_engine_create(&e, model, NULL, &o, &err), DS_E_NOMEM, "the largest context that fits is");
    assert_null(e);
    o.max_context = fits;
    assert_ok(ds_engine_plan_get(&p, model, &o, &err));
    assert_true(p.device <= o.memory_bytes);
    assert_ok(test_engine_create(&e, model, NULL, &o, &err));
    test_engine_destroy(e);
    o.max_context = fits + 1;
    assert_int_equal(ds_engine_plan_get(&p, model, &o, &err), DS_E_NOMEM);
    o.memory_bytes = 1000;
    assert_refused(ds_engine_plan_get(&p, model, &o, &err), DS_E_NOMEM, "too few for any context");
}

static ds_rc create_and_add(void *ctx, ds_err *err)
{
    static const int32_t prompt[] = { 1, 2, 3 };
    ds_token_bias bias = { 3, 1.0f };
    ds_gen_request q = {
        .prompt = prompt, .n_prompt = 3, .max_tokens = 2, .n = 2, .sampling = DS_SAMPLING_DEFAULT, .bias = &bias, .n_bias = 1
    };
    ds_engine *e;
    ds_event ev;
    uint64_t id;
    ds_rc rc = test_engine_create(
        &e, model, NULL,
        &(ds_engine_opts){ .max_context = 140, .max_running = 2, .max_requests = 4, .kv_blocks = 2, .identity.dialect = "t" }, err);

    (void)ctx;
    if (rc != DS_OK)
        return rc;
    q.sampling.repetition_penalty = 1.5;
    rc = ds_engine_add(e, &q, &id, err);
    while (rc == DS_OK && ds_engine_turn(e))
        ;
    while (ds_engine_poll(e, &ev, 1))
        ;
    test_engine_destroy(e);
    return rc;
}

static void allocations_fail(void **state)
{
    (void)state;
    if (test_ranks.n) /* those of the other ranks would be counted */
        skip();
    if (test_device && test_device->records) /* what a driver and recordings take, they may do without */
        return;
    assert_true(fault_every_allocation(create_and_add, NULL) > 50);
}

/* A device that dies: what was reported is right, the requests end as lost, and no other is taken. */
static void a_device_dies(void **state)
{
    request r[N_REQ];
    ds_gen_stats st;
    ds_engine *e;
    ds_err err;
    uint64_t id;

    (void)state;
    if (!test_device || strcmp(test_device->name, "locked") != 0)
        return;
    make_requests(r, 3);
    alone(r, N_REQ, false);
    e = make_engine((ds_engine_opts){ 0 }, NULL);
    for (uint32_t i = 0; i < N_REQ; i++)
        add(e, &r[i], i);
    for (int turn = 0; turn < 12; turn++) {
        ds_engine_turn(e);
        take_events(e);
    }
    locked_break(true);
    run_all(e);
    for (uint32_t i = 0; i < N_REQ; i++) {
        assert_true(r[i].n_got[0] <= r[i].n_want[0]);
        assert_memory_equal(r[i].got[0], r[i].want[0], r[i].n_got[0] * sizeof r[i].got[0][0]);
        assert_true(r[i].reason[0] == DS_ENDED_LOST || r[i].n_got[0] == r[i].n_want[0]);
    }
    ds_engine_stats_get(e, &st);
    assert_int_equal(st.lost, 1);
    assert_true(st.ended[DS_ENDED_LOST] > 0);
    assert_refused(
        ds_engine_add(e,
                      &(ds_gen_request){ .prompt = r[0].prompt, .n_prompt = 1, .max_tokens = 1, .n = 1, .sampling = DS_SAMPLING_DEFAULT },
                      &id, &err),
        DS_E_DEVICE, "its device failed");
    test_engine_destroy(e);
    locked_break(false);
    free_requests(r, N_REQ);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_batch_and_any_chunks),
        cmocka_unit_test(any_number_of_threads),
        cmocka_unit_test(drafts_kept_to_any_depth),
        cmocka_unit_test(stop_ids_held_back),
        cmocka_unit_test(stop_ids_reported),
        cmocka_unit_test(token_rules),
        cmocka_unit_test(preempted_or_not),
        cmocka_unit_test(samples_of_one_prompt),
        cmocka_unit_test(constrained_texts),
        cmocka_unit_test(a_late_mask_holds_back_its_own_rows),
        cmocka_unit_test(hits_from_saved_state),
        cmocka_unit_test(handed_over),
        cmocka_unit_test(hits_from_host_memory),
        cmocka_unit_test(hits_by_replay),
        cmocka_unit_test(replays_of_any_length),
        cmocka_unit_test(reproducible_among_replays),
        cmocka_unit_test(scored_prompts),
        cmocka_unit_test(waiting_for_a_prefix),
        cmocka_unit_test(rings_wrap),
        cmocka_unit_test(drafts_keep_the_distribution),
        cmocka_unit_test(pictures),
        cmocka_unit_test(memory_plan),
        cmocka_unit_test(allocations_fail),
        cmocka_unit_test(a_device_dies),
    };
    ds_model *m;
    int failed;

    test_choose_ranks(&argc, argv);
    m = test_model_of_ranks(argc > 1 ? argv[1] : "tiny-a", test_choose_device(argc, argv, 2));
    model = m;
    lone = test_ranks.n ? test_ranks.lone : m;
    vocab = ds_model_config(m)->vocab_size;
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    test_close_ranks(m);
    ds_device_close(test_device);
    return failed;
}
