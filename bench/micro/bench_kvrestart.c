/* How long a KV store takes to know what it has.
 *
 *   bench_kvrestart [DIR [BLOCKS [FOOTERS]]]   DIR: where files go (default /tmp); millions of blocks (default 2, 1)
 *
 * `checkpoint`: an index of so many blocks, chains of 64 in extents of 16, written as a clean stop does and read as a
 * start does, the file not in the page cache. Roof: the same file read and its checksum taken. `footers`: a store of
 * tiny blocks, opened without its checkpoint; most of it is footers. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ds/kvstore.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/none.h"
#include "base/rng.h"
#include "bench.h"
#include "kv/layout.h"
#include "kvstore/checkpoint.h"

enum { CHAIN = 64, EXTENT = 16, PER_SEGMENT = 25600, TINY = 64 };

static char root[200];

static void die(const char *what, const ds_err *err)
{
    fprintf(stderr, "bench_kvrestart: %s: %s\n", what, err ? err->msg : "failed");
    exit(1);
}

static void make_key(ds_key *k, uint64_t i)
{
    for (uint32_t w = 0; w < 4; w++) {
        uint64_t v = (i * 4 + w) * 0x9e3779b97f4a7c15u;
        v = (v ^ v >> 29) * 0xbf58476d1ce4e5b9u;
        v ^= v >> 32;
        memcpy(k->b + 8 * w, &v, 8);
    }
}

static ds_index *make_index(uint32_t n)
{
    ds_key keys[EXTENT];
    uint32_t crc[EXTENT] = { 0 }, last = DS_NONE;
    ds_index *ix;
    ds_err err;

    if (ds_index_create(&ix, n, &err) != DS_OK)
        die("index", &err);
    for (uint32_t i = 0; i < n; i += EXTENT) {
        for (uint32_t k = 0; k < EXTENT; k++)
            make_key(&keys[k], i + k);
        if (ds_index_insert(ix,
                            &(ds_index_extent){ .segment = 1 + i / PER_SEGMENT,
                                                .offset = 4096ull * (i % PER_SEGMENT + 1),
                                                .of = EXTENT,
                                                .n = EXTENT,
                                                .keys = keys,
                                                .crc = crc,
                                                .parent = i % CHAIN ? last : DS_NONE,
                                                .depth = i % CHAIN,
                                                .used = i },
                            &last, &err) != DS_OK)
            die("insert", &err);
    }
    return ix;
}

/* Out of the page cache, as after the machine was started. */
static int cold(const char *path)
{
    int fd = open(path, O_RDONLY);

    if (fd < 0 || posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) != 0)
        die(path, NULL);
    return fd;
}

