/* Loading, encoding and decoding rates of the tokenizer.
 *
 *   bench_tokenizer TOKENIZER.json [NAME=FILE ...]     one case for each text file, with 1 and 2 threads
 *
 * Besides the files: a run of 10 MB of spaces and one line of 5 MB of CJK, which a careless implementation turns
 * into minutes. Each case has an encoder of its own (a cold piece cache) in every repetition, except the lines that
 * say cache=warm. The roof is a pass that only reads the bytes (memcpy). cpu_mb_s is by processor time, all threads
 * together: on a machine that does other things too it is the steadier number. Before timing, what is encoded must
 * decode to the same bytes. Without arguments it runs on the small tokenizer of the tests, whose numbers mean
 * little. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <ds/tokenizer.h>

#include "base/clock.h"
#include "base/rng.h"
#include "bench.h"

enum { MAX_REPS = 15 };

static double roof_mb_s;

static uint64_t cpu_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* Wall and processor time of each repetition. */
typedef struct {
    uint64_t wall[MAX_REPS], cpu[MAX_REPS], wall0, cpu0;
    size_t n;
} timing;

static void start(timing *t)
{
    t->cpu0 = cpu_ns();
    t->wall0 = ds_now_ns();
}

static void stop(timing *t)
{
    t->wall[t->n] = ds_now_ns() - t->wall0;
    t->cpu[t->n++] = cpu_ns() - t->cpu0;
}

static char *read_file(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    char *p = NULL;

    if (f && fseek(f, 0, SEEK_END) == 0) {
        *n = (size_t)ftell(f);
        rewind(f);
        p = malloc(*n + 1);
        if (p && fread(p, 1, *n, f) != *n) {
            free(p);
            p = NULL;
        }
    }
    if (f)
        fclose(f);
    return p;
}

static void measure_roof(void)
{
    size_t n = 32 << 20;
    char *a = malloc(n), *b = malloc(n);
    uint64_t ns[5], med, p95;

    memset(a, 1, n);
    memset(b, 2, n);
    for (int i = 0; i < 5; i++) {
        uint64_t t = ds_now_ns();
        memcpy(b, a, n);
        ns[i] = ds_now_ns() - t + (b[n / 2] == 77);
    }
    bench_stats(ns, 5, &med, &p95);
    roof_mb_s = (double)n * 1e3 / (double)med;
    free(a);
    free(b);
}

static void report(const char *op, const char *variant, uint32_t threads, const char *cache, size_t bytes, size_t tokens, timing *t)
{
    uint64_t med, p95, cpu, cpu95;
    double mb_s;

    bench_stats(t->wall, t->n, &med, &p95);
    bench_stats(t->cpu, t->n, &cpu, &cpu95);
    mb_s = (double)bytes * 1e3 / (double)med;
    printf(
        "op=%s variant=%s threads=%u cache=%s bytes=%zu tokens=%zu reps=%zu ns_med=%lu ns_p95=%lu mb_s=%.2f cpu_mb_s=%.2f roof_pct=%.2f\n",
        op, variant, threads, cache, bytes, tokens, t->n, med, p95, mb_s, (double)bytes * 1e3 / (double)cpu, 100 * mb_s / roof_mb_s);
    fflush(stdout);
}

static int same_bytes(const ds_tokenizer *t, const ds_ids *ids, const char *text, size_t n)
{
    size_t at = 0, k;

    for (size_t i = 0; i < ids->n; i++) {
        const char *p = ds_tokenizer_bytes(t, ids->p[i], &k);
        if (k > n - at || memcmp(text + at, p, k) != 0)
            return 0;
        at += k;
    }
    return at == n;
}

