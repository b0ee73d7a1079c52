#include "kvlink/kvport.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/tier.h"
#include "kv/chain.h"
#include "kv/state.h"

enum { BLOCKS, STATES, KINDS, MAX_BATCH = 64, MAX_WRITES = 8, RETRY_MS = 5 };

/* What happens to a buffer besides being read by the device. */
typedef enum { NOTHING, FILLING, WRITING, READING } doing;

typedef struct {
    ds_key key, parent;
    uint32_t depth;
    bool needed;
} place;

typedef struct {
    ds_kvport *port;
    ds_kvstore *store;
    uint8_t *mem;
    uint64_t bytes;
    ds_tier t;
    uint8_t *doing; /* [t.n] */
    uint32_t n_saving;
    place *place; /* [t.n] of one that is FILLING or WRITING */
} buffers;

typedef struct {
    uint64_t ticket;                                  /* 0: free */
    bool dropped, answered, exact, with_state, waits; /* waits: for the thread */
    uint32_t n, n_read, pending;                      /* pending: parts that somebody works on */
    uint64_t deadline_ns;
    ds_store_got *got; /* [ticket_blocks] */
    uint32_t *read;    /* [ticket_blocks] which of them are read from the store */
    ds_key *key;       /* [ticket_blocks] their keys */
    uint8_t **to;      /* [ticket_blocks] their buffers */
    ds_store_got state;
    ds_key state_key;
    bool read_state;
    uint64_t io[KINDS]; /* the store's tickets; 0: none */
    ds_kvport *port;
} fetching;

typedef struct {
    bool used, is_state;
    uint32_t n, buffer[MAX_BATCH];
    ds_kvport *port;
} writing;

struct ds_kvport {
    /* [const] after attach */
    bool brief; /* states */
    struct ds_engine *engine;
    fetching *f;
    uint32_t n_f, ticket_blocks;
    pthread_t thread;
    bool attached;
    ds_store_got *busy; /* [ticket_blocks] */
    /* [mu] */
    pthread_mutex_t mu;
    pthread_cond_t work, quiet;
    buffers kind[KINDS];
    uint32_t *filled; /* a ring of what is to be written: buffers, those of states counted behind the blocks' */
    uint32_t cap_filled, first_filled, n_filled;
    writing w[MAX_WRITES];
    uint32_t n_writes, n_fetches; /* under way */
    bool stopping, refused;       /* refused: the engine wants to be kicked */
};

/* ---- buffers; all with mu ---- */

/* Its bytes are there, or an operation that is planned brings them. */
static uint32_t find(buffers *b, const ds_key *key, bool exact)
{
    uint32_t i = ds_tier_find(&b->t, key);

    return i == DS_NONE || b->doing[i] == READING || (exact && b->t.approx[i]) ? DS_NONE : i;
}

static void give_back(ds_kvport *p, int kind, const ds_store_got *got)
{
    if (got->result == DS_STORE_OK)
        ds_tier_unpin(&p->kind[kind].t, got->buffer);
}

static void kick(ds_kvport *p)
{
    if (p->refused)
        ds_engine_kick(p->engine);
    p->refused = false;
}

/* ---- what the engine asks ---- */

static uint32_t match(void *ctx, const ds_key *keys, uint32_t n, bool exact)
{
    ds_kvport *p = ctx;
    uint32_t i = 0, more = 1;

    pthread_mutex_lock(&p->mu);
    while (i < n && more) {
        more = find(&p->kind[BLOCKS], &keys[i], exact) != DS_NONE ? 1 : ds_kvstore_match(p->kind[BLOCKS].store, &keys[i], n - i, exact);
        i += more;
    }
    pthread_mutex_unlock(&p->mu);
    return i;
}

static bool match_state(void *ctx, const ds_key *key, bool exact, uint32_t *dec_start)
{
    ds_kvport *p = ctx;
    buffers *b = &p->kind[STATES];
    ds_key own;
    uint32_t i;
    bool found;

    ds_chain_state(&own, key);
    pthread_mutex_lock(&p->mu);
    i = find(b, &own, exact);
    found = i != DS_NONE || ds_kvstore_match(b->store, &own, 1, exact) == 1;
    *dec_start = i != DS_NONE ? b->t.note[i] : DS_KV_STATE_ENCODER; /* what is in its header isn't known before it is read */
    pthread_mutex_unlock(&p->mu);
    return found;
}

