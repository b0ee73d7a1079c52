/* Streams: from the parser's events to the items of a response; the protocols' writers are in respond_*.c. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "base/str.h"
#include "reply/respond_internal.h"
#include "schema/schema.h"

struct tool_schema {
    ds_json_doc *doc; /* NULL: none, or no JSON */
};

/* ---- text ---- */

void respond_str(ds_buf *b, const char *p, size_t n)
{
    ds_json_write_str(b, p, n, DS_JSON_SSE);
}

void respond_buf(ds_buf *b, const ds_buf *text)
{
    respond_str(b, ds_buf_str(text), text->len);
}

void respond_u32(ds_buf *b, uint32_t x)
{
    if (x < 10)
        ds_buf_putc(b, (char)('0' + x));
    else
        ds_buf_printf(b, "%u", x);
}

void respond_head(ds_stream *s, ds_buf *b, const char *object)
{
    ds_buf_puts(b, "{\"id\":");
    respond_str(b, s->id, strlen(s->id));
    ds_buf_printf(b, ",\"object\":\"%s\",\"created\":%ld,\"model\":", object, (long)s->o.created);
    respond_str(b, s->model.p, s->model.n);
    ds_buf_puts(b, ",\"system_fingerprint\":");
    if (s->fingerprint)
        respond_str(b, s->fingerprint, strlen(s->fingerprint));
    else
        ds_buf_puts(b, "null");
    ds_buf_puts(b, ",\"choices\":[");
}

void respond_chunk_head(ds_stream *s, const char *object)
{
    if (s->head.len == 0)
        respond_head(s, &s->head, object);
    s->oom |= s->head.oom;
    ds_buf_put(&s->ev, ds_buf_str(&s->head), s->head.len);
}

void respond_send(ds_stream *s, const char *name)
{
    s->oom |= s->ev.oom;
    if (!s->oom && s->o.sink)
        s->o.sink(s->o.ctx, name, ds_buf_str(&s->ev), s->ev.len);
    ds_buf_clear(&s->ev);
}

void respond_call_id(ds_stream *s, ds_buf *b, const char *prefix, const choice *c, const item *it)
{
    ds_buf id = { 0 };

    if (c->index)
        ds_buf_printf(&id, "%s_%s_%u_%u", prefix, s->id, c->index, it->call);
    else
        ds_buf_printf(&id, "%s_%s_%u", prefix, s->id, it->call);
    s->oom |= id.oom;
    respond_buf(b, &id);
    ds_buf_free(&id);
}

void respond_input(ds_stream *s, ds_buf *b, const item *it)
{
    const ds_json_opts deep = { .max_depth = DS_PARSER_MAX_DEPTH + 2 };
    ds_json_doc *doc;

    if (it->custom) { /* a custom tool is shown as a function of one string */
        ds_buf_puts(b, "{\"input\":");
        respond_buf(b, &it->text);
        ds_buf_putc(b, '}');
        return;
    }
    ds_rc rc = it->complete ? ds_json_parse(&doc, ds_buf_str(&it->text), it->text.len, &deep, NULL) : DS_E_FORMAT;
    s->oom |= rc == DS_E_NOMEM;
    if (rc == DS_OK && ds_json_is(ds_json_root(doc), DS_JSON_OBJECT))
        ds_json_write(b, ds_json_root(doc), DS_JSON_SSE);
    else
        ds_buf_puts(b, "{}");
    if (rc == DS_OK)
        ds_json_free(doc);
}

void respond_chat_usage(ds_stream *s, ds_buf *b)
{
    ds_stream_usage u;

    ds_stream_get_usage(s, &u);
    ds_buf_printf(b,
                  "{\"prompt_tokens\":%lu,\"completion_tokens\":%lu,\"total_tokens\":%lu,\"prompt_tokens_details\":{\"cached_tokens\":%lu}",
                  u.prompt_tokens, u.output_tokens, u.prompt_tokens + u.output_tokens, u.cached_tokens);
    if (s->info->thinking && u.reasoning_known)
        ds_buf_printf(b, ",\"completion_tokens_details\":{\"reasoning_tokens\":%lu}", u.reasoning_tokens);
    ds_buf_printf(b, ",\"prompt_cache_hit_tokens\":%lu,\"prompt_cache_miss_tokens\":%lu}", u.cached_tokens,
                  u.prompt_tokens - u.cached_tokens);
}

void respond_seal(ds_stream *s, item *it)
{
    if (!s->o.seal || it->sealed || it->text.len == 0)
        return;
    it->sealed_n = ds_seal_blob_bytes(it->text.len);
    it->sealed = malloc(it->sealed_n);
    if (!it->sealed || ds_seal_close(s->o.seal, it->text.p, it->text.len, it->sealed, NULL) != DS_OK) {
        free(it->sealed);
        it->sealed = NULL;
        s->oom = true;
    }
}

ds_str respond_stop(const ds_stream *s, const choice *c)
{
    int at = ds_parser_get_stats(c->parser)->stop;
    return c->finish == DS_FINISH_STOP_SEQUENCE && at >= 0 ? s->info->stop[at] : (ds_str){ 0 };
}

const char *respond_finish_name(const ds_stream *s, const choice *c)
{
    switch (c->finish) {
    case DS_FINISH_TOOL_CALLS:
        return s->info->legacy_functions ? "function_call" : "tool_calls";
    case DS_FINISH_LENGTH:
        return "length";
    case DS_FINISH_CONTENT_FILTER:
        return "content_filter";
    default:
        return "stop";
    }
}

