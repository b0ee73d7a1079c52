/* What share of a conversation trace's prompts a KV store without a bound gives back, next to what can be had at all.
 *
 *   bench_kvtrace [TRACE [DIR]]   TRACE: lines with "input_length" and "hash_ids", an id for each 512 tokens of a
 *                                 prompt; DIR: where the store goes (default /dev/shm)
 *
 * Requests come one after the other, each when what the one before it computed is durable. Blocks are of 64 bytes: the
 * store doesn't care. bound: a prompt's longest beginning that any earlier prompt has had. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <ds/kvstore.h>

#include "base/clock.h"
#include "base/hash.h"
#include "bench.h"
#include "kv/layout.h"

enum { LINE = 1 << 20, MOST = 4096, UNIT = 512, TINY = 64, MAX_ID = 1 << 20 };

static void die(const char *what, const ds_err *err)
{
    fprintf(stderr, "bench_kvtrace: %s: %s\n", what, err ? err->msg : "failed");
    exit(1);
}

typedef struct {
    pthread_mutex_t mu;
    pthread_cond_t c;
    bool over;
    ds_kvstore_saved result;
} waiting;

static void saved(void *ctx, ds_kvstore_saved r)
{
    waiting *w = ctx;

    pthread_mutex_lock(&w->mu);
    w->over = true;
    w->result = r;
    pthread_cond_signal(&w->c);
    pthread_mutex_unlock(&w->mu);
}

/* Blocks of a line; *tokens: of its prompt. */
static uint32_t read_line(const char *line, uint32_t *ids, uint32_t *tokens)
{
    const char *p = strstr(line, "\"input_length\":"), *q = strstr(line, "\"hash_ids\":");
    uint32_t n = 0;

    if (!p || !q || !(q = strchr(q, '[')))
        die("a line without prompt", NULL);
    *tokens = (uint32_t)strtoul(p + 15, NULL, 10);
    for (char *end; n < MOST && *q != ']'; q = end) {
        ids[n] = (uint32_t)strtoul(q + 1, &end, 10);
        if (end == q + 1)
            break;
        if (ids[n++] >= MAX_ID)
            die("an id that is too large", NULL);
    }
    return n;
}

static uint64_t tokens_in(uint32_t blocks, uint32_t tokens)
{
    return (uint64_t)blocks * UNIT < tokens ? (uint64_t)blocks * UNIT : tokens;
}

int main(int argc, char **argv)
{
    static uint8_t bytes[DS_KV_LAYOUT_MAX_BYTES], tiny[TINY], seen[MAX_ID];
    static ds_kv_layout l = { .version = DS_KV_LAYOUT_VERSION,
                              .block_tokens = DS_KV_BLOCK_TOKENS,
                              .window = 128,
                              .ring = 134,
                              .rollback = DS_KV_ROLLBACK,
                              .numerics = "ref",
                              .block_bytes = TINY,
                              .slot_bytes = 64 };
    static char line[LINE];
    static uint32_t ids[MOST];
    static ds_key keys[MOST];
    static const uint8_t *blocks[MOST];
    ds_kvstore_user u = { .model = { 1 }, .tokenizer = { 1 }, .dialect = { 1 }, .layout = bytes };
    const char *path = argc > 1 ? argv[1] : DS_BENCH_TRACE;
    char root[200], command[300];
    const char *dirs[1] = { root };
    ds_kvstore_opts o = { .dirs = dirs, .n_dirs = 1, .user = &u };
    uint64_t all = 0, found = 0, bound = 0, requests = 0, begun = ds_now_ns();
    FILE *f = fopen(path, "r");
    ds_kvstore *s;
    ds_err err;

    if (!f) {
        printf("bench_kvtrace: no trace at %s\n", path);
        return 77;
    }
    snprintf(root, sizeof root, "%s/ds-kvtrace-XXXXXX", argc > 2 ? argv[2] : "/dev/shm");
    u.layout_bytes = ds_kv_layout_write(bytes, &l);
    if (!mkdtemp(root) || ds_kvstore_open(&s, &o, &err) != DS_OK)
        die("open", &err);
    for (uint32_t i = 0; i < MOST; i++)
        blocks[i] = tiny;
    while (fgets(line, sizeof line, f)) {
        waiting w = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, DS_KVSTORE_SAVED };
        uint32_t tokens, n = read_line(line, ids, &tokens), known, had = 0;
        for (uint32_t i = 0; i < n; i++)
            ds_sha256(keys[i].b, &ids[i], sizeof ids[i]);
        while (had < n && seen[ids[had]])
            had++;
        known = ds_kvstore_match(s, keys, n, false);
        all += tokens;
        bound += tokens_in(had, tokens);
        found += tokens_in(known, tokens);
        requests++;
        for (uint32_t i = 0; i < n; i++)
            seen[ids[i]] = 1;
        if (known == n)
            continue;
        if (ds_kvstore_save(s,
                            &(ds_kvstore_save_req){
                                .keys = keys, .blocks = blocks, .n = n, .exact = n, .klass = DS_KVSTORE_CHAT, .done = saved, .ctx = &w },
                            &err) != DS_OK)
            die("save", &err);
        pthread_mutex_lock(&w.mu);
        while (!w.over)
            pthread_cond_wait(&w.c, &w.mu);
        pthread_mutex_unlock(&w.mu);
        if (w.result != DS_KVSTORE_SAVED)
            die("save", NULL);
    }
    fclose(f);
    ds_kvstore_close(s);
    printf("op=kvtrace requests=%lu tokens=%lu hit_pct=%.3f bound_pct=%.3f of_bound_pct=%.2f seconds=%.1f\n", (unsigned long)requests,
           (unsigned long)all, 100.0 * (double)found / (double)all, 100.0 * (double)bound / (double)all,
           100.0 * (double)found / (double)bound, (double)(ds_now_ns() - begun) / 1e9);
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    return system(command) != 0;
}
