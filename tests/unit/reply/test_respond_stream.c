/* What the streams of all protocols share: token ids, log-probabilities, encrypted reasoning, failures, framing,
 * memory. */
#include "fault.h"
#include "respond_help.h"

#include "recipe/seal.h"

#define SMALL DS_TEST_ROOT "/tests/golden/tokenizer/small.json"
enum { BOS = 501, EOS = 502, THINK_END = 507, HOLDER = 509 };

static ds_tokenizer *tok;

static int open_small(void **state)
{
    ds_err err;

    (void)state;
    return ds_tokenizer_open(&tok, SMALL, &err) == DS_OK ? 0 : 1;
}

static int close_small(void **state)
{
    (void)state;
    ds_tokenizer_destroy(tok);
    return 0;
}

/* Ids of text bytes, one a byte: the tokens of single bytes. */
static uint32_t byte_id(unsigned char c)
{
    for (uint32_t id = 0; id < ds_tokenizer_size(tok); id++) {
        size_t n;
        const char *b = ds_tokenizer_bytes(tok, id, &n);
        if (n == 1 && (unsigned char)b[0] == c)
            return id;
    }
    fail();
    return 0;
}

static void push_text(ds_stream *s, const char *text, bool lp)
{
    ds_err err;

    for (; *text; text++) {
        const ds_top_logprob top[] = { { byte_id('a'), -0.25f }, { byte_id('b'), -20000.0f }, { byte_id('c'), -1.0f } };
        const ds_token_logprob p = { .logprob = -0.25f, .n_top = 3, .top = top };
        assert_ok(ds_stream_token(s, 0, byte_id((unsigned char)*text), lp ? &p : NULL, &err));
    }
}

static void ids(void **state)
{
    ds_request *r = make_request(DS_PROTO_CHAT, "'messages':[{'role':'user','content':'x'}],'stream':true", NULL);
    ds_buf log = { 0 };
    ds_stream *s;
    ds_err err;

    (void)state;
    assert_ok(ds_stream_create(&s, r, &(ds_stream_opts){ .id = "R", .tokenizer = tok, .sink = log_event, .ctx = &log }, &err));
    assert_ok(ds_stream_ready(s, 5, 9, "fp", &err)); /* cached is at most the prompt */
    assert_ok(ds_stream_token(s, 0, BOS, NULL, &err));
    push_text(s, "t", false);
    assert_ok(ds_stream_token(s, 0, HOLDER, NULL, &err));
    assert_ok(ds_stream_token(s, 0, THINK_END, NULL, &err));
    push_text(s, "\xf0\x9f\xa6", false); /* three of four bytes: nothing comes out */
    assert_null(strstr(ds_buf_str(&log), "\"content\":\"\xf0"));
    push_text(s, "\x80!", false);
    assert_ok(ds_stream_token(s, 0, 1u << 30, NULL, &err)); /* no such id */
    assert_ok(ds_stream_token(s, 0, EOS, NULL, &err));
    assert_ok(ds_stream_finish(s, 0, DS_END_STOP, &err));
    expect("ids", ds_buf_str(&log),
           "'system_fingerprint':'fp'\n'reasoning_content':'t'\n'content':'\xf0\x9f\xa6\x80'\n'content':'!'\n'usage':{'prompt_tokens':5,'"
           "completion_tokens':11,'total_tokens':16,"
           "'prompt_tokens_details':{'cached_tokens':5},'completion_tokens_details':{'reasoning_tokens':4}\n!place\n!sentence");
    assert_string_equal(ds_stream_finish_reason(s, 0), "stop");
    ds_stream_destroy(s);
    ds_buf_clear(&log);
    assert_ok(ds_stream_create(&s, r, &(ds_stream_opts){ .id = "R", .sink = log_event, .ctx = &log }, &err));
    assert_refused(ds_stream_token(s, 0, 1, NULL, &err), DS_E_ARG, "tokenizer");
    assert_refused(ds_stream_text(s, 1, "x", 1, 1, &err), DS_E_ARG, "choice 1 of 1");
    assert_null(ds_stream_finish_reason(s, 0));
    ds_stream_destroy(s);
    ds_buf_free(&log);
    ds_request_destroy(r);
}