/* A buffer with it, or one into which it is to be read. */
static ds_store_got take(buffers *b, const ds_key *key, bool exact, bool *read)
{
    uint32_t i = find(b, key, exact);

    *read = false;
    if (i == DS_NONE && ds_tier_find(&b->t, key) == DS_NONE) {
        i = ds_tier_put(&b->t, key, 0, false);
        *read = i != DS_NONE;
    }
    if (i == DS_NONE) {
        b->port->refused = true;
        return (ds_store_got){ .result = DS_STORE_BUSY };
    }
    if (*read)
        b->doing[i] = READING;
    ds_tier_pin(&b->t, i);
    return (ds_store_got){ .result = DS_STORE_OK, .buffer = i, .approx = b->t.approx[i], .dec_start = b->t.note[i], .durable = *read };
}

static fetching *of_ticket(ds_kvport *p, uint64_t ticket)
{
    for (uint32_t i = 0; i < p->n_f; i++)
        if (p->f[i].ticket == ticket)
            return &p->f[i];
    return NULL;
}

static void forget_fetch(ds_kvport *p, fetching *f)
{
    for (uint32_t i = 0; i < f->n; i++)
        give_back(p, BLOCKS, &f->got[i]);
    if (f->with_state)
        give_back(p, STATES, &f->state);
    f->ticket = 0;
    p->n_fetches--;
    pthread_cond_broadcast(&p->quiet);
    kick(p);
}

/* A part of it is over. The answer goes out with mu held: nobody may drop the ticket meanwhile. */
static void part_done(fetching *f)
{
    ds_kvport *p = f->port;

    if (--f->pending > 0)
        return;
    if (f->dropped) {
        forget_fetch(p, f);
        return;
    }
    f->answered = true;
    ds_engine_store_done(p->engine, f->ticket, f->got, f->n, f->with_state ? &f->state : NULL);
}

static void fetch(void *ctx, const ds_store_want *w)
{
    ds_kvport *p = ctx;
    fetching *f;
    bool read;

    assert(w->n_blocks <= p->ticket_blocks);
    pthread_mutex_lock(&p->mu);
    f = of_ticket(p, 0);
    if (!f) { /* all are dropped ones that somebody still reads for */
        ds_store_got none = { .result = DS_STORE_BUSY };
        p->refused = true;
        ds_engine_store_done(p->engine, w->ticket, p->busy, w->n_blocks, w->state ? &none : NULL);
        pthread_mutex_unlock(&p->mu);
        return;
    }
    f->ticket = w->ticket;
    f->dropped = f->answered = false;
    f->exact = w->exact;
    f->deadline_ns = w->deadline_ns;
    f->n = w->n_blocks;
    f->n_read = 0;
    f->io[BLOCKS] = f->io[STATES] = 0;
    for (uint32_t i = 0; i < w->n_blocks; i++) {
        f->got[i] = take(&p->kind[BLOCKS], &w->blocks[i], w->exact, &read);
        if (!read)
            continue;
        f->key[f->n_read] = w->blocks[i];
        f->to[f->n_read] = p->kind[BLOCKS].mem + f->got[i].buffer * p->kind[BLOCKS].bytes;
        f->read[f->n_read++] = i;
    }
    f->with_state = w->state != NULL;
    f->read_state = false;
    if (w->state) {
        ds_chain_state(&f->state_key, w->state);
        f->state = take(&p->kind[STATES], &f->state_key, w->exact, &f->read_state);
    }
    f->pending = 1;
    p->n_fetches++;
    f->waits = f->n_read || f->read_state;
    if (f->waits)
        pthread_cond_signal(&p->work);
    else
        part_done(f);
    pthread_mutex_unlock(&p->mu);
}

static void drop(void *ctx, uint64_t ticket)
{
    ds_kvport *p = ctx;
    uint64_t io[KINDS] = { 0 };
    fetching *f;

    pthread_mutex_lock(&p->mu);
    f = of_ticket(p, ticket);
    if (f && f->pending) {
        f->dropped = true;
        memcpy(io, f->io, sizeof io);
    } else if (f) {
        forget_fetch(p, f);
    }
    pthread_mutex_unlock(&p->mu);
    for (int k = 0; k < KINDS; k++)
        if (io[k])
            ds_kvstore_cancel(p->kind[k].store, io[k]);
}

