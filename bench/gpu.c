/* The ops of a GPU at production shapes, each next to a ceiling that was measured in the same run: how fast device
 * memory can be read.
 *
 *   bench-gpu [DEVICE [SECONDS [OP]]]   "cuda" if not said; exit 77 and one line where there is none. With OP (as a
 *                                      line names it, e.g. attention) only that op is measured.
 *
 * With SECONDS a case goes on for that long after its replays: the card is limited by power then. us_long is the median
 * of the last third, mhz the clock of a multiprocessor right after it.
 *
 * A case is recorded several times into one graph and replayed, so that launches cost what they cost in a step.
 * Weights and caches are larger than the L2; all bytes are random. Median of the replays. Results are checked
 * elsewhere (tests/unit/kern, with the device's name). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kern/device.h"

enum { REPLAYS = 9, ROWS = 1024, D = 5120, INNER = 2304, EXPERTS = 48, TOP = 6, DIM = 512, HEADS = 64, WINDOW = 128, TOPK = 512 };
enum { INDEX_HEADS = 64, INDEX_DIM = 128, BLOCK = 64, MATRICES = 24 };
#define SCRATCH ((size_t)5 << 30)
#define RANDOM_BYTES ((size_t)64 << 20)

static ds_device *dev;
static ds_mem mem;
static ds_stream *st;
static ds_fence *done;
static ds_ferry ferry;
static ds_exec ex;
static ds_arena scratch;
static unsigned char *noise; /* host: random bytes */
static double read_gb_s, long_s;
static const char *only; /* the one op that is measured, if any */

/* gpu_read.cu */
double bench_gpu_read(void *p, size_t bytes);
double bench_gpu_mhz(void);

static void must(ds_rc rc, const ds_err *err)
{
    if (rc == DS_OK)
        return;
    fprintf(stderr, "bench-gpu: %s\n", err->msg);
    exit(1);
}

static void *take(size_t bytes)
{
    ds_err err = { .rc = DS_OK };
    void *p = ds_mem_take(&mem, DS_MEM_DEVICE, bytes, &err);
    if (!p)
        must(err.rc, &err);
    return p;
}

static void *put(const void *host, size_t bytes)
{
    ds_err err;
    void *p = take(bytes);
    must(ds_ferry_put(&ferry, p, host, bytes, &err), &err);
    return p;
}

static uint32_t random_u32(void)
{
    static uint64_t s = 1;
    s = s * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(s >> 32);
}

