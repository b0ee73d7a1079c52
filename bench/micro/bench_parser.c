/* Stream parser: plain text and tool arguments, whole and in pieces as small as tokens.
 *
 * Times are CPU time of this thread. The roof is a copy of the same bytes in the same pieces (memcpy): the least
 * that anybody who passes the text on must do. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/rng.h"
#include "bench.h"
#include "reply/parser.h"

enum { REPS = 15, BYTES = 4 << 20 };
#define D "｜DSML｜"

static uint64_t cpu_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void count(void *ctx, const ds_parse_event *ev)
{
    *(size_t *)ctx += ev->n;
}

static size_t make_text(char *out, const char *const *words, size_t n_words)
{
    size_t n = 0;

    for (uint64_t at = 0; n < BYTES - 64; at++) {
        const char *w = words[ds_rng_u64(7, 0, at) % n_words];
        size_t k = strlen(w);
        memcpy(out + n, w, k);
        n += k;
    }
    return n;
}

static void run(const char *op, const char *head, const char *text, size_t n, size_t piece, bool stops)
{
    static char copy[BYTES];
    uint64_t ns[REPS], roof_ns[REPS], median, p95, roof, roof_p95;
    static const char *const stop[] = { "<|user|>", "\n\nHuman:" };
    static const size_t stop_bytes[] = { 8, 8 };

    for (int r = 0; r < REPS; r++) {
        ds_parser *p;
        ds_err err;
        size_t total = 0;
        const ds_parser_opts o = {
            .sink = count, .ctx = &total, .tools = DS_PARSER_TOOLS_ON, .stops = stop, .stop_bytes = stop_bytes, .n_stops = stops ? 2 : 0
        };
        if (ds_parser_create(&p, &o, &err) != DS_OK)
            exit(1);
        ds_parser_push(p, head, strlen(head), 1);
        uint64_t start = cpu_ns();
        for (size_t i = 0; i < n; i += piece)
            ds_parser_push(p, text + i, piece < n - i ? piece : n - i, 1);
        ns[r] = cpu_ns() - start;
        ds_parser_finish(p, DS_BACKEND_STOP);
        ds_parser_destroy(p);
        if (total < n) {
            fprintf(stderr, "%s: %zu of %zu bytes came out\n", op, total, n);
            exit(1);
        }
        start = cpu_ns();
        for (size_t i = 0; i < n; i += piece) {
            memcpy(copy + i, text + i, piece < n - i ? piece : n - i);
            __asm__ volatile("" ::"r"(copy) : "memory");
        }
        roof_ns[r] = cpu_ns() - start;
    }
    bench_stats(ns, REPS, &median, &p95);
    bench_stats(roof_ns, REPS, &roof, &roof_p95);
    printf("op=%s piece=%zu bytes=%zu reps=%d ns_med=%lu ns_p95=%lu mb_s=%.0f roof=memcpy roof_pct=%.1f\n", op, piece, n, REPS, median, p95,
           1e3 * (double)n / (double)median, 100 * (double)roof / (double)median);
}

int main(void)
{
    static const char *const english[] = { "the ", "of ",        "model ", "answer ", "is, ",   "that ",
                                           "a ",   "question. ", "\n\n",   "word\n",  "1 < 2 ", "and " };
    static const char *const chinese[] = { "\xe6\x97\xa5\xe6\x9c\xac", "\xe4\xb8\xad\xe6\x96\x87",
                                           "\xe3\x80\x82\n",           "\xe7\x9a\x84",
                                           "\xe6\xa8\xa1\xe5\x9e\x8b", "abc " };
    static const char *const code[] = {
        "if (x) {\n",          "    return y;\n", "}\n", "printf(\"%d\\n\", i);\n", "for (int i = 0; i < n; i++)\n",
        "a[i] += b[i] * c;\n", "/* note */\n"
    };
    static const char args[] = "<" D " calls>\n<" D " invoke name=\"f\">\n<" D " parameter name=\"a\" string=\"true\">";
    static char text[BYTES];
    size_t n;

    n = make_text(text, english, sizeof english / sizeof english[0]);
    run("parser_text_english", "", text, n, n, false);
    run("parser_text_english", "", text, n, 64, false);
    run("parser_text_english", "", text, n, 4, false);
    run("parser_text_english_stops", "", text, n, 64, true);
    n = make_text(text, chinese, sizeof chinese / sizeof chinese[0]);
    run("parser_text_chinese", "", text, n, n, false);
    run("parser_text_chinese", "", text, n, 6, false);
    n = make_text(text, code, sizeof code / sizeof code[0]);
    run("parser_text_code", "", text, n, n, false);
    run("parser_args_code", args, text, n, n, false);
    run("parser_args_code", args, text, n, 4, false);
    return 0;
}
