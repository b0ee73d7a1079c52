/* What a step begins and ends with: rows, scatter, finite, sample. */
#include "kern/sample.h"
#include "kern_test.h"

enum { N_SEQS = 3, LD = 4, ROWS = 8 };

typedef struct {
    int32_t pos[ROWS], id[ROWS];
    uint32_t of_seq[ROWS], index[ROWS];
    uint8_t dead[ROWS];
    uint32_t row0[N_SEQS], count[N_SEQS], slot[N_SEQS], tail[N_SEQS], blocks[N_SEQS * LD];
    int32_t pos0[N_SEQS], win_lo[N_SEQS], dec_lo[N_SEQS], store_from[N_SEQS];
} arrays;

static ds_op_rows op_of(arrays *a)
{
    return (ds_op_rows){ .n_seqs = N_SEQS,
                         .blocks_ld = LD,
                         .pos = a->pos,
                         .id = a->id,
                         .of_seq = a->of_seq,
                         .index = a->index,
                         .dead = a->dead,
                         .row0 = a->row0,
                         .count = a->count,
                         .slot = a->slot,
                         .tail = a->tail,
                         .blocks = a->blocks,
                         .pos0 = a->pos0,
                         .win_lo = a->win_lo,
                         .dec_lo = a->dec_lo,
                         .store_from = a->store_from };
}

static const ds_seq_rows seqs[N_SEQS] = {
    { .pos0 = 5,
      .row0 = 0,
      .count = 3,
      .slot = 7,
      .tail = 1,
      .win_lo = 2,
      .dec_lo = 3,
      .store_from = 4,
      .block0 = 0,
      .n_blocks = 1,
      .src_pos = 6,
      .src_row = 9 },
    { .pos0 = 300, .row0 = 3, .count = 1, .slot = 2, .tail = DS_NONE, .block0 = 1, .n_blocks = 3, .src_pos = 300, .src_row = 4 },
    { .pos0 = 0, .row0 = 4, .count = 4, .slot = DS_NONE, .tail = DS_NONE, .block0 = 4, .n_blocks = 0, .src_pos = 100 },
};

static void rows_of_a_step(void **state)
{
    variant *v = *state;
    static const uint32_t block[] = { 40, 41, 42, 43 }, of_seq[] = { 0, 0, 0, 1, 2, 2, 2, 2 }, index[] = { 0, 9, 10, 4, 0, 0, 0, 0 };
    static const int32_t ids[] = { 1, -1, 3, 4, -2, 6, 7, 0 }, pos[] = { 5, 6, 7, 300, 0, 1, 2, 3 };
    static const uint8_t dead_in[16] = { [4] = 1, [10] = 1 };
    arrays a = { 0 };
    ds_op_rows op = op_of(&a);

    op.seq = seqs;
    op.block = block;
    op.id_in = ids;
    v->k.rows(&v->e, &op);
    assert_memory_equal(a.pos, pos, sizeof pos);
    assert_memory_equal(a.of_seq, of_seq, sizeof of_seq);
    assert_memory_equal(a.id, ids, sizeof ids);
    for (int r = 0; r < ROWS; r++)
        assert_int_equal(a.dead[r], ids[r] < 0);
    for (int s = 0; s < N_SEQS; s++) {
        assert_int_equal(a.row0[s], seqs[s].row0);
        assert_int_equal(a.count[s], seqs[s].count);
        assert_int_equal(a.pos0[s], seqs[s].pos0);
        assert_int_equal(a.slot[s], seqs[s].slot);
        assert_int_equal(a.tail[s], seqs[s].tail);
        assert_int_equal(a.win_lo[s], seqs[s].win_lo);
        assert_int_equal(a.dec_lo[s], seqs[s].dec_lo);
        assert_int_equal(a.store_from[s], seqs[s].store_from);
    }
    assert_memory_equal(a.blocks, ((uint32_t[]){ 40, 0, 0, 0, 41, 42, 43, 0, 0, 0, 0, 0 }), sizeof a.blocks);

    /* the same rows taken from another set */
    op.id_in = NULL;
    op.dead_in = dead_in;
    v->k.rows(&v->e, &op);
    assert_memory_equal(a.index, index, sizeof index);
    for (int r = 0; r < ROWS; r++) {
        assert_int_equal(a.id[r], 0);
        assert_int_equal(a.dead[r], dead_in[index[r]]);
    }
    op.n_seqs = 0;
    v->k.rows(&v->e, &op);
}

