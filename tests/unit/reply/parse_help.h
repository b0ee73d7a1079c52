/* Runs the stream parser over a text in given pieces and writes down what came out, as one line of text that two
 * runs can be compared by. */
#ifndef DS_TEST_PARSE_HELP_H
#define DS_TEST_PARSE_HELP_H

#include "base/buf.h"
#include "base/utf8.h"
#include "reply/parser.h"
#include "test.h"

#define D "｜DSML｜"
#define OPEN "<" D " calls>"
#define CLOSE "</" D " calls>"
#define INV(name) "<" D " invoke name=\"" name "\">"
#define INV_END "</" D " invoke>"
#define STR(key, value) "<" D " parameter name=\"" key "\" string=\"true\">" value "</" D " parameter>"
#define RAW(key, value) "<" D " parameter name=\"" key "\" string=\"false\">" value "</" D " parameter>"
#define EOS "<｜end▁of▁sentence｜>"

typedef struct {
    ds_buf log;  /* R{…}C{…}call{name:args} — adjacent pieces joined */
    ds_buf args; /* of the open call */
    ds_parse_kind last;
    bool custom; /* the open call's pieces are text, not JSON */
    bool stream_raw;
    uint64_t text_end;
} parse_run;

/* No piece is empty, none ends inside a character, text positions go up, and the arguments of a complete call are a
 * JSON object. */
static inline void parse_record(void *ctx, const ds_parse_event *ev)
{
    parse_run *r = ctx;
    static const char *const mark[] = { "R", "C" };

    if (ev->kind != DS_PARSE_CALL_END && ev->kind != DS_PARSE_CALL && ev->n == 0)
        fail_msg("an empty piece");
    if (ev->n && !ds_utf8_valid(ev->bytes, ev->n))
        fail_msg("a piece ends inside a character");
    switch (ev->kind) {
    case DS_PARSE_REASONING:
    case DS_PARSE_CONTENT:
        if (ev->begin < r->text_end || ev->end - ev->begin != ev->n)
            fail_msg("text positions %lu..%lu after %lu", (unsigned long)ev->begin, (unsigned long)ev->end, (unsigned long)r->text_end);
        r->text_end = ev->end;
        if (r->last != ev->kind || r->log.len == 0)
            ds_buf_printf(&r->log, "%s|", mark[ev->kind]);
        ds_buf_put(&r->log, ev->bytes, ev->n);
        break;
    case DS_PARSE_CALL:
        ds_buf_printf(&r->log, "call%u|", ev->call);
        ds_buf_put(&r->log, ev->bytes, ev->n);
        ds_buf_puts(&r->log, "|");
        ds_buf_clear(&r->args);
        r->custom = ev->n == 5 && memcmp(ev->bytes, "patch", 5) == 0; /* the custom tool of these tests; its input may be empty */
        break;
    case DS_PARSE_INPUT:
        assert_true(r->custom);
        /* fall through */
    case DS_PARSE_ARGS:
        ds_buf_put(&r->args, ev->bytes, ev->n);
        break;
    case DS_PARSE_CALL_END:
        if (ev->complete && !r->custom && !r->stream_raw &&
            !ds_json_text_object(ds_buf_str(&r->args), r->args.len, DS_PARSER_MAX_DEPTH + 1, NULL, NULL))
            fail_msg("arguments of a complete call are no JSON object: %s", ds_buf_str(&r->args));
        ds_buf_put(&r->log, ds_buf_str(&r->args), r->args.len);
        ds_buf_puts(&r->log, ev->complete ? "|" : "|cut|");
        ds_buf_clear(&r->args);
        break;
    }
    r->last = ev->kind;
}

/* Parses with cuts after the given offsets (ascending); the log ends with the finish reason. Free with
 * ds_buf_free(&run->log). */
static inline void parse_cut(parse_run *r, const ds_parser_opts *opts, const char *text, size_t n, const size_t *cuts, size_t n_cuts,
                             ds_backend_end end, ds_parser_stats *stats)
{
    static const char *const finish[] = { "stop", "tool_calls", "stop_sequence", "length", "content_filter", "end_of_stream" };
    ds_parser_opts o = *opts;
    ds_parser *p;
    ds_err err;
    size_t at = 0;

    memset(r, 0, sizeof *r);
    r->last = DS_PARSE_CALL_END;
    r->stream_raw = o.stream_raw;
    o.sink = parse_record;
    o.ctx = r;
    if (!o.max_value_bytes)
        o.max_value_bytes = 1 << 16;
    assert_ok(ds_parser_create(&p, &o, &err));
    for (size_t i = 0; i <= n_cuts; i++) {
        size_t to = i < n_cuts ? cuts[i] : n;
        ds_parser_push(p, text + at, to - at, 0);
        at = to;
    }
    ds_buf_printf(&r->log, "|%s", finish[ds_parser_finish(p, end)]);
    if (stats)
        *stats = *ds_parser_get_stats(p);
    ds_parser_destroy(p);
    ds_buf_free(&r->args);
}

static inline uint64_t help_random(uint64_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return *s;
}

/* Whole, byte by byte, every two pieces, `random` random partitions: all the same. Returns the log (static buffer of
 * the caller's). */
static inline void parse_every_way(const ds_parser_opts *opts, const char *text, size_t n, ds_backend_end end, unsigned random, ds_buf *log,
                                   ds_parser_stats *stats)
{
    parse_run whole, r;
    size_t *cuts = malloc((n + 1) * sizeof *cuts);
    uint64_t seed = 0x9e3779b97f4a7c15ull ^ n;

    parse_cut(&whole, opts, text, n, NULL, 0, end, stats);
    for (size_t way = 0; way <= n + random; way++) {
        size_t k = 0;
        if (way < n) {
            cuts[k++] = way;
        } else if (way == n) {
            for (size_t i = 1; i < n; i++)
                cuts[k++] = i;
        } else {
            size_t step = 1 + help_random(&seed) % (n < 40 ? n + 1 : 40);
            for (size_t i = 1 + help_random(&seed) % step; i < n; i += 1 + help_random(&seed) % step)
                cuts[k++] = i;
        }
        parse_cut(&r, opts, text, n, cuts, k, end, NULL);
        if (r.log.len != whole.log.len || memcmp(r.log.p, whole.log.p, r.log.len) != 0)
            fail_msg("partition %zu of '%s' gives\n  %s\nnot\n  %s", way, text, ds_buf_str(&r.log), ds_buf_str(&whole.log));
        ds_buf_free(&r.log);
    }
    free(cuts);
    ds_buf_clear(log);
    ds_buf_put(log, whole.log.p, whole.log.len);
    ds_buf_free(&whole.log);
}

#endif
