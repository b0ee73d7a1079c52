/* A store gives back what it acknowledged, byte for byte, or says why not: after closing, with a bound, past expiry,
 * with bits turned, with a tenant forgotten. */
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "fault.h"
#include "kvstore/store_internal.h"
#include "store_rig.h"
#include "test.h"

static const uint32_t codes[][2] = { { 1, 0 }, { 1, 1 }, { 2, 1 }, { 4, 2 }, { 10, 2 } };

static void kept_over_restarts(void **state)
{
    (void)state;
    for (size_t c = 0; c < sizeof codes / sizeof *codes; c++) {
        rig r;
        ds_kvstore *s;
        ds_kvstore_stats st;
        ds_err err;

        rig_init(&r, codes[c][0], codes[c][1]);
        assert_ok(ds_kvstore_open(&s, &r.o, &err));
        assert_int_equal(rig_match(s, 1, 100), 0);
        assert_int_equal(rig_fetch(s, 1, 0, 1, 0).cause, DS_KVSTORE_ABSENT);
        assert_int_equal(rig_save(s, (rig_blocks){ 1, 0, 100, 100, DS_KVSTORE_AGENT, NULL, false }), DS_KVSTORE_SAVED); /* two extents */
        assert_int_equal(rig_save(s, (rig_blocks){ 1, 100, 5, 2, DS_KVSTORE_AGENT, NULL, false }), DS_KVSTORE_SAVED);
        assert_int_equal(rig_save(s, (rig_blocks){ 2, 0, 3, 3, DS_KVSTORE_CHAT, "somebody", false }), DS_KVSTORE_SAVED);
        for (int again = 0; again < 3; again++) {
            assert_int_equal(rig_match(s, 1, 110), 105);
            assert_int_equal(rig_match(s, 2, 110), 3);
            ds_key keys[110];
            rig_keys(keys, 1, 0, 110);
            assert_int_equal(ds_kvstore_match(s, keys, 110, true), 102);
            ds_kvstore_fetched f = rig_fetch(s, 1, 0, 110, 0);
            assert_int_equal(f.n, 105);
            assert_int_equal(f.exact, 102);
            assert_int_equal(f.cause, DS_KVSTORE_ABSENT);
            assert_int_equal(rig_fetch(s, 1, 103, 2, 0).exact, 0);
            assert_int_equal(rig_fetch(s, 2, 1, 2, 0).n, 2);
            ds_kvstore_stat(s, &st, NULL);
            assert_int_equal(st.blocks, 108);
            assert_int_equal(st.hits, 105 + 2 + 2);
            assert_int_equal(st.misses[DS_KVSTORE_ABSENT], again ? 5 : 6);
            assert_int_equal(st.pins, 0);
            ds_kvstore_close(s);
            assert_ok(ds_kvstore_open(&s, &r.o, &err));
        }
        ds_kvstore_close(s);
        rig_fini(&r);
    }
}

static void published_once(void **state)
{
    rig r;
    ds_kvstore *s;
    ds_kvstore_stats st;
    ds_err err;

    (void)state;
    rig_init(&r, 1, 0);
    assert_ok(ds_kvstore_open(&s, &r.o, &err));
    assert_int_equal(rig_save(s, (rig_blocks){ 1, 3, 2, 2, DS_KVSTORE_AGENT, NULL, false }), DS_KVSTORE_ORPHAN);
    assert_int_equal(rig_match(s, 1, 5), 0);
    assert_int_equal(rig_save(s, (rig_blocks){ 1, 0, 4, 2, DS_KVSTORE_AGENT, NULL, false }), DS_KVSTORE_SAVED);
    assert_int_equal(rig_save(s, (rig_blocks){ 1, 0, 4, 2, DS_KVSTORE_AGENT, NULL, false }), DS_KVSTORE_SAVED);
    ds_kvstore_stat(s, &st, NULL);
    assert_int_equal(st.saved, 4);
    assert_int_equal(st.known, 4);
    assert_int_equal(st.orphans, 2);
    assert_int_equal(rig_fetch(s, 1, 0, 4, 0).exact, 2);
    assert_int_equal(rig_save(s, (rig_blocks){ 1, 0, 4, 4, DS_KVSTORE_AGENT, NULL, false }), DS_KVSTORE_SAVED); /* exact ones are better */
    assert_int_equal(rig_fetch(s, 1, 0, 4, 0).exact, 4);
    assert_int_equal(rig_save(s, (rig_blocks){ 1, 0, 4, 0, DS_KVSTORE_AGENT, NULL, false }), DS_KVSTORE_SAVED); /* and stay */
    assert_int_equal(rig_fetch(s, 1, 0, 4, 0).exact, 4);
    ds_kvstore_stat(s, &st, NULL);
    assert_int_equal(st.blocks, 4);
    ds_kvstore_close(s);
    assert_ok(ds_kvstore_open(&s, &r.o, &err));
    assert_int_equal(rig_fetch(s, 1, 0, 4, 0).exact, 4);
    ds_kvstore_close(s);
    rig_fini(&r);
}

