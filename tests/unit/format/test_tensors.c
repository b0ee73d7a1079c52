/* The tensor list: the released totals, names and shapes by sample, and what the finder refuses. */
#include "test.h"

#include <unistd.h>

#include "format/tensors.h"

#define REAL_CONFIG DS_TEST_ROOT "/models/configs/deepseek-v4.1-flash.json"
#define TINY(x) DS_TEST_ROOT "/tests/configs/tiny-" x ".json"

typedef struct {
    uint64_t tensors, bytes, optional;
    const char *name; /* looked for */
    ds_tensor_want found;
} totals;

static uint64_t size_of(ds_dtype t, const uint64_t shape[2])
{
    return shape[0] * shape[1] * ds_dtype_bytes(t);
}

static ds_rc add(void *arg, const ds_tensor_want *w, ds_err *err)
{
    (void)err;
    totals *a = arg;
    uint64_t shape[2], scale[2];
    ds_dtype t;
    ds_want_storage(w, true, &t, shape, scale);
    if (w->optional) {
        a->optional++;
        return DS_OK;
    }
    a->tensors += scale[0] ? 2 : 1;
    a->bytes += size_of(t, shape) + (scale[0] ? size_of(DS_DT_F8_E8M0, scale) : 0);
    if (a->name && strcmp(w->name, a->name) == 0)
        a->found = *w;
    return DS_OK;
}

static void released_totals(void **state)
{
    (void)state;
    ds_err err;
    ds_config c;
    totals a = { 0 };
    assert_ok(ds_config_load(&c, REAL_CONFIG, &err));
    assert_ok(ds_tensors_each(&c, add, &a, &err));
    assert_int_equal(a.tensors, 96085);
    assert_true(fabs((double)a.bytes / (1 << 30) - 475.24) < 0.005);
    assert_int_equal(a.optional, 4);
}

static void samples(void **state)
{
    (void)state;
    static const struct {
        const char *name, *scale;
        uint64_t a, b;
        int ndim, form, dtype, layer, expert;
    } want[] = {
        { "embed.weight", "", 129280, 5120, 2, DS_FORM_PLAIN, DS_DT_BF16, -1, -1 },
        { "layers.0.hc_attn_fn", "", 24, 20480, 2, DS_FORM_PLAIN, DS_DT_F32, 0, -1 },
        { "layers.3.attn.wo_a.weight", "layers.3.attn.wo_a.scale", 8192, 4096, 2, DS_FORM_FP8, DS_DT_BF16, 3, -1 },
        { "layers.39.ffn.experts.383.w2.weight", "layers.39.ffn.experts.383.w2.scale", 5120, 2304, 2, DS_FORM_FP4, DS_DT_BF16, 39, 383 },
        { "layers.14.attn.compressor.wgate.weight", "", 512, 5120, 2, DS_FORM_PLAIN, DS_DT_BF16, 14, -1 },
        { "layers.20.attn.compressor.norm.weight", "", 512, 1, 1, DS_FORM_PLAIN, DS_DT_BF16, 20, -1 },
        { "layers.36.attn.indexer.wq_b.weight", "layers.36.attn.indexer.wq_b.scale", 4096, 1280, 2, DS_FORM_FP8, DS_DT_BF16, 36, -1 },
        { "layers.14.engram.embed.weight", "layers.14.engram.embed.scale", 384016682, 256, 2, DS_FORM_ROWS, DS_DT_BF16, 14, -1 },
        { "layers.1.engram.wkv.weight", "layers.1.engram.wkv.scale", 25600, 6144, 2, DS_FORM_FP8, DS_DT_BF16, 1, -1 },
        { "mtp.0.main_proj.weight", "mtp.0.main_proj.scale", 5120, 15360, 2, DS_FORM_FP8, DS_DT_BF16, 40, -1 },
        { "mtp.2.ffn.gate.bias_vl", "", 128, 1, 1, DS_FORM_PLAIN, DS_DT_F32, 42, -1 },
        { "mtp.2.confidence_head.proj.weight", "", 1, 5376, 2, DS_FORM_PLAIN, DS_DT_BF16, 42, -1 },
        { "vision.blocks.31.mlp.w1.weight", "", 5632, 1024, 2, DS_FORM_PLAIN, DS_DT_BF16, -1, -1 },
        { "vision.patch_embed.proj.weight", "", 1024, 588, 2, DS_FORM_PLAIN, DS_DT_BF16, -1, -1 },
        { "aligner.w1.weight", "", 5120, 9216, 2, DS_FORM_PLAIN, DS_DT_BF16, -1, -1 },
        { "image_newline", "", 5120, 1, 1, DS_FORM_PLAIN, DS_DT_BF16, -1, -1 },
    };
    static const char *const none[] = { "layers.20.attn.compressor.wgate.weight",
                                        "layers.24.attn.indexer.wk.weight",
                                        "mtp.1.norm.weight",
                                        "mtp.1.main_norm.weight",
                                        "layers.2.engram.wkv.weight",
                                        "layers.40.attn_norm.weight",
                                        "mtp.0.ffn.experts.128.w1.weight" };
    ds_err err;
    ds_config c;
    assert_ok(ds_config_load(&c, REAL_CONFIG, &err));
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        totals a = { .name = want[i].name };
        assert_ok(ds_tensors_each(&c, add, &a, &err));
        assert_string_equal(a.found.name, want[i].name);
        assert_string_equal(a.found.scale, want[i].scale);
        assert_int_equal(a.found.shape[0], want[i].a);
        assert_int_equal(a.found.shape[1], want[i].b);
        assert_int_equal(a.found.ndim, want[i].ndim);
        assert_int_equal(a.found.form, want[i].form);
        assert_int_equal(a.found.plain_dtype, want[i].dtype);
        assert_int_equal(a.found.layer, want[i].layer);
        assert_int_equal(a.found.expert, want[i].expert);
    }
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        totals a = { .name = none[i] };
        assert_ok(ds_tensors_each(&c, add, &a, &err));
        assert_string_equal(a.found.name, "");
    }
}

