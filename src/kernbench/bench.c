#include "kernbench/bench_internal.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "format/numfmt.h"

const char ds_bench_ops[] = "gemv|gemm|experts|attention|index_topk|mhc|pool";

enum { MIN_REPS = 5 };
static const size_t COLD_MIN = (size_t)256 << 20, COLD_MAX = (size_t)1 << 30;

uint32_t random_u32(run *r)
{
    r->seed = r->seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(r->seed >> 32);
}

float random_float(run *r)
{
    float v = 0.0f;
    for (int i = 0; i < 3; i++)
        v += (float)(int32_t)random_u32(r) * 0x1p-31f;
    return ds_bf16_round(v);
}

void *take_zeroed(size_t n, size_t size)
{
    return ds_calloc_aligned(n, size);
}

static uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

void time_case(run *r, ds_bench_case *c, once_fn *once, void *arg, double work, roof_kind kind)
{
    uint64_t until = ds_now_ns() + r->ms * 1000000ull;
    size_t n = 0, rep = 0;
    bool many = r->pool != NULL;

    if (r->stopped)
        return;
    once(arg, rep++);
    while (n < MAX_REPS && (n < MIN_REPS || ds_now_ns() < until)) {
        uint64_t start = many ? ds_now_ns() : cpu_ns();
        once(arg, rep++);
        r->ns[n++] = (many ? ds_now_ns() : cpu_ns()) - start;
    }
    qsort(r->ns, n, sizeof *r->ns, ascending);
    c->variant = r->k.name;
    c->threads = many ? r->threads : 1;
    c->reps = (uint32_t)n;
    c->ns_best = r->ns[0];
    c->ns_med = r->ns[n / 2];
    c->ns_p95 = r->ns[n * 95 / 100];
    c->rate = kind == ROOF_NONE ? 0.0 : work / (double)(c->ns_med ? c->ns_med : 1);
    c->unit = kind == ROOF_NONE ? NULL : (kind == ROOF_READ ? "gb_s" : "gflop_s");
    c->roof = r->roof[many][kind];
    c->roof_of = r->roof_name[kind];
    if (!r->fn(r->ctx, c))
        r->stopped = true;
}

/* ---- roofs ---- */

typedef struct {
    run *r;
    ds_roof_fn *fn; /* NULL: reads */
    ds_roof_read_fn *read;
    size_t rounds;
    uint32_t pattern; /* of reads */
    double work[1024];
    uint64_t sum[1024];
} roof_job;

static void roof_member(void *arg, uint32_t member, uint32_t n)
{
    roof_job *j = arg;
    if (j->fn) {
        j->work[member] = j->fn(j->rounds);
    } else {
        size_t each = j->r->cold_bytes / n / DS_ROOF_READ_ALIGN * DS_ROOF_READ_ALIGN;
        j->sum[member] = j->read(j->r->cold + member * each, each, j->pattern);
        j->work[member] = (double)each;
    }
}

/* The best of several tries: a ceiling isn't lowered by other programs. */
static double measure_roof(run *r, ds_roof_fn *fn, ds_roof_read_fn *read)
{
    roof_job *j = calloc(1, sizeof *j);
    double best = 0.0;

    if (!j)
        return 0.0;
    *j = (roof_job){ .r = r, .fn = fn, .read = read, .rounds = 100000 };
    for (int i = 0; i < (fn ? 20 : 3 * DS_ROOF_READ_PATTERNS); i++) {
        double work = 0.0, ns;
        j->pattern = (uint32_t)i % DS_ROOF_READ_PATTERNS;
        uint64_t start = r->pool ? ds_now_ns() : cpu_ns();
        if (r->pool)
            ds_pool_run(r->pool, roof_member, j);
        else
            roof_member(j, 0, 1);
        ns = (double)((r->pool ? ds_now_ns() : cpu_ns()) - start);
        for (uint32_t m = 0; m < (r->pool ? r->threads : 1); m++)
            work += j->work[m];
        best = work / ns > best ? work / ns : best;
    }
    free(j);
    return best;
}

static void measure_roofs(run *r)
{
    const char *set = r->k.name;
    ds_roof_fn *fma = ds_roof_scalar, *bf16, *bytes = NULL;
    ds_roof_read_fn *read = ds_roof_read_base;
    bool many = r->pool != NULL;

    r->roof_name[ROOF_READ] = "dram read";
    r->roof_name[ROOF_FMA] = "scalar";
    bf16 = fma;
#ifdef __x86_64__
    if (strcmp(set, "avx2") == 0) {
        r->roof_name[ROOF_FMA] = "fma avx2";
        bf16 = fma = ds_roof_fma_avx2;
        read = ds_roof_read_avx2;
        bytes = ds_roof_bytes_avx2;
    } else if (strcmp(set, "ref") != 0) {
        r->roof_name[ROOF_FMA] = "fma avx512";
        bf16 = fma = ds_roof_fma_avx512;
        read = ds_roof_read_avx512;
        bytes = ds_roof_bytes_avx512;
    }
    r->roof_name[ROOF_BF16] = r->roof_name[ROOF_FMA];
    if (strcmp(set, "avx512") == 0 && __builtin_cpu_supports("avx512bf16")) {
        r->roof_name[ROOF_BF16] = "dpbf16";
        bf16 = ds_roof_dpbf16;
    } else if (strcmp(set, "amx") == 0) {
        r->roof_name[ROOF_BF16] = "amx bf16";
        bf16 = ds_roof_amx;
    }
    r->roof_name[ROOF_BYTES] = "maddubs";
#endif
    r->roof[many][ROOF_READ] = measure_roof(r, NULL, read);
    r->roof[many][ROOF_FMA] = measure_roof(r, fma, NULL);
    r->roof[many][ROOF_BF16] = bf16 == fma ? r->roof[many][ROOF_FMA] : measure_roof(r, bf16, NULL);
    r->roof[many][ROOF_BYTES] = bytes ? measure_roof(r, bytes, NULL) : 0.0;
}

