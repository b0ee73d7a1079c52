/* The KV store's index on one core.
 *
 *   find     random blocks of N, in batches of 32, each answer with its place; `churn`: while another thread enters and
 *            takes out extents of 16 blocks as fast as it can
 *   match    the longest match of a chain of 602 blocks (a prompt of 77K tokens): keys given; with hashing
 *   rebuild  entering N blocks of extents of 16, as at opening
 *
 * Roof of find: one line of the table and one of records, each a miss of the caches: two dependent loads of random
 * lines of the same memory, 32 chains of them side by side. Times are CPU time of
 * the thread. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/rng.h"
#include "bench.h"
#include "kv/chain.h"
#include "kvstore/index.h"

enum { BLOCKS = 4 << 20, EXTENT = 16, CHAIN = 602, BATCH = 32, REPS = 400000, ROUNDS = 9 };

static uint64_t cpu_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static ds_index *ix;
static ds_err err;

/* Not SHA-256: its values would take longer than what is measured. */
static ds_key key_of(uint64_t i)
{
    ds_key k;

    for (int w = 0; w < 4; w++) {
        uint64_t x = (i * 4 + (uint64_t)w + 1) * 0x9e3779b97f4a7c15u;
        x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
        x ^= x >> 27;
        memcpy(k.b + 8 * w, &x, 8);
    }
    return k;
}

static ds_rc enter(uint64_t first, uint32_t n, uint32_t parent, uint32_t depth, uint32_t *last)
{
    ds_key keys[64];
    static const uint32_t crc[64];
    ds_index_extent x = { .segment = 1 + first / 1000,
                          .offset = 4096 * (1 + first % 1000),
                          .of = n,
                          .n = n,
                          .keys = keys,
                          .crc = crc,
                          .parent = parent,
                          .depth = depth,
                          .used = 1 };

    for (uint32_t i = 0; i < n; i++)
        keys[i] = key_of(first + i);
    return ds_index_insert(ix, &x, last, &err);
}

static atomic_bool stop;
static atomic_ulong churned, churn_ns; /* blocks; CPU time of who did it */

static void *churn(void *arg)
{
    (void)arg;
    uint64_t t = cpu_ns();
    for (uint64_t i = 0; !atomic_load_explicit(&stop, memory_order_relaxed); i++) {
        ds_key k = key_of((1ull << 40) + (i % 1000) * EXTENT);
        ds_index_hit h;
        if (ds_index_find(ix, &k, &h))
            ds_index_remove(ix, h.record, NULL, NULL);
        enter((1ull << 40) + (i % 1000) * EXTENT, EXTENT, DS_NONE, 0, NULL);
        atomic_fetch_add_explicit(&churned, EXTENT, memory_order_relaxed);
        if (i % 64 == 0)
            atomic_store_explicit(&churn_ns, cpu_ns() - t, memory_order_relaxed);
    }
    return NULL;
}

/* Nanoseconds for REPS look-ups, of which all must find. */
static uint64_t find(uint64_t seed)
{
    static ds_key keys[REPS];
    ds_index_hit hits[BATCH];
    uint32_t found = 0;

    for (uint32_t i = 0; i < REPS; i++)
        keys[i] = key_of(ds_rng_u64(seed, i, 0) % (BLOCKS - BLOCKS / 8));
    uint64_t t = cpu_ns();
    for (uint32_t i = 0; i < REPS; i += BATCH)
        found += ds_index_find_many(ix, keys + i, BATCH, hits);
    t = cpu_ns() - t;
    if (found != REPS) {
        fprintf(stderr, "%u of %d found\n", found, REPS);
        exit(1);
    }
    return t;
}

static void report_find(const char *variant)
{
    uint64_t ns[ROUNDS], median, p95;

    for (int r = 0; r < ROUNDS; r++)
        ns[r] = find((uint64_t)r + 1);
    double churn_s = atomic_load(&churn_ns) ? (double)atomic_load(&churned) / ((double)atomic_load(&churn_ns) / 1e9) : 0;
    bench_stats(ns, ROUNDS, &median, &p95);
    printf("op=kvindex variant=%s blocks=%d ns_med=%.1f ns_p95=%.1f mops_s=%.1f changed_mops_s=%.2f\n", variant, BLOCKS,
           (double)median / REPS, (double)p95 / REPS, REPS * 1e3 / (double)median, churn_s / 1e6);
}

