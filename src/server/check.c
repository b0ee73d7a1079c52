/* Every invariant of what the loop owns, between two of its turns. */
#include <stdio.h>

#include "server/server_internal.h"

static _Thread_local char text[DS_REQUEST_ID_MAX + 160];

#define WRONG(...) (snprintf(text, sizeof text, __VA_ARGS__), text)

static const char *check_call(const ds_server *s, const ds_call *c)
{
    uint32_t live = 0, open = 0;

    if (c->s != s || c->failed || c->completed || c->settled)
        return WRONG("call %s has a client and is over", c->id);
    if (c->preparing) /* a worker's */
        return NULL;
    for (uint32_t i = 0; i < c->n_prompts; i++)
        live += c->prompts[i].live;
    for (uint32_t i = 0; i < ds_stream_choices(c->stream); i++)
        open += !c->choices[i].finished;
    if (c->kind != DS_CALL_GENERATE || !c->accepted || c->live == 0 || c->live != live)
        return WRONG("call %s has a client and %u of %u prompts with the generator", c->id, live, c->live);
    if (open == 0 || open != c->unfinished)
        return WRONG("call %s has %u choices open, and counts %u", c->id, open, c->unfinished);
    return NULL;
}

static const char *check_stream(const ds_server *s, const ds_exchange *x)
{
    size_t waits = ds_outq_bytes(&x->out);

    if (waits > s->o.max_output_queue)
        return WRONG("%s: %zu bytes wait for its client", x->id, waits);
    if (x->chunk_n > waits || x->chunk_at > x->chunk_n + 32 || (x->chunk_at && !x->chunk_n))
        return WRONG("%s: %zu of a chunk of %zu bytes are out, and %zu wait", x->id, x->chunk_at, x->chunk_n, waits);
    if (x->chunk_n && !x->suspended && !x->gone)
        return WRONG("%s: the library has its stream in the middle of a chunk", x->id);
    return NULL;
}

static const char *check_exchange(const ds_server *s, const ds_conn *c, const ds_exchange *x)
{
    if (x->s != s || x->c != c)
        return WRONG("an exchange of another connection");
    if ((x->complete && !x->started) || (x->asked && !x->complete) || (x->suspended && !x->asked && !(x->stream && x->replied)))
        return WRONG("%s: started %d, complete %d, asked for %d, suspended %d", x->id, x->started, x->complete, x->asked, x->suspended);
    if (x->suspended && (x->gone || c->dead || x->have_reply))
        return WRONG("%s is suspended: gone %d, closed %d, replied to %d", x->id, x->gone, c->dead, x->have_reply);
    if (x->have_reply && x->replied && !c->dead)
        return WRONG("%s has two replies", x->id);
    if (x->call && (x->call->x != x || x->gone || !x->complete))
        return WRONG("%s and its call don't belong together", x->id);
    if (x->suspended && !x->call && !(x->stream && x->replied))
        return WRONG("%s waits for nobody", x->id);
    if (x->stream ? x->reply.len > 0 || x->fixed : ds_outq_bytes(&x->out) > 0)
        return WRONG("%s has a body and a stream", x->id);
    return check_stream(s, x);
}

const char *ds_server_check(const ds_server *s)
{
    uint32_t conns = 0, calls = 0, streams = 0, pushes = 0, preparing = 0;
    const ds_conn *before = NULL;
    const char *wrong = NULL;

    for (const ds_conn *c = s->conns; c && !wrong; before = c, c = c->next, conns++) {
        if (c->prev != before || c->l < s->listeners || c->l >= s->listeners + s->n_listeners)
            return WRONG("connection %u isn't where it should be", conns);
        if (!c->x)
            continue;
        calls += c->x->call != NULL;
        preparing += c->x->call && c->x->call->preparing;
        streams += c->x->stream;
        pushes += c->x->to_push;
        wrong = check_exchange(s, c, c->x);
        if (!wrong && c->x->call)
            wrong = check_call(s, c->x->call);
    }
    if (wrong)
        return wrong;
    for (const ds_exchange *x = s->to_push; x; x = x->next_push, pushes--)
        if (!x->to_push || pushes == 0)
            return WRONG("%s is among those with something to send", x->id);
    if (pushes)
        return WRONG("%u streams that aren't in the list have something to send", pushes);
    if (conns != s->m.connections || streams != s->m.streams)
        return WRONG("%u connections and %u streams, counted are %u and %u", conns, streams, s->m.connections, s->m.streams);
    if (calls > s->n_calls || preparing > s->m.preparing || s->m.preparing > s->n_calls)
        return WRONG("%u calls, %u of them with workers; with clients there are %u and %u", s->n_calls, s->m.preparing, calls, preparing);
    return NULL;
}