/* ---- tools ---- */

/* A tool whose calls carry free text; Messages has none. */
static bool is_custom(const ds_stream *s, const ds_tool *t)
{
    return t && t->kind == DS_TOOL_CUSTOM && s->info->proto != DS_PROTO_MESSAGES;
}

/* The declared tool of that name. A namespace may also be written as later encodings do, ns__fn. */
static const ds_tool *find_tool(const ds_stream *s, const char *name, size_t n)
{
    const ds_tool *t = ds_request_tool(s->r, name, n);
    const char *sep = t ? NULL : memmem(name, n, "__", 2);
    char other[DS_PARSER_MAX_NAME];

    if (!sep || n > sizeof other)
        return t;
    memcpy(other, name, n);
    memcpy(other + (sep - name), "::", 2);
    return ds_request_tool(s->r, other, n);
}

static unsigned tool_flags(void *ctx, const char *name, size_t n)
{
    const choice *c = ctx;
    const ds_tool *t = find_tool(c->s, name, n);

    return !t ? 0 : DS_PARSE_DECLARED | (is_custom(c->s, t) ? DS_PARSE_CUSTOM : 0);
}

static const ds_json *tool_property(const choice *c, const char *name, size_t n, const char *key, size_t key_bytes, bool *known)
{
    const ds_stream *s = c->s;
    const ds_tool *t = find_tool(s, name, n);
    const ds_json *props;

    *known = false;
    if (!t || !s->schemas || !s->schemas[t - s->info->tools].doc)
        return NULL;
    props = ds_json_get(ds_json_root(s->schemas[t - s->info->tools].doc), "properties");
    *known = true;
    for (const ds_json *v = props ? props->child : NULL; v; v = v->next)
        if (v->key_len == key_bytes && memcmp(v->key, key, key_bytes) == 0)
            return v;
    return NULL;
}

static int tool_has_key(void *ctx, const char *name, size_t n, const char *key, size_t key_bytes)
{
    bool known;
    const ds_json *v = tool_property(ctx, name, n, key, key_bytes, &known);

    return !known ? -1 : v != NULL;
}

static unsigned type_bit(const ds_json *v)
{
    static const struct {
        const char *name;
        unsigned bit;
    } types[] = {
        { "string", DS_TYPE_STRING }, { "number", DS_TYPE_NUMBER }, { "integer", DS_TYPE_INTEGER }, { "boolean", DS_TYPE_BOOLEAN },
        { "null", DS_TYPE_NULL },     { "object", DS_TYPE_OBJECT }, { "array", DS_TYPE_ARRAY },
    };

    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (ds_json_str_eq(v, types[i].name))
            return types[i].bit;
    return 0;
}

static unsigned tool_key_types(void *ctx, const char *name, size_t n, const char *key, size_t key_bytes)
{
    bool known;
    const ds_json *type = ds_json_get(tool_property(ctx, name, n, key, key_bytes, &known), "type");
    unsigned bits = 0;

    if (!ds_json_is(type, DS_JSON_ARRAY))
        return type_bit(type);
    for (const ds_json *v = type->child; v; v = v->next) {
        unsigned bit = type_bit(v);
        if (!bit)
            return 0; /* a word we don't know: anything may be right */
        bits |= bit;
    }
    return bits;
}

static ds_rc read_schemas(ds_stream *s, ds_err *err)
{
    const ds_request_info_data *i = s->info;

    if (!i->n_tools || !(i->opts.wrapper_repair || i->opts.schema_coercion))
        return DS_OK;
    s->schemas = calloc(i->n_tools, sizeof *s->schemas);
    if (!s->schemas)
        return ds_fail(err, DS_E_NOMEM, "stream: out of memory for %u tools", i->n_tools);
    for (uint32_t k = 0; k < i->n_tools; k++)
        if (ds_json_parse(&s->schemas[k].doc, i->tools[k].parameters.p, i->tools[k].parameters.n, NULL, err) == DS_E_NOMEM)
            return DS_E_NOMEM;
    return DS_OK;
}

/* ---- items ---- */

item *respond_open(choice *c, item_kind kind)
{
    ds_stream *s = c->s;
    item *it;

    if (c->n_items == c->cap_items) {
        size_t cap = c->cap_items ? 2 * c->cap_items : 4;
        item *grown = realloc(c->items, cap * sizeof *grown);
        if (!grown) {
            s->oom = true;
            return NULL;
        }
        c->items = grown;
        c->cap_items = cap;
    }
    it = &c->items[c->n_items];
    *it = (item){ .kind = kind, .index = (uint32_t)c->n_items, .open = true, .complete = true };
    c->n_items++;
    return c->cur = it;
}

/* Passes on what the open item has gained. */
static void flush(choice *c)
{
    item *it = c->cur;
    ds_stream *s = c->s;

    if (!it || s->oom)
        return;
    if (it->text.oom || it->lp.oom) {
        s->oom = true;
        return;
    }
    if ((it->text.len > it->sent || it->lp.len > it->lp_sent) && s->o.sink) {
        size_t lp = it->lp_sent + (it->lp_sent > 0 && it->lp.len > it->lp_sent); /* without the comma */
        s->proto->delta(s, c, it, it->text.p + it->sent, it->text.len - it->sent, ds_buf_str(&it->lp) + lp, it->lp.len - lp);
        it->lp_sent = it->lp.len;
    }
    it->sent = it->text.len;
}

