/* Dispatch and combine.
 *
 * A round: to each other rank this one's rows that have experts there (a message says how many there are, even if none
 * is); when the first message of every rank has come, each rank's rows have their place behind the caller's own;
 * experts; for each pair of a row and an expert its result, in the order in which the pairs came. Sending and receiving
 * go on side by side, so rings may be shorter than what goes through them. */
#include "parallel/dispatch.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* In front of the rows of a message. */
typedef struct {
    uint32_t total; /* rows of this round for this rank */
    uint32_t here;  /* in this message */
    uint32_t more;  /* the sender has rows for another round */
    uint32_t pad[13];
} rows_head;
_Static_assert(sizeof(rows_head) == 64, "rows begin on a line");

typedef struct {
    /* rows that go there */
    uint32_t first, n, sent; /* in `row_to`; first pair in pair_to */
    uint32_t first_pair, n_pairs, got_pairs;
    bool said; /* the first message went out */
    /* rows that come from there */
    bool heard;
    uint32_t at, total, came; /* behind the caller's own */
    uint32_t owed, paid;      /* pairs: to be answered, answered */
    uint32_t pay_row, pay_k;  /* the next one is at or behind this place */
} peer;

struct ds_exchange {
    ds_comm *comm;
    ds_exchange_opts o;
    uint32_t share; /* rows of a rank in a round */
    /* the host's copies of this rank's rows in a round */
    int32_t *sel;      /* [share][k] */
    float *w;          /* [share][k] */
    uint32_t *row_to;  /* [ranks * share] rows for each rank */
    uint32_t *pair_to; /* [share * k] row * k + i, for each rank in the order of its rows */
    /* and of all rows */
    int32_t *local; /* [max_rows + guests][k] */
    float *guest_w; /* [guests][k] */
    peer *peers;    /* [ranks], this rank's too */
    /* the call */
    const ds_exchange_call *c;
    uint32_t row0, rows; /* of the round */
    bool results;        /* the way back */
    bool placed;         /* all peers were heard */
    bool more;           /* somebody has rows for another round */
    uint32_t end;        /* of all rows, own and others' */
};

static uint32_t share_of(uint32_t ranks, uint32_t max_rows)
{
    return max_rows > ranks ? max_rows / ranks : 1;
}

uint32_t ds_exchange_guests(uint32_t ranks, uint32_t max_rows)
{
    return share_of(ranks, max_rows) * (ranks - 1);
}

void ds_exchange_deal(uint32_t n_experts, uint32_t ranks, uint32_t rank, uint32_t *first, uint32_t *n)
{
    uint32_t each = n_experts / ranks, larger = n_experts % ranks;

    *n = each + (rank < larger);
    *first = rank * each + (rank < larger ? rank : larger);
}

/* ---- how messages look ------------------------------------------------------------------------------------------- */

static size_t up(size_t n)
{
    return (n + 15) & ~(size_t)15;
}

/* A row in a message: k experts, k weights, d values. */
static size_t row_bytes(uint32_t k, uint32_t d)
{
    return up(2 * (size_t)k * sizeof(float)) + up((size_t)d * sizeof(float));
}

static uint32_t rows_fit(const ds_exchange *x)
{
    return (uint32_t)((x->comm->message_bytes - sizeof(rows_head)) / row_bytes(x->c->k, x->c->d));
}

static uint32_t pairs_fit(const ds_exchange *x)
{
    return (uint32_t)(x->comm->message_bytes / (x->c->d * sizeof(float)));
}

/* ---- the way there ----------------------------------------------------------------------------------------------- */

/* Which rows of the round go where. */
static void deal_rows(ds_exchange *x)
{
    const ds_exchange_call *c = x->c;
    uint32_t n = x->comm->ranks, k = c->k, pairs = 0;

    c->fn->read(c->ctx, x->sel, c->sel + (size_t)x->row0 * k, (size_t)x->rows * k * sizeof *x->sel);
    c->fn->read(c->ctx, x->w, c->w + (size_t)x->row0 * k, (size_t)x->rows * k * sizeof *x->w);
    for (uint32_t p = 0; p < n; p++) {
        peer *q = &x->peers[p];
        *q = (peer){ .first = p * x->share, .first_pair = pairs };
        for (uint32_t r = 0; r < x->rows; r++) {
            bool any = false;
            for (uint32_t i = 0; i < k; i++) {
                uint32_t e = (uint32_t)x->sel[r * k + i];
                assert(e < c->n_experts);
                if (c->place[e].rank != p)
                    continue;
                x->pair_to[pairs++] = r * k + i;
                any = true;
            }
            if (any)
                x->row_to[q->first + q->n++] = r;
        }
        q->n_pairs = pairs - q->first_pair;
    }
    assert(pairs == x->rows * k);
}

