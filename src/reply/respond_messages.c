/* Messages: events and body. (recipe spec 4.7) */
#include "reply/respond_internal.h"

static void usage(ds_stream *s, ds_buf *b, bool output)
{
    ds_stream_usage u;

    ds_stream_get_usage(s, &u);
    ds_buf_printf(b, "{\"input_tokens\":%lu,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":%lu,\"output_tokens\":%lu",
                  u.prompt_tokens - u.cached_tokens, u.cached_tokens, output ? u.output_tokens : 0);
    if (output && s->info->thinking && u.reasoning_known)
        ds_buf_printf(b, ",\"output_tokens_details\":{\"thinking_tokens\":%lu}", u.reasoning_tokens);
    ds_buf_puts(b, ",\"service_tier\":\"standard\"}");
}

static void head(ds_stream *s, ds_buf *b)
{
    ds_buf_puts(b, "{\"id\":");
    respond_str(b, s->id, strlen(s->id));
    ds_buf_puts(b, ",\"type\":\"message\",\"role\":\"assistant\",\"model\":");
    respond_str(b, s->model.p, s->model.n);
    ds_buf_puts(b, ",\"content\":[");
}

static void stop(ds_stream *s, ds_buf *b, const choice *c)
{
    static const char *const reasons[] = {
        [DS_FINISH_STOP] = "end_turn",     [DS_FINISH_TOOL_CALLS] = "tool_use",    [DS_FINISH_STOP_SEQUENCE] = "stop_sequence",
        [DS_FINISH_LENGTH] = "max_tokens", [DS_FINISH_CONTENT_FILTER] = "refusal", [DS_FINISH_END_OF_STREAM] = "end_turn",
    };
    ds_str seq = respond_stop(s, c);

    ds_buf_printf(b, "\"stop_reason\":\"%s\",\"stop_sequence\":", reasons[c->finish]);
    if (seq.p)
        respond_str(b, seq.p, seq.n);
    else
        ds_buf_puts(b, "null");
}

static void signature(ds_stream *s, ds_buf *b, const item *it)
{
    if (it->sealed)
        respond_str(b, it->sealed, it->sealed_n);
    else
        respond_str(b, s->id, strlen(s->id));
}

static void open_item(ds_stream *s, choice *c, item *it)
{
    ds_buf_printf(&s->ev, "{\"type\":\"content_block_start\",\"index\":%u,\"content_block\":", it->index);
    switch (it->kind) {
    case ITEM_REASONING:
        ds_buf_puts(&s->ev, "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}}");
        break;
    case ITEM_TEXT:
        ds_buf_puts(&s->ev, "{\"type\":\"text\",\"text\":\"\"}}");
        break;
    case ITEM_CALL:
        ds_buf_puts(&s->ev, "{\"type\":\"tool_use\",\"id\":");
        respond_call_id(s, &s->ev, "toolu", c, it);
        ds_buf_puts(&s->ev, ",\"name\":");
        respond_buf(&s->ev, &it->name);
        ds_buf_puts(&s->ev, ",\"input\":{}}}");
        break;
    }
    respond_send(s, "content_block_start");
    if (!s->pinged) {
        s->pinged = true;
        ds_buf_puts(&s->ev, "{\"type\":\"ping\"}");
        respond_send(s, "ping");
    }
}

