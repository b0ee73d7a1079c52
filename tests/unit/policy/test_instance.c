/* How an instance leaves: every state with every fact, and whole drains. */
#include "policy/instance.h"
#include "test.h"

static const ds_instance_limits limits = { .announce_us = 5, .grace_us = 60, .move_us = 30, .kv_us = 20 };

static ds_instance_facts facts(unsigned bits)
{
    return (ds_instance_facts){ bits & 1, bits & 2, bits >> 2 & 1, bits >> 3 & 1, bits >> 4 & 1 };
}

/* Written out once more, one state at a time. */
static ds_instance_state expect(ds_instance_state s, const ds_instance_facts *f, bool over)
{
    if (f->dead || s == DS_INSTANCE_GONE)
        return DS_INSTANCE_GONE;
    if (s <= DS_INSTANCE_GRACE && !f->drain)
        return DS_INSTANCE_READY;
    if (s == DS_INSTANCE_READY || (s == DS_INSTANCE_DRAINING && f->senders && !over)) {
        if (f->senders)
            return DS_INSTANCE_DRAINING;
    }
    if (s <= DS_INSTANCE_DRAINING) /* grace begins now */
        s = DS_INSTANCE_GRACE, over = false;
    if (s == DS_INSTANCE_GRACE && f->live)
        return over ? DS_INSTANCE_MOVING : DS_INSTANCE_GRACE;
    if (s == DS_INSTANCE_MOVING && f->live && !over)
        return DS_INSTANCE_MOVING;
    if (s != DS_INSTANCE_KV_ONLY)
        over = false;
    return f->readers && !over ? DS_INSTANCE_KV_ONLY : DS_INSTANCE_GONE;
}

static void every_state_and_fact(void **state)
{
    (void)state;
    for (unsigned s = 0; s < DS_INSTANCE_STATES; s++)
        for (unsigned bits = 0; bits < 32; bits++)
            for (uint64_t now = 990; now <= 1070; now++) {
                ds_instance i = { s, 1000, 7 };
                ds_instance_facts f = facts(bits);
                ds_instance_step a = ds_instance_next(&i, &f, &limits, now), b = ds_instance_next(&a.next, &f, &limits, now);
                bool over = now >= ds_instance_due_us(&i, &limits);
                assert_int_equal(a.next.state, expect(s, &f, over));
                /* at rest: the same again changes nothing and orders nothing */
                assert_true(a.next.state == b.next.state && a.next.since_us == b.next.since_us && a.next.epoch == b.next.epoch);
                assert_false(b.move || b.recompute);
                /* never back, but to Ready before anything moved */
                assert_true(a.next.state >= s || (a.next.state == DS_INSTANCE_READY && s <= DS_INSTANCE_GRACE && !f.dead));
                /* orders, and the epoch that makes older answers void */
                assert_int_equal(a.move, s == DS_INSTANCE_GRACE && a.next.state == DS_INSTANCE_MOVING);
                assert_int_equal(a.recompute, f.live && s <= DS_INSTANCE_MOVING &&
                                                  ((f.dead && s < DS_INSTANCE_KV_ONLY) || (s == DS_INSTANCE_MOVING && over)));
                assert_int_equal(a.next.epoch, 7u + a.move + a.recompute);
                assert_int_equal(a.next.since_us, a.next.state == s ? 1000 : now < 1000 ? 1000 : now);
            }
}

/* Whatever the others do, or never do, a drain ends in the sum of the limits, through the states in order. */
static void every_drain_ends(void **state)
{
    (void)state;
    for (unsigned bits = 0; bits < 32; bits++) {
        ds_instance i = { 0 };
        ds_instance_facts f = facts(bits | 2);
        unsigned moves = 0, calls = 0;
        uint64_t now = 100;
        while (i.state != DS_INSTANCE_GONE) {
            ds_instance_step s = ds_instance_next(&i, &f, &limits, now);
            moves += s.move;
            i = s.next;
            assert_true(++calls <= DS_INSTANCE_STATES);
            assert_true(i.state != DS_INSTANCE_READY);
            now = i.state == DS_INSTANCE_GONE ? now : ds_instance_due_us(&i, &limits);
        }
        assert_true(moves <= 1 && now <= 100 + 5 + 60 + 30 + 20);
    }
}

static void a_drain_taken_back(void **state)
{
    ds_instance i = { 0 };
    ds_instance_facts f = { .drain = true, .live = 3 };

    (void)state;
    i = ds_instance_next(&i, &f, &limits, 10).next;
    assert_int_equal(i.state, DS_INSTANCE_GRACE);
    f.drain = false;
    i = ds_instance_next(&i, &f, &limits, 69).next;
    assert_int_equal(i.state, DS_INSTANCE_READY);
    f.drain = true; /* the minute begins anew */
    i = ds_instance_next(&i, &f, &limits, 80).next;
    assert_int_equal(ds_instance_next(&i, &f, &limits, 139).next.state, DS_INSTANCE_GRACE);
    i = ds_instance_next(&i, &f, &limits, 140).next;
    assert_int_equal(i.state, DS_INSTANCE_MOVING);
    f.drain = false; /* too late */
    assert_int_equal(ds_instance_next(&i, &f, &limits, 141).next.state, DS_INSTANCE_MOVING);
}

static void names_and_limits(void **state)
{
    ds_instance_limits l = DS_INSTANCE_LIMITS;

    (void)state;
    assert_int_equal(l.grace_us, 60000000);
    assert_string_equal(ds_instance_state_name(DS_INSTANCE_KV_ONLY), "kv-only");
    assert_string_equal(ds_instance_state_name((ds_instance_state)99), "unknown");
    assert_true(ds_instance_due_us(&(ds_instance){ 0 }, &l) == UINT64_MAX);
    assert_true(ds_instance_due_us(&(ds_instance){ DS_INSTANCE_GRACE, UINT64_MAX - 1, 0 }, &l) == UINT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(every_state_and_fact), cmocka_unit_test(every_drain_ends),
                                        cmocka_unit_test(a_drain_taken_back), cmocka_unit_test(names_and_limits) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
