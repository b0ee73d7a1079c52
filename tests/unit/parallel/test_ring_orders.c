/* Every order in which the steps of two ranks on a ring and its bells can fall, on the code that the program runs.
 *
 * The writer sends MESSAGES numbered messages through a ring with fewer slots; the reader looks at each where it lies.
 * Both sleep when there is nothing to do. Each is a function of the values that its loads gave: it is run again from
 * the last time that it began to wait, with the values so far, and stopped at its next access of shared memory. All
 * reachable states of memory, values seen and sleepers are visited. In none does the reader see another message than
 * the next one, and none is a dead end: no wake-up is ever lost, though no sleep here ends by itself. */
#include <setjmp.h>

#include "parallel/ring_internal.h"
#include "test.h"

enum { SLOTS = 2, MESSAGES = 4, MAX_SEEN = 8, STATES = 1 << 20 };

typedef enum { LOAD, STORE, ADD, SLEEP, WAKE } kind;

/* Shared memory, as words. The payload of each slot is one of them. */
static struct {
    ds_ring ring;
    ds_bell bell[2];
    atomic_uint slot[SLOTS];
} mem;
static atomic_uint *const words[] = { &mem.ring.posted,   &mem.ring.taken,     &mem.bell[0].rings, &mem.bell[0].asleep,
                                      &mem.bell[1].rings, &mem.bell[1].asleep, &mem.slot[0],       &mem.slot[1] };
enum { WORDS = sizeof words / sizeof *words, WRITER = 0, READER = 1 };

typedef struct {
    unsigned word[WORDS];
    struct {
        unsigned message;                       /* it waits for room for it, or for it, */
        unsigned seen[MAX_SEEN], n_seen, steps; /* and has done this since */
        unsigned on;                            /* the word slept on */
        bool sleeps, over;
    } rank[2];
} state;

/* The run of one rank up to its next step. */
static struct {
    state *to;
    unsigned rank, steps, loads;
    kind next;
    atomic_uint *at;
    unsigned value;
    jmp_buf out;
} run;

static bool broken_order;

/* Comes back where the step was taken in an earlier run already. */
static void again(kind k, atomic_uint *at, unsigned value)
{
    if (run.steps++ < run.to->rank[run.rank].steps)
        return;
    run.next = k;
    run.at = at;
    run.value = value;
    longjmp(run.out, 1);
}

static unsigned t_load(atomic_uint *at)
{
    again(LOAD, at, 0);
    return run.to->rank[run.rank].seen[run.loads++];
}

static void t_store(atomic_uint *at, unsigned v)
{
    again(STORE, at, v);
}

static void t_add(atomic_uint *at)
{
    again(ADD, at, 0);
}

static void t_sleep(atomic_uint *at, unsigned seen, void *ctx)
{
    (void)ctx;
    again(SLEEP, at, seen);
}

static void t_wake(atomic_uint *at)
{
    again(WAKE, at, 0);
}

static const ds_ring_io io = { t_load, t_store, t_add, t_sleep, t_wake };

/* From here on a rank's past doesn't matter, but for its message's number. */
static void begin_to_wait(unsigned message)
{
    run.to->rank[run.rank].message = message;
    run.to->rank[run.rank].steps = run.to->rank[run.rank].n_seen = 0;
    memset(run.to->rank[run.rank].seen, 0, sizeof run.to->rank[run.rank].seen);
    run.steps = run.loads = 0;
}

static int no_room(void *number)
{
    return ds_ring_has_room(&mem.ring, *(unsigned *)number, SLOTS, &io) ? -1 : READER;
}

static int no_message(void *number)
{
    return ds_ring_has_come(&mem.ring, *(unsigned *)number, &io) ? -1 : WRITER;
}

static void write_from(unsigned i)
{
    while (i < MESSAGES) {
        if (no_room(&i) >= 0) {
            ds_bell_sleep(&mem.bell[WRITER], DS_BELL_ANY, no_room, &i, &io);
        } else {
            t_store(&mem.slot[i % SLOTS], 100 + i);
            ds_ring_post(&mem.ring, i, &io);
            ds_bell_ring(&mem.bell[READER], DS_BELL_ANY, &io);
            i++;
        }
        begin_to_wait(i);
    }
}

