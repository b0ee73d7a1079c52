/* A volume gives back what was committed, byte for byte, or says that it can't: after closing, after being killed,
 * with devices gone, with bits turned and files cut anywhere. */
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/rng.h"
#include "fault.h"
#include "kvstore/volume.h"
#include "test.h"

enum { BLOCK = 5000, MAX_DIRS = 6, MAX_BLOCKS = 400 };

static const uint32_t codes[][2] = { { 1, 0 }, { 1, 1 }, { 2, 1 }, { 4, 2 } };

typedef struct {
    char root[64], dir[MAX_DIRS][96];
    const char *dirs[MAX_DIRS];
    uint32_t k, m;
    ds_volume_place place[MAX_BLOCKS]; /* by number of the block; of 0: not there */
    uint32_t found;
} rig;

static uint64_t state_of(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    return x ^ (x >> 27);
}

static ds_key key_of(uint32_t number)
{
    ds_key k = { { 0 } };

    for (int i = 0; i < 4; i++) {
        uint64_t v = state_of(number * 4u + (uint32_t)i);
        memcpy(k.b + 8 * i, &v, 8);
    }
    memcpy(k.b, &number, 4); /* to tell it from */
    return k;
}

static void fill(uint8_t *out, uint32_t number)
{
    for (size_t i = 0; i < BLOCK; i += 8) {
        uint64_t v = state_of(number * 1000003u + i);
        memcpy(out + i, &v, 8);
    }
}

static void rig_init(rig *r, uint32_t k, uint32_t m)
{
    memset(r, 0, sizeof *r);
    strcpy(r->root, "/dev/shm/ds-volume-XXXXXX"); /* thousands of syncs: not on a disk if it can be helped */
    if (!mkdtemp(r->root)) {
        strcpy(r->root, "/tmp/ds-volume-XXXXXX");
        assert_non_null(mkdtemp(r->root));
    }
    r->k = k;
    r->m = m;
    for (uint32_t i = 0; i < k + m; i++) {
        snprintf(r->dir[i], sizeof r->dir[i], "%s/%u", r->root, i);
        assert_int_equal(mkdir(r->dir[i], 0700), 0);
        r->dirs[i] = r->dir[i];
    }
}

static void empty_directory(const char *path)
{
    DIR *d = opendir(path);
    char name[400];

    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        snprintf(name, sizeof name, "%s/%s", path, e->d_name);
        if (e->d_name[0] != '.')
            unlink(name);
    }
    closedir(d);
}

static void rig_fini(rig *r)
{
    for (uint32_t i = 0; i < r->k + r->m; i++) {
        empty_directory(r->dir[i]);
        rmdir(r->dir[i]);
    }
    rmdir(r->root);
}

static void found(void *ctx, const ds_seg_header *h, const ds_seg_item *x)
{
    rig *r = ctx;
    uint32_t number;
    ds_key want;

    memcpy(&number, x->key.b, 4);
    assert_true(number < MAX_BLOCKS);
    want = key_of(number);
    assert_true(ds_key_equal(&want, &x->key));
    if (x->depth) {
        want = key_of(number - 1);
        assert_true(ds_key_equal(&want, &x->parent));
    }
    r->place[number] = (ds_volume_place){ .segment = h->segment, .offset = x->offset, .at = x->at, .of = x->of, .crc = x->crc };
    r->found++;
}

static ds_rc rig_open(rig *r, ds_volume **v, uint64_t segment_bytes, uint64_t capacity, ds_err *err)
{
    memset(r->place, 0, sizeof r->place);
    r->found = 0;
    return ds_volume_open(v,
                          &(ds_volume_opts){ .dirs = r->dirs,
                                             .n_dirs = r->k + r->m,
                                             .k = r->k,
                                             .m = r->m,
                                             .segment_bytes = segment_bytes,
                                             .capacity_bytes = capacity,
                                             .found = found,
                                             .ctx = r },
                          err);
}

