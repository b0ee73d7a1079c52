/* Every order in which a reader's loads can fall between a writer's stores, on the code that the program runs.
 *
 * The writer stores and never looks at what readers do, so it is run once and its stores are written down. A reader
 * only loads, so it is a function of the values it got: it is run again from its beginning with the values so far and
 * stopped at the next load. All pairs of a position in the writer's stores and a history of the reader's values are
 * visited, for every position at which the reader may begin. A writer that is killed anywhere is among them: it makes
 * no step any more. What a reader answers must be what it would have answered at one moment between its beginning
 * and its end. */
#include <setjmp.h>
#include <string.h>

#include "kvstore/index_core_internal.h"
#include "test.h"

enum { BUCKETS = 2, BLOCKS = 24, MAX_STORES = 400, MAX_LOADS = 200, SEEN = 1 << 22, WORDS = BUCKETS * 8 + BLOCKS * (8 + 2) };

static uint64_t mem[WORDS], before[WORDS];
static const ds_ix ix = { .bucket = mem,
                          .record = mem + BUCKETS * 8,
                          .extent = mem + BUCKETS * 8 + BLOCKS * 8,
                          .mask = BUCKETS - 1,
                          .max_blocks = BLOCKS,
                          .seed = 1,
                          .tries = 6 }; /* more often than one key changes here */

/* ---- the writer ---- */

static struct {
    uint64_t *at, v;
} stores[MAX_STORES];
static unsigned n_stores;

static uint64_t plain_load(const uint64_t *at)
{
    return *at;
}

static void logged_store(uint64_t *at, uint64_t v)
{
    assert_true(n_stores < MAX_STORES);
    stores[n_stores].at = at;
    stores[n_stores++].v = v;
    *at = v;
}

/* Key `id` has its home in bucket id % BUCKETS; all tags are equal, so that only whole keys tell them apart. */
static void key_of(uint64_t key[4], unsigned id)
{
    key[0] = (uint64_t)(id % BUCKETS) << 32;
    key[1] = 77;
    key[2] = id;
    key[3] = 1000 + id;
}

/* What version v of key id has for its place: each part of it gives both away. */
static uint64_t segment_of(unsigned id, unsigned v)
{
    return id * 100 + v;
}

static void publish(unsigned id, unsigned v, unsigned record, unsigned extent)
{
    uint64_t key[4];

    key_of(key, id);
    ds_ix_place(&ix, extent, segment_of(id, v), segment_of(id, v) << 12 | 1, logged_store);
    assert_true(ds_ix_publish(&ix, record, key, id * 100 + v, id * 100 + v, extent, plain_load, logged_store));
}

static void move(unsigned id, unsigned v, unsigned record, unsigned extent)
{
    ds_ix_place(&ix, extent, segment_of(id, v), segment_of(id, v) << 12 | 1, logged_store);
    ds_ix_move(&ix, record, id * 100 + v, id * 100 + v, extent, plain_load, logged_store);
}

static void hide(unsigned record)
{
    ds_ix_hide(&ix, record, plain_load, logged_store);
}

static void rewind_to(unsigned step)
{
    memcpy(mem, before, sizeof mem);
    for (unsigned i = 0; i < step; i++)
        *stores[i].at = stores[i].v;
}

/* ---- the reader ---- */

static uint64_t history[MAX_LOADS];
static unsigned n_history, n_replayed;
static const uint64_t *wanted;
static jmp_buf stop;

static uint64_t replayed_load(const uint64_t *at)
{
    if (n_replayed < n_history)
        return history[n_replayed++];
    wanted = at;
    longjmp(stop, 1);
}

/* 0: not there; else segment of the place, after checking that all of it is of one key and version. */
static uint64_t answer(bool found, const ds_ix_found *f, unsigned id)
{
    if (!found)
        return 0;
    assert_int_equal(f->segment / 100, id);
    assert_int_equal(f->what, f->segment);
    assert_int_equal(f->crc, f->segment);
    assert_int_equal(f->offset, f->segment << 12 | 1);
    return f->segment;
}

static uint64_t at_once(unsigned id)
{
    uint64_t key[4];
    ds_ix_found f;

    key_of(key, id);
    return answer(ds_ix_find(&ix, key, &f, plain_load), &f, id);
}

static uint64_t true_at[MAX_STORES + 1]; /* the answer after so many stores */

/* Whether a whole record gave that answer after t stores, with or without an entry that leads to it. */
static bool complete_at(unsigned t, unsigned id, uint64_t result)
{
    uint64_t key[4];
    ds_ix_found f;

    key_of(key, id);
    rewind_to(t);
    for (uint32_t r = 0; r < BLOCKS; r++)
        if (ds_ix_read(&ix, r, key, &f, plain_load) > 0 && answer(true, &f, id) == result)
            return true;
    return false;
}
static uint64_t *seen;
static unsigned long visited, ended;

