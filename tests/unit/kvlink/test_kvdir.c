/* Engines on a store in directories: what one committed another one finds, with the text that it has alone; whatever
 * happens to the files in between costs hits and never a token. On the null backend, which checks every byte. */
#include <dirent.h>
#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rng.h"
#include "engine/engine_internal.h"
#include "kvlink/kvdir.h"
#include "test.h"

enum { VOCAB = 100, PROMPTS = 6, PROMPT = 700, OUT = 140, CONTEXT = 1000, HIT = (PROMPT - 134) / 128 * 128 };

static const ds_engine_stub stub = { .vocab = VOCAB, .verify = true };
static int32_t ids[PROMPTS][PROMPT];
static char dir[64];

static ds_rc try_open(ds_kvdir *kv, uint32_t n, uint64_t capacity, const ds_engine_identity *identity, ds_err *err)
{
    const char *const dirs[] = { dir };
    static ds_kv_layout layout;

    layout = (ds_kv_layout){ .version = DS_KV_LAYOUT_VERSION, .block_tokens = DS_KV_BLOCK_TOKENS, .numerics = "stub" };
    ds_backend_null_bytes(&stub, &layout.block_bytes, &layout.slot_bytes);
    return ds_kvdir_open(
        kv,
        &(ds_kvdir_opts){ .dirs = dirs, .n_dirs = 1, .n_ports = n, .capacity_bytes = capacity, .identity = identity, .layout = &layout },
        err);
}

static const ds_engine_identity known = { .model = { 1 }, .tokenizer = { 2 }, .dialect = { 3 } };

static ds_kvdir open_dir(uint32_t n, uint64_t capacity)
{
    ds_kvdir kv;
    ds_err err;

    assert_ok(try_open(&kv, n, capacity, &known, &err));
    return kv;
}

static ds_engine *start(const ds_store *store, ds_engine_opts o)
{
    ds_engine *e;
    ds_err err;

    o.max_context = CONTEXT;
    o.kv_blocks = 80; /* for all prompts: nothing leaves before it is saved */
    o.store = store;
    o.fetch_ms = 60000;
    assert_ok(ds_engine_create_stub(&e, &stub, &o, &err));
    assert_ok(ds_engine_start(e, &err));
    return e;
}

static void add(ds_engine *e, int which)
{
    uint64_t id;
    ds_err err;

    assert_ok(ds_engine_add(
        e,
        &(ds_gen_request){
            .prompt = ids[which], .n_prompt = PROMPT, .max_tokens = OUT, .sampling = DS_SAMPLING_DEFAULT, .cookie = (uint64_t)which },
        &id, &err));
}

typedef struct {
    uint32_t cached;
    int32_t token[OUT];
} answer;

static answer seen[PROMPTS];

/* All answers of n requests, each of another prompt. */
static void read_all(ds_engine *e, int n)
{
    while (n > 0) {
        static ds_event ev[64];
        size_t got;
        ds_engine_wait(e, 1000);
        got = ds_engine_poll(e, ev, 64);
        for (size_t i = 0; i < got; i++) {
            answer *a = &seen[ev[i].cookie];
            if (ev[i].kind == DS_EV_START)
                a->cached = ev[i].start.cached;
            if (ev[i].kind == DS_EV_TOKEN)
                a->token[ev[i].token.index] = ev[i].token.id;
            if (ev[i].kind == DS_EV_END) {
                assert_int_equal(ev[i].end.reason, DS_ENDED_LENGTH);
                n--;
            }
        }
    }
}

/* The token that the null backend draws behind this prompt, each time. */
static void check_texts(void)
{
    for (int p = 0; p < PROMPTS; p++) {
        uint64_t h = 0;
        for (int i = 0; i < PROMPT; i++)
            h = ds_backend_null_fold(h, ids[p][i]);
        for (int i = 0; i < OUT; i++) {
            int32_t want = ds_backend_null_token(h, 0, VOCAB);
            assert_int_equal(seen[p].token[i], want);
            h = ds_backend_null_fold(h, want);
        }
    }
}

/* An engine computes all prompts and is gone; returns its statistics. */
static ds_gen_stats one_life(ds_engine_opts o, uint64_t capacity)
{
    ds_kvdir kv = open_dir(1, capacity);
    ds_engine *e = start(&kv.store[0], o);
    ds_gen_stats st;

    memset(seen, 0, sizeof seen);
    for (int p = 0; p < PROMPTS; p++)
        add(e, p);
    read_all(e, PROMPTS);
    ds_engine_stats_get(e, &st);
    check_texts();
    ds_engine_destroy(e);
    ds_kvdir_close(&kv);
    return st;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st;
    (void)type;
    (void)at;
    return remove(path);
}