/* Row r's experts on rank p, as that rank counts them. */
static void experts_on(const ds_exchange *x, uint32_t r, uint32_t p, int32_t *sel)
{
    for (uint32_t i = 0; i < x->c->k; i++) {
        const ds_expert_place *at = &x->c->place[x->sel[r * x->c->k + i]];
        sel[i] = at->rank == p ? (int32_t)at->slot : -1;
    }
}

static bool send_rows(ds_exchange *x, uint32_t p)
{
    const ds_exchange_call *c = x->c;
    peer *q = &x->peers[p];
    uint8_t *m;
    uint32_t n = q->n - q->sent, fit = rows_fit(x);
    rows_head *h;

    if ((q->said && n == 0) || !(m = x->comm->fn->room(x->comm, p)))
        return false;
    n = n < fit ? n : fit;
    h = (rows_head *)(void *)m;
    *h = (rows_head){ .total = q->n, .here = n, .more = x->row0 + x->rows < c->rows };
    m += sizeof *h;
    for (uint32_t i = 0; i < n; i++, m += row_bytes(c->k, c->d)) {
        uint32_t r = x->row_to[q->first + q->sent + i];
        experts_on(x, r, p, (int32_t *)(void *)m);
        memcpy(m + c->k * sizeof(float), x->w + (size_t)r * c->k, c->k * sizeof(float));
        c->fn->read(c->ctx, m + up(2 * (size_t)c->k * sizeof(float)), c->x + (size_t)(x->row0 + r) * c->d, c->d * sizeof(float));
    }
    q->sent += n;
    q->said = true;
    x->comm->fn->post(x->comm, p, (uint32_t)(sizeof *h + n * row_bytes(c->k, c->d)));
    return true;
}

/* A place for everybody's rows, in the order of ranks. */
static void place_rows(ds_exchange *x)
{
    uint32_t at = x->c->rows;

    for (uint32_t p = 0; p < x->comm->ranks; p++) {
        if (p == x->comm->rank)
            continue;
        x->peers[p].at = x->peers[p].pay_row = at;
        at += x->peers[p].total;
    }
    x->end = at;
    x->placed = true;
}

static ds_rc odd_message(const ds_exchange *x, uint32_t p, ds_err *err)
{
    return ds_fail(err, DS_E_IO, "rank %u of %u sent what isn't rows of this layer", p, x->comm->ranks);
}

static ds_rc take_rows(ds_exchange *x, uint32_t p, bool *moved, ds_err *err)
{
    const ds_exchange_call *c = x->c;
    peer *q = &x->peers[p];
    uint32_t bytes;
    const uint8_t *m;
    const rows_head *h;

    if ((q->heard && (!x->placed || q->came == q->total)) || !(m = x->comm->fn->came(x->comm, p, &bytes)))
        return DS_OK;
    h = (const rows_head *)(const void *)m;
    if (bytes < sizeof *h || h->here > h->total || h->total > x->share || bytes != sizeof *h + h->here * row_bytes(c->k, c->d) ||
        (q->heard && h->total != q->total) || h->here > h->total - q->came)
        return odd_message(x, p, err);
    *moved = true;
    if (!q->heard) {
        q->heard = true;
        q->total = h->total;
        x->more = x->more || h->more;
        if (h->total == 0)
            x->comm->fn->done(x->comm, p);
        return DS_OK;
    }
    m += sizeof *h;
    for (uint32_t i = 0; i < h->here; i++, q->came++, m += row_bytes(c->k, c->d)) {
        size_t to = q->at + q->came;
        memcpy(x->local + to * c->k, m, c->k * sizeof *x->local);
        memcpy(x->guest_w + (to - c->rows) * c->k, m + c->k * sizeof(float), c->k * sizeof *x->guest_w);
        for (uint32_t j = 0; j < c->k; j++)
            q->owed += x->local[to * c->k + j] >= 0;
        c->fn->write(c->ctx, c->x + to * c->d, m + up(2 * (size_t)c->k * sizeof(float)), c->d * sizeof(float));
    }
    x->comm->fn->done(x->comm, p);
    return DS_OK;
}

