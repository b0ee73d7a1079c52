#include "base/table.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST = 64 };

static ds_record *at(const ds_table *t, uint32_t place)
{
    return (ds_record *)((char *)t->records + place * t->bytes);
}

static bool grow(ds_table *t)
{
    uint32_t n = t->n ? 2 * t->n : FIRST;
    void *more = n > t->n ? realloc(t->records, n * t->bytes) : NULL;

    if (!more)
        return false;
    t->records = more;
    for (uint32_t i = t->n; i < n; i++)
        *at(t, i) = (ds_record){ .next_free = i + 1 < n ? i + 2 : 0 };
    t->free = t->n + 1;
    t->n = n;
    return true;
}

void *ds_table_take(ds_table *t)
{
    uint32_t place, generation;
    ds_record *r;

    assert(t->bytes >= sizeof *r);
    if (!t->free && !grow(t))
        return NULL;
    place = t->free - 1;
    r = at(t, place);
    t->free = r->next_free;
    generation = r->generation + 1 ? r->generation + 1 : 1;
    memset(r, 0, t->bytes);
    r->generation = generation;
    r->id = (uint64_t)generation << 32 | place;
    t->n_live++;
    return r;
}

void *ds_table_get(const ds_table *t, uint64_t id)
{
    uint32_t place = (uint32_t)id;

    return id && place < t->n && at(t, place)->id == id ? at(t, place) : NULL;
}

void *ds_table_at(const ds_table *t, uint32_t place)
{
    return place < t->n && at(t, place)->id ? at(t, place) : NULL;
}

void ds_table_give(ds_table *t, void *record)
{
    ds_record *r = record;
    uint32_t place = (uint32_t)r->id;

    assert(r->id && r == at(t, place));
    r->id = 0;
    r->next_free = t->free;
    t->free = place + 1;
    t->n_live--;
}

void *ds_table_next(const ds_table *t, const void *after)
{
    uint32_t i = after ? (uint32_t)(((const char *)after - (const char *)t->records) / (ptrdiff_t)t->bytes) + 1 : 0;

    while (i < t->n && !at(t, i)->id)
        i++;
    return i < t->n ? at(t, i) : NULL;
}

void ds_table_fini(ds_table *t)
{
    free(t->records);
    *t = (ds_table){ .bytes = t->bytes };
}
