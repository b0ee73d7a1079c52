/* The forward pass against the reference's golden data: logits, cache records, selections, drafts, images, in exact,
 * CED and replay mode and in every chunking. The argument is a configuration, perhaps with kernels: "tiny-a ref". */
#include "ranks.h"

static const char *name, *kernels;

typedef struct {
    const golden *g;
    const ds_json *spec;
    const ds_model *m;
    const ds_config *c;
    int32_t *tokens;
    uint32_t n;
    bool exact;
    uint32_t prefix;     /* replay: tokens before; 0 otherwise */
    const float **image; /* by position */
    ds_npy image_rows;

    /* of one run */
    collector seen;
    logit_rows logits;
    ds_runner *run;
    ds_solo solo;
} test_case;

static const char *text_of(const ds_json *v)
{
    return ds_json_is(v, DS_JSON_STRING) ? v->text : NULL;
}

static bool in_list(const ds_json *list, uint64_t i)
{
    for (const ds_json *v = list ? list->child : NULL; v; v = v->next)
        if (json_uint(v) == i)
            return true;
    return false;
}

static void setup(test_case *t, const golden *g, const ds_json *spec, const ds_model *m)
{
    const ds_json *image = ds_json_get(spec, "image");

    *t = (test_case){ .g = g, .spec = spec, .m = m, .c = ds_model_config(m) };
    t->tokens = json_ids(ds_json_get(spec, "tokens"), &t->n);
    t->exact = ds_json_str_eq(ds_json_get(spec, "mode"), "exact");
    if (ds_json_str_eq(ds_json_get(spec, "mode"), "replay"))
        t->prefix = json_uint(ds_json_get(spec, "prefix"));
    if (image) {
        uint32_t start = json_uint(ds_json_get(image, "start"));
        t->image_rows = golden_array(g, text_of(ds_json_get(image, "rows")));
        t->image = calloc(t->n, sizeof *t->image);
        for (uint32_t i = 0; i < t->image_rows.shape[0]; i++)
            t->image[start + i] = (const float *)t->image_rows.data + i * t->image_rows.shape[1];
    }
}

static void finish_run(test_case *t)
{
    ds_solo_fini(&t->solo);
    test_runner_destroy(t->run);
    collector_clear(&t->seen);
    free(t->logits.data);
    t->logits = (logit_rows){ 0 };
}

static void finish(test_case *t)
{
    ds_npy_free(&t->image_rows);
    free(t->image);
    free(t->tokens);
}

static void run_case(test_case *t, uint32_t chunk, bool bf16, bool observe)
{
    ds_err err;
    uint32_t window = t->c->sliding_window, last = t->exact ? t->n : t->n < window ? t->n : window;
    ds_runner_opts o = { .bf16 = bf16, .max_rows = chunk < 8 ? 8 : chunk, .max_logits = t->n, .max_context = t->n, .n_tails = !t->exact };

    if (observe) {
        o.observe = collect;
        o.observe_ctx = &t->seen;
    }
    assert_ok(test_runner_create(&t->run, t->m, &o, &err));
    assert_ok(ds_solo_init(&t->solo, t->run, chunk, !t->exact, &err));
    t->solo.image = t->image;
    if (t->prefix) {
        assert_ok(ds_solo_prefill(&t->solo, t->tokens, t->prefix, 0, NULL, NULL, &err));
        collector_clear(&t->seen);
        assert_ok(ds_solo_resume(&t->solo, t->tokens, t->n, last, keep_logits, &t->logits, &err));
    } else {
        assert_ok(ds_solo_prefill(&t->solo, t->tokens, t->n, last, keep_logits, &t->logits, &err));
    }
    assert_int_equal(t->logits.rows, last);
}

static double distance(const float *a, const float *b, size_t n)
{
    double most = 0.0, scale = 0.0;

    for (size_t i = 0; i < n; i++) {
        most = fmax(most, fabs((double)a[i] - (double)b[i]));
        scale = fmax(scale, fabs((double)b[i]));
    }
    return most / scale;
}

