#include "model/scan.h"

#include <stdatomic.h>
#include <stdlib.h>

bool ds_scan_add(ds_scan *s, const ds_tensor *t)
{
    if (s->n == s->cap) {
        size_t cap = s->cap ? 2 * s->cap : 1024;
        const ds_tensor **grown = realloc(s->t, cap * sizeof *grown);
        if (!grown)
            return false;
        s->t = grown;
        s->cap = cap;
    }
    s->t[s->n++] = t;
    return true;
}

void ds_scan_fini(ds_scan *s)
{
    free(s->t);
    *s = (ds_scan){ 0 };
}

typedef struct {
    const ds_scan *s;
    atomic_size_t next;  /* tensor to look at */
    atomic_size_t worst; /* lowest tensor with a bad value, s->n if none */
} scan_job;

static uint64_t first_bad(const ds_tensor *t)
{
    size_t size = ds_dtype_bytes((ds_dtype)t->dtype);

    return size ? ds_st_first_bad((ds_dtype)t->dtype, t->data, t->bytes / size) : UINT64_MAX;
}

static void scan_some(void *arg, uint32_t member, uint32_t n_members)
{
    scan_job *j = arg;

    (void)member;
    (void)n_members;
    for (;;) {
        /* relaxed: the counter only hands out numbers; the pool's join publishes `worst` */
        size_t i = atomic_fetch_add_explicit(&j->next, 1, memory_order_relaxed);
        size_t worst = atomic_load_explicit(&j->worst, memory_order_relaxed);
        if (i >= j->s->n || i >= worst)
            return;
        if (first_bad(j->s->t[i]) != UINT64_MAX)
            while (i < worst && !atomic_compare_exchange_weak_explicit(&j->worst, &worst, i, memory_order_relaxed, memory_order_relaxed))
                ;
    }
}

ds_rc ds_scan_run(const ds_scan *s, const ds_st *st, ds_pool *pool, ds_err *err)
{
    scan_job j = { .s = s };
    size_t worst;
    const ds_tensor *t;

    atomic_init(&j.next, 0);
    atomic_init(&j.worst, s->n);
    if (pool)
        ds_pool_run(pool, scan_some, &j);
    else
        scan_some(&j, 0, 1);
    worst = atomic_load_explicit(&j.worst, memory_order_relaxed);
    if (worst == s->n)
        return DS_OK;
    t = s->t[worst];
    return ds_fail(err, DS_E_FORMAT, "%s: tensor %s, element %llu is %s", ds_st_shard_path(st, t->shard), t->name,
                   (unsigned long long)first_bad(t), t->dtype == DS_DT_F8_E8M0 || t->dtype == DS_DT_F8_E4M3 ? "NaN" : "NaN or infinite");
}
