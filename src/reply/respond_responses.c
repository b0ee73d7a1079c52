/* Responses: events, items and the response object. (recipe spec 4.5) */
#include "base/str.h"
#include "reply/respond_internal.h"

/* ---- ids ---- */

static const char *prefix(const item *it)
{
    switch (it->kind) {
    case ITEM_REASONING:
        return "rs";
    case ITEM_TEXT:
        return "msg";
    default:
        return it->custom ? "ctc" : "fc";
    }
}

static void item_id(ds_stream *s, ds_buf *b, const item *it)
{
    ds_buf id = { 0 };

    ds_buf_printf(&id, "%s_%s_%u", prefix(it), s->id, it->index);
    b->oom |= id.oom;
    respond_buf(b, &id);
    ds_buf_free(&id);
}

/* ---- items ---- */

static const char *status(const item *it)
{
    return it->open ? "in_progress" : it->complete ? "completed" : "incomplete";
}

/* The name as the client knows it: a tool of a namespace has two parts, of which the events about arguments repeat
 * the last only. */
static void call_name(ds_buf *b, const item *it, bool with_namespace)
{
    ds_str name = { ds_buf_str(&it->name), it->name.len }, ns = { 0 };
    const char *sep = it->tool ? NULL : memmem(name.p, name.n, "::", 2);

    if (it->tool && it->tool->ns.p) {
        name = it->tool->fn;
        ns = it->tool->ns;
    } else if (sep) {
        ns = (ds_str){ name.p, (size_t)(sep - name.p) };
        name = (ds_str){ sep + 2, name.n - ns.n - 2 };
    }
    ds_buf_puts(b, "\"name\":");
    respond_str(b, name.p, name.n);
    if (ns.p && with_namespace) {
        ds_buf_puts(b, ",\"namespace\":");
        respond_str(b, ns.p, ns.n);
    }
}

static void logprobs(ds_buf *b, const item *it)
{
    ds_buf_puts(b, "\"logprobs\":[");
    ds_buf_put(b, ds_buf_str(&it->lp), it->lp.len);
    ds_buf_putc(b, ']');
}

/* A part of a reasoning or message item, empty or with its text. */
static void part(ds_buf *b, const item *it, bool full)
{
    if (it->kind == ITEM_REASONING) {
        ds_buf_puts(b, "{\"type\":\"reasoning_text\",\"text\":");
    } else {
        ds_buf_puts(b, "{\"type\":\"output_text\",\"annotations\":[],");
        if (full)
            logprobs(b, it);
        else
            ds_buf_puts(b, "\"logprobs\":[]");
        ds_buf_puts(b, ",\"text\":");
    }
    if (full)
        respond_buf(b, &it->text);
    else
        ds_buf_puts(b, "\"\"");
    ds_buf_putc(b, '}');
}

/* full: with its text; otherwise as it is when it has just been opened. */
static void put_item(ds_stream *s, ds_buf *b, const item *it, bool full)
{
    static const char *const types[] = { [ITEM_REASONING] = "reasoning", [ITEM_TEXT] = "message", [ITEM_CALL] = "function_call" };

    ds_buf_printf(b, "{\"type\":\"%s\",\"id\":", it->custom ? "custom_tool_call" : types[it->kind]);
    item_id(s, b, it);
    ds_buf_printf(b, ",\"status\":\"%s\",", status(it));
    switch (it->kind) {
    case ITEM_REASONING:
        ds_buf_puts(b, "\"summary\":[],\"content\":[");
        if (full)
            part(b, it, true);
        ds_buf_putc(b, ']');
        if (it->sealed) {
            ds_buf_puts(b, ",\"encrypted_content\":");
            respond_str(b, it->sealed, it->sealed_n);
        }
        break;
    case ITEM_TEXT:
        ds_buf_puts(b, "\"role\":\"assistant\",");
        if (full)
            ds_buf_printf(b, "\"phase\":\"%s\",", it->call_follows ? "commentary" : "final_answer");
        ds_buf_puts(b, "\"content\":[");
        if (full)
            part(b, it, true);
        ds_buf_putc(b, ']');
        break;
    case ITEM_CALL:
        ds_buf_puts(b, "\"call_id\":");
        respond_call_id(s, b, "call", &s->choices[0], it);
        ds_buf_putc(b, ',');
        call_name(b, it, true);
        ds_buf_puts(b, it->custom ? ",\"input\":" : ",\"arguments\":");
        if (full)
            respond_buf(b, &it->text);
        else
            ds_buf_puts(b, "\"\"");
        break;
    }
    ds_buf_putc(b, '}');
}

