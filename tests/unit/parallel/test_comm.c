/* Ranks over shared memory: as threads, so that the sanitizers see both sides, and as processes that are killed and
 * stopped. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/rng.h"
#include "fault.h"
#include "parallel/shm.h"
#include "test.h"

enum { MAX = 8 };

static int n_descriptors(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = 0;

    assert_non_null(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

/* ---- talking ----------------------------------------------------------------------------------------------------- */

typedef struct {
    ds_comm *c;
    uint32_t rounds;
    uint32_t from; /* waited for */
    bool to;       /* or for room to send there */
} talker;

static int missing(void *ctx)
{
    const talker *t = ctx;
    uint32_t bytes;

    if (t->to)
        return t->c->fn->room(t->c, t->from) ? -1 : (int)t->from;
    return t->c->fn->came(t->c, t->from, &bytes) ? -1 : (int)t->from;
}

static uint8_t pattern(uint32_t from, uint32_t to, uint32_t round, uint32_t i)
{
    return (uint8_t)(from * 31 + to * 17 + round * 7 + i);
}

static uint32_t length(uint32_t from, uint32_t to, uint32_t round, uint32_t most)
{
    return (from * 131 + to * 37 + round * 997) % (most + 1);
}

/* All to all, and a word, in each round; the number of messages differs by pair. NULL: all was right. */
static const char *talk(void *arg)
{
    talker *t = arg;
    ds_comm *c = t->c;
    uint8_t word[DS_COMM_WORD], all[MAX * DS_COMM_WORD];
    ds_err err;

    for (uint32_t r = 0; r < t->rounds; r++) {
        for (uint32_t k = 0; k < 3; k++) /* fewer than slots: nobody has to read first */
            for (uint32_t to = 0; to < c->ranks; to++) {
                uint32_t n = length(c->rank, to, r + k, c->message_bytes);
                uint8_t *p;
                if (to == c->rank || k > (c->rank + to) % 3)
                    continue;
                t->from = to;
                t->to = true;
                if (c->fn->wait(c, missing, t, &err) != DS_OK)
                    return "waiting for room";
                p = c->fn->room(c, to);
                for (uint32_t i = 0; i < n; i++)
                    p[i] = pattern(c->rank, to, r + k, i);
                c->fn->post(c, to, n);
            }
        for (uint32_t from = 0; from < c->ranks; from++)
            for (uint32_t k = 0; from != c->rank && k <= (c->rank + from) % 3; k++) {
                const uint8_t *p;
                uint32_t n;
                t->from = from;
                t->to = false;
                if (c->fn->wait(c, missing, t, &err) != DS_OK)
                    return "waiting for a message";
                p = c->fn->came(c, from, &n);
                if (n != length(from, c->rank, r + k, c->message_bytes))
                    return "length of a message";
                for (uint32_t i = 0; i < n; i++)
                    if (p[i] != pattern(from, c->rank, r + k, i))
                        return "bytes of a message";
                c->fn->done(c, from);
            }
        memset(word, (int)(c->rank + r), sizeof word);
        if (c->fn->agree(c, word, all, &err) != DS_OK)
            return "agreement";
        for (uint32_t i = 0; i < c->ranks * DS_COMM_WORD; i++)
            if (all[i] != (uint8_t)(i / DS_COMM_WORD + r))
                return "words";
    }
    return NULL;
}

static void *talk_thread(void *arg)
{
    return (void *)(uintptr_t)talk(arg);
}