static int fresh(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/ds-kvdir-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int gone(void **state)
{
    (void)state;
    return nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void the_next_life_hits(void **state)
{
    (void)state;
    for (int way = 0; way < 3; way++) { /* exact; CED with states; few buffers */
        ds_engine_opts o = { .mode = way == 1 ? DS_ENGINE_CED : DS_ENGINE_EXACT, .no_replay = way == 1, .fetches = way == 2 ? 1 : 0 };
        ds_gen_stats st;
        uint64_t block, slot;
        ds_backend_null_bytes(&stub, &block, &slot);
        o.kv_memory = way == 2 ? 6 * block + 2 * (slot + DS_KV_STATE_HEADER) : 0;
        gone(NULL);
        fresh(NULL);
        st = one_life(o, 0);
        assert_int_equal(st.hit_state_tokens, 0);
        st = one_life(o, 0);
        if (way == 2) { /* what is being saved has buffers too */
            assert_true(st.hit_state_tokens > 0);
            continue;
        }
        assert_int_equal(st.hit_state_tokens, PROMPTS * HIT);
        assert_int_equal(st.hit_store_tokens + st.hit_host_tokens, PROMPTS * HIT);
        assert_int_equal(st.computed_tokens, PROMPTS * (PROMPT - HIT));
    }
}

/* Two engines at once, on the same directory: each finds what the other one computed. */
static void two_engines(void **state)
{
    ds_kvdir kv = open_dir(2, 0);
    ds_engine *e[2];
    ds_gen_stats st;
    ds_err err;

    (void)state;
    for (int i = 0; i < 2; i++)
        e[i] = start(&kv.store[i], (ds_engine_opts){ .mode = DS_ENGINE_EXACT });
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < 2; i++) {
            for (int p = 0; p < PROMPTS; p++)
                if (p % 2 == (i + round) % 2)
                    add(e[i], p);
            read_all(e[i], PROMPTS / 2);
            for (int p = 0; p < PROMPTS; p++) /* what was saved becomes durable at any time: wait for it as the next life would */
                if (round == 0 && p % 2 == i) {
                    ds_kvstore_stats ks;
                    do {
                        usleep(1000);
                        assert_ok(ds_kvstore_stat(kv.blocks, &ks, &err));
                    } while (ks.blocks < (uint64_t)(i + 1) * (PROMPTS / 2) * ((PROMPT + OUT - 1) / 128));
                }
        }
    check_texts();
    for (int i = 0; i < 2; i++) {
        ds_engine_stats_get(e[i], &st);
        assert_true(st.fetched_blocks >= PROMPTS / 2 * HIT / 128 || st.fetched_states < PROMPTS / 2);
        ds_engine_destroy(e[i]);
    }
    ds_kvdir_close(&kv);
}

static void for_each_segment(void (*fn)(const char *path))
{
    static const char *const where[] = { "", "/states" };

    for (int k = 0; k < 2; k++) {
        char path[700];
        struct dirent *x;
        DIR *d;
        snprintf(path, sizeof path, "%s%s", dir, where[k]);
        d = opendir(path);
        assert_non_null(d);
        while ((x = readdir(d)))
            if (strstr(x->d_name, ".seg")) {
                snprintf(path, sizeof path, "%s%s/%s", dir, where[k], x->d_name);
                fn(path);
            }
        closedir(d);
    }
}

static uint64_t damage;

/* Bytes here and there, behind the file's header. */
static void spoil(const char *path)
{
    FILE *f = fopen(path, "r+b");
    long size;

    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    size = ftell(f);
    for (int i = 0; i < 200; i++) {
        fseek(f, 4096 + (long)(ds_rng_u64(3, 0, damage++) % (uint64_t)(size - 4096)), SEEK_SET);
        fputc((int)ds_rng_u64(4, 0, damage), f);
    }
    fclose(f);
}

static void cut(const char *path)
{
    struct stat st;

    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(truncate(path, (off_t)(4096 + ds_rng_u64(5, 0, damage++) % (uint64_t)(st.st_size - 4096))), 0);
}

static void drop(const char *path)
{
    assert_int_equal(unlink(path), 0);
}

/* Files that were changed, cut or lost cost hits: the texts are the same. */
static void damaged_files(void **state)
{
    static void (*const ways[])(const char *) = { spoil, cut, drop };

    (void)state;
    for (int way = 0; way < 3; way++)
        for (int round = 0; round < 3; round++) {
            ds_gen_stats st = one_life((ds_engine_opts){ .mode = DS_ENGINE_EXACT }, 0);
            assert_true(st.hit_state_tokens <= PROMPTS * HIT);
            for_each_segment(ways[way]);
        }
}

/* An identity with zeros makes keys that are good in one process only; one process has a directory. */
static void refusals(void **state)
{
    ds_engine_identity unknown[3] = { known, known, known };
    ds_kvdir kv, second;
    ds_err err;

    (void)state;
    memset(unknown[0].model, 0, 32);
    memset(unknown[1].tokenizer, 0, 32);
    memset(unknown[2].dialect, 0, 32);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(try_open(&kv, 1, 0, &unknown[i], &err), DS_E_ARG);
        assert_null(kv.blocks);
    }
    kv = open_dir(1, 0);
    assert_int_equal(try_open(&second, 1, 0, &known, &err), DS_E_AGAIN);
    assert_null(second.blocks);
    ds_kvdir_close(&kv);
    kv = open_dir(1, 0);
    ds_kvdir_close(&kv);
    ds_kvdir_close(&kv);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_next_life_hits, fresh, gone),
        cmocka_unit_test_setup_teardown(two_engines, fresh, gone),
        cmocka_unit_test_setup_teardown(damaged_files, fresh, gone),
        cmocka_unit_test_setup_teardown(refusals, fresh, gone),
    };

    for (int p = 0; p < PROMPTS; p++)
        for (int i = 0; i < PROMPT; i++)
            ids[p][i] = (int32_t)(ds_rng_u64(1, (uint32_t)p, (uint64_t)i) % VOCAB);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
