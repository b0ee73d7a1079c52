/* A call's life in the loop: from a complete body to the generator's last event.
 *
 *   start -> (worker) -> prepared -> begun: its prompts are with the generator -> events … -> every choice finished:
 *   the response is complete
 * A client that leaves makes it an orphan: x is NULL, the generator was told, and the call lives until its last
 * event for it was polled. */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/rand.h>

#include "base/clock.h"
#include "recipe/seal.h"
#include "server/server_internal.h"

#define JSON "application/json"

void ds_call_free(ds_call *c)
{
    ds_server *s = c->s;

    assert(!c->preparing && c->live == 0 && s->n_calls > 0);
    if (c->x)
        c->x->call = NULL;
    ds_stream_destroy(c->stream);
    ds_request_destroy(c->req);
    for (uint32_t i = 0; i < c->n_prompts && c->prompts; i++) {
        ds_ids_free(&c->prompts[i].ids);
        ds_constrained_end(c->prompts[i].constrained);
    }
    for (uint32_t i = 0; i < c->n_pictures; i++) {
        ds_picture_free(&c->pictures[i]);
        if (c->images)
            free((void *)c->images[i].embedding);
    }
    free(c->pictures);
    free(c->images);
    free(c->prompts);
    free(c->choices);
    ds_bad_words_free(&c->bad_words);
    ds_buf_free(&c->body);
    s->n_calls--;
    free(c);
}

/* The key's account is settled when the answer is over or the client is gone. */
static void leave_key(ds_call *c, ds_exchange *x)
{
    if (x->key)
        ds_auth_leave(x->key, c->n_prompt_tokens + c->n_output, ds_now_us());
    x->key = NULL;
}

/* Parts from the client's exchange; the call lives on while the generator has something of it. */
static void detach(ds_call *c)
{
    ds_exchange *x = c->x;

    if (!x)
        return;
    x->prompt_tokens = c->n_prompt_tokens;
    x->cached_tokens = c->n_cached;
    x->output_tokens = c->n_output;
    x->first_us = c->first_us;
    x->prepared_us = c->prepared_us;
    x->queued_us = c->queued_us;
    x->begun_us = c->begun_us;
    if (!c->completed && c->info && !c->info->stream) /* a stream's tokens were handed over one by one */
        c->s->m.lost_tokens[c->lost_why] += c->n_output;
    leave_key(c, x);
    x->call = NULL;
    c->x = NULL;
}

/* How an accepted request ended; the first reason counts. */
static void settle(ds_call *c, ds_finished how)
{
    if (!c->accepted || c->settled)
        return;
    c->settled = true;
    c->s->m.ended[how]++;
}

static void cancel(ds_call *c)
{
    for (uint32_t i = 0; i < c->n_prompts; i++)
        if (c->prompts[i].live)
            ds_gen_cancel(c->s->model.gen, c->prompts[i].gen_id);
    if (!c->canceled_us)
        c->canceled_us = c->s->now_us;
}

void ds_call_abandon(ds_call *c)
{
    settle(c, DS_FINISHED_ABORT);
    detach(c);
    if (c->preparing) /* freed when it comes back */
        return;
    if (c->live)
        cancel(c);
    else
        ds_call_free(c);
}

/* ---- failures ---- */

static ds_refused refused_by(const ds_api_error *e)
{
    switch (e->status) {
    case 404:
        return DS_REFUSED_NOT_FOUND;
    case 429:
    case 529:
        return DS_REFUSED_QUEUE_FULL;
    case 503:
        return DS_REFUSED_UNAVAILABLE;
    default:
        return e->status >= 500 ? DS_REFUSED_INTERNAL : DS_REFUSED_INVALID;
    }
}

/* The call is refused or failed as a whole: an error response, or where the stream has begun its error event. */
static void fail(ds_call *c, const ds_api_error *e)
{
    ds_exchange *x = c->x;
    ds_err err;

    c->failed = true;
    settle(c, DS_FINISHED_ERROR);
    if (x && (x->replied || x->stream)) {
        ds_stream_fail(c->stream, e, &err);
        x->why = e->code;
        x = c->x; /* the client may have been given up meanwhile */
        if (x)
            ds_out_end(x);
    } else if (x) {
        ds_reply_error(x, e, c->accepted ? DS_N_REFUSED : refused_by(e));
    }
    ds_call_abandon(c);
}

