#include "test.h"

#include "engine/sampler.h"

enum { V = 1000 };

static float logits[V];
static ds_err err;
static ds_device *dev;

static void fill(unsigned seed)
{
    srand(seed);
    for (int i = 0; i < V; i++)
        logits[i] = (float)(rand() % 2001 - 1000) / 100.0f;
}

/* The distribution as the header defines it, written the slow way. */
static void expect_probs(const ds_sampling *o, double *p)
{
    int order[V];
    double q[V], max = -INFINITY, sum = 0.0;
    for (int i = 0; i < V; i++) {
        order[i] = i;
        max = fmax(max, logits[i]);
    }
    for (int i = 1; i < V; i++) { /* stable insertion sort, falling */
        int x = order[i], j = i;
        for (; j > 0 && logits[order[j - 1]] < logits[x]; j--)
            order[j] = order[j - 1];
        order[j] = x;
    }
    int n = o->top_k && o->top_k < V ? (int)o->top_k : V;
    for (int i = 0; i < n; i++) {
        q[i] = exp((logits[order[i]] - max) / o->temperature);
        sum += q[i];
    }
    if (o->top_p < 1.0) {
        double c = 0.0;
        for (int i = 0; i < n; i++) {
            c += q[i];
            if (c >= o->top_p * sum)
                n = i + 1;
        }
    }
    sum = 0.0;
    for (int i = 0; i < V; i++)
        p[i] = 0.0;
    for (int i = 0; i < n; i++)
        if (q[i] >= o->min_p)
            sum += p[order[i]] = q[i];
    for (int i = 0; i < V; i++)
        p[i] /= sum;
}

static const ds_sampling cases[] = {
    { .temperature = 1.0, .top_p = 1.0, .repetition_penalty = 1.0 },
    { .temperature = 0.01, .top_p = 1.0, .repetition_penalty = 1.0 },
    { .temperature = 5.0, .top_p = 0.9, .repetition_penalty = 1.0 },
    { .temperature = 1.0, .top_p = 0.5, .repetition_penalty = 1.0 },
    { .temperature = 3.0, .top_p = 1.0, .top_k = 1, .repetition_penalty = 1.0 },
    { .temperature = 3.0, .top_p = 1.0, .top_k = 40, .repetition_penalty = 1.0 },
    { .temperature = 3.0, .top_p = 1.0, .top_k = 999, .repetition_penalty = 1.0 },
    { .temperature = 3.0, .top_p = 1.0, .top_k = 5000, .repetition_penalty = 1.0 },
    { .temperature = 4.0, .top_p = 0.7, .top_k = 100, .min_p = 0.3, .repetition_penalty = 1.0 },
    { .temperature = 2.0, .top_p = 1.0, .min_p = 1.0, .repetition_penalty = 1.0 },
    { .temperature = 2.0, .top_p = 1e-9, .repetition_penalty = 1.0 },
};

static void distribution_is_as_defined(void **state)
{
    (void)state;
    static float got[V];
    static double want[V];
    ds_sampler_scratch *tmp;
    assert_ok(ds_sampler_scratch_create(&tmp, V, &err));
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        for (unsigned seed = 1; seed < 6; seed++) {
            ds_sampler *s;
            fill(seed);
            assert_ok(ds_sampler_create(&s, dev, V, &cases[c], NULL, 0, &err));
            assert_ok(ds_sampler_probs(s, tmp, logits, NULL, 0, got, &err));
            expect_probs(&cases[c], want);
            for (int i = 0; i < V; i++)
                if (fabs(got[i] - want[i]) > 1e-6)
                    fail_msg("case %zu seed %u token %d: %g, expected %g", c, seed, i, (double)got[i], want[i]);
            ds_sampler_destroy(s);
        }
    }
    ds_sampler_scratch_destroy(tmp);
}

