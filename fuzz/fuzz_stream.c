/* Streams of every protocol: the first bytes choose request and cuts, the rest is the model's output. Every event is
 * JSON of the right type, events come in the protocol's order, their deltas make up the body, and the body doesn't
 * depend on the cuts. */
#include <stdlib.h>
#include <string.h>

#include <ds/stream.h>

#include "base/buf.h"
#include "base/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool ok)
{
    if (!ok)
        __builtin_trap();
}

#define CHAT_TOOLS                                                                                                                        \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":" \
    "\"integer\"}}}}}]"
static const struct {
    ds_proto proto;
    const char *set, *body;
} kinds[] = {
    { DS_PROTO_CHAT, NULL, "{\"model\":\"m\",\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]," CHAT_TOOLS "}" },
    { DS_PROTO_CHAT, "schema_coercion=true",
      "{\"model\":\"m\",\"stream\":true,\"n\":2,\"stop\":[\"END\",\"\\n\\n\"],\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]"
      "," CHAT_TOOLS "}" },
    { DS_PROTO_CHAT, "recover_orphan_invoke=true",
      "{\"model\":\"m\",\"stream\":true,\"thinking\":{\"type\":\"disabled\"},\"response_format\":{\"type\":\"json_object\"},\"messages\":[{"
      "\"role\":\"user\",\"content\":\"json\"}]," CHAT_TOOLS "}" },
    { DS_PROTO_RESPONSES, NULL,
      "{\"model\":\"m\",\"input\":\"x\",\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"parameters\":{\"type\":\"object\"}},{\"type\":"
      "\"custom\",\"name\":\"p\"}]}" },
    { DS_PROTO_MESSAGES, NULL,
      "{\"model\":\"m\",\"max_tokens\":9,\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[{\"name\":\"f\",\"input_schema\":{"
      "\"type\":\"object\"}}]}" },
    { DS_PROTO_MESSAGES, NULL,
      "{\"model\":\"m\",\"max_tokens\":9,\"thinking\":{\"type\":\"disabled\"},\"stop_sequences\":[\"END\"],\"messages\":[{\"role\":"
      "\"user\",\"content\":\"x\"}]}" },
    { DS_PROTO_COMPLETIONS, NULL, "{\"model\":\"m\",\"prompt\":\"x\",\"stream\":true,\"echo\":true,\"stop\":\"END\"}" },
};
#define N_KINDS (sizeof kinds / sizeof kinds[0])

typedef struct {
    ds_proto proto;
    ds_buf text, args; /* deltas of choice 0 */
    uint64_t sequence;
    int64_t open; /* Messages: the open block, -1 = none */
    int64_t blocks;
    bool ended;
} record;

static void add(ds_buf *b, const ds_json *v)
{
    if (ds_json_is(v, DS_JSON_STRING))
        ds_buf_put(b, v->text, v->text_len);
}

static void on_chunk(record *r, const ds_json *e)
{
    const ds_json *c = ds_json_at(ds_json_get(e, "choices"), 0), *delta = ds_json_get(c, "delta");
    int64_t index;

    must(ds_json_i64(ds_json_get(c, "index"), &index));
    if (index != 0)
        return;
    must(!r->ended);
    r->ended = !ds_json_is(ds_json_get(c, "finish_reason"), DS_JSON_NULL);
    add(&r->text, ds_json_get(delta, "content"));
    add(&r->text, ds_json_get(c, "text"));
    add(&r->args, ds_json_get(ds_json_get(ds_json_at(ds_json_get(delta, "tool_calls"), 0), "function"), "arguments"));
}

static void on_message_event(record *r, const char *name, const ds_json *e)
{
    int64_t index = -1;

    ds_json_i64(ds_json_get(e, "index"), &index);
    if (strcmp(name, "content_block_start") == 0) {
        must(r->open == -1 && index == r->blocks++);
        r->open = index;
    } else if (strcmp(name, "content_block_delta") == 0) {
        must(index == r->open);
        add(&r->text, ds_json_get(ds_json_get(e, "delta"), "text"));
        add(&r->args, ds_json_get(ds_json_get(e, "delta"), "partial_json"));
    } else if (strcmp(name, "content_block_stop") == 0) {
        must(index == r->open);
        r->open = -1;
    } else if (strcmp(name, "message_stop") == 0) {
        must(r->open == -1 && !r->ended);
        r->ended = true;
    }
}

static void on_response_event(record *r, const char *name, const ds_json *e)
{
    uint64_t n;

    must(ds_json_u64(ds_json_get(e, "sequence_number"), &n) && n == r->sequence++);
    must(!r->ended);
    r->ended = strcmp(name, "response.completed") == 0 || strcmp(name, "response.incomplete") == 0;
    if (strcmp(name, "response.output_text.delta") == 0)
        add(&r->text, ds_json_get(e, "delta"));
    else if (strstr(name, ".delta") && !strstr(name, "reasoning"))
        add(&r->args, ds_json_get(e, "delta"));
}