static uint32_t save(void *ctx, const ds_store_item *item)
{
    ds_kvport *p = ctx;
    buffers *b = &p->kind[item->is_state ? STATES : BLOCKS];
    ds_key key = item->key;
    uint32_t i;

    if (item->leaving) /* it had its chance */
        return DS_NONE;
    if (item->is_state)
        ds_chain_state(&key, &item->key);
    pthread_mutex_lock(&p->mu);
    i = ds_tier_find(&b->t, &key);
    if (i != DS_NONE && (!b->t.approx[i] || item->approx || b->t.pins[i] > 0)) {
        pthread_mutex_unlock(&p->mu);
        return DS_NONE;
    }
    i = b->n_saving > b->t.n / 2 ? DS_NONE : ds_tier_put(&b->t, &key, item->dec_start, item->approx); /* others want to read */
    if (i != DS_NONE) {
        b->n_saving++;
        ds_tier_pin(&b->t, i);
        b->doing[i] = FILLING;
        b->place[i] = (place){ key, item->parent, item->depth, item->needed };
    }
    p->refused = p->refused || i == DS_NONE;
    pthread_mutex_unlock(&p->mu);
    return i == DS_NONE ? DS_STORE_LATER : i;
}

static void saved(void *ctx, bool is_state, uint32_t buffer)
{
    ds_kvport *p = ctx;

    pthread_mutex_lock(&p->mu);
    assert(p->n_filled < p->cap_filled);
    p->kind[is_state].doing[buffer] = WRITING;
    p->filled[(p->first_filled + p->n_filled++) % p->cap_filled] = is_state ? p->kind[BLOCKS].t.n + buffer : buffer;
    pthread_cond_signal(&p->work);
    pthread_mutex_unlock(&p->mu);
}

static void stats(void *ctx, ds_gen_stats *out)
{
    ds_kvport *p = ctx;

    pthread_mutex_lock(&p->mu);
    out->host_blocks = p->kind[BLOCKS].t.n;
    out->host_blocks_used = p->kind[BLOCKS].t.n_used;
    out->host_states = p->kind[STATES].t.n;
    out->host_states_used = p->kind[STATES].t.n_used;
    pthread_mutex_unlock(&p->mu);
}

/* ---- reading ---- */

static ds_store_result result_of(ds_kvstore_cause c)
{
    switch (c) {
    case DS_KVSTORE_HIT:
        return DS_STORE_OK;
    case DS_KVSTORE_ABSENT:
    case DS_KVSTORE_LAYOUT:
    case DS_KVSTORE_GONE:
        return DS_STORE_GONE;
    case DS_KVSTORE_CORRUPT:
        return DS_STORE_CORRUPT;
    case DS_KVSTORE_LATE:
    case DS_KVSTORE_CANCELED:
        return DS_STORE_LATE;
    default:
        return DS_STORE_IO;
    }
}

/* What was read is there, or isn't. */
static void came(buffers *b, ds_store_got *got, ds_store_result r, bool approx, bool exact)
{
    uint32_t i = got->buffer;

    b->doing[i] = NOTHING;
    if (r == DS_STORE_OK) {
        b->t.approx[i] = got->approx = approx;
        b->t.note[i] = got->dec_start;
    } else {
        ds_tier_forget(&b->t, i);
    }
    if (r == DS_STORE_OK && exact && approx)
        r = DS_STORE_GONE;
    if (r != DS_STORE_OK)
        ds_tier_unpin(&b->t, i);
    got->result = r;
}

static void blocks_came(void *ctx, const ds_kvstore_fetched *r)
{
    fetching *f = ctx;
    ds_kvport *p = f->port;

    pthread_mutex_lock(&p->mu);
    for (uint32_t k = 0; k < f->n_read; k++)
        came(&p->kind[BLOCKS], &f->got[f->read[k]], k < r->n ? DS_STORE_OK : result_of(r->cause), k >= r->exact, f->exact);
    part_done(f);
    pthread_mutex_unlock(&p->mu);
}

