/* Every code of every format both ways, ties, saturation, signs of zero, NaN; the groups against a slow model of the
 * rules in double. */
#include "test.h"

#include "base/rng.h"
#include "format/numfmt.h"

static float bits(uint32_t u)
{
    return ds_f32_of_bits(u);
}

static void bf16_every_code(void **state)
{
    (void)state;
    for (uint32_t c = 0; c < 65536; c++) {
        float x = ds_bf16_to_f32((uint16_t)c);
        assert_int_equal(ds_f32_bits(x), c << 16);
        uint32_t want = (c & 0x7fff) > 0x7f80 ? (c | 0x40) : c; /* a signalling NaN becomes quiet */
        assert_int_equal(ds_bf16_from_f32(x), want);
        if ((c & 0x7fff) >= 0x7f80)
            continue;
        /* The midpoint to the next code goes to the even one, its neighbours to their side. */
        uint32_t mid = c << 16 | 0x8000;
        assert_int_equal(ds_bf16_from_f32(bits(mid)), c + (c & 1));
        assert_int_equal(ds_bf16_from_f32(bits(mid - 1)), c);
        assert_int_equal(ds_bf16_from_f32(bits(mid + 1)), c + 1);
    }
    assert_int_equal(ds_bf16_from_f32(bits(0x7f7fffff)), 0x7f80); /* the largest f32 rounds to infinity */
    assert_int_equal(ds_bf16_from_f32(bits(0xff800001)), 0xffc0);
}

/* Value of an E4M3 code from the definition. */
static double e4m3_def(uint32_t c)
{
    uint32_t e = c >> 3 & 15, m = c & 7;
    double a = e == 15 && m == 7 ? NAN : e ? ldexp(1.0 + m / 8.0, (int)e - 7) : ldexp(m, -9);
    return c & 128 ? -a : a;
}

static const double e2m1_def[8] = { 0, 0.5, 1, 1.5, 2, 3, 4, 6 };

/* Codes of magnitude lo..hi-1 are increasing: checks that each code, and the points around each midpoint, encode as
 * nearest-even. */
static void check_small_format(uint8_t (*enc)(float), double (*def)(uint32_t), uint32_t n, uint8_t sign)
{
    for (uint32_t c = 0; c < n; c++) {
        float x = (float)def(c);
        assert_int_equal(enc(x), c);
        assert_int_equal(enc(-x), c | sign);
        if (c + 1 == n)
            break;
        float mid = (float)((def(c) + def(c + 1)) / 2);
        assert_int_equal(enc(mid), c + (c & 1));
        assert_int_equal(enc(-mid), (c + (c & 1)) | sign);
        assert_int_equal(enc(nextafterf(mid, 0)), c);
        assert_int_equal(enc(nextafterf(mid, 1e9f)), c + 1);
    }
}

static uint8_t enc_e4m3(float x)
{
    return ds_e4m3_from_f32(x);
}

static uint8_t enc_e2m1(float x)
{
    return ds_e2m1_from_f32(x);
}

static double def_e2m1(uint32_t c)
{
    return e2m1_def[c];
}

static void e4m3_every_code(void **state)
{
    (void)state;
    for (uint32_t c = 0; c < 256; c++) {
        double want = e4m3_def(c);
        float got = ds_e4m3_to_f32((uint8_t)c);
        if (isnan(want)) {
            assert_true(isnan(got));
            assert_int_equal(ds_e4m3_from_f32(copysignf(NAN, c & 128 ? -1.0f : 1.0f)), c);
            continue;
        }
        assert_int_equal(ds_f32_bits(got), ds_f32_bits((float)want));
        assert_int_equal(ds_e4m3_from_f32(got), c);
    }
    check_small_format(enc_e4m3, e4m3_def, 0x7f, 0x80);
    static const float big[] = { 448.0f, 456.0f, 463.99f, 464.0f, 465.0f, 480.0f, 1e6f, 3.4e38f, INFINITY };
    for (size_t i = 0; i < sizeof big / sizeof *big; i++) {
        assert_int_equal(ds_e4m3_from_f32(big[i]), 0x7e);
        assert_int_equal(ds_e4m3_from_f32(-big[i]), 0xfe);
    }
    assert_int_equal(ds_e4m3_from_f32(-1e-30f), 0x80);
    assert_int_equal(ds_e4m3_from_f32(-0.0f), 0x80);
    assert_int_equal(ds_e4m3_from_f32(bits(1)), 0);
}