static void check_logits(test_case *t)
{
    ds_npy ref = golden_array(t->g, text_of(ds_json_get(t->spec, "logits")));
    uint32_t first = t->n - (uint32_t)t->logits.rows, i = 0;
    const ds_json *stable = ds_json_get(t->spec, "stable");

    for (const ds_json *p = ds_json_get(t->spec, "positions")->child; p; p = p->next, i++) {
        double e = distance(t->logits.data + (json_uint(p) - first) * t->logits.vocab, (const float *)ref.data + i * t->logits.vocab,
                            t->logits.vocab);
        if (json_uint(ds_json_at(stable, i)) && !(e <= 2e-5))
            fail_msg("%s %s: logits at position %u differ by %.3g", name, text_of(ds_json_get(t->spec, "name")), json_uint(p), e);
    }
    ds_npy_free(&ref);
}

static void same_bytes(const test_case *t, const ds_json *entry, uint64_t row, const void *got, const void *want, size_t bytes,
                       const char *what)
{
    if (in_list(ds_json_get(entry, "unstable"), row))
        return;
    if (memcmp(got, want, bytes) != 0)
        fail_msg("%s %s: %s, row %llu differs", name, text_of(ds_json_get(t->spec, "name")), what, (unsigned long long)row);
}

static void check_records(test_case *t, ds_record_kind kind, const char *field)
{
    uint32_t ordinal = 0;
    const ds_json *list = ds_json_get(t->spec, field);

    for (const ds_json *e = list ? list->child : NULL; e; e = e->next, ordinal++) {
        ds_npy ref = golden_array(t->g, text_of(ds_json_get(e, "file")));
        for (uint32_t j = 0; j < ref.shape[0]; j++) {
            uint8_t rec[DS_RECORD_MAX_BYTES];
            size_t bytes;
            ds_err err;
            assert_ok(ds_runner_record(t->run, kind, ordinal, t->solo.blocks, j, rec, &bytes, &err));
            assert_int_equal(bytes, ref.shape[1]);
            same_bytes(t, e, j, rec, (const uint8_t *)ref.data + j * bytes, bytes, field);
        }
        ds_npy_free(&ref);
    }
}

/* u8 [layers, positions, record] against window records that the observer saw, aligned at the last position. */
static void check_windows(test_case *t, const ds_json *e, const uint32_t *layers, const char *what)
{
    ds_npy ref = golden_array(t->g, text_of(ds_json_get(e, "file")));

    for (uint64_t i = 0; i < ref.shape[0]; i++)
        for (uint64_t k = 0; k < ref.shape[1]; k++) {
            uint64_t row = i * ref.shape[1] + k;
            const uint8_t *rec = collected(&t->seen, "win", (int)layers[i], ref.shape[1] - 1 - k);
            same_bytes(t, e, row, rec, (const uint8_t *)ref.data + row * ref.shape[2], ref.shape[2], what);
        }
    ds_npy_free(&ref);
}

static void check_all_windows(test_case *t)
{
    uint32_t layers[DS_CONFIG_MAX_LAYERS], n;
    const ds_json *list = ds_json_get(t->spec, "window"), *rings = ds_json_get(t->spec, "rings");

    for (const ds_json *e = list ? list->child : NULL; e; e = e->next) {
        n = 0;
        for (const ds_json *l = ds_json_get(e, "layers")->child; l; l = l->next)
            layers[n++] = json_uint(l);
        check_windows(t, e, layers, "window");
    }
    for (n = 0; n < t->c->num_nextn_predict_layers; n++)
        layers[n] = t->c->num_hidden_layers + n;
    if (rings)
        check_windows(t, rings, layers, "rings");
}

static void check_topk(test_case *t)
{
    const ds_json *e = ds_json_get(t->spec, "topk");
    ds_npy ref;
    uint32_t topk = t->c->index_topk;

    if (!e)
        return;
    ref = golden_array(t->g, text_of(ds_json_get(e, "file")));
    for (uint32_t i = 0; i < t->c->n_index_sources; i++)
        for (uint32_t p = 0; p < t->n; p++) {
            int layer = t->c->index_source_layer_ids[i];
            int32_t row[512];
            uint32_t n;
            memcpy(row, collected(&t->seen, "sel", layer, t->n - 1 - p), topk * sizeof *row);
            memcpy(&n, collected(&t->seen, "n_sel", layer, t->n - 1 - p), sizeof n);
            while (n < topk)
                row[n++] = -1;
            same_bytes(t, e, (uint64_t)i * t->n + p, row, (const int32_t *)ref.data + ((size_t)i * t->n + p) * topk, topk * sizeof *row,
                       "topk");
        }
    ds_npy_free(&ref);
}

