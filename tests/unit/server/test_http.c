/* What goes on between a socket and a call: heads, bodies, several requests on a connection, streams to clients that
 * read slowly, stop sending, or leave. */
#include "served.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAX_HEAD = 2048, MAX_BODY = 64 << 10 };

static const served_fate three = { .starts = true, .tokens = 3, .reason = DS_ENDED_LENGTH }, open_end = { .starts = true, .open = true };

/* Reads up to the given text and a little more; what is left stays with the kernel. */
static const char *read_to(int fd, const char *part)
{
    static char got[1 << 16];
    size_t n = 0;

    do {
        struct pollfd p = { fd, POLLIN, 0 };
        assert_int_equal(poll(&p, 1, 10000), 1);
        ssize_t k = n < sizeof got - 1 ? read(fd, got + n, 1) : 0;
        if (k <= 0)
            fail_msg("%s doesn't come, but:\n%.*s", part, (int)n, got);
        n += (size_t)k;
        got[n] = '\0';
    } while (!strstr(got, part));
    return got;
}

static void post(int fd, const char *version, const char *more, const char *target, const char *body)
{
    char head[4096];

    snprintf(head, sizeof head, "POST %s %s\r\nHost: a\r\n%sContent-Length: %zu\r\n\r\n", target, version, more, strlen(body));
    served_send(fd, head);
    served_send(fd, body);
}

/* The body of a chunked response, put together; it must end with the last chunk and nothing behind it. */
static const char *unchunk(const char *answer)
{
    static char out[1 << 18];
    const char *p = strstr(answer, "\r\n\r\n");
    size_t at = 0, n;

    assert_non_null(p);
    for (p += 4;; p += n + 2) {
        char *end;
        n = strtoul(p, &end, 16);
        assert_true(end > p && strncmp(end, "\r\n", 2) == 0);
        p = end + 2;
        assert_true(strlen(p) >= n + 2 && strncmp(p + n, "\r\n", 2) == 0);
        memcpy(out + at, p, n);
        at += n;
        if (n == 0)
            break;
    }
    assert_string_equal(p, "\r\n");
    out[at] = '\0';
    return out;
}

/* ---- heads ---- */

