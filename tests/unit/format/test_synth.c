/* Values of random checkpoints: recorded, independent of how they are asked for, tame, and readable by our own
 * loader. */
#include "test.h"

#include <unistd.h>

#include "base/file.h"
#include "format/numfmt.h"
#include "format/safetensors.h"
#include "format/synth.h"

#define TINY(x) DS_TEST_ROOT "/tests/configs/tiny-" x ".json"

typedef struct {
    const char *name;
    ds_tensor_want w;
} search;

static ds_rc find(void *arg, const ds_tensor_want *w, ds_err *err)
{
    search *s = arg;
    (void)err;
    if (strcmp(w->name, s->name) == 0)
        s->w = *w;
    return DS_OK;
}

static ds_tensor_want want(const ds_config *c, const char *name)
{
    search s = { .name = name };
    ds_tensors_each(c, find, &s, NULL);
    assert_string_equal(s.w.name, name);
    return s.w;
}

static void values_are_a_function_of_name_seed_and_place(void **state)
{
    (void)state;
    ds_err err;
    ds_config c;
    float a[1000], b[1000];
    assert_ok(ds_config_load(&c, TINY("d"), &err));
    ds_tensor_want w = want(&c, "layers.0.attn.wq_a.weight"), other = want(&c, "layers.1.attn.wq_a.weight");
    ds_synth_values(a, &w, &c, 1, 0, 1000);
    for (size_t at = 0; at < 1000; at += 50) {
        ds_synth_values(b, &w, &c, 1, at, 50);
        assert_memory_equal(a + at, b, 50 * sizeof *b);
    }
    ds_synth_values(b, &w, &c, 2, 0, 1000);
    assert_memory_not_equal(a, b, sizeof a);
    ds_synth_values(b, &other, &c, 1, 0, 1000);
    assert_memory_not_equal(a, b, sizeof a);
    ds_synth_values(b, &w, &c, 1, 0, 7);
    assert_memory_equal(a, b, 7 * sizeof *b);
}

static void moments(const ds_config *c, const char *name, double mean, double std)
{
    static float x[20000];
    ds_tensor_want w = want(c, name);
    uint64_t all = w.shape[0] * w.shape[1];
    size_t n = all < 20000 ? (size_t)all : 20000;
    double s = 0, ss = 0;
    ds_synth_values(x, &w, c, 11, 0, n);
    for (size_t i = 0; i < n; i++)
        s += x[i];
    s /= (double)n;
    for (size_t i = 0; i < n; i++)
        ss += (x[i] - s) * (x[i] - s);
    ss = sqrt(ss / (double)n);
    if (fabs(s - mean) > 4 * std / sqrt((double)n) || fabs(ss - std) > 4 * std / sqrt((double)n))
        fail_msg("%s: mean %g, standard deviation %g over %zu; expected %g, %g", name, s, ss, n, mean, std);
}

static void values_are_tame(void **state)
{
    (void)state;
    ds_err err;
    ds_config c;
    assert_ok(ds_config_load(&c, TINY("d"), &err)); /* 8 layers, hidden 256: 0.25 / sqrt(16) = 1/16 */
    moments(&c, "embed.weight", 0, 1);
    moments(&c, "head.weight", 0, 1.0 / 16);
    moments(&c, "layers.2.attn_norm.weight", 1, 0.1);
    moments(&c, "layers.1.attn.compressor.norm.weight", 0.5, 0.05);
    moments(&c, "layers.2.attn.wq_a.weight", 0, 1.0 / 16);
    moments(&c, "layers.2.attn.wo_b.weight", 0, 1 / sqrt(128) / 16);
    moments(&c, "layers.2.ffn.experts.3.w1.weight", 0, 1.0 / 16);
    moments(&c, "layers.2.ffn.experts.3.w2.weight", 0, 1 / sqrt(128) / 16);
    moments(&c, "layers.2.hc_ffn_fn", 0, 1.0 / 32);
    moments(&c, "layers.2.attn.attn_sink", 0, 1);
    moments(&c, "layers.2.ffn.gate.bias", 0, 0.1);
    moments(&c, "layers.1.engram.q_weight", 1, 0.2);
    float x[24], last[2];
    ds_tensor_want w = want(&c, "layers.2.hc_attn_base");
    ds_synth_values(x, &w, &c, 11, 0, 24);
    for (int i = 0; i < 4; i++)
        assert_true(x[8 + 5 * i] > 0.9f);
    w = want(&c, "layers.1.engram.wkv.weight"); /* keys at full size, the value quiet */
    ds_synth_values(last, &w, &c, 11, (uint64_t)4 * 256 * 192, 2);
    assert_true(fabsf(last[0]) < 3.5f / sqrtf(192) / 16);
}

