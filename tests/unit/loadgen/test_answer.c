/* Answers whole, cut at every byte, and byte by byte: always the same. */
#include "test.h"

#include "loadgen/answer.h"

typedef struct {
    ds_answer a;
    ds_buf text;
    int outputs;
} reader;

static void on_output(void *ctx, const char *text, size_t n)
{
    reader *r = ctx;

    r->outputs++;
    ds_buf_put(&r->text, text, n);
}

/* Feeds bytes[0..n) in two pieces cut at `cut` (or byte by byte for SIZE_MAX), then the end of the connection if the
 * answer isn't done. */
static ds_answer_state feed(reader *r, const char *bytes, size_t n, size_t cut, size_t *taken)
{
    ds_answer_state state = DS_ANSWER_MORE;
    size_t at = 0, used;

    *r = (reader){ .a = { .output = on_output, .ctx = r } };
    while (at < n && state == DS_ANSWER_MORE) {
        size_t piece = cut == SIZE_MAX ? 1 : at < cut ? cut - at : n - at;
        char *copy = malloc(piece); /* an over-read is seen */
        memcpy(copy, bytes + at, piece);
        state = ds_answer_feed(&r->a, copy, piece, &used);
        free(copy);
        at += used;
    }
    if (state == DS_ANSWER_MORE)
        state = ds_answer_eof(&r->a);
    *taken = at;
    return state;
}

static void fini(reader *r)
{
    ds_answer_fini(&r->a);
    ds_buf_free(&r->text);
}

#define STREAM "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
#define DELTA(x) "data: {\"choices\":[{\"index\":0,\"delta\":" x ",\"logprobs\":null,\"finish_reason\":null}]}\n\n"
#define LAST                                                                                                                             \
    "data: "                                                                                                                             \
    "{\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\"},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":20,\"completion_" \
    "tokens\":7,"                                                                                                                        \
    "\"prompt_tokens_details\":{\"cached_tokens\":12}}}\n\n"
#define BODY                                                                      \
    DELTA("{\"role\":\"assistant\",\"content\":null,\"reasoning_content\":\"\"}") \
    ": keep-alive\n\n" DELTA("{\"content\":null,\"reasoning_content\":\"hm\"}")   \
        DELTA("{\"content\":\"a \\\"content\\\":\\\"x\\\\\",\"reasoning_content\":null}") LAST

static const struct {
    const char *bytes;
    ds_answer_state state;
    int status, outputs;
    bool stream, ended, failed, close;
    const char *text;
    uint64_t completion;
    const char *rest;
} cases[] = {
    { STREAM "\r\n" BODY "data: [DONE]\n\n", DS_ANSWER_DONE, 200, 2, true, true, false, true, "a \\\"content\\\":\\\"x\\\\", 7, "" },
    { STREAM "Transfer-Encoding: chunked\r\n\r\n5\r\ndata:\r\n1C;x=y\r\n {\"choices\":[{\"text\":\"abc\"}]\r\n3\r\n}\r\n\r\n0\r\n\r\nrest",
      DS_ANSWER_DONE, 200, 1, true, false, false, false, "abc", 0, "rest" },
    { STREAM "Transfer-Encoding: chunked\r\n\r\n18\r\ndata: {\"error\":{\"m\":1}}\n\r\n0\r\nTrailer: x\r\n\r\n", DS_ANSWER_DONE, 200, 0,
      true, false, true, false, "", 0, "" },
    { "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length:99\r\n\r\n"
      "{\"choices\":[{\"message\":{\"content\": \"hi\"},\"finish_reason\":\"stop\"}],\"usage\":{\"completion_tokens\": 3}}",
      DS_ANSWER_DONE, 200, 1, false, true, false, false, "hi", 3, "" },
    { "HTTP/1.1 429 Too Many\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}", DS_ANSWER_DONE, 429, 0, false, false, false, true, "", 0,
      "" },
    { "HTTP/1.0 204\r\n\r\n", DS_ANSWER_DONE, 204, 0, false, false, false, true, "", 0, "" },
    { "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", DS_ANSWER_DONE, 200, 0, false, false, false, false, "", 0, "" },
    { "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc", DS_ANSWER_BAD, 200, 0, false, false, false, false, "", 0, "" }, /* cut off */
    { STREAM "Transfer-Encoding: chunked\r\n\r\n5\r\nabc", DS_ANSWER_BAD, 200, 0, true, false, false, false, "", 0, "" },
    { "HTTP/2 200\r\n\r\n", DS_ANSWER_BAD, 0, 0, false, false, false, false, "", 0, NULL },
    { "SSH-2.0-OpenSSH\r\n", DS_ANSWER_BAD, 0, 0, false, false, false, false, "", 0, NULL },
    { "HTTP/1.1 200 OK\r\nno colon\r\n\r\n", DS_ANSWER_BAD, 200, 0, false, false, false, false, "", 0, NULL },
    { "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx", DS_ANSWER_BAD, 200, 0, false, false, false, false, "", 0,
      NULL },
    { "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", DS_ANSWER_BAD, 200, 0, false, false, false, false, "",
      0, NULL },
    { "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", DS_ANSWER_BAD, 200, 0, false, false, false, false, "", 0, NULL },
    { "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n", DS_ANSWER_BAD, 200, 0, false, false, false, false, "", 0, NULL },
    { "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", DS_ANSWER_BAD, 200, 0, false, false, false, false, "", 0, NULL },
    { "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", DS_ANSWER_BAD, 200, 0, false, false, false, false, "", 0, NULL },
    { "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n", DS_ANSWER_BAD, 200, 0, false, false, false, false, "",
      0, NULL },
    { "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nxy\r\n", DS_ANSWER_BAD, 200, 0, false, false, false, false, "", 0, NULL },
};

