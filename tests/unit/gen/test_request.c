/* From a parsed request to what a generator is asked. */
#include <ds/gen_request.h>

#include "../test.h"

static const ds_token ids[] = { 1, 2, 3 };
static const int32_t ends[] = { 9 };
static ds_gen_room room;

static const ds_request_info_data *parsed(ds_request **r, ds_proto proto, const char *body)
{
    ds_api_error why;
    ds_err err;

    assert_ok(ds_request_parse(r, &(ds_request_parse_args){ .proto = proto }, body, strlen(body), &why, &err));
    return ds_request_info(*r);
}

static ds_gen_beside beside(void)
{
    return (
        ds_gen_beside){ .ids = ids,
                        .n_ids = 3,
                        .max_tokens = 20,
                        .sampling = { .temperature = 0.7, .top_p = 0.8, .min_p = 0.1, .top_k = 5, .repetition_penalty = 1.1, .seed = 42 },
                        .stop_ids = ends,
                        .n_stop_ids = 1,
                        .stop_strings = true };
}

static void what_is_missing_comes_from_beside(void **state)
{
    ds_gen_beside b = beside();
    ds_request *r;
    ds_gen_request q = ds_gen_request_of(parsed(&r, DS_PROTO_COMPLETIONS, "{\"prompt\":\"a\"}"), &b, &room);

    (void)state;
    assert_memory_equal(&q.sampling, &b.sampling, sizeof q.sampling);
    assert_ptr_equal(q.prompt, ids);
    assert_true(q.n_prompt == 3 && q.max_tokens == 20 && q.min_tokens == 0 && q.n == 1 && q.n_stop_ids == 1 && q.n_stop == 0);
    assert_true(!q.logprobs && !q.prompt_logprobs && q.replay == DS_REPLAY_AUTO && !q.n_images && !q.sampling.seeded);
    ds_request_destroy(r);
}

static void what_the_client_gave_wins(void **state)
{
    ds_gen_beside b = beside();
    ds_request *r;
    ds_gen_request q = ds_gen_request_of(
        parsed(&r, DS_PROTO_CHAT,
               "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"temperature\":0,\"top_p\":0.5,\"min_p\":0,\"top_k\":-1,"
               "\"presence_penalty\":1,\"frequency_penalty\":-1,\"repetition_penalty\":0.5,\"seed\":-3,\"n\":4,\"stop\":[\"x\",\"yz\"],"
               "\"logprobs\":true,\"top_logprobs\":2,\"logit_bias\":{\"7\":-100},\"ignore_eos\":true,\"min_tokens\":6}"),
        &b, &room);
    ds_sampling want = { .temperature = 0.0,
                         .top_p = 0.5,
                         .repetition_penalty = 0.5,
                         .presence_penalty = 1.0,
                         .frequency_penalty = -1.0,
                         .seed = (uint64_t)-3,
                         .seeded = true };

    (void)state;
    assert_true(q.sampling.temperature == want.temperature && q.sampling.top_p == want.top_p && q.sampling.min_p == 0.0 &&
                q.sampling.top_k == 0 && q.sampling.repetition_penalty == want.repetition_penalty && q.sampling.presence_penalty == 1.0 &&
                q.sampling.frequency_penalty == -1.0 && q.sampling.seed == want.seed && q.sampling.seeded);
    assert_true(q.n == 4 && q.min_tokens == 6 && q.n_stop_ids == 0 && q.logprobs && q.n_top == 2 && q.n_bias == 1);
    assert_true(q.bias[0].id == 7 && q.bias[0].bias == -100.0f);
    assert_int_equal(q.n_stop, 2);
    assert_memory_equal(q.stop[1].p, "yz", 2);
    b.stop_strings = false; /* who reads the answer looks for them */
    b.max_tokens = 4;       /* all that the context leaves */
    q = ds_gen_request_of(ds_request_info(r), &b, &room);
    assert_true(q.n_stop == 0 && q.max_tokens == 4 && q.min_tokens == 4);
    ds_request_destroy(r);
}

