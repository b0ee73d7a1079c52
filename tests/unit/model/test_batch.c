/* A sequence's bits don't depend on its company: other sequences in the step, the cut into chunks, slots, block ids,
 * threads, rejected drafts before it. */
#include "ranks.h"

enum { N_SEQS = 4, MAX_TOKENS = 120, BLOCK = 128 };

/* One sequence with its own bookkeeping; `want` is what it gives alone. */
typedef struct {
    int32_t tokens[MAX_TOKENS];
    uint32_t prompt, total; /* [prompt, total) is decoded */
    bool ced;
    uint32_t pos;
    uint32_t slot, tail, blocks[1];
    const float **image;
    float *got, *want; /* [total][vocab]; rows without logits stay zero */
    int32_t drafts[64], want_drafts[64];
} sequence;

static const ds_model *model, *lone; /* lone: has no other ranks */
static const ds_config *cfg;

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static float image_row[512];

static void make_sequences(sequence *s)
{
    static const struct {
        uint32_t prompt, total;
        bool ced, image;
    } shape[N_SEQS] = { { 50, 58, false, false }, { 23, 40, true, false }, { 90, 100, true, true }, { 17, 30, false, true } };
    uint32_t rnd = 7;

    for (size_t i = 0; i < sizeof image_row / sizeof *image_row; i++)
        image_row[i] = (float)(int)(next_random(&rnd) % 2001 - 1000) / 40000.0f;
    for (uint32_t i = 0; i < N_SEQS; i++) {
        s[i] = (sequence){ .prompt = shape[i].prompt, .total = shape[i].total, .ced = shape[i].ced };
        for (uint32_t p = 0; p < s[i].total; p++)
            s[i].tokens[p] = (int32_t)(next_random(&rnd) % cfg->vocab_size);
        if (shape[i].image && cfg->vision.num_hidden_layers) {
            s[i].image = calloc(s[i].total, sizeof *s[i].image);
            for (uint32_t p = 5; p < s[i].prompt; p++) /* two spans; in the long prompt one of them is in the decoder's tail */
                if (p < 9 || (p >= 75 && p < 81))
                    s[i].image[p] = image_row;
        }
        s[i].got = calloc((size_t)s[i].total * cfg->vocab_size, sizeof(float));
        s[i].want = calloc((size_t)s[i].total * cfg->vocab_size, sizeof(float));
    }
}

static void free_sequences(sequence *s)
{
    for (uint32_t i = 0; i < N_SEQS; i++) {
        free(s[i].image);
        free(s[i].got);
        free(s[i].want);
    }
}

/* The next rows of a sequence: at most n. Logits of every row that has them. */
static ds_seq rows_of(const sequence *s, uint32_t n)
{
    uint32_t left = (s->pos < s->prompt ? s->prompt : s->total) - s->pos, window = cfg->sliding_window;
    ds_seq q = { .slot = s->slot,
                 .tail = DS_NONE,
                 .blocks = s->blocks,
                 .n_blocks = 1,
                 .pos = s->pos,
                 .n = n < left ? n : left,
                 .tokens = s->tokens + s->pos,
                 .image = s->image ? s->image + s->pos : NULL,
                 .dec_from = s->pos };

    if (s->pos < s->prompt && s->ced) {
        uint32_t end = s->pos + q.n, start = s->prompt > window ? s->prompt - window : 0;
        q.tail = s->tail;
        q.dec_from = end < s->prompt ? end : start;
        q.dec_win = end < s->prompt ? 0 : start;
    }
    q.n_logits = q.pos + q.n - q.dec_from;
    return q;
}

static void take_logits(sequence *s, const ds_seq *q, const float *logits)
{
    memcpy(s->got + (size_t)(q->pos + q->n - q->n_logits) * cfg->vocab_size, logits, (size_t)q->n_logits * cfg->vocab_size * sizeof(float));
    s->pos += q->n;
}

