/* State slots: seats, pins, names and their age, and all of it at random against a model. */
#include <malloc.h>

#include "base/rng.h"
#include "engine/states.h"
#include "fault.h"
#include "test.h"

enum { NOTHING = -1, MAX = 12, TTL = 1000 };

static ds_key key_of(uint32_t name)
{
    ds_key k = { { (uint8_t)name } };

    k.b[31] = 1;
    return k;
}

static ds_states make(uint32_t seats, uint32_t saved)
{
    ds_states s;
    ds_err err;

    assert_ok(ds_states_init(&s, seats, saved, TTL, &err));
    return s;
}

static void name(ds_states *s, uint32_t i, uint32_t as, bool approx, uint64_t now)
{
    ds_key k = key_of(as);

    ds_states_name(s, i, &k, 7, approx, now);
}

static uint32_t find(ds_states *s, uint32_t as, uint64_t now)
{
    ds_key k = key_of(as);

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

typedef struct {
    uint32_t n, pins[MAX], idle[MAX], n_idle;
    int key[MAX];
    bool approx[MAX];
    uint64_t touched[MAX];
} model;

static void model_leave(model *m, uint32_t i)
{
    uint32_t at = 0;

    while (m->idle[at] != i)
        at++;
    memmove(m->idle + at, m->idle + at + 1, (--m->n_idle - at) * sizeof *m->idle);
}

static void model_join(model *m, uint32_t i)
{
    if (m->key[i] != NOTHING) {
        m->idle[m->n_idle++] = i;
        return;
    }
    memmove(m->idle + 1, m->idle, m->n_idle++ * sizeof *m->idle);
    m->idle[0] = i;
}

static int model_keyed(const model *m, int key)
{
    for (uint32_t i = 0; i < m->n; i++)
        if (m->key[i] == key)
            return (int)i;
    return NOTHING;
}

static void model_name(model *m, uint32_t i, int key, bool approx, uint64_t now)
{
    int old = model_keyed(m, key);

    m->approx[i] = approx;
    m->touched[i] = now;
    if (old != NOTHING && (m->pins[old] > 0 || (approx && !m->approx[old] && now - m->touched[old] <= TTL)))
        return;
    if (old != NOTHING) {
        m->key[old] = NOTHING;
        model_leave(m, (uint32_t)old);
        model_join(m, (uint32_t)old);
    }
    m->key[i] = key;
}

static uint32_t model_find(model *m, int key, uint64_t now)
{
    int i = model_keyed(m, key);

    if (i == NOTHING || now - m->touched[i] > TTL)
        return UINT32_MAX;
    m->touched[i] = now;
    if (m->pins[i] == 0) {
        model_leave(m, (uint32_t)i);
        model_join(m, (uint32_t)i);
    }
    return (uint32_t)i;
}

static void assert_equal(const model *m, const ds_states *s)
{
    uint32_t at = s->next[s->n_saved];

    for (uint32_t i = 0; i < m->n_idle; i++, at = s->next[at]) {
        assert_int_equal(at, m->idle[i]);
        assert_int_equal(s->next[s->prev[at]], at);
    }
    assert_int_equal(at, s->n_saved);
    assert_int_equal(s->n_pinned, m->n - m->n_idle);
    for (uint32_t i = 0; i < m->n; i++) {
        assert_int_equal(s->pins[i], m->pins[i]);
        assert_int_equal(s->keys.used[i], m->key[i] != NOTHING);
    }
}

static void random_operations(void **state)
{
    (void)state;
    for (uint32_t n = 2; n <= MAX; n += 5) {
        ds_states s = make(1, n);
        model m = { .n = n, .n_idle = n };
        uint64_t now = 1;
        for (uint32_t i = 0; i < n; i++) {
            m.idle[i] = i;
            m.key[i] = NOTHING;
        }
        for (uint32_t step = 0; step < 30000; step++) {
            uint64_t r = ds_rng_u64(n, 0, step);
            uint32_t i = (uint32_t)(r >> 8) % n;
            int key = (int)((r >> 40) % n);
            now += (r >> 20) % (TTL / 4);
            switch (r % 6) {
            case 0: {
                uint32_t got = ds_states_take(&s);
                assert_int_equal(got, m.n_idle ? m.idle[0] : UINT32_MAX);
                if (m.n_idle) {
                    model_leave(&m, got);
                    m.key[got] = NOTHING;
                    m.pins[got] = 1;
                }
                break;
            }
            case 1:
                if (m.pins[i] > 0 && m.key[i] == NOTHING) {
                    name(&s, i, (uint32_t)key, r >> 60 & 1, now);
                    model_name(&m, i, key, r >> 60 & 1, now);
                }
                break;
            case 2: {
                uint32_t found = find(&s, (uint32_t)key, now);
                assert_int_equal(found, model_find(&m, key, now));
                if (found != UINT32_MAX && (r >> 61 & 1)) {
                    ds_states_pin(&s, found);
                    if (m.pins[found]++ == 0)
                        model_leave(&m, found);
                }
                break;
            }
            default:
                if (m.pins[i] > 0) {
                    ds_states_unpin(&s, i);
                    if (--m.pins[i] == 0)
                        model_join(&m, i);
                }
            }
            assert_equal(&m, &s);
        }
        ds_states_fini(&s);
    }
}

/* The plan says what is taken: never less, and not much more. */
static void bytes_are_what_is_taken(void **state)
{
    (void)state;
    for (uint32_t n = 1000; n < 300000; n = 3 * n + 1) {
        struct mallinfo2 before = mallinfo2(), after;
        uint64_t taken;
        ds_states s = make(n / 2, n);
        after = mallinfo2();
        taken = after.uordblks + after.hblkhd - before.uordblks - before.hblkhd;
        ds_states_fini(&s);
        if (taken == 0)
            skip();                                                  /* another allocator, which doesn't count */
        assert_true(taken <= ds_states_bytes(n / 2, n) + 16 * 4096); /* the heap's own pages */
        assert_true(taken >= ds_states_bytes(n / 2, n) / 2);
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