static void refused(void **state)
{
    rig r;
    ds_kvstore *s, *t;
    ds_err err;

    (void)state;
    rig_init(&r, 1, 0);
    memset(r.user.tokenizer, 0, 32);
    assert_refused(ds_kvstore_open(&s, &r.o, &err), DS_E_ARG, "tokenizer is unknown");
    memset(r.user.tokenizer, 2, 32);
    r.user.layout_bytes--;
    assert_refused(ds_kvstore_open(&s, &r.o, &err), DS_E_ARG, "layout");
    r.user.layout_bytes++;
    r.o.capacity_bytes = 1000;
    assert_refused(ds_kvstore_open(&s, &r.o, &err), DS_E_ARG, "at least");
    r.o.capacity_bytes = 0;
    assert_ok(ds_kvstore_open(&s, &r.o, &err));
    assert_refused(ds_kvstore_open(&t, &r.o, &err), DS_E_AGAIN, "another process");
    assert_int_equal(rig_save(s, (rig_blocks){ 1, 0, 4, 4, DS_KVSTORE_AGENT, NULL, false }), DS_KVSTORE_SAVED);
    ds_kvstore_close(s);
    rig_layout(&r, RIG_BLOCK, 1); /* equal sizes, other arithmetic: even with equal keys it isn't given */
    assert_ok(ds_kvstore_open(&s, &r.o, &err));
    assert_int_equal(rig_fetch(s, 1, 0, 4, 0).cause, DS_KVSTORE_LAYOUT);
    ds_kvstore_close(s);
    r.o.user = NULL;
    assert_ok(ds_kvstore_open(&s, &r.o, &err));
    uint8_t block[RIG_BLOCK], *p = block;
    ds_key k = rig_key(1, 0);
    assert_refused(ds_kvstore_fetch(s, &(ds_kvstore_fetch_req){ .keys = &k, .blocks = &p, .n = 1 }, NULL, &err), DS_E_ARG,
                   "without a user");
    ds_kvstore_close(s);
    rig_fini(&r);
}

/* Never above the capacity, and what was used lately is what stays, as a prefix of its chain. */
static void bounded(void **state)
{
    (void)state;
    for (int index = 0; index < 2; index++) { /* bound by bytes, and by the index */
        rig r;
        ds_kvstore *s;
        ds_kvstore_stats st;
        ds_err err;
        uint32_t chains = 300, kept = 0;

        rig_init(&r, 2, 1);
        r.o.capacity_bytes = index ? 0 : 4 << 20;
        r.o.max_blocks = index ? 600 : 1 << 14;
        assert_ok(ds_kvstore_open(&s, &r.o, &err));
        for (uint32_t c = 0; c < chains; c++) {
            assert_int_equal(rig_save(s, (rig_blocks){ c, 0, 10, 10, c % 2 ? DS_KVSTORE_AGENT : DS_KVSTORE_CHAT, NULL, false }),
                             DS_KVSTORE_SAVED);
            assert_int_equal(rig_fetch(s, 0, 0, 10, 0).n, 10); /* the first is used all the time */
            ds_kvstore_stat(s, &st, NULL);
            assert_true(index || st.bytes <= r.o.capacity_bytes);
            assert_true(st.blocks <= st.max_blocks);
        }
        for (uint32_t c = 0; c < chains; c++) {
            uint32_t n = rig_match(s, c, 10);
            assert_int_equal(rig_fetch(s, c, 0, 10, 0).n, n);
            kept += n;
        }
        ds_kvstore_stat(s, &st, NULL);
        assert_int_equal(kept, st.blocks);
        assert_true(st.evicted > 0);
        assert_int_equal(st.full, 0);
        assert_int_equal(rig_match(s, chains - 1, 10), 10);
        assert_int_equal(rig_match(s, chains - 20, 10), 10);
        assert_int_equal(rig_match(s, 1, 10), 0);
        assert_true(index || st.bytes > r.o.capacity_bytes * 3 / 4);
        ds_kvstore_close(s);
        if (!index) { /* dead copies aren't found again */
            assert_ok(ds_kvstore_open(&s, &r.o, &err));
            for (uint32_t c = 0; c < chains; c++)
                assert_int_equal(rig_fetch(s, c, 0, 10, 0).n, rig_match(s, c, 10));
            assert_int_equal(rig_match(s, 0, 10), 10);
            ds_kvstore_close(s);
        }
        rig_fini(&r);
    }
}