/* Appends blocks first .. first + n - 1 as one extent. */
static ds_rc append(rig *r, ds_volume *v, uint32_t klass, uint32_t first, uint32_t n, ds_err *err)
{
    static uint8_t bytes[DS_SEG_EXTENT_BLOCKS][BLOCK];
    const uint8_t *blocks[DS_SEG_EXTENT_BLOCKS];
    ds_key keys[DS_SEG_EXTENT_BLOCKS];
    ds_volume_extent x = {
        .klass = klass, .expires_s = 1000, .block_bytes = BLOCK, .depth = first, .n = n, .keys = keys, .blocks = blocks
    };
    ds_volume_place at;
    ds_rc rc;

    if (first)
        x.parent = key_of(first - 1);
    for (uint32_t i = 0; i < n; i++) {
        keys[i] = key_of(first + i);
        fill(bytes[i], first + i);
        blocks[i] = bytes[i];
    }
    rc = ds_volume_append(v, &x, &at, err);
    for (uint32_t i = 0; rc == DS_OK && i < n; i++) {
        at.at = i;
        at.crc = ds_crc32c(blocks[i], BLOCK);
        r->place[first + i] = at;
    }
    return rc;
}

static ds_read_result read_block(rig *r, ds_volume_reader *rd, uint32_t number, ds_read_info *info)
{
    static uint8_t got[BLOCK], want[BLOCK];
    ds_key key = key_of(number);
    ds_read_result res = ds_volume_read(rd, &r->place[number], &key, got, sizeof got, NULL, info);

    fill(want, number);
    if (res == DS_READ_OK)
        assert_memory_equal(got, want, BLOCK); /* never a wrong byte */
    return res;
}

/* Blocks 0 .. n-1 in extents of changing length over two classes. */
static void write_some(rig *r, ds_volume *v, uint32_t n)
{
    ds_err err;

    for (uint32_t i = 0, len = 1; i < n; i += len, len = len % 7 + 1) {
        len = len < n - i ? len : n - i;
        assert_ok(append(r, v, i % 3 == 0, i, len, &err));
    }
    assert_ok(ds_volume_commit(v, &err));
}

static uint32_t read_all(rig *r, ds_volume *v, uint32_t n)
{
    ds_volume_reader *rd;
    ds_err err;
    uint32_t good = 0;

    assert_ok(ds_volume_reader_create(&rd, v, &err));
    for (uint32_t i = 0; i < n; i++)
        good += r->place[i].of && read_block(r, rd, i, NULL) == DS_READ_OK;
    ds_volume_reader_destroy(rd);
    return good;
}

static void written_read_and_found_again(void **state)
{
    (void)state;
    for (size_t t = 0; t < sizeof codes / sizeof *codes; t++) {
        ds_volume_stats st;
        ds_volume *v;
        ds_err err;
        rig r;

        rig_init(&r, codes[t][0], codes[t][1]);
        assert_ok(rig_open(&r, &v, 100000, 0, &err));
        write_some(&r, v, 200);
        assert_int_equal(read_all(&r, v, 200), 200);
        ds_volume_stat(v, &st);
        assert_true(st.segments > 2 && st.blocks == 200 && st.bad_devices == 0);
        ds_volume_close(v);
        for (int round = 0; round < 2; round++) { /* with footers; the second time nothing was added */
            assert_ok(rig_open(&r, &v, 100000, 0, &err));
            assert_int_equal(r.found, 200);
            assert_int_equal(read_all(&r, v, 200), 200);
            ds_volume_close(v);
        }
        rig_fini(&r);
    }
}