static void close_item(choice *c)
{
    item *it = c->cur;
    ds_stream *s = c->s;

    if (!it)
        return;
    flush(c);
    it->open = false;
    c->cur = NULL;
    if (it->kind == ITEM_REASONING &&
        ((s->info->proto == DS_PROTO_RESPONSES && s->info->include_encrypted_reasoning) || s->info->proto == DS_PROTO_MESSAGES))
        respond_seal(s, it);
    if (s->o.sink && !s->oom)
        s->proto->close(s, c, it);
}

static item *text_item(choice *c, item_kind kind)
{
    if (c->cur && c->cur->kind == kind)
        return c->cur;
    close_item(c);
    item *it = respond_open(c, kind);
    if (it && c->s->o.sink)
        c->s->proto->open(c->s, c, it);
    return it;
}

/* ---- log-probabilities ---- */

static void put_logprob(ds_buf *b, float x)
{
    ds_json_write_f64(b, isnan(x) || x < -9999.0f ? -9999.0 : (double)x);
}

static void put_token(ds_buf *b, const char *bytes, size_t n)
{
    ds_buf_puts(b, "\"token\":");
    respond_str(b, bytes, n);
}

static void put_bytes(ds_buf *b, const char *bytes, size_t n)
{
    ds_buf_puts(b, "\"bytes\":[");
    for (size_t i = 0; i < n; i++)
        ds_buf_printf(b, i ? ",%u" : "%u", (unsigned char)bytes[i]);
    ds_buf_putc(b, ']');
}

/* Completions name a token by its text alone; where that is no UTF-8, by its bytes, so that different tokens never
 * have one name. */
static void put_legacy_name(ds_buf *b, const char *bytes, size_t n)
{
    if (ds_utf8_valid(bytes, n)) {
        respond_str(b, bytes, n);
        return;
    }
    ds_buf_puts(b, "\"bytes:");
    for (size_t i = 0; i < n; i++)
        ds_buf_printf(b, "\\\\x%02x", (unsigned char)bytes[i]);
    ds_buf_putc(b, '"');
}

/* {"text":logprob,…} of the likeliest `top` tokens, and of the token itself where it isn't one of them. */
static void put_legacy_top(ds_stream *s, ds_buf *b, ds_token id, const ds_token_logprob *lp, uint32_t top)
{
    bool there = false;
    const char *bytes;
    size_t n;

    ds_buf_putc(b, '{');
    for (uint32_t i = 0; i <= top; i++) {
        ds_token t = i < top ? lp->top[i].id : id;
        if (i == top && there)
            break;
        there = there || t == id;
        bytes = ds_tokenizer_bytes(s->o.tokenizer, t, &n);
        if (i)
            ds_buf_putc(b, ',');
        put_legacy_name(b, bytes, n);
        ds_buf_putc(b, ':');
        put_logprob(b, i < top ? lp->top[i].logprob : lp->logprob);
    }
    ds_buf_putc(b, '}');
}

/* The entry of one token, in the chat shape or in that of completions (four texts joined by NUL, taken apart when
 * the token's text comes out). */
static void put_entry(ds_stream *s, ds_buf *b, ds_token id, const ds_token_logprob *lp)
{
    uint32_t top = lp->n_top < s->info->top_logprobs ? lp->n_top : s->info->top_logprobs;
    bool legacy = s->info->proto == DS_PROTO_COMPLETIONS;
    size_t n;
    const char *bytes = ds_tokenizer_bytes(s->o.tokenizer, id, &n);

    if (legacy) {
        put_legacy_name(b, bytes, n);
        ds_buf_putc(b, '\0');
        put_logprob(b, lp->logprob);
        ds_buf_putc(b, '\0');
        put_legacy_top(s, b, id, lp, top);
        return;
    }
    ds_buf_putc(b, '{');
    put_token(b, bytes, n);
    ds_buf_puts(b, ",\"logprob\":");
    put_logprob(b, lp->logprob);
    ds_buf_putc(b, ',');
    put_bytes(b, bytes, n);
    ds_buf_puts(b, ",\"top_logprobs\":[");
    for (uint32_t i = 0; i < top; i++) {
        bytes = ds_tokenizer_bytes(s->o.tokenizer, lp->top[i].id, &n);
        if (i)
            ds_buf_putc(b, ',');
        ds_buf_putc(b, '{');
        put_token(b, bytes, n);
        ds_buf_puts(b, ",\"logprob\":");
        put_logprob(b, lp->top[i].logprob);
        ds_buf_putc(b, ',');
        put_bytes(b, bytes, n);
        ds_buf_putc(b, '}');
    }
    ds_buf_puts(b, "]}");
}

static void wait_entry(choice *c, ds_token id, const ds_token_logprob *lp, size_t n_bytes)
{
    ds_stream *s = c->s;

    if (c->wait_head == c->n_wait) {
        c->wait_head = c->n_wait = 0;
        ds_buf_clear(&c->lp);
    }
    if (c->n_wait == c->cap_wait) {
        size_t cap = c->cap_wait ? 2 * c->cap_wait : 16;
        lp_wait *grown = realloc(c->wait, cap * sizeof *grown);
        if (!grown) {
            s->oom = true;
            return;
        }
        c->wait = grown;
        c->cap_wait = cap;
    }
    lp_wait *w = &c->wait[c->n_wait++];
    w->from = c->lp.len;
    put_entry(s, &c->lp, id, lp);
    w->to = c->lp.len;
    w->end = ds_parser_position(c->parser) + n_bytes;
    s->oom |= c->lp.oom;
}