/* ---- the way back ------------------------------------------------------------------------------------------------ */

/* The next pair that is owed, as its number among those of all rows. */
static size_t next_owed(const ds_exchange *x, peer *q)
{
    uint32_t k = x->c->k;

    for (;; q->pay_row++, q->pay_k = 0)
        for (; q->pay_k < k; q->pay_k++)
            if (x->local[(size_t)q->pay_row * k + q->pay_k] >= 0)
                return (size_t)q->pay_row * k + q->pay_k++;
}

static bool send_results(ds_exchange *x, uint32_t p)
{
    const ds_exchange_call *c = x->c;
    peer *q = &x->peers[p];
    uint32_t n = q->owed - q->paid, fit = pairs_fit(x);
    size_t each = c->d * sizeof(float);
    uint8_t *m;

    if (n == 0 || !(m = x->comm->fn->room(x->comm, p)))
        return false;
    n = n < fit ? n : fit;
    for (uint32_t i = 0; i < n; i++)
        c->fn->read(c->ctx, m + i * each, c->part + next_owed(x, q) * c->d, each);
    q->paid += n;
    x->comm->fn->post(x->comm, p, (uint32_t)(n * each));
    return true;
}

static float *part_of(const ds_exchange *x, uint32_t pair)
{
    return x->c->part + ((size_t)x->row0 * x->c->k + pair) * x->c->d;
}

static ds_rc take_results(ds_exchange *x, uint32_t p, bool *moved, ds_err *err)
{
    const ds_exchange_call *c = x->c;
    peer *q = &x->peers[p];
    size_t each = c->d * sizeof(float);
    uint32_t bytes;
    const uint8_t *m;

    if (q->got_pairs == q->n_pairs || !(m = x->comm->fn->came(x->comm, p, &bytes)))
        return DS_OK;
    if (bytes == 0 || bytes % each || bytes / each > q->n_pairs - q->got_pairs)
        return odd_message(x, p, err);
    *moved = true;
    for (size_t at = 0; at < bytes; at += each)
        c->fn->write(c->ctx, part_of(x, x->pair_to[q->first_pair + q->got_pairs++]), m + at, each);
    x->comm->fn->done(x->comm, p);
    return DS_OK;
}

/* ---- both ways --------------------------------------------------------------------------------------------------- */

static bool sends(const ds_exchange *x, const peer *q)
{
    return x->results ? q->paid < q->owed : !q->said || q->sent < q->n;
}

static bool expects(const ds_exchange *x, const peer *q)
{
    return x->results ? q->got_pairs < q->n_pairs : !q->heard || q->came < q->total;
}

static int missing(void *ctx)
{
    const ds_exchange *x = ctx;
    ds_comm *c = x->comm;
    int who = -1;

    for (uint32_t p = 0; p < c->ranks; p++) {
        const peer *q = &x->peers[p];
        uint32_t bytes;
        if (p == c->rank)
            continue;
        if (sends(x, q)) {
            if (c->fn->room(c, p))
                return -1;
            who = (int)p;
        }
        if (expects(x, q) && !(q->heard && !x->placed)) {
            if (c->fn->came(c, p, &bytes))
                return -1;
            who = (int)p;
        }
    }
    return who;
}

/* Everything this round has to send and to receive, one way. */
static ds_rc go(ds_exchange *x, ds_err *err)
{
    ds_comm *c = x->comm;

    for (;;) {
        bool moved = false, left = false, heard = true;
        for (uint32_t i = 1; i < c->ranks; i++) {
            uint32_t p = (c->rank + i) % c->ranks; /* not all to the same one first */
            ds_rc rc;
            moved = (x->results ? send_results(x, p) : send_rows(x, p)) || moved;
            rc = x->results ? take_results(x, p, &moved, err) : take_rows(x, p, &moved, err);
            if (rc != DS_OK)
                return rc;
            left = left || sends(x, &x->peers[p]) || expects(x, &x->peers[p]);
            heard = heard && x->peers[p].heard;
        }
        if (heard && !x->placed) {
            place_rows(x);
            continue;
        }
        if (!left)
            return DS_OK;
        if (!moved) {
            ds_rc rc = c->fn->wait(c, missing, x, err);
            if (rc != DS_OK)
                return rc;
        }
    }
}