static void killed_after_a_commit(void **state)
{
    (void)state;
    for (size_t t = 0; t < sizeof codes / sizeof *codes; t++) {
        ds_volume *v;
        ds_err err;
        rig r;
        int status;
        pid_t child;

        rig_init(&r, codes[t][0], codes[t][1]);
        child = fork();
        if (child == 0) {
            if (rig_open(&r, &v, 100000, 0, &err) != DS_OK)
                _exit(1);
            write_some(&r, v, 100);
            append(&r, v, 0, 100, 3, &err); /* not committed: may be there or not */
            _exit(0);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
        assert_ok(rig_open(&r, &v, 100000, 0, &err));
        assert_true(r.found == 100 || r.found == 103);
        assert_int_equal(read_all(&r, v, 103), r.found);
        ds_volume_close(v);
        rig_fini(&r);
    }
}

static void devices_gone(void **state)
{
    (void)state;
    for (size_t t = 1; t < sizeof codes / sizeof *codes; t++) {
        uint32_t n = codes[t][0] + codes[t][1];
        ds_read_info info;
        ds_volume_reader *rd;
        ds_volume *v;
        ds_err err;
        rig r;

        rig_init(&r, codes[t][0], codes[t][1]);
        assert_ok(rig_open(&r, &v, 100000, 0, &err));
        write_some(&r, v, 60);
        ds_volume_close(v);
        for (uint32_t lost = 0; lost < codes[t][1]; lost++) {
            empty_directory(r.dir[lost == 0 ? 0 : n - 1]);
            assert_ok(rig_open(&r, &v, 100000, 0, &err));
            assert_int_equal(r.found, 60);
            assert_int_equal(read_all(&r, v, 60), 60);
            assert_ok(ds_volume_reader_create(&rd, v, &err));
            assert_int_equal(read_block(&r, rd, 0, &info), DS_READ_OK);
            assert_true(info.decoded); /* device 0 had data */
            ds_volume_reader_destroy(rd);
            ds_volume_stats st;
            ds_volume_stat(v, &st); /* a new disk in its place: it could have a part of all that is there */
            assert_true(st.bad_devices == 0 && st.incomplete == st.segments && st.segments > 0);
            uint64_t seen = 0;
            for (uint64_t s = 0; (s = ds_volume_incomplete(v, s)) != 0;)
                seen++;
            assert_int_equal(seen, st.segments);
            ds_volume_close(v);
        }
        if (n > 2) { /* of 1+1 nothing would be left, and that is a new store */
            for (uint32_t lost = 0; lost <= codes[t][1]; lost++)
                empty_directory(r.dir[lost]);
            assert_refused(rig_open(&r, &v, 100000, 0, &err), DS_E_FORMAT, "are needed");
        }
        rig_fini(&r);
    }
}

/* Any byte of any file may be another, any file may end anywhere: a block is right or isn't given. */
static void damaged_anywhere(void **state)
{
    (void)state;
    for (size_t t = 0; t < sizeof codes / sizeof *codes; t++) {
        uint64_t seed = 5 + t;
        uint32_t n = codes[t][0] + codes[t][1], most = 0;
        ds_volume *v;
        ds_err err;
        rig r;

        rig_init(&r, codes[t][0], codes[t][1]);
        assert_ok(rig_open(&r, &v, 60000, 0, &err));
        write_some(&r, v, 40);
        ds_volume_close(v);
        for (int round = 0; round < 120; round++) {
            uint64_t x = seed = state_of(seed);
            uint8_t was;
            char path[200];
            struct stat st;
            int fd;

            snprintf(path, sizeof path, "%s/%016lx.seg", r.dir[x % n], (unsigned long)(1 + x / 7 % 3));
            fd = open(path, O_RDWR);
            if (fd < 0)
                continue;
            assert_int_equal(fstat(fd, &st), 0);
            off_t at = (off_t)(x / 64 % (uint64_t)st.st_size);
            assert_int_equal(pread(fd, &was, 1, at), 1);
            was ^= (uint8_t)(1u << (x % 8));
            assert_int_equal(pwrite(fd, &was, 1, at), 1);
            if (rig_open(&r, &v, 60000, 0, &err) == DS_OK) {
                uint32_t good = read_all(&r, v, 40);
                most = good > most ? good : most;
                if (codes[t][1])
                    assert_int_equal(good, 40); /* one device was wrong */
                ds_volume_close(v);
            }
            was ^= (uint8_t)(1u << (x % 8));
            assert_int_equal(pwrite(fd, &was, 1, at), 1);
            close(fd);
        }
        assert_int_equal(most, 40);
        rig_fini(&r);
    }
}

static void cut_anywhere(void **state)
{
    uint64_t seed = 11;

    (void)state;
    for (int round = 0; round < 60; round++) {
        size_t t = (size_t)round % 4;
        uint64_t x = seed = state_of(seed);
        char path[200];
        struct stat st;
        ds_volume *v;
        ds_err err;
        rig r;

        rig_init(&r, codes[t][0], codes[t][1]);
        assert_ok(rig_open(&r, &v, 60000, 0, &err));
        write_some(&r, v, 12);
        ds_volume_close(v);
        snprintf(path, sizeof path, "%s/%016lx.seg", r.dir[x % (r.k + r.m)], 1ul + x / 9 % 2);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(truncate(path, (off_t)(x / 64 % (uint64_t)st.st_size)), 0);
        assert_ok(rig_open(&r, &v, 60000, 0, &err));
        uint32_t good = read_all(&r, v, 12);
        if (r.m)
            assert_int_equal(good, 12);
        assert_true(good <= r.found);
        assert_ok(append(&r, v, 0, 20, 2, &err));
        assert_ok(ds_volume_commit(v, &err));
        assert_true(read_all(&r, v, 30) >= good + 2);
        ds_volume_close(v);
        rig_fini(&r);
    }
}

static uint64_t bytes_on_disk(const rig *r)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < r->k + r->m; i++) {
        DIR *d = opendir(r->dir[i]);
        char name[400];
        struct stat st;
        for (struct dirent *e; (e = readdir(d));) {
            snprintf(name, sizeof name, "%s/%s", r->dir[i], e->d_name);
            if (strstr(e->d_name, ".seg") && stat(name, &st) == 0)
                sum += (uint64_t)st.st_size;
        }
        closedir(d);
    }
    return sum;
}