static void fail_with(ds_call *c, int status, const char *code, const char *message)
{
    ds_api_error e;
    ds_api_fail(&e, status, NULL, code, NULL, "%s", message);
    fail(c, &e);
}

void ds_call_shut_down(ds_call *c)
{
    assert(c->x && !c->failed);
    c->x->retry_s = 5;
    fail_with(c, 503, NULL, "the server is shutting down");
}

/* ---- results without a generation ---- */

static void reply_count(ds_call *c)
{
    ds_buf b = { 0 };

    if (c->kind == DS_CALL_COUNT) {
        ds_buf_printf(&b,
                      c->proto == DS_PROTO_RESPONSES ? "{\"object\":\"response.input_tokens\",\"input_tokens\":%" PRIu64 "}"
                                                     : "{\"input_tokens\":%" PRIu64 "}",
                      c->n_prompt_tokens);
    } else {
        ds_buf_printf(&b, "{\"count\":%" PRIu64 ",\"max_model_len\":%u,\"tokens\":[", c->n_prompt_tokens, c->s->model.max_context);
        for (size_t i = 0; i < c->prompts[0].ids.n; i++)
            ds_buf_printf(&b, i ? ",%u" : "%u", c->prompts[0].ids.p[i]);
        ds_buf_puts(&b, "]}");
    }
    ds_reply(c->x, 200, JSON, &b);
    ds_call_abandon(c);
}

/* ---- to the generator ---- */

static ds_rc add_prompt(ds_call *c, uint32_t i, const ds_sampling *sampling, uint64_t tag, ds_err *err)
{
    const ds_server_model *m = &c->s->model;
    ds_gen_room room;
    ds_gen_request q = ds_gen_request_of(c->info,
                                         &(ds_gen_beside){ .prompt = i,
                                                           .ids = c->prompts[i].ids.p,
                                                           .n_ids = c->prompts[i].ids.n,
                                                           .max_tokens = c->prompts[i].max_tokens,
                                                           .sampling = *sampling,
                                                           .stop_ids = m->stop_ids,
                                                           .n_stop_ids = m->n_stop_ids,
                                                           .bad = c->bad_words.list,
                                                           .n_bad = c->bad_words.n,
                                                           .images = c->images,
                                                           .n_images = c->n_pictures },
                                         &room);
    ds_rc rc;

    q.deadline_us = c->s->o.request_ms * 1000;
    q.cache_domain = c->keyed ? c->tenant : NULL;
    q.grammar = c->prompts[i].constrained ? ds_constrained_grammar(c->prompts[i].constrained) : NULL;
    q.cookie = (uintptr_t)c;
    q.tag = tag;
    rc = ds_gen_add(m->gen, &q, &c->prompts[i].gen_id, err);

    if (rc == DS_OK) {
        c->prompts[i].live = true;
        c->live++;
    }
    return rc;
}

static void refuse_add(ds_call *c, ds_rc rc, const ds_err *err)
{
    if (rc == DS_E_AGAIN) {
        c->x->retry_s = 1;
        fail_with(c, c->proto == DS_PROTO_MESSAGES ? 529 : 429, c->proto == DS_PROTO_MESSAGES ? NULL : "rate_limit_exceeded",
                  "the queue is full; try again in 1s");
    } else if (rc == DS_E_ARG) {
        fail_with(c, 400, NULL, err->msg);
    } else if (rc == DS_E_IO || rc == DS_E_DEVICE) {
        c->x->retry_s = 1;
        fail_with(c, 503, NULL, "no engine is there to compute this; try again in 1s");
    } else {
        ds_logf(c->s->o.log, DS_LOG_ERROR, "generator id=%s message=\"%s\"", c->id, err->msg);
        c->x->retry_s = 1;
        fail_with(c, 503, NULL, "the server is out of memory");
    }
}

static void begin(ds_call *c)
{
    ds_server *s = c->s;
    ds_sampling sampling = DS_SAMPLING_DEFAULT;
    uint64_t tag = 0;
    ds_err err = { 0 };
    ds_rc rc = DS_OK;

    if (!c->info->sampling.seeded && RAND_bytes((unsigned char *)&sampling.seed, sizeof sampling.seed) != 1)
        sampling.seed = ds_now_ns();
    if (s->o.tag)
        tag = s->o.tag(s->o.ctx, ds_buf_str(&c->body), c->body.len);
    for (uint32_t i = 0; i < c->n_prompts && rc == DS_OK; i++)
        rc = add_prompt(c, i, &sampling, tag, &err);
    if (rc != DS_OK) {
        refuse_add(c, rc, &err);
        return;
    }
    c->accepted = true;
    s->m.accepted++;
    ds_histogram_tokens(&s->m.prompt_size, (double)c->n_prompt_tokens);
    if (c->info->stream)
        ds_reply_stream(c->x);
}