static void draft_all(ds_runner *r, sequence *s, uint32_t n)
{
    ds_draft_seq q[N_SEQS];
    int32_t ids[N_SEQS * 16];
    uint32_t B = cfg->dspark_block_size;
    ds_err err;

    if (cfg->num_nextn_predict_layers == 0)
        return;
    for (uint32_t i = 0; i < n; i++)
        q[i] = (ds_draft_seq){ .slot = s[i].slot, .pos = s[i].total, .token = 5, .win_lo = 0 };
    assert_ok(ds_runner_draft(r, q, n, ids, NULL, &err));
    for (uint32_t i = 0; i < n; i++)
        memcpy(s[i].drafts, ids + i * B, B * sizeof *ids);
}

static ds_runner_opts runner_opts(ds_pool *pool, uint32_t rows, bool bf16)
{
    return (ds_runner_opts){ .bf16 = bf16,
                             .max_rows = rows,
                             .max_seqs = N_SEQS,
                             .max_logits = 256,
                             .max_context = BLOCK,
                             .n_blocks = 7,
                             .n_slots = 6,
                             .n_tails = 5,
                             .pool = pool };
}

static ds_runner *make_runner(ds_pool *pool, uint32_t rows, bool bf16)
{
    ds_runner *r;
    ds_err err;
    ds_runner_opts o = runner_opts(pool, rows, bf16);

    assert_ok(test_runner_create(&r, model, &o, &err));
    return r;
}

/* What each sequence gives in a runner of its own, without other ranks. */
static void alone(sequence *s, bool bf16)
{
    for (uint32_t i = 0; i < N_SEQS; i++) {
        ds_runner_opts o = runner_opts(NULL, 128, bf16);
        ds_runner *r;
        ds_err err;
        const float *logits;
        assert_ok(ds_runner_create(&r, lone, &o, &err));
        s[i].pos = s[i].slot = s[i].tail = s[i].blocks[0] = 0;
        while (s[i].pos < s[i].total) {
            ds_seq q = rows_of(&s[i], s[i].pos < s[i].prompt ? MAX_TOKENS : 1);
            assert_ok(ds_runner_step(r, &q, 1, &logits, &err));
            take_logits(&s[i], &q, logits);
        }
        draft_all(r, &s[i], 1);
        ds_runner_destroy(r);
        memcpy(s[i].want, s[i].got, (size_t)s[i].total * cfg->vocab_size * sizeof(float));
        memcpy(s[i].want_drafts, s[i].drafts, sizeof s[i].drafts);
    }
}

static void compare(const sequence *s, const char *how)
{
    for (uint32_t i = 0; i < N_SEQS; i++) {
        for (uint32_t p = 0; p < s[i].total; p++)
            if (memcmp(s[i].got + (size_t)p * cfg->vocab_size, s[i].want + (size_t)p * cfg->vocab_size, cfg->vocab_size * sizeof(float)) !=
                0)
                fail_msg("%s: logits of sequence %u at position %u have other bits", how, i, p);
        assert_memory_equal(s[i].drafts, s[i].want_drafts, sizeof s[i].drafts);
    }
}

/* All sequences at once, in random order, with random chunks; rows of a step are at most `rows`, so that long
 * decoder tails take several passes. */