#define ENTRY(t, b)                                \
    "{'token':'" t "','logprob':-0.25,'bytes':[" b \
    "],'top_logprobs':[{'token':'a','logprob':-0.25,'bytes':[97]},{'token':'b','logprob':-9999.0,'bytes':[98]}]}"

static void run_logprobs(ds_proto proto, const char *request, const char *events, const char *body)
{
    ds_request *r = make_request(proto, request, NULL);
    ds_buf log = { 0 };
    ds_stream *s;
    ds_err err;
    const char *json;
    size_t n;

    assert_ok(ds_stream_create(&s, r, &(ds_stream_opts){ .id = "R", .tokenizer = tok, .sink = log_event, .ctx = &log }, &err));
    push_text(s,
              proto == DS_PROTO_COMPLETIONS ? "o\xc3\xa9"
                                              "END"
                                            : "t</think>\n\no\xc3\xa9"
                                              "END",
              true);
    assert_true(ds_stream_done(s, 0));
    assert_ok(ds_stream_finish(s, 0, DS_END_STOP, &err));
    assert_ok(ds_stream_body(s, &json, &n, &err));
    expect("events", ds_buf_str(&log), events);
    expect("body", json, body);
    ds_stream_destroy(s);
    ds_buf_free(&log);
    ds_request_destroy(r);
}

static void logprobs(void **state)
{
    (void)state;
    /* markup and what a stop sequence cut have no entries; half a character has its bytes, and the text U+FFFD */
    run_logprobs(
        DS_PROTO_CHAT, "'messages':[{'role':'user','content':'x'}],'stream':true,'logprobs':true,'top_logprobs':2,'stop':'END'",
        "'reasoning_content':'t'},'logprobs':{'reasoning_content':[" ENTRY(
            "t", "116") "]}\n'content':'o','reasoning_content':null},'"
                        "logprobs':{'content':[" ENTRY("o", "111") "]}\n"
                                                                   "'content':'\xc3\xa9','reasoning_content'"
                                                                   ":null},'logprobs':{'content':[" ENTRY("\xef\xbf\xbd", "195") "," ENTRY(
                                                                       "\xef\xbf\xbd", "169") "]}\n'"
                                                                                              "logprobs':"
                                                                                              "null,'"
                                                                                              "finish_"
                                                                                              "reason':'"
                                                                                              "stop'",
        "'logprobs':{'content':[" ENTRY("o", "111") "," ENTRY("\xef\xbf\xbd", "195") "," ENTRY(
            "\xef\xbf\xbd", "169") "],'reasoning_content':[" ENTRY("t", "116") "]},'finish_reason'");
    run_logprobs(DS_PROTO_RESPONSES, "'input':'x','top_logprobs':2,'include':['message.output_text.logprobs'],'stop':'END'",
                 "'delta':'o','logprobs':[" ENTRY("o", "111") "]}\n'response.output_text.done'\n'text':'o\xc3\xa9','logprobs':[" ENTRY(
                     "o", "111") ",",
                 "'logprobs':[" ENTRY("o", "111") "," ENTRY("\xef\xbf\xbd", "195") "," ENTRY("\xef\xbf\xbd", "169") "],'text':'o\xc3\xa9'");
    run_logprobs(DS_PROTO_COMPLETIONS, "'prompt':'p','stream':true,'logprobs':2,'stop':'END'",
                 "{'text':'o','index':0,'logprobs':{'tokens':['o'],'token_logprobs':[-0.25],'top_logprobs':[{'a':-0.25,'b':-9999.0,'o':-0."
                 "25}],'text_"
                 "offset':[0]}\n'text':'\xc3\xa9'\n"
                 "'logprobs':{'tokens':['bytes:\\\\xc3','bytes:\\\\xa9']",
                 "'logprobs':{'tokens':['o','bytes:\\\\xc3','bytes:\\\\xa9'],'token_logprobs':[-0.25,-0.25,-0.25],'top_logprobs':[{'a'\n'"
                 "text_offset':[0,1,1]}");
}