void ds_call_prepared(ds_call *c)
{
    c->preparing = false;
    ds_histogram_seconds(&c->s->m.prepare, (double)(c->prepared_us - c->start_us) / 1e6);
    if (!c->x) {
        ds_call_free(c);
    } else if (c->rc != DS_OK) {
        if (c->refusal.status == 503)
            c->x->retry_s = 1;
        fail(c, &c->refusal);
    } else if (c->kind != DS_CALL_GENERATE) {
        reply_count(c);
    } else if (c->s->draining || !c->s->up) {
        ds_call_shut_down(c);
    } else {
        begin(c);
    }
}

/* ---- start ---- */

static bool enter_key(ds_exchange *x)
{
    static const char *const what[] = { "", "too many requests a second for this key", "too many requests at a time for this key",
                                        "the key's tokens of this minute are used up" };
    ds_quota q = ds_auth_enter(x->key, ds_now_us(), &x->retry_s);
    ds_api_error e;

    if (q == DS_QUOTA_OK) {
        x->retry_s = 0;
        return true;
    }
    x->key = NULL;
    ds_api_fail(&e, 429, NULL, NULL, NULL, "%s; try again in %us", what[q], x->retry_s);
    ds_reply_error(x, &e, DS_REFUSED_QUOTA);
    return false;
}

static bool has_word(const ds_call *c, const char *word)
{
    return memmem(ds_buf_str(&c->body), c->body.len, word, strlen(word)) != NULL;
}

/* Compiling a grammar may take as long as its bounds allow. */
static bool may_be_constrained(const ds_call *c)
{
    static const char *const words[] = { "schema\"",        "\"json_object\"", "\"regex\"",  "\"guided_", "\"structured_outputs\"",
                                         "\"tool_choice\"", "\"strict\"",      "\"grammar\"" };

    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (has_word(c, words[i]))
            return true;
    return false;
}

void ds_call_start(ds_exchange *x, ds_call_kind kind)
{
    static const char *const prefix[] = { "chatcmpl-", "resp_", "msg_", "cmpl-" };
    ds_server *s = x->s;
    ds_call *c;

    if (x->key && kind == DS_CALL_GENERATE) {
        if (!enter_key(x))
            return;
    } else {
        x->key = NULL;
    }
    c = calloc(1, sizeof *c);
    if (!c) {
        ds_api_error e;
        if (x->key)
            ds_auth_leave(x->key, 0, ds_now_us());
        x->key = NULL;
        ds_api_fail(&e, 503, NULL, NULL, NULL, "the server is out of memory");
        ds_reply_error(x, &e, DS_REFUSED_UNAVAILABLE);
        return;
    }
    c->s = s;
    c->x = x;
    x->call = c;
    c->kind = kind;
    c->proto = x->proto;
    c->keyed = x->keyed;
    strcpy(c->tenant, x->tenant);
    ds_server_make_id(s, c->id, sizeof c->id, prefix[x->proto]);
    c->created = ds_server_wall(s);
    c->start_us = x->body_us;
    c->body = x->body;
    x->body = (ds_buf){ 0 };
    c->preparing = true;
    s->n_calls++;
    if (kind == DS_CALL_TOKENIZE && !has_word(c, "\"messages\""))
        c->proto = DS_PROTO_COMPLETIONS;
    /* What takes long, or waits for a disk or for other servers, isn't for this thread. */
    if (c->body.len >= s->o.worker_body || has_word(c, "\"previous_response_id\"") || has_word(c, "image") || may_be_constrained(c)) {
        s->m.preparing++;
        ds_workers_give(s, c);
        return;
    }
    ds_call_prepare(c, &s->kit);
    ds_call_prepared(c);
}

/* ---- the generator's events ---- */

static ds_call_prompt *prompt_of(ds_call *c, uint64_t id, uint32_t *i)
{
    for (*i = 0; *i < c->n_prompts; ++*i)
        if (c->prompts[*i].gen_id == id)
            return &c->prompts[*i];
    return NULL;
}