/* About normal, exact in bf16. */
static float *floats(size_t n, float scale)
{
    float *h = malloc(n * sizeof *h), *p;
    for (size_t i = 0; i < n; i++) {
        uint32_t u;
        h[i] = scale * ((float)(int32_t)random_u32() + (float)(int32_t)random_u32() + (float)(int32_t)random_u32()) * 0x1p-31f;
        memcpy(&u, &h[i], 4);
        u &= 0xffff0000u;
        memcpy(&h[i], &u, 4);
    }
    p = put(h, n * sizeof *h);
    free(h);
    return p;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double replays(ds_graph *g, int n)
{
    double t[REPLAYS];
    ds_err err;
    for (int i = -2; i < n; i++) { /* two to warm up */
        double start = now();
        dev->fn->replay(dev, st, g);
        dev->fn->mark(dev, st, done);
        must(dev->fn->wait(dev, done, &err), &err);
        if (i >= 0)
            t[i] = now() - start;
    }
    qsort(t, (size_t)n, sizeof *t, by_size);
    return t[n / 2];
}

/* Replays for long_s; the median of the last third. */
static double long_replays(ds_graph *g)
{
    enum { MOST = 1 << 16 };
    static double t[MOST];
    double begin = now();
    size_t n = 0;
    ds_err err;

    while (n < MOST && now() - begin < long_s) {
        double start = now();
        dev->fn->replay(dev, st, g);
        dev->fn->mark(dev, st, done);
        must(dev->fn->wait(dev, done, &err), &err);
        t[n++] = now() - start;
    }
    size_t last = n / 3 + 1;
    qsort(t + n - last, last, sizeof *t, by_size);
    return t[n - last + last / 2];
}

static bool wanted(const char *op)
{
    return !only || strcmp(only, op) == 0;
}

typedef void once_fn(void *arg, int rep);

/* Prints one line. bytes or flop: of one call, 0 if it makes no sense. */
static void measure(const char *op, const char *shape, once_fn *once, void *arg, int reps, double bytes, double flop)
{
    ds_graph *g;
    ds_err err;
    double s;

    if (!wanted(op))
        return;
    must(dev->fn->record_begin(dev, st, &err), &err);
    for (int i = 0; i < reps; i++)
        once(arg, i);
    must(dev->fn->record_end(dev, st, &g, &err), &err);
    s = replays(g, REPLAYS) / reps;
    printf("op=%s %s reps=%d us_med=%.1f", op, shape, reps, s * 1e6);
    if (long_s > 0) {
        double l = long_replays(g) / reps;
        printf(" us_long=%.1f mhz=%.0f", l * 1e6, bench_gpu_mhz());
    }
    dev->fn->graph_destroy(dev, g);
    if (bytes > 0)
        printf(" gb_s=%.0f roof_pct=%.0f", bytes / s * 1e-9, 100.0 * bytes / s * 1e-9 / read_gb_s);
    if (flop > 0)
        printf(" tflop_s=%.1f", flop / s * 1e-12);
    putchar('\n');
    fflush(stdout);
}

static void ceilings(void)
{
    const size_t bytes = (size_t)1 << 30;

    read_gb_s = bench_gpu_read(take(bytes), bytes);
    if (read_gb_s <= 0.0) {
        fputs("bench-gpu: reading device memory failed\n", stderr);
        exit(1);
    }
    printf("roof=read bytes=%zu gb_s=%.0f\n", bytes, read_gb_s);
}

/* ---- products ---- */

static ds_mat weight(ds_mat_type type, uint32_t in, uint64_t out, int which)
{
    size_t n = (size_t)out * in, bytes = type == DS_MAT_MXFP4 ? n / 2 : (type == DS_MAT_BF16 ? 2 * n : n);
    ds_mat m = { .type = type, .in = in, .out = out };
    uint8_t *scale = malloc(n / 32);

    for (size_t i = 0; i < n / 32; i++)
        scale[i] = (uint8_t)(116 + random_u32() % 4);
    m.data = put(noise + (size_t)which * 4096 % (RANDOM_BYTES / 2), bytes < RANDOM_BYTES / 2 ? bytes : RANDOM_BYTES / 2);
    if (type != DS_MAT_BF16)
        m.scale = put(scale, n / 32);
    free(scale);
    return m;
}

typedef struct {
    ds_mat w[MATRICES];
    float *x, *y;
    size_t rows;
} linear_case;

static void linear_once(void *arg, int rep)
{
    linear_case *c = arg;
    const ds_mat *w = &c->w[rep % MATRICES];
    dev->k.linear(
        &ex, &(ds_op_linear){ .y = c->y, .x = c->x, .w = w, .rows = c->rows, .ldx = w->in, .ldy = w->out, .groups = 1, .round = true });
}

static void linears(ds_mat_type type, const char *name)
{
    static const size_t rows[] = { 1, 8, 16, 64, 258, 1024 };
    linear_case c = { .x = floats((size_t)ROWS * D, 1.0f), .y = take((size_t)ROWS * D * 4) };
    char shape[96];

    for (int i = 0; i < MATRICES; i++)
        c.w[i] = weight(type, D, D, i);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double bytes = (double)D * D * (type == DS_MAT_BF16 ? 2.0 : 1.0);
        c.rows = rows[i];
        snprintf(shape, sizeof shape, "type=%s out=%d in=%d rows=%zu", name, D, D, c.rows);
        measure("linear", shape, linear_once, &c, 2 * MATRICES, bytes, 2.0 * D * D * (double)c.rows);
    }
}

typedef struct {
    ds_mat w1[EXPERTS], w3[EXPERTS], w2[EXPERTS];
    float *x, *part, *w, *shared, *y;
    int32_t *sel;
    size_t rows;
    uint32_t k;
} experts_case;