/* Samples are counted over the prompts, and no seed of a neighbour comes again. */
static void every_sample_has_a_seed_of_its_own(void **state)
{
    ds_gen_beside b = beside();
    ds_request *r;
    const ds_request_info_data *i = parsed(&r, DS_PROTO_COMPLETIONS, "{\"prompt\":[\"a\",\"b\",\"c\"],\"n\":2,\"seed\":7}");
    uint64_t seen[6];

    (void)state;
    for (b.prompt = 0; b.prompt < 3; b.prompt++)
        for (uint32_t k = 0; k < 2; k++)
            seen[2 * b.prompt + k] = ds_sample_seed(ds_gen_request_of(i, &b, &room).sampling.seed, k);
    for (uint32_t k = 0; k < 6; k++) {
        assert_int_equal(seen[k], ds_sample_seed(7, k));
        for (uint32_t s = 0; s < 1000; s++)
            assert_false(k > 0 && seen[k] == s);
    }
    ds_request_destroy(r);
}

static void log_probabilities_of_a_prompt(void **state)
{
    static const struct {
        const char *body;
        bool prompt;
        uint32_t n_prompt_top, max_tokens;
    } cases[] = {
        { "{\"prompt\":\"a\",\"logprobs\":3}", false, 0, 20 },
        { "{\"prompt\":\"a\",\"echo\":true}", false, 0, 20 },
        { "{\"prompt\":\"a\",\"echo\":true,\"logprobs\":3}", true, 3, 20 },
        { "{\"prompt\":\"a\",\"prompt_logprobs\":2,\"logprobs\":3}", true, 2, 20 },
        { "{\"prompt\":\"a\",\"prompt_logprobs\":4,\"echo\":true,\"logprobs\":3}", true, 4, 20 },
        { "{\"prompt\":\"a\",\"echo\":true,\"logprobs\":0,\"max_tokens\":0}", true, 0, 1 },
    };

    (void)state;
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        ds_gen_beside b = beside();
        ds_request *r;
        const ds_request_info_data *i = parsed(&r, DS_PROTO_COMPLETIONS, cases[k].body);
        b.max_tokens = i->has_max_tokens ? i->max_tokens : 20;
        ds_gen_request q = ds_gen_request_of(i, &b, &room);
        assert_int_equal(q.prompt_logprobs, cases[k].prompt);
        assert_int_equal(q.n_prompt_top, cases[k].n_prompt_top);
        assert_int_equal(q.max_tokens, cases[k].max_tokens);
        ds_request_destroy(r);
    }
}

/* The model's ids and the client's in one list; more than a generator takes isn't cut silently. */
static void stop_ids_and_token_rules(void **state)
{
    ds_token_seq bad = { ends, 1 };
    int32_t many[20];
    ds_gen_beside b = beside();
    ds_request *r;
    const ds_request_info_data *i = parsed(&r, DS_PROTO_COMPLETIONS,
                                           "{\"prompt\":\"a\",\"stop_token_ids\":[4,5],\"allowed_token_ids\":[6,7,8],\"bad_words\":[\"x\"],"
                                           "\"include_stop_str_in_output\":true}");
    ds_request_info_data more = *i;
    ds_token own[48] = { 0 };
    ds_gen_request q;

    (void)state;
    b.bad = &bad;
    b.n_bad = 1;
    q = ds_gen_request_of(i, &b, &room);
    assert_true(q.n_stop_ids == 3 && q.stop_ids[0] == 9 && q.stop_ids[1] == 4 && q.stop_ids[2] == 5);
    assert_true(q.n_allowed == 3 && q.allowed[2] == 8 && q.report_stop_id && q.n_bad == 1 && q.bad == &bad);
    more.ignore_eos = true;
    q = ds_gen_request_of(&more, &b, &room);
    assert_true(q.n_stop_ids == 2 && q.stop_ids[0] == 4);
    more = *i;
    more.stop_ids = own;
    more.n_stop_ids = 48;
    b.stop_ids = memset(many, 0, sizeof many);
    b.n_stop_ids = 20;
    assert_int_equal(ds_gen_request_of(&more, &b, &room).n_stop_ids, 68);
    ds_request_destroy(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_missing_comes_from_beside),  cmocka_unit_test(what_the_client_gave_wins),
        cmocka_unit_test(every_sample_has_a_seed_of_its_own), cmocka_unit_test(log_probabilities_of_a_prompt),
        cmocka_unit_test(stop_ids_and_token_rules),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
