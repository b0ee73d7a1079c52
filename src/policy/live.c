#include "policy/live.h"

#include <assert.h>
#include <stdlib.h>

#include "base/none.h"

enum { OWNER, PLACE, AXES };

typedef struct {
    uint64_t id;                         /* generation << 32 | index + 1; 0: free */
    uint32_t generation;                 /* of the last record here */
    uint32_t at[AXES];                   /* owner, place */
    uint32_t next[AXES], previous[AXES]; /* in the list of each; next[OWNER] of a free one: the next free */
    ds_live_weight weight;
} record;

struct ds_live {
    ds_live_opts opts;
    uint32_t free;
    record *records;
    uint32_t *heads[AXES]; /* of each owner's, each place's list */
    ds_live_sum *sums;     /* of each place */
    ds_live_sum all;
};

static uint32_t n_of(const ds_live *l, int axis)
{
    return axis == OWNER ? l->opts.owners : l->opts.places;
}

ds_rc ds_live_create(ds_live **out, const ds_live_opts *opts, ds_err *err)
{
    ds_live *l;

    *out = NULL;
    if (opts->records == 0 || opts->owners == 0 || opts->places == 0 || opts->records >= DS_NONE)
        return ds_fail(err, DS_E_ARG, "live set: %u records, %u owners, %u places", opts->records, opts->owners, opts->places);
    l = calloc(1, sizeof *l);
    if (!l)
        return ds_fail(err, DS_E_NOMEM, "live set: out of memory");
    l->opts = *opts;
    l->records = calloc(opts->records, sizeof *l->records);
    l->sums = calloc(opts->places, sizeof *l->sums);
    for (int a = 0; a < AXES; a++)
        l->heads[a] = calloc(n_of(l, a), sizeof *l->heads[a]);
    if (!l->records || !l->sums || !l->heads[OWNER] || !l->heads[PLACE]) {
        ds_live_destroy(l);
        return ds_fail(err, DS_E_NOMEM, "live set: out of memory for %u records", opts->records);
    }
    for (int a = 0; a < AXES; a++)
        for (uint32_t i = 0; i < n_of(l, a); i++)
            l->heads[a][i] = DS_NONE;
    for (uint32_t i = 0; i < opts->records; i++)
        l->records[i].next[OWNER] = i + 1 < opts->records ? i + 1 : DS_NONE;
    *out = l;
    return DS_OK;
}

void ds_live_destroy(ds_live *l)
{
    if (!l)
        return;
    for (int a = 0; a < AXES; a++)
        free(l->heads[a]);
    free(l->sums);
    free(l->records);
    free(l);
}

static record *of_id(const ds_live *l, uint64_t id)
{
    uint32_t index = (uint32_t)id - 1;

    return id && index < l->opts.records && l->records[index].id == id ? &l->records[index] : NULL;
}

static void count(ds_live_sum *s, const ds_live_weight *w)
{
    s->records++;
    s->weight.tokens += w->tokens;
    s->weight.work_us += w->work_us;
    s->weight.patches += w->patches;
}

static void uncount(ds_live_sum *s, const ds_live_weight *w)
{
    assert(s->records > 0 && s->weight.tokens >= w->tokens && s->weight.work_us >= w->work_us && s->weight.patches >= w->patches);
    s->records--;
    s->weight.tokens -= w->tokens;
    s->weight.work_us -= w->work_us;
    s->weight.patches -= w->patches;
}

static void link_in(ds_live *l, record *r, int axis, uint32_t to)
{
    uint32_t self = (uint32_t)(r - l->records), *head = &l->heads[axis][to];

    r->at[axis] = to;
    r->next[axis] = *head;
    r->previous[axis] = DS_NONE;
    if (*head != DS_NONE)
        l->records[*head].previous[axis] = self;
    *head = self;
}

static void unlink_from(ds_live *l, record *r, int axis)
{
    if (r->next[axis] != DS_NONE)
        l->records[r->next[axis]].previous[axis] = r->previous[axis];
    if (r->previous[axis] != DS_NONE)
        l->records[r->previous[axis]].next[axis] = r->next[axis];
    else
        l->heads[axis][r->at[axis]] = r->next[axis];
}