static void experts_once(void *arg, int rep)
{
    experts_case *c = arg;
    (void)rep;
    dev->k.experts_part(&ex, &(ds_op_experts_part){ .part = c->part,
                                                    .x = c->x,
                                                    .w1 = c->w1,
                                                    .w3 = c->w3,
                                                    .w2 = c->w2,
                                                    .sel = c->sel,
                                                    .w = c->w,
                                                    .rows = c->rows,
                                                    .d = D,
                                                    .inner = INNER,
                                                    .n = EXPERTS,
                                                    .k = c->k,
                                                    .limit = 10.0f });
}

static void experts(void)
{
    enum { MOST = 32768 };
    static const size_t rows[] = { 1, 4, 8, 64, 128, 256, 512, 768, 2048, 32768 }; /* 8: one row an expert */
    const size_t one = (size_t)D * INNER;
    experts_case c = {
        .x = floats((size_t)MOST * D, 1.0f), .part = take((size_t)MOST * TOP * D * 4), .w = floats(MOST * TOP, 0.2f), .k = TOP
    };
    int32_t *sel = malloc((size_t)MOST * TOP * sizeof *sel);
    uint8_t *scale = malloc(one / 32);
    char shape[96];
    ds_err err;

    for (size_t i = 0; i < one / 32; i++)
        scale[i] = (uint8_t)(116 + random_u32() % 4);
    for (int x = 0; x < EXPERTS; x++) {
        ds_mat m = { .type = DS_MAT_MXFP4, .in = D, .out = INNER, .data = noise + x * 4096, .scale = scale };
        c.w1[x] = c.w3[x] = m;
        c.w3[x].data = noise + (16 << 20) + x * 4096;
        c.w2[x] = (ds_mat){ .type = DS_MAT_MXFP4, .in = INNER, .out = D, .data = noise + (32 << 20) + x * 4096, .scale = scale };
    }
    must(dev->fn->place_experts(dev, &mem, c.w1, c.w3, c.w2, EXPERTS, &err), &err);
    for (size_t p = 0; p < (size_t)MOST * TOP; p++) /* a row's experts are different, and each has as many rows */
        sel[p] = (int32_t)((p / TOP * TOP + p % TOP) % EXPERTS);
    c.sel = put(sel, (size_t)MOST * TOP * sizeof *sel);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        size_t pairs = rows[i] * TOP, active = pairs < EXPERTS ? pairs : EXPERTS;
        c.rows = rows[i];
        snprintf(shape, sizeof shape, "mxfp4 d=%d inner=%d experts=%zu rows_each=%zu", D, INNER, active, pairs / active);
        measure("experts_part", shape, experts_once, &c, rows[i] > 2048 ? 2 : (rows[i] > 512 ? 4 : 20),
                3.0 * (double)active * (double)one * 17 / 32, 6.0 * (double)one * (double)pairs);
    }
    free(sel);
    free(scale);
}

/* ---- caches ---- */

typedef struct {
    ds_step step;
    ds_op_attention a;
    ds_op_index_topk t;
    ds_op_mhc m;
} cache_case;

/* `rows` sequences of one row each at position pos. */
static void set_step(cache_case *c, uint32_t rows, int32_t pos, uint32_t n_blocks)
{
    uint32_t per_seq = (uint32_t)pos / BLOCK + 1;
    int32_t *p = malloc(rows * 4), *zero = calloc(rows, 4);
    uint32_t *i32 = malloc(rows * 4), *one = malloc(rows * 4), *blocks = malloc((size_t)rows * per_seq * 4);

    for (uint32_t r = 0; r < rows; r++) {
        p[r] = pos;
        i32[r] = r;
        one[r] = 1;
        for (uint32_t b = 0; b < per_seq; b++)
            blocks[(size_t)r * per_seq + b] = random_u32() % n_blocks;
    }
    c->step = (ds_step){ .n_rows = rows, .n_seqs = rows, .blocks_ld = per_seq };
    c->step.pos = c->step.pos0 = put(p, rows * 4);
    c->step.seq = c->step.row0 = c->step.slot = put(i32, rows * 4);
    c->step.count = put(one, rows * 4);
    c->step.win_lo = c->step.store_from = put(zero, rows * 4);
    c->step.blocks = put(blocks, (size_t)rows * per_seq * 4);
    free(p);
    free(zero);
    free(i32);
    free(one);
    free(blocks);
}

