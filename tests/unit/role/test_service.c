/* A service is one assembly with one plan: the plan is what is taken, every way of opening gives the same one, and
 * what can't be opened leaves nothing behind (the sanitizers look). */
#include <malloc.h>
#include <pthread.h>
#include <unistd.h>

#include "../fault.h"
#include "../test.h"
#include "base/file.h"
#include "format/synth.h"
#include "role/service.h"

static char root[] = "/tmp/service-XXXXXX", dir[64];

static void run_shell(const char *fmt, ...)
{
    char line[512];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    if (system(line) != 0)
        fail_msg("%s", line);
}

static int make_model(void **state)
{
    static ds_config c;
    const char *config = DS_TEST_ROOT "/tests/configs/tiny-a.json";
    ds_synth_result r;
    char *text;
    size_t n;
    ds_err err;

    (void)state;
    if (!mkdtemp(root))
        return -1;
    snprintf(dir, sizeof dir, "%s/m", root);
    assert_ok(ds_config_load(&c, config, &err));
    assert_ok(ds_file_read(&text, &n, config, DS_CONFIG_FILE_MAX_BYTES, &err));
    assert_ok(ds_synth_write(
        &(ds_synth_opts){ .config = &c, .config_text = text, .config_bytes = n, .out = dir, .seed = 1, .quantised = true, .n_threads = 1 },
        &r, &err));
    free(text);
    assert_true(r.has_tokenizer);
    return 0;
}

static int remove_model(void **state)
{
    (void)state;
    run_shell("rm -r %s", root);
    return 0;
}

static ds_service_opts small(void)
{
    return (ds_service_opts){ .place = { .team = { .n_threads = 2 } },
                              .engine = { .max_context = 600, .max_running = 3, .max_requests = 20, .step_tokens = 64 } };
}

/* ---- the plan is what is taken ---- */

static uint64_t taken(void)
{
    struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
}

static void a_plan_counts_what_is_taken(void **state)
{
    static const struct {
        const char *name;
        uint32_t engines;
        ds_engine_opts o;
        bool no_pictures;
    } cases[] = {
        { "small", 1, { .max_context = 600, .max_running = 2 }, true },
        { "with pictures", 1, { .max_context = 600, .max_running = 2 }, false },
        { "blocks", 1, { .max_context = 4096, .max_running = 2, .kv_blocks = 4000 }, true },
        { "states", 1, { .max_context = 600, .max_running = 16, .saved_states = 700 }, true },
        { "rows", 1, { .max_context = 4096, .max_running = 2, .step_tokens = 2048, .drafts = 2, .verify_rows = 500 }, true },
        { "host memory", 1, { .max_context = 600, .max_running = 2, .kv_memory = 64 << 20 }, false },
        { "two engines", 2, { .max_context = 600, .max_running = 8, .kv_memory = 32 << 20 }, false },
    };
    ds_err err;

    (void)state;
    if (taken() == 0)
        skip(); /* another allocator, which doesn't tell */
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        ds_service_opts so = small();
        ds_pool *pool;
        ds_model *m;
        ds_tokenizer *t;
        ds_service *s;
        char path[128];
        uint64_t before, bare, all;
        double plan;
        so.engine = cases[k].o;
        so.engines = cases[k].engines;
        so.no_pictures = cases[k].no_pictures;
        before = taken();
        assert_ok(ds_llm_open_model(&pool, &m, dir, &so.place, &err));
        snprintf(path, sizeof path, "%s/tokenizer.json", dir);
        assert_ok(ds_tokenizer_open(&t, path, &err));
        bare = taken() - before;
        ds_tokenizer_destroy(t);
        ds_model_close(m);
        ds_pool_destroy(pool);
        before = taken();
        assert_ok(ds_service_open(&s, dir, &so, &err));
        all = taken() - before;
        plan = (double)ds_service_plan_of(s)->total;
        if (fabs((double)all - (double)bare - plan) > 0.02 * plan + 200e3)
            fail_msg("%s: %.0f bytes planned, %.0f taken", cases[k].name, plan, (double)all - (double)bare);
        assert_int_equal(ds_service_plan_of(s)->tower > 0, !cases[k].no_pictures);
        ds_service_close(s);
        assert_true(taken() - before < 100000);
    }
}