static void on_start(ds_call *c, ds_call_prompt *p, const ds_event *ev)
{
    ds_err err;

    if (p->begun)
        return;
    p->begun = true;
    if (!c->begun_us) {
        c->begun_us = c->s->now_us;
        c->queued_us = ev->start.queued_us;
    }
    c->n_cached += ev->start.cached;
    ds_histogram_seconds(&c->s->m.queue, (double)ev->start.queued_us / 1e6);
    if (c->failed || !c->x)
        return;
    if (ds_stream_wants_prompt(c->stream) &&
        ds_stream_prompt_token(c->stream, (uint32_t)(p - c->prompts), p->ids.p[0], NULL, 0, &err) != DS_OK) {
        fail_with(c, 500, NULL, "the server is out of memory");
        return;
    }
    if (ds_stream_ready(c->stream, c->n_prompt_tokens, c->n_cached, c->s->model.fingerprint, &err) != DS_OK)
        fail_with(c, 500, NULL, "the server is out of memory");
}

/* The response is complete but for sending it: what is stored is stored before the client can ask for it. A store
 * that fails doesn't fail the answer; it then says that it isn't stored. */
bool ds_call_keep(void *ctx, ds_stream *stream)
{
    ds_call *c = ctx;
    ds_str input = { 0 };
    const char *output, *body;
    size_t output_n, body_n;
    ds_buf items = { 0 };
    ds_err err = { 0 };
    ds_rc rc = ds_request_items(c->req, &input, &err);

    if (rc == DS_OK)
        rc = ds_stream_items(stream, &output, &output_n, &err);
    if (rc == DS_OK) {
        ds_buf_puts(&items, "{\"items\":[");
        ds_buf_put(&items, input.p, input.n);
        if (input.n && output_n)
            ds_buf_putc(&items, ',');
        ds_buf_put(&items, output, output_n);
        ds_buf_puts(&items, "]}");
        rc = items.oom ? ds_fail(&err, DS_E_NOMEM, "out of memory") : ds_stream_body(stream, &body, &body_n, &err);
    }
    if (rc == DS_OK)
        rc = ds_store_put(c->s->store,
                          &(ds_store_record){ .tenant = c->tenant,
                                              .id = c->id,
                                              .body = body,
                                              .items = items.p,
                                              .body_n = body_n,
                                              .items_n = items.len,
                                              .n_input_bytes = input.n,
                                              .now_s = ds_server_wall(c->s) },
                          &err);
    if (rc != DS_OK)
        ds_logf(c->s->o.log, DS_LOG_ERROR, "store id=%s message=\"%s\"", c->id, err.msg);
    c->s->m.store_failed += rc != DS_OK;
    ds_buf_free(&items);
    return rc == DS_OK;
}

static ds_finished finished_by(const char *reason)
{
    if (reason && strcmp(reason, "length") == 0)
        return DS_FINISHED_LENGTH;
    return reason && strcmp(reason, "stop") != 0 ? DS_FINISHED_TOOLS : DS_FINISHED_STOP;
}

/* The client has its answer, as far as this server can know. */
static void succeed(ds_call *c)
{
    ds_metrics *m = &c->s->m;
    uint64_t now = ds_now_us();

    settle(c, finished_by(ds_stream_finish_reason(c->stream, 0)));
    ds_histogram_seconds(&m->e2e, (double)(now - c->start_us) / 1e6);
    ds_histogram_tokens(&m->output_size, (double)c->n_output);
    if (c->first_us && c->n_output > 1)
        ds_histogram_seconds(&m->tpot, (double)(now - c->first_us) / 1e6 / (double)(c->n_output - 1));
    detach(c);
}

static void complete(ds_call *c)
{
    ds_exchange *x = c->x;
    ds_server *s = c->s;
    const char *end = ds_sse_end(c->proto), *json, *reason = ds_stream_finish_reason(c->stream, 0);
    ds_buf body = { 0 };
    ds_err err = { 0 };
    size_t n;

    x->finish = reason ? reason : "none";
    if (x->stream) {
        n = strlen(end);
        char *to = n ? ds_out_reserve(x, n) : NULL;
        if (to) {
            memcpy(to, end, n);
            ds_out_put(x, n);
        }
        if (c->x)
            ds_out_end(x);
    } else if (ds_stream_body(c->stream, &json, &n, &err) == DS_OK) {
        ds_buf_put(&body, json, n);
        s->m.generated_tokens += c->n_output;
        c->completed = true;
        ds_reply(x, 200, JSON, &body);
    } else {
        fail_with(c, 500, NULL, "the server is out of memory");
        return;
    }
    if (c->x)
        succeed(c);
}