void respond_output_items(ds_stream *s, ds_buf *b)
{
    const choice *c = &s->choices[0];

    for (size_t i = 0; i < c->n_items; i++) {
        if (i)
            ds_buf_putc(b, ',');
        put_item(s, b, &c->items[i], true);
    }
}

/* ---- the response object ---- */

static void usage(ds_stream *s, ds_buf *b)
{
    ds_stream_usage u;

    ds_stream_get_usage(s, &u);
    ds_buf_printf(b,
                  "{\"input_tokens\":%lu,\"input_tokens_details\":{\"cached_tokens\":%lu},\"output_tokens\":%lu,\"output_tokens_details\":{"
                  "\"reasoning_tokens\":%lu},"
                  "\"total_tokens\":%lu}",
                  u.prompt_tokens, u.cached_tokens, u.output_tokens, u.reasoning_tokens, u.prompt_tokens + u.output_tokens);
}

static const char *incomplete_reason(const ds_stream *s)
{
    const choice *c = &s->choices[0];

    if (!c->finished)
        return NULL;
    return c->finish == DS_FINISH_LENGTH ? "max_output_tokens" : c->finish == DS_FINISH_CONTENT_FILTER ? "content_filter" : NULL;
}

static void response(ds_stream *s, ds_buf *b, const ds_api_error *e)
{
    const choice *c = &s->choices[0];
    const char *why = incomplete_reason(s);
    bool completed = c->finished && !e;

    ds_buf_puts(b, "{\"id\":");
    respond_str(b, s->id, strlen(s->id));
    ds_buf_printf(b, ",\"object\":\"response\",\"created_at\":%ld,\"model\":", (long)s->o.created);
    respond_str(b, s->model.p, s->model.n);
    ds_buf_printf(b, ",\"status\":\"%s\",\"completed_at\":",
                  e              ? "failed"
                  : !c->finished ? "in_progress"
                  : why          ? "incomplete"
                                 : "completed");
    if (completed)
        ds_buf_printf(b, "%ld", (long)(s->o.now ? s->o.now() : s->o.created));
    else
        ds_buf_puts(b, "null");
    if (e) {
        ds_buf_puts(b, ",\"error\":{\"code\":");
        respond_str(b,
                    e->code   ? e->code
                    : e->type ? e->type
                              : "server_error",
                    strlen(e->code   ? e->code
                           : e->type ? e->type
                                     : "server_error"));
        ds_buf_puts(b, ",\"message\":");
        respond_str(b, e->message, strlen(e->message));
        ds_buf_puts(b, "}");
    } else {
        ds_buf_puts(b, ",\"error\":null");
    }
    if (why)
        ds_buf_printf(b, ",\"incomplete_details\":{\"reason\":\"%s\"}", why);
    else
        ds_buf_puts(b, ",\"incomplete_details\":null");
    ds_buf_puts(b, ",\"output\":[");
    if (c->finished || e)
        respond_output_items(s, b);
    ds_buf_puts(b, "],\"usage\":");
    if (c->finished)
        usage(s, b);
    else
        ds_buf_puts(b, "null");
    for (uint32_t i = 0; i < s->info->n_echo; i++) {
        const ds_echo *echo = &s->info->echo[i];
        ds_buf_putc(b, ',');
        respond_str(b, echo->name.p, echo->name.n);
        ds_buf_putc(b, ':');
        if (s->unkept && ds_str_is(echo->name, "store"))
            ds_buf_puts(b, "false");
        else
            ds_buf_put(b, echo->json.p, echo->json.n);
    }
    ds_buf_putc(b, '}');
}

/* ---- events ---- */

static void event(ds_stream *s, const char *type)
{
    ds_buf_printf(&s->ev, "{\"type\":\"%s\",\"sequence_number\":%lu", type, s->sequence++);
}

