#include "server/outq.h"

#include <assert.h>
#include <string.h>

enum { KEEP_BYTES = 16 << 10 }; /* an empty queue keeps so much for the next tokens */

void ds_outq_free(ds_outq *q)
{
    ds_buf_free(&q->b);
    q->at = 0;
}

char *ds_outq_reserve(ds_outq *q, size_t n, size_t max)
{
    size_t waiting = ds_outq_bytes(q);

    if (n > max || waiting > max - n)
        return NULL;
    if (q->at > waiting) { /* what is gone is more than what is left: moving costs less than what was already copied out */
        memmove(q->b.p, q->b.p + q->at, waiting);
        q->b.len = waiting;
        q->at = 0;
    }
    if (!ds_buf_reserve(&q->b, n + 1)) {
        q->b.oom = false; /* the owner gives this client up; nothing was written */
        return NULL;
    }
    return q->b.p + q->b.len;
}

void ds_outq_commit(ds_outq *q, size_t n)
{
    assert(n < q->b.cap - q->b.len); /* reserved, and a NUL behind it */
    q->b.len += n;
}

bool ds_outq_put(ds_outq *q, const void *bytes, size_t n, size_t max)
{
    char *to = ds_outq_reserve(q, n, max);

    if (!to)
        return false;
    memcpy(to, bytes, n);
    ds_outq_commit(q, n);
    return true;
}

size_t ds_outq_take(ds_outq *q, char *out, size_t cap)
{
    size_t n = ds_outq_bytes(q);

    if (n > cap)
        n = cap;
    if (n)
        memcpy(out, ds_outq_first(q), n);
    ds_outq_drop(q, n);
    return n;
}

void ds_outq_drop(ds_outq *q, size_t n)
{
    assert(n <= ds_outq_bytes(q));
    q->at += n;
    if (q->at == q->b.len) {
        q->at = 0;
        if (q->b.cap > KEEP_BYTES)
            ds_buf_free(&q->b);
        else
            ds_buf_clear(&q->b);
    }
}