static void records_go_to_their_places(void **state)
{
    variant *v = *state;
    static const uint64_t off[] = { 8, 1, 20 };
    char dst[24], want[24];

    memset(dst, '.', sizeof dst);
    memcpy(want, dst, sizeof dst);
    memcpy(want + 8, "abc", 3);
    memcpy(want + 1, "def", 3);
    memcpy(want + 20, "ghi", 3);
    v->k.scatter(&v->e, &(ds_op_scatter){ .dst = dst, .off = off, .src = "abcdefghi", .n = 0, .bytes = 3 });
    v->k.scatter(&v->e, &(ds_op_scatter){ .dst = dst, .off = off, .src = "abcdefghi", .n = 3, .bytes = 3 });
    assert_memory_equal(dst, want, sizeof dst);
}

static void what_is_not_finite_is_found(void **state)
{
    variant *v = *state;
    enum { R = 5, N = 37, L = 40 };
    static const float bad[] = { NAN, INFINITY, -INFINITY };
    float x[R * L];

    for (int i = 0; i < R * L; i++)
        x[i] = i % L < N ? (i % 2 ? 3.4e38f : -3.4e38f) : NAN; /* what isn't a value isn't looked at */
    v->k.finite(&v->e, &(ds_op_finite){ .x = x, .rows = R, .ldx = L, .n = N, .tag = 3 });
    v->k.finite(&v->e, &(ds_op_finite){ .x = x, .rows = 0, .ldx = L, .n = N, .tag = 3 });
    assert_int_equal(v->fault.kind, DS_FAULT_NONE);
    for (int i = 0; i < R * N; i++) {
        float *at = &x[i / N * L + i % N], old = *at;
        *at = bad[i % 3];
        v->k.finite(&v->e, &(ds_op_finite){ .x = x, .rows = R, .ldx = L, .n = N, .tag = 3 });
        assert_int_equal(v->fault.kind, DS_FAULT_FINITE);
        assert_int_equal(v->fault.tag, 3);
        assert_int_equal(v->fault.row, i);
        v->fault = (ds_fault){ 0 };
        *at = old;
    }
}

/* On the CPU of the same bits. */
static void same_logprob(float got, float want)
{
    if (tested_device && strcmp(tested_device->name, "cpu") != 0)
        assert_true(fabs((double)got - (double)want) <= 1e-6 * (1.0 + fabs((double)want)));
    else
        assert_memory_equal(&got, &want, sizeof got);
}

