/* Reading one block from k + 1 devices and taking the first k that are right. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/none.h"
#include "kvstore/volume_internal.h"

enum { DEFAULT_HEDGE_NS = 10000000, STOP_NS = 10000000, REST_TIMES = 100, FAILED_REST_NS = 1000000000 };
#define MAX_REST_NS 10000000000u
#define DEFAULT_LIMIT_NS 5000000000u

/* A device as this reader sees it. */
typedef struct {
    uint8_t *buf; /* aligned, buf_bytes */
    size_t buf_bytes;
    bool busy;              /* an operation is in flight that writes to buf */
    uint32_t call;          /* which call it is of */
    size_t skip, want;      /* bytes of buf in front of the record; that must have arrived */
    uint64_t stalled_until; /* a test has it so: no operation, and a failure then; 0: not */
    uint64_t asked_ns;      /* when it was asked last */
    uint64_t limit_ns;      /* what takes longer was slow */
    uint64_t last_until_ns; /* it was slow or failed: until then the others are asked before it */
} lane;

struct ds_volume_reader {
    ds_volume *v;
    ds_files_queue *queue;
    lane lane[DS_SEG_MAX_DEVICES];
    uint8_t *decoded; /* [k] shards that had to be computed */
    size_t decoded_bytes;
    uint32_t call, in_flight;
};

/* One call. */
typedef struct {
    uint64_t limit_ns; /* what takes longer is slow */
    ds_volume_reader *r;
    ds_vol_segment *s;
    const ds_volume_place *p;
    const ds_key *key;
    bool asked[DS_SEG_MAX_DEVICES], have[DS_SEG_MAX_DEVICES];
    uint32_t n_have, waiting; /* shards; operations of this call in flight */
    ds_read_info info;
    uint32_t ahead;   /* blocks that are read next */
    bool nomem, gone; /* gone: a device hasn't the file any more */
} call;

ds_rc ds_volume_reader_create(ds_volume_reader **out, ds_volume *v, ds_err *err)
{
    ds_volume_reader *r = calloc(1, sizeof *r);
    ds_rc rc;

    *out = NULL;
    if (!r)
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    r->v = v;
    rc = v->files->ops->queue_create(&r->queue, v->files, err);
    if (rc != DS_OK) {
        free(r);
        return rc;
    }
    *out = r;
    return DS_OK;
}

/* A lane whose stall is over by then, or NULL. *until_ns: when the next is over, if that is earlier. */
static lane *stalled(ds_volume_reader *r, uint64_t *until_ns)
{
    uint64_t now = ds_now_ns();

    for (uint32_t d = 0; d < r->v->n; d++) {
        lane *l = &r->lane[d];
        if (l->stalled_until && l->stalled_until <= now)
            return l;
        if (l->stalled_until && l->stalled_until < *until_ns)
            *until_ns = l->stalled_until;
    }
    return NULL;
}

/* A slow device isn't waited for time and again: for a hundred times as long as it took it comes last. */
static void note_answer(lane *l, int res)
{
    uint64_t now = ds_now_ns(), rest = REST_TIMES * (now - l->asked_ns);

    if (res < 0 && rest < FAILED_REST_NS)
        rest = FAILED_REST_NS;
    if (res < 0 || now - l->asked_ns > l->limit_ns)
        l->last_until_ns = now + (rest < MAX_REST_NS ? rest : MAX_REST_NS);
}

/* Takes one answer: the lane that it is of, or NULL when none came until then. */
static lane *complete(ds_volume_reader *r, uint64_t until_ns, int *res)
{
    lane *l = r->v->faults ? stalled(r, &until_ns) : NULL;

    if (l) {
        l->stalled_until = 0;
        *res = -ETIME;
    } else {
        int d = r->v->files->ops->answer(r->queue, until_ns, res);
        if (d < 0)
            return NULL;
        l = &r->lane[d];
    }
    l->busy = false;
    r->in_flight--;
    note_answer(l, *res);
    return l;
}

void ds_volume_reader_destroy(ds_volume_reader *r)
{
    int res;

    if (!r)
        return;
    while (r->in_flight) /* they write to our buffers */
        complete(r, ds_now_ns() + 1000000000, &res);
    r->v->files->ops->queue_destroy(r->queue);
    for (uint32_t d = 0; d < DS_SEG_MAX_DEVICES; d++)
        free(r->lane[d].buf);
    free(r->decoded);
    free(r);
}

static bool make_room(uint8_t **buf, size_t *have, size_t want)
{
    want = (want + DS_SEG_ALIGN - 1) / DS_SEG_ALIGN * DS_SEG_ALIGN;
    if (want <= *have)
        return true;
    free(*buf);
    *buf = aligned_alloc(DS_SEG_ALIGN, want);
    *have = *buf ? want : 0;
    return *buf != NULL;
}