static void tidy(ds_kvs *st, void *arg)
{
    (void)arg;
    ds_kvs_tidy(st);
}

/* Past its time a block is gone, unless it was used. The clock may jump. */
static void expires(void **state)
{
    rig r;
    ds_kvstore *s;
    ds_kvstore_stats st;
    ds_err err;

    (void)state;
    rig_init(&r, 1, 1);
    assert_ok(ds_kvstore_open(&s, &r.o, &err));
    ds_kvs *in = (ds_kvs *)s;
    assert_int_equal(rig_save(s, (rig_blocks){ 1, 0, 10, 10, DS_KVSTORE_AGENT, NULL, false }), DS_KVSTORE_SAVED);
    assert_int_equal(rig_save(s, (rig_blocks){ 2, 0, 10, 10, DS_KVSTORE_AGENT, NULL, false }), DS_KVSTORE_SAVED);
    assert_int_equal(rig_save(s, (rig_blocks){ 3, 0, 10, 10, DS_KVSTORE_CHAT, NULL, false }), DS_KVSTORE_SAVED);
    atomic_store(&in->skew_s, 2 * 24 * 3600);
    assert_int_equal(rig_fetch(s, 1, 0, 10, 0).n, 10);
    atomic_store(&in->skew_s, 3 * 24 * 3600 + 7200);
    for (int i = 0; i < 3; i++)
        ds_kvs_run(in, tidy, NULL);
    assert_int_equal(rig_match(s, 1, 10), 10);
    assert_int_equal(rig_match(s, 2, 10), 0);
    assert_int_equal(rig_match(s, 3, 10), 10);
    assert_int_equal(rig_fetch(s, 1, 0, 10, 0).n, 10);
    atomic_store(&in->skew_s, -1000000000);
    ds_kvs_run(in, tidy, NULL);
    assert_int_equal(rig_save(s, (rig_blocks){ 4, 0, 10, 10, DS_KVSTORE_CHAT, NULL, false }), DS_KVSTORE_SAVED);
    assert_int_equal(rig_fetch(s, 4, 0, 10, 0).n, 10);
    atomic_store(&in->skew_s, 1000000000);
    for (int i = 0; i < 3; i++)
        ds_kvs_run(in, tidy, NULL);
    ds_kvstore_stat(s, &st, NULL);
    assert_int_equal(st.blocks, 0);
    assert_int_equal(st.segments, 0);
    assert_int_equal(st.expired, 40);
    ds_kvstore_close(s);
    rig_fini(&r);
}

/* Whether any file of the store holds the first bytes of a block. */
static bool on_devices(const rig *r, uint32_t chain, uint32_t i)
{
    uint8_t block[RIG_BLOCK];
    bool there = false;

    rig_fill(block, chain, i);
    for (uint32_t d = 0; d < r->n; d++) {
        DIR *dir = opendir(r->dir[d]);
        for (struct dirent *e; (e = readdir(dir));) {
            char name[400];
            struct stat st;
            snprintf(name, sizeof name, "%s/%s", r->dir[d], e->d_name);
            int fd = open(name, O_RDONLY);
            if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size) {
                uint8_t *p = malloc((size_t)st.st_size);
                assert_int_equal(read(fd, p, (size_t)st.st_size), st.st_size);
                there = there || memmem(p, (size_t)st.st_size, block, 64);
                free(p);
            }
            if (fd >= 0)
                close(fd);
        }
        closedir(dir);
    }
    return there;
}

