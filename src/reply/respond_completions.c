/* Legacy completions and fill-in-the-middle: chunks and body. (recipe spec 4.8, http contract) */
#include "reply/respond_internal.h"

/* The entries of the lists between the marks, or null when there are none. */
static void logprobs(ds_buf *b, const choice *c, const size_t from[4])
{
    static const char *const names[] = { "tokens", "token_logprobs", "top_logprobs", "text_offset" };
    const ds_buf *const lists[] = { &c->tokens, &c->token_logprobs, &c->top_logprobs, &c->text_offset };

    if (c->tokens.len == from[0]) {
        ds_buf_puts(b, ",\"logprobs\":null");
        return;
    }
    ds_buf_puts(b, ",\"logprobs\":{");
    for (size_t i = 0; i < 4; i++) {
        size_t at = from[i] + (from[i] > 0); /* without the comma */
        ds_buf_printf(b, i ? ",\"%s\":[" : "\"%s\":[", names[i]);
        ds_buf_put(b, lists[i]->p + at, lists[i]->len - at);
        ds_buf_putc(b, ']');
    }
    ds_buf_putc(b, '}');
}

static void chunk(ds_stream *s, choice *c, const char *text, size_t n, const char *finish, bool usage)
{
    respond_chunk_head(s, "text_completion");
    ds_buf_puts(&s->ev, "{\"text\":");
    respond_str(&s->ev, text, n);
    ds_buf_puts(&s->ev, ",\"index\":");
    respond_u32(&s->ev, c->index);
    logprobs(&s->ev, c, c->lp_sent);
    c->lp_sent[0] = c->tokens.len;
    c->lp_sent[1] = c->token_logprobs.len;
    c->lp_sent[2] = c->top_logprobs.len;
    c->lp_sent[3] = c->text_offset.len;
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

/* The prompt, if it is repeated, with the log-probabilities of its tokens. */
static void begin_choice(ds_stream *s, choice *c)
{
    if (c->echo.len)
        chunk(s, c, c->echo.p, c->echo.len, NULL, false);
}

static void open_item(ds_stream *s, choice *c, item *it)
{
    (void)s, (void)c, (void)it;
}

static void delta(ds_stream *s, choice *c, item *it, const char *text, size_t n, const char *lp, size_t lp_n)
{
    (void)it, (void)lp, (void)lp_n;
    chunk(s, c, text, n, NULL, false);
}

static void end(ds_stream *s, choice *c, bool last)
{
    bool openai = s->info->opts.usage_shape == DS_USAGE_OPENAI;

    chunk(s, c, "", 0, respond_finish_name(s, c), last && !openai);
    if (!last || !openai || !s->info->include_usage)
        return;
    respond_chunk_head(s, "text_completion");
    ds_buf_puts(&s->ev, "],\"usage\":");
    respond_chat_usage(s, &s->ev);
    ds_buf_putc(&s->ev, '}');
    respond_send(s, NULL);
}

static void body(ds_stream *s, ds_buf *b)
{
    static const size_t start[4];

    respond_head(s, b, "text_completion");
    for (uint32_t k = 0; k < s->n_choices; k++) {
        const choice *c = &s->choices[k];
        ds_buf all = { 0 };
        ds_buf_put(&all, ds_buf_str(&c->echo), c->echo.len);
        for (size_t i = 0; i < c->n_items; i++)
            ds_buf_put(&all, ds_buf_str(&c->items[i].text), c->items[i].text.len);
        b->oom |= all.oom;
        ds_buf_puts(b, k ? ",{\"text\":" : "{\"text\":");
        respond_buf(b, &all);
        ds_buf_printf(b, ",\"index\":%u", k);
        logprobs(b, c, start);
        respond_prompt_logprobs(s, b, k / s->info->n);
        ds_buf_printf(b, ",\"finish_reason\":\"%s\"}", respond_finish_name(s, c));
        ds_buf_free(&all);
    }
    ds_buf_puts(b, "],\"usage\":");
    respond_chat_usage(s, b);
    ds_buf_putc(b, '}');
}

static void fail(ds_stream *s, const ds_api_error *e)
{
    respond_chat.fail(s, e);
}

const respond_proto respond_completions = { NULL, begin_choice, open_item, delta, open_item, end, fail, body };