static void together_on(ds_runner *r, sequence *s, uint32_t rows, uint32_t seed)
{
    uint32_t left = N_SEQS, order[N_SEQS];

    for (uint32_t i = 0; i < N_SEQS; i++) {
        s[i].pos = 0;
        s[i].slot = 5 - i;
        s[i].tail = (i * 2 + seed) % 5;
        s[i].blocks[0] = (i * 3 + seed) % 7;
        memset(s[i].got, 0, (size_t)s[i].total * cfg->vocab_size * sizeof(float));
        ds_runner_reset_slot(r, s[i].slot);
        order[i] = i;
    }
    while (left > 0) {
        ds_seq q[N_SEQS];
        uint32_t who[N_SEQS], n = 0, room = rows, logit_room = 256;
        const float *logits;
        ds_err err;
        for (uint32_t i = N_SEQS - 1; i > 0; i--) {
            uint32_t k = next_random(&seed) % (i + 1), swap = order[i];
            order[i] = order[k];
            order[k] = swap;
        }
        for (uint32_t k = 0; k < N_SEQS; k++) {
            uint32_t i = order[k], want = 1 + next_random(&seed) % 20;
            if (s[i].pos == s[i].total || room == 0 || (n > 0 && next_random(&seed) % 4 == 0))
                continue;
            q[n] = rows_of(&s[i], want < room ? want : room);
            if (q[n].n_logits > logit_room)
                continue;
            room -= q[n].n;
            logit_room -= q[n].n_logits;
            who[n++] = i;
        }
        assert_ok(ds_runner_step(r, q, n, &logits, &err));
        for (uint32_t k = 0; k < n; k++) {
            take_logits(&s[who[k]], &q[k], logits);
            logits += (size_t)q[k].n_logits * cfg->vocab_size;
            left -= s[who[k]].pos == s[who[k]].total;
        }
    }
    if (rows >= N_SEQS * cfg->dspark_block_size)
        draft_all(r, s, N_SEQS);
    else
        for (uint32_t i = 0; i < N_SEQS; i++)
            draft_all(r, &s[i], 1);
}

static void together(sequence *s, ds_pool *pool, uint32_t rows, uint32_t seed, bool bf16)
{
    ds_runner *r = make_runner(pool, rows, bf16);

    together_on(r, s, rows, seed);
    test_runner_destroy(r);
}

static void any_batch_any_chunks(void **state)
{
    sequence s[N_SEQS];

    (void)state;
    make_sequences(s);
    for (int bf16 = 0; bf16 < 2; bf16++) {
        alone(s, bf16);
        for (uint32_t seed = 1; seed < 6; seed++) {
            static const uint32_t rows[] = { 40, 6, 17, 128, 7 };
            together(s, NULL, rows[seed - 1], seed, bf16);
            compare(s, "batch");
        }
    }
    free_sequences(s);
}

static void any_number_of_threads(void **state)
{
    sequence s[N_SEQS];
    ds_err err;

    (void)state;
    make_sequences(s);
    alone(s, false);
    for (uint32_t threads = 2; threads < 5; threads++) {
        ds_pool *pool;
        assert_ok(ds_pool_create(&pool, &(ds_pool_opts){ .n_threads = threads }, &err));
        together(s, pool, 40, threads, false);
        compare(s, "threads");
        ds_pool_destroy(pool);
    }
    free_sequences(s);
}

/* Verify steps with 0 .. all drafts accepted: what follows has the bits of plain decoding. */
static void rejected_rows_leave_no_trace(void **state)
{
    sequence s[N_SEQS];
    ds_err err;
    uint32_t rnd = 99;
    ds_model_layout lay;

    (void)state;
    ds_model_layout_get(model, &lay);
    make_sequences(s);
    alone(s, false);
    for (uint32_t i = 0; i < N_SEQS; i++)
        for (uint32_t accept = 1; accept <= lay.rollback; accept++) { /* rows that stay, of lay.rollback; the rest is garbage */
            ds_runner *r = make_runner(NULL, 128, false);
            const float *logits;
            s[i].pos = s[i].slot = s[i].tail = s[i].blocks[0] = 0;
            while (s[i].pos < s[i].prompt) {
                ds_seq q = rows_of(&s[i], 9);
                assert_ok(ds_runner_step(r, &q, 1, &logits, &err));
                take_logits(&s[i], &q, logits);
            }
            while (s[i].pos < s[i].total) {
                uint32_t left = s[i].total - s[i].pos, keep = accept < left ? accept : left, n = lay.rollback;
                int32_t rows[64];
                ds_seq q = rows_of(&s[i], n);
                for (uint32_t k = 0; k < n; k++)
                    rows[k] = k < keep ? s[i].tokens[s[i].pos + k] : (int32_t)(next_random(&rnd) % cfg->vocab_size);
                q.tokens = rows;
                q.image = NULL;
                q.n = n;
                q.n_logits = n;
                assert_ok(ds_runner_step(r, &q, 1, &logits, &err));
                memcpy(s[i].got + (size_t)s[i].pos * cfg->vocab_size, logits, (size_t)keep * cfg->vocab_size * sizeof(float));
                s[i].pos += keep;
            }
            draft_all(r, &s[i], 1);
            test_runner_destroy(r);
            compare(s, "verify");
        }
    free_sequences(s);
}

