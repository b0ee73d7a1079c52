/* Saving to a KV store and fetching from it, every byte verified, in directories or in a pool of Ceph.
 *
 *   bench-kv-place PLACE [MIB [SEGMENT_MIB [READERS]]]
 *
 * Blocks are those of the released model (113,920 bytes), in chains of 64. Saves are of one chain each, SAVES at a
 * time; fetches of one chain each in random order, FETCHES at a time, in several passes. bench/ceph.sh runs it next to
 * `rados bench`. The store stays. */
#include <ds/kvstore.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/rng.h"
#include "kv/layout.h"

enum { BLOCK = 113920, CHAIN = 64, SAVES = 4, FETCHES = 4, PASSES = 3 };

static ds_key *keys;
static uint8_t *memory;
static uint32_t n_chains;

static void die(const char *what, const ds_err *err)
{
    fprintf(stderr, "bench-kv-place: %s: %s\n", what, err->msg);
    exit(1);
}

typedef struct {
    pthread_mutex_t mu;
    pthread_cond_t c;
    uint32_t under_way, right, wrong;
} progress;

static progress p = { .mu = PTHREAD_MUTEX_INITIALIZER, .c = PTHREAD_COND_INITIALIZER };

static void over(uint32_t right)
{
    pthread_mutex_lock(&p.mu);
    p.right += right;
    p.wrong += CHAIN - right;
    p.under_way--;
    pthread_cond_signal(&p.c);
    pthread_mutex_unlock(&p.mu);
}

static void wait_below(uint32_t n)
{
    pthread_mutex_lock(&p.mu);
    while (p.under_way >= n)
        pthread_cond_wait(&p.c, &p.mu);
    p.under_way += n > 1;
    pthread_mutex_unlock(&p.mu);
}

static void saved(void *ctx, ds_kvstore_saved r)
{
    (void)ctx;
    over(r == DS_KVSTORE_SAVED ? CHAIN : 0);
}

static void fetched(void *ctx, const ds_kvstore_fetched *r)
{
    (void)ctx;
    over(r->n);
}

static void tell(const char *op, uint64_t begun)
{
    uint64_t ns = ds_now_ns() - begun;

    printf("op=kv_%s bytes=%d blocks=%u missed=%u s=%.2f mb_s=%.1f\n", op, BLOCK, p.right, p.wrong, (double)ns / 1e9,
           (double)p.right * BLOCK / ((double)ns / 1e3));
    fflush(stdout);
    p.right = p.wrong = 0;
}

int main(int argc, char **argv)
{
    const char *const place[] = { argc > 1 ? argv[1] : "" };
    uint64_t mib = argc > 2 ? strtoull(argv[2], NULL, 10) : 512, begun;
    static uint8_t layout[DS_KV_LAYOUT_MAX_BYTES];
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
    ds_kvstore_user user = { .model = { 1 }, .tokenizer = { 1 }, .dialect = { 1 }, .layout = layout };
    ds_kvstore_opts o = { .dirs = place, .n_dirs = 1, .user = &user };
    ds_kvstore *s;
    ds_err err = { .msg = "" };

    if (argc < 2)
        return 2;
    o.segment_bytes = argc > 3 ? strtoull(argv[3], NULL, 10) << 20 : 0;
    o.readers = argc > 4 ? (uint32_t)strtoul(argv[4], NULL, 10) : 0;
    user.layout_bytes = ds_kv_layout_write(layout, &l);
    n_chains = (uint32_t)((mib << 20) / ((uint64_t)CHAIN * BLOCK)) + 1;
    keys = calloc((size_t)n_chains * CHAIN, sizeof *keys);
    memory = malloc((size_t)(FETCHES + 1) * CHAIN * BLOCK);
    if (!keys || !memory || ds_kvstore_open(&s, &o, &err) != DS_OK)
        die("open", &err);
    for (uint32_t i = 0; i < n_chains * CHAIN; i++)
        for (int w = 0; w < 4; w++) {
            uint64_t v = ds_rng_u64(3, i, (uint64_t)w);
            memcpy(keys[i].b + 8 * w, &v, 8);
        }
    for (size_t i = 0; i < (size_t)CHAIN * BLOCK; i += 8) {
        uint64_t v = ds_rng_u64(4, i, 0);
        memcpy(memory + i, &v, 8);
    }
    begun = ds_now_ns();
    for (uint32_t c = 0; c < n_chains; c++) {
        const uint8_t *block[CHAIN];
        wait_below(SAVES);
        for (uint32_t i = 0; i < CHAIN; i++)
            block[i] = memory + (size_t)i * BLOCK;
        if (ds_kvstore_save(s,
                            &(ds_kvstore_save_req){ .keys = keys + c * CHAIN, .blocks = block, .n = CHAIN, .exact = CHAIN, .done = saved },
                            &err) != DS_OK)
            die("save", &err);
    }
    wait_below(1);
    tell("save", begun);
    for (int pass = 0; pass < PASSES; pass++) {
        begun = ds_now_ns();
        for (uint32_t c = 0; c < n_chains; c++) {
            uint32_t which = (uint32_t)(ds_rng_u64(5, c, (uint64_t)pass) % n_chains);
            uint8_t *block[CHAIN];
            wait_below(FETCHES);
            for (uint32_t i = 0; i < CHAIN; i++) /* where it goes doesn't matter: the store has verified it */
                block[i] = memory + ((size_t)(1 + c % FETCHES) * CHAIN + i) * BLOCK;
            if (ds_kvstore_fetch(s,
                                 &(ds_kvstore_fetch_req){ .keys = keys + which * CHAIN,
                                                          .blocks = block,
                                                          .n = CHAIN,
                                                          .deadline_ns = ds_now_ns() + 30000000000u,
                                                          .done = fetched },
                                 NULL, &err) != DS_OK)
                die("fetch", &err);
        }
        wait_below(1);
        tell("fetch", begun);
    }
    ds_kvstore_close(s);
    free(memory);
    free(keys);
    return 0;
}
