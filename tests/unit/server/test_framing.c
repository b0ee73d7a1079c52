#include "test.h"

#include "server/framing.h"

/* Takes a head apart as the HTTP library does, but for what the checks are for: names end at the first colon, values
 * keep their trailing white space. */
static const char *check(char *text, size_t n)
{
    ds_framing f;
    char *line = text, *end = memmem(text, n, "\r\n", 2), *method = text, *target, *version;

    *end = '\0';
    target = strchr(method, ' ');
    *target++ = '\0';
    version = strchr(target, ' ');
    *version++ = '\0';
    ds_framing_start(&f, method, strlen(target), version);
    for (line = end + 2; line[0] != '\r'; line = end + 2) {
        end = memmem(line, n - (size_t)(line - text), "\r\n", 2);
        *end = '\0';
        char *colon = strchr(line, ':'), *value = colon + 1 + strspn(colon + 1, " \t");
        ds_framing_header(&f, line, (size_t)(colon - line), value, strlen(value));
    }
    return ds_framing_end(&f, n);
}

#define START "POST /x HTTP/1.1\r\nHost: a\r\n"
static const struct {
    const char *head, *why; /* NULL: taken */
} cases[] = {
    { START "\r\n", NULL },
    { START "Content-Length: 2\r\n\r\n", NULL },
    { START "Content-Length: 2 \t\r\n\r\n", NULL },
    { START "Content-Length:2\r\nX:\r\nY: \t z\r\n\r\n", NULL },
    { START "Content-Length: 2\r\nContent-Length: 2\r\n\r\n", NULL },
    { START "Transfer-Encoding: Chunked\r\n\r\n", NULL },
    { "GET / HTTP/1.0\r\n\r\n", NULL },
    { "GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", "HTTP/1.0" },
    { "GET / HTTP/1.1\r\n\r\n", "Host" },
    { "GET / HTTP/2.0\r\nHost: a\r\n\r\n", "version" },
    { "G(T / HTTP/1.1\r\nHost: a\r\n\r\n", "method" },
    { START "Host: b\r\n\r\n", "more than one Host" },
    { START "Content-Length: 2\r\nContent-Length: 3\r\n\r\n", "differ" },
    { START "Content-Length: 99999999999999999999999\r\n\r\n", "no number" },
    { START "Content-Length: -1\r\n\r\n", "no number" },
    { START "Content-Length: \r\n\r\n", "empty" },
    { START "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n", "exclude" },
    { START "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", "more than one Transfer-Encoding" },
    { START "Transfer-Encoding: chunked, chunked\r\n\r\n", "only" },
    { START "X y: z\r\n\r\n", "name" },
    { START "X : z\r\n\r\n", "name" },
    { START ": z\r\n\r\n", "name" },
    { START "X: a\x01z\r\n\r\n", "control" },
};

static void heads(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *text = strdup(cases[i].head);
        const char *why = check(text, strlen(cases[i].head));
        if (!why != !cases[i].why || (why && !strstr(why, cases[i].why)))
            fail_msg("case %zu: %s", i, why ? why : "taken");
        free(text);
    }
}

/* What the library joined, skipped or cut is missing from the sum. */
static void missing_bytes(void **state)
{
    static const char host[] = "Host: a", far_value[] = "1";
    ds_framing f;

    (void)state;
    for (int more = -1; more <= 1; more++) {
        ds_framing_start(&f, "GET", 1, "HTTP/1.1");
        ds_framing_header(&f, host, 4, host + 6, 1);
        const char *why = ds_framing_end(&f, (size_t)(16 + 9 + 2 + more));
        assert_true(more == 0 ? why == NULL : why != NULL);
    }
    char *elsewhere = strdup("X-A2"); /* a folded line: the name was moved to join it */
    ds_framing_start(&f, "GET", 1, "HTTP/1.1");
    ds_framing_header(&f, elsewhere, 4, far_value, 1);
    assert_non_null(ds_framing_end(&f, 40));
    ds_framing_start(&f, "GET", 1, "HTTP/1.1");
    ds_framing_header(&f, elsewhere, 4, NULL, 0);
    assert_non_null(ds_framing_end(&f, 40));
    free(elsewhere);
}

/* Two wrongs don't make a right: a line that ended in a bare line feed is one byte short, one that was cut at a NUL
 * byte one too long. */
static void gaps_that_add_up(void **state)
{
    static const char lines[] = "Host: a\nX: b\0\r\nY: c\r\n";
    ds_framing f;

    (void)state;
    ds_framing_start(&f, "GET", 1, "HTTP/1.1");
    ds_framing_header(&f, lines, 4, lines + 6, 1);
    ds_framing_header(&f, lines + 8, 1, lines + 11, 1);
    ds_framing_header(&f, lines + 15, 1, lines + 18, 1);
    assert_non_null(ds_framing_end(&f, 16 + sizeof lines - 1 + 2));
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(heads), cmocka_unit_test(missing_bytes), cmocka_unit_test(gaps_that_add_up) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