static bool first_visit(unsigned step)
{
    uint64_t h = 14695981039346656037u ^ step;

    for (unsigned i = 0; i < n_history; i++)
        h = (h ^ history[i]) * 1099511628211u + (h >> 29);
    h |= 1;
    for (uint64_t at = h * 0x9e3779b97f4a7c15u >> 42;; at = (at + 1) % SEEN) {
        if (seen[at] == h)
            return false;
        if (seen[at] == 0) {
            seen[at] = h;
            assert_true(++visited < SEEN / 2);
            return true;
        }
    }
}

static void explore(unsigned id, unsigned begin, unsigned step)
{
    uint64_t key[4], result;
    const uint64_t *next;
    ds_ix_found f;

    if (!first_visit(step))
        return;
    key_of(key, id);
    n_replayed = 0;
    if (setjmp(stop) == 0) {
        result = answer(ds_ix_find(&ix, key, &f, replayed_load), &f, id);
        ended++;
        for (unsigned t = begin; t <= step; t++)
            if (true_at[t] == result || (result && complete_at(t, id, result)))
                return;
        fail_msg("key %u, begun after %u stores, ended after %u: %lu was never true", id, begin, step, (unsigned long)result);
    }
    next = wanted;
    rewind_to(step);
    assert_true(n_history < MAX_LOADS);
    history[n_history++] = *next;
    explore(id, begin, step);
    n_history--;
    if (step < n_stores)
        explore(id, begin, step + 1);
}

/* parent 0: none. At every moment a key is only there while its parent is. */
static void all_orders(unsigned ids, const unsigned *parent)
{
    for (unsigned id = 1; id <= ids; id++) {
        for (unsigned t = 0; t <= n_stores; t++) {
            rewind_to(t);
            true_at[t] = at_once(id);
            assert_true(!true_at[t] || !parent[id] || at_once(parent[id]));
        }
        for (unsigned begin = 0; begin <= n_stores; begin++) {
            memset(seen, 0, SEEN * sizeof *seen);
            visited = 0;
            n_history = 0;
            explore(id, begin, begin);
        }
    }
    print_message("%u stores, %lu ends of readers\n", n_stores, ended);
    assert_true(ended > 100);
}

static int setup(void **state)
{
    (void)state;
    seen = calloc(SEEN, sizeof *seen);
    memset(mem, 0, sizeof mem);
    n_stores = 0;
    ended = 0;
    return seen ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    free(seen);
    return 0;
}

/* What was stored so far is how it begins. */
static void begin_here(void)
{
    memcpy(before, mem, sizeof mem);
    n_stores = 0;
}

static void published_evicted_and_its_record_used_again(void **state)
{
    static const unsigned parent[] = { 0, 0, 1, 0, 2 };

    (void)state;
    begin_here();
    publish(1, 1, 0, 0);
    publish(2, 1, 1, 1);
    hide(1); /* the child first */
    hide(0);
    publish(3, 1, 1, 1); /* its record and its extent */
    publish(1, 2, 0, 0);
    publish(2, 2, 2, 2);
    all_orders(3, parent);
}

static void moved_to_another_place(void **state)
{
    static const unsigned parent[] = { 0, 0, 1, 0 };

    (void)state;
    publish(1, 1, 0, 0);
    publish(2, 1, 1, 1);
    begin_here();
    move(1, 2, 0, 2);
    publish(3, 1, 3, 0); /* the extent that it left */
    move(1, 3, 0, 4);
    move(2, 2, 1, 2);
    all_orders(3, parent);
}

/* Nine keys of one bucket: two are behind it. */
static void full_buckets(void **state)
{
    static const unsigned parent[32] = { 0 };

    (void)state;
    for (unsigned i = 0; i < 7; i++)
        publish(2 * i + 3, 1, i, i);
    begin_here();
    publish(1, 1, 7, 7); /* passes */
    hide(3);
    publish(17, 1, 3, 3); /* takes the room in the home bucket */
    hide(7);
    publish(1, 2, 8, 8);
    all_orders(3, parent);
}

/* A key that is there all the time is found all the time, whatever comes and goes around it. */
static void what_stays_is_found(void **state)
{
    static const unsigned parent[32] = { 0 };

    (void)state;
    for (unsigned i = 0; i < 7; i++)
        publish(2 * i + 3, 1, i, i);
    publish(1, 1, 7, 7);
    begin_here();
    hide(0);
    publish(17, 1, 8, 8);
    publish(19, 1, 9, 9);
    hide(9);
    hide(1);
    for (unsigned t = 0; t <= n_stores; t++) {
        rewind_to(t);
        assert_int_equal(at_once(1), segment_of(1, 1));
    }
    rewind_to(n_stores);
    all_orders(1, parent);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(published_evicted_and_its_record_used_again, setup, teardown),
        cmocka_unit_test_setup_teardown(moved_to_another_place, setup, teardown),
        cmocka_unit_test_setup_teardown(full_buckets, setup, teardown),
        cmocka_unit_test_setup_teardown(what_stays_is_found, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