static void check_pool(test_case *t)
{
    const ds_json *e = ds_json_get(t->spec, "pool");
    ds_npy ref;

    if (!e)
        return;
    ref = golden_array(t->g, text_of(ds_json_get(e, "file")));
    for (uint32_t p = 0; p < t->n; p++) {
        int layer = t->c->candidate_source_layer_id;
        const int32_t *blocks = (const int32_t *)(const void *)collected(&t->seen, "pool", layer, t->n - 1 - p);
        uint8_t mask[512] = { 0 };
        uint32_t n;
        memcpy(&n, collected(&t->seen, "n_pool", layer, t->n - 1 - p), sizeof n);
        for (uint32_t i = 0; i < n; i++)
            mask[blocks[i]] = 1;
        same_bytes(t, e, p, mask, (const uint8_t *)ref.data + p * ref.shape[1], ref.shape[1], "pool");
    }
    ds_npy_free(&ref);
}

static int ascending(const void *a, const void *b)
{
    return *(const int32_t *)a - *(const int32_t *)b;
}

static void check_experts(test_case *t)
{
    const ds_json *e = ds_json_get(t->spec, "experts");
    ds_npy ref;
    uint32_t k = t->c->num_experts_per_tok;

    if (!e)
        return;
    ref = golden_array(t->g, text_of(ds_json_get(e, "file")));
    for (uint32_t l = 0; l < t->c->num_hidden_layers; l++)
        for (uint32_t p = 0; p < t->n; p++) {
            int32_t row[64];
            memcpy(row, collected(&t->seen, "router", (int)l, t->n - 1 - p), k * sizeof *row);
            qsort(row, k, sizeof *row, ascending);
            same_bytes(t, e, (uint64_t)l * t->n + p, row, (const int32_t *)ref.data + ((size_t)l * t->n + p) * k, k * sizeof *row,
                       "experts");
        }
    ds_npy_free(&ref);
}

static void check_engram(test_case *t)
{
    const ds_json *e = ds_json_get(t->spec, "engram");
    ds_npy ref;

    if (!e)
        return;
    ref = golden_array(t->g, text_of(ds_json_get(e, "file")));
    for (uint32_t i = 0; i < t->c->n_engram_layers; i++)
        for (uint32_t p = 0; p < t->n; p++) {
            size_t bytes = ref.shape[2] * sizeof(uint64_t);
            same_bytes(t, e, (uint64_t)i * t->n + p, collected(&t->seen, "engram", t->c->engram_layer_ids[i], t->n - 1 - p),
                       (const uint8_t *)ref.data + ((size_t)i * t->n + p) * bytes, bytes, "engram");
        }
    ds_npy_free(&ref);
}

static void check_streams(test_case *t)
{
    const char *file = text_of(ds_json_get(t->spec, "streams"));
    ds_npy ref;

    if (!file)
        return;
    ref = golden_array(t->g, file);
    for (uint32_t l = 0; l < t->c->num_hidden_layers; l++)
        for (uint32_t p = 0; p < t->n; p++) {
            size_t n = ref.shape[2] * ref.shape[3];
            double e = distance((const float *)(const void *)collected(&t->seen, "x", (int)l, t->n - 1 - p),
                                (const float *)ref.data + ((size_t)l * t->n + p) * n, n);
            if (!(e <= 2e-5))
                fail_msg("%s: streams after layer %u at position %u differ by %.3g", name, l, p, e);
        }
    ds_npy_free(&ref);
}

static void check_draft(test_case *t)
{
    const ds_json *d = ds_json_get(t->spec, "draft"), *list;
    uint32_t B = t->c->dspark_block_size, V = t->c->vocab_size;
    int32_t ids[64], plain[64];
    float conf[64];
    ds_draft_seq q = { .pos = t->n, .win_lo = t->solo.dec_win };
    ds_npy ref;
    ds_err err;

    if (!d)
        return;
    q.token = (int32_t)json_uint(ds_json_get(d, "token"));
    assert_ok(ds_runner_draft(t->run, &q, 1, ids, conf, &err));
    assert_ok(ds_runner_draft(t->run, &q, 1, plain, NULL, &err));
    assert_memory_equal(ids, plain, B * sizeof *ids);
    list = ds_json_get(d, "logits");
    ref = golden_array(t->g, text_of(ds_json_get(list, "file")));
    for (uint32_t i = 0; i < B; i++) {
        double e =
            distance((const float *)(const void *)collected(&t->seen, "draft", -1, B - 1 - i), (const float *)ref.data + (size_t)i * V, V);
        if (!in_list(ds_json_get(list, "unstable"), i) && !(e <= 2e-5))
            fail_msg("%s %s: logits of draft %u differ by %.3g", name, text_of(ds_json_get(t->spec, "name")), i, e);
        if (json_uint(ds_json_get(d, "stable"))) {
            assert_int_equal(ids[i], json_uint(ds_json_at(ds_json_get(d, "drafts"), i)));
            assert_true(fabs((double)conf[i] - json_real(ds_json_at(ds_json_get(d, "confidence"), i))) < 1e-4);
        }
    }
    ds_npy_free(&ref);
}