/* ---- a checkpoint in memory of our own making, written as one file, with one tensor spoilt ---- */

typedef struct {
    FILE *header, *data;
    bool quantised, with_optional;
    bool bf16_experts;  /* although the rest is quantised */
    const char *prefix; /* in front of every name */
    const char *twice;  /* this tensor without the prefix, too */
    const char *drop;   /* leave this tensor out */
    const char *change; /* give this one another dtype or shape */
    const char *dtype;
    const char *shape;
    size_t bytes; /* of the changed tensor */
    uint64_t at;
    int n;
} maker;

static void put(maker *m, const char *name, ds_dtype t, const uint64_t *shape, int ndim, const ds_tensor_want *w)
{
    char dims[64];
    uint64_t bytes = ds_dtype_bytes(t);
    const char *dtype = ds_dtype_name(t);
    for (int i = 0; i < ndim; i++)
        bytes *= shape[i];
    if (m->drop && strcmp(name, m->drop) == 0)
        return;
    if (ndim == 1)
        snprintf(dims, sizeof dims, "[%llu]", (unsigned long long)shape[0]);
    else
        snprintf(dims, sizeof dims, "[%llu,%llu]", (unsigned long long)shape[0], (unsigned long long)shape[1]);
    if (m->twice && strcmp(name, m->twice) == 0) {
        maker again = *m;
        again.twice = NULL;
        again.prefix = "";
        put(&again, name, t, shape, ndim, w);
        m->at = again.at;
        m->n = again.n;
    }
    if (m->change && strcmp(name, m->change) == 0) {
        dtype = m->dtype ? m->dtype : dtype;
        bytes = m->shape || m->dtype ? m->bytes : bytes;
        if (m->shape)
            strcpy(dims, m->shape);
    }
    fprintf(m->header, "%s\"%s%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%llu,%llu]}", m->n++ ? "," : "",
            m->prefix ? m->prefix : "", name, dtype, dims, (unsigned long long)m->at, (unsigned long long)(m->at + bytes));
    m->at += bytes;
    (void)w;
}

static ds_rc make_one(void *arg, const ds_tensor_want *w, ds_err *err)
{
    (void)err;
    maker *m = arg;
    uint64_t shape[2], scale[2];
    ds_dtype t;
    if (w->optional && !m->with_optional)
        return DS_OK;
    ds_want_storage(w, m->quantised && !(m->bf16_experts && w->form == DS_FORM_FP4), &t, shape, scale);
    put(m, w->name, t, shape, w->ndim, w);
    if (scale[0])
        put(m, w->scale, DS_DT_F8_E8M0, scale, 2, w);
    return DS_OK;
}

/* Writes the file (data are zeros) and checks it against the config. */
static ds_rc make_and_check(maker m, const ds_config *c, ds_err *err)
{
    char path[] = "/tmp/ds_tensors_XXXXXX", *text = NULL;
    size_t n = 0;
    ds_st *st;
    ds_rc rc;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    m.header = open_memstream(&text, &n);
    fputc('{', m.header);
    ds_tensors_each(c, make_one, &m, err);
    fputc('}', m.header);
    fclose(m.header);
    uint64_t len = n;
    assert_int_equal(write(fd, &len, 8), 8);
    assert_int_equal(write(fd, text, n), n);
    assert_int_equal(ftruncate(fd, (off_t)(8 + n + m.at)), 0);
    close(fd);
    free(text);
    rc = ds_st_open(&st, path, err);
    unlink(path);
    if (rc == DS_OK)
        rc = ds_tensors_check(c, st, err);
    ds_st_close(st);
    return rc;
}