/* The store knows the bytes to be right; whether they are a state of this engine's size, their header says. */
static ds_store_result check_state(const buffers *b, ds_store_got *got)
{
    ds_kv_state s;

    if (ds_kv_state_read(&s, b->mem + got->buffer * b->bytes, NULL) != DS_OK || s.slot_bytes + DS_KV_STATE_HEADER != b->bytes)
        return DS_STORE_CORRUPT;
    got->dec_start = s.dec_start;
    got->approx = s.approx;
    return DS_STORE_OK;
}

static void state_came(void *ctx, const ds_kvstore_fetched *r)
{
    fetching *f = ctx;
    ds_kvport *p = f->port;
    buffers *b = &p->kind[STATES];
    ds_store_result result;

    pthread_mutex_lock(&p->mu);
    result = r->n == 1 ? check_state(b, &f->state) : result_of(r->cause);
    came(b, &f->state, result, f->state.approx, f->exact);
    part_done(f);
    pthread_mutex_unlock(&p->mu);
}

/* Hands a fetch to the stores. Without mu: they take memory, and may call back at once. */
static void ask(ds_kvport *p, fetching *f)
{
    static const ds_kvstore_fetched busy = { .cause = DS_KVSTORE_IO }, canceled = { .cause = DS_KVSTORE_CANCELED };
    uint8_t *to = f->read_state ? p->kind[STATES].mem + f->state.buffer * p->kind[STATES].bytes : NULL;
    ds_kvstore_fetch_req q[KINDS] = {
        { .keys = f->key, .blocks = f->to, .n = f->n_read, .deadline_ns = f->deadline_ns, .done = blocks_came, .ctx = f },
        { .keys = &f->state_key, .blocks = &to, .n = f->read_state, .deadline_ns = f->deadline_ns, .done = state_came, .ctx = f },
    };
    bool dropped;

    pthread_mutex_lock(&p->mu);
    dropped = f->dropped;
    f->pending += (f->n_read > 0) + f->read_state;
    pthread_mutex_unlock(&p->mu);
    for (int k = 0; k < KINDS; k++) {
        uint64_t ticket;
        if (q[k].n == 0)
            continue;
        if (dropped || ds_kvstore_fetch(p->kind[k].store, &q[k], &ticket, NULL) != DS_OK) {
            q[k].done(f, dropped ? &canceled : &busy);
            continue;
        }
        pthread_mutex_lock(&p->mu);
        f->io[k] = ticket;
        pthread_mutex_unlock(&p->mu);
    }
    pthread_mutex_lock(&p->mu);
    part_done(f);
    pthread_mutex_unlock(&p->mu);
}

/* ---- writing ---- */

static void written(void *ctx, ds_kvstore_saved r)
{
    writing *w = ctx;
    ds_kvport *p = w->port;
    buffers *b = &p->kind[w->is_state];

    (void)r; /* the store counts what it couldn't keep; what is in the buffer is right all the same */
    pthread_mutex_lock(&p->mu);
    b->n_saving -= w->n;
    for (uint32_t i = 0; i < w->n; i++) {
        b->doing[w->buffer[i]] = NOTHING;
        ds_tier_unpin(&b->t, w->buffer[i]);
    }
    w->used = false;
    p->n_writes--;
    kick(p);
    pthread_cond_signal(&p->work);
    pthread_cond_broadcast(&p->quiet);
    pthread_mutex_unlock(&p->mu);
}

static uint32_t filled(const ds_kvport *p, uint32_t i)
{
    return p->filled[(p->first_filled + i) % p->cap_filled];
}