static void finish_choice(ds_call *c, uint32_t choice, ds_stream_end end)
{
    ds_err err;

    if (c->choices[choice].finished || c->failed || !c->x)
        return;
    c->choices[choice].finished = true;
    if (ds_stream_finish(c->stream, choice, end, &err) != DS_OK) {
        fail_with(c, 500, NULL, "the server is out of memory");
        return;
    }
    c->s->m.finished[finished_by(ds_stream_finish_reason(c->stream, choice))]++;
    assert(c->unfinished > 0);
    c->unfinished--;
    if (c->unfinished == 0 && c->x)
        complete(c);
}

/* The likeliest tokens of an event. */
static uint32_t take_top(const ds_event *ev, ds_top_logprob top[20])
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < ev->token.n_top && i < 20 && ev->token.top[i].id >= 0; i++)
        top[n++] = (ds_top_logprob){ ev->token.top[i].id, ev->token.top[i].logprob };
    return n;
}

/* A token of the prompt itself. */
static void on_prompt(ds_call *c, uint32_t prompt, const ds_event *ev)
{
    ds_top_logprob top[20];
    ds_token_logprob lp = { .logprob = ev->token.logprob, .n_top = take_top(ev, top), .top = top };
    ds_err err;

    if (c->failed || !c->x)
        return;
    if (ds_stream_prompt_token(c->stream, prompt, ev->token.id, isnan(lp.logprob) ? NULL : &lp, ev->token.rank, &err) != DS_OK)
        fail_with(c, 500, NULL, "the server is out of memory");
}

/* The prompt has been read: the first token of all, or an end of text in its place. */
static void note_first(ds_call *c)
{
    ds_metrics *m = &c->s->m;

    if (c->first_us || !c->x || c->failed)
        return;
    c->first_us = c->s->now_us;
    ds_histogram_seconds(&m->ttft, (double)(c->first_us - c->start_us) / 1e6);
    m->prompt_tokens += c->n_prompt_tokens;
    m->cached_tokens += c->n_cached;
}

static void on_token(ds_call *c, uint32_t choice, const ds_event *ev)
{
    ds_call_choice *k = &c->choices[choice];
    ds_top_logprob top[20];
    ds_token_logprob lp = { .logprob = ev->token.logprob, .top = top };
    bool want = c->info->logprobs || c->info->include_logprobs;
    uint64_t now;
    ds_err err;
    ds_rc rc;

    note_first(c);
    if (c->info->max_tokens == 0) /* it has to be drawn, and isn't asked for */
        return;
    if (k->finished || !c->x || c->failed) {
        c->s->m.lost_tokens[0] += !k->finished;
        return;
    }
    now = c->s->now_us;
    if (k->tokens++)
        ds_histogram_seconds(&c->s->m.itl, (double)(now - k->last_us) / 1e6);
    k->last_us = now;
    c->n_output++;
    c->s->m.generated_tokens += c->info->stream;
    lp.n_top = want ? take_top(ev, top) : 0;
    c->x->put_us = now;
    c->s->event_us = ev->token.readable_us;
    rc = ds_stream_token(c->stream, choice, ev->token.id, want ? &lp : NULL, &err);
    c->s->event_us = 0;
    if (rc != DS_OK) {
        fail_with(c, 500, NULL, "the server is out of memory");
    } else if (c->x && ds_stream_done(c->stream, choice)) {
        /* Nothing that follows can matter: the answer is over for the client now, and for the generator soon. */
        k->asked = true;
        ds_gen_finish_sample(c->s->model.gen, ev->request, ev->sample);
        finish_choice(c, choice, DS_END_STOP);
    }
}

/* The id is one that the client named: no text of it belongs to the answer. */
static bool ends_by_wish(const ds_call *c, ds_token id)
{
    for (uint32_t i = 0; i < c->info->n_stop_ids; i++)
        if (c->info->stop_ids[i] == id)
            return true;
    return false;
}

static bool refused_late(const ds_event *ev)
{
    return ev->end.rc == DS_E_AGAIN || ev->end.rc == DS_E_ARG || ev->end.rc == DS_E_NOMEM;
}

/* The answer's grammar couldn't go on, within its bounds. */
static bool cannot_go_on(ds_call *c, const ds_call_prompt *p)
{
    const char *why = p->constrained ? ds_constrained_failure(p->constrained) : NULL;

    if (!why)
        return false;
    c->s->m.finished[DS_FINISHED_ERROR]++;
    c->lost_why = 2;
    if (c->x && !c->failed)
        fail_with(c, 400, NULL, why);
    return true;
}