static void begin(ds_stream *s)
{
    item *it;

    if (s->o.sink) {
        ds_buf_puts(&s->ev, "{\"type\":\"message_start\",\"message\":");
        head(s, &s->ev);
        ds_buf_puts(&s->ev, "],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":");
        usage(s, &s->ev, false);
        ds_buf_puts(&s->ev, "}}");
        respond_send(s, "message_start");
    }
    if (s->info->start != DS_START_REASONING && s->info->start != DS_START_REASONING_KEEP)
        return;
    it = respond_open(&s->choices[0], ITEM_REASONING); /* clients show that the model thinks from the first moment */
    if (it && s->o.sink)
        open_item(s, &s->choices[0], it);
}

static void delta_begin(ds_stream *s, const item *it, const char *type, const char *key)
{
    ds_buf_printf(&s->ev, "{\"type\":\"content_block_delta\",\"index\":%u,\"delta\":{\"type\":\"%s\",\"%s\":", it->index, type, key);
}

static void delta_end(ds_stream *s)
{
    ds_buf_puts(&s->ev, "}}");
    respond_send(s, "content_block_delta");
}

static void delta(ds_stream *s, choice *c, item *it, const char *text, size_t n, const char *lp, size_t lp_n)
{
    static const char *const names[][2] = {
        [ITEM_REASONING] = { "thinking_delta", "thinking" },
        [ITEM_TEXT] = { "text_delta", "text" },
        [ITEM_CALL] = { "input_json_delta", "partial_json" },
    };

    (void)c, (void)lp, (void)lp_n;
    if (it->kind == ITEM_REASONING && s->info->hide_thinking)
        return;
    delta_begin(s, it, names[it->kind][0], names[it->kind][1]);
    respond_str(&s->ev, text, n);
    delta_end(s);
}

static void close_item(ds_stream *s, choice *c, item *it)
{
    (void)c;
    if (it->kind == ITEM_REASONING) {
        delta_begin(s, it, "signature_delta", "signature");
        signature(s, &s->ev, it);
        delta_end(s);
    }
    ds_buf_printf(&s->ev, "{\"type\":\"content_block_stop\",\"index\":%u}", it->index);
    respond_send(s, "content_block_stop");
}

static void end(ds_stream *s, choice *c, bool last)
{
    (void)last;
    ds_buf_puts(&s->ev, "{\"type\":\"message_delta\",\"delta\":{");
    stop(s, &s->ev, c);
    ds_buf_puts(&s->ev, "},\"usage\":");
    usage(s, &s->ev, true);
    ds_buf_putc(&s->ev, '}');
    respond_send(s, "message_delta");
    ds_buf_puts(&s->ev, "{\"type\":\"message_stop\"}");
    respond_send(s, "message_stop");
}

static void fail(ds_stream *s, const ds_api_error *e)
{
    char body[2048];
    size_t n = ds_api_error_body(body, sizeof body, e, DS_PROTO_MESSAGES, false, NULL);

    ds_buf_put(&s->ev, body, n < sizeof body ? n : sizeof body - 1);
    respond_send(s, "error");
}

static void body(ds_stream *s, ds_buf *b)
{
    const choice *c = &s->choices[0];

    head(s, b);
    for (size_t i = 0; i < c->n_items; i++) {
        const item *it = &c->items[i];
        if (i)
            ds_buf_putc(b, ',');
        switch (it->kind) {
        case ITEM_REASONING:
            ds_buf_puts(b, "{\"type\":\"thinking\",\"thinking\":");
            respond_str(b, ds_buf_str(&it->text), s->info->hide_thinking ? 0 : it->text.len);
            ds_buf_puts(b, ",\"signature\":");
            signature(s, b, it);
            break;
        case ITEM_TEXT:
            ds_buf_puts(b, "{\"type\":\"text\",\"text\":");
            respond_buf(b, &it->text);
            break;
        case ITEM_CALL:
            ds_buf_puts(b, "{\"type\":\"tool_use\",\"id\":");
            respond_call_id(s, b, "toolu", c, it);
            ds_buf_puts(b, ",\"name\":");
            respond_buf(b, &it->name);
            ds_buf_puts(b, ",\"input\":");
            respond_input(s, b, it);
            break;
        }
        ds_buf_putc(b, '}');
    }
    ds_buf_puts(b, "],");
    stop(s, b, c);
    ds_buf_puts(b, ",\"usage\":");
    usage(s, b, true);
    ds_buf_putc(b, '}');
}

const respond_proto respond_messages = { begin, NULL, open_item, delta, close_item, end, fail, body };
