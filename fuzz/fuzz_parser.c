/* The stream parser: the first bytes of the input choose options and how the rest is cut. Whatever the cut, the
 * events are those of the uncut text; no piece ends inside a character; positions go up; the arguments of a complete
 * call are a JSON object. */
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/utf8.h"
#include "reply/parser.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct {
    ds_buf log, args;
    ds_parse_kind last;
    uint64_t text_end;
    bool check;
} record;

static void must(bool ok)
{
    if (!ok)
        __builtin_trap();
}

static unsigned flags_of(void *ctx, const char *name, size_t n)
{
    (void)ctx;
    must(n > 0 && n <= DS_PARSER_MAX_NAME);
    return name[0] == 'c' ? DS_PARSE_DECLARED | DS_PARSE_CUSTOM : name[0] == 'f' ? DS_PARSE_DECLARED : 0;
}

static int has_key(void *ctx, const char *name, size_t n, const char *key, size_t kn)
{
    (void)ctx;
    return name[0] == 'f' && n == 1 ? kn == 1 && *key == 'a' : -1;
}

static void on_event(void *ctx, const ds_parse_event *ev)
{
    record *r = ctx;

    must(ev->n == 0 || ds_utf8_valid(ev->bytes, ev->n));
    switch (ev->kind) {
    case DS_PARSE_REASONING:
    case DS_PARSE_CONTENT:
        must(ev->begin >= r->text_end && ev->end - ev->begin == ev->n && ev->n > 0);
        r->text_end = ev->end;
        if (r->last != ev->kind || r->log.len == 0)
            ds_buf_puts(&r->log, ev->kind == DS_PARSE_REASONING ? "R|" : "C|");
        ds_buf_put(&r->log, ev->bytes, ev->n);
        break;
    case DS_PARSE_CALL:
        ds_buf_printf(&r->log, "call%u|", ev->call);
        ds_buf_put(&r->log, ev->bytes, ev->n);
        ds_buf_clear(&r->args);
        r->check = ev->bytes[0] != 'c';
        break;
    case DS_PARSE_INPUT:
    case DS_PARSE_ARGS:
        must(ev->n > 0);
        ds_buf_put(&r->args, ev->bytes, ev->n);
        break;
    case DS_PARSE_CALL_END:
        if (ev->complete && r->check)
            must(ds_json_text_object(ds_buf_str(&r->args), r->args.len, DS_PARSER_MAX_DEPTH + 1, NULL, NULL));
        ds_buf_put(&r->log, ds_buf_str(&r->args), r->args.len);
        ds_buf_puts(&r->log, ev->complete ? "|" : "|cut|");
        break;
    }
    r->last = ev->kind;
}

static void run(record *r, const ds_parser_opts *opts, const uint8_t *text, size_t n, uint32_t cuts, ds_backend_end end)
{
    ds_parser_opts o = *opts;
    ds_parser *p;
    ds_err err;

    memset(r, 0, sizeof *r);
    r->last = DS_PARSE_CALL_END;
    o.sink = on_event;
    o.ctx = r;
    must(ds_parser_create(&p, &o, &err) == DS_OK);
    for (size_t i = 0; i < n;) {
        size_t step = n;
        if (cuts) {
            cuts = cuts * 1664525u + 1013904223u;
            step = 1 + (cuts >> 24) % (1 + (cuts >> 16 & 15));
        }
        step = step < n - i ? step : n - i;
        ds_parser_push(p, text + i, step, 1);
        i += step;
    }
    ds_finish f = ds_parser_finish(p, end);
    const ds_parser_stats *s = ds_parser_get_stats(p);
    must(s->reasoning_tokens <= s->tokens);
    ds_buf_printf(&r->log, "|%d %u", f, s->calls);
    must(!r->log.oom && !r->args.oom);
    ds_parser_destroy(p);
    ds_buf_free(&r->args);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const stops[] = { "END", "\n\n", "aab", "<", "\xe6\x97\xa5", "}" };
    static const size_t lens[] = { 3, 2, 3, 1, 3, 1 };
    uint64_t bits;

    if (size < sizeof bits)
        return 0;
    memcpy(&bits, data, sizeof bits);
    data += sizeof bits;
    size -= sizeof bits;
    ds_parser_opts o = {
        .start = (ds_parser_start)((bits & 7) % 5),
        .tools = (ds_parser_tools)((bits >> 3 & 3) % 3),
        .json_mode = bits >> 5 & 1,
        .strict_thinking = bits >> 6 & 1,
        .preserve_newlines = bits >> 7 & 1,
        .recover_orphan_invoke = bits >> 8 & 1,
        .repair_wrapper = bits >> 9 & 1,
        .unknown_tool_as_content = bits >> 10 & 1,
        .normalize_lookalikes = bits >> 11 & 1,
        .flush_tail = bits >> 12 & 1,
        .max_calls = (uint32_t)(bits >> 13 & 3),
        .max_value_bytes = bits >> 15 & 1 ? 60 : 1 << 16,
        .tool_flags = bits >> 16 & 1 ? NULL : flags_of,
        .tool_has_key = has_key,
        .keep_stop = bits >> 24 & 1,
        .stops = stops + (bits >> 17 & 7) % 6,
        .stop_bytes = lens + (bits >> 17 & 7) % 6,
        .n_stops = (bits >> 20 & 3) % 2,
    };
    ds_backend_end end = (ds_backend_end)(bits >> 22 & 3);
    record whole, cut;

    run(&whole, &o, data, size, 0, end);
    run(&cut, &o, data, size, (uint32_t)(bits >> 32) | 1, end);
    must(whole.log.len == cut.log.len && memcmp(whole.log.p, cut.log.p, cut.log.len) == 0);
    ds_buf_free(&whole.log);
    ds_buf_free(&cut.log);
    return 0;
}
