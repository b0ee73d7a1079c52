/* Fetching from a KV store on this machine's devices into memory, every byte verified, next to what bounds it.
 *
 *   bench_kvfetch [DIR [MIB]]     DIR: on the device to be measured (default: /tmp); MIB of blocks (default: 256)
 *
 * Blocks are those of the released model (113,920 bytes). `device` is what a bare reader of the same files gets:
 * io_uring, direct, the same sizes in the same number at a time, random order, nothing looked at. `memcpy` copies the
 * same blocks from memory into the same buffers with as many threads. A fetch can't be faster than the slower of the
 * two: roof_pct is the distance. With twelve directories of one device a block is twelve small reads.
 *
 * `one_by_one` is the time of single fetches, healthy, and with one device dead and one that answers 30 ms late. The
 * share of metadata is that of look-ups in a fetch. */
#include <fcntl.h>
#include <liburing.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/rng.h"
#include "bench.h"
#include "kv/layout.h"
#include "kvstore/store_internal.h"
#include "kvstore/volume_internal.h"

enum { BLOCK = 113920, MAX_DIRS = 12, EXTENT = 32, READERS = 4, ROUNDS = 5, SINGLES = 1500 };

static char root[200], dir[MAX_DIRS][240];
static const char *dirs[MAX_DIRS];
static uint32_t n_blocks;
static ds_key *keys;
static uint8_t *memory, *source;

static void die(const char *what, const ds_err *err)
{
    fprintf(stderr, "bench_kvfetch: %s: %s\n", what, err ? err->msg : "failed");
    exit(1);
}

/* ---- a store with blocks ---- */

static ds_kvstore_user user(void)
{
    static uint8_t bytes[DS_KV_LAYOUT_MAX_BYTES];
    static ds_kv_layout l = {
        .version = DS_KV_LAYOUT_VERSION,
        .block_tokens = DS_KV_BLOCK_TOKENS,
        .window = 128,
        .ring = 134,
        .rollback = DS_KV_ROLLBACK,
        .numerics = "ref",
        .block_bytes = BLOCK,
        .slot_bytes = 64,
        .n_parts = 1,
        .part = { { .record = DS_KV_MAIN, .ratio = 1, .bytes = BLOCK / DS_KV_BLOCK_TOKENS, .count = DS_KV_BLOCK_TOKENS } }
    };
    ds_kvstore_user u = { .model = { 1 }, .tokenizer = { 1 }, .dialect = { 1 }, .layout = bytes };

    u.layout_bytes = ds_kv_layout_write(bytes, &l);
    return u;
}

typedef struct {
    pthread_mutex_t mu;
    pthread_cond_t c;
    uint32_t left, right; /* requests under way; blocks that came */
} waiting;

static void over(waiting *w, uint32_t n)
{
    pthread_mutex_lock(&w->mu);
    w->right += n;
    if (--w->left == 0)
        pthread_cond_signal(&w->c);
    pthread_mutex_unlock(&w->mu);
}

static void saved(void *ctx, ds_kvstore_saved r)
{
    over(ctx, r == DS_KVSTORE_SAVED);
}

static void fetched(void *ctx, const ds_kvstore_fetched *r)
{
    over(ctx, r->n);
}

static uint32_t wait_for(waiting *w)
{
    pthread_mutex_lock(&w->mu);
    while (w->left)
        pthread_cond_wait(&w->c, &w->mu);
    pthread_mutex_unlock(&w->mu);
    return w->right;
}

static void fill(ds_kvstore *s)
{
    const uint8_t *block[EXTENT];
    ds_err err;

    for (uint32_t i = 0; i < n_blocks; i += EXTENT) { /* each extent a chain of its own */
        waiting w = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 1, 0 };
        for (uint32_t k = 0; k < EXTENT; k++)
            block[k] = source + (size_t)(i + k) * BLOCK;
        if (ds_kvstore_save(
                s, &(ds_kvstore_save_req){ .keys = keys + i, .blocks = block, .n = EXTENT, .exact = EXTENT, .done = saved, .ctx = &w },
                &err) != DS_OK ||
            wait_for(&w) != 1)
            die("save", &err);
    }
}

/* ---- what bounds it ---- */

typedef struct {
    uint32_t thread, n_threads;
    const uint32_t *order;
} copying;

