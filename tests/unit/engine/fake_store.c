#include "fake_store.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_BUFFERS = 64, MAX_TICKETS = 16, MAX_WANT = 64 };

typedef struct {
    bool used, is_state, approx;
    ds_key key;
    uint32_t dec_start;
    uint8_t *bytes;
} record;

typedef struct {
    bool filling; /* by the device, until saved() */
    bool full;    /* saved, to be written down */
    uint32_t lent;
    record what; /* bytes: unused */
} buffer;

typedef struct {
    uint64_t ticket; /* 0: free */
    bool answered, never;
    uint32_t n;
    bool with_state, exact;
    ds_key key[MAX_WANT], state_key;
    ds_store_got got[MAX_WANT], got_state;
} request;

struct fake_store {
    pthread_mutex_t mu; /* guards all else */
    fake_store_opts o;
    ds_store_fns fn;
    struct ds_engine *engine;
    ds_store_stage stage;
    bool attached, closing, later, stray;
    request stray_answer;
    record *rec;
    buffer buf[2][MAX_BUFFERS]; /* blocks, states */
    request req[MAX_TICKETS];
    uint64_t size[2];
};

static void unlock(fake_store **s)
{
    pthread_mutex_unlock(&(*s)->mu);
}

/* To the end of the function. */
#define LOCK(s)                                                \
    fake_store *locked __attribute__((cleanup(unlock))) = (s); \
    pthread_mutex_lock(&locked->mu)

static void must(bool ok, const char *what)
{
    if (ok)
        return;
    fprintf(stderr, "store: %s\n", what);
    abort();
}

static bool chance(fake_store *s, uint32_t per_cent)
{
    return s->o.rnd(100) < per_cent;
}

static uint32_t n_buffers(const fake_store *s, int kind)
{
    return kind ? s->stage.n_states : s->stage.n_blocks;
}

static uint8_t *bytes(const fake_store *s, int kind, uint32_t i)
{
    return kind ? s->stage.states + i * s->stage.state_bytes : s->stage.blocks + i * s->stage.block_bytes;
}

static void poison(fake_store *s, int kind, uint32_t i)
{
    const buffer *b = &s->buf[kind][i];

    if (!b->filling && !b->full && b->lent == 0)
        memset(bytes(s, kind, i), 0xa5, s->size[kind]);
}

static ds_rc attach(void *ctx, struct ds_engine *e, const ds_store_stage *stage, ds_err *err)
{
    fake_store *s = ctx;
    LOCK(s);

    must(!s->attached, "attached twice");
    must(stage->n_blocks > 0 && stage->n_states > 0 && stage->n_blocks <= MAX_BUFFERS && stage->n_states <= MAX_BUFFERS,
         "too many buffers for this test");
    must(stage->block_bytes == s->size[0] && stage->state_bytes == s->size[1], "buffers of another size");
    s->attached = true;
    s->engine = e;
    s->stage = *stage;
    for (int kind = 0; kind < 2; kind++)
        for (uint32_t i = 0; i < n_buffers(s, kind); i++)
            poison(s, kind, i);
    (void)err;
    return DS_OK;
}

static void detach(void *ctx)
{
    fake_store *s = ctx;
    LOCK(s);

    must(s->attached, "detached without having been attached");
    must(fake_store_tickets(s) == 0, "a ticket was left");
    for (int kind = 0; kind < 2; kind++)
        for (uint32_t i = 0; i < n_buffers(s, kind); i++)
            must(!s->buf[kind][i].filling, "a buffer was never filled");
    s->attached = false;
}

static record *find(fake_store *s, int kind, const ds_key *key, bool exact)
{
    for (uint32_t i = 0; i < s->o.records; i++)
        if (s->rec[i].used && s->rec[i].is_state == kind && ds_key_equal(&s->rec[i].key, key) && !(exact && s->rec[i].approx))
            return &s->rec[i];
    return NULL;
}

/* In a buffer that is being filled or hasn't been written down. */
static uint32_t find_buffer(fake_store *s, int kind, const ds_key *key, bool exact)
{
    for (uint32_t i = 0; i < n_buffers(s, kind); i++) {
        buffer *b = &s->buf[kind][i];
        if ((b->filling || b->full) && ds_key_equal(&b->what.key, key) && !(exact && b->what.approx))
            return i;
    }
    return DS_NONE;
}

static uint32_t match(void *ctx, const ds_key *keys, uint32_t n, bool exact)
{
    fake_store *s = ctx;
    LOCK(s);
    uint32_t i = 0;

    must(s->attached && n > 0, "match");
    while (i < n && (find(s, 0, &keys[i], exact) || find_buffer(s, 0, &keys[i], exact) != DS_NONE))
        i++;
    return i < n && i > 0 && chance(s, 3) ? i + 1 : i; /* a promise to try, no more */
}

