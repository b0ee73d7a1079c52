/* The KV store's arithmetic on one core: a block of the released model (113,920 bytes) over ten data devices and two
 * more.
 *
 * Bytes are the block's. Roof: a copy of the block between buffers of the same size, in the same caches. Times are
 * CPU time of the thread. `checked` is what a reader does with a healthy block: CRC of each shard, copy, CRC of the
 * block. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench.h"
#include "kvstore/code.h"

enum { BLOCK = 113920, K = 10, M = 2, REPS = 400, ROUNDS = 15 };

static uint8_t *shard[K + M], *block, *copy;
static ds_code code;
static uint32_t shard_bytes;
static volatile uint32_t sink;

static void op_copy(void)
{
    memcpy(copy, block, BLOCK);
    sink = copy[BLOCK / 2];
}

static void op_encode(void)
{
    ds_code_encode(&code, shard, shard_bytes);
}

static void op_decode(void)
{
    bool have[K + M];

    for (int i = 0; i < K + M; i++)
        have[i] = i != 3;
    ds_code_decode(&code, shard, have, shard_bytes);
}

static void op_checked(void)
{
    for (int i = 0; i < K; i++) {
        uint32_t n = BLOCK - (uint32_t)i * shard_bytes < shard_bytes ? BLOCK - (uint32_t)i * shard_bytes : shard_bytes;
        sink = ds_crc32c(shard[i], shard_bytes);
        memcpy(copy + (size_t)i * shard_bytes, shard[i], n);
    }
    sink = ds_crc32c(copy, BLOCK);
}

static uint64_t cpu_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Nanoseconds a call: the median of some rounds, and the 95th percentile. */
static void measure(void (*op)(void), uint64_t *median, uint64_t *p95)
{
    uint64_t ns[ROUNDS];

    op();
    for (int r = 0; r < ROUNDS; r++) {
        uint64_t t = cpu_ns();
        for (int i = 0; i < REPS; i++)
            op();
        ns[r] = (cpu_ns() - t) / REPS;
    }
    bench_stats(ns, ROUNDS, median, p95);
}

int main(void)
{
    static const struct {
        const char *name;
        void (*op)(void);
    } ops[] = { { "encode", op_encode }, { "decode", op_decode }, { "checked", op_checked } };
    uint64_t ns, p95;
    double roof;

    shard_bytes = ds_seg_shard_bytes(BLOCK, K);
    if (ds_code_init(&code, K, M, NULL) != DS_OK)
        return 1;
    block = aligned_alloc(64, BLOCK);
    copy = aligned_alloc(64, BLOCK);
    for (int i = 0; i < K + M; i++) {
        shard[i] = aligned_alloc(64, shard_bytes);
        for (uint32_t b = 0; b < shard_bytes; b++)
            shard[i][b] = (uint8_t)(b * 31 + (uint32_t)i);
    }
    for (int b = 0; b < BLOCK; b++)
        block[b] = (uint8_t)(b * 7);
    measure(op_copy, &ns, &p95);
    roof = (double)BLOCK / (double)ns;
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        double rate;
        measure(ops[i].op, &ns, &p95);
        rate = (double)BLOCK / (double)ns;
        printf("op=kv_%s code=%d+%d bytes=%d reps=%d ns_med=%lu ns_p95=%lu gb_s=%.2f roof_gb_s=%.2f roof_pct=%.0f\n", ops[i].name, K, M,
               BLOCK, REPS, (unsigned long)ns, (unsigned long)p95, rate, roof, 100 * rate / roof);
    }
    return 0;
}