static ds_model *open_model(ds_pool **pool)
{
    ds_err err;
    ds_model *m;

    assert_ok(ds_llm_open_model(pool, &m, dir, &(ds_llm_place){ .team = { .n_threads = 1 } }, &err));
    return m;
}

/* The library, a service and a question without either. */
static void one_plan_for_all(void **state)
{
    ds_service_opts so = { .engine = { .max_running = 3, .step_tokens = 100 }, .place = { .team = { .n_threads = 1 } } };
    ds_service_plan asked, wish;
    ds_engine_opts each;
    ds_pool *pool;
    ds_model *m = open_model(&pool);
    ds_service *s;
    ds_llm *l;
    ds_err err;

    (void)state;
    assert_ok(ds_service_plan_get(&asked, &each, m, &so, &err));
    assert_ok(ds_service_plan_wish(&wish, m, &so, &err));
    assert_ok(ds_service_open(&s, dir, &so, &err));
    assert_ok(ds_llm_open(&l, dir, &(ds_llm_opts){ .max_running = 3, .step_tokens = 100, .threads = 1 }, &err));
    assert_memory_equal(&ds_service_plan_of(s)->engine, &asked.engine, sizeof asked.engine);
    assert_memory_equal(&ds_service_plan_of(ds_llm_service(l))->engine, &asked.engine, sizeof asked.engine);
    assert_memory_equal(&wish.engine, &asked.engine, sizeof asked.engine);
    assert_true(asked.tower > 0 && asked.total == asked.engine.total + asked.tower && ds_service_plan_of(s)->total == asked.total);
    assert_int_equal(ds_llm_context(l), ds_model_config(m)->max_position_embeddings);
    assert_int_equal(asked.largest_context, ds_model_config(m)->max_position_embeddings);
    ds_llm_close(l);
    ds_service_close(s);
    ds_model_close(m);
    ds_pool_destroy(pool);
}

/* Less memory: fewer blocks, then a shorter context unless one was asked for, then a refusal; and what the plan says
 * can be opened. */
static void what_fits(void **state)
{
    ds_service_opts so = { .engine = { .max_running = 8, .step_tokens = 64, .saved_states = 4 },
                           .engines = 2,
                           .place = { .team = { .n_threads = 2 } } };
    ds_service_plan whole, p;
    ds_engine_opts each;
    ds_pool *pool;
    ds_model *m = open_model(&pool);
    ds_service *s;
    uint32_t shorter;
    ds_err err;

    (void)state;
    assert_ok(ds_service_plan_get(&whole, &each, m, &so, &err));
    so.engine.memory_bytes = whole.total - whole.engine.kv;
    assert_ok(ds_service_plan_get(&p, &each, m, &so, &err));
    assert_true(p.total <= so.engine.memory_bytes && p.engine.kv_blocks < whole.engine.kv_blocks &&
                p.engine.max_context == whole.engine.max_context);
    for (so.engine.memory_bytes = whole.total; (p.largest_context == whole.engine.max_context || p.largest_context == 0);
         so.engine.memory_bytes -= 50000)
        assert_ok(ds_service_plan_get(&p, &each, m, &so, &err));
    shorter = p.largest_context;
    assert_true(p.engine.max_context == shorter && shorter > 1 && shorter < whole.engine.max_context);
    assert_ok(ds_service_open(&s, dir, &so, &err));
    assert_true(ds_service_context(s) <= shorter && ds_service_plan_of(s)->total <= so.engine.memory_bytes + 50000);
    ds_service_close(s);
    so.engine.max_context = whole.engine.max_context; /* asked for: never made smaller */
    assert_refused(ds_service_plan_get(&p, &each, m, &so, &err), DS_E_NOMEM, "each of 2 engines: ");
    assert_true(p.largest_context > 1 && p.largest_context <= shorter);
    assert_refused(ds_service_open(&s, dir, &so, &err), DS_E_NOMEM, "largest context");
    assert_null(s);
    so.engine.memory_bytes = whole.tower / 2;
    assert_refused(ds_service_plan_get(&p, &each, m, &so, &err), DS_E_NOMEM, "vision tower alone");
    so.engine.memory_bytes = whole.tower + 20000;
    assert_refused(ds_service_plan_get(&p, &each, m, &so, &err), DS_E_NOMEM, "too few for any context");
    ds_model_close(m);
    ds_pool_destroy(pool);
}