static void whole_checkpoints_pass(void **state)
{
    (void)state;
    static const char *const path[] = { TINY("a"), TINY("b"), TINY("c"), TINY("d") };
    ds_err err;
    ds_config c;
    for (size_t i = 0; i < 4; i++) {
        assert_ok(ds_config_load(&c, path[i], &err));
        assert_ok(make_and_check((maker){ .quantised = true }, &c, &err));
        assert_ok(make_and_check((maker){ .quantised = true, .with_optional = true }, &c, &err));
        c.has_quantization_config = false;
        assert_ok(make_and_check((maker){ .quantised = false }, &c, &err));
    }
}

static void quantisation_is_as_claimed(void **state)
{
    (void)state;
    ds_err err;
    ds_config c;
    assert_ok(ds_config_load(&c, TINY("a"), &err));
    assert_true(c.has_quantization_config && c.has_expert_dtype);
    assert_refused(make_and_check((maker){ .quantised = false }, &c, &err), DS_E_FORMAT,
                   "quantization_config says that linears are FP8; all ");
    assert_refused(make_and_check((maker){ .quantised = true, .bf16_experts = true }, &c, &err), DS_E_FORMAT,
                   "quantization_config.expert_dtype says that experts are FP4; all ");
    c.has_expert_dtype = false;
    assert_ok(make_and_check((maker){ .quantised = true, .bf16_experts = true }, &c, &err));
    c.has_quantization_config = false; /* tensors say themselves what they are */
    assert_ok(make_and_check((maker){ .quantised = true }, &c, &err));
}

static void names_may_have_a_prefix(void **state)
{
    (void)state;
    ds_err err;
    ds_config c;
    assert_ok(ds_config_load(&c, TINY("a"), &err));
    assert_ok(make_and_check((maker){ .quantised = true, .with_optional = true, .prefix = "model." }, &c, &err));
    assert_refused(make_and_check((maker){ .quantised = true, .prefix = "models." }, &c, &err), DS_E_FORMAT,
                   "tensor embed.weight is missing");
    assert_refused(make_and_check((maker){ .quantised = true, .prefix = "model.", .drop = "layers.0.attn.wq_a.scale" }, &c, &err),
                   DS_E_FORMAT, "tensor layers.0.attn.wq_a.scale is missing; model.layers.0.attn.wq_a.weight is F8_E4M3");
    assert_refused(make_and_check((maker){ .quantised = true, .prefix = "model.", .twice = "norm.weight" }, &c, &err), DS_E_FORMAT,
                   "tensor norm.weight: is there as model.norm.weight, too");
    assert_refused(make_and_check((maker){ .quantised = true, .prefix = "model.", .twice = "layers.0.attn.wq_a.scale" }, &c, &err),
                   DS_E_FORMAT, "tensor layers.0.attn.wq_a.scale: is there as model.");
}