static void *copy_blocks(void *arg)
{
    const copying *c = arg;

    for (uint32_t i = c->thread; i < n_blocks; i += c->n_threads)
        memcpy(memory + (size_t)c->order[i] * BLOCK, source + (size_t)c->order[i] * BLOCK, BLOCK);
    return NULL;
}

static double memcpy_gb_s(const uint32_t *order)
{
    pthread_t t[READERS];
    copying c[READERS];
    uint64_t begun = ds_now_ns();

    for (uint32_t i = 0; i < READERS; i++) {
        c[i] = (copying){ i, READERS, order };
        pthread_create(&t[i], NULL, copy_blocks, &c[i]);
    }
    for (uint32_t i = 0; i < READERS; i++)
        pthread_join(t[i], NULL);
    return (double)n_blocks * BLOCK / (double)(ds_now_ns() - begun);
}

typedef struct {
    ds_kvs *st;
    uint32_t thread, n_threads;
    const uint32_t *order;
} reading;

/* One block at a time, all its devices' reads at once: as a store's thread does it. */
static void *read_blocks(void *arg)
{
    const reading *b = arg;
    struct io_uring ring;
    uint8_t *buf[MAX_DIRS];
    int fd[MAX_DIRS];
    uint64_t segment = UINT64_MAX;
    uint32_t k = b->st->v->k + (b->st->v->m > 0), n = 0;

    if (io_uring_queue_init(MAX_DIRS, &ring, 0) != 0)
        die("io_uring", NULL);
    for (uint32_t d = 0; d < k; d++) {
        buf[d] = aligned_alloc(4096, 2 << 16);
        fd[d] = -1;
    }
    for (uint32_t i = b->thread; i < n_blocks; i += b->n_threads) {
        ds_index_hit hit;
        struct io_uring_cqe *c;
        if (!ds_index_find(b->st->ix, &keys[b->order[i]], &hit))
            die("look-up", NULL);
        uint32_t sb = ds_seg_shard_bytes(BLOCK, b->st->v->k);
        uint64_t at = hit.place.offset + ds_seg_record_at(hit.place.of, hit.place.at, sb), from = at / 4096 * 4096;
        unsigned whole = (unsigned)((at - from + DS_SEG_RECORD_HEADER + sb + 4095) / 4096 * 4096);
        for (uint32_t d = 0; d < k && segment != hit.place.segment; d++) {
            char path[300];
            snprintf(path, sizeof path, "%s/%016lx.seg", dirs[d], (unsigned long)hit.place.segment);
            if (fd[d] >= 0)
                close(fd[d]);
            fd[d] = open(path, O_RDONLY | (b->st->v->files->direct ? O_DIRECT : 0));
            n++;
        }
        segment = hit.place.segment;
        for (uint32_t d = 0; d < k; d++)
            io_uring_prep_read(io_uring_get_sqe(&ring), fd[d], buf[d], whole, from);
        io_uring_submit_and_wait(&ring, k);
        for (uint32_t d = 0; d < k; d++) {
            if (io_uring_wait_cqe(&ring, &c) != 0 || c->res < 0)
                die("read", NULL);
            io_uring_cqe_seen(&ring, c);
        }
    }
    for (uint32_t d = 0; d < k; d++) {
        free(buf[d]);
        close(fd[d]);
    }
    io_uring_queue_exit(&ring);
    return NULL;
}

static double device_gb_s(ds_kvs *st, const uint32_t *order)
{
    pthread_t t[READERS];
    reading b[READERS];
    uint64_t begun = ds_now_ns();

    for (uint32_t i = 0; i < READERS; i++) {
        b[i] = (reading){ st, i, READERS, order };
        pthread_create(&t[i], NULL, read_blocks, &b[i]);
    }
    for (uint32_t i = 0; i < READERS; i++)
        pthread_join(t[i], NULL);
    return (double)n_blocks * BLOCK / (double)(ds_now_ns() - begun);
}

/* ---- the store ---- */