static void sealed(void **state)
{
    const uint8_t keys[1][DS_SEAL_KEY_BYTES] = { { 1 } };
    ds_seal *seal;
    ds_err err;

    (void)state;
    assert_ok(ds_seal_create(&seal, keys, 1, &err));
    for (int messages = 0; messages < 2; messages++) {
        ds_request *r = make_request(messages ? DS_PROTO_MESSAGES : DS_PROTO_RESPONSES,
                                     messages ? "'max_tokens':9,'messages':[{'role':'user','content':'x'}]"
                                              : "'input':'x','include':['reasoning.encrypted_content']",
                                     NULL);
        ds_buf log = { 0 };
        ds_stream *s;
        const char *json, *mark = messages ? "\"signature\":\"" : "\"encrypted_content\":\"";
        char text[64];
        size_t n;
        assert_ok(ds_stream_create(&s, r, &(ds_stream_opts){ .id = "R", .seal = seal, .sink = log_event, .ctx = &log }, &err));
        feed(s, "secret</think>x", DS_END_STOP);
        assert_ok(ds_stream_body(s, &json, &n, &err));
        const char *blob = strstr(json, mark);
        assert_non_null(blob);
        blob += strlen(mark);
        size_t blob_n = strcspn(blob, "\"");
        assert_ok(ds_seal_open(seal, blob, blob_n, text, sizeof text, &n, &err));
        assert_int_equal(n, 6);
        assert_memory_equal(text, "secret", 6);
        char *again = strndup(blob, blob_n); /* the events carry the same one */
        assert_non_null(strstr(ds_buf_str(&log), again));
        free(again);
        ds_stream_destroy(s);
        ds_buf_free(&log);
        ds_request_destroy(r);
    }
    ds_seal_destroy(seal);
}

static void failures(void **state)
{
    static const struct {
        ds_proto proto;
        const char *request, *event;
    } cases[] = {
        { DS_PROTO_CHAT, "'messages':[{'role':'user','content':'x'}],'stream':true", "{'error':{'message':'too busy'" },
        { DS_PROTO_RESPONSES, "'input':'x'",
          "response.failed "
          "{'type':'response.failed'\n'status':'failed','completed_at':null,'error':{'code':'server_is_overloaded','message':'too "
          "busy'}\n'status':'incomplete'" },
        { DS_PROTO_MESSAGES, "'max_tokens':9,'messages':[{'role':'user','content':'x'}]", "error {'type':'error','error':{'type':'" },
        { DS_PROTO_COMPLETIONS, "'prompt':'x','stream':true", "{'error':{'message':'too busy'" },
    };
    ds_err err;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ds_request *r = make_request(cases[i].proto, cases[i].request, NULL);
        ds_buf log = { 0 };
        ds_api_error e = { .status = 503, .type = "overloaded", .code = "server_is_overloaded", .message = "too busy" };
        ds_stream *s;
        assert_ok(ds_stream_create(&s, r, &(ds_stream_opts){ .id = "R", .sink = log_event, .ctx = &log }, &err));
        assert_ok(ds_stream_text(s, 0, "x", 1, 1, &err));
        assert_ok(ds_stream_fail(s, &e, &err));
        expect("fail", ds_buf_str(&log), cases[i].event);
        assert_refused(ds_stream_text(s, 0, "x", 1, 1, &err), DS_E_ARG, "finished");
        assert_refused(ds_stream_fail(s, &e, &err), DS_E_ARG, "ended");
        ds_stream_destroy(s);
        ds_buf_free(&log);
        ds_request_destroy(r);
    }
}