static void put_legacy_entry(choice *c, const char *e, size_t n, uint64_t offset)
{
    const char *lp = e + strlen(e) + 1, *top = lp + strlen(lp) + 1;
    ds_buf *const lists[] = { &c->tokens, &c->token_logprobs, &c->top_logprobs, &c->text_offset };

    for (size_t i = 0; i < 4; i++)
        if (lists[i]->len)
            ds_buf_putc(lists[i], ',');
    ds_buf_put(&c->tokens, e, (size_t)(lp - e) - 1);
    ds_buf_put(&c->token_logprobs, lp, (size_t)(top - lp) - 1);
    ds_buf_put(&c->top_logprobs, top, n - (size_t)(top - e));
    ds_buf_printf(&c->text_offset, "%lu", offset);
}

/* Entries of the tokens whose last byte lies in begin..end go to the item; those before it were markup. */
static void take_entries(choice *c, item *it, uint64_t begin, uint64_t end)
{
    while (c->wait_head < c->n_wait) {
        const lp_wait *w = &c->wait[c->wait_head];
        if (w->end > end)
            break;
        c->wait_head++;
        if (w->end <= begin)
            continue;
        if (c->s->info->proto == DS_PROTO_COMPLETIONS) {
            put_legacy_entry(c, c->lp.p + w->from, w->to - w->from, c->chars);
            continue;
        }
        if (it->lp.len)
            ds_buf_putc(&it->lp, ',');
        ds_buf_put(&it->lp, c->lp.p + w->from, w->to - w->from);
    }
}

/* The output ended inside a character: its tokens keep their entries, though their text is dropped. */
static void take_cut_entries(choice *c, uint64_t begin, uint64_t end)
{
    const ds_stream *s = c->s;
    bool reasoning = c->n_items == 0 && (s->info->start == DS_START_REASONING || s->info->start == DS_START_REASONING_KEEP);
    item *it = c->cur;

    if (c->wait_head == c->n_wait || c->wait[c->n_wait - 1].end <= begin || (it && it->kind == ITEM_CALL))
        return;
    if (!it && s->info->proto != DS_PROTO_COMPLETIONS)
        it = text_item(c, reasoning ? ITEM_REASONING : ITEM_TEXT);
    if (it || s->info->proto == DS_PROTO_COMPLETIONS)
        take_entries(c, it, begin, end);
}

/* ---- log-probabilities of prompts ---- */

bool ds_stream_wants_prompt(const ds_stream *s)
{
    return s->scored != NULL;
}

static uint64_t code_points(const char *p, size_t n)
{
    uint64_t k = 0;

    for (size_t i = 0; i < n; i++)
        k += ((unsigned char)p[i] & 0xc0) != 0x80;
    return k;
}

/* Of one token in vLLM's shape. */
static void put_ranked(ds_stream *s, ds_buf *b, ds_token id, float logprob, uint32_t rank)
{
    size_t n;
    const char *bytes = ds_tokenizer_bytes(s->o.tokenizer, id, &n);

    ds_buf_printf(b, "\"%d\":{\"logprob\":", id);
    put_logprob(b, logprob);
    ds_buf_printf(b, ",\"rank\":%u,\"decoded_token\":", rank);
    respond_str(b, bytes, n);
    ds_buf_putc(b, '}');
}

static void put_prompt_entry(ds_stream *s, scored *k, ds_token id, const ds_token_logprob *lp, uint32_t rank)
{
    uint32_t top = s->info->prompt_top_logprobs;

    if (k->n)
        ds_buf_putc(&k->json, ',');
    if (!lp) {
        ds_buf_puts(&k->json, "null");
        return;
    }
    ds_buf_putc(&k->json, '{');
    put_ranked(s, &k->json, id, lp->logprob, rank);
    for (uint32_t i = 0; i < lp->n_top && i < top; i++)
        if (lp->top[i].id != id) {
            ds_buf_putc(&k->json, ',');
            put_ranked(s, &k->json, lp->top[i].id, lp->top[i].logprob, i + 1);
        }
    ds_buf_putc(&k->json, '}');
}

/* Of one token that `echo` repeats: the first has no log-probability. */
static void put_echo_entry(ds_stream *s, choice *c, const scored *k, ds_token id, const char *text, size_t n, const ds_token_logprob *lp)
{
    uint32_t want = s->info->top_logprobs;
    ds_buf e = { 0 };

    put_legacy_name(&e, text, n);
    ds_buf_putc(&e, '\0');
    if (lp && c->tokens.len) {
        put_logprob(&e, lp->logprob);
        ds_buf_putc(&e, '\0');
        put_legacy_top(s, &e, id, lp, lp->n_top < want ? lp->n_top : want);
    } else {
        ds_buf_put(&e, "null\0null", 9);
    }
    if (e.oom)
        s->oom = true;
    else
        put_legacy_entry(c, e.p, e.len, k->chars);
    ds_buf_free(&e);
}

