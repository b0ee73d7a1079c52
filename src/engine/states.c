#include "engine/states.h"

#include <assert.h>
#include <stdlib.h>

uint64_t ds_states_bytes(uint32_t n_seats, uint32_t n_saved)
{
    const ds_states *s = NULL;

    return (uint64_t)n_seats * sizeof *s->seat +
           (n_saved + 1ull) *
               (sizeof *s->pins + sizeof *s->dec_start + sizeof *s->approx + sizeof *s->touched_us + sizeof *s->next + sizeof *s->prev) +
           ds_keytab_bytes(n_saved);
}

ds_rc ds_states_init(ds_states *s, uint32_t n_seats, uint32_t n_saved, uint64_t ttl_us, ds_err *err)
{
    *s = (ds_states){ .n_seats = n_seats, .n_saved = n_saved, .n_free_seats = n_seats, .ttl_us = ttl_us };
    s->seat = calloc(n_seats, sizeof *s->seat);
    s->pins = calloc(n_saved, sizeof *s->pins);
    s->dec_start = calloc(n_saved, sizeof *s->dec_start);
    s->approx = calloc(n_saved, sizeof *s->approx);
    s->touched_us = calloc(n_saved, sizeof *s->touched_us);
    s->next = calloc((size_t)n_saved + 1, sizeof *s->next);
    s->prev = calloc((size_t)n_saved + 1, sizeof *s->prev);
    if (!s->seat || !s->pins || !s->dec_start || !s->approx || !s->touched_us || !s->next || !s->prev ||
        ds_keytab_init(&s->keys, n_saved, err) != DS_OK) {
        ds_states_fini(s);
        return ds_fail(err, DS_E_NOMEM, "engine: out of memory for %u state slots", n_seats + n_saved);
    }
    for (uint32_t i = 0; i < n_seats; i++)
        s->seat[i] = n_seats - 1 - i;
    for (uint32_t i = 0; i <= n_saved; i++) {
        s->next[i] = i == n_saved ? 0 : i + 1;
        s->prev[i] = i == 0 ? n_saved : i - 1;
    }
    return DS_OK;
}

void ds_states_fini(ds_states *s)
{
    free(s->seat);
    free(s->pins);
    free(s->dec_start);
    free(s->approx);
    free(s->touched_us);
    free(s->next);
    free(s->prev);
    ds_keytab_fini(&s->keys);
    *s = (ds_states){ 0 };
}

uint32_t ds_states_take_seat(ds_states *s)
{
    return s->n_free_seats ? s->seat[--s->n_free_seats] : DS_NONE;
}

void ds_states_give_seat(ds_states *s, uint32_t slot)
{
    assert(slot < s->n_seats && s->n_free_seats < s->n_seats);
    s->seat[s->n_free_seats++] = slot;
}

static void unlink_state(ds_states *s, uint32_t i)
{
    s->next[s->prev[i]] = s->next[i];
    s->prev[s->next[i]] = s->prev[i];
}

/* Behind `at`. */
static void link_state(ds_states *s, uint32_t i, uint32_t at)
{
    s->prev[i] = at;
    s->next[i] = s->next[at];
    s->prev[s->next[at]] = i;
    s->next[at] = i;
}

uint32_t ds_states_take(ds_states *s)
{
    uint32_t i = s->next[s->n_saved];

    if (i == s->n_saved)
        return DS_NONE;
    s->evicted += s->keys.used[i];
    ds_keytab_drop(&s->keys, i);
    ds_states_pin(s, i);
    return i;
}

static bool is_fresh(const ds_states *s, uint32_t i, uint64_t now_us)
{
    return now_us - s->touched_us[i] <= s->ttl_us;
}

void ds_states_name(ds_states *s, uint32_t i, const ds_key *k, uint32_t dec_start, bool approx, uint64_t now_us)
{
    uint32_t old = ds_keytab_find(&s->keys, k);

    assert(s->pins[i] > 0 && !s->keys.used[i]);
    s->saved++;
    s->dec_start[i] = dec_start;
    s->approx[i] = approx;
    s->touched_us[i] = now_us;
    if (old != DS_NONE && (s->pins[old] > 0 || (approx && !s->approx[old] && is_fresh(s, old, now_us))))
        return;
    if (old != DS_NONE) {
        ds_keytab_drop(&s->keys, old);
        unlink_state(s, old);
        link_state(s, old, s->n_saved); /* empty: the first to be given out */
    }
    ds_keytab_put(&s->keys, k, i);
}

void ds_states_pin(ds_states *s, uint32_t i)
{
    assert(i < s->n_saved);
    if (s->pins[i]++ == 0) {
        unlink_state(s, i);
        s->n_pinned++;
    }
}

void ds_states_unpin(ds_states *s, uint32_t i)
{
    assert(i < s->n_saved && s->pins[i] > 0);
    if (--s->pins[i] == 0) {
        link_state(s, i, s->keys.used[i] ? s->prev[s->n_saved] : s->n_saved);
        s->n_pinned--;
    }
}

uint32_t ds_states_find(ds_states *s, const ds_key *k, uint64_t now_us)
{
    uint32_t i = ds_keytab_find(&s->keys, k);

    if (i == DS_NONE || !is_fresh(s, i, now_us))
        return DS_NONE;
    s->touched_us[i] = now_us;
    if (s->pins[i] == 0) {
        unlink_state(s, i);
        link_state(s, i, s->prev[s->n_saved]);
    }
    return i;
}