static void draws_follow_the_distribution(void **state)
{
    (void)state;
    enum { N = 200000 };
    static const float few[4] = { 1.0f, 0.0f, 2.0f, -1.0f };
    double p[4], sum = 0.0;
    int count[4] = { 0 };
    ds_sampler *s;
    ds_sampler_scratch *tmp;
    ds_sampling o = DS_SAMPLING_DEFAULT;
    o.seed = 7;
    assert_ok(ds_sampler_scratch_create(&tmp, 4, &err));
    assert_ok(ds_sampler_create(&s, dev, 4, &o, NULL, 0, &err));
    for (int i = 0; i < N; i++) {
        int32_t t, again;
        assert_ok(ds_sampler_draw(s, tmp, few, NULL, (uint64_t)i, &t, &err));
        assert_ok(ds_sampler_draw(s, tmp, few, NULL, (uint64_t)i, &again, &err));
        assert_int_equal(t, again); /* a pure function of seed and index */
        count[t]++;
    }
    for (int i = 0; i < 4; i++)
        sum += p[i] = exp(few[i]);
    double chi2 = 0.0;
    for (int i = 0; i < 4; i++) {
        double e = N * p[i] / sum;
        chi2 += (count[i] - e) * (count[i] - e) / e;
    }
    assert_true(chi2 < 16.3); /* 3 degrees of freedom, p = 0.001 */
    ds_sampler_destroy(s);
    ds_sampler_scratch_destroy(tmp);
}

static void penalties_and_bias(void **state)
{
    (void)state;
    static const float l[4] = { 2.0f, -1.0f, 0.5f, 0.0f };
    static const ds_token_bias bias[] = { { 3, 10.0f }, { 0, -100.0f } };
    ds_sampler *s;
    ds_sampler_scratch *tmp;
    int32_t t;
    ds_sampling o = { .temperature = 0.0, .top_p = 1.0, .repetition_penalty = 10.0, .presence_penalty = 0.0 };
    assert_ok(ds_sampler_scratch_create(&tmp, 4, &err));

    assert_ok(ds_sampler_create(&s, dev, 4, &o, NULL, 0, &err));
    assert_ok(ds_sampler_draw(s, tmp, l, NULL, 0, &t, &err));
    assert_int_equal(t, 0);
    ds_sampler_see_prompt(s, (const int32_t[]){ 0 }, 1);
    assert_ok(ds_sampler_draw(s, tmp, l, NULL, 0, &t, &err));
    assert_int_equal(t, 2); /* 0 fell to 0.2 */
    ds_sampler_see_output(s, 2);
    assert_ok(ds_sampler_draw(s, tmp, l, NULL, 0, &t, &err));
    assert_int_equal(t, 0);
    ds_sampler_destroy(s);

    o.repetition_penalty = 1.0;
    o.frequency_penalty = 1.0;
    assert_ok(ds_sampler_create(&s, dev, 4, &o, NULL, 0, &err));
    ds_sampler_see_output(s, 0);
    assert_ok(ds_sampler_draw(s, tmp, l, NULL, 0, &t, &err));
    assert_int_equal(t, 0); /* 1.0 */
    ds_sampler_see_output(s, 0);
    assert_ok(ds_sampler_draw(s, tmp, l, NULL, 0, &t, &err));
    assert_int_equal(t, 2); /* 0.0 against 0.5 */
    ds_sampler_destroy(s);

    assert_ok(ds_sampler_create(&s, dev, 4, &(ds_sampling){ .top_p = 1.0, .repetition_penalty = 1.0 }, bias, 2, &err));
    assert_false(ds_draw_is_argmax(ds_sampler_how(s), 0));
    assert_ok(ds_sampler_draw(s, tmp, l, NULL, 0, &t, &err));
    assert_int_equal(t, 3);
    assert_ok(ds_sampler_draw(s, tmp, l, (const uint32_t[]){ 6 }, 0, &t, &err)); /* only 1 and 2 allowed */
    assert_int_equal(t, 2);
    assert_refused(ds_sampler_draw(s, tmp, l, (const uint32_t[]){ 1 }, 0, &t, &err), DS_E_ARG, "no token is allowed");
    ds_sampler_destroy(s);
    ds_sampler_scratch_destroy(tmp);
}