/* Drafts that equal the draw at their place stand; what stands is what drawing row after row gives, counts included. */
static void drafts_never_change_what_is_drawn(void **state)
{
    variant *v = *state;
    enum { V = 50, MOST = 6, N = 24 };
    static float logits[N * MOST * V];
    static ds_sample_rows seq[N];
    static uint32_t counts[N][V], want_counts[N][V];
    static ds_drawn out[N];
    static ds_logprob top[N * DS_MAX_DRAWS * DS_MAX_TOP];
    static const int32_t stop[] = { 7 };
    static uint32_t allowed[MOST][3], masks[N][MOST][3]; /* a word more than a row has; each its own */
    uint32_t longest = 0;
    float logit[V];
    ds_draw_cand cands[V];
    double prob[V];
    ds_draw_scratch tmp = { logit, cands, prob };
    int32_t want[N][MOST], id[N];
    uint32_t n_want[N];
    uint64_t rnd = 5;

    for (size_t i = 0; i < sizeof logits / sizeof *logits; i++)
        logits[i] = 3.0f * random_unit(&rnd);
    for (uint32_t i = 0; i < MOST; i++) { /* all but a few, none but a few, and one only */
        allowed[i][0] = i % 3 == 0 ? 0xfffffff3u : i % 3 == 1 ? 0x80000400u << i % 2 : 0;
        allowed[i][1] = i % 3 == 0 ? 0x0003ffffu : 1u << i;
    }
    memset(counts, 0, sizeof counts);
    for (uint32_t s = 0; s < N; s++) {
        ds_sample_rows *q = &seq[s];
        memcpy(masks[s], allowed, sizeof allowed);
        *q = (ds_sample_rows){ .how = { .temperature = s % 4 ? 0.3 * s : 0.0,
                                        .top_p = s % 3 ? 0.9 : 1.0,
                                        .min_p = s % 5 ? 0.0 : 0.05,
                                        .repetition_penalty = 1.0,
                                        .frequency_penalty = s % 2 ? 1.0 : 0.0,
                                        .seed = s,
                                        .top_k = s % 7,
                                        .n_stop = 1,
                                        .stop = stop,
                                        .stop_upto = s % 2 ? 5 : 0,
                                        .n_output = s % 2 ? counts[s] : NULL },
                               .index = 3,
                               .row = (N - 1 - s) * MOST,
                               .n = 1 + s % MOST,
                               .n_top = s % 3,
                               .logprobs = s % 3 != 0,
                               .allowed = s % 8 >= 4 ? *masks[s] : NULL,
                               .allowed_ld = 3 };
        n_want[s] = 0;
        for (uint32_t i = 0; i < q->n; i++) { /* one row at a time; drafts are right up to a random place */
            int32_t t;
            ds_draw how = q->how;
            how.n_output = q->how.n_output ? want_counts[s] : NULL;
            assert_true(ds_draw_token(&how, V, &tmp, logits + (q->row + i) * V, q->allowed ? allowed[i] : NULL, q->index + i, &t));
            assert_true(!q->allowed || (allowed[i][t / 32] >> t % 32 & 1));
            want[s][n_want[s]++] = t;
            if (t == 7)
                break;
            if (how.n_output)
                want_counts[s][t]++;
            if (i + 1 == q->n || next_random(&rnd) % 4 == 0) {
                if (i + 1 < q->n)
                    q->draft[i] = (t + 1) % V;
                break;
            }
            q->draft[i] = t;
        }
    }
    v->k.sample(&v->e, &(ds_op_sample){ .logits = logits, .ld = V, .vocab = V, .seq = seq, .n_seqs = N, .out = out, .top = top });
    for (uint32_t s = 0; s < N; s++) {
        assert_int_equal(out[s].n, n_want[s]);
        assert_memory_equal(out[s].token, want[s], n_want[s] * sizeof **want);
        assert_int_equal(out[s].stopped, want[s][n_want[s] - 1] == 7);
        assert_false(out[s].none);
        longest = n_want[s] > longest ? n_want[s] : longest;
        for (uint32_t i = 0; i < out[s].n && seq[s].logprobs; i++) {
            float lp;
            ds_logprob t[2];
            ds_logprobs(logits + (seq[s].row + i) * V, V, out[s].token[i], &lp, t, seq[s].n_top);
            same_logprob(out[s].logprob[i], lp);
            for (uint32_t k = 0; k < seq[s].n_top; k++) {
                assert_int_equal(top[(s * DS_MAX_DRAWS + i) * DS_MAX_TOP + k].id, t[k].id);
                same_logprob(top[(s * DS_MAX_DRAWS + i) * DS_MAX_TOP + k].logprob, t[k].logprob);
            }
        }
    }
    assert_true(longest > 2);
    assert_memory_equal(counts, want_counts, sizeof counts);

    /* as proposals: the first row's draw at the position that `later` says, nothing counted */
    for (uint32_t s = 0; s < N; s++)
        seq[s].index -= 2;
    v->k.sample(&v->e, &(ds_op_sample){ .logits = logits, .ld = V, .vocab = V, .seq = seq, .n_seqs = N, .later = 2, .id = id });
    assert_memory_equal(counts, want_counts, sizeof counts);
    for (uint32_t s = 0; s < N; s++) {
        int32_t t;
        assert_true(ds_draw_token(&seq[s].how, V, &tmp, logits + seq[s].row * V, NULL, seq[s].index + 2, &t));
        assert_int_equal(id[s], t);
    }
    memset(counts, 0, sizeof counts);
    memset(want_counts, 0, sizeof want_counts);
}