/* A sequence in a slot that another one has left behind, after a reset, and into its blocks. */
static void a_used_slot_is_as_good_as_new(void **state)
{
    sequence s[N_SEQS];
    ds_runner *r;
    ds_err err;

    (void)state;
    make_sequences(s);
    alone(s, false);
    r = make_runner(NULL, 128, false);
    for (uint32_t i = 0; i < N_SEQS; i++) {
        const float *logits;
        s[i].pos = s[i].slot = s[i].tail = s[i].blocks[0] = 0;
        ds_runner_reset_slot(r, 0);
        while (s[i].pos < s[i].total) {
            ds_seq q = rows_of(&s[i], s[i].pos < s[i].prompt ? 11 : 1);
            assert_ok(ds_runner_step(r, &q, 1, &logits, &err));
            take_logits(&s[i], &q, logits);
        }
        draft_all(r, &s[i], 1);
    }
    compare(s, "used slot");
    test_runner_destroy(r);
    free_sequences(s);
}

/* Replay (5.4) of a sequence while others decode, in chunks of any size, has the bits of a replay alone. */
static void replay_in_company(void **state)
{
    static const uint32_t prefixes[] = { 1, 15, 16, 17, 33, 64, 89 };
    sequence s[N_SEQS];
    uint32_t window = cfg->sliding_window, V = cfg->vocab_size;
    ds_err err;

    (void)state;
    make_sequences(s);
    for (size_t k = 0; k < sizeof prefixes / sizeof *prefixes; k++) {
        float *want = calloc(window * V, sizeof *want);
        for (int chunk_index = 0; chunk_index < 4; chunk_index++) {
            static const uint32_t chunks[] = { 128, 87, 46, 5 };
            uint32_t chunk = chunks[chunk_index];
            sequence *a = &s[2], *b = &s[0];
            ds_runner *r = make_runner(NULL, 128, false);
            const float *logits;
            uint32_t P = prefixes[k], from = P > window ? P - window : 0, prompt = a->prompt;
            int32_t before[8];
            a->slot = a->tail = a->pos = 0;
            a->blocks[0] = 1;
            b->slot = 3;
            b->pos = 0;
            b->blocks[0] = 2;
            a->prompt = P;
            while (a->pos < P) {
                ds_seq q = rows_of(a, 13);
                assert_ok(ds_runner_step(r, &q, 1, &logits, &err));
                a->pos += q.n;
            }
            a->prompt = prompt;
            ds_runner_reset_slot(r, 0);
            a->pos = from;
            while (a->pos < prompt) {
                ds_seq q[2];
                uint32_t n = 1;
                q[0] = rows_of(a, chunk);
                q[0].enc_win = from;
                q[0].store_from = P;
                if (a->pos == from) {
                    uint32_t back = from < 3 ? from : 3;
                    for (uint32_t i = 0; i < back; i++)
                        before[i] = a->image && a->image[from - back + i] ? -1 : a->tokens[from - back + i];
                    q[0].before = before;
                }
                if (chunk < 128 && b->pos < b->total)
                    q[n++] = rows_of(b, 2);
                assert_ok(ds_runner_step(r, q, n, &logits, &err));
                if (n > 1)
                    b->pos += q[1].n;
                a->pos += q[0].n;
                if (a->pos == prompt && chunk == 128)
                    memcpy(want, logits, q[0].n_logits * V * sizeof *want);
                else if (a->pos == prompt && memcmp(want, logits, q[0].n_logits * V * sizeof *want) != 0)
                    fail_msg("replay after %u tokens in chunks of %u has other bits", P, chunk);
            }
            test_runner_destroy(r);
        }
        free(want);
    }
    free_sequences(s);
}

