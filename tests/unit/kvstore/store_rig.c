#include "store_rig.h"

#include <dirent.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rng.h"
#include "kv/layout.h"
#include "test.h"

static void set_layout(rig *r, uint32_t block_bytes, uint32_t bf16, uint32_t n_parts)
{
    static ds_kv_layout l;

    memset(&l, 0, sizeof l);
    l.version = DS_KV_LAYOUT_VERSION;
    l.block_tokens = DS_KV_BLOCK_TOKENS;
    l.window = 128;
    l.ring = 134;
    l.rollback = DS_KV_ROLLBACK;
    l.bf16 = bf16;
    strcpy(l.numerics, "ref");
    l.block_bytes = block_bytes;
    l.slot_bytes = 64;
    l.n_parts = n_parts;
    l.part[0] = (ds_kv_part){ .record = DS_KV_MAIN, .ratio = 1, .bytes = block_bytes / DS_KV_BLOCK_TOKENS, .count = DS_KV_BLOCK_TOKENS };
    r->user.layout = r->layout;
    r->user.layout_bytes = ds_kv_layout_write(r->layout, &l);
}

void rig_layout(rig *r, uint32_t block_bytes, uint32_t bf16)
{
    set_layout(r, block_bytes, bf16, 1);
}

void rig_states(rig *r, uint32_t state_bytes)
{
    set_layout(r, state_bytes, 0, 0);
}

void rig_init(rig *r, uint32_t k, uint32_t m)
{
    memset(r, 0, sizeof *r);
    strcpy(r->root, "/dev/shm/ds-store-XXXXXX"); /* thousands of syncs: not on a disk if it can be helped */
    if (!mkdtemp(r->root)) {
        strcpy(r->root, "/tmp/ds-store-XXXXXX");
        assert_non_null(mkdtemp(r->root));
    }
    r->n = k + m;
    for (uint32_t i = 0; i < r->n; i++) {
        snprintf(r->dir[i], sizeof r->dir[i], "%s/%u", r->root, i);
        assert_int_equal(mkdir(r->dir[i], 0700), 0);
        r->dirs[i] = r->dir[i];
    }
    rig_layout(r, RIG_BLOCK, 0);
    memset(r->user.model, 1, 32);
    memset(r->user.tokenizer, 2, 32);
    memset(r->user.dialect, 3, 32);
    r->o = (ds_kvstore_opts){ .dirs = r->dirs, .n_dirs = r->n, .k = k, .m = m, .max_blocks = 1 << 14, .user = &r->user };
}

void rig_fini(rig *r)
{
    for (uint32_t i = 0; i < r->n; i++) {
        DIR *d = opendir(r->dir[i]);
        char name[400];
        for (struct dirent *e; d && (e = readdir(d));) {
            snprintf(name, sizeof name, "%s/%s", r->dir[i], e->d_name);
            if (e->d_name[0] != '.')
                unlink(name);
        }
        if (d)
            closedir(d);
        rmdir(r->dir[i]);
    }
    rmdir(r->root);
}

ds_key rig_key(uint32_t chain, uint32_t i)
{
    ds_key k;

    for (uint32_t w = 0; w < 4; w++) {
        uint64_t v = ds_rng_u64(21, (uint64_t)chain << 32 | i, w);
        memcpy(k.b + 8 * w, &v, 8);
    }
    return k;
}

ds_key rig_ns(uint32_t chain)
{
    return rig_key(chain, UINT32_MAX);
}

void rig_keys(ds_key *out, uint32_t chain, uint32_t from, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = rig_key(chain, from + i);
}

static uint64_t word_of(uint32_t chain, uint32_t i, size_t at)
{
    uint64_t x = ((uint64_t)chain << 40 ^ (uint64_t)i << 16 ^ at) * 0x9e3779b97f4a7c15u;

    x = (x ^ x >> 31) * 0xbf58476d1ce4e5b9u;
    return x ^ x >> 27;
}

void rig_fill(uint8_t *out, uint32_t chain, uint32_t i)
{
    for (size_t at = 0; at < RIG_BLOCK; at += 8) {
        uint64_t w = word_of(chain, i, at);
        memcpy(out + at, &w, 8);
    }
}

