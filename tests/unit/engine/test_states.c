/* State slots: seats, pins, names and their age, and all of it at random against a model. */
#include <malloc.h>

#include "engine/states.h"
#include "fault.h"
#include "lru_model.h"

enum { TTL = 1000 };

static ds_states make(uint32_t seats, uint32_t saved)
{
    ds_states s;
    ds_err err;

    assert_ok(ds_states_init(&s, seats, saved, TTL, &err));
    return s;
}

static void name(ds_states *s, uint32_t i, uint32_t as, bool approx, uint64_t now)
{
    ds_key k = lru_key(as);

    ds_states_name(s, i, &k, 7, approx, now);
}

static uint32_t find(ds_states *s, uint32_t as, uint64_t now)
{
    ds_key k = lru_key(as);

    return ds_states_find(s, &k, now);
}

/* A saved state under that name that nobody pins. */
static uint32_t save(ds_states *s, uint32_t as, uint64_t now)
{
    uint32_t i = ds_states_take(s);

    assert_true(i < s->n_saved);
    name(s, i, as, false, now);
    ds_states_unpin(s, i);
    return i;
}

static void seats(void **state)
{
    ds_states s = make(3, 2);
    uint32_t a = ds_states_take_seat(&s), b = ds_states_take_seat(&s), c = ds_states_take_seat(&s);

    (void)state;
    assert_true(a < 3 && b < 3 && c < 3 && a != b && a != c && b != c);
    assert_int_equal(ds_states_take_seat(&s), UINT32_MAX);
    ds_states_give_seat(&s, b);
    assert_int_equal(ds_states_take_seat(&s), b);
    assert_int_equal(ds_states_slot(&s, 0), 3);
    assert_int_equal(ds_states_slot(&s, 1), 4);
    ds_states_fini(&s);
}

/* What is pinned is never given out; when all are, there is none. */
static void pins_hold(void **state)
{
    ds_states s = make(1, 2);
    uint32_t a = save(&s, 1, 0), b = ds_states_take(&s);

    (void)state;
    assert_true(a != b);
    ds_states_pin(&s, a);
    ds_states_pin(&s, a);
    assert_int_equal(ds_states_take(&s), UINT32_MAX);
    ds_states_unpin(&s, a);
    assert_int_equal(ds_states_take(&s), UINT32_MAX);
    assert_int_equal(find(&s, 1, 1), a);
    ds_states_unpin(&s, a);
    assert_int_equal(s.n_pinned, 1);
    assert_int_equal(ds_states_take(&s), a);
    assert_int_equal(find(&s, 1, 1), UINT32_MAX);
    assert_int_equal(s.evicted, 1);
    ds_states_fini(&s);
}

static void least_recently_used_goes_first(void **state)
{
    ds_states s = make(1, 3);
    uint32_t a = save(&s, 1, 0), b = save(&s, 2, 1), c = save(&s, 3, 2);

    (void)state;
    assert_int_equal(find(&s, 1, 3), a); /* a use */
    assert_int_equal(ds_states_take(&s), b);
    assert_int_equal(ds_states_take(&s), c);
    assert_int_equal(ds_states_take(&s), a);
    ds_states_fini(&s);
}

/* Not found after its time; each use gives it another one. */
static void time_to_live(void **state)
{
    ds_states s = make(1, 2);
    uint32_t a = save(&s, 1, 5);

    (void)state;
    assert_int_equal(find(&s, 1, 5 + TTL), a);
    assert_int_equal(find(&s, 1, 5 + 2 * TTL), a);
    assert_int_equal(find(&s, 1, 6 + 3 * TTL), UINT32_MAX);
    assert_int_equal(find(&s, 1, 7 + 3 * TTL), UINT32_MAX); /* a look that found nothing wasn't a use */
    ds_states_fini(&s);
}

/* The newer of two under one key is found, unless the older one is in use; exact ones win; one that is too old
 * doesn't count. */