ds_rc ds_stream_prompt_token(ds_stream *s, uint32_t prompt, ds_token id, const ds_token_logprob *lp, uint32_t rank, ds_err *err)
{
    uint32_t per_prompt = s->info->n;
    const ds_token *given;
    const char *text;
    size_t n, n_given;
    scored *k;

    if (!s->scored || !s->o.tokenizer || prompt >= s->n_choices / per_prompt)
        return ds_fail(err, DS_E_ARG, "stream: prompt %u: not wanted, or no tokenizer", prompt);
    k = &s->scored[prompt];
    if (s->info->prompt_logprobs)
        put_prompt_entry(s, k, id, lp, rank);
    if (s->info->echo_prompt && s->logprobs) {
        bool dropped = ds_tokenizer_kind(s->o.tokenizer, id) == DS_TOKEN_DROPPED;
        text = ds_tokenizer_bytes(s->o.tokenizer, id, &n);
        n = dropped ? 0 : n;
        ds_request_prompt_ids(s->r, prompt, &given, &n_given);
        for (uint32_t i = 0; i < per_prompt && (given || k->n || !dropped); i++) /* what stands in front of a text isn't repeated */
            put_echo_entry(s, &s->choices[prompt * per_prompt + i], k, id, text, n, lp);
        k->chars += code_points(text, n);
    }
    k->n++;
    s->oom |= k->json.oom;
    return s->oom ? ds_fail(err, DS_E_NOMEM, "stream: out of memory") : DS_OK;
}

void respond_prompt_logprobs(ds_stream *s, ds_buf *b, uint32_t prompt)
{
    if (!s->scored || !s->info->prompt_logprobs)
        return;
    ds_buf_puts(b, ",\"prompt_logprobs\":[");
    ds_buf_put(b, ds_buf_str(&s->scored[prompt].json), s->scored[prompt].json.len);
    ds_buf_putc(b, ']');
}

/* ---- the parser's events ---- */

static void on_event(void *ctx, const ds_parse_event *ev)
{
    choice *c = ctx;
    ds_stream *s = c->s;
    item *it;

    if (s->oom)
        return;
    switch (ev->kind) {
    case DS_PARSE_REASONING:
    case DS_PARSE_CONTENT:
        it = text_item(c, ev->kind == DS_PARSE_REASONING ? ITEM_REASONING : ITEM_TEXT);
        if (!it)
            return;
        take_entries(c, it, ev->begin, ev->end);
        ds_buf_put(&it->text, ev->bytes, ev->n);
        if (s->info->proto == DS_PROTO_COMPLETIONS)
            c->chars += code_points(ev->bytes, ev->n);
        break;
    case DS_PARSE_CALL:
        if (c->cur && c->cur->kind == ITEM_TEXT)
            c->cur->call_follows = true;
        close_item(c);
        it = respond_open(c, ITEM_CALL);
        if (!it)
            return;
        it->call = ev->call;
        it->tool = find_tool(s, ev->bytes, ev->n);
        it->custom = is_custom(s, it->tool);
        if (!ds_buf_put(&it->name, ev->bytes, ev->n))
            s->oom = true;
        else if (s->o.sink)
            s->proto->open(s, c, it);
        break;
    case DS_PARSE_ARGS:
    case DS_PARSE_INPUT:
        ds_buf_put(&c->cur->text, ev->bytes, ev->n);
        break;
    case DS_PARSE_CALL_END:
        c->cur->complete = ev->complete;
        close_item(c);
        break;
    }
}

/* ---- the stream ---- */

static ds_rc nomem(ds_err *err)
{
    return ds_fail(err, DS_E_NOMEM, "stream: out of memory");
}

static ds_rc make_parser(ds_stream *s, choice *c, ds_err *err)
{
    const ds_request_info_data *i = s->info;
    const char *stops[DS_PARSER_MAX_STOPS];
    size_t lens[DS_PARSER_MAX_STOPS];
    static const ds_parser_start starts[] = {
        [DS_START_CONTENT] = DS_PARSER_CONTENT,
        [DS_START_REASONING] = DS_PARSER_REASONING,
        [DS_START_BLOCK] = DS_PARSER_BLOCK,
        [DS_START_CONTENT_KEEP] = DS_PARSER_CONTENT_PREFIX,
        [DS_START_REASONING_KEEP] = DS_PARSER_REASONING_PREFIX,
        [DS_START_RAW] = DS_PARSER_RAW,
    };
    ds_parser_opts o = {
        .sink = on_event,
        .ctx = c,
        .start = starts[i->start],
        .tools = i->parse_tools       ? DS_PARSER_TOOLS_ON
                 : i->suppress_markup ? DS_PARSER_TOOLS_SUPPRESS
                                      : DS_PARSER_TOOLS_OFF,
        .json_mode = i->json_mode,
        .strict_thinking = i->opts.strict_thinking,
        .preserve_newlines = i->opts.preserve_newlines,
        .recover_orphan_invoke = i->opts.recover_orphan_invoke,
        .repair_wrapper = i->opts.wrapper_repair,
        .coerce = i->opts.schema_coercion,
        .stream_raw = i->opts.stream_raw_values,
        .unknown_tool_as_content = i->opts.unknown_tool == DS_UNKNOWN_TOOL_CONTENT,
        .normalize_lookalikes = i->opts.normalize_lookalikes,
        .eof_is_stop = i->opts.eof_is_stop,
        .max_calls = i->parallel_tool_calls && !i->legacy_functions ? 0 : 1,
        .max_value_bytes = s->o.max_value_bytes,
        .stops = stops,
        .stop_bytes = lens,
        .n_stops = i->n_stop,
        .keep_stop = i->include_stop,
        .min_tokens = i->min_tokens,
        .tool_flags = tool_flags,
        .tool_has_key = tool_has_key,
        .tool_key_types = tool_key_types,
    };

    for (uint32_t k = 0; k < i->n_stop && k < DS_PARSER_MAX_STOPS; k++) {
        stops[k] = i->stop[k].p;
        lens[k] = i->stop[k].n;
    }
    return ds_parser_create(&c->parser, &o, err);
}