static bool match_state(void *ctx, const ds_key *key, bool exact, uint32_t *dec_start)
{
    fake_store *s = ctx;
    LOCK(s);
    record *r = find(s, 1, key, exact);
    uint32_t i = find_buffer(s, 1, key, exact);

    must(s->attached, "match_state");
    if (r)
        *dec_start = r->dec_start;
    else if (i != DS_NONE)
        *dec_start = s->buf[1][i].what.dec_start;
    return r || i != DS_NONE;
}

static uint32_t free_buffer(fake_store *s, int kind)
{
    uint32_t n = n_buffers(s, kind), at = s->o.rnd(n);

    for (uint32_t k = 0; k < n; k++, at = (at + 1) % n)
        if (!s->buf[kind][at].filling && !s->buf[kind][at].full && s->buf[kind][at].lent == 0)
            return at;
    return DS_NONE;
}

static ds_store_got lend(fake_store *s, int kind, const ds_key *key, bool exact)
{
    record *r = find(s, kind, key, exact);
    uint32_t i = find_buffer(s, kind, key, exact);
    ds_store_got got = { .result = DS_STORE_OK, .buffer = i, .durable = chance(s, 50) };

    if (chance(s, s->o.fails))
        return (ds_store_got){ .result = DS_STORE_GONE + s->o.rnd(DS_STORE_RESULTS - DS_STORE_GONE) };
    if (i != DS_NONE) {
        r = &s->buf[kind][i].what;
    } else if (r) {
        got.buffer = i = free_buffer(s, kind);
        if (i == DS_NONE) {
            s->later = true;
            return (ds_store_got){ .result = DS_STORE_BUSY };
        }
        memcpy(bytes(s, kind, i), r->bytes, s->size[kind]);
    } else {
        return (ds_store_got){ .result = DS_STORE_GONE };
    }
    s->buf[kind][i].lent++;
    got.approx = r->approx;
    got.dec_start = r->dec_start;
    return got;
}

static void answer(fake_store *s, request *q)
{
    for (uint32_t i = 0; i < q->n; i++)
        q->got[i] = lend(s, 0, &q->key[i], q->exact);
    if (q->with_state)
        q->got_state = lend(s, 1, &q->state_key, q->exact);
    q->answered = true;
    ds_engine_store_done(s->engine, q->ticket, q->got, q->n, q->with_state ? &q->got_state : NULL);
    if (chance(s, 10)) /* nobody listens the second time */
        ds_engine_store_done(s->engine, q->ticket, q->got, q->n, q->with_state ? &q->got_state : NULL);
}

static request *of_ticket(fake_store *s, uint64_t ticket)
{
    for (uint32_t i = 0; i < MAX_TICKETS; i++)
        if (s->req[i].ticket == ticket)
            return &s->req[i];
    return NULL;
}

static void fetch(void *ctx, const ds_store_want *w)
{
    fake_store *s = ctx;
    LOCK(s);
    request *q = of_ticket(s, 0);

    must(s->attached && q && w->ticket && !of_ticket(s, w->ticket), "fetch");
    must(w->n_blocks <= MAX_WANT && (w->n_blocks || w->state) && w->deadline_ns, "a fetch of nothing, of too much, or for ever");
    q->ticket = w->ticket;
    q->answered = false;
    q->never = chance(s, s->o.fails);
    q->n = w->n_blocks;
    q->exact = w->exact;
    q->with_state = w->state != NULL;
    memcpy(q->key, w->blocks, w->n_blocks * sizeof *q->key);
    if (w->state)
        q->state_key = *w->state;
    if (chance(s, s->o.per_cent))
        answer(s, q);
}

static void give_back(fake_store *s, int kind, const ds_store_got *got)
{
    if (got->result != DS_STORE_OK)
        return;
    must(s->buf[kind][got->buffer].lent > 0, "a buffer given back twice");
    s->buf[kind][got->buffer].lent--;
    poison(s, kind, got->buffer);
}

static void drop(void *ctx, uint64_t ticket)
{
    fake_store *s = ctx;
    LOCK(s);
    request *q = of_ticket(s, ticket);

    must(s->attached && ticket && q, "drop of an unknown ticket");
    for (uint32_t i = 0; q->answered && i < q->n; i++)
        give_back(s, 0, &q->got[i]);
    if (q->answered && q->with_state)
        give_back(s, 1, &q->got_state);
    if (!q->answered && chance(s, 30)) { /* its answer was on the way, with buffers that aren't lent any more */
        for (uint32_t i = 0; i < q->n; i++)
            q->got[i] = (ds_store_got){ .result = DS_STORE_OK };
        q->got_state = (ds_store_got){ .result = DS_STORE_OK };
        s->stray = true;
        s->stray_answer = *q;
    }
    q->ticket = 0;
}

