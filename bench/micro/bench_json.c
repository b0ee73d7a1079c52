/* JSON reading and writing of a text like a tokenizer file: a vocabulary of many short keys and a list of merges.
 *
 * Times are CPU time of the thread, so that a busy machine doesn't count. The roof is a copy of the same bytes
 * (memcpy), the least that a reader that keeps the text must do. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/json.h"
#include "base/rng.h"
#include "bench.h"

static uint64_t cpu_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

enum { REPS = 15, VOCAB = 129280, MERGES = 127741 };

/* A word of 1..9 characters; one in six is not ASCII, as in byte-level vocabularies. */
static void put_word(ds_buf *b, uint64_t *at)
{
    size_t n = 1 + ds_rng_u64(1, 0, (*at)++) % 9;

    for (size_t i = 0; i < n; i++) {
        uint64_t r = ds_rng_u64(1, 1, (*at)++);
        if (i == 0 && r % 2 == 0)
            ds_buf_puts(b, "\xc4\xa0");
        else if (r % 12 == 1)
            ds_buf_puts(b, "\xc3\xa9");
        else
            ds_buf_putc(b, (char)('a' + r / 16 % 26));
    }
}

static void make_text(ds_buf *b)
{
    uint64_t at = 0;

    ds_buf_puts(b, "{\n  \"version\": \"1.0\",\n  \"model\": {\n    \"type\": \"BPE\",\n    \"vocab\": {\n");
    for (int i = 0; i < VOCAB; i++) {
        ds_buf_puts(b, i ? ",\n      \"" : "      \"");
        put_word(b, &at);
        ds_buf_printf(b, "%d\": %d", i, i);
    }
    ds_buf_puts(b, "\n    },\n    \"merges\": [\n");
    for (int i = 0; i < MERGES; i++) {
        ds_buf_puts(b, i ? ",\n      \"" : "      \"");
        put_word(b, &at);
        ds_buf_putc(b, ' ');
        put_word(b, &at);
        ds_buf_putc(b, '"');
    }
    ds_buf_puts(b, "\n    ]\n  }\n}\n");
}

static void report(const char *op, uint64_t *ns, size_t bytes, double roof)
{
    uint64_t median, p95;
    double gb_s;

    bench_stats(ns, REPS, &median, &p95);
    gb_s = (double)bytes / (double)median;
    printf("op=%s bytes=%zu reps=%d ns_med=%lu ns_p95=%lu gb_s=%.3f roof=memcpy roof_pct=%.1f\n", op, bytes, REPS, median, p95, gb_s,
           100 * gb_s / roof);
}

int main(void)
{
    uint64_t ns[REPS], median, p95;
    ds_buf text = { 0 }, out = { 0 };
    ds_json_doc *doc;
    ds_err err;
    double roof;
    char *copy;

    make_text(&text);
    copy = malloc(text.len);
    if (text.oom || !copy)
        return 1;
    for (int i = 0; i < REPS; i++) {
        uint64_t start = cpu_ns();
        memcpy(copy, text.p, text.len);
        __asm__ volatile("" ::"r"(copy) : "memory");
        ns[i] = cpu_ns() - start;
    }
    bench_stats(ns, REPS, &median, &p95);
    roof = (double)text.len / (double)median;
    free(copy);
    for (int i = -2; i < REPS; i++) { /* two warm-up turns */
        uint64_t start = cpu_ns();
        if (ds_json_parse(&doc, text.p, text.len, NULL, &err) != DS_OK) {
            fprintf(stderr, "%s\n", err.msg);
            return 1;
        }
        if (i >= 0)
            ns[i] = cpu_ns() - start;
        ds_json_free(doc);
    }
    report("json_parse", ns, text.len, roof);
    if (ds_json_parse(&doc, text.p, text.len, NULL, &err) != DS_OK)
        return 1;
    for (int i = -2; i < REPS; i++) {
        uint64_t start = cpu_ns();
        ds_buf_clear(&out);
        ds_json_write(&out, ds_json_root(doc), DS_JSON_COMPACT);
        if (i >= 0)
            ns[i] = cpu_ns() - start;
    }
    report("json_write", ns, out.len, roof);
    ds_json_free(doc);
    ds_buf_free(&text);
    ds_buf_free(&out);
    return 0;
}