static void items(void **state)
{
    ds_request *r = make_request(DS_PROTO_RESPONSES, "'input':'x'", NULL);
    ds_stream *s;
    ds_err err;
    const char *json;
    size_t n;

    (void)state;
    assert_ok(ds_stream_create(&s, r, &(ds_stream_opts){ .id = "R" }, &err));
    feed(s, "t</think>x", DS_END_STOP);
    assert_ok(ds_stream_items(s, &json, &n, &err));
    expect("items", json, "{'type':'reasoning'\n},{'type':'message'");
    assert_true(json[n - 1] == '}');
    ds_stream_destroy(s);
    ds_request_destroy(r);
}

static void framing(void **state)
{
    char b[64];

    (void)state;
    assert_int_equal(ds_sse_frame(b, sizeof b, NULL, "{}", 2), 10);
    assert_string_equal(b, "data: {}\n\n");
    assert_int_equal(ds_sse_frame(b, sizeof b, "ping", "{}", 2), 22);
    assert_string_equal(b, "event: ping\ndata: {}\n\n");
    assert_int_equal(ds_sse_frame(b, 8, "ping", "{}", 2), 22);
    assert_string_equal(b, "event: ");
    assert_int_equal(ds_sse_frame(NULL, 0, "ping", "{}", 2), 22);
    assert_string_equal(ds_sse_end(DS_PROTO_CHAT), "data: [DONE]\n\n");
    assert_string_equal(ds_sse_end(DS_PROTO_MESSAGES), "");
}

static void ignore_event(void *ctx, const char *event, const char *data, size_t n)
{
    (void)ctx, (void)event, (void)data, (void)n;
}

/* The whole life of a stream; the first code that isn't DS_OK is what counts. */
static ds_rc attempt(void *ctx, ds_err *err)
{
    ds_stream *s;
    const char *json;
    size_t n;
    ds_rc rc =
        ds_stream_create(&s, ctx, &(ds_stream_opts){ .id = "R", .tokenizer = tok, .sink = ignore_event, .max_value_bytes = 4096 }, err);

    if (rc != DS_OK)
        return rc;
    rc = ds_stream_ready(s, 1, 0, "fp", err);
    for (const char *t = "t</think>x" CALLS(CALL("f", RAW("a", "[1]"))); *t && rc == DS_OK; t++)
        rc = ds_stream_text(s, 0, t, 1, 1, err);
    if (rc == DS_OK)
        rc = ds_stream_finish(s, 0, DS_END_STOP, err);
    if (rc == DS_OK)
        rc = ds_stream_body(s, &json, &n, err);
    ds_stream_destroy(s);
    return rc;
}

static void memory(void **state)
{
    static const struct {
        ds_proto proto;
        const char *request;
    } cases[] = {
        { DS_PROTO_CHAT, "'messages':[{'role':'user','content':'x'}],'stream':true,'tools':[{'type':'function','function':{'name':'f','"
                         "parameters':{'type':'object'}}}]" },
        { DS_PROTO_RESPONSES, "'input':'x','tools':[{'type':'function','name':'f','parameters':{'type':'object'}}]" },
        { DS_PROTO_MESSAGES,
          "'max_tokens':9,'messages':[{'role':'user','content':'x'}],'tools':[{'name':'f','input_schema':{'type':'object'}}]" },
        { DS_PROTO_COMPLETIONS, "'prompt':'x','echo':true" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ds_request *r = make_request(cases[i].proto, cases[i].request, cases[i].proto == DS_PROTO_CHAT ? "wrapper_repair=true" : NULL);
        assert_true(fault_every_allocation(attempt, r) > 3);
        ds_request_destroy(r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids),   cmocka_unit_test(logprobs), cmocka_unit_test(sealed), cmocka_unit_test(failures),
        cmocka_unit_test(items), cmocka_unit_test(framing),  cmocka_unit_test(memory),
    };
    return cmocka_run_group_tests(tests, open_small, close_small);
}