/* Two dependent random lines of as much memory, 32 at a time. */
static void report_roof(void)
{
    size_t n = (size_t)BLOCKS;
    uint64_t(*line)[8] = calloc(n, sizeof *line), ns[ROUNDS], median, p95;
    volatile uint64_t sink = 0;

    for (size_t i = 0; i < n; i++)
        line[i][0] = ds_rng_u64(9, i, 0) % n;
    for (int r = 0; r < ROUNDS; r++) {
        uint64_t t = cpu_ns(), sum = 0;
        for (uint32_t i = 0; i < REPS; i += BATCH) {
            uint64_t at[BATCH];
            for (uint32_t j = 0; j < BATCH; j++) {
                at[j] = ((uint64_t)i + j + (uint64_t)r * 77) * 0x9e3779b97f4a7c15u >> 42;
                __builtin_prefetch(line[at[j]]);
            }
            for (uint32_t j = 0; j < BATCH; j++)
                __builtin_prefetch(line[at[j] = line[at[j]][0]]);
            for (uint32_t j = 0; j < BATCH; j++)
                sum += line[at[j]][1];
        }
        sink += sum;
        ns[r] = cpu_ns() - t;
    }
    bench_stats(ns, ROUNDS, &median, &p95);
    printf("op=kvindex variant=roof ns_med=%.1f mops_s=%.1f\n", (double)median / REPS, REPS * 1e3 / (double)median);
    free(line);
}

static void report_match(void)
{
    static ds_key keys[CHAIN];
    static int32_t tokens[CHAIN * 128];
    enum { N = 200 };
    uint64_t ns[N], median, p95;
    ds_key ns_key = { { 1 } };
    uint32_t last = DS_NONE, crc[64] = { 0 };

    for (uint32_t i = 0; i < CHAIN * 128; i++)
        tokens[i] = (int32_t)(ds_rng_u64(7, i, 0) % 129280);
    for (uint32_t i = 0; i < CHAIN; i++)
        ds_chain_next(&keys[i], i ? &keys[i - 1] : &ns_key, tokens + i * 128, i * 128, NULL, 0);
    for (uint32_t i = 0; i < CHAIN; i += 64) {
        uint32_t n = CHAIN - i < 64 ? CHAIN - i : 64;
        ds_index_extent x = {
            .segment = 9, .offset = 4096 + i * 4096, .of = n, .n = n, .keys = keys + i, .crc = crc, .parent = last, .depth = i
        };
        if (ds_index_insert(ix, &x, &last, &err) != DS_OK)
            exit(1);
    }
    static uint8_t flush[64 << 20];
    for (int hashing = 0; hashing < 2; hashing++) {
        for (int r = 0; r < N; r++) {
            memset(flush, r, sizeof flush); /* cold: nothing of the index is in a cache */
            uint64_t t = cpu_ns();
            if (hashing)
                for (uint32_t i = 0; i < CHAIN; i++)
                    ds_chain_next(&keys[i], i ? &keys[i - 1] : &ns_key, tokens + i * 128, i * 128, NULL, 0);
            uint32_t found = ds_index_match(ix, keys, CHAIN, false);
            ns[r] = cpu_ns() - t;
            if (found != CHAIN)
                exit(1);
        }
        bench_stats(ns, N, &median, &p95);
        printf("op=kvindex variant=match blocks=%d hashing=%d us_med=%.1f us_p95=%.1f us_p99=%.1f\n", CHAIN, hashing, (double)median / 1e3,
               (double)p95 / 1e3, (double)ns[N * 99 / 100] / 1e3);
    }
}

int main(void)
{
    pthread_t t;
    uint64_t began;
    uint32_t n = BLOCKS - BLOCKS / 8;

    if (ds_index_create(&ix, BLOCKS, &err) != DS_OK) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    began = cpu_ns();
    for (uint64_t i = 0, end = n; i < end; i += EXTENT)
        enter(i, EXTENT, DS_NONE, 0, NULL);
    began = cpu_ns() - began;
    printf("op=kvindex variant=rebuild blocks=%u ns=%.1f mops_s=%.2f\n", n, (double)began / n, n * 1e3 / (double)began);
    report_roof();
    report_find("find");
    pthread_create(&t, NULL, churn, NULL);
    report_find("find_churn");
    atomic_store(&stop, true);
    pthread_join(t, NULL);
    report_match();
    ds_index_destroy(ix);
    return 0;
}