/* CPU time of this thread: others may be at work on the machine. */
static double cpu_s(void)
{
    struct rusage u;

    getrusage(RUSAGE_THREAD, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static double user_s(void)
{
    struct rusage u;

    getrusage(RUSAGE_THREAD, &u);
    return (double)u.ru_utime.tv_sec + (double)u.ru_utime.tv_usec / 1e6;
}

static double read_alone(const char *path, uint8_t *buf, size_t n)
{
    int fd = cold(path);
    uint64_t begun = ds_now_ns();
    volatile uint32_t sum = 0;
    ssize_t got;

    while ((got = read(fd, buf, n)) > 0)
        sum = sum ^ ds_crc32c(buf, (size_t)got);
    close(fd);
    return (double)(ds_now_ns() - begun) / 1e9;
}

static void checkpoints(uint32_t n)
{
    static const ds_checkpoint_layout layout = { { 1 }, 113920 };
    static const uint32_t numbers[DS_CHECKPOINT_LAYOUTS];
    ds_checkpoint_of w = { .store = { 1 }, .layouts = &layout, .n_layouts = 1, .n_segments = n / PER_SEGMENT + 1 };
    ds_checkpoint_segment *segments = calloc(w.n_segments, sizeof *segments);
    size_t buf_bytes = 1 << 20;
    uint8_t *buf = malloc(buf_bytes);
    ds_index *ix = make_index(n);
    ds_checkpoint *c;
    char path[240];
    struct stat st;
    uint64_t begun;
    double wrote, loaded, alone, cpu, user;
    ds_err err;

    for (uint64_t i = 0; i < w.n_segments; i++)
        segments[i].segment = i + 1;
    w.segments = segments;
    snprintf(path, sizeof path, "%s/index.ckpt", root);
    begun = ds_now_ns();
    if (ds_checkpoint_write(root, &w, ix, &err) != DS_OK)
        die("write", &err);
    wrote = (double)(ds_now_ns() - begun) / 1e9;
    ds_index_destroy(ix);
    stat(path, &st);
    alone = read_alone(path, buf, buf_bytes);
    close(cold(path));
    cpu = cpu_s();
    user = user_s();
    begun = ds_now_ns();
    if (ds_index_create(&ix, n, &err) != DS_OK || ds_checkpoint_open(&c, root, &err) != DS_OK ||
        ds_checkpoint_load(c, ix, numbers, &err) != DS_OK)
        die("load", &err);
    loaded = (double)(ds_now_ns() - begun) / 1e9;
    cpu = cpu_s() - cpu;
    user = user_s() - user;
    if (ds_index_blocks(ix) != n)
        die("blocks are missing", NULL);
    printf("op=kvrestart variant=checkpoint blocks=%u bytes=%lld write_s=%.2f load_s=%.2f cpu_s=%.2f system_s=%.2f mblocks_s=%.1f "
           "read_alone_s=%.2f roof_pct=%.0f s_per_100M=%.1f cpu_s_per_100M=%.1f\n",
           n, (long long)st.st_size, wrote, loaded, cpu, cpu - user, n / loaded / 1e6, alone, 100 * alone / loaded, loaded * 1e8 / n,
           cpu * 1e8 / n);
    fflush(stdout);
    ds_checkpoint_close(c);
    ds_index_destroy(ix);
    ds_checkpoint_remove(root);
    free(segments);
    free(buf);
}

/* ---- footers ---- */

typedef struct {
    pthread_mutex_t mu;
    pthread_cond_t c;
    uint32_t left, failed;
} waiting;

static void saved(void *ctx, ds_kvstore_saved r)
{
    waiting *w = ctx;

    pthread_mutex_lock(&w->mu);
    w->failed += r != DS_KVSTORE_SAVED;
    w->left--;
    pthread_cond_signal(&w->c);
    pthread_mutex_unlock(&w->mu);
}

static void footers(uint32_t n)
{
    static uint8_t bytes[DS_KV_LAYOUT_MAX_BYTES], tiny[TINY];
    static ds_kv_layout l = { .version = DS_KV_LAYOUT_VERSION,
                              .block_tokens = DS_KV_BLOCK_TOKENS,
                              .window = 128,
                              .ring = 134,
                              .rollback = DS_KV_ROLLBACK,
                              .numerics = "ref",
                              .block_bytes = TINY,
                              .slot_bytes = 64 };
    ds_kvstore_user u = { .model = { 1 }, .tokenizer = { 1 }, .dialect = { 1 }, .layout = bytes };
    const char *dirs[1] = { root };
    ds_kvstore_opts o = { .dirs = dirs, .n_dirs = 1, .user = &u, .max_blocks = n, .max_saves = 4096 };
    waiting w = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0 };
    const uint8_t *block[CHAIN];
    ds_key keys[CHAIN];
    ds_kvstore *s;
    ds_kvstore_stats st;
    uint64_t begun;
    double with, without, cpu;
    ds_err err;

    u.layout_bytes = ds_kv_layout_write(bytes, &l);
    if (ds_kvstore_open(&s, &o, &err) != DS_OK)
        die("open", &err);
    for (uint32_t i = 0; i < n; i += CHAIN) {
        for (uint32_t k = 0; k < CHAIN; k++) {
            make_key(&keys[k], i + k);
            block[k] = tiny;
        }
        pthread_mutex_lock(&w.mu);
        while (w.left > 2000)
            pthread_cond_wait(&w.c, &w.mu);
        w.left++;
        pthread_mutex_unlock(&w.mu);
        if (ds_kvstore_save(s,
                            &(ds_kvstore_save_req){ .keys = keys, .blocks = block, .n = CHAIN, .exact = CHAIN, .done = saved, .ctx = &w },
                            &err) != DS_OK)
            die("save", &err);
    }
    ds_kvstore_close(s);
    if (w.failed)
        die("save", NULL);
    begun = ds_now_ns();
    if (ds_kvstore_open(&s, &o, &err) != DS_OK)
        die("open", &err);
    with = (double)(ds_now_ns() - begun) / 1e9;
    ds_kvstore_stat(s, &st, NULL);
    if (st.restored != n)
        die("no checkpoint", NULL);
    ds_kvstore_close(s);
    if (!ds_checkpoint_remove(root))
        die("remove", NULL);
    cpu = cpu_s();
    begun = ds_now_ns();
    if (ds_kvstore_open(&s, &o, &err) != DS_OK)
        die("open", &err);
    without = (double)(ds_now_ns() - begun) / 1e9;
    cpu = cpu_s() - cpu;
    ds_kvstore_stat(s, &st, NULL);
    if (st.blocks != n)
        die("blocks are missing", NULL);
    ds_kvstore_close(s);
    printf("op=kvrestart variant=footers blocks=%u segments=%lu open_s=%.2f cpu_s=%.2f mblocks_s=%.1f mblocks_s_cpu=%.1f "
           "with_checkpoint_s=%.2f\n",
           n, (unsigned long)st.segments, without, cpu, n / without / 1e6, n / cpu / 1e6, with);
}

int main(int argc, char **argv)
{
    uint32_t blocks = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 2, small = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 1;
    char command[300];

    snprintf(root, sizeof root, "%s/ds-kvrestart-XXXXXX", argc > 1 ? argv[1] : "/tmp");
    if (!mkdtemp(root))
        die(root, NULL);
    checkpoints(blocks * 1000000 / CHAIN * CHAIN);
    footers(small * 1000000 / CHAIN * CHAIN);
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    return system(command) != 0;
}