/* The prompt of a choice as text: what `echo` repeats. */
static ds_rc echo_prompt(ds_stream *s, choice *c, ds_err *err)
{
    uint32_t prompt = c->index / s->info->n;
    const ds_token *ids;
    const ds_run *runs;
    size_t n;
    ds_rc rc;

    ds_request_prompt_ids(s->r, prompt, &ids, &n);
    if (ids) {
        for (size_t k = 0; k < n && s->o.tokenizer; k++) {
            size_t bytes;
            const char *text = ds_tokenizer_bytes(s->o.tokenizer, ids[k], &bytes);
            if (ds_tokenizer_kind(s->o.tokenizer, ids[k]) != DS_TOKEN_DROPPED)
                ds_buf_put(&c->echo, text, bytes);
        }
        return c->echo.oom ? nomem(err) : DS_OK;
    }
    rc = ds_request_render(s->r, prompt, &runs, &n, err);
    for (size_t k = 0; rc == DS_OK && k < n; k++)
        if (!runs[k].control) {
            ds_buf_put(&c->echo, runs[k].p, runs[k].n);
            break; /* a suffix follows as another run */
        }
    return rc == DS_OK && c->echo.oom ? nomem(err) : rc;
}

ds_rc ds_stream_create(ds_stream **out, ds_request *r, const ds_stream_opts *opts, ds_err *err)
{
    static const respond_proto *const protos[] = {
        [DS_PROTO_CHAT] = &respond_chat,
        [DS_PROTO_RESPONSES] = &respond_responses,
        [DS_PROTO_MESSAGES] = &respond_messages,
        [DS_PROTO_COMPLETIONS] = &respond_completions,
    };
    ds_rc rc;
    ds_stream *s = calloc(1, sizeof *s);

    *out = NULL;
    if (!s)
        return nomem(err);
    s->r = r;
    s->info = ds_request_info(r);
    s->o = *opts;
    s->proto = protos[s->info->proto];
    s->id = strdup(opts->id ? opts->id : "");
    s->model = opts->model ? (ds_str){ opts->model, strlen(opts->model) } : s->info->model;
    s->logprobs = s->info->logprobs || s->info->include_logprobs;
    uint64_t n = (uint64_t)(s->info->n_prompts ? s->info->n_prompts : 1) * (s->info->n ? s->info->n : 1);
    if (n > 1u << 16) {
        rc = ds_fail(err, DS_E_ARG, "stream: %lu choices", n);
        goto fail;
    }
    s->n_choices = (uint32_t)n;
    s->choices = calloc(n, sizeof *s->choices);
    if (!s->id || !s->choices) {
        rc = nomem(err);
        goto fail;
    }
    if (s->info->prompt_logprobs || (s->info->echo_prompt && s->logprobs)) {
        s->scored = calloc(s->info->n_prompts, sizeof *s->scored);
        if (!s->scored) {
            rc = nomem(err);
            goto fail;
        }
    }
    rc = read_schemas(s, err);
    for (uint32_t k = 0; k < n && rc == DS_OK; k++) {
        choice *c = &s->choices[k];
        c->s = s;
        c->index = k;
        rc = make_parser(s, c, err);
        if (rc == DS_OK && s->info->echo_prompt)
            rc = echo_prompt(s, c, err);
        c->chars += code_points(ds_buf_str(&c->echo), c->echo.len);
    }
    if (rc != DS_OK)
        goto fail;
    *out = s;
    return DS_OK;
fail:
    ds_stream_destroy(s);
    return rc;
}

static void free_choice(choice *c)
{
    for (size_t i = 0; i < c->n_items; i++) {
        ds_buf_free(&c->items[i].name);
        ds_buf_free(&c->items[i].text);
        ds_buf_free(&c->items[i].lp);
        free(c->items[i].sealed);
    }
    free(c->items);
    free(c->wait);
    ds_buf_free(&c->lp);
    ds_buf_free(&c->echo);
    ds_buf_free(&c->tokens);
    ds_buf_free(&c->token_logprobs);
    ds_buf_free(&c->top_logprobs);
    ds_buf_free(&c->text_offset);
    ds_parser_destroy(c->parser);
}

void ds_stream_destroy(ds_stream *s)
{
    if (!s)
        return;
    for (uint32_t k = 0; s->choices && k < s->n_choices; k++)
        free_choice(&s->choices[k]);
    for (uint32_t k = 0; s->schemas && k < s->info->n_tools; k++)
        ds_json_free(s->schemas[k].doc);
    for (uint32_t k = 0; s->scored && k < s->info->n_prompts; k++)
        ds_buf_free(&s->scored[k].json);
    free(s->scored);
    free(s->schemas);
    free(s->choices);
    free(s->id);
    free(s->fingerprint);
    ds_buf_free(&s->head);
    ds_buf_free(&s->ev);
    ds_buf_free(&s->out);
    free(s);
}

uint32_t ds_stream_choices(const ds_stream *s)
{
    return s->n_choices;
}