static void read_from(unsigned i)
{
    while (i < MESSAGES) {
        if (no_message(&i) >= 0) {
            ds_bell_sleep(&mem.bell[READER], DS_BELL_ANY, no_message, &i, &io);
        } else {
            if (t_load(&mem.slot[i % SLOTS]) != 100 + i)
                broken_order = true;
            ds_ring_done(&mem.ring, i, &io);
            ds_bell_ring(&mem.bell[WRITER], DS_BELL_ANY, &io);
            i++;
        }
        begin_to_wait(i);
    }
}

static unsigned word_of(const atomic_uint *at)
{
    for (unsigned i = 0; i < WORDS; i++)
        if (words[i] == at)
            return i;
    fail_msg("a word that nobody shares");
    return 0;
}

static void step(state *to, const state *from, unsigned rank)
{
    *to = *from;
    run.to = to;
    run.rank = rank;
    run.steps = run.loads = 0;
    if (setjmp(run.out) == 0) {
        if (rank == WRITER)
            write_from(from->rank[rank].message);
        else
            read_from(from->rank[rank].message);
        to->rank[rank].over = true;
        return;
    }
    to->rank[rank].steps++;
    unsigned w = word_of(run.at);
    switch (run.next) {
    case LOAD:
        assert_true(to->rank[rank].n_seen < MAX_SEEN);
        to->rank[rank].seen[to->rank[rank].n_seen++] = from->word[w];
        break;
    case STORE:
        to->word[w] = run.value;
        break;
    case ADD:
        to->word[w]++;
        break;
    case SLEEP:
        to->rank[rank].sleeps = from->word[w] == run.value;
        to->rank[rank].on = w;
        break;
    case WAKE:
        if (to->rank[!rank].sleeps && to->rank[!rank].on == w)
            to->rank[!rank].sleeps = false;
        break;
    }
}

/* ---- all of them ---- */

static state *stack;
static size_t n_stack, n_states;
static uint64_t *seen_states;

static uint64_t hash(const state *s)
{
    const uint8_t *p = (const uint8_t *)s;
    uint64_t h = 1469598103934665603u;

    for (size_t i = 0; i < sizeof *s; i++)
        h = (h ^ p[i]) * 1099511628211u;
    return h ? h : 1;
}

static void visit(const state *s)
{
    uint64_t h = hash(s);
    size_t i = h & (STATES * 2 - 1);

    for (; seen_states[i]; i = (i + 1) & (STATES * 2 - 1))
        if (seen_states[i] == h)
            return;
    seen_states[i] = h;
    assert_true(++n_states < STATES);
    stack[n_stack++] = *s;
}

static void every_order_of_a_ring(void **unused)
{
    state s, next;
    (void)unused;

    stack = malloc(STATES / 8 * sizeof *stack);
    seen_states = calloc(STATES * 2, sizeof *seen_states);
    assert_non_null(stack);
    assert_non_null(seen_states);
    memset(&s, 0, sizeof s);
    visit(&s);
    while (n_stack > 0) {
        bool stuck = true;
        s = stack[--n_stack];
        for (unsigned rank = 0; rank < 2; rank++) {
            if (s.rank[rank].sleeps || s.rank[rank].over)
                continue;
            stuck = false;
            step(&next, &s, rank);
            visit(&next);
        }
        assert_false(broken_order);
        if (stuck && !(s.rank[WRITER].over && s.rank[READER].over))
            fail_msg("a dead end: writer %s after %u steps, reader %s after %u", s.rank[WRITER].sleeps ? "asleep" : "done",
                     s.rank[WRITER].steps, s.rank[READER].sleeps ? "asleep" : "done", s.rank[READER].steps);
    }
    print_message("%zu states\n", n_states);
    assert_true(n_states > 1000);
    free(stack);
    free(seen_states);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(every_order_of_a_ring) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