static uint32_t save(void *ctx, const ds_store_item *item)
{
    fake_store *s = ctx;
    LOCK(s);
    int kind = item->is_state;
    uint32_t i;

    must(s->attached, "save");
    if (s->closing || chance(s, 5) || find(s, kind, &item->key, !item->approx) ||
        find_buffer(s, kind, &item->key, !item->approx) != DS_NONE)
        return DS_NONE;
    i = free_buffer(s, kind);
    if (i == DS_NONE || chance(s, 5)) {
        s->later = true;
        return item->leaving ? DS_NONE : DS_STORE_LATER;
    }
    s->buf[kind][i] =
        (buffer){ .filling = true,
                  .what = { .is_state = item->is_state, .key = item->key, .approx = item->approx, .dec_start = item->dec_start } };
    return i;
}

static void saved(void *ctx, bool is_state, uint32_t i)
{
    fake_store *s = ctx;
    LOCK(s);

    must(s->attached && i < n_buffers(s, is_state) && s->buf[is_state][i].filling, "saved into a buffer that nobody gave");
    s->buf[is_state][i].filling = false;
    s->buf[is_state][i].full = true;
}

/* Into a free place, else one at random. */
static void write_down(fake_store *s, int kind, uint32_t i)
{
    buffer *b = &s->buf[kind][i];
    record *r = find(s, kind, &b->what.key, false);
    uint8_t *to;

    for (uint32_t k = 0; k < s->o.records && !r; k++)
        if (!s->rec[k].used)
            r = &s->rec[k];
    if (!r)
        r = &s->rec[s->o.rnd(s->o.records)];
    to = r->bytes;
    *r = b->what;
    r->used = true;
    r->bytes = to;
    memcpy(to, bytes(s, kind, i), s->size[kind]);
    b->full = false;
    poison(s, kind, i);
}

void fake_store_turn(fake_store *s)
{
    uint32_t first = s->o.rnd(MAX_TICKETS);
    LOCK(s);

    for (int kind = 0; kind < 2; kind++)
        for (uint32_t i = 0; i < n_buffers(s, kind); i++)
            if (s->buf[kind][i].full && chance(s, 60))
                write_down(s, kind, i);
    for (uint32_t k = 0; k < MAX_TICKETS; k++) {
        request *q = &s->req[(first + k) % MAX_TICKETS];
        if (q->ticket && !q->answered && !q->never && chance(s, s->o.per_cent))
            answer(s, q);
    }
    if (chance(s, 2))
        s->rec[s->o.rnd(s->o.records)].used = false;
    if (s->stray) {
        request *q = &s->stray_answer;
        s->stray = false;
        ds_engine_store_done(s->engine, q->ticket, q->got, q->n, q->with_state ? &q->got_state : NULL);
    }
    if (s->later) {
        s->later = false;
        ds_engine_kick(s->engine);
    }
}

void fake_store_set(fake_store *s, uint32_t per_cent, uint32_t fails)
{
    LOCK(s);
    s->o.per_cent = per_cent;
    s->o.fails = fails;
}

void fake_store_forget_states(fake_store *s)
{
    for (uint32_t i = 0; i < s->o.records; i++)
        s->rec[i].used = s->rec[i].used && !s->rec[i].is_state;
}

void fake_store_closing(fake_store *s)
{
    s->closing = true;
}

uint32_t fake_store_tickets(const fake_store *s)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < MAX_TICKETS; i++)
        n += s->req[i].ticket != 0;
    return n;
}

ds_store fake_store_store(fake_store *s)
{
    return (ds_store){ &s->fn, s };
}

fake_store *fake_store_new(const fake_store_opts *o, uint64_t block_bytes, uint64_t state_bytes)
{
    fake_store *s = calloc(1, sizeof *s);

    must(s != NULL, "out of memory");
    pthread_mutex_init(&s->mu, NULL);
    s->o = *o;
    s->size[0] = block_bytes;
    s->size[1] = state_bytes;
    s->rec = calloc(o->records, sizeof *s->rec);
    must(s->rec != NULL, "out of memory");
    for (uint32_t i = 0; i < o->records; i++)
        must((s->rec[i].bytes = malloc(block_bytes > state_bytes ? block_bytes : state_bytes)) != NULL, "out of memory");
    s->fn = (ds_store_fns){ .attach = attach,
                            .detach = detach,
                            .match = match,
                            .match_state = match_state,
                            .fetch = fetch,
                            .drop = drop,
                            .save = save,
                            .saved = saved,
                            .on_commit = o->on_commit };
    return s;
}

void fake_store_free(fake_store *s)
{
    must(!s->attached, "freed while attached");
    for (uint32_t i = 0; i < s->o.records; i++)
        free(s->rec[i].bytes);
    free(s->rec);
    pthread_mutex_destroy(&s->mu);
    free(s);
}