/* Asks a device for its record. False: it hasn't the segment, or can't be asked now. */
static bool ask(call *c, uint32_t d)
{
    ds_volume_reader *r = c->r;
    const ds_seg_header *h = &c->s->h;
    lane *l = &r->lane[d];
    uint64_t at = c->p->offset + ds_seg_record_at(c->p->of, c->p->at, h->shard_bytes), from = at / DS_SEG_ALIGN * DS_SEG_ALIGN;
    size_t skip = (size_t)(at - from), want = skip + DS_SEG_RECORD_HEADER + h->shard_bytes,
           whole = (want + DS_SEG_ALIGN - 1) / DS_SEG_ALIGN * DS_SEG_ALIGN;

    uint64_t end = (c->p->offset + ds_seg_record_at(c->p->of, c->p->at + c->ahead + 1, h->shard_bytes) + DS_SEG_ALIGN - 1) / DS_SEG_ALIGN *
                   DS_SEG_ALIGN;
    size_t ahead = end > from + whole ? (size_t)(end - from - whole) : 0;

    if (c->asked[d] || l->busy || c->s->fd[d] < 0)
        return false;
    if (!make_room(&l->buf, &l->buf_bytes, whole)) {
        c->nomem = true;
        return false;
    }
    uint64_t stall = r->v->faults ? r->v->faults->stall_ns(r->v->faults->ctx, d) : 0;
    if (stall)
        l->stalled_until = ds_now_ns() + stall;
    else
        r->v->files->ops->ask(r->queue, d, c->s->fd[d], h->segment, l->buf, whole, from, ahead);
    l->skip = skip;
    l->want = want;
    l->busy = true;
    l->call = r->call;
    l->asked_ns = ds_now_ns();
    l->limit_ns = c->limit_ns;
    r->in_flight++;
    c->asked[d] = true;
    c->waiting++;
    c->info.asked++;
    return true;
}

/* The device that is to be asked next: one that wasn't slow, data shards first; then the one whose rest ends first. */
static uint32_t next_device(const call *c, const bool tried[DS_SEG_MAX_DEVICES], uint64_t now)
{
    uint32_t best = DS_NONE;
    uint64_t best_until = 0;

    for (uint32_t d = 0; d < c->r->v->n; d++) {
        uint64_t until = c->r->lane[d].last_until_ns > now ? c->r->lane[d].last_until_ns : 0;
        if (!tried[d] && !c->asked[d] && (best == DS_NONE || until < best_until)) {
            best = d;
            best_until = until;
        }
    }
    return best;
}

/* Asks up to n devices that weren't asked yet. Number of them. */
static uint32_t ask_more(call *c, uint32_t n)
{
    bool tried[DS_SEG_MAX_DEVICES] = { false };
    uint64_t now = ds_now_ns();
    uint32_t asked = 0;

    for (uint32_t d; asked < n && (d = next_device(c, tried, now)) != DS_NONE;) {
        tried[d] = true;
        asked += ask(c, d);
    }
    return asked;
}

static const ds_vol_faults *faults_of(const call *c)
{
    return c->r->v->faults;
}

/* A device's answer: is it the shard that we want? */
static void take(call *c, lane *l, int res)
{
    uint32_t d = (uint32_t)(l - c->r->lane);
    const ds_seg_header *h = &c->s->h;
    const uint8_t *p = l->buf + l->skip;
    ds_seg_record rec;
    uint64_t begun = ds_now_ns();
    bool right;

    c->waiting--;
    if (faults_of(c) && res > 0)
        res = faults_of(c)->read(faults_of(c)->ctx, d, l->buf, res);
    if (res < 0 || (size_t)res < l->want) {
        c->info.failed++;
        c->gone = c->gone || res == -ENOENT;
        return;
    }
    right = ds_seg_record_read(&rec, p) && ds_key_equal(&rec.key, c->key) && rec.segment == h->segment && rec.generation == h->generation &&
            rec.device == d && rec.crc == c->p->crc && rec.shard_crc == ds_crc32c(p + DS_SEG_RECORD_HEADER, h->shard_bytes);
    c->info.verify_ns += ds_now_ns() - begun;
    c->info.bad += !right;
    c->have[d] = right;
    c->n_have += right;
}