static void forgets_a_tenant(void **state)
{
    rig r;
    ds_kvstore *s;
    uint64_t n;
    ds_err err;

    (void)state;
    rig_init(&r, 1, 1);
    r.o.segment_bytes = 128 << 10;
    assert_ok(ds_kvstore_open(&s, &r.o, &err));
    for (uint32_t c = 0; c < 20; c++)
        assert_int_equal(rig_save(s, (rig_blocks){ c, 0, 10, 10, DS_KVSTORE_AGENT,
                                                   c % 2   ? "one"
                                                   : c % 4 ? "two"
                                                           : NULL,
                                                   false }),
                         DS_KVSTORE_SAVED);
    assert_true(on_devices(&r, 1, 0));
    assert_ok(ds_kvstore_forget(s, "one", &n, &err));
    assert_int_equal(n, 100);
    assert_ok(ds_kvstore_forget(s, "one", &n, &err));
    assert_int_equal(n, 0);
    for (int again = 0; again < 2; again++) {
        for (uint32_t c = 0; c < 20; c++)
            assert_int_equal(rig_fetch(s, c, 0, 10, 0).n, c % 2 ? 0 : 10);
        ds_kvstore_close(s);
        assert_ok(ds_kvstore_open(&s, &r.o, &err));
    }
    for (uint32_t i = 0; i < 10; i++)
        assert_false(on_devices(&r, 1, i));
    assert_true(on_devices(&r, 2, 0));
    ds_kvstore_close(s);
    rig_fini(&r);
}

/* Turns a byte in every so many of one device's files. */
static void damage(const rig *r, uint32_t device, size_t every)
{
    DIR *dir = opendir(r->dir[device]);

    for (struct dirent *e; (e = readdir(dir));) {
        char name[400];
        struct stat st;
        if (!strstr(e->d_name, ".seg"))
            continue;
        snprintf(name, sizeof name, "%s/%s", r->dir[device], e->d_name);
        int fd = open(name, O_RDWR);
        assert_true(fd >= 0 && fstat(fd, &st) == 0);
        for (off_t at = 8192 + 3000; at < st.st_size; at += (off_t)every) {
            uint8_t b;
            assert_int_equal(pread(fd, &b, 1, at), 1);
            b ^= 1;
            assert_int_equal(pwrite(fd, &b, 1, at), 1);
        }
        close(fd);
    }
    closedir(dir);
}

static void verified_and_repaired(void **state)
{
    rig r;
    ds_kvstore *s;
    ds_kvstore_check c;
    ds_kvstore_stats st;
    ds_err err;

    (void)state;
    rig_init(&r, 2, 1);
    assert_ok(ds_kvstore_open(&s, &r.o, &err));
    for (uint32_t i = 0; i < 10; i++)
        assert_int_equal(rig_save(s, (rig_blocks){ i, 0, 10, 9, DS_KVSTORE_AGENT, NULL, false }), DS_KVSTORE_SAVED);
    assert_ok(ds_kvstore_verify(s, DS_KVSTORE_REPAIR, NULL, &c, &err));
    assert_true(c.checked == 100 && c.bad == 0 && c.repaired == 0);
    damage(&r, 1, 9000); /* one device of 2+1: everything can be given, and is written anew */
    for (uint32_t i = 0; i < 5; i++)
        assert_int_equal(rig_fetch(s, i, 0, 10, 0).n, 10);
    assert_ok(ds_kvstore_verify(s, DS_KVSTORE_REPAIR, NULL, &c, &err));
    assert_int_equal(c.bad, 0);
    ds_kvstore_stat(s, &st, NULL);
    assert_true(st.repairs > 0);
    assert_ok(ds_kvstore_verify(s, DS_KVSTORE_REPAIR, NULL, &c, &err));
    assert_true(c.checked == 100 && c.bad == 0 && c.repaired == 0);
    for (uint32_t i = 0; i < 10; i++)
        assert_int_equal(rig_fetch(s, i, 0, 10, 0).exact, 9);
    damage(&r, 0, 9000); /* two: some are lost, and none is given wrong */
    damage(&r, 2, 9000);
    assert_ok(ds_kvstore_verify(s, DS_KVSTORE_REPAIR, NULL, &c, &err));
    assert_true(c.bad > 0 && c.bad < 100);
    for (uint32_t i = 0; i < 10; i++)
        assert_int_equal(rig_fetch(s, i, 0, 10, 0).n, rig_match(s, i, 10));
    assert_ok(ds_kvstore_verify(s, DS_KVSTORE_REPAIR, NULL, &c, &err));
    assert_true(c.bad == 0 && c.repaired == 0);
    ds_kvstore_close(s);
    rig_fini(&r);
}