/* All blocks in requests of one extent, all of them under way. */
static double fetch_gb_s(ds_kvstore *s, const uint32_t *order)
{
    waiting w = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, n_blocks, 0 };
    uint64_t begun = ds_now_ns();
    ds_err err;

    for (uint32_t i = 0; i < n_blocks; i++) {
        uint8_t *to = memory + (size_t)order[i] * BLOCK;
        if (ds_kvstore_fetch(
                s,
                &(ds_kvstore_fetch_req){
                    .keys = &keys[order[i]], .blocks = &to, .n = 1, .deadline_ns = begun + 600000000000u, .done = fetched, .ctx = &w },
                NULL, &err) != DS_OK)
            die("fetch", &err);
    }
    if (wait_for(&w) != n_blocks)
        die("fetch", NULL);
    return (double)n_blocks * BLOCK / (double)(ds_now_ns() - begun);
}

static void single_fetches(ds_kvstore *s, const uint32_t *order, double *p50, double *p99)
{
    static uint64_t ns[SINGLES];

    for (uint32_t i = 0; i < SINGLES; i++) {
        waiting w = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 1, 0 };
        uint32_t b = order[i % n_blocks];
        uint8_t *to = memory + (size_t)b * BLOCK;
        uint64_t begun = ds_now_ns();
        ds_err err;
        if (ds_kvstore_fetch(s, &(ds_kvstore_fetch_req){ .keys = &keys[b], .blocks = &to, .n = 1, .done = fetched, .ctx = &w }, NULL,
                             &err) != DS_OK ||
            wait_for(&w) != 1)
            die("fetch", NULL);
        ns[i] = ds_now_ns() - begun;
    }
    qsort(ns, SINGLES, sizeof *ns, bench_compare);
    *p50 = (double)ns[SINGLES / 2];
    *p99 = (double)ns[SINGLES * 99 / 100];
}

/* ---- a dead and a slow device ---- */

static atomic_bool ill; /* set between fetches */

static int64_t write_all(void *ctx, uint32_t d, uint8_t *bytes, size_t n, bool *lie)
{
    (void)ctx, (void)d, (void)bytes, (void)lie;
    return (int64_t)n;
}

static int sync_all(void *ctx, uint32_t d)
{
    (void)ctx, (void)d;
    return 0;
}

static void remove_all(void *ctx, uint32_t d)
{
    (void)ctx, (void)d;
}

static int read_all(void *ctx, uint32_t d, uint8_t *bytes, int returned)
{
    (void)ctx, (void)bytes;
    return ill && d == 3 ? -5 : returned;
}

static uint64_t late(void *ctx, uint32_t d)
{
    (void)ctx;
    return ill && d == 7 ? 30000000 : 0;
}

static double median(double *v, int n)
{
    for (int i = 1; i < n; i++)
        for (int j = i; j > 0 && v[j] < v[j - 1]; j--) {
            double t = v[j];
            v[j] = v[j - 1];
            v[j - 1] = t;
        }
    return v[n / 2];
}

#define PER_BLOCK(member) ((double)(b.member - a.member) / (double)(b.hits - a.hits))