/* Sets flags when it has been called so often. */
static struct {
    uint32_t calls, at, n;
    atomic_bool gone[N_SEQS];
} leaving;

static void leave(void *ctx, const char *what, int layer, const void *data, size_t rows, size_t row_bytes)
{
    (void)ctx, (void)what, (void)layer, (void)data, (void)rows, (void)row_bytes;
    if (leaving.calls++ == leaving.at)
        for (uint32_t i = N_SEQS - leaving.n; i < N_SEQS; i++)
            atomic_store(&leaving.gone[i], true);
}

/* Sequences that are given up anywhere within a step take nothing from the others, and those that leave it are told
 * apart from those that were finished. */
static void who_leaves_changes_nobody(void **state)
{
    sequence s[N_SEQS];
    ds_err err;
    uint32_t left_within = 0, calls = 0;

    (void)state;
    make_sequences(s);
    alone(s, false);
    for (leaving.n = 1; leaving.n <= N_SEQS; leaving.n++)
        for (leaving.at = 0; leaving.at <= calls; leaving.at += 7) {
            ds_runner *r;
            ds_runner_opts o = { .max_rows = 128,
                                 .max_seqs = N_SEQS,
                                 .max_logits = 256,
                                 .max_context = BLOCK,
                                 .n_blocks = 7,
                                 .n_slots = 6,
                                 .n_tails = 5,
                                 .observe = leave };
            assert_ok(test_runner_create(&r, model, &o, &err));
            leaving.calls = 0;
            for (uint32_t i = 0; i < N_SEQS; i++) {
                atomic_store(&leaving.gone[i], false);
                s[i].pos = 0;
                s[i].slot = s[i].tail = s[i].blocks[0] = i;
                memset(s[i].got, 0, (size_t)s[i].total * cfg->vocab_size * sizeof(float));
            }
            for (uint32_t n = N_SEQS; n > 0;) {
                ds_seq q[N_SEQS];
                uint32_t who[N_SEQS], m = 0, kept, chunk = leaving.at % 2 ? 11 : 25;
                const float *logits;
                for (uint32_t i = 0; i < n; i++)
                    if (s[i].pos < s[i].total) {
                        q[m] = rows_of(&s[i], s[i].pos < s[i].prompt ? chunk : 1);
                        q[m].gone = &leaving.gone[i];
                        who[m++] = i;
                    }
                if (m == 0)
                    break;
                assert_ok(ds_runner_step(r, q, m, &logits, &err));
                kept = ds_runner_kept(r);
                left_within += kept < m;
                for (uint32_t k = 0; k < m; k++) {
                    assert_true(k < kept || atomic_load(&leaving.gone[who[k]]));
                    if (k < kept)
                        take_logits(&s[who[k]], &q[k], logits);
                    logits += (size_t)q[k].n_logits * cfg->vocab_size;
                }
                while (n > 0 && atomic_load(&leaving.gone[n - 1]))
                    n--;
            }
            calls = leaving.n == 1 && leaving.at == 0 ? leaving.calls : calls;
            for (uint32_t i = 0; i + leaving.n < N_SEQS; i++)
                if (memcmp(s[i].got, s[i].want, (size_t)s[i].total * cfg->vocab_size * sizeof(float)) != 0)
                    fail_msg("sequence %u has other bits when %u leave at event %u", i, leaving.n, leaving.at);
            test_runner_destroy(r);
        }
    assert_true(left_within > 4);
    free_sequences(s);
}