static void threads_talk(void **unused)
{
    static const uint32_t n_ranks[] = { 1, 2, 3, 5 };
    (void)unused;

    for (size_t k = 0; k < sizeof n_ranks / sizeof *n_ranks; k++) {
        uint32_t n = n_ranks[k];
        talker t[MAX];
        pthread_t thread[MAX];
        ds_err err;
        int fd;
        assert_ok(ds_comm_shm_create(&fd, &(ds_comm_shm_opts){ .ranks = n, .message_bytes = 192 }, &err));
        for (uint32_t i = 0; i < n; i++) {
            t[i].rounds = 300;
            assert_ok(ds_comm_shm_join(&t[i].c, fd, i, &err));
        }
        close(fd);
        for (uint32_t i = 0; i < n; i++)
            assert_int_equal(pthread_create(&thread[i], NULL, talk_thread, &t[i]), 0);
        for (uint32_t i = 0; i < n; i++) {
            void *wrong;
            pthread_join(thread[i], &wrong);
            if (wrong)
                fail_msg("rank %u of %u: %s", i, n, (const char *)wrong);
        }
        for (uint32_t i = 0; i < n; i++)
            t[i].c->fn->destroy(t[i].c);
    }
}

/* ---- attending --------------------------------------------------------------------------------------------------- */

typedef struct {
    ds_comm *c;
    uint32_t agreements, woken;
    bool left;
} attendant;

/* Joins what others begin, until all have left. */
static void *attend(void *arg)
{
    attendant *a = arg;
    uint8_t word[DS_COMM_WORD] = { 0 }, all[MAX * DS_COMM_WORD];
    ds_err err;
    ds_rc rc;

    while ((rc = a->c->fn->attend(a->c, &err)) == DS_OK || rc == DS_E_AGAIN) {
        if (rc == DS_E_AGAIN) {
            a->woken++;
            a->c->fn->leave(a->c);
            continue;
        }
        if (a->c->fn->agree(a->c, word, all, &err) != DS_OK)
            return NULL;
        a->agreements++;
    }
    a->left = rc == DS_E_CANCELED;
    return NULL;
}

static void idle_ranks_attend(void **unused)
{
    enum { N = 4, ROUNDS = 200 };
    attendant a[N] = { 0 };
    pthread_t thread[N];
    uint8_t word[DS_COMM_WORD] = { 1 }, all[N * DS_COMM_WORD];
    ds_comm *c;
    ds_err err;
    int fd;
    (void)unused;

    assert_ok(ds_comm_shm_create(&fd, &(ds_comm_shm_opts){ .ranks = N }, &err));
    for (uint32_t i = 0; i < N; i++)
        assert_ok(ds_comm_shm_join(&a[i].c, fd, i, &err));
    close(fd);
    for (uint32_t i = 1; i < N; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, attend, &a[i]), 0);
    c = a[0].c;
    for (uint32_t r = 0; r < ROUNDS; r++) {
        assert_ok(c->fn->agree(c, word, all, &err));
        for (uint32_t i = 0; i < N; i++)
            assert_int_equal(all[i * DS_COMM_WORD], i == 0);
    }
    for (uint32_t i = 1; i < N; i++)
        a[i].c->fn->wake(a[i].c);
    c->fn->leave(c);
    assert_int_equal(c->fn->attend(c, &err), DS_E_CANCELED);
    for (uint32_t i = 1; i < N; i++)
        pthread_join(thread[i], NULL);
    for (uint32_t i = 0; i < N; i++) {
        assert_int_equal(a[i].agreements, i ? ROUNDS : 0);
        assert_int_equal(a[i].woken, i ? 1 : 0);
        assert_true(i == 0 || a[i].left);
        a[i].c->fn->destroy(a[i].c);
    }
}

/* ---- processes --------------------------------------------------------------------------------------------------- */

typedef enum { BEFORE_WORD, IN_ROUND, ATTENDING, NO_ROOM, HALF_MESSAGE, NO_MESSAGE, N_STATES } where;