static void begin_choice(choice *c)
{
    if (!c->begun && c->s->o.sink && c->s->proto->begin_choice)
        c->s->proto->begin_choice(c->s, c);
    c->begun = true;
}

static void begin(ds_stream *s)
{
    if (s->begun)
        return;
    s->begun = true;
    if (s->proto->begin)
        s->proto->begin(s);
    for (uint32_t k = 0; k < s->n_choices && !s->scored; k++) /* else each when its prompt is known */
        begin_choice(&s->choices[k]);
}

ds_rc ds_stream_ready(ds_stream *s, uint64_t prompt_tokens, uint64_t cached_tokens, const char *fingerprint, ds_err *err)
{
    s->prompt_tokens = prompt_tokens;
    s->cached_tokens = cached_tokens < prompt_tokens ? cached_tokens : prompt_tokens;
    if (fingerprint && !s->begun) {
        free(s->fingerprint);
        s->fingerprint = strdup(fingerprint);
        s->oom |= !s->fingerprint;
    }
    begin(s);
    return s->oom ? nomem(err) : DS_OK;
}

/* NULL: *rc and err say why. */
static choice *find_choice(ds_stream *s, uint32_t index, ds_rc *rc, ds_err *err)
{
    if (index >= s->n_choices) {
        *rc = ds_fail(err, DS_E_ARG, "stream: choice %u of %u", index, s->n_choices);
        return NULL;
    }
    if (s->choices[index].finished || s->failed) {
        *rc = ds_fail(err, DS_E_ARG, "stream: choice %u has finished", index);
        return NULL;
    }
    begin(s);
    begin_choice(&s->choices[index]);
    if (s->oom) {
        *rc = nomem(err);
        return NULL;
    }
    return &s->choices[index];
}

ds_rc ds_stream_text(ds_stream *s, uint32_t index, const char *text, size_t n, uint32_t n_tokens, ds_err *err)
{
    ds_rc rc = DS_OK;
    choice *c = find_choice(s, index, &rc, err);

    if (!c)
        return rc;
    c->untracked |= n > 0 && n_tokens == 0;
    ds_parser_push(c->parser, text, n, n_tokens);
    flush(c);
    return s->oom ? nomem(err) : DS_OK;
}

ds_rc ds_stream_token(ds_stream *s, uint32_t index, ds_token id, const ds_token_logprob *lp, ds_err *err)
{
    const char *bytes;
    size_t n;
    ds_rc rc = DS_OK;
    choice *c = find_choice(s, index, &rc, err);

    if (!c)
        return rc;
    if (!s->o.tokenizer)
        return ds_fail(err, DS_E_ARG, "stream: token ids need a tokenizer");
    bytes = ds_tokenizer_bytes(s->o.tokenizer, id, &n);
    if (ds_tokenizer_kind(s->o.tokenizer, id) == DS_TOKEN_DROPPED)
        n = 0;
    if (lp && n && s->logprobs && !ds_parser_done(c->parser))
        wait_entry(c, id, lp, n);
    ds_parser_token(c->parser, ds_tokenizer_kind(s->o.tokenizer, id) == DS_TOKEN_CONTROL, n);
    ds_parser_push(c->parser, bytes, n, 1);
    if (s->info->include_stop && c->cur && ds_parser_get_stats(c->parser)->stop >= 0) /* it may end inside its last token */
        take_entries(c, c->cur, 0, UINT64_MAX);
    flush(c);
    return s->oom ? nomem(err) : DS_OK;
}

bool ds_stream_done(const ds_stream *s, uint32_t index)
{
    return index < s->n_choices && (s->choices[index].finished || ds_parser_done(s->choices[index].parser));
}

ds_rc ds_stream_finish(ds_stream *s, uint32_t index, ds_stream_end end, ds_err *err)
{
    static const ds_backend_end ends[] = { DS_BACKEND_STOP, DS_BACKEND_LENGTH, DS_BACKEND_CONTENT_FILTER, DS_BACKEND_NONE };
    ds_rc rc = DS_OK;
    size_t cut;
    choice *c = find_choice(s, index, &rc, err);

    if (!c)
        return rc;
    cut = ds_parser_tail(c->parser);
    c->finish = ds_parser_finish(c->parser, ends[end]);
    if (cut && s->logprobs)
        take_cut_entries(c, ds_parser_position(c->parser) - cut, ds_parser_position(c->parser));
    if (c->cur && (c->finish == DS_FINISH_LENGTH || c->finish == DS_FINISH_CONTENT_FILTER))
        c->cur->complete = false;
    close_item(c);
    c->finished = true;
    s->n_finished++;
    if (s->n_finished == s->n_choices && s->o.keep && !s->oom)
        s->unkept = !s->o.keep(s->o.ctx, s);
    if (s->o.sink && !s->oom)
        s->proto->end(s, c, s->n_finished == s->n_choices);
    return s->oom ? nomem(err) : DS_OK;
}

