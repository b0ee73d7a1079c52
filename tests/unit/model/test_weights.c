/* Opening models: what is refused, with which words, and what runs out. */
#include "golden.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fault.h"

static char dir[] = "/tmp/ds-weights-XXXXXX";

static void read_file(const char *path, char **text, size_t *n)
{
    ds_err err;

    assert_ok(ds_file_read(text, n, path, 1 << 28, &err));
}

static void write_file(const char *name, const char *text, size_t n)
{
    char path[600];
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", dir, name);
    f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* The checkpoint under test: a golden model of one shard without its index, in memory, to be changed and written
 * again. */
typedef struct {
    char *bytes;
    size_t n;
} shard;

static shard load_shard(const char *name)
{
    char path[600], *text;
    size_t n;
    shard s;

    snprintf(path, sizeof path, "%s/tests/golden/%s/model/config.json", DS_TEST_ROOT, name);
    read_file(path, &text, &n);
    write_file("config.json", text, n);
    free(text);
    snprintf(path, sizeof path, "%s/tests/golden/%s/model/model-00001-of-00001.safetensors", DS_TEST_ROOT, name);
    read_file(path, &s.bytes, &s.n);
    return s;
}

/* Replaces the first `from` behind the entry of `tensor` in the header by `to`, of equal length. */
static void patch_header(shard *s, const char *tensor, const char *from, const char *to)
{
    char *at = memmem(s->bytes, s->n, tensor, strlen(tensor));

    assert_non_null(at);
    assert_int_equal(strlen(from), strlen(to));
    at = memmem(at, (size_t)(s->bytes + s->n - at), from, strlen(from));
    assert_non_null(at);
    memcpy(at, to, strlen(to));
}

/* Where the data of a tensor starts. */
static uint8_t *data_of(shard *s, const char *tensor)
{
    uint64_t header;
    char quoted[200];
    const char *at;
    unsigned long long begin;

    memcpy(&header, s->bytes, 8);
    snprintf(quoted, sizeof quoted, "\"%s\"", tensor);
    at = memmem(s->bytes + 8, header, quoted, strlen(quoted));
    assert_non_null(at);
    at = strstr(at, "\"data_offsets\"");
    assert_non_null(at);
    at = strchr(at, '[');
    assert_int_equal(sscanf(at, "[%llu", &begin), 1);
    return (uint8_t *)s->bytes + 8 + header + begin;
}

static ds_rc open_patched(const shard *s, ds_err *err)
{
    ds_model *m;
    ds_rc rc;

    write_file("model.safetensors", s->bytes, s->n);
    rc = ds_model_open(&m, dir, NULL, err);
    assert_true(rc == DS_OK || m == NULL);
    ds_model_close(m);
    return rc;
}

static void headers(void **state)
{
    static const struct {
        const char *model, *tensor, *from, *to, *part;
    } cases[] = {
        { "tiny-c", "\"layers.1.attn.wq_a.scale\"", "wq_a.scale", "wq_b.skale", "layers.1.attn.wq_a.scale is missing" },
        { "tiny-c", "\"norm.weight\"", "\"norm.weight\"", "\"nomr.weight\"", "tensor norm.weight is missing" },
        { "tiny-c", "\"layers.0.attn.q_norm.weight\"", "\"BF16\"", "\"F16\" ", "tensor layers.0.attn.q_norm.weight: has dtype F16" },
        { "tiny-c", "\"layers.2.ffn.experts.3.w2.weight\"", "\"I8\"", "\"U8\"", "layers.2.ffn.experts.3.w2.weight: has dtype U8" },
        { "tiny-c", "\"layers.2.ffn.shared_experts.w2.scale\"", "\"F8_E8M0\"", "\"F8_E4M3\"",
          "layers.2.ffn.shared_experts.w2.scale: has dtype F8_E4M3" },
        { "tiny-b", "\"layers.1.attn.compressor.wgate.weight\"", "wgate.weight", "wgate.wieght",
          "layers.1.attn.compressor.wgate.weight is missing" },
        { "tiny-b", "\"mtp.1.markov_head.head.weight\"", "markov_head.head", "markov_head.haed",
          "mtp.1.markov_head.head.weight is missing" },
        { "tiny-b", "\"engram.primes\"", "\"I64\"", "\"U64\"", "engram.primes: has dtype U64" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ds_err err;
        shard s = load_shard(cases[i].model);
        assert_ok(open_patched(&s, &err));
        patch_header(&s, cases[i].tensor, cases[i].from, cases[i].to);
        assert_refused(open_patched(&s, &err), DS_E_FORMAT, cases[i].part);
        free(s.bytes);
    }
}

static void shapes(void **state)
{
    ds_err err;
    shard s = load_shard("tiny-c");

    (void)state;
    patch_header(&s, "\"layers.0.attn.wq_a.weight\"", "[32,96]", "[96,32]");
    assert_refused(open_patched(&s, &err), DS_E_FORMAT, "layers.0.attn.wq_a.weight");
    free(s.bytes);
}

static void values(void **state)
{
    static const struct {
        const char *model, *tensor;
        size_t element;
        uint8_t bytes[8];
        size_t n;
        const char *part;
    } cases[] = {
        { "tiny-c", "layers.1.attn.wq_a.weight", 5, { 0x7f }, 1, "layers.1.attn.wq_a.weight, element 5 is NaN" },
        { "tiny-c", "layers.1.attn.wq_a.weight", 5, { 0xff }, 1, "layers.1.attn.wq_a.weight, element 5 is NaN" },
        { "tiny-c", "layers.4.ffn.experts.2.w3.scale", 7, { 0xff }, 1, "layers.4.ffn.experts.2.w3.scale, element 7 is NaN" },
        { "tiny-c", "norm.weight", 3, { 0x80, 0x7f }, 2, "norm.weight, element 3 is NaN or infinite" },
        { "tiny-c", "norm.weight", 3, { 0xc0, 0xff }, 2, "norm.weight, element 3 is NaN or infinite" },
        { "tiny-c", "embed.weight", 100, { 0x80, 0xff }, 2, "embed.weight, element 100 is NaN or infinite" },
        { "tiny-c", "layers.0.hc_ffn_fn", 11, { 0, 0, 0x80, 0x7f }, 4, "layers.0.hc_ffn_fn, element 11 is NaN or infinite" },
        { "tiny-b", "layers.2.engram.embed.weight", 77, { 0x80, 0x7f }, 2, "layers.2.engram.embed.weight, element 77 is NaN or infinite" },
        { "tiny-b", "engram.primes", 2, { 90 }, 8, "engram.primes" },
        { "tiny-b", "engram.token_map", 7, { 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff }, 8, "engram.token_map" },
        { "tiny-b", "engram.token_map", 7, { 0, 0, 0, 0, 1 }, 8, "engram.token_map" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ds_err err;
        shard s = load_shard(cases[i].model);
        memcpy(data_of(&s, cases[i].tensor) + cases[i].element * cases[i].n, cases[i].bytes, cases[i].n);
        assert_refused(open_patched(&s, &err), DS_E_FORMAT, cases[i].part);
        free(s.bytes);
    }
}

/* Rows of tables that are too large to scan are checked when they are read; the runner is none the worse for it. */
static void values_of_large_tables(void **state)
{
    shard s = load_shard("tiny-b");
    ds_model *m;
    ds_runner *r;
    ds_err err;
    uint32_t block = 0;
    int32_t tokens[] = { 0, 7, 9, 200, 31 };
    const float *logits;
    uint64_t engram_row = 0;
    float want[512];
    ds_seq q = { .tail = DS_NONE, .blocks = &block, .n_blocks = 1, .n = 5, .tokens = tokens, .n_logits = 1 };
    collector seen = { 0 };

    (void)state;
    memset(data_of(&s, "embed.weight") + 100 * 64 * 2 + 10, 0xff, 2); /* row 100 of [vocab][64] BF16 */
    memset(data_of(&s, "mtp.1.markov_head.embed.weight") + 101 * 32 * 2, 0xff, 2);
    assert_refused(open_patched(&s, &err), DS_E_FORMAT, "element");
    for (int bad_row = 0; bad_row < 2; bad_row++) {
        if (bad_row) {
            memset(data_of(&s, "layers.2.engram.embed.weight") + engram_row * 32 * 2, 0xff, 2);
            write_file("model.safetensors", s.bytes, s.n);
        }
        assert_ok(ds_model_open(&m, dir, &(ds_model_opts){ .scan_bytes = 1 }, &err));
        assert_ok(ds_runner_create(&r, m, &(ds_runner_opts){ .max_context = 64, .observe = collect, .observe_ctx = &seen }, &err));
        tokens[2] = 100;
        assert_refused(ds_runner_step(r, &q, 1, &logits, &err), DS_E_FORMAT, "embed.weight: row 100");
        tokens[2] = 9;
        collector_clear(&seen);
        if (bad_row) {
            assert_refused(ds_runner_step(r, &q, 1, &logits, &err), DS_E_FORMAT, "layers.2.engram.embed");
        } else {
            assert_ok(ds_runner_step(r, &q, 1, &logits, &err));
            memcpy(want, logits, ds_model_config(m)->vocab_size * sizeof *want);
            memcpy(&engram_row, collected(&seen, "engram", 2, 1), sizeof engram_row);
            assert_refused(ds_runner_draft(r, &(ds_draft_seq){ .pos = 5, .token = 101 }, 1, tokens, NULL, &err), DS_E_FORMAT,
                           "mtp.1.markov_head.embed.weight: row 101");
            tokens[0] = 0;
            assert_ok(ds_runner_step(r, &q, 1, &logits, &err));
            assert_memory_equal(want, logits, ds_model_config(m)->vocab_size * sizeof *want);
        }
        collector_clear(&seen);
        ds_runner_destroy(r);
        ds_model_close(m);
    }
    free(s.bytes);
}

/* Experts that are too many to scan are looked at when a row first chooses them. What nobody chose may be bad, the
 * step of a row that chooses a bad one is refused each time and names it, and rows that don't are none the worse for
 * it. The bits are those of a model that was scanned. */
static void values_of_many_experts(void **state)
{
    static const char *const part[] = { "w1", "w3", "w2" };
    shard s = load_shard("tiny-c");
    ds_err err;
    uint32_t block = 0, n_experts, k, V = 0;
    int32_t tokens[] = { 7, 9 };
    ds_seq q = { .tail = DS_NONE, .blocks = &block, .n_blocks = 1, .tokens = tokens };
    const float *logits;
    float first[512], both[512];
    int bad_layer = -1, bad_expert = -1, idle_layer = -1, idle_expert = -1;

    (void)state;
    for (int round = -1; round < 6; round++) { /* -1: as it is, scanned; then each matrix of the chosen one, by 1 and 3 threads */
        collector seen = { 0 };
        ds_model *m;
        ds_runner *r;
        ds_pool *pool = NULL;
        char tensor[100], want[64];
        uint8_t *scale = NULL, good = 0;

        if (round >= 3)
            assert_ok(ds_pool_create(&pool, &(ds_pool_opts){ .n_threads = 3 }, &err));
        if (round >= 0) {
            snprintf(tensor, sizeof tensor, "layers.%d.ffn.experts.%d.%s.scale", bad_layer, bad_expert, part[round % 3]);
            snprintf(want, sizeof want, "layers.%d.ffn.experts.%d.%s: ", bad_layer, bad_expert, part[round % 3]);
            scale = data_of(&s, tensor) + 5;
            good = *scale;
            *scale = 0xff;
            assert_refused(open_patched(&s, &err), DS_E_FORMAT, "element");
        }
        write_file("model.safetensors", s.bytes, s.n);
        assert_ok(ds_model_open(&m, dir, &(ds_model_opts){ .pool = pool, .scan_bytes = round >= 0 }, &err));
        assert_ok(
            ds_runner_create(&r, m, &(ds_runner_opts){ .max_context = 64, .pool = pool, .observe = collect, .observe_ctx = &seen }, &err));
        n_experts = ds_model_config(m)->n_routed_experts;
        k = ds_model_config(m)->num_experts_per_tok;
        V = ds_model_config(m)->vocab_size;
        for (int twice = 0; twice < 2; twice++) {
            q.n = 2;
            q.n_logits = 1;
            if (round >= 0) {
                assert_refused(ds_runner_step(r, &q, 1, &logits, &err), DS_E_FORMAT, want);
            } else {
                collector_clear(&seen);
                assert_ok(ds_runner_step(r, &q, 1, &logits, &err));
                memcpy(both, logits, V * sizeof *both);
            }
            for (int l = 0; round < 0 && l < (int)ds_model_config(m)->num_hidden_layers; l++) {
                int32_t row[2][16];
                memcpy(row[0], collected(&seen, "router", l, 1), k * sizeof **row);
                memcpy(row[1], collected(&seen, "router", l, 0), k * sizeof **row);
                for (int x = 0; x < (int)n_experts; x++) {
                    bool a = false, b = false;
                    for (uint32_t i = 0; i < k; i++) {
                        a = a || row[0][i] == x;
                        b = b || row[1][i] == x;
                    }
                    if (b && !a) {
                        bad_layer = l;
                        bad_expert = x;
                    }
                    if (!a && !b) {
                        idle_layer = l;
                        idle_expert = x;
                    }
                }
            }
            q.n = 1;
            assert_ok(ds_runner_step(r, &q, 1, &logits, &err));
            if (round < 0)
                memcpy(first, logits, V * sizeof *first);
            assert_memory_equal(first, logits, V * sizeof *first);
        }
        collector_clear(&seen);
        ds_runner_destroy(r);
        ds_model_close(m);
        ds_pool_destroy(pool);
        assert_true(bad_layer >= 0 && idle_layer >= 0);
        if (scale)
            *scale = good;
    }
    for (int idle = 0; idle < 2; idle++) {
        ds_model *m;
        ds_runner *r;
        ds_model_stats stat;
        char tensor[100];

        if (idle) {
            snprintf(tensor, sizeof tensor, "layers.%d.ffn.experts.%d.w2.scale", idle_layer, idle_expert);
            *data_of(&s, tensor) = 0xff;
        }
        write_file("model.safetensors", s.bytes, s.n);
        assert_ok(ds_model_open(&m, dir, &(ds_model_opts){ .scan_bytes = 1 }, &err));
        ds_model_stat(m, &stat);
        assert_int_equal(stat.chosen_bytes, stat.kind_bytes[DS_KIND_EXPERT]);
        assert_ok(ds_runner_create(&r, m, &(ds_runner_opts){ .max_context = 64 }, &err));
        q.n = 2;
        assert_ok(ds_runner_step(r, &q, 1, &logits, &err));
        assert_memory_equal(both, logits, V * sizeof *both);
        ds_runner_destroy(r);
        ds_model_close(m);
        /* they may stay in the files; the others may not */
        assert_ok(ds_model_open(&m, dir, &(ds_model_opts){ .scan_bytes = 1, .memory_bytes = stat.file_bytes - stat.chosen_bytes }, &err));
        ds_model_close(m);
        assert_refused(
            ds_model_open(&m, dir, &(ds_model_opts){ .scan_bytes = 1, .memory_bytes = stat.file_bytes - stat.chosen_bytes - 1 }, &err),
            DS_E_NOMEM, "routed experts not counted");
    }
    free(s.bytes);
}

/* The lowest bad tensor is named, however many threads look. */
static void the_same_message_for_any_number_of_threads(void **state)
{
    ds_err err, first;
    shard s = load_shard("tiny-c");
    ds_model *m;

    (void)state;
    data_of(&s, "layers.5.attn.wkv.weight")[1] = 0x7f;
    data_of(&s, "layers.3.attn.wkv.weight")[9] = 0x7f;
    assert_refused(open_patched(&s, &err), DS_E_FORMAT, "layers.3.attn.wkv.weight, element 9");
    first = err;
    for (uint32_t threads = 1; threads < 5; threads++) {
        ds_pool *pool;
        assert_ok(ds_pool_create(&pool, &(ds_pool_opts){ .n_threads = threads }, &err));
        assert_int_equal(ds_model_open(&m, dir, &(ds_model_opts){ .pool = pool }, &err), DS_E_FORMAT);
        assert_string_equal(err.msg, first.msg);
        ds_pool_destroy(pool);
    }
    /* headers only: the values aren't looked at */
    assert_ok(ds_model_open(&m, dir, &(ds_model_opts){ .no_data = true }, &err));
    assert_refused(ds_runner_create(&(ds_runner *){ NULL }, m, &(ds_runner_opts){ 0 }, &err), DS_E_ARG, "without its data");
    ds_model_close(m);
    free(s.bytes);
}

/* Data that starts at an odd address is as good as any (the sanitizer watches). */
static void any_alignment(void **state)
{
    static const char pad[] = " ";
    shard s = load_shard("tiny-c"), t;
    uint64_t header;
    ds_err err;
    ds_model *m;
    ds_runner *r;
    const float *logits;
    float want[512];
    int32_t tokens[] = { 0, 7, 9, 200, 31 };
    uint32_t block = 0;
    ds_seq q = { .tail = DS_NONE, .blocks = &block, .n_blocks = 1, .n = 5, .tokens = tokens, .n_logits = 1 };

    (void)state;
    for (int odd = 0; odd < 2; odd++) {
        t = s;
        if (odd) {
            memcpy(&header, s.bytes, 8);
            t.bytes = malloc(s.n + 1);
            t.n = s.n + 1;
            memcpy(t.bytes, s.bytes, 8 + header);
            t.bytes[8 + header] = pad[0];
            memcpy(t.bytes + 8 + header + 1, s.bytes + 8 + header, s.n - 8 - header);
            header++;
            memcpy(t.bytes, &header, 8);
        }
        write_file("model.safetensors", t.bytes, t.n);
        assert_ok(ds_model_open(&m, dir, NULL, &err));
        assert_ok(ds_runner_create(&r, m, &(ds_runner_opts){ .max_context = 64 }, &err));
        assert_ok(ds_runner_step(r, &q, 1, &logits, &err));
        if (odd)
            assert_memory_equal(want, logits, ds_model_config(m)->vocab_size * sizeof *want);
        memcpy(want, logits, ds_model_config(m)->vocab_size * sizeof *want);
        ds_runner_destroy(r);
        ds_model_close(m);
        if (odd)
            free(t.bytes);
    }
    free(s.bytes);
}

static ds_rc bad_map(void *ctx, const char *path, int32_t *map, uint32_t vocab, ds_err *err)
{
    const int *how = ctx;

    (void)path;
    if (*how == 3)
        return ds_fail(err, DS_E_IO, "no tokenizer today");
    for (uint32_t i = 0; i < vocab; i++)
        map[i] = *how == 1 ? (int32_t)i : 0;
    return DS_OK;
}

static void token_maps(void **state)
{
    char path[600];
    ds_model *m;
    ds_err err;

    (void)state;
    snprintf(path, sizeof path, "%s/tests/golden/tiny-a/model", DS_TEST_ROOT);
    assert_refused(ds_model_open(&m, path, NULL, &err), DS_E_FORMAT, "no tensor engram.token_map");
    assert_refused(ds_model_open(&m, path, &(ds_model_opts){ .token_map = bad_map, .ctx = &(int){ 1 } }, &err), DS_E_FORMAT,
                   "engram_compressed_vocab_size");
    assert_refused(ds_model_open(&m, path, &(ds_model_opts){ .token_map = bad_map, .ctx = &(int){ 2 } }, &err), DS_E_FORMAT,
                   "has 1 classes");
    assert_refused(ds_model_open(&m, path, &(ds_model_opts){ .token_map = bad_map, .ctx = &(int){ 3 } }, &err), DS_E_IO,
                   "no tokenizer today");
    assert_refused(ds_model_open(&m, path, &(ds_model_opts){ .kernels = "mmx" }, &err), DS_E_ARG, "mmx");
    assert_refused(ds_model_open(&m, "/nonexistent", NULL, &err), DS_E_IO, "/nonexistent");
    assert_refused(ds_model_open(&m, path, &(ds_model_opts){ .token_map = test_token_map, .memory_bytes = 1000000 }, &err), DS_E_NOMEM,
                   "too big for this machine");
    assert_ok(ds_model_open(&m, path, &(ds_model_opts){ .no_data = true, .memory_bytes = 1000000 }, &err));
    ds_model_close(m);
}

static void runs_and_steps(void **state)
{
    ds_model *m = test_model("tiny-a", "ref");
    ds_runner *r;
    ds_runner_size size;
    ds_err err;
    const float *logits;
    float want[512];
    int32_t tokens[40] = { 0, 1, 2, 3 };
    uint32_t blocks[] = { 0, 1 };
    const ds_seq good = { .tail = DS_NONE, .blocks = blocks, .n_blocks = 2, .n = 4, .tokens = tokens, .n_logits = 1 };
    ds_seq q, two[2];

    (void)state;
    assert_refused(ds_runner_create(&r, m, &(ds_runner_opts){ .max_context = 4097 }, &err), DS_E_ARG, "the model's limit is 4096");
    assert_refused(ds_runner_create(&r, m, &(ds_runner_opts){ .max_rows = 1u << 30 }, &err), DS_E_ARG, "max_rows");
    assert_true(ds_runner_bytes(m, &(ds_runner_opts){ .max_context = 200 }, &size));
    assert_int_equal(size.total, size.kv + size.slots + size.tails + size.tables + size.buffers + size.scratch + size.stage);
    assert_ok(ds_runner_create(&r, m, &(ds_runner_opts){ .max_rows = 32, .max_seqs = 2, .max_context = 200, .n_tails = 1 }, &err));
    assert_int_equal(ds_runner_n_blocks(r), 4);
    assert_int_equal(ds_runner_n_slots(r), 2);
    assert_ok(ds_runner_step(r, &good, 1, &logits, &err));
    memcpy(want, logits, sizeof(float) * ds_model_config(m)->vocab_size);

#define REFUSED(change, part)                                                    \
    do {                                                                         \
        q = good;                                                                \
        change;                                                                  \
        assert_refused(ds_runner_step(r, &q, 1, &logits, &err), DS_E_ARG, part); \
    } while (0)
    REFUSED(q.n = 0, "rows");
    REFUSED(q.n = 33, "rows");
    REFUSED(q.pos = 198, "context ends at 200");
    REFUSED(q.pos = UINT32_MAX - 1, "context ends at 200");
    REFUSED(q.slot = 2, "slot 2");
    REFUSED(q.tail = 1, "tail 1");
    REFUSED(q.n_blocks = 0, "0 blocks");
    REFUSED((q.pos = 126, q.n_blocks = 1), "1 blocks");
    REFUSED(q.n_logits = 5, "logits of 5 rows");
    REFUSED(q.dec_from = 1, "decoder from position 1");
    REFUSED((q.dec_from = 5, q.tail = 0), "decoder from position 5");
    REFUSED((q.pos = 100, q.tail = 0, q.dec_from = 80, q.n_logits = 0), "decoder from position 80");
    REFUSED(q.enc_win = 1, "windows start");
    REFUSED(q.dec_win = 1, "windows start");
    tokens[2] = 384;
    REFUSED((void)0, "token id 384 at position 2");
    tokens[2] = -1;
    REFUSED((void)0, "token id -1 at position 2");
    tokens[2] = 2;
    blocks[0] = 4;
    REFUSED((void)0, "block 4");
    blocks[0] = 0;
    REFUSED((q.pos = 50, q.dec_from = 50, q.before = (int32_t[]){ 1, 2, 999 }), "token id 999");
    REFUSED((q.pos = 50, q.dec_from = 50), "resumed");
    two[0] = two[1] = good;
    assert_refused(ds_runner_step(r, two, 2, &logits, &err), DS_E_ARG, "slot 0 twice");
    assert_refused(ds_runner_step(r, two, 0, &logits, &err), DS_E_ARG, "0 sequences");
    assert_refused(ds_runner_step(r, two, 3, &logits, &err), DS_E_ARG, "3 sequences");
    two[1].slot = 1;
    two[0].n = two[1].n = 17;
    assert_refused(ds_runner_step(r, two, 2, &logits, &err), DS_E_ARG, "34 rows");
    two[1].n = 15;
    two[1].blocks = (uint32_t[]){ 2, 3 };
    two[0].n_logits = two[1].n_logits = 15;
    assert_refused(ds_runner_step(r, two, 2, &logits, &err), DS_E_ARG, "30 logits");
    assert_refused(ds_runner_draft(r, &(ds_draft_seq){ .token = 384 }, 1, tokens, NULL, &err), DS_E_ARG, "token id 384");
    assert_refused(ds_runner_draft(r, &(ds_draft_seq){ .slot = 2 }, 1, tokens, NULL, &err), DS_E_ARG, "slot 2");

    /* and after all that the runner is as good as before */
    ds_runner_reset_slot(r, 0);
    assert_ok(ds_runner_step(r, &good, 1, &logits, &err));
    assert_memory_equal(want, logits, sizeof(float) * ds_model_config(m)->vocab_size);
    ds_runner_destroy(r);
    ds_model_close(m);
}

static ds_rc attempt(void *ctx, ds_err *err)
{
    ds_model *m;
    ds_runner *r = NULL;
    ds_solo s = { 0 };
    char path[600];
    int32_t tokens[] = { 0, 5, 6 };
    ds_rc rc;

    snprintf(path, sizeof path, "%s/tests/golden/%s/model", DS_TEST_ROOT, (const char *)ctx);
    rc = ds_model_open(&m, path, &(ds_model_opts){ .kernels = "ref", .token_map = test_token_map }, err);
    if (rc == DS_OK)
        rc = ds_runner_create(&r, m, &(ds_runner_opts){ .max_rows = 4, .max_context = 16, .n_tails = 1 }, err);
    if (rc == DS_OK)
        rc = ds_solo_init(&s, r, 4, true, err);
    if (rc == DS_OK)
        rc = ds_solo_prefill(&s, tokens, 3, 1, NULL, NULL, err);
    ds_solo_fini(&s);
    ds_runner_destroy(r);
    ds_model_close(m);
    return rc;
}

static void every_allocation_can_fail(void **state)
{
    (void)state;
    assert_true(fault_every_allocation(attempt, "tiny-c") > 50);
    assert_true(fault_every_allocation(attempt, "tiny-b") > 50);
}

static int make_dir(void **state)
{
    (void)state;
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    char path[600];

    (void)state;
    snprintf(path, sizeof path, "%s/config.json", dir);
    unlink(path);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    unlink(path);
    return rmdir(dir);
}

/* Each rank binds its part of the experts, all ranks together each of them once; nobody looks at the values of
 * others. */
static void ranks_have_their_experts(void **state)
{
    ds_model_stats all, part;
    uint64_t sum = 0;
    ds_model *m;
    ds_err err;
    shard s = load_shard("tiny-c"); /* 5 experts */
    (void)state;

    write_file("model.safetensors", s.bytes, s.n);
    assert_ok(ds_model_open(&m, dir, NULL, &err));
    ds_model_stat(m, &all);
    ds_model_close(m);
    for (uint32_t ranks = 1; ranks <= 5; ranks++, sum = 0) {
        for (uint32_t i = 0; i < ranks; i++) {
            assert_ok(ds_model_open(&m, dir, &(ds_model_opts){ .ranks = ranks, .rank = i }, &err));
            ds_model_stat(m, &part);
            sum += part.kind_bytes[DS_KIND_EXPERT];
            assert_int_equal(part.kind_bytes[DS_KIND_ATTENTION], all.kind_bytes[DS_KIND_ATTENTION]);
            if (ranks > 1) {
                uint32_t block = 0;
                ds_token id = 5;
                ds_runner *r;
                assert_ok(ds_runner_create(&r, m, &(ds_runner_opts){ .max_context = 64 }, &err));
                assert_refused(
                    ds_runner_step(r, &(ds_seq){ .tail = DS_NONE, .blocks = &block, .n_blocks = 1, .n = 1, .tokens = &id }, 1, NULL, &err),
                    DS_E_ARG, "this run knows no other");
                ds_runner_destroy(r);
            }
            ds_model_close(m);
        }
        assert_int_equal(sum, all.kind_bytes[DS_KIND_EXPERT]);
    }
    assert_refused(ds_model_open(&m, dir, &(ds_model_opts){ .ranks = 6, .rank = 0 }, &err), DS_E_ARG, "6 ranks: the model has 5 experts");
    assert_refused(ds_model_open(&m, dir, &(ds_model_opts){ .ranks = 2, .rank = 2 }, &err), DS_E_ARG, "rank 2 of 2");
    data_of(&s, "layers.1.ffn.experts.4.w3.scale")[7] = 0xff;
    write_file("model.safetensors", s.bytes, s.n);
    assert_ok(ds_model_open(&m, dir, &(ds_model_opts){ .ranks = 2, .rank = 0 }, &err));
    ds_model_close(m);
    assert_refused(ds_model_open(&m, dir, &(ds_model_opts){ .ranks = 2, .rank = 1 }, &err), DS_E_FORMAT,
                   "layers.1.ffn.experts.4.w3.scale, element 7 is NaN");
    free(s.bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(headers),
        cmocka_unit_test(shapes),
        cmocka_unit_test(values),
        cmocka_unit_test(values_of_large_tables),
        cmocka_unit_test(values_of_many_experts),
        cmocka_unit_test(the_same_message_for_any_number_of_threads),
        cmocka_unit_test(any_alignment),
        cmocka_unit_test(token_maps),
        cmocka_unit_test(ranks_have_their_experts),
        cmocka_unit_test(runs_and_steps),
        cmocka_unit_test(every_allocation_can_fail),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