static void e2m1_every_code(void **state)
{
    (void)state;
    for (uint32_t c = 0; c < 16; c++) {
        float want = (float)(c & 8 ? -e2m1_def[c & 7] : e2m1_def[c & 7]);
        assert_int_equal(ds_f32_bits(ds_e2m1_to_f32((uint8_t)c)), ds_f32_bits(want));
        assert_int_equal(ds_e2m1_from_f32(want), c);
    }
    check_small_format(enc_e2m1, def_e2m1, 8, 8);
    static const float mid[] = { 0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f }, to[] = { 0, 1, 1, 2, 2, 4, 4 };
    for (size_t i = 0; i < 7; i++)
        assert_true(ds_e2m1_to_f32(ds_e2m1_from_f32(mid[i])) == to[i]);
    assert_int_equal(ds_e2m1_from_f32(7.0f), 7);
    assert_int_equal(ds_e2m1_from_f32(-INFINITY), 15);
    assert_int_equal(ds_e2m1_from_f32(NAN), 7);
    assert_int_equal(ds_e2m1_from_f32(-NAN), 15);
    assert_int_equal(ds_e2m1_from_f32(-0.1f), 8);
}

static void e8m0_every_code(void **state)
{
    (void)state;
    for (uint32_t c = 0; c < 255; c++) {
        float x = ds_e8m0_to_f32((uint8_t)c);
        assert_true((double)x == ldexp(1.0, (int)c - 127));
        assert_int_equal(ds_e8m0_ceil(x), c);
        assert_int_equal(ds_e8m0_ceil(nextafterf(x, 0)), c);
        assert_int_equal(ds_e8m0_ceil(nextafterf(x, INFINITY)), c < 254 ? c + 1 : 254);
        assert_true((double)ds_e8m0_inverse((uint8_t)c) == ldexp(1.0, 127 - (int)c));
    }
    assert_true(isnan(ds_e8m0_to_f32(255)));
    assert_true(isnan(ds_e8m0_inverse(255)));
    assert_int_equal(ds_e8m0_ceil(NAN), 255);
    assert_int_equal(ds_e8m0_ceil(INFINITY), 255);
    assert_int_equal(ds_e8m0_ceil(0.0f), 0);
}

/* Nearest value of the format by search, ties to the even code; what the fast encoders must equal. */
static uint32_t nearest(double (*def)(uint32_t), uint32_t n, double x)
{
    double a = fabs(x), best = INFINITY;
    uint32_t code = 0;
    for (uint32_t c = 0; c < n; c++) {
        double d = fabs(def(c) - a);
        if (d < best || (d == best && !(c & 1))) {
            best = d;
            code = c;
        }
    }
    return code;
}

static void random_values_round_to_nearest(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 20000; i++) {
        uint32_t u = (uint32_t)ds_rng_u64(7, 0, i);
        float x = bits((u & 0x807fffffu) | ((u >> 8 & 31) + 112) << 23); /* exponents -15..16 */
        uint32_t s = signbit(x) ? 1 : 0;
        assert_int_equal(ds_e4m3_from_f32(x), nearest(e4m3_def, 0x7f, x) | s << 7);
        assert_int_equal(ds_e2m1_from_f32(x), nearest(def_e2m1, 8, x) | s << 3);
    }
}

static double amax_of(const float *x, size_t n)
{
    double m = 0;
    for (size_t i = 0; i < n; i++)
        m = fmax(m, fabs((double)x[i]));
    return m;
}

static void fill(float *x, size_t n, uint64_t stream)
{
    for (size_t i = 0; i < n; i++) {
        double spread = ldexp(1.0, (int)(i / 16 % 40) - 30); /* groups of many sizes */
        x[i] = (float)(ds_rng_normal(3, stream, i) * spread);
    }
    x[1] = 0.0f;
    x[2] = -0.0f;
}