static void answers_at_every_split(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t n = strlen(cases[i].bytes), taken;
        for (size_t cut = 0; cut <= n + 1; cut++) {
            reader r;
            ds_answer_state got = feed(&r, cases[i].bytes, n, cut > n ? SIZE_MAX : cut, &taken);
            if (got != cases[i].state)
                fail_msg("case %zu cut %zu: state %d", i, cut, got);
            assert_int_equal(r.a.status, cases[i].status);
            if (got == DS_ANSWER_DONE) {
                assert_int_equal(r.outputs, cases[i].outputs);
                assert_string_equal(ds_buf_str(&r.text), cases[i].text);
                assert_int_equal(r.a.stream, cases[i].stream);
                assert_int_equal(r.a.ended, cases[i].ended);
                assert_int_equal(r.a.failed, cases[i].failed);
                assert_int_equal(r.a.close, cases[i].close);
                assert_int_equal(r.a.completion, cases[i].completion);
                assert_string_equal(cases[i].bytes + taken, cases[i].rest);
            }
            fini(&r);
        }
    }
}

static void usage_is_read(void **state)
{
    static const char bytes[] = STREAM "\r\n" BODY;
    reader r;
    size_t taken;

    (void)state;
    assert_int_equal(feed(&r, bytes, sizeof bytes - 1, 0, &taken), DS_ANSWER_DONE);
    assert_true(r.a.has_usage);
    assert_int_equal(r.a.prompt, 20);
    assert_int_equal(r.a.cached, 12);
    fini(&r);
}

static void connection_is_used_again(void **state)
{
    static const char one[] = "HTTP/1.1 200 OK\r\nContent-Length: 22\r\n\r\n{\"choices\":[{\"text\":\"";
    reader r = { .a = { .output = on_output, .ctx = &r } };
    size_t used;

    (void)state;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(ds_answer_feed(&r.a, one, sizeof one - 1, &used), DS_ANSWER_MORE); /* half a body is left in it */
        ds_answer_begin(&r.a);
        assert_int_equal(ds_answer_feed(&r.a, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", 40, &used), DS_ANSWER_DONE);
        ds_answer_begin(&r.a);
    }
    fini(&r);
}

static void bounds(void **state)
{
    reader r = { .a = { .output = on_output, .ctx = &r } };
    char *line = malloc(100000);
    size_t used, total = 0;
    ds_answer_state s;

    (void)state;
    memset(line, 'x', 100000);
    assert_int_equal(ds_answer_feed(&r.a, "HTTP/1.1 200 OK\r\nX: ", 20, &used), DS_ANSWER_MORE);
    assert_int_equal(ds_answer_feed(&r.a, line, 100000, &used), DS_ANSWER_BAD); /* a head without end */
    ds_answer_begin(&r.a);
    assert_int_equal(ds_answer_feed(&r.a, STREAM "\r\n", strlen(STREAM "\r\n"), &used), DS_ANSWER_MORE);
    do { /* a line without end */
        s = ds_answer_feed(&r.a, line, 100000, &used);
        total += 100000;
    } while (s == DS_ANSWER_MORE);
    assert_int_equal(s, DS_ANSWER_BAD);
    assert_true(total <= DS_ANSWER_LINE_MAX + 100000);
    free(line);
    fini(&r);
}

static void members(void **state)
{
    size_t n;
    uint64_t x = 0;

    (void)state;
#define S(json, name) ds_answer_string(json, strlen(json), name, &n)
    assert_null(S("{\"role\":\"content\",\"content\":null}", "content"));
    assert_memory_equal(S("{\"a\":[\"content\",\"content\"],\"content\" : \"q\\\"\"}", "content"), "q\\\"", 3);
    assert_int_equal(n, 3);
    assert_null(S("{\"content\":\"open", "content"));
    assert_null(S("{\"content\":\"open\\", "content"));
    assert_null(S("{\"content\"", "content"));
    assert_null(S("{\"content\":", "content"));
    assert_true(ds_answer_number("{\"n\": 17}", 9, "n", &x) && x == 17);
    assert_false(ds_answer_number("{\"n\":-1}", 8, "n", &x));
    assert_false(ds_answer_number("{\"n\":99999999999999999999}", 26, "n", &x));
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(answers_at_every_split), cmocka_unit_test(usage_is_read),
                                        cmocka_unit_test(connection_is_used_again), cmocka_unit_test(bounds), cmocka_unit_test(members) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
