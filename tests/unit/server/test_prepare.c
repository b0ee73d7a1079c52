/* Preparation of a call, on its own: from a body to prompt ids or a refusal. */
#include "test.h"

#include "base/clock.h"
#include "fault.h"
#include "recipe/seal.h"
#include "server/server_internal.h"

#define TEXT "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
#define PNG "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAsAAAAHAQAAAAD2FYrwAAAAEUlEQVR42mMIdWBYtYABlQQAQVsGM/BjDWgAAAAASUVORK5CYII="
#define PICTURE "{\"type\":\"image_url\",\"image_url\":{\"url\":\"" PNG "\"}}"

enum { CONTEXT = 64, HIDDEN = 3 };

static ds_server s;
static ds_kit kit;
static uint32_t embedded; /* tokens that the made-up vision tower was asked for */

static ds_rc embed(void *ctx, const float *patches, uint32_t n_h, uint32_t n_w, float *out, ds_err *err)
{
    (void)ctx;
    (void)out;
    if (patches[0] != patches[0])
        return ds_fail(err, DS_E_FORMAT, "not a number");
    embedded += n_h * n_w;
    return DS_OK;
}

/* The call, prepared; done() frees it. */
static ds_call *prepare(ds_call_kind kind, ds_proto proto, const char *body)
{
    ds_call *c = calloc(1, sizeof *c);

    assert_non_null(c);
    c->s = &s;
    c->kind = kind;
    c->proto = proto;
    strcpy(c->id, "chatcmpl-1");
    c->start_us = ds_now_us();
    assert_true(ds_buf_put(&c->body, body, strlen(body)));
    s.n_calls++;
    ds_call_prepare(c, &kit);
    return c;
}

static void done(ds_call *c)
{
    ds_call_free(c);
    assert_int_equal(s.n_calls, 0);
}

static void refused(ds_proto proto, const char *body, int status, const char *param, const char *part)
{
    ds_call *c = prepare(DS_CALL_GENERATE, proto, body);

    if (c->rc == DS_OK || c->refusal.status != status || strcmp(c->refusal.param, param) != 0 || !strstr(c->refusal.message, part))
        fail_msg("%s: %d, %d %s: %s", body, c->rc, c->refusal.status, c->refusal.param, c->refusal.message);
    assert_null(c->stream);
    done(c);
}

static void a_chat(void **state)
{
    ds_call *c = prepare(DS_CALL_GENERATE, DS_PROTO_CHAT, "{\"model\":\"m\",\"max_tokens\":9,\"n\":3," TEXT "}");

    (void)state;
    assert_int_equal(c->rc, DS_OK);
    assert_true(c->n_prompts == 1 && c->n_samples == 3 && c->unfinished == 3 && c->stream && c->choices);
    assert_true(c->n_prompt_tokens == c->prompts[0].ids.n && c->prompts[0].ids.n > 2 && c->prompts[0].max_tokens == 9);
    assert_int_equal(c->prompts[0].ids.p[0], ds_tokenizer_control(s.model.tokenizer, "<｜begin▁of▁sentence｜>"));
    assert_null(c->prompts[0].constrained);
    assert_null(c->body.p); /* the request has what it needs of it */
    done(c);
}

static void what_this_server_refuses(void **state)
{
    static const struct {
        const char *body;
        int status;
        const char *param, *part;
    } cases[] = {
        { "{", 400, "", "JSON" },
        { "{\"model\":\"other\"," TEXT "}", 404, "model", "other does not exist" },
        { "{\"model\":\"m\",\"max_tokens\":3,\"min_tokens\":4," TEXT "}", 400, "min_tokens", "more than the output limit" },
        { "{\"model\":\"m\",\"logit_bias\":{\"99999999\":1}," TEXT "}", 400, "logit_bias", "no token 99999999" },
        { "{\"model\":\"m\",\"stop_token_ids\":[1,2147483647]," TEXT "}", 400, "stop_token_ids", "no token 2147483647" },
        { "{\"model\":\"m\",\"allowed_token_ids\":[8999999]," TEXT "}", 400, "allowed_token_ids", "no token" },
        { "{\"model\":\"m\",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"a\",\"schema\":{\"type\":5}}}," TEXT
          "}",
          400, "response_format.json_schema.schema", "type name" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refused(DS_PROTO_CHAT, cases[i].body, cases[i].status, cases[i].param, cases[i].part);
    s.model.vision.embed = NULL;
    refused(DS_PROTO_CHAT, "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":[" PICTURE "]}]}", 400,
            "messages[0].content[0].image_url.url", "takes no images");
    s.model.vision.embed = embed;
}