static void run(uint32_t k, uint32_t m, const uint32_t *order)
{
    static const ds_vol_faults faults = { NULL, write_all, sync_all, remove_all, read_all, late };
    ds_kvstore_user u = user();
    ds_kvstore_opts o = {
        .dirs = dirs, .n_dirs = k + m, .k = k, .m = m, .user = &u, .readers = READERS, .max_fetches = n_blocks, .max_blocks = 2 * n_blocks
    };
    double fetch[ROUNDS], device[ROUNDS], copy[ROUNDS], roof;
    double p50[ROUNDS], p99[ROUNDS], bad50[ROUNDS], bad99[ROUNDS];
    ds_kvstore_stats a, b;
    ds_kvstore *s;
    ds_err err;

    for (uint32_t d = 0; d < k + m; d++) {
        snprintf(dir[d], sizeof dir[d], "%s/%u+%u.%u", root, k, m, d);
        dirs[d] = dir[d];
        mkdir(dir[d], 0700);
    }
    if (ds_kvstore_open(&s, &o, &err) != DS_OK)
        die("open", &err);
    fill(s);
    fetch_gb_s(s, order);
    ds_kvstore_stat(s, &a, NULL);
    for (int i = 0; i < ROUNDS; i++) { /* in turn, so that others' work on the machine is in all three */
        fetch[i] = fetch_gb_s(s, order);
        device[i] = device_gb_s((ds_kvs *)s, order);
        copy[i] = memcpy_gb_s(order);
    }
    ds_kvstore_stat(s, &b, NULL);
    double f = median(fetch, ROUNDS), d = median(device, ROUNDS), c = median(copy, ROUNDS);
    roof = d < c ? d : c;
    printf("op=kvfetch code=%u+%u direct=%d bytes=%d blocks=%u readers=%d gb_s=%.2f device_gb_s=%.2f memcpy_gb_s=%.2f roof_pct=%.0f\n", k,
           m, ((ds_kvs *)s)->v->files->direct, BLOCK, n_blocks, READERS, f, d, c, 100 * f / roof);
    printf(
        "op=kvfetch code=%u+%u variant=phases lookup_ns=%.0f device_ns=%.0f decode_ns=%.0f verify_ns=%.0f copy_ns=%.0f metadata_pct=%.2f\n",
        k, m, PER_BLOCK(lookup_ns), PER_BLOCK(device_ns), PER_BLOCK(decode_ns), PER_BLOCK(verify_ns), PER_BLOCK(copy_ns),
        100 * PER_BLOCK(lookup_ns) /
            (PER_BLOCK(lookup_ns) + PER_BLOCK(device_ns) + PER_BLOCK(decode_ns) + PER_BLOCK(verify_ns) + PER_BLOCK(copy_ns)));
    ((ds_kvs *)s)->v->faults = &faults;
    for (int i = 0; i < ROUNDS; i++) { /* in turn here too */
        single_fetches(s, order, &p50[i], &p99[i]);
        atomic_store(&ill, m >= 2);
        single_fetches(s, order, &bad50[i], &bad99[i]);
        atomic_store(&ill, false);
    }
    printf("op=kvfetch code=%u+%u variant=one_by_one us_med=%.0f us_p99=%.0f\n", k, m, median(p50, ROUNDS) / 1e3,
           median(p99, ROUNDS) / 1e3);
    if (m >= 2)
        printf("op=kvfetch code=%u+%u variant=one_by_one_degraded us_med=%.0f us_p99=%.0f p99_ratio=%.2f\n", k, m,
               median(bad50, ROUNDS) / 1e3, median(bad99, ROUNDS) / 1e3, median(bad99, ROUNDS) / median(p99, ROUNDS));
    ds_kvstore_close(s);
    if (memcmp(memory, source, (size_t)n_blocks * BLOCK) != 0)
        die("what came isn't what was saved", NULL);
}

int main(int argc, char **argv)
{
    uint32_t *order;
    char command[300];

    n_blocks = (uint32_t)(((size_t)(argc > 2 ? strtoul(argv[2], NULL, 10) : 256) << 20) / BLOCK / EXTENT * EXTENT);
    snprintf(root, sizeof root, "%s/ds-kvfetch-XXXXXX", argc > 1 ? argv[1] : "/tmp");
    if (!n_blocks || !mkdtemp(root))
        die(root, NULL);
    keys = calloc(n_blocks, sizeof *keys);
    order = calloc(n_blocks, sizeof *order);
    memory = aligned_alloc(4096, (size_t)n_blocks * BLOCK / 4096 * 4096 + 4096);
    source = aligned_alloc(4096, (size_t)n_blocks * BLOCK / 4096 * 4096 + 4096);
    for (size_t i = 0; i < (size_t)n_blocks * BLOCK; i += 8) {
        uint64_t v = i * 0x9e3779b97f4a7c15u;
        memcpy(source + i, &v, 8);
    }
    memset(memory, 0, (size_t)n_blocks * BLOCK);
    for (uint32_t i = 0; i < n_blocks; i++) {
        for (int w = 0; w < 4; w++) {
            uint64_t v = ds_rng_u64(1, i, (uint64_t)w);
            memcpy(keys[i].b + 8 * w, &v, 8);
        }
        order[i] = i;
    }
    for (uint32_t i = n_blocks - 1; i > 0; i--) {
        uint32_t j = (uint32_t)(ds_rng_u64(2, i, 0) % (i + 1)), t = order[i];
        order[i] = order[j];
        order[j] = t;
    }
    run(1, 0, order);
    run(10, 2, order);
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    return system(command) != 0;
}