static ds_rc check_json(const ds_constraint *want, const ds_buf *text, ds_err *err)
{
    ds_json_doc *doc = NULL, *schema = NULL;
    char why[220];
    ds_rc rc = ds_json_parse(&doc, ds_buf_str(text), text->len, NULL, err);

    if (rc != DS_OK)
        return ds_err_prefix(err, rc, "the answer is no JSON: ");
    if (want->kind == DS_CONSTRAINT_JSON_OBJECT) {
        if (!ds_json_is(ds_json_root(doc), DS_JSON_OBJECT))
            rc = ds_fail(err, DS_E_FORMAT, "the answer is no JSON object, but %s", ds_json_type_name(ds_json_root(doc)));
    } else {
        rc = ds_json_parse(&schema, want->text.p, want->text.n, NULL, err);
        if (rc == DS_OK && !ds_schema_matches(ds_json_root(schema), ds_json_root(doc), why, sizeof why))
            rc = ds_fail(err, DS_E_FORMAT, "the answer isn't what the schema asks for: %s", why);
    }
    ds_json_free(schema);
    ds_json_free(doc);
    return rc;
}

ds_rc ds_stream_check(const ds_stream *s, uint32_t index, ds_err *err)
{
    const ds_constraint *want = &s->info->constraint;
    const choice *c = index < s->n_choices ? &s->choices[index] : NULL;
    ds_buf text = { 0 };
    ds_rc rc = DS_OK;

    if (!c || !c->finished)
        return ds_fail(err, DS_E_ARG, "stream: choice %u has not finished", index);
    if (want->kind == DS_CONSTRAINT_NONE || want->kind == DS_CONSTRAINT_LARK || want->kind == DS_CONSTRAINT_EBNF ||
        want->kind == DS_CONSTRAINT_CHOICE || c->finish == DS_FINISH_LENGTH || c->finish == DS_FINISH_STOP_SEQUENCE ||
        c->finish == DS_FINISH_CONTENT_FILTER || c->finish == DS_FINISH_TOOL_CALLS || s->info->start == DS_START_CONTENT_KEEP ||
        s->info->start == DS_START_REASONING_KEEP)
        return DS_OK;
    for (size_t i = 0; i < c->n_items; i++)
        if (c->items[i].kind == ITEM_TEXT)
            ds_buf_put(&text, ds_buf_str(&c->items[i].text), c->items[i].text.len);
    if (text.oom)
        rc = nomem(err);
    else if (want->kind != DS_CONSTRAINT_REGEX)
        rc = check_json(want, &text, err);
    else if (!ds_schema_pattern_matches(want->text, (ds_str){ text.p, text.len }))
        rc = ds_fail(err, DS_E_FORMAT, "the answer doesn't match the pattern");
    ds_buf_free(&text);
    return rc;
}

ds_rc ds_stream_fail(ds_stream *s, const ds_api_error *e, ds_err *err)
{
    if (s->failed || s->n_finished == s->n_choices)
        return ds_fail(err, DS_E_ARG, "stream: has ended");
    s->failed = true;
    for (uint32_t k = 0; k < s->n_choices; k++)
        if (s->choices[k].cur)
            s->choices[k].cur->open = s->choices[k].cur->complete = false;
    if (s->o.sink)
        s->proto->fail(s, e);
    return s->oom ? nomem(err) : DS_OK;
}

const char *ds_stream_finish_reason(const ds_stream *s, uint32_t index)
{
    return index < s->n_choices && s->choices[index].finished ? respond_finish_name(s, &s->choices[index]) : NULL;
}

void ds_stream_get_usage(const ds_stream *s, ds_stream_usage *out)
{
    *out = (ds_stream_usage){ .prompt_tokens = s->prompt_tokens, .cached_tokens = s->cached_tokens, .reasoning_known = true };
    for (uint32_t k = 0; k < s->n_choices; k++) {
        const ds_parser_stats *st = ds_parser_get_stats(s->choices[k].parser);
        out->output_tokens += st->tokens;
        out->reasoning_tokens += st->reasoning_tokens;
        out->reasoning_known &= !s->choices[k].untracked;
    }
    out->reasoning_known &= out->output_tokens > 0;
}

static ds_rc deliver(ds_stream *s, const char **json, size_t *n, ds_err *err)
{
    if (s->out.oom || s->oom)
        return nomem(err);
    *json = ds_buf_str(&s->out);
    *n = s->out.len;
    return DS_OK;
}

ds_rc ds_stream_body(ds_stream *s, const char **json, size_t *n, ds_err *err)
{
    if (s->n_finished < s->n_choices)
        return ds_fail(err, DS_E_ARG, "stream: %u of %u choices have finished", s->n_finished, s->n_choices);
    ds_buf_clear(&s->out);
    s->proto->body(s, &s->out);
    return deliver(s, json, n, err);
}

ds_rc ds_stream_items(ds_stream *s, const char **json, size_t *n, ds_err *err)
{
    ds_buf_clear(&s->out);
    if (s->info->proto == DS_PROTO_RESPONSES)
        respond_output_items(s, &s->out);
    return deliver(s, json, n, err);
}

/* ---- server-sent events ---- */

size_t ds_sse_frame(char *out, size_t cap, const char *event, const char *data, size_t n)
{
    const char *parts[] = { event ? "event: " : "", event ? event : "", event ? "\n" : "", "data: ", data, "\n\n" };
    size_t at = 0;

    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        size_t k = i == 4 ? n : strlen(parts[i]);
        if (at < cap)
            memcpy(out + at, parts[i], k < cap - at ? k : cap - at);
        at += k;
    }
    if (cap)
        out[at < cap ? at : cap - 1] = '\0';
    return at;
}

const char *ds_sse_end(ds_proto proto)
{
    return proto == DS_PROTO_CHAT || proto == DS_PROTO_COMPLETIONS ? "data: [DONE]\n\n" : "";
}