/* Ties over whole ranges, distributions of every width, and every rule at once, in a vocabulary of a real size. */
static void draws_from_a_large_vocabulary(void **state)
{
    variant *v = *state;
    enum { V = 20011, KINDS = 4, RULES = 7, N = KINDS * RULES, DRAWS = 3 };
    static const ds_token_bias bias[] = { { 5, 20.0f }, { 9, 3.0f }, { 5, -100.0f }, { 9, 15.0f }, { V - 1, 12.0f } };
    static const int32_t stop[] = { 9, 11 };
    static const ds_draw rules[RULES] = {
        { .temperature = 1.0, .top_p = 1.0 },
        { .temperature = 1.0, .top_p = 0.95, .top_k = 40 },
        { .temperature = 3.0, .top_p = 0.5 },
        { .temperature = 1.5, .top_p = 1.0, .top_k = 5000, .min_p = 0.01 },
        { .temperature = 0.02, .top_p = 0.999 },
        { .temperature = 2.0, .top_p = 0.9, .top_k = V - 2, .n_bias = 5, .bias = bias, .stop_upto = 100, .n_stop = 2, .stop = stop },
        { .temperature = 0.0, .top_p = 1.0, .n_bias = 5, .bias = bias, .stop_upto = 100, .n_stop = 2, .stop = stop },
    };
    static float logits[KINDS * V], logit[V];
    static ds_draw_cand cands[V];
    static double prob[V];
    static uint32_t count[V], allowed[(V + 31) / 32];
    static uint8_t prompt[V];
    static ds_sample_rows seq[N];
    static ds_drawn out[N];
    ds_draw_scratch tmp = { logit, cands, prob };
    uint64_t rnd = 11;

    for (uint32_t i = 0; i < V; i++) {
        logits[i] = 4.0f * random_normal(&rnd);
        logits[V + i] = 1.25f;                                           /* all the same */
        logits[2 * V + i] = (float)(next_random(&rnd) % 8) * 0.5f;       /* a few values */
        logits[3 * V + i] = i == 7 ? 50.0f : -30.0f * random_unit(&rnd); /* one stands out */
        count[i] = i % 50 == 0;
        prompt[i] = i % 3 == 0;
        allowed[i / 32] |= (i % 7 ? 1u : 0u) << (i % 32);
    }
    for (uint32_t s = 0; s < N; s++) {
        ds_sample_rows *q = &seq[s];
        *q = (ds_sample_rows){ .how = rules[s % RULES], .row = s / RULES, .n = 1, .allowed = s % 3 ? NULL : allowed };
        q->how.seed = 77 + s;
        q->how.repetition_penalty = 1.0;
        if (s % 2) {
            q->how.repetition_penalty = 1.3;
            q->how.presence_penalty = 0.25;
            q->how.n_output = count;
            q->how.in_prompt = prompt;
        }
    }
    for (uint32_t k = 0; k < DRAWS; k++) {
        for (uint32_t s = 0; s < N; s++) { /* one at a time: all count in the same table */
            int32_t want;
            memset(count, 0, sizeof count);
            for (uint32_t i = 0; i < V; i += 50)
                count[i] = 1;
            seq[s].index = k;
            assert_true(ds_draw_token(&seq[s].how, V, &tmp, logits + seq[s].row * V, seq[s].allowed, k, &want));
            v->k.sample(&v->e, &(ds_op_sample){ .logits = logits, .ld = V, .vocab = V, .seq = &seq[s], .n_seqs = 1, .out = &out[s] });
            if (out[s].n != 1 || out[s].token[0] != want)
                fail_msg("rule %u, logits %u, draw %u: token %d, expected %d", s % RULES, s / RULES, k, out[s].token[0], want);
        }
    }
}