static void capacity_is_kept(void **state)
{
    (void)state;
    for (size_t t = 0; t < sizeof codes / sizeof *codes; t++) {
        const uint64_t capacity = 600000;
        uint32_t number = 0, dropped = 0;
        ds_volume_stats st;
        ds_volume *v;
        ds_err err;
        rig r;

        rig_init(&r, codes[t][0], codes[t][1]);
        assert_ok(rig_open(&r, &v, 40000, capacity, &err));
        for (int i = 0; i < 200 && number < MAX_BLOCKS - 8; i++) {
            ds_rc rc = append(&r, v, (uint32_t)i % 2, number, 1 + (uint32_t)i % 4, &err);
            if (rc == DS_E_AGAIN) {
                assert_true(ds_volume_drop(v, r.place[dropped].segment) || r.place[dropped].of == 0 || dropped < number);
                dropped++;
                if (dropped == number)
                    assert_ok(ds_volume_seal(v, 0, &err));
                continue;
            }
            assert_int_equal(rc, DS_OK);
            number += 1 + (uint32_t)i % 4;
            assert_true(bytes_on_disk(&r) <= capacity);
        }
        assert_true(dropped > 0);
        assert_ok(ds_volume_commit(v, &err));
        ds_volume_close(v);
        assert_true(bytes_on_disk(&r) <= capacity);
        assert_ok(rig_open(&r, &v, 40000, capacity, &err));
        ds_volume_stat(v, &st);
        assert_int_equal(st.bytes, bytes_on_disk(&r));
        assert_int_equal(read_all(&r, v, MAX_BLOCKS), r.found);
        ds_volume_close(v);
        rig_fini(&r);
    }
}