/* ---- restarts by the checkpoint ---- */

static bool whole_file(const char *path, uint8_t **bytes, size_t *n, bool write_it)
{
    FILE *f = fopen(path, write_it ? "wb" : "rb");
    bool ok = f != NULL;

    if (ok && !write_it) {
        fseek(f, 0, SEEK_END);
        *n = (size_t)ftell(f);
        rewind(f);
        *bytes = malloc(*n);
    }
    ok = ok && (write_it ? fwrite(*bytes, 1, *n, f) : fread(*bytes, 1, *n, f)) == *n;
    if (f)
        fclose(f);
    return ok;
}

/* Opens and looks: all of these chains of ten blocks, and no others, however it came to know them. */
static uint64_t open_and_look(const rig *r, uint32_t chains)
{
    ds_kvstore_stats st;
    ds_kvstore *s;
    ds_err err;

    assert_ok(ds_kvstore_open(&s, &r->o, &err));
    ds_kvstore_stat(s, &st, NULL);
    assert_int_equal(st.blocks, 10 * (uint64_t)__builtin_popcount(chains));
    for (uint32_t c = 0; c < 8; c++)
        assert_int_equal(rig_fetch(s, c, 0, 10, 0).n, chains >> c & 1 ? 10 : 0);
    ds_kvstore_close(s);
    return st.restored;
}

static void change(const rig *r, uint32_t chain, const char *forget)
{
    ds_kvstore *s;
    uint64_t n;
    ds_err err;

    assert_ok(ds_kvstore_open(&s, &r->o, &err));
    if (forget)
        assert_ok(ds_kvstore_forget(s, forget, &n, &err));
    else
        assert_int_equal(rig_save(s, (rig_blocks){ chain, 0, 10, 9, DS_KVSTORE_AGENT, chain % 2 ? "odd" : NULL, false }), DS_KVSTORE_SAVED);
    ds_kvstore_close(s);
}

static void known_at_once(void **state)
{
    rig r;
    char path[128];
    uint8_t *old, *now;
    size_t n_old, n;
    ds_kvstore *s;
    ds_err err;

    (void)state;
    rig_init(&r, 2, 1);
    snprintf(path, sizeof path, "%s/index.ckpt", r.dir[0]);
    change(&r, 0, NULL);
    change(&r, 1, NULL);
    assert_int_equal(open_and_look(&r, 3), 20);
    assert_int_equal(open_and_look(&r, 3), 20);
    assert_true(whole_file(path, &old, &n_old, false));
    r.o.read_only = true; /* who only looks leaves it */
    assert_int_equal(open_and_look(&r, 3), 20);
    assert_int_equal(access(path, F_OK), 0);
    r.o.read_only = false;
    assert_ok(ds_kvstore_open(&s, &r.o, &err));
    assert_int_equal(access(path, F_OK), -1); /* of a store that is open to be changed there is none */
    ds_kvstore_close(s);
    change(&r, 2, NULL);
    assert_int_equal(open_and_look(&r, 7), 30);
    assert_true(whole_file(path, &old, &n_old, true)); /* of another time: there is more now */
    assert_int_equal(open_and_look(&r, 7), 0);
    change(&r, 0, "odd");
    assert_int_equal(open_and_look(&r, 5), 20);
    assert_true(whole_file(path, &old, &n_old, true)); /* and less */
    assert_int_equal(open_and_look(&r, 5), 0);
    assert_int_equal(open_and_look(&r, 5), 20);
    assert_true(whole_file(path, &now, &n, false));
    for (size_t at = 0; at < n; at += n / 40) { /* spoiled anywhere */
        now[at] ^= 4;
        assert_true(whole_file(path, &now, &n, true));
        assert_int_equal(open_and_look(&r, 5), 0);
        now[at] ^= 4;
    }
    free(old);
    free(now);
    unlink(path); /* lost */
    assert_int_equal(open_and_look(&r, 5), 0);
    assert_int_equal(open_and_look(&r, 5), 20);
    rig_fini(&r);
}

/* ---- late, canceled, many at once ---- */