/* This rank's experts, of its own rows in this round and of what came. */
static void compute(ds_exchange *x)
{
    const ds_exchange_call *c = x->c;
    uint32_t own = x->row0 + x->rows;

    for (uint32_t r = 0; r < x->rows; r++)
        experts_on(x, r, x->comm->rank, x->local + ((size_t)x->row0 + r) * c->k);
    for (size_t p = (size_t)own * c->k; p < (size_t)c->rows * c->k; p++)
        x->local[p] = -1; /* of another round */
    if (x->end == x->row0)
        return;
    c->fn->write(c->ctx, c->local + (size_t)x->row0 * c->k, x->local + (size_t)x->row0 * c->k,
                 (size_t)(x->end - x->row0) * c->k * sizeof *x->local);
    c->fn->write(c->ctx, c->w + (size_t)c->rows * c->k, x->guest_w, (size_t)(x->end - c->rows) * c->k * sizeof *x->guest_w);
    c->fn->compute(c->ctx, x->row0, x->end - x->row0);
}

static ds_rc round_of(ds_exchange *x, ds_err *err)
{
    ds_rc rc;

    deal_rows(x);
    x->results = x->placed = false;
    rc = go(x, err);
    if (rc != DS_OK)
        return rc;
    compute(x);
    x->results = true;
    return go(x, err);
}

ds_rc ds_exchange_run(ds_exchange *x, const ds_exchange_call *c, ds_err *err)
{
    ds_rc rc = DS_OK;

    assert(c->rows <= x->o.max_rows && c->k <= x->o.max_k && c->d <= x->o.max_d);
    x->c = c;
    x->row0 = 0;
    do {
        x->rows = c->rows - x->row0 < x->share ? c->rows - x->row0 : x->share;
        x->more = x->row0 + x->rows < c->rows;
        rc = round_of(x, err);
        x->row0 += x->rows;
    } while (rc == DS_OK && x->more);
    x->c = NULL;
    return rc;
}

void ds_exchange_destroy(ds_exchange *x)
{
    if (!x)
        return;
    free(x->sel);
    free(x->w);
    free(x->row_to);
    free(x->pair_to);
    free(x->local);
    free(x->guest_w);
    free(x->peers);
    free(x);
}

ds_rc ds_exchange_create(ds_exchange **out, ds_comm *comm, const ds_exchange_opts *o, ds_err *err)
{
    ds_exchange *x = NULL;
    size_t share = share_of(comm->ranks, o->max_rows), k = o->max_k, guests = share * (comm->ranks - 1);

    *out = NULL;
    if (sizeof(rows_head) + row_bytes(o->max_k, o->max_d) > comm->message_bytes)
        return ds_fail(err, DS_E_ARG, "ranks: a row of %u values and %u experts is longer than a message of %u bytes", o->max_d, o->max_k,
                       comm->message_bytes);
    x = calloc(1, sizeof *x);
    if (!x)
        return ds_fail(err, DS_E_NOMEM, "ranks: out of memory");
    x->comm = comm;
    x->o = *o;
    x->share = (uint32_t)share;
    x->sel = calloc(share * k, sizeof *x->sel);
    x->w = calloc(share * k, sizeof *x->w);
    x->row_to = calloc(share * comm->ranks, sizeof *x->row_to);
    x->pair_to = calloc(share * k, sizeof *x->pair_to);
    x->local = calloc((o->max_rows + guests) * k, sizeof *x->local);
    x->guest_w = calloc(guests * k + 1, sizeof *x->guest_w);
    x->peers = calloc(comm->ranks, sizeof *x->peers);
    if (!x->sel || !x->w || !x->row_to || !x->pair_to || !x->local || !x->guest_w || !x->peers) {
        ds_exchange_destroy(x);
        return ds_fail(err, DS_E_NOMEM, "ranks: out of memory for %zu rows", o->max_rows + guests);
    }
    *out = x;
    return DS_OK;
}