/* ---- many ranks, each with sequences of its own ---- */

typedef struct {
    ds_runner *r;
    ds_comm *comm;
    sequence s[N_SEQS];
    uint32_t rows, seed;
} worker;

static void *work(void *arg)
{
    worker *w = arg;

    together_on(w->r, w->s, w->rows, w->seed);
    w->comm->fn->leave(w->comm);
    return test_attend(w->r);
}

static void every_rank_has_its_own(void **state)
{
    static worker w[TEST_MAX_RANKS];
    uint32_t n = test_ranks.n;

    (void)state;
    if (!n)
        skip();
    for (uint32_t i = 0; i < n; i++) {
        make_sequences(w[i].s);
        alone(w[i].s, false);
    }
    for (uint32_t seed = 1; seed < 4; seed++) {
        static const uint32_t rows[] = { 40, 9, 128 };
        static const bool works[TEST_MAX_RANKS] = { true, true, true, true, true, true, true, true };
        ds_runner_opts o = runner_opts(NULL, rows[seed - 1], false);
        struct test_group *g = test_group_create(&o, works);
        for (uint32_t i = 0; i < n; i++) {
            w[i].r = g->runner[i];
            w[i].comm = g->comm[i];
            w[i].rows = rows[seed - 1];
            w[i].seed = seed * 10 + i;
            assert_int_equal(pthread_create(&g->thread[i], NULL, work, &w[i]), 0);
        }
        for (uint32_t i = 0; i < n; i++) {
            void *wrong;
            pthread_join(g->thread[i], &wrong);
            assert_null(wrong);
            compare(w[i].s, "ranks");
        }
        test_group_destroy(g, works);
    }
    for (uint32_t i = 0; i < n; i++)
        free_sequences(w[i].s);
}

/* Whoever is missing is named by every call of the others. */
static void a_rank_that_is_gone(void **state)
{
    static const bool works[TEST_MAX_RANKS] = { true, true, true, true, true, true, true, true };
    ds_runner_opts o = runner_opts(NULL, 40, false);
    struct test_group *g;
    sequence s[N_SEQS];
    ds_seq q;
    ds_err err;

    (void)state;
    if (!test_ranks.n)
        skip();
    make_sequences(s);
    g = test_group_create(&o, works);
    q = rows_of(&s[0], 9);
    g->comm[1]->fn->give_up(g->comm[1], "its disk is gone");
    assert_refused(ds_runner_step(g->runner[0], &q, 1, NULL, &err), DS_E_DEVICE, "rank 1 of");
    assert_refused(ds_runner_step(g->runner[0], &q, 1, NULL, &err), DS_E_DEVICE, "its disk is gone");
    assert_refused(ds_runner_attend(g->runner[0], &err), DS_E_DEVICE, "its disk is gone");
    test_group_destroy(g, works);
    free_sequences(s);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_batch_any_chunks),
        cmocka_unit_test(any_number_of_threads),
        cmocka_unit_test(rejected_rows_leave_no_trace),
        cmocka_unit_test(a_used_slot_is_as_good_as_new),
        cmocka_unit_test(replay_in_company),
        cmocka_unit_test(who_leaves_changes_nobody),
        cmocka_unit_test(every_rank_has_its_own),
        cmocka_unit_test(a_rank_that_is_gone),
    };
    ds_model *m;
    int failed;

    test_choose_ranks(&argc, argv);
    m = test_model_of_ranks(argc > 1 ? argv[1] : "tiny-a", test_choose_device(argc, argv, 2));
    model = m;
    lone = test_ranks.n ? test_ranks.lone : m;
    cfg = ds_model_config(m);
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    test_close_ranks(m);
    ds_device_close(test_device);
    return failed;
}