static void on_event(void *ctx, const char *event, const char *data, size_t n)
{
    record *r = ctx;
    ds_json_doc *doc;

    must(memchr(data, '\n', n) == NULL);
    must(ds_json_parse(&doc, data, n, NULL, NULL) == DS_OK);
    const ds_json *e = ds_json_root(doc);
    must(!event || ds_json_str_eq(ds_json_get(e, "type"), event));
    if (r->proto == DS_PROTO_RESPONSES)
        on_response_event(r, event, e);
    else if (r->proto == DS_PROTO_MESSAGES)
        on_message_event(r, event, e);
    else
        on_chunk(r, e);
    ds_json_free(doc);
}

/* Text and arguments of choice 0 as the body has them. Messages parses arguments, so only text counts there. */
static void from_body(record *r, const ds_json *body)
{
    const ds_json *c = ds_json_at(ds_json_get(body, "choices"), 0), *m = ds_json_get(c, "message");

    add(&r->text, ds_json_get(m, "content"));
    add(&r->text, ds_json_get(c, "text"));
    const ds_json *calls = ds_json_get(m, "tool_calls");
    for (const ds_json *v = calls ? calls->child : NULL; v; v = v->next)
        add(&r->args, ds_json_get(ds_json_get(v, "function"), "arguments"));
    const ds_json *list = ds_json_get(body, r->proto == DS_PROTO_RESPONSES ? "output" : "content");
    for (const ds_json *v = list ? list->child : NULL; v; v = v->next) {
        add(&r->text, ds_json_get(v, "text"));
        if (ds_json_str_eq(ds_json_get(v, "type"), "message"))
            add(&r->text, ds_json_get(ds_json_at(ds_json_get(v, "content"), 0), "text"));
        add(&r->args, ds_json_get(v, "arguments"));
        if (r->proto == DS_PROTO_RESPONSES)
            add(&r->args, ds_json_get(v, "input"));
    }
}

static bool same(const ds_buf *a, const ds_buf *b)
{
    return a->len == b->len && (a->len == 0 || memcmp(a->p, b->p, a->len) == 0);
}

static void run(ds_request *r, ds_proto proto, const uint8_t *text, size_t n, uint32_t cuts, ds_stream_end end, ds_buf *body)
{
    record rec = { .proto = proto, .open = -1 }, whole = { .proto = proto };
    ds_stream_opts o = { .id = "R", .sink = on_event, .ctx = &rec, .max_value_bytes = 1 << 16 };
    ds_stream *s;
    ds_json_doc *doc;
    const char *json;
    size_t json_n;

    must(ds_stream_create(&s, r, &o, NULL) == DS_OK);
    for (size_t i = 0; i < n;) {
        size_t step = n;
        if (cuts) {
            cuts = cuts * 1664525u + 1013904223u;
            step = 1 + (cuts >> 24) % (1 + (cuts >> 16 & 31));
        }
        step = step < n - i ? step : n - i;
        for (uint32_t k = 0; k < ds_stream_choices(s); k++)
            must(ds_stream_text(s, k, (const char *)text + i, step, 0, NULL) == DS_OK);
        i += step;
    }
    for (uint32_t k = 0; k < ds_stream_choices(s); k++)
        must(ds_stream_finish(s, k, end, NULL) == DS_OK);
    must(rec.ended);
    must(ds_stream_body(s, &json, &json_n, NULL) == DS_OK);
    ds_buf_put(body, json, json_n);
    must(ds_json_parse(&doc, json, json_n, &(ds_json_opts){ .max_depth = 200 }, NULL) == DS_OK);
    from_body(&whole, ds_json_root(doc));
    must(same(&rec.text, &whole.text));
    must(proto == DS_PROTO_MESSAGES || same(&rec.args, &whole.args));
    ds_json_free(doc);
    ds_buf_free(&rec.text);
    ds_buf_free(&rec.args);
    ds_buf_free(&whole.text);
    ds_buf_free(&whole.args);
    ds_stream_destroy(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ds_api_error refusal;
    ds_recipe_opts opts;
    ds_request *r;
    ds_buf whole = { 0 }, cut = { 0 };
    uint32_t bits;

    if (size < sizeof bits)
        return 0;
    memcpy(&bits, data, sizeof bits);
    size_t kind = (bits & 0xff) % N_KINDS;
    ds_stream_end end = (ds_stream_end)(bits >> 8 & 3);
    ds_recipe_opts_init(&opts);
    must(!kinds[kind].set || ds_recipe_opts_set(&opts, kinds[kind].set, NULL) == DS_OK);
    must(ds_request_parse(&r, &(ds_request_parse_args){ .proto = kinds[kind].proto, .opts = &opts }, kinds[kind].body,
                          strlen(kinds[kind].body), &refusal, NULL) == DS_OK);
    run(r, kinds[kind].proto, data + sizeof bits, size - sizeof bits, 0, end, &whole);
    run(r, kinds[kind].proto, data + sizeof bits, size - sizeof bits, bits | 1, end, &cut);
    must(same(&whole, &cut));
    ds_buf_free(&whole);
    ds_buf_free(&cut);
    ds_request_destroy(r);
    return 0;
}