static void prompts_of_ids(void **state)
{
    ds_call *c = prepare(DS_CALL_GENERATE, DS_PROTO_COMPLETIONS, "{\"model\":\"m\",\"max_tokens\":2,\"prompt\":[[5,6,7],[8]]}");

    (void)state;
    assert_int_equal(c->rc, DS_OK);
    assert_true(c->n_prompts == 2 && c->n_prompt_tokens == 4 && c->unfinished == 2);
    assert_true(c->prompts[0].ids.n == 3 && c->prompts[0].ids.p[2] == 7 && c->prompts[1].ids.p[0] == 8);
    done(c);
    refused(DS_PROTO_COMPLETIONS, "{\"model\":\"m\",\"prompt\":[5,8000000]}", 400, "prompt", "no token 8000000");
    refused(DS_PROTO_COMPLETIONS, "{\"model\":\"m\",\"prompt\":[[]]}", 400, "prompt[0]", "empty");
    refused(DS_PROTO_COMPLETIONS, "{\"model\":\"m\",\"prompt\":[]}", 400, "prompt", "empty");
}

/* A prompt of n ids, with more members. */
static const char *long_prompt(uint32_t n, const char *more)
{
    static char body[4096];
    int at = snprintf(body, sizeof body, "{\"model\":\"m\",\"max_tokens\":4%s,\"prompt\":[", more);

    for (uint32_t i = 0; i < n; i++)
        at += snprintf(body + at, sizeof body - (size_t)at, i ? ",%u" : "%u", 100 + i);
    strcpy(body + at, "]}");
    return body;
}

static void what_is_too_long(void **state)
{
    ds_call *c;

    (void)state;
    c = prepare(DS_CALL_GENERATE, DS_PROTO_COMPLETIONS, long_prompt(CONTEXT - 1, ""));
    assert_true(c->rc == DS_OK && c->prompts[0].max_tokens == 1); /* what the context leaves */
    done(c);
    c = prepare(DS_CALL_GENERATE, DS_PROTO_COMPLETIONS, long_prompt(CONTEXT, ""));
    assert_true(c->rc == DS_E_FORMAT && c->refusal.status == 400 && strcmp(c->refusal.code, "context_length_exceeded") == 0);
    done(c);
    c = prepare(DS_CALL_COUNT, DS_PROTO_COMPLETIONS, long_prompt(CONTEXT + 9, "")); /* counting has no limit, and no answer */
    assert_true(c->rc == DS_OK && c->n_prompt_tokens == CONTEXT + 9 && !c->stream);
    done(c);
    c = prepare(DS_CALL_GENERATE, DS_PROTO_COMPLETIONS, long_prompt(CONTEXT + 9, ",\"truncate_prompt_tokens\":10"));
    assert_true(c->rc == DS_OK && c->prompts[0].ids.n == 10 && c->prompts[0].ids.p[9] == 100 + CONTEXT + 8 && c->n_prompt_tokens == 10);
    done(c);
    c = prepare(DS_CALL_GENERATE, DS_PROTO_COMPLETIONS, long_prompt(CONTEXT + 9, ",\"truncate_prompt_tokens\":-1"));
    assert_true(c->rc == DS_OK && c->prompts[0].ids.n == CONTEXT - 1);
    done(c);
}

/* Responses with truncation: the oldest turns go until it fits; without, it is refused. */
static void the_oldest_turns_go(void **state)
{
    char body[8192];
    ds_call *c;

    (void)state;
    for (int cut = 0; cut < 2; cut++) {
        int at =
            snprintf(body, sizeof body, "{\"model\":\"m\",\"max_output_tokens\":4%s,\"input\":[", cut ? ",\"truncation\":\"auto\"" : "");
        for (int i = 0; i < 12; i++)
            at += snprintf(body + at, sizeof body - (size_t)at, "%s{\"role\":\"%s\",\"content\":\"turn number %d of them all\"}",
                           i ? "," : "", i % 2 ? "assistant" : "user", i);
        snprintf(body + at, sizeof body - (size_t)at, ",{\"role\":\"user\",\"content\":\"last\"}]}");
        c = prepare(DS_CALL_GENERATE, DS_PROTO_RESPONSES, body);
        assert_int_equal(c->rc, cut ? DS_OK : DS_E_FORMAT);
        if (cut)
            assert_true(c->prompts[0].ids.n > 4 && c->prompts[0].ids.n < CONTEXT && c->n_prompt_tokens == c->prompts[0].ids.n);
        done(c);
    }
}