/* ---- the run ---- */

static ds_rc run_ops(run *r, const char *op, ds_err *err)
{
    ds_rc rc = DS_OK;

    measure_roofs(r);
    if (rc == DS_OK && (!op || strcmp(op, "gemv") == 0))
        rc = bench_products(r, true, err);
    if (rc == DS_OK && (!op || strcmp(op, "gemm") == 0))
        rc = bench_products(r, false, err);
    if (rc == DS_OK && (!op || strcmp(op, "experts") == 0))
        rc = bench_experts(r, err);
    if (rc == DS_OK && (!op || strcmp(op, "attention") == 0))
        rc = bench_attention(r, err);
    if (rc == DS_OK && (!op || strcmp(op, "index_topk") == 0))
        rc = bench_index(r, err);
    if (rc == DS_OK && (!op || strcmp(op, "mhc") == 0))
        rc = bench_mhc(r, err);
    if (rc == DS_OK && r->pool && (!op || strcmp(op, "pool") == 0))
        rc = bench_pool(r, err);
    return rc;
}

static bool known(const char *op)
{
    size_t n = strlen(op);

    for (const char *p = ds_bench_ops; *p;) {
        size_t len = strcspn(p, "|");
        if (len == n && memcmp(p, op, n) == 0)
            return true;
        p += len + (p[len] != '\0');
    }
    return false;
}

/* Twice the last cache, within bounds; in random bytes, which are valid FP8 codes once 0x7f and 0xff are gone. */
static ds_rc fill_cold(run *r, ds_err *err)
{
    long l3 = sysconf(_SC_LEVEL3_CACHE_SIZE);

    r->cold_bytes = l3 > 0 ? 2 * (size_t)l3 : COLD_MIN;
    r->cold_bytes = r->cold_bytes < COLD_MIN ? COLD_MIN : r->cold_bytes > COLD_MAX ? COLD_MAX : r->cold_bytes;
    r->cold = take_zeroed(r->cold_bytes, 1);
    if (!r->cold)
        return ds_fail(err, DS_E_NOMEM, "bench: no memory for %zu bytes of weights", r->cold_bytes);
    for (size_t i = 0; i < r->cold_bytes; i += 8) {
        /* sums of random bytes would be better codes, but what counts is that subnormals are rare: exponents 4 to 11 */
        uint64_t v = (uint64_t)random_u32(r) << 32 | random_u32(r);
        v = (v & 0x9f9f9f9f9f9f9f9full) + 0x2020202020202020ull;
        memcpy(r->cold + i, &v, 8);
    }
    return DS_OK;
}

ds_rc ds_bench_run(const ds_bench_opts *o, ds_bench_fn *fn, void *ctx, ds_err *err)
{
    run *r;
    ds_rc rc;
    ds_pool *pool = NULL;

    if (o->op && !known(o->op))
        return ds_fail(err, DS_E_ARG, "bench: no op '%.32s'; there are %s", o->op, ds_bench_ops);
    r = calloc(1, sizeof *r);
    if (!r)
        return ds_fail(err, DS_E_NOMEM, "bench: out of memory");
    r->fn = fn;
    r->ctx = ctx;
    r->ms = o->ms ? o->ms : 200;
    r->threads = o->threads;
    r->e = (ds_exec){ .scratch = &r->arena, .fault = &r->fault };
    rc = ds_kern_init(&r->ref, "ref", err);
    if (rc == DS_OK)
        rc = ds_kern_init(&r->k, o->kernels, err);
    if (rc == DS_OK)
        rc = ds_arena_init(&r->arena, (size_t)256 << 20, err);
    if (rc == DS_OK)
        rc = fill_cold(r, err);
    if (rc == DS_OK)
        rc = run_ops(r, o->op, err);
    if (rc == DS_OK && r->threads > 1 && !r->stopped) {
        rc = ds_pool_create(&pool, &(ds_pool_opts){ .n_threads = r->threads }, err);
        r->pool = r->e.pool = pool;
        if (rc == DS_OK)
            rc = run_ops(r, o->op, err);
    }
    ds_pool_destroy(pool);
    ds_arena_fini(&r->arena);
    free(r->cold);
    free(r);
    return rc;
}