static void not_what_was_asked_for(void **state)
{
    static uint8_t out[BLOCK];
    ds_volume_reader *rd;
    ds_volume_place p;
    ds_volume *v, *second;
    ds_key key;
    ds_err err;
    rig r;

    (void)state;
    rig_init(&r, 2, 1);
    assert_ok(rig_open(&r, &v, 0, 0, &err));
    write_some(&r, v, 12);
    assert_refused(ds_volume_open(&second, &(ds_volume_opts){ .dirs = r.dirs, .n_dirs = 3, .read_only = true }, &err), DS_E_AGAIN,
                   "another process");
    assert_ok(ds_volume_reader_create(&rd, v, &err));
    key = key_of(4);
    assert_int_equal(ds_volume_read(rd, &r.place[5], &key, out, sizeof out, NULL, NULL), DS_READ_CORRUPT); /* another block's key */
    key = key_of(5);
    p = r.place[5];
    p.crc ^= 1;
    assert_int_equal(ds_volume_read(rd, &p, &key, out, sizeof out, NULL, NULL), DS_READ_CORRUPT);
    p = r.place[5];
    p.segment += 100;
    assert_int_equal(ds_volume_read(rd, &p, &key, out, sizeof out, NULL, NULL), DS_READ_GONE);
    p = r.place[5];
    p.offset += 1u << 30;
    assert_int_equal(ds_volume_read(rd, &p, &key, out, sizeof out, NULL, NULL), DS_READ_IO);
    assert_int_equal(ds_volume_read(rd, &r.place[5], &key, out, sizeof out - 1, NULL, NULL), DS_READ_CORRUPT);
    assert_int_equal(ds_volume_read(rd, &r.place[5], &key, out, sizeof out, &(ds_read_opts){ .deadline_ns = 1 }, NULL), DS_READ_LATE);
    assert_int_equal(ds_volume_read(rd, &r.place[5], &key, out, sizeof out, NULL, NULL),
                     DS_READ_OK);                        /* what the late one left behind does no harm */
    assert_false(ds_volume_drop(v, r.place[5].segment)); /* open */
    assert_ok(ds_volume_seal(v, 0, &err));
    assert_ok(ds_volume_seal(v, 1, &err));
    assert_true(ds_volume_drop(v, r.place[5].segment));
    assert_int_equal(ds_volume_read(rd, &r.place[5], &key, out, sizeof out, NULL, NULL), DS_READ_GONE);
    ds_volume_reader_destroy(rd);
    ds_volume_close(v);
    assert_refused(ds_volume_open(&v, &(ds_volume_opts){ .dirs = r.dirs, .n_dirs = 2 }, &err), DS_E_ARG, "3 devices, 2");
    assert_refused(ds_volume_open(&v, &(ds_volume_opts){ .dirs = r.dirs, .n_dirs = 3, .k = 1, .m = 2 }, &err), DS_E_ARG, "2+1, not 1+2");
    r.dirs[1] = r.dirs[0];
    assert_refused(ds_volume_open(&v, &(ds_volume_opts){ .dirs = r.dirs, .n_dirs = 3 }, &err), DS_E_FORMAT, "so is one before it");
    rig_fini(&r);
}

/* ---- a writer and readers at once ---- */

enum { RING = 64, TURNS = 300 };

typedef struct {
    rig *r;
    ds_volume *v;
    pthread_mutex_t mu;
    ds_volume_place place[RING]; /* [mu] of block i % RING, latest last; of 0: none */
    bool stop;                   /* [mu] */
    uint32_t right, gone, wrong;
} shared;

static void *reading(void *arg)
{
    shared *sh = arg;
    uint8_t got[BLOCK], want[BLOCK];
    ds_volume_reader *rd;
    uint64_t x = 3;
    bool stop = false;

    if (ds_volume_reader_create(&rd, sh->v, NULL) != DS_OK)
        return NULL;
    while (!stop) {
        uint32_t number = (uint32_t)((x = state_of(x)) % RING);
        ds_volume_place p;
        ds_key key = key_of(number);
        pthread_mutex_lock(&sh->mu);
        stop = sh->stop;
        p = sh->place[number];
        pthread_mutex_unlock(&sh->mu);
        if (!p.of)
            continue;
        ds_read_result res = ds_volume_read(rd, &p, &key, got, sizeof got, NULL, NULL);
        fill(want, number);
        pthread_mutex_lock(&sh->mu);
        sh->right += res == DS_READ_OK && memcmp(got, want, BLOCK) == 0;
        sh->gone += res == DS_READ_GONE;
        sh->wrong += res == DS_READ_OK ? memcmp(got, want, BLOCK) != 0 : res != DS_READ_GONE;
        pthread_mutex_unlock(&sh->mu);
    }
    ds_volume_reader_destroy(rd);
    return NULL;
}