static void ids_of_requests(void **state)
{
    static const struct {
        const char *head, *part, *not ;
    } cases[] = {
        { "x-request-id: my.own_ID-7\r\n", "x-request-id: my.own_ID-7\r\n", "req_" },
        { "x-request-id: not one\r\n", "x-request-id: req_", "not one" },
        { "x-request-id: \r\n", "x-request-id: req_", "x-request-id: \r" },
        { "traceparent: 00-0123456789abcdef0123456789abcdef-0123456789abcdef-01\r\n",
          "traceparent: 00-0123456789abcdef0123456789abcdef-0123456789abcdef-01\r\n", "zzz" },
        { "traceparent: 00-0123456789ABCDEF0123456789abcdef-0123456789abcdef-01\r\n", "x-request-id: req_", "traceparent" },
        { "traceparent: 00-00000000000000000000000000000000-0123456789abcdef-01\r\n", "x-request-id: req_", "traceparent" },
        { "traceparent: 01-0123456789abcdef0123456789abcdef-0123456789abcdef-01\r\n", "x-request-id: req_", "traceparent" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int fd = served_connect();
        dprintf(fd, "GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n%s\r\n", cases[i].head);
        const char *a = served_rest(fd, NULL);
        has(a, "HTTP/1.1 200");
        has(a, cases[i].part);
        lacks(a, cases[i].not );
    }
}

static void refused_heads(void **state)
{
    char long_head[MAX_HEAD + 64];
    int fd;

    (void)state;
    memset(long_head, 'a', sizeof long_head - 1);
    long_head[sizeof long_head - 1] = '\0';
    fd = served_connect();
    dprintf(fd, "GET /health HTTP/1.1\r\nHost: a\r\nx: %s\r\n\r\n", long_head);
    has(served_rest(fd, NULL), "HTTP/1.1 431");
    fd = served_connect();
    dprintf(fd, "GET /health?\xc3\xa4 HTTP/1.1\r\nHost: a\r\n\r\n");
    has(served_rest(fd, NULL), "must be escaped");
    fd = served_connect();
    dprintf(fd, "POST " CHAT " HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n");
    has(served_rest(fd, NULL), "HTTP/1.1 400");
    fd = served_connect(); /* refused by the library itself, in our words */
    dprintf(fd, "POST " CHAT " HTTP/1.1\r\nHost: a\r\nContent-Length: 4x\r\n\r\n");
    const char *a = served_rest(fd, NULL);
    has(a, "bad_request_framing");
    lacks(a, "<html>");
}

/* ---- bodies ---- */

static void bodies(void **state)
{
    char *large = malloc(MAX_BODY + 2);
    int fd;

    (void)state;
    memset(large, ' ', MAX_BODY + 1);
    large[MAX_BODY + 1] = '\0';
    served_set(three);
    fd = served_connect();
    dprintf(fd, "POST " CHAT " HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", MAX_BODY + 1); /* announced: at once */
    has(served_rest(fd, NULL), "HTTP/1.1 413");
    fd = served_connect();
    dprintf(fd, "POST " CHAT " HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n",
            MAX_BODY + 1, large);
    has(served_rest(fd, NULL), "HTTP/1.1 413");
    fd = served_connect(); /* in pieces, of a byte each */
    dprintf(fd, "POST " CHAT " HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n");
    for (const char *p = BODY "}"; *p; p++)
        dprintf(fd, "1\r\n%c\r\n", *p);
    dprintf(fd, "0\r\n\r\n");
    has(served_rest(fd, NULL), "\"completion_tokens\":3");
    fd = served_connect(); /* a refusal that keeps the connection waits for the body */
    post(fd, "HTTP/1.1", "", "/nowhere", "{\"a\":1}");
    has(read_to(fd, "no such endpoint"), "HTTP/1.1 404");
    close(fd);
    free(large);
}

static void several_on_a_connection(void **state)
{
    int fd = served_connect();

    (void)state;
    served_set(three);
    for (int i = 0; i < 3; i++) {
        post(fd, "HTTP/1.1", "", CHAT, BODY "}");
        has(read_to(fd, "total_tokens"), "HTTP/1.1 200");
    }
    post(fd, "HTTP/1.1", "", CHAT, BODY ",\"stream\":true}");
    has(read_to(fd, "0\r\n\r\n"), "[DONE]");
    for (int i = 0; i < 3; i++) /* without waiting for answers */
        dprintf(fd, "GET /health HTTP/1.1\r\nHost: a\r\n%s\r\n", i == 2 ? "Connection: close\r\n" : "");
    const char *a = served_rest(fd, NULL);
    for (int i = 0; i < 3; i++, a++)
        assert_non_null(a = strstr(a, "HTTP/1.1 200"));
}

/* ---- streams ---- */

static void framing_of_a_stream(void **state)
{
    int fd = served_connect();

    (void)state;
    served_set(three);
    post(fd, "HTTP/1.1", "Connection: close\r\n", CHAT, BODY ",\"stream\":true}");
    const char *a = unchunk(served_rest(fd, NULL));
    has(a, "\"finish_reason\":\"length\"");
    assert_string_equal(a + strlen(a) - 14, "data: [DONE]\n\n");
    fd = served_connect(); /* the older protocol has no chunks: its end is that of the connection */
    post(fd, "HTTP/1.0", "", CHAT, BODY ",\"stream\":true}");
    a = served_rest(fd, NULL);
    lacks(a, "chunked");
    a = strstr(a, "\r\n\r\n");
    assert_true(a && strncmp(a + 4, "data: {", 7) == 0);
    assert_string_equal(a + strlen(a) - 14, "data: [DONE]\n\n");
}

/* A client that leaves ends its request; one that only stops sending doesn't. */
static void clients_that_leave(void **state)
{
    uint32_t before = served_canceled();
    int fd = served_connect(), other = served_connect();

    (void)state;
    served_set(open_end);
    post(fd, "HTTP/1.1", "", CHAT, BODY ",\"stream\":true}");
    post(other, "HTTP/1.1", "", CHAT, BODY ",\"stream\":true}");
    served_until(served_live, 2);
    served_give(1);
    read_to(fd, "data: ");
    read_to(other, "data: ");
    shutdown(other, SHUT_WR);
    close(fd);
    served_until(served_live, 1);
    assert_int_equal(served_canceled(), before + 1);
    read_to(other, ": keep-alive"); /* is anybody there? */
    for (int i = 0; i < 20; i++) {
        served_give(1);
        read_to(other, "\"delta\"");
    }
    assert_int_equal(served_live(), 1);
    close(other);
    served_until(served_live, 0);
    fd = served_connect();
    post(fd, "HTTP/1.1", "", CHAT, BODY "}"); /* before it has an answer */
    served_until(served_live, 1);
    close(fd);
    served_until(served_live, 0);
    served_set(three);
    fd = served_connect();
    post(fd, "HTTP/1.1", "Connection: close\r\n", CHAT, BODY "}");
    shutdown(fd, SHUT_WR); /* its answer still comes */
    has(served_rest(fd, NULL), "\"completion_tokens\":3");
}

/* Who doesn't read is given up when its queue is full, and holds up nobody. */
static void a_client_that_does_not_read(void **state)
{
    int slow = served_connect(), fd;

    (void)state;
    served_set(open_end);
    post(slow, "HTTP/1.1", "", CHAT, BODY ",\"stream\":true}");
    served_until(served_live, 1);
    served_set(three);
    for (int i = 0; served_live(); i++) {
        assert_true(i < 5000);
        served_give(20);
        fd = served_connect();
        post(fd, "HTTP/1.1", "Connection: close\r\n", CHAT, BODY "}");
        has(served_rest(fd, NULL), "\"completion_tokens\":3");
    }
    lacks(served_rest(slow, NULL), "[DONE]");
}

static int set_up(void **state)
{
    (void)state;
    return served_up(&(ds_server_opts){ .max_head = MAX_HEAD, .max_body = MAX_BODY, .max_output_queue = 8 << 10 });
}

static int tear_down(void **state)
{
    (void)state;
    return served_down();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_of_requests),
        cmocka_unit_test(refused_heads),
        cmocka_unit_test(bodies),
        cmocka_unit_test(several_on_a_connection),
        cmocka_unit_test(framing_of_a_stream),
        cmocka_unit_test(clients_that_leave),
        cmocka_unit_test(a_client_that_does_not_read),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
