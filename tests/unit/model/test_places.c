/* Sizes and places of the released shape, which formats and memory plans build on. */
#include "model/model_internal.h"
#include "test.h"

static ds_config c;
static ds_topology t;
static ds_places p;

static int load(void **state)
{
    ds_err err;

    (void)state;
    if (ds_config_load(&c, DS_TEST_ROOT "/models/configs/deepseek-v4.1-flash.json", &err) != DS_OK)
        return -1;
    ds_topology_init(&t, &c);
    return ds_places_init(&p, &c, &t) ? 0 : -1;
}

static void a_block_is_890_bytes_a_token(void **state)
{
    size_t at = 0;

    (void)state;
    assert_int_equal(p.block_bytes, 113920);
    for (uint32_t s = 0; s < c.n_kv_sources; s++) { /* without gaps, source by source, entries before keys */
        uint32_t n = DS_KV_BLOCK_TOKENS / c.compress_ratios[c.kv_source_layer_ids[s]];
        assert_int_equal(p.main_off[s], at);
        assert_int_equal(p.idx_off[s], at + n * 288);
        at += n * (288 + 68);
    }
    assert_int_equal(at, p.block_bytes);
}

static void rings_outlast_a_verify_step(void **state)
{
    (void)state;
    assert_int_equal(p.rollback, 6);
    assert_int_equal(p.ring, 134);
    assert_int_equal(p.n_open, 8);
    assert_int_equal(p.n_hist, 16);
    for (uint32_t l = 1; l < t.n_layers; l++)
        assert_true(p.ring_off[l] >= p.ring_off[l - 1] + 134 * 528);
    assert_true(p.slot_bytes < 43 * (134 * 528 + 64) + 3 * 8 * (4096 + 64) + 1024);
}

static void longer_draft_blocks_need_longer_rings(void **state)
{
    ds_config long_blocks = c;
    ds_places q;

    (void)state;
    long_blocks.dspark_block_size = 20;
    assert_true(ds_places_init(&q, &long_blocks, &t));
    assert_int_equal(q.rollback, 21);
    assert_int_equal(q.ring, 128 + 21);
    assert_int_equal(q.n_open, 32);
    assert_int_equal(q.n_hist, 32);
}

/* Angles are f32 products; cosine and sine are right to the last place but one. */
static void rotary_tables(void **state)
{
    enum { N = 2000 };
    float *cs = calloc((size_t)N * c.qk_rope_head_dim, sizeof *cs);
    ds_exec e = { 0 };

    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        ds_rope_fill(cs, &c, (ds_rope_kind)kind, 0, N / 4, &e); /* in two pieces, as runners do */
        ds_rope_fill(cs + (size_t)(N / 4) * c.qk_rope_head_dim, &c, (ds_rope_kind)kind, N / 4, N - N / 4, &e);
        for (uint32_t i = 0; i < c.qk_rope_head_dim / 2; i++) {
            double f = pow(kind ? 160000.0 : 10000.0, -2.0 * i / 64.0), ramp = fmin(fmax((i - 15.0) / 10.0, 0.0), 1.0);
            float f32 = (float)(kind ? f * (1.0 - ramp) + f / 16.0 * ramp : f);
            for (uint32_t pos = 0; pos < N; pos++) {
                float angle = (float)pos * f32;
                const float *at = cs + ((size_t)pos * (c.qk_rope_head_dim / 2) + i) * 2;
                if (fabs((double)at[0] - cos((double)angle)) > 6e-8 || fabs((double)at[1] - sin((double)angle)) > 6e-8)
                    fail_msg("kind %d, frequency %u, position %u: %.9g %.9g", kind, i, pos, (double)at[0], (double)at[1]);
            }
        }
    }
    free(cs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_block_is_890_bytes_a_token),
        cmocka_unit_test(rings_outlast_a_verify_step),
        cmocka_unit_test(longer_draft_blocks_need_longer_rings),
        cmocka_unit_test(rotary_tables),
    };
    return cmocka_run_group_tests(tests, load, NULL);
}