static void spoilt_tensors_are_refused(void **state)
{
    (void)state;
    /* tiny-a: hidden 64, q_lora 32, 8 experts with inner 32 */
    static const struct {
        maker m;
        const char *message;
    } cases[] = {
        { { .quantised = true, .drop = "norm.weight" }, "tensor norm.weight is missing" },
        { { .quantised = true, .drop = "mtp.2.markov_head.head.weight" }, "tensor mtp.2.markov_head.head.weight is missing" },
        { { .quantised = true, .drop = "vision.norm.weight" }, "tensor vision.norm.weight is missing" },
        { { .quantised = true, .drop = "layers.3.ffn.gate.bias_vl" }, "tensor layers.3.ffn.gate.bias_vl is missing" },
        { { .quantised = true, .drop = "layers.0.attn.wq_a.scale" },
          "tensor layers.0.attn.wq_a.scale is missing; layers.0.attn.wq_a.weight is F8_E4M3 and needs it" },
        { { .quantised = true, .change = "norm.weight", .shape = "[63]", .bytes = 126 },
          "tensor norm.weight: BF16 has shape [63], must be [64] (in " },
        { { .quantised = true, .change = "norm.weight", .shape = "[64,1]", .bytes = 128 },
          "tensor norm.weight: BF16 has shape [64, 1], must be [64]" },
        { { .quantised = true, .change = "norm.weight", .dtype = "F16", .bytes = 128 },
          "tensor norm.weight: has dtype F16, must be BF16 or F32 (in " },
        { { .quantised = true, .change = "norm.weight", .dtype = "F64", .bytes = 512 },
          "tensor norm.weight: has dtype F64, must be BF16 or F32" },
        { { .quantised = true, .change = "layers.0.attn.wq_a.weight", .dtype = "I8", .bytes = 2048 },
          "tensor layers.0.attn.wq_a.weight: has dtype I8, must be F8_E4M3 with a scale, or BF16" },
        { { .quantised = true, .change = "layers.0.attn.wq_a.weight", .shape = "[64,32]", .bytes = 2048 },
          "F8_E4M3 has shape [64, 32], must be [32, 64]" },
        { { .quantised = true, .change = "layers.0.attn.wq_a.scale", .shape = "[2,1]", .bytes = 2 },
          "tensor layers.0.attn.wq_a.scale: F8_E8M0 has shape [2, 1], must be [1, 2]" },
        { { .quantised = true, .change = "layers.0.attn.wq_a.scale", .dtype = "U8", .bytes = 2 },
          "tensor layers.0.attn.wq_a.scale: has dtype U8, must be F8_E8M0" },
        { { .quantised = true, .change = "layers.0.attn.wq_a.weight", .dtype = "BF16", .bytes = 4096 }, "a scale beside BF16 values" },
        { { .quantised = true, .change = "layers.0.ffn.experts.7.w1.weight", .dtype = "U8", .bytes = 1024 },
          "has dtype U8, must be I8 with a scale, or BF16" },
        { { .quantised = true, .change = "layers.0.ffn.experts.7.w1.weight", .shape = "[32,64]", .bytes = 2048 },
          "I8 has shape [32, 64], must be [32, 32]" },
        { { .quantised = true, .change = "layers.2.engram.embed.scale", .shape = "[660,2]", .bytes = 1320 }, "must be [660, 1]" },
        { { .quantised = false, .change = "layers.1.attn.wkv.weight", .dtype = "F32", .bytes = 8192 },
          "has dtype F32, must be F8_E4M3 with a scale, or BF16" },
        { { .quantised = true, .with_optional = true, .change = "engram.primes", .shape = "[6]", .bytes = 48 },
          "tensor engram.primes: I64 has shape [6], must be [1, 6]" },
    };
    ds_err err;
    ds_config c;
    assert_ok(ds_config_load(&c, TINY("a"), &err));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        err = (ds_err){ 0 };
        ds_rc rc = make_and_check(cases[i].m, &c, &err);
        if (rc != DS_E_FORMAT || !strstr(err.msg, cases[i].message))
            fail_msg("case %zu: returned %d '%s', expected '%s'", i, rc, err.msg, cases[i].message);
    }
    maker map = { .quantised = true, .with_optional = true, .change = "engram.token_map", .dtype = "I32", .bytes = 4ull * c.vocab_size };
    assert_refused(make_and_check(map, &c, &err), DS_E_FORMAT, "tensor engram.token_map: has dtype I32, must be I64");
    maker head = { .quantised = false, .change = "head.weight", .shape = "[1,64]", .bytes = 128 };
    assert_refused(make_and_check(head, &c, &err), DS_E_FORMAT, "tensor head.weight: BF16 has shape [1, 64], must be [");
    /* Plain tensors may be either dtype. */
    assert_ok(make_and_check((maker){ .quantised = true, .change = "norm.weight", .dtype = "F32", .bytes = 256 }, &c, &err));
    assert_ok(make_and_check((maker){ .quantised = true, .change = "layers.0.hc_attn_base", .dtype = "BF16", .bytes = 48 }, &c, &err));
    /* Without a vision tower bias_vl is optional. */
    assert_ok(ds_config_load(&c, TINY("b"), &err));
    assert_ok(make_and_check((maker){ .quantised = true, .drop = "layers.0.ffn.gate.bias_vl" }, &c, &err));
}

static void names_of_kinds(void **state)
{
    (void)state;
    for (unsigned k = 0; k < DS_N_KINDS; k++)
        assert_true(strlen(ds_kind_name(k)) > 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(released_totals),
        cmocka_unit_test(samples),
        cmocka_unit_test(whole_checkpoints_pass),
        cmocka_unit_test(spoilt_tensors_are_refused),
        cmocka_unit_test(quantisation_is_as_claimed),
        cmocka_unit_test(names_may_have_a_prefix),
        cmocka_unit_test(names_of_kinds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