/* Puts the block together from k shards. */
static ds_read_result assemble(call *c, uint8_t *out)
{
    ds_volume_reader *r = c->r;
    const ds_seg_header *h = &c->s->h;
    uint8_t *shard[DS_SEG_MAX_DEVICES];
    uint32_t k = r->v->k, sb = h->shard_bytes;
    uint64_t begun = ds_now_ns(), decoded, copied;
    bool right;

    for (uint32_t d = 0; d < r->v->n; d++) {
        shard[d] = c->have[d] ? r->lane[d].buf + r->lane[d].skip + DS_SEG_RECORD_HEADER : NULL;
        c->info.decoded = c->info.decoded || (d < k && !c->have[d]);
    }
    if (c->info.decoded && !make_room(&r->decoded, &r->decoded_bytes, (size_t)k * sb)) {
        c->nomem = true;
        return DS_READ_IO;
    }
    for (uint32_t d = 0; d < k; d++)
        shard[d] = shard[d] ? shard[d] : r->decoded + (size_t)d * sb;
    if (c->info.decoded)
        ds_code_decode(&r->v->code, shard, c->have, sb);
    decoded = ds_now_ns();
    for (uint32_t d = 0; d < k && (uint64_t)d * sb < h->block_bytes; d++) {
        uint32_t n = h->block_bytes - d * sb;
        memcpy(out + (size_t)d * sb, shard[d], n < sb ? n : sb);
    }
    copied = ds_now_ns();
    right = ds_crc32c(out, h->block_bytes) == c->p->crc;
    c->info.decode_ns = decoded - begun;
    c->info.copy_ns = copied - decoded;
    c->info.verify_ns += ds_now_ns() - copied;
    return right ? DS_READ_OK : DS_READ_CORRUPT;
}

/* Waits for shards until there are k, or there is no more hope, or the deadline passes. */
static ds_read_result gather(call *c, const ds_read_opts *o)
{
    ds_volume_reader *r = c->r;
    uint64_t now = ds_now_ns(), hedge = now + (o->hedge_ns ? o->hedge_ns : DEFAULT_HEDGE_NS),
             deadline = o->deadline_ns ? o->deadline_ns : now + DEFAULT_LIMIT_NS;
    uint32_t k = r->v->k;
    bool hedged = false;

    if (now >= deadline)
        return DS_READ_LATE;
    c->limit_ns = hedge - now;
    ask_more(c, o->all ? r->v->n : r->v->m ? k + 1 : k);
    while (c->n_have < k || (o->all && c->waiting)) {
        uint64_t until = !hedged && hedge < deadline ? hedge : deadline;
        lane *l;
        int res;

        if (o->stop) {
            uint64_t soon = ds_now_ns() + STOP_NS;
            if (atomic_load_explicit(o->stop, memory_order_relaxed)) /* a word to hurry: nothing is published by it */
                return DS_READ_LATE;
            until = until < soon ? until : soon;
        }

        if (c->n_have + c->waiting < k)
            ask_more(c, k - c->n_have - c->waiting);
        if (c->n_have + c->waiting < k && r->in_flight == c->waiting) /* nobody is left to ask */
            return c->gone ? DS_READ_GONE : c->info.bad ? DS_READ_CORRUPT : DS_READ_IO;
        l = complete(r, until, &res);
        if (l && l->call == r->call)
            take(c, l, res);
        if (l)
            continue;
        now = ds_now_ns();
        if (now >= deadline)
            return c->n_have >= k ? DS_READ_OK
                                  : DS_READ_LATE; /* of all, those that were asked for and are slow don't matter to the block */
        if (now < hedge || hedged)
            continue;
        hedged = c->info.hedged = true;
        ask_more(c, r->v->n);
    }
    return DS_READ_OK;
}

ds_read_result ds_volume_read(ds_volume_reader *r, const ds_volume_place *p, const ds_key *key, uint8_t *out, size_t cap,
                              const ds_read_opts *o, ds_read_info *info)
{
    call c = { .r = r, .p = p, .key = key };
    uint64_t begun = ds_now_ns();
    ds_read_result result;

    c.s = ds_vol_take(r->v, p->segment);
    if (info)
        *info = c.info;
    if (!c.s)
        return DS_READ_GONE;
    r->call++;
    c.ahead = o && p->at < p->of && o->ahead < p->of - p->at ? o->ahead : 0;
    if (cap < c.s->h.block_bytes || p->of == 0 || p->of > DS_SEG_EXTENT_BLOCKS || p->at >= p->of || p->offset % DS_SEG_ALIGN)
        result = DS_READ_CORRUPT;
    else
        result = gather(&c, o ? o : &(ds_read_opts){ 0 });
    c.info.device_ns = ds_now_ns() - begun - c.info.verify_ns;
    for (uint32_t d = 0; c.waiting && d < r->v->n; d++)
        if (r->lane[d].busy && r->lane[d].call == r->call && !r->lane[d].stalled_until)
            r->v->files->ops->hurry(r->queue, d);
    if (result == DS_READ_OK)
        result = assemble(&c, out);
    if (c.nomem && result != DS_READ_OK)
        result = DS_READ_IO;
    ds_vol_give(r->v, c.s);
    if (info)
        *info = c.info;
    return result;
}
