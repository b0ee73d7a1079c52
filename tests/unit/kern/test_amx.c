/* The AMX product with tile operations that are modelled in C: checks packing, order and edges on CPUs without AMX.
 * (The instructions themselves run in test_products, where the CPU has them.) Needs AVX-512 for the rest of the
 * body. */
#include "kern_test.h"

/* Eight tiles of 16 rows of 64 bytes, and their shapes. */
static uint8_t tile[8][16][64];
static uint16_t tile_bytes[8];
static uint8_t tile_rows[8];

static void model_config(const void *cfg)
{
    const uint8_t *c = cfg;
    assert_int_equal(c[0], 1);
    for (int t = 0; t < 8; t++) {
        memcpy(&tile_bytes[t], c + 16 + 2 * t, 2);
        tile_rows[t] = c[48 + t];
    }
}

static void model_load(int t, const void *p, size_t pitch)
{
    for (size_t r = 0; r < tile_rows[t]; r++) {
        memset(tile[t][r], 0, 64);
        memcpy(tile[t][r], (const uint8_t *)p + r * pitch, tile_bytes[t]);
    }
}

static void model_store(int t, void *p, size_t pitch)
{
    for (size_t r = 0; r < tile_rows[t]; r++)
        memcpy((uint8_t *)p + r * pitch, tile[t][r], tile_bytes[t]);
}

static float half(const uint8_t *row, size_t i)
{
    uint16_t h;
    memcpy(&h, row + 2 * i, 2);
    return ds_bf16_to_f32(h);
}

/* TDPBF16PS: even and odd products of a row are summed apart, then both are added to C. */
static void model_dot(int c, int a, int b)
{
    assert_int_equal(tile_bytes[a] / 4, tile_rows[b]);
    assert_int_equal(tile_bytes[c], tile_bytes[b]);
    for (size_t m = 0; m < tile_rows[c]; m++)
        for (size_t n = 0; n < tile_bytes[c] / 4u; n++) {
            float even = 0.0f, odd = 0.0f, sum;
            for (size_t k = 0; k < tile_rows[b]; k++) {
                even = fmaf(half(tile[a][m], 2 * k), half(tile[b][k], 2 * n), even);
                odd = fmaf(half(tile[a][m], 2 * k + 1), half(tile[b][k], 2 * n + 1), odd);
            }
            memcpy(&sum, tile[c][m] + 4 * n, 4);
            sum += even + odd;
            memcpy(tile[c][m] + 4 * n, &sum, 4);
        }
}

#define TILE_CONFIG(cfg) model_config(cfg)
#define TILE_RELEASE() memset(tile_rows, 0, sizeof tile_rows)
#define TILE_ZERO(t) memset(tile[t], 0, sizeof tile[t])
#define TILE_LOAD(t, p, pitch) model_load(t, p, pitch)
#define TILE_STORE(t, p, pitch) model_store(t, p, pitch)
#define TILE_DOT(c, a, b) model_dot(c, a, b)

#include "kern/cpu/gemm_amx_body.h"

static const ds_gemm model = {
    .set_bytes = set_bytes, .prep = prep, .block = block, .work_bytes = sizeof(work_area), .set_rows = GROUP, .outs = OUTS
};

static void tiles_match_ref(void **state)
{
    static const ds_mat_type types[] = { DS_MAT_BF16, DS_MAT_FP8_32X32, DS_MAT_FP8_ROWS, DS_MAT_MXFP4 };
    static const size_t row_counts[] = { 1, 2, 15, 16, 17, 33, 48, 64, 65, 128, 130 };
    static const struct {
        uint32_t in;
        uint64_t out;
        uint32_t groups;
    } shapes[] = { { 32, 16, 1 }, { 96, 5, 1 }, { 160, 40, 2 }, { 512, 33, 1 }, { 800, 80, 1 } };
    const ds_gemm_pair pair = { &model, &model, NULL };
    ds_kern ref;
    ds_arena arena;
    ds_fault fault = { 0 };
    ds_err err;
    uint64_t s = 1;

    (void)state;
    ds_gemm_init();
    assert_ok(ds_kern_init(&ref, "ref", &err));
    assert_ok(ds_arena_init(&arena, 8u << 20, &err));
    ds_exec e = { .scratch = &arena, .fault = &fault, .bf16 = true };
    for (size_t t = 0; t < 4; t++)
        for (size_t c = 0; c < sizeof shapes / sizeof *shapes; c++)
            for (size_t n = 0; n < sizeof row_counts / sizeof *row_counts; n++) {
                size_t rows = row_counts[n], out = shapes[c].out, in = shapes[c].in, ldx = in * shapes[c].groups;
                ds_mat w = random_mat(&s, types[t], shapes[c].in, out);
                float *x = random_floats(&s, rows * ldx, 1.0f, true), *want = zero_floats(rows * out), *got = zero_floats(rows * out),
                      *alone = zero_floats(rows * out);
                double *bound = calloc(rows * out, sizeof *bound);
                ds_op_linear a = { .y = want, .x = x, .w = &w, .rows = rows, .ldx = ldx, .ldy = out, .groups = shapes[c].groups };
                ref.linear(&e, &a);
                for (size_t i = 0; i < rows * out; i++)
                    bound[i] = 1e-4 * (fabs((double)want[i]) + (double)in); /* the packing is what is checked here */
                a.y = got;
                ds_linear_cpu(&e, &a, &pair);
                assert_within(got, want, bound, rows * out, "tiles");
                a.rows = 1;
                for (size_t r = 0; r < rows; r++) {
                    a.y = alone + r * out;
                    a.x = x + r * ldx;
                    ds_linear_cpu(&e, &a, &pair);
                }
                assert_same_bits(alone, got, rows * out * sizeof *got, "rows together and alone");
                free_mat(&w);
                free(x);
                free(want);
                free(got);
                free(alone);
                free(bound);
            }
    ds_arena_fini(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(tiles_match_ref) };

    if (!__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq")) {
        puts("skipped: this CPU lacks AVX-512");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