bool rig_right(const uint8_t *block, uint32_t chain, uint32_t i)
{
    for (size_t at = 0; at < RIG_BLOCK; at += 8) {
        uint64_t w = word_of(chain, i, at);
        if (memcmp(block + at, &w, 8) != 0)
            return false;
    }
    return true;
}

/* ---- calls that wait ---- */

typedef struct {
    pthread_mutex_t mu;
    pthread_cond_t cond;
    bool done;
    ds_kvstore_saved saved;
    ds_kvstore_fetched fetched;
} waiting;

#define WAITING                                                           \
    {                                                                     \
        .mu = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER \
    }

static void tell(waiting *w)
{
    pthread_mutex_lock(&w->mu);
    assert_false(w->done); /* exactly once */
    w->done = true;
    pthread_cond_signal(&w->cond);
    pthread_mutex_unlock(&w->mu);
}

static void await(waiting *w)
{
    pthread_mutex_lock(&w->mu);
    while (!w->done)
        pthread_cond_wait(&w->cond, &w->mu);
    pthread_mutex_unlock(&w->mu);
}

static void saved(void *ctx, ds_kvstore_saved r)
{
    ((waiting *)ctx)->saved = r;
    tell(ctx);
}

static void fetched(void *ctx, const ds_kvstore_fetched *r)
{
    ((waiting *)ctx)->fetched = *r;
    tell(ctx);
}

ds_kvstore_saved rig_save(ds_kvstore *s, rig_blocks b)
{
    waiting w = WAITING;
    ds_key *keys = calloc(b.n, sizeof *keys);
    const uint8_t **blocks = calloc(b.n, sizeof *blocks);
    ds_err err;
    ds_kvstore_save_req r = { .keys = keys,
                              .blocks = blocks,
                              .n = b.n,
                              .parent = b.from ? rig_key(b.chain, b.from - 1) : rig_ns(b.chain),
                              .depth = b.from,
                              .exact = b.exact < b.n ? b.exact : b.n,
                              .klass = b.klass,
                              .tenant = b.tenant,
                              .brief = b.brief,
                              .done = saved,
                              .ctx = &w };

    for (uint32_t i = 0; i < b.n; i++) {
        uint8_t *p = malloc(RIG_BLOCK);
        rig_fill(p, b.chain, b.from + i);
        keys[i] = rig_key(b.chain, b.from + i);
        blocks[i] = p;
    }
    assert_ok(ds_kvstore_save(s, &r, &err));
    await(&w);
    for (uint32_t i = 0; i < b.n; i++)
        free((void *)(uintptr_t)blocks[i]);
    free(blocks);
    free(keys);
    return w.saved;
}

ds_kvstore_fetched rig_fetch(ds_kvstore *s, uint32_t chain, uint32_t from, uint32_t n, uint64_t deadline_ns)
{
    waiting w = WAITING;
    ds_key *keys = calloc(n, sizeof *keys);
    uint8_t **blocks = calloc(n, sizeof *blocks), *bytes = malloc((size_t)n * RIG_BLOCK);
    ds_err err;
    ds_kvstore_fetch_req r = { .keys = keys, .blocks = blocks, .n = n, .deadline_ns = deadline_ns, .done = fetched, .ctx = &w };

    rig_keys(keys, chain, from, n);
    for (uint32_t i = 0; i < n; i++)
        blocks[i] = bytes + (size_t)i * RIG_BLOCK;
    assert_ok(ds_kvstore_fetch(s, &r, NULL, &err));
    await(&w);
    assert_true(w.fetched.n <= n && w.fetched.exact <= w.fetched.n && (w.fetched.n == n) == (w.fetched.cause == DS_KVSTORE_HIT));
    for (uint32_t i = 0; i < w.fetched.n; i++)
        if (!rig_right(blocks[i], chain, from + i))
            fail_msg("block %u of chain %u: wrong bytes", from + i, chain);
    free(bytes);
    free(blocks);
    free(keys);
    return w.fetched;
}

uint32_t rig_match(ds_kvstore *s, uint32_t chain, uint32_t n)
{
    ds_key *keys = calloc(n, sizeof *keys);
    uint32_t found;

    rig_keys(keys, chain, 0, n);
    found = ds_kvstore_match(s, keys, n, false);
    free(keys);
    return found;
}