/* ---- failures ---- */

static ds_rc open_and_close(void *ctx, ds_err *err)
{
    ds_service_opts so = small();
    ds_service *s;
    ds_rc rc;

    so.place.team.n_threads = 2;
    so.engines = *(uint32_t *)ctx;
    so.engine.kv_memory = 1 << 20;
    rc = ds_service_open(&s, dir, &so, err);
    assert_int_equal(rc == DS_OK, s != NULL);
    ds_service_close(s);
    return rc;
}

/* Reading the model and its tokenizer makes most of the allocations and has tests of its own: of those only some. */
static void allocations_fail(void **state)
{
    uint32_t engines = 2;
    unsigned passed = 0;

    (void)state;
    for (unsigned n = 1; passed == 0; n += n < 3000 ? 37 : 11) {
        ds_err err = { 0 };
        ds_rc rc;
        fault_arm(n, false);
        rc = open_and_close(&engines, &err);
        if (!fault_disarm())
            passed = n;
        if (rc != (passed ? DS_OK : DS_E_NOMEM))
            fail_msg("allocation %u: returned %d (%s)", n, rc, err.msg);
    }
    assert_true(passed > 100);
}

static void broken_directories(void **state)
{
    static const struct {
        const char *command; /* %s: the copy */
        ds_rc rc;
        const char *part;
    } cases[] = {
        { "rm %s/tokenizer.json", DS_E_IO, "tokenizer.json" },
        { "echo '{' > %s/tokenizer.json", DS_E_FORMAT, "tokenizer.json" },
        { "rm %s/config.json", DS_E_IO, "config.json" },
        { "rm %s/*.safetensors", DS_E_IO, "" },
        { "echo '{\"eos_token_id\":[1,\"x\"]}' > %s/generation_config.json", DS_E_FORMAT, "eos_token_id" },
    };
    char copy[96];
    ds_service *s;
    ds_err err;

    (void)state;
    snprintf(copy, sizeof copy, "%s/copy", root);
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        ds_service_opts so = small();
        char command[256];
        run_shell("cp -r %s %s", dir, copy);
        snprintf(command, sizeof command, cases[k].command, copy);
        run_shell("%s", command);
        assert_refused(ds_service_open(&s, copy, &so, &err), cases[k].rc, cases[k].part);
        assert_null(s);
        run_shell("rm -r %s", copy);
    }
    ds_service_opts so = small();
    so.engines = 3; /* two threads */
    assert_refused(ds_service_open(&s, dir, &so, &err), DS_E_ARG, "3 engines: each needs a thread");
    so.engines = 65;
    assert_refused(ds_service_open(&s, dir, &so, &err), DS_E_ARG, "at most 64");
    so.engines = 1;
    so.engine.max_context = 1 << 30;
    assert_refused(ds_service_open(&s, dir, &so, &err), DS_E_ARG, "exceeds the model's limit");
    assert_null(s);
}

/* ---- what it does ---- */

static uint32_t answer(ds_service *s, uint32_t n)
{
    static const int32_t prompt[] = { 0, 70, 71, 72 };
    uint32_t tokens = 0, ends = 0;
    ds_event ev[16];
    uint64_t id;
    ds_err err;

    for (uint32_t i = 0; i < n; i++)
        assert_ok(ds_gen_add(ds_service_gen(s),
                             &(ds_gen_request){ .prompt = prompt, .n_prompt = 4, .max_tokens = 5, .sampling = DS_SAMPLING_DEFAULT }, &id,
                             &err));
    while (ends < n)
        if (ds_gen_wait(ds_service_gen(s), 1000))
            for (size_t k = ds_gen_poll(ds_service_gen(s), ev, 16); k > 0; k--) {
                tokens += ev[k - 1].kind == DS_EV_TOKEN;
                ends += ev[k - 1].kind == DS_EV_END;
            }
    return tokens;
}