/* The first of what is to be written, and what follows it in its chain: with mu. */
static void collect(ds_kvport *p, writing *w, ds_kvstore_save_req *q, ds_key *keys, const uint8_t **bytes)
{
    uint32_t n_blocks = p->kind[BLOCKS].t.n, n = 0;
    const buffers *b;

    w->is_state = filled(p, 0) >= n_blocks;
    b = &p->kind[w->is_state];
    /* What is of another size has a class of its own: a segment of a class holds one size. */
    *q = (ds_kvstore_save_req){
        .keys = keys,
        .blocks = bytes,
        .klass = w->is_state ? DS_KVSTORE_AGENT : DS_KVSTORE_CHAT,
        .done = written,
        .ctx = w,
    };
    for (; n < p->n_filled && n < MAX_BATCH; n++) {
        uint32_t at = filled(p, n);
        const place *x;
        if ((at >= n_blocks) != w->is_state || (w->is_state && n > 0))
            break;
        at -= w->is_state ? n_blocks : 0;
        x = &b->place[at];
        if (n > 0 && (!ds_key_equal(&x->parent, &keys[n - 1]) || (q->exact < n && !b->t.approx[at])))
            break;
        if (n == 0 && !w->is_state) {
            q->parent = x->parent;
            q->depth = x->depth;
        }
        q->brief = w->is_state && p->brief && !x->needed;
        keys[n] = x->key;
        bytes[n] = b->mem + at * b->bytes;
        w->buffer[n] = at;
        q->exact += !b->t.approx[at];
    }
    q->n = w->n = n;
    p->first_filled = (p->first_filled + n) % p->cap_filled;
    p->n_filled -= n;
}

/* With mu, which it gives up meanwhile. */
static void write_some(ds_kvport *p)
{
    ds_key keys[MAX_BATCH];
    const uint8_t *bytes[MAX_BATCH];
    ds_kvstore_save_req q;
    writing *w = p->w;
    ds_rc rc;

    while (w->used)
        w++;
    w->used = true;
    p->n_writes++;
    collect(p, w, &q, keys, bytes);
    for (;;) {
        pthread_mutex_unlock(&p->mu);
        rc = ds_kvstore_save(p->kind[w->is_state].store, &q, NULL);
        pthread_mutex_lock(&p->mu);
        if (rc != DS_E_AGAIN)
            break;
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += RETRY_MS * 1000000L;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&p->quiet, &p->mu, &until);
    }
    if (rc == DS_OK)
        return;
    pthread_mutex_unlock(&p->mu);
    written(w, DS_KVSTORE_FAILED);
    pthread_mutex_lock(&p->mu);
}

/* ---- the thread ---- */

static fetching *next_fetch(ds_kvport *p)
{
    for (uint32_t i = 0; i < p->n_f; i++)
        if (p->f[i].ticket && p->f[i].waits)
            return &p->f[i];
    return NULL;
}

static void *port_thread(void *arg)
{
    ds_kvport *p = arg;

    pthread_mutex_lock(&p->mu);
    for (;;) {
        fetching *f = next_fetch(p);
        if (f) {
            f->waits = false;
            pthread_mutex_unlock(&p->mu);
            ask(p, f);
            pthread_mutex_lock(&p->mu);
        } else if (p->n_filled > 0 && p->n_writes < MAX_WRITES) {
            write_some(p);
        } else if (p->stopping && p->n_filled == 0) {
            break;
        } else {
            pthread_cond_wait(&p->work, &p->mu);
        }
    }
    pthread_mutex_unlock(&p->mu);
    return NULL;
}

/* ---- coming and going ---- */

static void free_tables(ds_kvport *p)
{
    for (uint32_t i = 0; p->f && i < p->n_f; i++) {
        free(p->f[i].got);
        free(p->f[i].read);
        free(p->f[i].key);
        free(p->f[i].to);
    }
    free(p->f);
    free(p->busy);
    free(p->filled);
    p->f = NULL;
    p->busy = NULL;
    p->filled = NULL;
    for (int k = 0; k < KINDS; k++) {
        ds_tier_fini(&p->kind[k].t);
        free(p->kind[k].doing);
        free(p->kind[k].place);
        p->kind[k].doing = NULL;
        p->kind[k].place = NULL;
    }
}

static bool take_fetch(fetching *f, ds_kvport *p)
{
    size_t n = p->ticket_blocks;

    f->port = p;
    f->got = calloc(n, sizeof *f->got);
    f->read = calloc(n, sizeof *f->read);
    f->key = calloc(n, sizeof *f->key);
    f->to = calloc(n, sizeof *f->to);
    return f->got && f->read && f->key && f->to;
}