/* Groups against the rules written with log2 and ceil in double. */
static void groups_follow_the_rules(void **state)
{
    (void)state;
    enum { N = 1280 };
    static float x[N], y[N];
    static uint8_t codes[N], scales[N / 16];

    for (uint64_t round = 0; round < 20; round++) {
        fill(x, N, round);
        ds_fp8_quant(codes, scales, x, N);
        for (size_t g = 0; g < N / 32; g++) {
            double amax = fmax(amax_of(x + 32 * g, 32), (double)1e-4f);
            double want = ceil(log2((double)((float)amax * (1.0f / 448.0f))));
            assert_int_equal(scales[g], (int)want + 127);
            for (size_t i = 32 * g; i < 32 * g + 32; i++)
                assert_int_equal(codes[i], nearest(e4m3_def, 0x7f, x[i] / exp2(want)) | (signbit(x[i]) ? 0x80u : 0u));
        }
        ds_fp8_dequant(y, codes, scales, N);
        for (size_t i = 0; i < N; i++)
            assert_true((double)y[i] == e4m3_def(codes[i]) * exp2(scales[i / 32] - 127.0));
        float *rt = y;
        ds_fp8_round(rt, x, N);
        for (size_t i = 0; i < N; i++)
            assert_true((double)rt[i] == e4m3_def(codes[i]) * exp2(scales[i / 32] - 127.0));

        ds_mxfp4_quant(codes, scales, x, N);
        for (size_t g = 0; g < N / 32; g++) {
            double want = ceil(log2(fmax(amax_of(x + 32 * g, 32), 6 * 0x1p-126) / 6));
            assert_int_equal(scales[g], (int)want + 127);
            for (size_t i = 32 * g; i < 32 * g + 32; i++) {
                uint32_t c = nearest(def_e2m1, 8, x[i] / exp2(want)) | (signbit(x[i]) ? 8u : 0u);
                assert_int_equal(ds_fp4_get(codes, i), c);
                assert_int_equal(codes[i / 2] >> (i % 2 * 4) & 15, c);
            }
        }
        ds_mxfp4_round(y, x, N);
        for (size_t i = 0; i < N; i++)
            assert_true(y[i] == ds_e2m1_value[ds_fp4_get(codes, i)] * ds_e8m0_to_f32(scales[i / 32]));

        ds_kvfp4_quant(codes, scales, x, N);
        for (size_t g = 0; g < N / 16; g++) {
            float q = (float)fmax(amax_of(x + 16 * g, 16), 6 * 0x1p-9) / 6.0f;
            assert_int_equal(scales[g], nearest(e4m3_def, 0x7f, q));
            assert_true(scales[g] != 0);
            for (size_t i = 16 * g; i < 16 * g + 16; i++) {
                float v = x[i] / (float)e4m3_def(scales[g]);
                assert_int_equal(ds_fp4_get(codes, i), nearest(def_e2m1, 8, v) | (signbit(x[i]) ? 8u : 0u));
            }
        }
        ds_kvfp4_round(y, x, N);
        for (size_t i = 0; i < N; i++)
            assert_true(y[i] == ds_e2m1_value[ds_fp4_get(codes, i)] * (float)e4m3_def(scales[i / 16]));
    }
}

static void scales_at_their_borders(void **state)
{
    (void)state;
    static const struct {
        float amax;
        uint8_t fp8, mxfp4, kv;
    } cases[] = {
        { 0.0f, 105, 1, 0x01 },         /* lower bounds: 1e-4/448 -> 2^-22, 2^-126, 2^-9 */
        { 448.0f, 127, 134, 0x69 },     /* exactly 1; 448/6 = 74.67 -> 2^7 and e4m3 72 */
        { 448.00003f, 128, 134, 0x69 }, /* one step more */
        { 6.0f, 121, 127, 0x38 },
        { 6.0000005f, 121, 128, 0x38 },
        { 3.0f, 120, 126, 0x30 },
        { 2688.0f, 130, 136, 0x7e }, /* 2688/6 = 448 */
        { 1e6f, 139, 145, 0x7e },    /* the E4M3 scale saturates */
        { 3.4028235e38f, 247, 253, 0x7e },
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        float x[32] = { [5] = -cases[k].amax, [20] = cases[k].amax };
        uint8_t codes[32], scales[2];
        ds_fp8_quant(codes, scales, x, 32);
        assert_int_equal(scales[0], cases[k].fp8);
        ds_mxfp4_quant(codes, scales, x, 32);
        assert_int_equal(scales[0], cases[k].mxfp4);
        ds_kvfp4_quant(codes, scales, x, 32);
        assert_int_equal(scales[0], cases[k].kv);
        assert_int_equal(scales[1], cases[k].kv);
    }
}

static void a_poisoned_group_is_nan_and_alone(void **state)
{
    (void)state;
    static const float poison[] = { NAN, INFINITY, -INFINITY };
    for (size_t k = 0; k < 3; k++) {
        float x[64], y[64];
        for (size_t i = 0; i < 64; i++)
            x[i] = 1.0f;
        x[37] = poison[k];
        ds_fp8_round(y, x, 64);
        for (size_t i = 0; i < 64; i++)
            assert_int_equal(isnan(y[i]) != 0, i >= 32);
        ds_mxfp4_round(y, x, 64);
        for (size_t i = 0; i < 64; i++)
            assert_int_equal(isnan(y[i]) != 0, i >= 32);
        ds_kvfp4_round(y, x, 64);
        for (size_t i = 0; i < 64; i++)
            assert_int_equal(isnan(y[i]) != 0, i >= 32 && i < 48);
    }
}