/* Two pictures: each stands where its positions are, and went through the tower once. */
static void pictures(void **state)
{
    const char *body = "{\"model\":\"m\",\"max_tokens\":2,\"messages\":[{\"role\":\"user\",\"content\":[" PICTURE
                       ",{\"type\":\"text\",\"text\":\"or\"}," PICTURE "]}]}";
    ds_call *c;
    size_t at = 0;

    (void)state;
    embedded = 0;
    c = prepare(DS_CALL_GENERATE, DS_PROTO_CHAT, body);
    if (c->rc != DS_OK)
        fail_msg("%s", c->refusal.message);
    assert_true(c->n_pictures == 2 && c->images && embedded > 0);
    for (uint32_t i = 0; i < 2; i++) {
        const ds_gen_image *g = &c->images[i];
        assert_true(g->n > 2 && g->embedding && g->pos >= at && g->pos + g->n <= c->prompts[0].ids.n);
        for (uint32_t k = 0; k < g->n; k++)
            assert_int_equal(c->prompts[0].ids.p[g->pos + k], s.model.vision.token_id);
        assert_int_not_equal(c->prompts[0].ids.p[g->pos + g->n], s.model.vision.token_id);
        at = g->pos + g->n;
    }
    assert_memory_equal(c->images[0].digest, c->images[1].digest, sizeof c->images[0].digest);
    done(c);
    embedded = 0;
    c = prepare(DS_CALL_COUNT, DS_PROTO_CHAT, body); /* counted without looking at them */
    assert_true(c->rc == DS_OK && embedded == 0 && c->n_prompt_tokens > 4);
    done(c);
}

static void constraints(void **state)
{
    ds_call *c = prepare(DS_CALL_GENERATE, DS_PROTO_COMPLETIONS,
                         "{\"model\":\"m\",\"max_tokens\":2,\"prompt\":[\"a\",\"b\"],\"guided_regex\":\"[ab]+\"}");

    (void)state;
    assert_int_equal(c->rc, DS_OK);
    assert_true(c->prompts[0].constrained && c->prompts[1].constrained && c->prompts[0].constrained != c->prompts[1].constrained);
    done(c);
    assert_int_equal(ds_constrain_stat(s.constrain).in_use, 0);
    s.recipe.no_constraints = true;
    refused(DS_PROTO_CHAT, "{\"model\":\"m\",\"guided_regex\":\"[ab]+\"," TEXT "}", 400, "guided_regex", "");
    s.recipe.no_constraints = false;
}

/* Whatever allocation fails, the client hears of it, and nothing is left. */
static ds_rc attempt(void *ctx, ds_err *err)
{
    ds_call *c = calloc(1, sizeof *c);
    ds_rc rc;

    if (!c)
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    c->s = &s;
    c->kind = DS_CALL_GENERATE;
    c->proto = DS_PROTO_CHAT;
    s.n_calls++;
    if (!ds_buf_put(&c->body, ctx, strlen(ctx))) {
        done(c);
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    }
    ds_call_prepare(c, &kit);
    rc = c->rc;
    assert_int_equal(c->refusal.status, rc == DS_OK ? 0 : 503);
    if (rc != DS_OK)
        ds_fail(err, rc, "%s", c->refusal.message);
    done(c);
    return rc;
}

static void memory_that_fails(void **state)
{
    (void)state;
    fault_every_allocation(attempt, (void *)"{\"model\":\"m\",\"max_tokens\":9,\"n\":2,\"bad_words\":[\"no\"],\"stop\":[\"x\"]," TEXT "}");
}

static int set_up(void **state)
{
    static const char *const names[] = { "m" };
    static const uint8_t key[1][DS_SEAL_KEY_BYTES] = { { 7 } };
    static const ds_token stop = 1;
    ds_tokenizer *t;
    ds_err err;

    (void)state;
    s.o.names = names;
    s.o.n_names = 1;
    s.o.strict_model = true;
    ds_recipe_opts_init(&s.recipe);
    s.recipe.own_decoder = true;
    s.recipe.max_context_tokens = s.model.max_context = CONTEXT;
    if (ds_tokenizer_open(&t, DS_TEST_ROOT "/models/demo/tokenizer.json", &err) != DS_OK)
        return 1;
    s.model.tokenizer = t;
    s.model.vision = (ds_server_vision){ .rule = { .patch = 14, .merge = 3, .max_tokens = 16 },
                                         .token_id = ds_tokenizer_control(t, s.recipe.image_token),
                                         .hidden = HIDDEN,
                                         .embed = embed };
    return ds_seal_create(&s.seal, key, 1, &err) != DS_OK || ds_store_open(&s.store, NULL, 60, 1 << 20, &err) != DS_OK ||
           ds_constrain_create(&s.constrain, t, &stop, 1, NULL, &err) != DS_OK || ds_encoder_create(&kit.encoder, t, NULL, &err) != DS_OK;
}

static int tear_down(void **state)
{
    (void)state;
    ds_encoder_destroy(kit.encoder);
    ds_constrain_destroy(s.constrain);
    ds_store_close(s.store);
    ds_seal_destroy(s.seal);
    ds_tokenizer_destroy((ds_tokenizer *)s.model.tokenizer);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_chat),           cmocka_unit_test(what_this_server_refuses), cmocka_unit_test(prompts_of_ids),
        cmocka_unit_test(what_is_too_long), cmocka_unit_test(the_oldest_turns_go),      cmocka_unit_test(pictures),
        cmocka_unit_test(constraints),      cmocka_unit_test(memory_that_fails),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
