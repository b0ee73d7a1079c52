/* Chat Completions: chunks and body. (recipe spec 4.3) */
#include "reply/respond_internal.h"

static bool openai_usage(const ds_stream *s)
{
    return s->info->opts.usage_shape == DS_USAGE_OPENAI;
}

/* Up to the delta, which the caller writes. */
static void chunk_begin(ds_stream *s, const choice *c)
{
    respond_chunk_head(s, "chat.completion.chunk");
    ds_buf_puts(&s->ev, "{\"index\":");
    respond_u32(&s->ev, c->index);
    ds_buf_puts(&s->ev, ",\"delta\":");
}

static void chunk_end(ds_stream *s, const char *finish, bool usage)
{
    if (finish)
        ds_buf_printf(&s->ev, ",\"finish_reason\":\"%s\"}]", finish);
    else
        ds_buf_puts(&s->ev, ",\"finish_reason\":null}]");
    if (usage) {
        ds_buf_puts(&s->ev, ",\"usage\":");
        respond_chat_usage(s, &s->ev);
    } else if (s->info->include_usage) {
        ds_buf_puts(&s->ev, ",\"usage\":null");
    }
    ds_buf_putc(&s->ev, '}');
    respond_send(s, NULL);
}

static void begin(ds_stream *s)
{
    for (uint32_t k = 0; k < s->n_choices && s->o.sink; k++) {
        chunk_begin(s, &s->choices[k]);
        ds_buf_puts(&s->ev, s->info->thinking ? "{\"role\":\"assistant\",\"content\":null,\"reasoning_content\":\"\"}"
                                              : "{\"role\":\"assistant\",\"content\":\"\"}");
        ds_buf_puts(&s->ev, ",\"logprobs\":null");
        chunk_end(s, NULL, false);
    }
}

static void open_item(ds_stream *s, choice *c, item *it)
{
    if (it->kind != ITEM_CALL)
        return;
    chunk_begin(s, c);
    if (s->info->legacy_functions) {
        ds_buf_puts(&s->ev, "{\"function_call\":{\"name\":");
        respond_buf(&s->ev, &it->name);
        ds_buf_puts(&s->ev, ",\"arguments\":\"\"}}");
    } else {
        ds_buf_printf(&s->ev, "{\"tool_calls\":[{\"index\":%u,\"id\":", it->call);
        respond_call_id(s, &s->ev, "call", c, it);
        ds_buf_printf(&s->ev, ",\"type\":\"%s\",\"%s\":{\"name\":", it->custom ? "custom" : "function", it->custom ? "custom" : "function");
        respond_buf(&s->ev, &it->name);
        ds_buf_printf(&s->ev, ",\"%s\":\"\"}}]}", it->custom ? "input" : "arguments");
    }
    ds_buf_puts(&s->ev, ",\"logprobs\":null");
    chunk_end(s, NULL, false);
}

static void delta(ds_stream *s, choice *c, item *it, const char *text, size_t n, const char *lp, size_t lp_n)
{
    static const char *const names[] = { [ITEM_REASONING] = "reasoning_content", [ITEM_TEXT] = "content" };

    chunk_begin(s, c);
    switch (it->kind) {
    case ITEM_REASONING:
        ds_buf_puts(&s->ev, "{\"content\":null,\"reasoning_content\":");
        respond_str(&s->ev, text, n);
        ds_buf_putc(&s->ev, '}');
        break;
    case ITEM_TEXT:
        ds_buf_puts(&s->ev, "{\"content\":");
        respond_str(&s->ev, text, n);
        ds_buf_puts(&s->ev, s->info->thinking ? ",\"reasoning_content\":null}" : "}");
        break;
    case ITEM_CALL:
        if (s->info->legacy_functions) {
            ds_buf_puts(&s->ev, "{\"function_call\":{\"arguments\":");
            respond_str(&s->ev, text, n);
            ds_buf_puts(&s->ev, "}}");
            break;
        }
        ds_buf_printf(&s->ev, "{\"tool_calls\":[{\"index\":%u,\"%s\":{\"%s\":", it->call, it->custom ? "custom" : "function",
                      it->custom ? "input" : "arguments");
        respond_str(&s->ev, text, n);
        ds_buf_puts(&s->ev, "}}]}");
        break;
    }
    if (lp_n) {
        ds_buf_printf(&s->ev, ",\"logprobs\":{\"%s\":[", names[it->kind]);
        ds_buf_put(&s->ev, lp, lp_n);
        ds_buf_puts(&s->ev, "]}");
    } else {
        ds_buf_puts(&s->ev, ",\"logprobs\":null");
    }
    chunk_end(s, NULL, false);
}

static void close_item(ds_stream *s, choice *c, item *it)
{
    (void)s, (void)c, (void)it;
}