static void attention_once(void *arg, int rep)
{
    cache_case *c = arg;
    (void)rep;
    c->a.step = &c->step;
    dev->k.attention(&ex, &c->a);
}

static void topk_once(void *arg, int rep)
{
    cache_case *c = arg;
    (void)rep;
    c->t.step = &c->step;
    dev->k.index_topk(&ex, &c->t);
}

/* Records without NaN: random codes, small scales. */
static uint8_t *records(size_t n, size_t rec, size_t codes, uint8_t scale, int fp8)
{
    uint8_t *h = malloc(n * rec), *p;
    for (size_t i = 0; i < n; i++)
        for (size_t b = 0; b < rec; b++) {
            uint8_t v = noise[(i * rec + b) % RANDOM_BYTES];
            h[i * rec + b] = b >= codes ? (uint8_t)(scale + v % 4) : (fp8 && (v & 0x7f) > 0x70 ? v & 0x8f : v);
        }
    p = put(h, n * rec);
    free(h);
    return p;
}

static void caches(void)
{
    enum { BLOCKS = 16384, MOST = 258, RING = 192 };
    static const uint32_t attention_rows[] = { 1, 16, 64, 258 }, topk_rows[] = { 1, 16, 64 };
    static const int32_t contexts[] = { 4096, 32768, 131072 };
    const uint32_t win = DS_WIN_REC(DIM), main_rec = DS_MAIN_REC(DIM), idx = DS_IDX_REC(INDEX_DIM);
    cache_case c = { 0 };
    int32_t *sel = malloc((size_t)MOST * TOPK * 4);
    uint32_t *n_sel = malloc(MOST * 4);
    char shape[96];

    for (size_t r = 0; r < MOST; r++) {
        n_sel[r] = TOPK;
        for (size_t i = 0; i < TOPK; i++)
            sel[r * TOPK + i] = (int32_t)(i * 60 + random_u32() % 60);
    }
    c.a = (ds_op_attention){ .o = take((size_t)MOST * HEADS * DIM * 4),
                             .q = floats((size_t)MOST * HEADS * DIM, 1.0f),
                             .sink = floats(HEADS, 1.0f),
                             .scale = 0.044f,
                             .heads = HEADS,
                             .dim = DIM,
                             .window = WINDOW,
                             .ring = { records((size_t)MOST * RING, win, DIM, 118, 1), (size_t)RING * win, 0, RING, win },
                             .rec = records(MOST, win, DIM, 118, 1),
                             .kv = { records((size_t)BLOCKS * BLOCK, main_rec, DIM / 2, 0x30, 0), (size_t)BLOCK * main_rec, 0, main_rec, 1,
                                     BLOCK },
                             .sel = put(sel, (size_t)MOST * TOPK * 4),
                             .n_sel = put(n_sel, MOST * 4),
                             .topk = TOPK };
    for (size_t i = 0; i < sizeof attention_rows / sizeof *attention_rows; i++) {
        uint32_t rows = attention_rows[i];
        set_step(&c, rows, 32767, BLOCKS);
        snprintf(shape, sizeof shape, "rows=%u heads=%d dim=%d keys=%d+%d", rows, HEADS, DIM, TOPK, WINDOW);
        measure("attention", shape, attention_once, &c, 10, 0, 4.0 * rows * HEADS * DIM * (TOPK + WINDOW));
    }
    c.t =
        (ds_op_index_topk){ .keys = { records((size_t)BLOCKS * BLOCK, idx, INDEX_DIM / 2, 118, 0), (size_t)BLOCK * idx, 0, idx, 1, BLOCK },
                            .q = records((size_t)64 * INDEX_HEADS, idx, INDEX_DIM / 2, 118, 0),
                            .g = floats(64 * INDEX_HEADS, 1.0f),
                            .g_scale = 0.01f,
                            .heads = INDEX_HEADS,
                            .dim = INDEX_DIM,
                            .topk = TOPK,
                            .sel = take((size_t)64 * TOPK * 4),
                            .n_sel = take(64 * 4),
                            .pool_block = 64 };
    for (size_t k = 0; k < 3; k++)
        for (size_t i = 0; i < 3; i++) {
            uint32_t rows = topk_rows[i];
            set_step(&c, rows, contexts[k] - 1, BLOCKS);
            snprintf(shape, sizeof shape, "rows=%u heads=%d dim=%d context=%d", rows, INDEX_HEADS, INDEX_DIM, contexts[k]);
            measure("index_topk", shape, topk_once, &c, 4, (double)rows * contexts[k] * idx,
                    2.0 * rows * INDEX_HEADS * INDEX_DIM * contexts[k]);
        }
    free(sel);
    free(n_sel);
}