static void a_mask_that_forbids_all_ends_it(void **state)
{
    variant *v = *state;
    static const float logits[8] = { 1, 2, 3, 4, 4, 3, 2, 1 };
    static const uint32_t none[1] = { 0 };
    ds_sample_rows q = { .how = { .top_p = 1.0, .repetition_penalty = 1.0 }, .n = 2, .allowed = none };
    ds_drawn out;

    v->k.sample(&v->e, &(ds_op_sample){ .logits = logits, .ld = 4, .vocab = 4, .seq = &q, .n_seqs = 1, .out = &out });
    assert_true(out.none && out.n == 0 && !out.stopped);
    v->k.sample(&v->e, &(ds_op_sample){ .logits = logits, .ld = 4, .vocab = 4, .seq = &q, .n_seqs = 0, .out = &out });
}

/* The rows in front weren't what they should be: nothing is drawn from them, and nothing counted. */
static void after_a_fault_nothing_is_drawn(void **state)
{
    variant *v = *state;
    static const float logits[4] = { 1, 2, 3, NAN };
    uint32_t count[4] = { 0 };
    ds_sample_rows q = { .how = { .top_p = 1.0, .repetition_penalty = 1.0, .frequency_penalty = 0.5, .n_output = count }, .n = 1 };
    ds_drawn out = { .n = 9 };

    v->fault = (ds_fault){ .kind = DS_FAULT_FINITE, .busy = 1 };
    v->k.sample(&v->e, &(ds_op_sample){ .logits = logits, .ld = 4, .vocab = 4, .seq = &q, .n_seqs = 1, .out = &out });
    v->fault = (ds_fault){ 0 };
    assert_int_equal(out.n, 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(count[i], 0);
}

static void blocks_begin_behind_the_draws(void **state)
{
    variant *v = *state;
    enum { N = 3, B = 4 };
    static const ds_drawn drawn[N] = { { .n = 1, .token = { 7 } }, { .n = 3, .token = { 4, 5, 6 } }, { .none = true } };
    static const int32_t want[N * B] = { 7, 99, 99, 99, 6, 99, 99, 99, 0, 99, 99, 99 };
    ds_seq_rows first[N], seq[N];
    ds_sample_rows draw[N] = { { .index = 10 }, { .index = 20 }, { .index = 30 } };
    int32_t id[N * B];
    ds_op_accept op = { .drawn = drawn, .first = first, .n = N, .fill = 99, .seq = seq, .id = id };

    for (uint32_t s = 0; s < N; s++)
        first[s] = (ds_seq_rows){ .pos0 = (int32_t)(100 * s), .row0 = s * B, .count = B, .slot = s + 5, .tail = DS_NONE, .win_lo = 3 };
    for (int turn = 0; turn < 2; turn++) {
        v->k.accept(&v->e, &op);
        assert_memory_equal(id, want, sizeof want);
        for (uint32_t s = 0; s < N; s++) {
            ds_seq_rows q = first[s];
            q.pos0 += s == 1 ? 2 : 0;
            assert_memory_equal(&seq[s], &q, sizeof q);
            assert_int_equal(draw[s].index, 10 * (s + 1) + (turn && s == 1 ? 2 : 0));
        }
        op.draw = draw;
    }
    op.n = 0;
    v->k.accept(&v->e, &op);
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_of_a_step),
        cmocka_unit_test(records_go_to_their_places),
        cmocka_unit_test(what_is_not_finite_is_found),
        cmocka_unit_test(drafts_never_change_what_is_drawn),
        cmocka_unit_test(draws_from_a_large_vocabulary),
        cmocka_unit_test(a_mask_that_forbids_all_ends_it),
        cmocka_unit_test(after_a_fault_nothing_is_drawn),
        cmocka_unit_test(blocks_begin_behind_the_draws),
    };
    return ds_test_every_variant(tests, argc, argv);
}