static void weight_blocks_with_ragged_edges(void **state)
{
    (void)state;
    enum { R = 70, C = 97 };
    static float w[R * C], y[R * C];
    static uint8_t codes[R * C], scales[3 * 4];
    for (size_t i = 0; i < R * C; i++)
        w[i] = (float)(ds_rng_normal(5, 1, i) * (i % 7 ? 0.02 : 1e-9));
    memset(w, 0, 32 * sizeof *w);
    ds_fp8_block_quant(codes, scales, w, R, C);
    for (size_t r = 0; r < R; r += 32)
        for (size_t c = 0; c < C; c += 32) {
            double amax = 0;
            for (size_t i = r; i < r + 32 && i < R; i++)
                for (size_t j = c; j < c + 32 && j < C; j++)
                    amax = fmax(amax, fabs((double)w[i * C + j]));
            int want = (int)ceil(log2((double)((float)amax * (1.0f / 448.0f)))) + 127;
            assert_int_equal(scales[r / 32 * 4 + c / 32], want);
        }
    ds_fp8_block_dequant(y, codes, scales, 0, R, C);
    for (size_t i = 0; i < R * C; i++) {
        double s = ds_e8m0_to_f32(scales[i / C / 32 * 4 + i % C / 32]);
        assert_int_equal(codes[i], nearest(e4m3_def, 0x7f, w[i] / s) | (signbit(w[i]) ? 0x80u : 0u));
        assert_true((double)y[i] == e4m3_def(codes[i]) * s);
    }
    float row[C];
    ds_fp8_block_dequant(row, codes, scales, 65, 1, C);
    assert_memory_equal(row, y + 65 * C, sizeof row);
    /* A block of zeros, and one of values that activations would round to zero. */
    float z[32] = { 0 };
    ds_fp8_block_quant(codes, scales, z, 1, 32);
    assert_int_equal(scales[0], 1);
    z[3] = 1e-20f;
    ds_fp8_block_quant(codes, scales, z, 1, 32);
    ds_fp8_block_dequant(y, codes, scales, 0, 1, 32);
    assert_close(y + 3, z + 3, 1, 0.07, 0);
    z[4] = NAN;
    ds_fp8_block_quant(codes, scales, z, 1, 32);
    assert_int_equal(scales[0], 255);
}

static void records_have_their_sizes_and_layout(void **state)
{
    (void)state;
    assert_int_equal(ds_kv_main_bytes(512), 288);
    assert_int_equal(ds_kv_index_bytes(128), 68);
    assert_int_equal(ds_kv_window_bytes(512), 528);
    assert_int_equal(ds_kv_main_bytes(64), 36);
    assert_int_equal(ds_kv_index_bytes(32), 17);
    float x[512], y[512], z[512];
    uint8_t rec[528], codes[512], scales[32];
    fill(x, 512, 9);
    ds_kv_main_pack(rec, x, 512);
    ds_kvfp4_quant(codes, scales, x, 512);
    assert_memory_equal(rec, codes, 256);
    assert_memory_equal(rec + 256, scales, 32);
    ds_kv_main_unpack(y, rec, 512);
    ds_kvfp4_round(z, x, 512);
    assert_memory_equal(y, z, sizeof y);
    ds_kv_index_pack(rec, x, 128);
    ds_mxfp4_quant(codes, scales, x, 128);
    assert_memory_equal(rec, codes, 64);
    assert_memory_equal(rec + 64, scales, 4);
    ds_kv_index_unpack(y, rec, 128);
    ds_mxfp4_round(z, x, 128);
    assert_memory_equal(y, z, 128 * sizeof *y);
    ds_kv_window_pack(rec, x, 512);
    ds_fp8_quant(codes, scales, x, 512);
    assert_memory_equal(rec, codes, 512);
    assert_memory_equal(rec + 512, scales, 16);
    ds_kv_window_unpack(y, rec, 512);
    ds_fp8_round(z, x, 512);
    assert_memory_equal(y, z, sizeof y);
}

static void bf16_rows(void **state)
{
    (void)state;
    float x[70], y[70], z[70];
    uint16_t h[70];
    for (size_t i = 0; i < 70; i++)
        x[i] = (float)ds_rng_normal(1, 1, i);
    ds_bf16_from_f32_row(h, x, 70);
    ds_bf16_to_f32_row(y, h, 70);
    ds_bf16_round_row(z, x, 70);
    assert_memory_equal(y, z, sizeof y);
    for (size_t i = 0; i < 70; i++)
        assert_true(y[i] == ds_bf16_round(x[i]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bf16_every_code),
        cmocka_unit_test(e4m3_every_code),
        cmocka_unit_test(e2m1_every_code),
        cmocka_unit_test(e8m0_every_code),
        cmocka_unit_test(random_values_round_to_nearest),
        cmocka_unit_test(groups_follow_the_rules),
        cmocka_unit_test(scales_at_their_borders),
        cmocka_unit_test(a_poisoned_group_is_nan_and_alone),
        cmocka_unit_test(weight_blocks_with_ragged_edges),
        cmocka_unit_test(records_have_their_sizes_and_layout),
        cmocka_unit_test(bf16_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