typedef struct {
    pthread_mutex_t mu;
    pthread_cond_t cond;
    uint32_t done;
    ds_kvstore_cause cause;
} tally;

static void count_fetch(void *ctx, const ds_kvstore_fetched *f)
{
    tally *t = ctx;

    pthread_mutex_lock(&t->mu);
    t->done++;
    t->cause = f->cause;
    pthread_cond_signal(&t->cond);
    pthread_mutex_unlock(&t->mu);
}

static void late_and_canceled(void **state)
{
    enum { N = 64 };
    static uint8_t bytes[N][N][RIG_BLOCK];
    tally t = { .mu = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER };
    rig r;
    ds_kvstore *s;
    ds_err err;
    ds_key keys[N];
    uint8_t *blocks[N][N];
    uint64_t ticket[N];
    uint32_t begun = 0, refused_n = 0;

    (void)state;
    rig_init(&r, 1, 0);
    r.o.max_fetches = N / 2;
    r.o.readers = 1;
    assert_ok(ds_kvstore_open(&s, &r.o, &err));
    assert_int_equal(rig_save(s, (rig_blocks){ 1, 0, N, N, DS_KVSTORE_AGENT, NULL, false }), DS_KVSTORE_SAVED);
    assert_int_equal(rig_fetch(s, 1, 0, N, 1).cause, DS_KVSTORE_LATE);
    rig_keys(keys, 1, 0, N);
    for (uint32_t i = 0; i < N; i++) {
        for (uint32_t b = 0; b < N; b++)
            blocks[i][b] = bytes[i][b];
        ds_rc rc = ds_kvstore_fetch(s, &(ds_kvstore_fetch_req){ .keys = keys, .blocks = blocks[i], .n = N, .done = count_fetch, .ctx = &t },
                                    &ticket[begun], &err);
        begun += rc == DS_OK;
        refused_n += rc == DS_E_AGAIN;
    }
    assert_int_equal(begun + refused_n, N);
    for (uint32_t i = 0; i < begun; i++)
        ds_kvstore_cancel(s, ticket[i]);
    pthread_mutex_lock(&t.mu);
    while (t.done < begun)
        pthread_cond_wait(&t.cond, &t.mu);
    pthread_mutex_unlock(&t.mu);
    assert_false(ds_kvstore_cancel(s, ticket[0]));
    assert_false(ds_kvstore_cancel(s, UINT64_MAX));
    ds_kvstore_close(s);
    assert_int_equal(t.done, begun);
    rig_fini(&r);
}

/* Fetches that are under way when the store closes end, each exactly once. */
static void closing_ends_fetches(void **state)
{
    enum { N = 32 };
    static uint8_t bytes[N][RIG_BLOCK];
    tally t = { .mu = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER };
    rig r;
    ds_kvstore *s;
    ds_err err;
    ds_key keys[N];
    uint8_t *blocks[N];
    uint32_t begun = 0;

    (void)state;
    rig_init(&r, 1, 0);
    assert_ok(ds_kvstore_open(&s, &r.o, &err));
    assert_int_equal(rig_save(s, (rig_blocks){ 1, 0, N, N, DS_KVSTORE_AGENT, NULL, false }), DS_KVSTORE_SAVED);
    rig_keys(keys, 1, 0, N);
    for (uint32_t b = 0; b < N; b++)
        blocks[b] = bytes[b]; /* all into the same: nobody looks */
    for (uint32_t i = 0; i < 20; i++)
        begun +=
            ds_kvstore_fetch(s, &(ds_kvstore_fetch_req){ .keys = keys + i, .blocks = blocks + i, .n = 1, .done = count_fetch, .ctx = &t },
                             NULL, &err) == DS_OK;
    ds_kvstore_close(s);
    assert_int_equal(t.done, begun);
    rig_fini(&r);
}

typedef struct {
    ds_kvstore *s;
    uint32_t number;
} worker;

static void *work(void *arg)
{
    worker *w = arg;

    for (uint32_t i = 0; i < 60; i++) {
        uint32_t own = 1000 * (w->number + 1) + i, other = 1000 * ((w->number + 1) % 4 + 1) + i;
        assert_int_equal(rig_save(w->s, (rig_blocks){ own, 0, 8, 8, DS_KVSTORE_AGENT, NULL, false }), DS_KVSTORE_SAVED);
        rig_fetch(w->s, own, 0, 8, 0); /* may be evicted by now; never wrong */
        rig_fetch(w->s, other, 0, 8, 0);
        rig_save(w->s, (rig_blocks){ own, 8, 4, 4, DS_KVSTORE_CHAT, NULL, false });
        rig_fetch(w->s, own, 0, 12, 0);
    }
    return NULL;
}