static void a_checkpoint_loads_with_the_values_it_was_made_of(void **state)
{
    (void)state;
    char dir[] = "/tmp/ds_synth_XXXXXX", out[64], cmd[96], *text;
    ds_synth_result result;
    ds_err err;
    ds_config c, again;
    size_t n, n_tensors;
    ds_st *st;
    assert_non_null(mkdtemp(dir));
    for (int quantised = 0; quantised < 2; quantised++) {
        snprintf(out, sizeof out, "%s/m%d", dir, quantised);
        assert_ok(ds_file_read(&text, &n, TINY("a"), 1 << 20, &err));
        assert_ok(ds_config_parse(&c, text, n, "a", &err));
        ds_synth_opts o = { .config = &c,
                            .config_text = text,
                            .config_bytes = n,
                            .out = out,
                            .seed = 4,
                            .quantised = quantised != 0,
                            .n_threads = 2,
                            .shard_bytes = 200000 };
        assert_ok(ds_synth_write(&o, &result, &err));
        assert_true(result.shards > 1 && result.has_tokenizer);
        free(text);
        assert_ok(ds_config_load(&again, out, &err));
        assert_int_equal(again.has_quantization_config, quantised);
        assert_ok(ds_st_open(&st, out, &err));
        assert_ok(ds_tensors_check(&again, st, &err));
        ds_st_tensors(st, &n_tensors);
        assert_int_equal(n_tensors, result.tensors);
        assert_int_equal(ds_st_data_bytes(st), result.bytes);

        ds_weight w;
        ds_tensor_want q = want(&c, "layers.0.ffn.experts.1.w2.weight");
        float x[64 * 32], y[64 * 32];
        assert_ok(ds_weight_find(&w, st, &q, &err));
        assert_ok(ds_weight_check_values(&w, &err));
        ds_synth_values(x, &q, &c, 4, 0, 64 * 32);
        if (quantised) {
            assert_int_equal(w.form, DS_FORM_FP4);
            ds_mxfp4_dequant(y, w.data, w.scale, 64 * 32);
            ds_mxfp4_round(x, x, 64 * 32);
        } else {
            assert_int_equal(w.form, DS_FORM_PLAIN);
            ds_bf16_to_f32_row(y, w.data, 64 * 32);
            ds_bf16_round_row(x, x, 64 * 32);
        }
        assert_memory_equal(x, y, sizeof x);
        ds_st_close(st);
    }
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", dir);
    assert_int_equal(system(cmd), 0);
}

static void a_cancelled_write_leaves_nothing(void **state)
{
    (void)state;
    char dir[] = "/tmp/ds_synth_XXXXXX", out[64], *text;
    static volatile sig_atomic_t cancel = 1;
    ds_synth_result result;
    ds_err err;
    ds_config c;
    size_t n;
    assert_non_null(mkdtemp(dir));
    snprintf(out, sizeof out, "%s/m", dir);
    assert_ok(ds_file_read(&text, &n, TINY("a"), 1 << 20, &err));
    assert_ok(ds_config_parse(&c, text, n, "a", &err));
    ds_synth_opts o = { .config = &c, .config_text = text, .config_bytes = n, .out = out, .quantised = true, .cancel = &cancel };
    assert_refused(ds_synth_write(&o, &result, &err), DS_E_CANCELED, "stopped");
    free(text);
    assert_int_equal(rmdir(dir), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_a_function_of_name_seed_and_place),
        cmocka_unit_test(values_are_tame),
        cmocka_unit_test(a_checkpoint_loads_with_the_values_it_was_made_of),
        cmocka_unit_test(a_cancelled_write_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