static ds_rc take_tables(ds_kvport *p, const ds_store_stage *s, ds_err *err)
{
    bool whole = true;

    p->n_f = 2 * s->n_tickets; /* those that were dropped while somebody reads for them too */
    p->ticket_blocks = s->ticket_blocks;
    p->cap_filled = s->n_blocks + s->n_states;
    p->kind[BLOCKS].mem = s->blocks;
    p->kind[BLOCKS].bytes = s->block_bytes;
    p->kind[STATES].mem = s->states;
    p->kind[STATES].bytes = s->state_bytes;
    for (int k = 0; k < KINDS && whole; k++) {
        buffers *b = &p->kind[k];
        uint32_t n = k == BLOCKS ? s->n_blocks : s->n_states;
        whole = ds_tier_init(&b->t, n, err) == DS_OK;
        b->doing = calloc(n, sizeof *b->doing);
        b->place = calloc(n, sizeof *b->place);
        whole = whole && b->doing && b->place;
    }
    p->filled = calloc(p->cap_filled, sizeof *p->filled);
    p->busy = calloc(p->ticket_blocks, sizeof *p->busy);
    p->f = calloc(p->n_f, sizeof *p->f);
    whole = whole && p->filled && p->busy && p->f;
    for (uint32_t i = 0; i < p->n_f && whole; i++)
        whole = take_fetch(&p->f[i], p);
    for (uint32_t i = 0; i < p->ticket_blocks && whole; i++)
        p->busy[i].result = DS_STORE_BUSY;
    return whole ? DS_OK : ds_fail(err, DS_E_NOMEM, "KV store: out of memory for %u buffers", p->cap_filled);
}

static ds_rc attach(void *ctx, struct ds_engine *e, const ds_store_stage *stage, ds_err *err)
{
    ds_kvport *p = ctx;
    ds_rc rc = take_tables(p, stage, err);
    int started;

    p->engine = e;
    p->stopping = false;
    if (rc == DS_OK && (started = pthread_create(&p->thread, NULL, port_thread, p)) != 0)
        rc = ds_fail(err, DS_E_IO, "KV store: its thread can't start: %s", strerror(started));
    if (rc != DS_OK) {
        free_tables(p);
        return rc;
    }
    pthread_setname_np(p->thread, "ds-kvport");
    p->attached = true;
    return DS_OK;
}

static void detach(void *ctx)
{
    ds_kvport *p = ctx;

    pthread_mutex_lock(&p->mu);
    p->stopping = true;
    pthread_cond_signal(&p->work);
    pthread_mutex_unlock(&p->mu);
    pthread_join(p->thread, NULL);
    pthread_mutex_lock(&p->mu);
    while (p->n_writes || p->n_fetches)
        pthread_cond_wait(&p->quiet, &p->mu);
    pthread_mutex_unlock(&p->mu);
    free_tables(p);
    p->attached = false;
}

ds_rc ds_kvport_create(ds_kvport **out, ds_kvstore *blocks, ds_kvstore *states, bool brief, ds_err *err)
{
    ds_kvport *p = calloc(1, sizeof *p);
    pthread_condattr_t attr;

    *out = NULL;
    if (!p)
        return ds_fail(err, DS_E_NOMEM, "KV store: out of memory");
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&p->mu, NULL);
    pthread_cond_init(&p->work, &attr);
    pthread_cond_init(&p->quiet, &attr);
    pthread_condattr_destroy(&attr);
    p->kind[BLOCKS].port = p->kind[STATES].port = p;
    p->kind[BLOCKS].store = blocks;
    p->kind[STATES].store = states;
    p->brief = brief;
    for (uint32_t i = 0; i < MAX_WRITES; i++)
        p->w[i].port = p;
    *out = p;
    return DS_OK;
}

void ds_kvport_destroy(ds_kvport *p)
{
    if (!p)
        return;
    assert(!p->attached);
    pthread_mutex_destroy(&p->mu);
    pthread_cond_destroy(&p->work);
    pthread_cond_destroy(&p->quiet);
    free(p);
}

ds_store ds_kvport_store(ds_kvport *p)
{
    static const ds_store_fns fns = { .attach = attach,
                                      .detach = detach,
                                      .match = match,
                                      .match_state = match_state,
                                      .fetch = fetch,
                                      .drop = drop,
                                      .save = save,
                                      .saved = saved,
                                      .stats = stats,
                                      .on_commit = true };
    return (ds_store){ &fns, p };
}