static void engines_and_a_stub(void **state)
{
    ds_engine_stub stub = { 0 };
    const ds_model_digest_info *info;
    ds_image_rule rule;
    ds_token token;
    size_t n_ids;
    ds_err err;

    (void)state;
    for (int way = 0; way < 3; way++) {
        ds_service_opts so = small();
        ds_service *s;
        so.engines = way == 0 ? 1 : 2;
        so.stub = way == 2 ? &stub : NULL;
        so.dialect = way == 0 ? "v4.1" : NULL;
        assert_ok(ds_service_open(&s, dir, &so, &err));
        assert_int_equal(answer(s, 6), 30);
        assert_int_equal(ds_gen_n_engines(ds_service_gen(s)), so.engines);
        assert_int_equal(ds_service_context(s), 600);
        assert_int_equal(ds_service_plan_of(s)->engine.max_running, so.engines == 1 ? 3 : 2);
        assert_int_equal(ds_service_model(s) == NULL, way == 2);
        assert_int_equal(ds_service_identity(s, &info) != NULL, way == 0);
        assert_true(ds_service_stop_ids(s, &n_ids)[0] >= 0 && n_ids == 1);
        assert_false(ds_service_pictures(s, &rule, &token) && way == 2);
        ds_service_stop(s);
        assert_null(ds_service_engine(s, 0));
        assert_non_null(ds_service_tokenizer(s));
        ds_service_close(s);
    }
    ds_service_close(NULL);
}

typedef struct {
    ds_service *s;
    const float *patches;
    float *out;
    ds_rc rc;
} picture;

static void *show(void *ctx)
{
    picture *p = ctx;
    ds_err err;

    p->rc = ds_service_picture(p->s, p->patches, 6, 6, p->out, &err);
    return NULL;
}

/* From any number of threads, each gets what it would alone. */
static void pictures_wait_for_each_other(void **state)
{
    enum { N = 5 };
    ds_service_opts so = small();
    ds_service *s;
    ds_err err;

    (void)state;
    assert_ok(ds_service_open(&s, dir, &so, &err));
    const ds_config *c = ds_service_config(s);
    size_t in = (size_t)36 * 3 * c->vision.patch_size * c->vision.patch_size,
           out = (size_t)ds_model_span(ds_service_model(s), 6, 6) * c->hidden_size;
    picture p[N], alone[N];
    pthread_t t[N];
    for (uint32_t i = 0; i < N; i++) {
        float *patches = calloc(in, sizeof *patches);
        for (size_t k = 0; k < in; k++)
            patches[k] = (float)((k * 7 + i * 13) % 31) / 31.0f;
        p[i] = alone[i] = (picture){ .s = s, .patches = patches };
        p[i].out = calloc(out, sizeof(float));
        alone[i].out = calloc(out, sizeof(float));
        show(&alone[i]);
        assert_int_equal(alone[i].rc, DS_OK);
    }
    for (uint32_t i = 0; i < N; i++)
        assert_int_equal(pthread_create(&t[i], NULL, show, &p[i]), 0);
    for (uint32_t i = 0; i < N; i++) {
        pthread_join(t[i], NULL);
        assert_int_equal(p[i].rc, DS_OK);
        assert_memory_equal(p[i].out, alone[i].out, out * sizeof(float));
        free((void *)p[i].patches);
        free(p[i].out);
        free(alone[i].out);
    }
    ds_service_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_counts_what_is_taken),
        cmocka_unit_test(one_plan_for_all),
        cmocka_unit_test(what_fits),
        cmocka_unit_test(broken_directories),
        cmocka_unit_test(engines_and_a_stub),
        cmocka_unit_test(pictures_wait_for_each_other),
        cmocka_unit_test(allocations_fail),
    };

    return cmocka_run_group_tests(tests, make_model, remove_model);
}