/* What would end a text isn't drawn before its time, whatever else decides; where nothing else may be drawn, it is. */
static void held_back(void **state)
{
    static const float l[4] = { 1.0f, 9.0f, 2.0f, 9.0f };
    static const int32_t ids[] = { 1, 3 };
    ds_sampler_scratch *tmp;
    ds_sampler *s;
    int32_t t;

    (void)state;
    assert_ok(ds_sampler_scratch_create(&tmp, 4, &err));
    for (int temperature = 0; temperature < 2; temperature++) {
        float p[4];
        assert_ok(ds_sampler_create(&s, dev, 4, &(ds_sampling){ .temperature = temperature, .top_p = 0.5, .repetition_penalty = 1.0 }, NULL,
                                    0, &err));
        assert_ok(ds_sampler_set_stops(s, ids, 2, 3, &err));
        for (uint32_t i = 0; i < 5; i++) {
            assert_int_equal(ds_draw_is_argmax(ds_sampler_how(s), i), temperature == 0 && i >= 3);
            assert_ok(ds_sampler_draw(s, tmp, l, NULL, i, &t, &err));
            assert_int_equal(t == 2, i < 3);
            assert_ok(ds_sampler_probs(s, tmp, l, NULL, i, p, &err));
            assert_true(i < 3 ? p[2] == 1.0f : p[2] == 0.0f);
        }
        assert_ok(ds_sampler_draw(s, tmp, l, (const uint32_t[]){ 2 }, 0, &t, &err)); /* only 1 is allowed */
        assert_int_equal(t, 1);
        assert_refused(ds_sampler_draw(s, tmp, l, (const uint32_t[]){ 0 }, 0, &t, &err), DS_E_ARG, "no token is allowed");
        assert_ok(ds_sampler_set_stops(s, ids, 0, 3, &err));
        assert_ok(ds_sampler_draw(s, tmp, l, NULL, 0, &t, &err));
        assert_int_not_equal(t, 2);
        ds_sampler_destroy(s);
    }
    ds_sampler_scratch_destroy(tmp);
}

static void ties_go_to_the_lower_id(void **state)
{
    (void)state;
    static const float l[6] = { 1.0f, 3.0f, 3.0f, 3.0f, 0.0f, 3.0f };
    float p[6];
    ds_sampler *s;
    ds_sampler_scratch *tmp;
    ds_sampling o = DS_SAMPLING_DEFAULT;
    o.top_k = 2;
    assert_int_equal(ds_argmax(l, 6), 1);
    assert_ok(ds_sampler_scratch_create(&tmp, 6, &err));
    assert_ok(ds_sampler_create(&s, dev, 6, &o, NULL, 0, &err));
    assert_ok(ds_sampler_probs(s, tmp, l, NULL, 0, p, &err));
    assert_close(p, ((const float[]){ 0.0f, 0.5f, 0.5f, 0.0f, 0.0f, 0.0f }), 6, 0.0, 1e-6);
    ds_sampler_destroy(s);

    ds_logprob top[8];
    float chosen;
    ds_logprobs(l, 6, 5, &chosen, top, 8);
    assert_int_equal(top[0].id, 1);
    assert_int_equal(top[3].id, 5);
    assert_int_equal(top[5].id, 4);
    assert_int_equal(top[6].id, -1);
    assert_true(chosen == top[0].logprob);
    assert_true(fabs(chosen - (3.0 - log(4.0 * exp(3.0) + exp(1.0) + 1.0))) < 1e-6);
    ds_sampler_scratch_destroy(tmp);
}

static void ranges_are_refused(void **state)
{
    (void)state;
    ds_sampling ok = DS_SAMPLING_DEFAULT, o;
    assert_ok(ds_sample_check(&ok, &err));
#define BAD(field, value, word) \
    o = ok;                     \
    o.field = (value);          \
    assert_refused(ds_sample_check(&o, &err), DS_E_ARG, word)
    BAD(temperature, -0.1, "temperature");
    BAD(temperature, NAN, "temperature");
    BAD(temperature, INFINITY, "temperature");
    BAD(top_p, 0.0, "top_p");
    BAD(top_p, 1.1, "top_p");
    BAD(top_p, NAN, "top_p");
    BAD(min_p, -1.0, "min_p");
    BAD(repetition_penalty, 0.0, "repetition_penalty");
    BAD(presence_penalty, NAN, "presence_penalty");
    BAD(frequency_penalty, 1e9, "frequency_penalty");
    ds_sampler *s;
    assert_refused(ds_sampler_create(&s, dev, 4, &ok, &(ds_token_bias){ 4, 1.0f }, 1, &err), DS_E_ARG, "outside the vocabulary");
    assert_refused(ds_sampler_create(&s, dev, 4, &ok, &(ds_token_bias){ 3, NAN }, 1, &err), DS_E_ARG, "not finite");
    assert_null(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(distribution_is_as_defined), cmocka_unit_test(draws_follow_the_distribution),
        cmocka_unit_test(penalties_and_bias),         cmocka_unit_test(held_back),
        cmocka_unit_test(ties_go_to_the_lower_id),    cmocka_unit_test(ranges_are_refused),
    };
    int failed;

    if (ds_device_open(&dev, "cpu", NULL, &err) != DS_OK)
        return 1;
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    ds_device_close(dev);
    return failed;
}