static void against_reference(void **state)
{
    const ds_model *m = *state;
    golden g;

    golden_open(&g, name);
    for (const ds_json *spec = g.cases->child; spec; spec = spec->next) {
        test_case t;
        setup(&t, &g, spec, m);
        run_case(&t, t.n < 64 ? t.n : 64, false, true);
        check_logits(&t);
        check_records(&t, DS_RECORD_MAIN, "main");
        check_records(&t, DS_RECORD_INDEX, "index");
        check_all_windows(&t);
        check_topk(&t);
        check_pool(&t);
        check_experts(&t);
        check_engram(&t);
        check_streams(&t);
        check_draft(&t);
        finish_run(&t);
        finish(&t);
    }
    ds_json_free(g.doc);
}

static void every_chunking_gives_the_same_bits(void **state)
{
    const ds_model *m = *state;
    golden g;

    golden_open(&g, name);
    for (const ds_json *spec = g.cases->child; spec; spec = spec->next) {
        static const uint32_t chunks[] = { 1, 3, 7, 64 };
        test_case t;
        logit_rows whole;
        setup(&t, &g, spec, m);
        run_case(&t, t.n, false, false);
        whole = t.logits;
        t.logits = (logit_rows){ 0 };
        finish_run(&t);
        for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
            if (chunks[i] >= t.n || (t.n > 64 && chunks[i] == 3)) /* the long ones cost time */
                continue;
            run_case(&t, chunks[i], false, false);
            if (memcmp(whole.data, t.logits.data, whole.rows * whole.vocab * sizeof(float)) != 0)
                fail_msg("%s %s: chunks of %u give other bits", name, text_of(ds_json_get(spec, "name")), chunks[i]);
            finish_run(&t);
        }
        free(whole.data);
        finish(&t);
    }
    ds_json_free(g.doc);
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* The distances of all stored rows together: per case there are too few for a median to mean much. */
static void bf16_is_as_close_as_the_reference(void **state)
{
    const ds_model *m = *state;
    golden g;
    double *mine = NULL, *theirs = NULL, agree = 0.0, ref_agree = 0.0;
    size_t n = 0;

    golden_open(&g, name);
    for (const ds_json *spec = g.cases->child; spec; spec = spec->next) {
        test_case t;
        ds_npy ref = golden_array(&g, text_of(ds_json_get(spec, "logits")));
        const ds_json *bf16 = ds_json_get(spec, "bf16");
        uint32_t i = 0, first;
        setup(&t, &g, spec, m);
        run_case(&t, t.n < 64 ? t.n : 64, true, false);
        first = t.n - (uint32_t)t.logits.rows;
        mine = realloc(mine, (n + ref.shape[0]) * sizeof *mine);
        theirs = realloc(theirs, (n + ref.shape[0]) * sizeof *theirs);
        for (const ds_json *p = ds_json_get(spec, "positions")->child; p; p = p->next, i++) {
            const float *got = t.logits.data + (json_uint(p) - first) * t.logits.vocab,
                        *want = (const float *)ref.data + i * t.logits.vocab;
            size_t a = 0, b = 0;
            for (size_t v = 1; v < t.logits.vocab; v++) {
                a = got[v] > got[a] ? v : a;
                b = want[v] > want[b] ? v : b;
            }
            agree += a == b;
            mine[n] = distance(got, want, t.logits.vocab);
            theirs[n++] = json_real(ds_json_at(ds_json_get(bf16, "distance"), i));
        }
        ref_agree += json_real(ds_json_get(bf16, "top_agreement")) * i;
        ds_npy_free(&ref);
        finish_run(&t);
        finish(&t);
    }
    qsort(mine, n, sizeof *mine, by_size);
    qsort(theirs, n, sizeof *theirs, by_size);
    if (mine[n / 2] > 2.0 * theirs[n / 2] || mine[n - 1] > 0.3 || agree < ref_agree - 0.02 * (double)n)
        fail_msg("%s, bf16, %zu rows: median %.3g (reference %.3g), largest %.3g, top tokens %.0f (reference %.0f)", name, n, mine[n / 2],
                 theirs[n / 2], mine[n - 1], agree, ref_agree);
    free(mine);
    free(theirs);
    ds_json_free(g.doc);
}