static void many_at_once(void **state)
{
    rig r;
    ds_kvstore *s;
    ds_kvstore_stats st;
    ds_kvstore_check c;
    ds_err err;
    pthread_t t[4];
    worker w[4];

    (void)state;
    rig_init(&r, 2, 1);
    r.o.capacity_bytes = 4 << 20;
    assert_ok(ds_kvstore_open(&s, &r.o, &err));
    for (uint32_t i = 0; i < 4; i++) {
        w[i] = (worker){ s, i };
        assert_int_equal(pthread_create(&t[i], NULL, work, &w[i]), 0);
    }
    assert_ok(ds_kvstore_verify(s, DS_KVSTORE_REPAIR, NULL, &c, &err));
    for (uint32_t i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    assert_ok(ds_kvstore_verify(s, DS_KVSTORE_REPAIR, NULL, &c, &err));
    assert_int_equal(c.bad, 0);
    ds_kvstore_stat(s, &st, NULL);
    assert_true(st.evicted > 0 && st.bytes <= r.o.capacity_bytes);
    assert_int_equal(st.pins, 0);
    ds_kvstore_close(s);
    rig_fini(&r);
}

static bool count_item(void *ctx, const ds_kvstore_item *item)
{
    uint32_t *n = ctx;
    ds_key k = item->depth ? rig_key(1, item->depth - 1) : (ds_key){ { 0 } };

    assert_memory_equal(item->parent.b, k.b, 32);
    k = rig_key(1, item->depth);
    assert_memory_equal(item->key.b, k.b, 32);
    assert_int_equal(item->block_bytes, RIG_BLOCK);
    assert_int_equal(item->exact, item->depth < 7);
    return ++*n < 8;
}

static void listed(void **state)
{
    rig r;
    ds_kvstore *s;
    ds_err err;
    uint32_t n = 0;

    (void)state;
    rig_init(&r, 1, 0);
    assert_ok(ds_kvstore_open(&s, &r.o, &err));
    assert_int_equal(rig_save(s, (rig_blocks){ 1, 0, 10, 7, DS_KVSTORE_AGENT, NULL, false }), DS_KVSTORE_SAVED);
    assert_ok(ds_kvstore_list(s, count_item, &n, &err));
    assert_int_equal(n, 8); /* it said that's enough */
    ds_kvstore_close(s);
    rig_fini(&r);
}

static ds_rc open_and_close(void *ctx, ds_err *err)
{
    ds_kvstore *s;
    ds_rc rc = ds_kvstore_open(&s, &((rig *)ctx)->o, err);

    fault_disarm(); /* a store that is closed without memory has no checkpoint, and that is all */
    ds_kvstore_close(s);
    return rc;
}

static void without_memory(void **state)
{
    rig r;
    ds_kvstore *s;
    ds_err err;

    (void)state;
    rig_init(&r, 1, 1);
    assert_ok(ds_kvstore_open(&s, &r.o, &err));
    assert_int_equal(rig_save(s, (rig_blocks){ 1, 0, 10, 7, DS_KVSTORE_AGENT, NULL, false }), DS_KVSTORE_SAVED);
    ds_kvstore_close(s);
    fault_every_allocation(open_and_close, &r);
    assert_ok(ds_kvstore_open(&s, &r.o, &err));
    assert_int_equal(rig_fetch(s, 1, 0, 10, 0).n, 10);
    ds_kvstore_close(s);
    rig_fini(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kept_over_restarts),
        cmocka_unit_test(published_once),
        cmocka_unit_test(refused),
        cmocka_unit_test(bounded),
        cmocka_unit_test(expires),
        cmocka_unit_test(forgets_a_tenant),
        cmocka_unit_test(verified_and_repaired),
        cmocka_unit_test(known_at_once),
        cmocka_unit_test(late_and_canceled),
        cmocka_unit_test(closing_ends_fetches),
        cmocka_unit_test(many_at_once),
        cmocka_unit_test(listed),
        cmocka_unit_test(without_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
