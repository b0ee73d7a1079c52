#include "cluster/handoff.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/random.h>

typedef struct {
    ds_handed h;     /* the first member: pin gives its address */
    uint64_t ticket; /* 0: forgotten, or free */
    const void *owner;
    uint32_t pins;
    bool used;
} row;

struct ds_tickets {
    uint32_t most; /* [const] */
    pthread_mutex_t mu;
    row *rows; /* [mu] [most] */
    uint32_t n;
};

ds_rc ds_tickets_create(ds_tickets **out, uint32_t most, ds_err *err)
{
    ds_tickets *t = calloc(1, sizeof *t);

    *out = NULL;
    if (t)
        t->rows = calloc(most, sizeof *t->rows);
    if (!t || !t->rows) {
        free(t);
        return ds_fail(err, DS_E_NOMEM, "out of memory for %u tickets", most);
    }
    t->most = most;
    pthread_mutex_init(&t->mu, NULL);
    *out = t;
    return DS_OK;
}

/* With mu: what is to be freed once it is let go; free is NULL: nothing is. */
static ds_handed let_go(ds_tickets *t, row *x)
{
    ds_handed h = { 0 };

    if (!x->used || x->ticket || x->pins)
        return h;
    h = x->h;
    *x = (row){ 0 };
    t->n--;
    return h;
}

static void give_back(const ds_handed *h)
{
    if (h->free)
        h->free(h->ctx, h->held);
}

ds_rc ds_tickets_put(ds_tickets *t, const void *owner, const ds_handed *h, uint64_t *ticket, ds_err *err)
{
    row *x = NULL;

    if (getrandom(ticket, sizeof *ticket, 0) != sizeof *ticket)
        return ds_fail(err, DS_E_IO, "no random numbers");
    *ticket |= 1; /* 0 is none */
    pthread_mutex_lock(&t->mu);
    for (uint32_t i = 0; i < t->most && !x; i++)
        x = t->rows[i].used ? NULL : &t->rows[i];
    if (x) {
        *x = (row){ .h = *h, .ticket = *ticket, .owner = owner, .used = true };
        t->n++;
    }
    pthread_mutex_unlock(&t->mu);
    return x ? DS_OK : ds_fail(err, DS_E_AGAIN, "%u sequences wait to be taken", t->most);
}

static row *of_ticket(ds_tickets *t, uint64_t ticket)
{
    for (uint32_t i = 0; i < t->most && ticket; i++)
        if (t->rows[i].ticket == ticket)
            return &t->rows[i];
    return NULL;
}

const ds_handed *ds_tickets_pin(ds_tickets *t, uint64_t ticket)
{
    row *x;

    pthread_mutex_lock(&t->mu);
    x = of_ticket(t, ticket);
    if (x)
        x->pins++;
    pthread_mutex_unlock(&t->mu);
    return x ? &x->h : NULL;
}

void ds_tickets_unpin(ds_tickets *t, const ds_handed *pinned)
{
    row *x = (row *)pinned;
    ds_handed h;

    pthread_mutex_lock(&t->mu);
    assert(x->pins > 0);
    x->pins--;
    h = let_go(t, x);
    pthread_mutex_unlock(&t->mu);
    give_back(&h);
}

void ds_tickets_forget(ds_tickets *t, uint64_t ticket)
{
    ds_handed h = { 0 };
    row *x;

    pthread_mutex_lock(&t->mu);
    x = of_ticket(t, ticket);
    if (x) {
        x->ticket = 0;
        h = let_go(t, x);
    }
    pthread_mutex_unlock(&t->mu);
    give_back(&h);
}

void ds_tickets_forget_of(ds_tickets *t, const void *owner)
{
    uint64_t ticket;

    do {
        ticket = 0;
        pthread_mutex_lock(&t->mu);
        for (uint32_t i = 0; i < t->most && !ticket; i++)
            if (t->rows[i].used && t->rows[i].owner == owner)
                ticket = t->rows[i].ticket;
        pthread_mutex_unlock(&t->mu);
        ds_tickets_forget(t, ticket);
    } while (ticket);
}

uint32_t ds_tickets_n(ds_tickets *t)
{
    uint32_t n;

    pthread_mutex_lock(&t->mu);
    n = t->n;
    pthread_mutex_unlock(&t->mu);
    return n;
}

void ds_tickets_destroy(ds_tickets *t)
{
    if (!t)
        return;
    for (uint32_t i = 0; i < t->most; i++) {
        assert(!t->rows[i].pins);
        give_back(&t->rows[i].h);
    }
    pthread_mutex_destroy(&t->mu);
    free(t->rows);
    free(t);
}

/* ---- messages ---- */

static void put64(ds_buf *b, uint64_t v)
{
    uint8_t at[8];

    for (int i = 0; i < 8; i++)
        at[i] = (uint8_t)(v >> (8 * i));
    ds_buf_put(b, at, sizeof at);
}

void ds_cw_put_take(ds_buf *b, uint64_t from, uint32_t n)
{
    put64(b, from);
    put64(b, n);
}

ds_rc ds_cw_read_take(uint64_t *from, uint32_t *n, const uint8_t *p, size_t bytes, ds_err *err)
{
    ds_frame_in in = { p, p + bytes, false };
    uint64_t want;

    *from = ds_frame_u64(&in);
    want = ds_frame_u64(&in);
    *n = (uint32_t)want;
    return in.bad || in.at != in.end || !want || want > DS_CW_MAX_PART ? ds_fail(err, DS_E_FORMAT, "a TAKE that is none") : DS_OK;
}

/* The bytes of p[n], which are those from `at` on of all, that lie in [from, until). */
static void put_overlap(ds_buf *b, const uint8_t *p, uint64_t n, uint64_t at, uint64_t from, uint64_t until)
{
    uint64_t first = from > at ? from : at, end = until < at + n ? until : at + n;

    if (first < end)
        ds_buf_put(b, p + (first - at), (size_t)(end - first));
}

void ds_cw_put_part(ds_buf *b, const ds_handed *h, uint64_t from, uint32_t n)
{
    uint64_t all = (uint64_t)h->n_record + h->n_blocks, until = from < all && n < all - from ? from + n : all;

    put64(b, h->n_record);
    put64(b, h->n_blocks);
    put64(b, from);
    put_overlap(b, h->record, h->n_record, 0, from, until);
    put_overlap(b, h->blocks, h->n_blocks, h->n_record, from, until);
}

ds_rc ds_cw_read_part(ds_cw_part *out, const uint8_t *p, size_t bytes, ds_err *err)
{
    ds_frame_in in = { p, p + bytes, false };
    uint64_t all;

    out->n_record = ds_frame_u64(&in);
    out->n_blocks = ds_frame_u64(&in);
    out->from = ds_frame_u64(&in);
    out->n = (size_t)(in.end - in.at);
    out->p = in.at;
    all = out->n_record + out->n_blocks;
    if (in.bad || all < out->n_record || out->from > all || out->n > all - out->from || out->n > DS_CW_MAX_PART)
        return ds_fail(err, DS_E_FORMAT, "a PART that is none");
    return DS_OK;
}