static void mhc_once(void *arg, int rep)
{
    (void)rep;
    dev->k.mhc(&ex, &((cache_case *)arg)->m);
}

static void mhcs(void)
{
    static const size_t rows[] = { 1, 16, 64, 258 };
    enum { MOST = 258, N = 4, OUT = (2 + N) * N };
    cache_case c = { 0 };
    char shape[96];

    c.m = (ds_op_mhc){ .X = floats((size_t)MOST * N * D, 1.0f),
                       .y = floats((size_t)MOST * D, 1.0f),
                       .mix_in = floats(MOST * OUT, 0.1f),
                       .x = take((size_t)MOST * D * 4),
                       .mix_out = take(MOST * OUT * 4),
                       .fn = floats((size_t)OUT * N * D, 0.02f),
                       .base = floats(OUT, 1.0f),
                       .scale = floats(3, 0.1f),
                       .n = N,
                       .d = D,
                       .iters = 20,
                       .eps = 1e-6f,
                       .hc_eps = 1e-6f };
    for (size_t i = 0; i < 4; i++) {
        c.m.rows = rows[i];
        snprintf(shape, sizeof shape, "n=%d d=%d rows=%zu all parts", N, D, rows[i]);
        measure("mhc", shape, mhc_once, &c, 20, 4.0 * D * ((2.0 * N + 2.0) * (double)rows[i] + OUT * N), 0);
    }
}

int main(int argc, char **argv)
{
    ds_err err;

    if (ds_device_open(&dev, argc > 1 ? argv[1] : "cuda", NULL, &err) != DS_OK) {
        printf("skipped: %s\n", err.msg);
        return 77;
    }
    if (!dev->records) {
        printf("skipped: %s can't record\n", dev->name);
        return 77;
    }
    long_s = argc > 2 ? atof(argv[2]) : 0.0;
    only = argc > 3 ? argv[3] : NULL;
    mem.d = dev;
    must(dev->fn->stream_create(dev, &st, &err), &err);
    must(dev->fn->fence_create(dev, &done, &err), &err);
    must(ds_ferry_init(&ferry, dev, NULL, (size_t)16 << 20, &err), &err);
    scratch = (ds_arena){ .base = take(SCRATCH), .cap = SCRATCH };
    ex = (ds_exec){ .scratch = &scratch, .bf16 = true, .stream = st };
    ex.fault = ds_mem_take(&mem, DS_MEM_STAGE, sizeof *ex.fault, &err);
    noise = malloc(RANDOM_BYTES);
    for (size_t i = 0; i < RANDOM_BYTES / 4; i++) {
        uint32_t v = random_u32() & 0xbfbfbfbfu; /* no NaN as E4M3, and bf16 below 2 */
        memcpy(noise + 4 * i, &v, 4);
    }
    ceilings();
    if (wanted("experts_part"))
        experts();
    if (wanted("linear")) {
        linears(DS_MAT_FP8_32X32, "fp8");
        linears(DS_MAT_BF16, "bf16");
    }
    if (wanted("attention") || wanted("index_topk"))
        caches();
    if (wanted("mhc"))
        mhcs();
    free(noise);
    ds_ferry_fini(&ferry);
    dev->fn->fence_destroy(dev, done);
    dev->fn->stream_destroy(dev, st);
    ds_mem_free(&mem);
    ds_device_close(dev);
    return 0;
}