/* Never to return where it waits: somebody ends it. */
static void go_to(ds_comm *c, where w, int ready)
{
    uint8_t word[DS_COMM_WORD] = { 0 }, all[MAX * DS_COMM_WORD];
    talker t = { .c = c };
    ds_err err;
    char one = 1;

    if (w != BEFORE_WORD && c->fn->agree(c, word, all, &err) != DS_OK)
        return;
    if (w == HALF_MESSAGE)
        memset(c->fn->room(c, 0), 1, c->message_bytes);
    while (w == NO_ROOM && c->fn->room(c, 0))
        c->fn->post(c, 0, 64);
    t.to = w == NO_ROOM;
    if (write(ready, &one, 1) != 1)
        return;
    switch (w) {
    case IN_ROUND:
        c->fn->agree(c, word, all, &err);
        break;
    case ATTENDING:
        c->fn->attend(c, &err);
        break;
    case NO_ROOM:
    case NO_MESSAGE:
        c->fn->wait(c, missing, &t, &err);
        break;
    case BEFORE_WORD:
    case HALF_MESSAGE:
    case N_STATES:
        pause();
        break;
    }
}

/* What a rank that survives has to say; NULL: the right thing. */
static const char *survive(ds_comm *c, const char *name, bool agreed, uint64_t most_ms)
{
    uint8_t word[DS_COMM_WORD] = { 0 }, all[MAX * DS_COMM_WORD];
    uint64_t begin;
    ds_err err;
    ds_rc rc = agreed ? c->fn->agree(c, word, all, &err) : DS_OK;

    begin = ds_now_ns();
    if (rc == DS_OK)
        rc = c->rank % 2 ? c->fn->attend(c, &err) : c->fn->agree(c, word, all, &err);
    if (rc == DS_OK && c->rank % 2)
        rc = c->fn->agree(c, word, all, &err);
    if (rc != DS_E_IO)
        return "nobody told it";
    if (!strstr(err.msg, name)) {
        static char said[600];
        snprintf(said, sizeof said, "it was told: %s", err.msg);
        return said;
    }
    if (c->fn->agree(c, word, all, &err) != DS_E_IO || !strstr(err.msg, name))
        return "it was told something else later";
    return ds_now_ns() - begin > most_ms * 1000000 ? "it took too long" : NULL;
}

static pid_t start(int fd, uint32_t rank, where w, int ready)
{
    pid_t pid = fork();
    ds_comm *c;
    ds_err err;

    if (pid != 0)
        return pid;
    alarm(60);
    if (ds_comm_shm_join(&c, fd, rank, &err) == DS_OK)
        go_to(c, w, ready);
    _exit(0);
}

static void end_by(int signal, uint32_t silence_ms, const char *name)
{
    for (where w = 0; w < N_STATES; w++) {
        ds_comm *c[3] = { 0 };
        const char *wrong;
        int fd, ready[2];
        pid_t victim;
        char one;
        ds_err err;
        int before = n_descriptors();

        assert_ok(ds_comm_shm_create(&fd, &(ds_comm_shm_opts){ .ranks = 2, .message_bytes = 64, .silence_ms = silence_ms }, &err));
        assert_int_equal(pipe(ready), 0);
        victim = start(fd, 1, w, ready[1]);
        assert_ok(ds_comm_shm_join(&c[0], fd, 0, &err));
        close(fd);
        if (w != BEFORE_WORD) {
            uint8_t word[DS_COMM_WORD] = { 0 }, all[MAX * DS_COMM_WORD];
            assert_ok(c[0]->fn->agree(c[0], word, all, &err));
        }
        assert_int_equal(read(ready[0], &one, 1), 1);
        kill(victim, signal);
        wrong = survive(c[0], name, false, 10000);
        kill(victim, SIGKILL);
        waitpid(victim, NULL, 0);
        if (wrong && !(w == IN_ROUND && strstr(wrong, "nobody"))) /* its word counts before it is ended */
            fail_msg("state %d: %s", w, wrong);
        c[0]->fn->destroy(c[0]);
        close(ready[0]);
        close(ready[1]);
        assert_int_equal(n_descriptors(), before);
    }
}

static void killed_rank_is_named(void **unused)
{
    (void)unused;
    end_by(SIGKILL, 0, "rank 1 of 2 (process ");
}

static void stopped_rank_is_named(void **unused)
{
    (void)unused;
    end_by(SIGSTOP, 300, "no sign of life");
}