static void end(ds_stream *s, choice *c, bool last)
{
    chunk_begin(s, c);
    ds_buf_puts(&s->ev, s->info->thinking ? "{\"content\":\"\",\"reasoning_content\":null}" : "{\"content\":\"\"}");
    ds_buf_puts(&s->ev, ",\"logprobs\":null");
    chunk_end(s, respond_finish_name(s, c), last && !openai_usage(s));
    if (!last || !openai_usage(s) || !s->info->include_usage)
        return;
    respond_chunk_head(s, "chat.completion.chunk");
    ds_buf_puts(&s->ev, "],\"usage\":");
    respond_chat_usage(s, &s->ev);
    ds_buf_putc(&s->ev, '}');
    respond_send(s, NULL);
}

static void fail(ds_stream *s, const ds_api_error *e)
{
    char body[2048];
    size_t n = ds_api_error_body(body, sizeof body, e, DS_PROTO_CHAT, true, NULL);

    ds_buf_put(&s->ev, body, n < sizeof body ? n : sizeof body - 1);
    respond_send(s, NULL);
}

/* All text of one kind as one JSON string. */
static void joined(ds_buf *b, const choice *c, item_kind kind)
{
    ds_buf all = { 0 };

    for (size_t i = 0; i < c->n_items; i++)
        if (c->items[i].kind == kind)
            ds_buf_put(&all, ds_buf_str(&c->items[i].text), c->items[i].text.len);
    b->oom |= all.oom;
    respond_buf(b, &all);
    ds_buf_free(&all);
}

static void joined_lp(ds_buf *b, const choice *c, item_kind kind)
{
    bool first = true;

    ds_buf_putc(b, '[');
    for (size_t i = 0; i < c->n_items; i++) {
        if (c->items[i].kind != kind || c->items[i].lp.len == 0)
            continue;
        if (!first)
            ds_buf_putc(b, ',');
        first = false;
        ds_buf_put(b, c->items[i].lp.p, c->items[i].lp.len);
    }
    ds_buf_putc(b, ']');
}

static void calls(ds_stream *s, ds_buf *b, const choice *c)
{
    bool first = true;

    for (size_t i = 0; i < c->n_items; i++) {
        const item *it = &c->items[i];
        if (it->kind != ITEM_CALL)
            continue;
        if (s->info->legacy_functions) {
            ds_buf_puts(b, ",\"function_call\":{\"name\":");
            respond_buf(b, &it->name);
            ds_buf_puts(b, ",\"arguments\":");
            respond_buf(b, &it->text);
            ds_buf_putc(b, '}');
            return;
        }
        ds_buf_puts(b, first ? ",\"tool_calls\":[{\"id\":" : ",{\"id\":");
        first = false;
        respond_call_id(s, b, "call", c, it);
        ds_buf_printf(b, ",\"type\":\"%s\",\"%s\":{\"name\":", it->custom ? "custom" : "function", it->custom ? "custom" : "function");
        respond_buf(b, &it->name);
        ds_buf_printf(b, ",\"%s\":", it->custom ? "input" : "arguments");
        respond_buf(b, &it->text);
        ds_buf_puts(b, "}}");
    }
    if (!first)
        ds_buf_putc(b, ']');
}

static void body(ds_stream *s, ds_buf *b)
{
    respond_head(s, b, "chat.completion");
    for (uint32_t k = 0; k < s->n_choices; k++) {
        const choice *c = &s->choices[k];
        ds_buf_printf(b,
                      k ? ",{\"index\":%u,\"message\":{\"role\":\"assistant\",\"content\":"
                        : "{\"index\":%u,\"message\":{\"role\":\"assistant\",\"content\":",
                      k);
        joined(b, c, ITEM_TEXT);
        if (s->info->thinking) {
            ds_buf_puts(b, ",\"reasoning_content\":");
            joined(b, c, ITEM_REASONING);
        }
        calls(s, b, c);
        if (s->logprobs) {
            ds_buf_puts(b, "},\"logprobs\":{\"content\":");
            joined_lp(b, c, ITEM_TEXT);
            if (s->info->thinking) {
                ds_buf_puts(b, ",\"reasoning_content\":");
                joined_lp(b, c, ITEM_REASONING);
            }
            ds_buf_putc(b, '}');
        } else {
            ds_buf_puts(b, "},\"logprobs\":null");
        }
        ds_buf_printf(b, ",\"finish_reason\":\"%s\"}", respond_finish_name(s, c));
    }
    ds_buf_puts(b, "],\"usage\":");
    respond_chat_usage(s, b);
    respond_prompt_logprobs(s, b, 0);
    ds_buf_putc(b, '}');
}

const respond_proto respond_chat = { begin, NULL, open_item, delta, close_item, end, fail, body };