static void image_embeddings(void **state)
{
    const ds_model *m = *state;
    const ds_config *c = ds_model_config(m);
    const ds_json *image = NULL;
    golden g;
    ds_npy pixels, want;
    ds_runner *r;
    uint32_t nh, nw, s = c->vision.patch_size, span;
    float *patches, *out;
    ds_err err;

    golden_open(&g, name);
    for (const ds_json *spec = g.cases->child; spec && !image; spec = spec->next)
        image = ds_json_get(spec, "image");
    if (!image) { /* a model without a tower says so */
        ds_json_free(g.doc);
        assert_int_equal(c->vision.num_hidden_layers, 0);
        if (!test_ranks.n)
            assert_refused(ds_runner_create(&r, m, &(ds_runner_opts){ .max_context = 64, .max_patches = 4 }, &err), DS_E_ARG,
                           "no vision tower");
        return;
    }
    nh = json_uint(ds_json_at(ds_json_get(image, "patches"), 0));
    nw = json_uint(ds_json_at(ds_json_get(image, "patches"), 1));
    pixels = golden_array(&g, text_of(ds_json_get(image, "prepared")));
    want = golden_array(&g, text_of(ds_json_get(image, "rows")));
    span = ds_model_span(m, nh, nw);
    assert_int_equal(span, want.shape[0]);
    patches = calloc((size_t)nh * nw * 3 * s * s, sizeof *patches);
    out = calloc((size_t)span * c->hidden_size, sizeof *out);
    for (uint32_t y = 0; y < nh * s; y++)
        for (uint32_t x = 0; x < nw * s; x++)
            for (uint32_t ch = 0; ch < 3; ch++) {
                float v = (((const uint8_t *)pixels.data)[(y * nw * s + x) * 3 + ch] / 255.0f - 0.5f) / 0.5f;
                uint32_t u;
                memcpy(&u, &v, 4);
                u = (u + 0x7fff + (u >> 16 & 1)) & 0xffff0000u;
                memcpy(&v, &u, 4);
                patches[((size_t)(y / s) * nw + x / s) * 3 * s * s + ch * s * s + y % s * s + x % s] = v;
            }
    assert_ok(test_runner_create(&r, m, &(ds_runner_opts){ .max_context = 64, .max_patches = nh * nw }, &err));
    assert_ok(ds_runner_image(r, patches, nh, nw, out, &err));
    for (uint32_t i = 0; i < span; i++) {
        double e = distance(out + (size_t)i * c->hidden_size, (const float *)want.data + (size_t)i * c->hidden_size, c->hidden_size);
        if (!(e <= 2e-5))
            fail_msg("%s: image row %u differs by %.3g", name, i, e);
    }
    assert_refused(ds_runner_image(r, patches, nh + 100, nw, out, &err), DS_E_ARG, "patches");
    assert_refused(ds_runner_image(r, patches, 0, nw, out, &err), DS_E_ARG, "patches");
    test_runner_destroy(r);
    free(patches);
    free(out);
    ds_npy_free(&pixels);
    ds_npy_free(&want);
    ds_json_free(g.doc);
}

static int open_model(void **state)
{
    *state = test_model_of_ranks(name, kernels);
    return 0;
}

static int close_model(void **state)
{
    test_close_ranks(*state);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(against_reference),
        cmocka_unit_test(every_chunking_gives_the_same_bits),
        cmocka_unit_test(bf16_is_as_close_as_the_reference),
        cmocka_unit_test(image_embeddings),
    };
    int failed;

    test_choose_ranks(&argc, argv);
    name = argc > 1 ? argv[1] : "tiny-a";
    kernels = test_choose_device(argc, argv, 2);
    failed = cmocka_run_group_tests(tests, open_model, close_model);
    ds_device_close(test_device);
    return failed;
}