static void bench_decode(const ds_tokenizer *t, const char *name, const ds_ids *ids, size_t bytes)
{
    char *out = malloc(ds_decoder_room(t));
    timing tm = { 0 };
    size_t sum = 0;

    for (int r = 0; r < 5; r++) {
        ds_decoder d;
        start(&tm);
        ds_decoder_init(&d, t, false);
        for (size_t i = 0; i < ids->n; i++)
            sum += ds_decoder_push(&d, ids->p[i], out, NULL);
        stop(&tm);
    }
    report("detokenize", name, 1, sum ? "none" : "empty", bytes, ids->n, &tm);
    free(out);
}

/* One case; returns 1 if the ids are wrong. */
static int bench_text(const ds_tokenizer *t, const char *name, const char *text, size_t n, size_t reps)
{
    ds_ids ids = { 0 };
    ds_err err = { 0 };

    for (uint32_t threads = 1; threads <= 2; threads++) {
        ds_encoder *e = NULL;
        for (int warm = 0; warm < 2; warm++) {
            timing tm = { 0 };
            for (size_t r = 0; r < reps; r++) {
                if (!warm) {
                    ds_encoder_destroy(e);
                    if (ds_encoder_create(&e, t, &(ds_encoder_opts){ .n_threads = threads }, &err) != DS_OK)
                        return 1;
                }
                ids.n = 0;
                start(&tm);
                if (ds_encoder_text(e, text, n, &ids, &err) != DS_OK)
                    return 1;
                stop(&tm);
            }
            if (!same_bytes(t, &ids, text, n))
                return 1;
            report("tokenize", name, threads, warm ? "warm" : "cold", n, ids.n, &tm);
        }
        ds_encoder_destroy(e);
    }
    bench_decode(t, name, &ids, n);
    ds_ids_free(&ids);
    return 0;
}

static int bench_hostile(const ds_tokenizer *t)
{
    size_t n = 10 << 20, cjk = 5 << 20;
    char *text = malloc(n);
    int bad;

    memset(text, ' ', n);
    bad = bench_text(t, "spaces_10mb", text, n, 3);
    for (size_t i = 0; i + 3 <= cjk; i += 3) {
        uint32_t cp = 0x4e00 + (uint32_t)(ds_rng_u64(1, 0, i) % (0x9fa6 - 0x4e00));
        text[i] = (char)(0xe0 | cp >> 12);
        text[i + 1] = (char)(0x80 | (cp >> 6 & 63));
        text[i + 2] = (char)(0x80 | (cp & 63));
    }
    bad = bad || bench_text(t, "cjk_line_5mb", text, cjk / 3 * 3, 3);
    free(text);
    return bad;
}

static int bench_load(ds_tokenizer **t, const char *path)
{
    size_t n = 0;
    char *json = read_file(path, &n);
    timing tm = { 0 };
    ds_err err = { 0 };

    *t = NULL;
    for (int r = 0; json && r < MAX_REPS; r++) {
        ds_tokenizer_destroy(*t);
        start(&tm);
        if (ds_tokenizer_parse(t, json, n, &err) != DS_OK)
            break;
        stop(&tm);
    }
    free(json);
    if (!*t) {
        fprintf(stderr, "%s: %s\n", path, json ? err.msg : "can't be read");
        return 1;
    }
    report("tokenizer_load", "json", 1, "none", n, ds_tokenizer_size(*t), &tm);
    return 0;
}

int main(int argc, char **argv)
{
    ds_tokenizer *t;
    int bad;

    measure_roof();
    if (bench_load(&t, argc > 1 ? argv[1] : DS_BENCH_TOKENIZER))
        return 1;
    bad = bench_hostile(t);
    for (int i = 2; i < argc && !bad; i++) {
        char *path = strchr(argv[i], '='), *text;
        size_t n = 0;
        if (!path)
            return 2;
        *path++ = '\0';
        text = read_file(path, &n);
        bad = !text || bench_text(t, argv[i], text, n, 9);
        free(text);
    }
    ds_tokenizer_destroy(t);
    if (bad)
        fprintf(stderr, "a text can't be read, or its ids don't decode to it\n");
    return bad;
}