static void on_end(ds_call *c, ds_call_prompt *p, uint32_t choice, const ds_event *ev)
{
    ds_server *s = c->s;

    if (ev->end.reason == DS_ENDED_STOP_ID)
        note_first(c);
    if (ev->end.n_tokens && !c->failed && c->x) {
        ds_histogram_seconds(&s->m.prefill, (double)ev->end.prefill_us / 1e6);
        ds_histogram_seconds(&s->m.decode, (double)ev->end.decode_us / 1e6);
    }
    if (ev->end.reason == DS_ENDED_STOP_ID && !c->info->include_stop && c->info->max_tokens && c->x && !c->failed &&
        !c->choices[choice].finished) { /* counted, and no event of its own */
        ds_err err;
        c->n_output++;
        s->m.generated_tokens += c->info->stream;
        ds_rc rc = ends_by_wish(c, ev->end.stop_id) ? ds_stream_text(c->stream, choice, "", 0, 1, &err)
                                                    : ds_stream_token(c->stream, choice, ev->end.stop_id, NULL, &err);
        if (rc != DS_OK)
            fail_with(c, 500, NULL, "the server is out of memory");
    }
    if (ev->end.last) {
        assert(p->live && c->live > 0);
        p->live = false;
        c->live--;
    }
    if (c->choices[choice].asked) /* it was over for the client, and counted, before: whatever it ended with */
        return;
    switch (ev->end.reason) {
    case DS_ENDED_STOP_ID:
    case DS_ENDED_STOP_STRING:
        finish_choice(c, choice, c->info->max_tokens ? DS_END_STOP : DS_END_LENGTH);
        break;
    case DS_ENDED_LENGTH:
        finish_choice(c, choice, DS_END_LENGTH);
        break;
    case DS_ENDED_CANCELED:
        s->m.finished[DS_FINISHED_ABORT]++;
        if (c->x && !c->failed)
            fail_with(c, 503, NULL, "the request was ended by the server");
        break;
    case DS_ENDED_DEADLINE:
        s->m.finished[DS_FINISHED_DEADLINE]++;
        c->lost_why = 1;
        settle(c, DS_FINISHED_DEADLINE);
        if (c->x && !c->failed)
            fail_with(c, 504, "request_timeout", "the request took longer than this server allows");
        break;
    case DS_ENDED_FAILED:
        if (cannot_go_on(c, p))
            break;
        if (refused_late(ev)) {
            s->m.finished[DS_FINISHED_REFUSED]++;
            settle(c, DS_FINISHED_REFUSED);
            if (c->x && !c->failed)
                refuse_add(c, ev->end.rc, &(ds_err){ .rc = ev->end.rc, .msg = "the request doesn't fit the engine that it came to" });
            break;
        }
        s->m.finished[DS_FINISHED_ERROR]++;
        c->lost_why = 2;
        if (c->x && !c->failed)
            fail_with(c, 500, NULL, "the model failed on this request");
        break;
    case DS_ENDED_LOST:
        s->m.finished[DS_FINISHED_ERROR]++;
        c->lost_why = 2;
        if (c->x && !c->failed) {
            c->x->retry_s = 1;
            fail_with(c, 503, NULL, "the engine that computed this answer is gone; try again in 1s");
        }
        break;
    }
}

void ds_call_event(ds_call *c, const ds_event *ev)
{
    uint32_t i, choice;
    ds_call_prompt *p = prompt_of(c, ev->request, &i);

    if (!p)
        return;
    choice = i * c->n_samples + ev->sample;
    assert(ev->sample < c->n_samples && choice < ds_stream_choices(c->stream));
    /* Handlers may fail the call, which frees it when the generator has nothing more of it: not before this event's own count is taken off. */
    c->live++;
    if (ev->kind == DS_EV_START)
        on_start(c, p, ev);
    else if (ev->kind == DS_EV_PROMPT)
        on_prompt(c, i, ev);
    else if (ev->kind == DS_EV_TOKEN)
        on_token(c, choice, ev);
    else
        on_end(c, p, choice, ev);
    c->live--;
    if (c->live || c->x)
        return;
    if (c->canceled_us)
        ds_histogram_seconds(&c->s->m.cancel, (double)(ds_now_us() - c->canceled_us) / 1e6);
    ds_call_free(c);
}