uint64_t ds_live_add(ds_live *l, uint32_t owner, uint32_t place, const ds_live_weight *w)
{
    uint32_t index = l->free;
    record *r;

    assert(owner < l->opts.owners && place < l->opts.places);
    if (index == DS_NONE)
        return 0;
    r = &l->records[index];
    l->free = r->next[OWNER];
    r->generation++;
    r->id = (uint64_t)r->generation << 32 | (index + 1);
    r->weight = *w;
    link_in(l, r, OWNER, owner);
    link_in(l, r, PLACE, place);
    count(&l->sums[place], w);
    count(&l->all, w);
    return r->id;
}

bool ds_live_weigh(ds_live *l, uint64_t id, const ds_live_weight *w)
{
    record *r = of_id(l, id);

    if (!r)
        return false;
    uncount(&l->sums[r->at[PLACE]], &r->weight);
    uncount(&l->all, &r->weight);
    r->weight = *w;
    count(&l->sums[r->at[PLACE]], w);
    count(&l->all, w);
    return true;
}

bool ds_live_move(ds_live *l, uint64_t id, uint32_t place)
{
    record *r = of_id(l, id);

    assert(place < l->opts.places);
    if (!r)
        return false;
    uncount(&l->sums[r->at[PLACE]], &r->weight);
    unlink_from(l, r, PLACE);
    link_in(l, r, PLACE, place);
    count(&l->sums[place], &r->weight);
    return true;
}

bool ds_live_end(ds_live *l, uint64_t id)
{
    record *r = of_id(l, id);

    if (!r)
        return false;
    uncount(&l->sums[r->at[PLACE]], &r->weight);
    uncount(&l->all, &r->weight);
    unlink_from(l, r, OWNER);
    unlink_from(l, r, PLACE);
    r->id = 0;
    r->next[OWNER] = l->free;
    l->free = (uint32_t)(r - l->records);
    return true;
}

static uint32_t end_all(ds_live *l, int axis, uint32_t of)
{
    uint32_t n = 0;

    assert(of < n_of(l, axis));
    for (; l->heads[axis][of] != DS_NONE; n++)
        ds_live_end(l, l->records[l->heads[axis][of]].id);
    return n;
}

uint32_t ds_live_end_owner(ds_live *l, uint32_t owner)
{
    return end_all(l, OWNER, owner);
}

uint32_t ds_live_end_place(ds_live *l, uint32_t place)
{
    return end_all(l, PLACE, place);
}

ds_live_sum ds_live_at(const ds_live *l, uint32_t place)
{
    assert(place < l->opts.places);
    return l->sums[place];
}

ds_live_sum ds_live_all(const ds_live *l)
{
    return l->all;
}

/* Steps in a list are bounded by the records: a ring is found, not followed. */
static bool check_list(const ds_live *l, int axis, uint32_t of, ds_live_sum *sum)
{
    uint32_t previous = DS_NONE, i = l->heads[axis][of];

    for (; i != DS_NONE; previous = i, i = l->records[i].next[axis]) {
        const record *r = &l->records[i];
        if (!r->id || r->at[axis] != of || r->previous[axis] != previous || sum->records >= l->opts.records)
            return false;
        count(sum, &r->weight);
    }
    return true;
}

static bool equal(const ds_live_sum *a, const ds_live_sum *b)
{
    return a->records == b->records && a->weight.tokens == b->weight.tokens && a->weight.work_us == b->weight.work_us &&
           a->weight.patches == b->weight.patches;
}

bool ds_live_check(const ds_live *l)
{
    uint64_t n_free = 0;

    for (int a = 0; a < AXES; a++) {
        ds_live_sum all = { 0 };
        for (uint32_t i = 0; i < n_of(l, a); i++) {
            ds_live_sum before = all, one = { 0 };
            if (!check_list(l, a, i, &all) || !check_list(l, a, i, &one))
                return false;
            if (a == PLACE && !equal(&one, &l->sums[i]))
                return false;
            if (before.records + one.records != all.records)
                return false;
        }
        if (!equal(&all, &l->all))
            return false;
    }
    for (uint32_t i = l->free; i != DS_NONE && n_free <= l->opts.records; i = l->records[i].next[OWNER], n_free++)
        if (l->records[i].id)
            return false;
    return n_free + l->all.records == l->opts.records;
}