static void names_are_taken_over(void **state)
{
    ds_states s = make(1, 4);
    uint32_t a = save(&s, 1, 0), b = save(&s, 1, 1), c, d;

    (void)state;
    assert_true(a != b);
    assert_int_equal(find(&s, 1, 2), b);
    c = ds_states_take(&s);
    assert_int_equal(c, a); /* it became empty */
    assert_int_equal(s.evicted, 0);
    ds_states_pin(&s, b);
    name(&s, c, 1, false, 3);
    assert_int_equal(find(&s, 1, 4), b);
    ds_states_unpin(&s, c);
    ds_states_unpin(&s, b);
    d = ds_states_take(&s);
    assert_int_equal(d, c); /* nameless: empty again */
    name(&s, d, 1, true, 5);
    assert_int_equal(find(&s, 1, 6), b); /* approximate ones don't replace exact ones */
    ds_states_unpin(&s, d);
    d = ds_states_take(&s);
    name(&s, d, 1, true, 7 + TTL);
    assert_int_equal(find(&s, 1, 8 + TTL), d); /* but those that aren't found any more */
    assert_true(s.approx[d]);
    ds_states_unpin(&s, d);
    b = save(&s, 1, 9 + TTL);
    assert_int_equal(find(&s, 1, 10 + TTL), b);
    assert_false(s.approx[b]);
    assert_int_equal(s.dec_start[b], 7);
    ds_states_fini(&s);
}

/* ---- at random ---- */

static uint64_t touched[LRU_MAX];

static void model_name(lru_model *m, uint32_t i, int key, bool approx, uint64_t now)
{
    int old = lru_find(m, key);

    m->approx[i] = approx;
    touched[i] = now;
    if (old == LRU_NONE || (m->held[old] == 0 && !(approx && !m->approx[old] && now - touched[old] <= TTL)))
        lru_rename(m, i, key, approx);
}

static uint32_t model_find(lru_model *m, int key, uint64_t now)
{
    int i = lru_find(m, key);

    if (i == LRU_NONE || now - touched[i] > TTL)
        return UINT32_MAX;
    touched[i] = now;
    if (m->held[i] == 0) {
        lru_leave(m, (uint32_t)i);
        lru_join(m, (uint32_t)i);
    }
    return (uint32_t)i;
}

static void random_operations(void **state)
{
    (void)state;
    for (uint32_t n = 2; n <= LRU_MAX; n += 5) {
        ds_states s = make(1, n);
        lru_model m = lru_new(n);
        uint64_t now = 1;
        for (uint32_t step = 0; step < LRU_STEPS; step++) {
            uint64_t r = ds_rng_u64(n, 0, step);
            uint32_t i = (uint32_t)(r >> 8) % n, found;
            int key = (int)((r >> 40) % n);
            now += (r >> 20) % (TTL / 4);
            switch (r % 6) {
            case 0:
                assert_int_equal(ds_states_take(&s), lru_take(&m));
                break;
            case 1:
                if (m.held[i] > 0 && m.name[i] == LRU_NONE) {
                    name(&s, i, (uint32_t)key, r >> 60 & 1, now);
                    model_name(&m, i, key, r >> 60 & 1, now);
                }
                break;
            case 2:
                found = find(&s, (uint32_t)key, now);
                assert_int_equal(found, model_find(&m, key, now));
                if (found != UINT32_MAX && (r >> 61 & 1)) {
                    ds_states_pin(&s, found);
                    lru_hold(&m, found);
                }
                break;
            default:
                if (m.held[i] > 0) {
                    ds_states_unpin(&s, i);
                    lru_let(&m, i);
                }
            }
            lru_compare(&m, s.next, s.prev, s.pins, s.keys.used);
            assert_int_equal(s.n_pinned, m.n - m.n_idle);
        }
        ds_states_fini(&s);
    }
}

static void bytes_are_what_is_taken(void **state)
{
    (void)state;
    for (uint32_t n = 1000; n < 300000; n = 3 * n + 1) {
        struct mallinfo2 before = mallinfo2(), after;
        ds_states s = make(n / 2, n);
        after = mallinfo2();
        ds_states_fini(&s);
        lru_bytes(after.uordblks + after.hblkhd - before.uordblks - before.hblkhd, ds_states_bytes(n / 2, n));
    }
}

static ds_rc attempt(void *ctx, ds_err *err)
{
    ds_states s;
    ds_rc rc = ds_states_init(&s, 3, 4, TTL, err);

    (void)ctx;
    if (rc == DS_OK)
        ds_states_fini(&s);
    return rc;
}

static void allocations_fail(void **state)
{
    (void)state;
    assert_int_equal(fault_every_allocation(attempt, NULL), 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(seats),
        cmocka_unit_test(pins_hold),
        cmocka_unit_test(least_recently_used_goes_first),
        cmocka_unit_test(time_to_live),
        cmocka_unit_test(names_are_taken_over),
        cmocka_unit_test(random_operations),
        cmocka_unit_test(allocations_fail),
        cmocka_unit_test(bytes_are_what_is_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