static void send(ds_stream *s, const char *type)
{
    ds_buf_putc(&s->ev, '}');
    respond_send(s, type);
}

static void response_event(ds_stream *s, const char *type, const ds_api_error *e)
{
    event(s, type);
    ds_buf_puts(&s->ev, ",\"response\":");
    response(s, &s->ev, e);
    send(s, type);
}

/* An event about a part of an item. */
static void item_event(ds_stream *s, const char *type, const item *it)
{
    event(s, type);
    ds_buf_puts(&s->ev, ",\"item_id\":");
    item_id(s, &s->ev, it);
    ds_buf_printf(&s->ev, ",\"output_index\":%u", it->index);
    if (it->kind != ITEM_CALL)
        ds_buf_puts(&s->ev, ",\"content_index\":0");
}

static void whole_item_event(ds_stream *s, const char *type, const item *it, bool full)
{
    event(s, type);
    ds_buf_printf(&s->ev, ",\"output_index\":%u,\"item\":", it->index);
    put_item(s, &s->ev, it, full);
    send(s, type);
}

static void begin(ds_stream *s)
{
    if (!s->o.sink)
        return;
    response_event(s, "response.created", NULL);
    response_event(s, "response.in_progress", NULL);
}

static void open_item(ds_stream *s, choice *c, item *it)
{
    (void)c;
    whole_item_event(s, "response.output_item.added", it, false);
    if (it->kind == ITEM_CALL)
        return;
    item_event(s, "response.content_part.added", it);
    ds_buf_puts(&s->ev, ",\"part\":");
    part(&s->ev, it, false);
    send(s, "response.content_part.added");
}

static void delta(ds_stream *s, choice *c, item *it, const char *text, size_t n, const char *lp, size_t lp_n)
{
    const char *type = it->kind == ITEM_REASONING ? "response.reasoning_text.delta"
                       : it->kind == ITEM_TEXT    ? "response.output_text.delta"
                       : it->custom               ? "response.custom_tool_call_input.delta"
                                                  : "response.function_call_arguments.delta";

    (void)c;
    item_event(s, type, it);
    ds_buf_puts(&s->ev, ",\"delta\":");
    respond_str(&s->ev, text, n);
    if (it->kind == ITEM_TEXT) {
        ds_buf_puts(&s->ev, ",\"logprobs\":[");
        ds_buf_put(&s->ev, lp_n ? lp : "", lp_n);
        ds_buf_putc(&s->ev, ']');
    }
    send(s, type);
}

static void close_item(ds_stream *s, choice *c, item *it)
{
    const char *type = it->kind == ITEM_REASONING ? "response.reasoning_text.done"
                       : it->kind == ITEM_TEXT    ? "response.output_text.done"
                       : it->custom               ? "response.custom_tool_call_input.done"
                                                  : "response.function_call_arguments.done";

    (void)c;
    item_event(s, type, it);
    ds_buf_puts(&s->ev, it->kind != ITEM_CALL ? ",\"text\":" : it->custom ? ",\"input\":" : ",\"arguments\":");
    respond_buf(&s->ev, &it->text);
    if (it->kind == ITEM_TEXT) {
        ds_buf_putc(&s->ev, ',');
        logprobs(&s->ev, it);
    } else if (it->kind == ITEM_CALL && !it->custom) {
        ds_buf_putc(&s->ev, ',');
        call_name(&s->ev, it, false);
    }
    send(s, type);
    if (it->kind != ITEM_CALL) {
        item_event(s, "response.content_part.done", it);
        ds_buf_puts(&s->ev, ",\"part\":");
        part(&s->ev, it, true);
        send(s, "response.content_part.done");
    }
    whole_item_event(s, "response.output_item.done", it, true);
}

static void end(ds_stream *s, choice *c, bool last)
{
    (void)c, (void)last;
    response_event(s, incomplete_reason(s) ? "response.incomplete" : "response.completed", NULL);
}

static void fail(ds_stream *s, const ds_api_error *e)
{
    response_event(s, "response.failed", e);
}

static void body(ds_stream *s, ds_buf *b)
{
    response(s, b, NULL);
}

const respond_proto respond_responses = { begin, NULL, open_item, delta, close_item, end, fail, body };