/* Segments are begun, sealed and dropped while two others read: a block is right, or its segment is gone. */
static void read_while_written(void **state)
{
    pthread_t t[2];
    shared sh = { .mu = PTHREAD_MUTEX_INITIALIZER };
    ds_err err;
    rig r;

    (void)state;
    rig_init(&r, 2, 1);
    assert_ok(rig_open(&r, &sh.v, 60000, 0, &err));
    sh.r = &r;
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&t[i], NULL, reading, &sh), 0);
    for (uint32_t turn = 0; turn < TURNS; turn++) {
        uint32_t number = turn * 4 % RING;
        uint64_t old = sh.place[number].segment;
        assert_ok(append(&r, sh.v, 0, number, 4, &err));
        assert_ok(ds_volume_commit(sh.v, &err));
        pthread_mutex_lock(&sh.mu);
        memcpy(sh.place + number, r.place + number, 4 * sizeof *sh.place);
        pthread_mutex_unlock(&sh.mu);
        if (old)
            ds_volume_drop(sh.v, old); /* others of its blocks may be asked for still */
    }
    pthread_mutex_lock(&sh.mu);
    sh.stop = true;
    pthread_mutex_unlock(&sh.mu);
    for (int i = 0; i < 2; i++)
        pthread_join(t[i], NULL);
    assert_int_equal(sh.wrong, 0);
    assert_true(sh.right > 0);
    ds_volume_close(sh.v);
    rig_fini(&r);
}

static ds_rc attempt(void *ctx, ds_err *err)
{
    rig *r = ctx;
    ds_volume *v;
    ds_rc rc = rig_open(r, &v, 100000, 0, err);
    ds_volume_reader *rd = NULL;

    if (rc != DS_OK) {
        assert_null(v);
        return rc;
    }
    rc = append(r, v, 0, 0, 2, err);
    if (rc == DS_OK)
        rc = ds_volume_commit(v, err);
    if (rc == DS_OK)
        rc = ds_volume_reader_create(&rd, v, err);
    if (rc == DS_OK && read_block(r, rd, 1, NULL) != DS_READ_OK)
        rc = ds_fail(err, DS_E_NOMEM, "not read");
    ds_volume_reader_destroy(rd);
    ds_volume_close(v);
    for (uint32_t i = 0; i < r->k + r->m; i++)
        empty_directory(r->dir[i]);
    return rc;
}

static void allocations_fail(void **state)
{
    bool failed = true;
    rig r;

    (void)state;
    rig_init(&r, 2, 1);
    for (unsigned n = 1; failed; n++) {
        ds_err err = { 0 };
        fault_arm(n, false);
        ds_rc rc = attempt(&r, &err);
        failed = fault_disarm();
        if (rc != DS_OK && rc != DS_E_NOMEM) /* a footer that can't be made isn't one: extents are found without it */
            fail_msg("allocation %u failing: %d, %s", n, rc, err.msg);
        assert_true(failed || rc == DS_OK);
        for (uint32_t i = 0; i < r.k + r.m; i++)
            empty_directory(r.dir[i]);
    }
    rig_fini(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(written_read_and_found_again),
        cmocka_unit_test(killed_after_a_commit),
        cmocka_unit_test(devices_gone),
        cmocka_unit_test(damaged_anywhere),
        cmocka_unit_test(cut_anywhere),
        cmocka_unit_test(capacity_is_kept),
        cmocka_unit_test(not_what_was_asked_for),
        cmocka_unit_test(read_while_written),
        cmocka_unit_test(allocations_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