/* Several survivors, each in a process: all of them hear the same name. */
static void all_survivors_hear(void **unused)
{
    enum { N = 5, VICTIM = 2 };
    pid_t pid[N];
    int fd, ready[2];
    ds_err err;
    char one;
    (void)unused;

    assert_ok(ds_comm_shm_create(&fd, &(ds_comm_shm_opts){ .ranks = N }, &err));
    assert_int_equal(pipe(ready), 0);
    for (uint32_t i = 0; i < N; i++) {
        ds_comm *c;
        if (i == VICTIM) {
            pid[i] = start(fd, i, NO_MESSAGE, ready[1]);
            continue;
        }
        pid[i] = fork();
        if (pid[i] == 0) {
            const char *wrong = "joining";
            alarm(60);
            if (ds_comm_shm_join(&c, fd, i, &err) == DS_OK)
                wrong = survive(c, "rank 2 of 5", true, 10000);
            if (wrong)
                print_error("rank %u: %s\n", i, wrong);
            _exit(wrong != NULL);
        }
    }
    close(fd);
    assert_int_equal(read(ready[0], &one, 1), 1);
    kill(pid[VICTIM], SIGKILL);
    for (uint32_t i = 0; i < N; i++) {
        int status;
        waitpid(pid[i], &status, 0);
        if (i != VICTIM)
            assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    close(ready[0]);
    close(ready[1]);
}

static void who_left_may_end(void **unused)
{
    ds_comm *c;
    ds_err err;
    pid_t pid;
    int fd, status;
    (void)unused;

    assert_ok(ds_comm_shm_create(&fd, &(ds_comm_shm_opts){ .ranks = 2 }, &err));
    pid = fork();
    if (pid == 0) {
        alarm(60);
        if (ds_comm_shm_join(&c, fd, 1, &err) != DS_OK)
            _exit(1);
        c->fn->leave(c);
        _exit(c->fn->attend(c, &err) == DS_E_CANCELED ? 0 : 1);
    }
    assert_ok(ds_comm_shm_join(&c, fd, 0, &err));
    ds_comm_shm_expect(c, 1, pid);
    close(fd);
    c->fn->leave(c);
    assert_int_equal(c->fn->attend(c, &err), DS_E_CANCELED);
    waitpid(pid, &status, 0);
    assert_int_equal(status, 0);
    assert_int_equal(c->fn->attend(c, &err), DS_E_CANCELED);
    c->fn->destroy(c);
}

/* ---- what doesn't begin ------------------------------------------------------------------------------------------ */

static void late_ranks_are_named(void **unused)
{
    uint8_t word[DS_COMM_WORD] = { 0 }, all[MAX * DS_COMM_WORD];
    ds_comm *c, *other;
    talker t;
    ds_err err;
    pid_t pid;
    int fd;
    (void)unused;

    assert_ok(ds_comm_shm_create(&fd, &(ds_comm_shm_opts){ .ranks = 2, .start_ms = 50 }, &err)); /* never comes up */
    assert_ok(ds_comm_shm_join(&c, fd, 0, &err));
    assert_refused(c->fn->agree(c, word, all, &err), DS_E_IO, "rank 1 of 2 didn't come up");
    c->fn->destroy(c);
    close(fd);

    assert_ok(ds_comm_shm_create(&fd, &(ds_comm_shm_opts){ .ranks = 2 }, &err)); /* ends before it is one */
    assert_ok(ds_comm_shm_join(&c, fd, 0, &err));
    pid = fork();
    if (pid == 0)
        _exit(0);
    ds_comm_shm_expect(c, 1, pid);
    assert_refused(c->fn->agree(c, word, all, &err), DS_E_IO, "rank 1 of 2 (process ");
    waitpid(pid, NULL, 0);
    c->fn->destroy(c);
    close(fd);

    assert_ok(ds_comm_shm_create(&fd, &(ds_comm_shm_opts){ .ranks = 2, .patience_ms = 50 }, &err)); /* lives and says nothing */
    assert_ok(ds_comm_shm_join(&c, fd, 0, &err));
    assert_ok(ds_comm_shm_join(&other, fd, 1, &err));
    t = (talker){ .c = c, .from = 1 };
    assert_refused(c->fn->wait(c, missing, &t, &err), DS_E_IO, "kept others waiting");
    assert_refused(other->fn->attend(other, &err), DS_E_IO, "rank 1 of 2");
    other->fn->destroy(other);
    c->fn->destroy(c);
    close(fd);

    assert_ok(ds_comm_shm_create(&fd, &(ds_comm_shm_opts){ .ranks = 2 }, &err)); /* says why it can't */
    assert_ok(ds_comm_shm_join(&c, fd, 0, &err));
    assert_ok(ds_comm_shm_join(&other, fd, 1, &err));
    other->fn->give_up(other, "no such model");
    other->fn->give_up(other, "a second reason");
    assert_refused(c->fn->agree(c, word, all, &err), DS_E_IO, "rank 1 of 2: no such model");
    other->fn->destroy(other);
    c->fn->destroy(c);
    close(fd);
}

static void refusals(void **unused)
{
    ds_comm *c, *again;
    ds_err err;
    int fd, other;
    (void)unused;

    assert_refused(ds_comm_shm_create(&fd, &(ds_comm_shm_opts){ .ranks = 0 }, &err), DS_E_ARG, "0 ranks");
    assert_refused(ds_comm_shm_create(&fd, &(ds_comm_shm_opts){ .ranks = 129 }, &err), DS_E_ARG, "129 ranks");
    assert_refused(ds_comm_shm_create(&fd, &(ds_comm_shm_opts){ .ranks = 2, .slots = 3 }, &err), DS_E_ARG, "power of two");
    assert_ok(ds_comm_shm_create(&fd, &(ds_comm_shm_opts){ .ranks = 2 }, &err));
    assert_refused(ds_comm_shm_join(&c, fd, 2, &err), DS_E_ARG, "no rank 2");
    assert_ok(ds_comm_shm_join(&c, fd, 1, &err));
    assert_refused(ds_comm_shm_join(&again, fd, 1, &err), DS_E_ARG, "rank 1 already");
    c->fn->destroy(c);
    assert_int_equal(ftruncate(fd, 4096), 0);
    assert_refused(ds_comm_shm_join(&c, fd, 0, &err), DS_E_FORMAT, "no memory of ranks");
    close(fd);
    other = open("/dev/null", O_RDWR);
    assert_refused(ds_comm_shm_join(&c, other, 0, &err), DS_E_FORMAT, "no memory of ranks");
    close(other);
    assert_int_equal(ds_comm_shm_message_bytes(1), 256 << 10);
    assert_int_equal(ds_comm_shm_message_bytes(128), 32 << 10);
}

static ds_rc join_once(void *ctx, ds_err *err)
{
    ds_comm *c;
    int fd;
    ds_rc rc = ds_comm_shm_create(&fd, &(ds_comm_shm_opts){ .ranks = 4, .message_bytes = 64 }, err);
    (void)ctx;

    if (rc == DS_OK)
        rc = ds_comm_shm_join(&c, fd, 3, err);
    if (rc == DS_OK)
        c->fn->destroy(c);
    close(fd);
    return rc;
}

static void every_allocation_fails(void **unused)
{
    int before = n_descriptors();
    (void)unused;

    assert_int_equal(fault_every_allocation(join_once, NULL), 3);
    assert_int_equal(n_descriptors(), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_talk),          cmocka_unit_test(idle_ranks_attend),  cmocka_unit_test(killed_rank_is_named),
        cmocka_unit_test(stopped_rank_is_named), cmocka_unit_test(all_survivors_hear), cmocka_unit_test(who_left_may_end),
        cmocka_unit_test(late_ranks_are_named),  cmocka_unit_test(refusals),           cmocka_unit_test(every_allocation_fails),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
