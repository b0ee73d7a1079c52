/* Fetching: which addresses are public, what becomes of every kind of answer, limits, redirects, cancellation. */
#include "http_stub.h"

#include "base/clock.h"
#include "image/image_internal.h"

static bool is_public(const char *text)
{
    struct sockaddr_in v4 = { .sin_family = AF_INET };
    struct sockaddr_in6 v6 = { .sin6_family = AF_INET6 };

    if (inet_pton(AF_INET, text, &v4.sin_addr) == 1)
        return ds_address_public(&v4, sizeof v4);
    assert_int_equal(inet_pton(AF_INET6, text, &v6.sin6_addr), 1);
    return ds_address_public(&v6, sizeof v6);
}

static void addresses(void **state)
{
    static const char *const ours[] = {
        "0.0.0.0",
        "0.1.2.3",
        "10.0.0.1",
        "10.255.255.255",
        "100.64.0.1",
        "100.127.255.255",
        "127.0.0.1",
        "127.255.0.1",
        "169.254.169.254",
        "172.16.0.1",
        "172.31.255.255",
        "192.0.0.1",
        "192.0.2.1",
        "192.88.99.1",
        "192.168.0.1",
        "192.168.255.255",
        "198.18.0.1",
        "198.19.255.255",
        "198.51.100.1",
        "203.0.113.255",
        "224.0.0.1",
        "239.255.255.255",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::127.0.0.1",
        "::8.8.8.8",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "64:ff9b::a00:1",
        "64:ff9b:1::1",
        "100::1",
        "2001::1",
        "2001:1ff::1",
        "2001:db8::1",
        "2002:a00:1::1",
        "2002:7f00:1::1",
        "3fff::1",
        "3fff:fff::1",
        "4000::1",
        "fc00::1",
        "fd12:3456::1",
        "fe80::1",
        "febf::1",
        "fec0::1",
        "ff02::1",
        "::ffff:0:7f00:1",
    };
    static const char *const theirs[] = {
        "1.1.1.1",         "8.8.8.8",        "9.255.255.255", "11.0.0.0",        "100.63.255.255",   "100.128.0.0",
        "126.255.255.255", "128.0.0.0",      "172.15.0.1",    "172.32.0.1",      "192.0.1.1",        "192.167.1.1",
        "192.169.0.1",     "198.17.255.255", "198.20.0.0",    "223.255.255.255", "2001:200::1",      "2606:4700::1111",
        "2a00:1450::1",    "2001:db9::1",    "3fff:1000::1",  "::ffff:8.8.8.8",  "64:ff9b::808:808", "2002:808:808::1",
    };
    struct sockaddr_in v4 = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(0x08080808) };
    struct sockaddr local = { .sa_family = AF_UNIX };

    (void)state;
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        if (is_public(ours[i]))
            fail_msg("%s passes as public", ours[i]);
    for (size_t i = 0; i < sizeof theirs / sizeof *theirs; i++)
        if (!is_public(theirs[i]))
            fail_msg("%s doesn't pass as public", theirs[i]);
    assert_true(ds_address_public(&v4, sizeof v4));
    assert_false(ds_address_public(&v4, sizeof v4 - 1));
    assert_false(ds_address_public(&local, sizeof local));
}

/* However a private address is written, nothing is asked of it. */
static void private_addresses_are_refused(void **state)
{
    http_stub *s = *state;
    char urls[16][96];
    ds_fetch_item items[16];
    static const char *const hosts[] = { "127.0.0.1", "localhost",          "127.1", "0x7f000001", "2130706433", "0177.0.0.1",
                                         "0",         "[::ffff:127.0.0.1]", "[::1]", "[::]",       "10.0.0.1",   "169.254.169.254" };
    size_t n = sizeof hosts / sizeof *hosts;
    int before = atomic_load(&s->requests);
    ds_err err;

    for (size_t i = 0; i < n; i++) {
        snprintf(urls[i], sizeof urls[i], "http://%s:%u/picture/rgb8.png", hosts[i], s->port);
        items[i].url = urls[i];
    }
    assert_ok(ds_fetch(items, n, NULL, NULL, NULL, &err));
    for (size_t i = 0; i < n; i++) {
        if (items[i].status != 400 || strcmp(items[i].reason, "the address isn't public") != 0)
            fail_msg("%s: %d %s", urls[i], items[i].status, items[i].reason);
        assert_null(items[i].bytes);
    }
    assert_int_equal(atomic_load(&s->requests), before);
}

static void check(http_stub *s, const char *path, int status, const char *reason)
{
    ds_fetch_opts o;
    ds_fetch_item item;
    char url[256];
    ds_err err;

    ds_fetch_opts_init(&o);
    o.allow_private = true;
    o.max_bytes = 1 << 20;
    o.max_redirects = 3;
    o.total_ms = strcmp(path, "/hang") == 0 ? 300 : 60000; /* the others answer, on a busy machine too */
    if (path[0] == '/')
        snprintf(url, sizeof url, "http://127.0.0.1:%u%s", s->port, path);
    else
        snprintf(url, sizeof url, "%s", path);
    item.url = url;
    assert_ok(ds_fetch(&item, 1, &o, NULL, NULL, &err));
    if (item.status != status || !strstr(item.reason, reason))
        fail_msg("%s: %d '%s', expected %d '%s'", path, item.status, item.reason, status, reason);
    assert_true((item.bytes != NULL) == (status == 0));
    free(item.bytes);
}

static void every_answer(void **state)
{
    http_stub *s = *state;
    char url[128];

    check(s, "/picture/rgb8.png", 0, "");
    check(s, "/to//picture/rgb8.png", 0, "");
    check(s, "/status/404", 400, "status 404");
    check(s, "/status/403", 400, "status 403");
    check(s, "/status/304", 400, "status 304");
    check(s, "/status/408", 500, "status 408");
    check(s, "/status/429", 500, "status 429");
    check(s, "/status/500", 500, "status 500");
    check(s, "/status/503", 500, "status 503");
    check(s, "/loop", 400, "more than 3 redirects");
    check(s, "/announced", 400, "more than 1048576 bytes");
    check(s, "/endless", 400, "more than 1048576 bytes");
    check(s, "/empty", 400, "empty");
    check(s, "/short", 500, "");
    check(s, "/noise", 500, "");
    check(s, "/hang", 500, "");
    check(s, "/to/file:///etc/passwd", 400, "only http and https");
    check(s, "/to/gopher://127.0.0.1/", 400, "only http and https");
    check(s, "file:///etc/passwd", 400, "only http and https");
    check(s, "ftp://127.0.0.1/x", 400, "only http and https");
    check(s, "http://", 400, "not a valid URL");
    check(s, "http://a b/", 400, "not a valid URL");
    check(s, "http://127.0.0.1:99999/", 400, "not a valid URL");
    snprintf(url, sizeof url, "http://user:secret@127.0.0.1:%u/picture/rgb8.png", s->port);
    check(s, url, 400, "user name");
    check(s, "http://127.0.0.1:1/", 500, "");
}

/* No cookies, no credentials, no proxy, whatever the environment says: it was set before anything ran. */
static void nothing_is_told(void **state)
{
    http_stub s;

    (void)state;
    http_start(&s);
    check(&s, "/picture/rgb8.png", 0, "");
    assert_non_null(strstr(s.last, "User-Agent: deepserve\r\n"));
    assert_null(strstr(s.last, "Cookie"));
    assert_null(strstr(s.last, "Authorization"));
    assert_null(strstr(s.last, "Accept-Encoding"));
    http_stop(&s);
}

static ds_rc count_arrival(void *ctx, ds_fetch_item *item, ds_err *err)
{
    (void)err;
    (*(int *)ctx)++;
    free(item->bytes);
    item->bytes = NULL;
    return DS_OK;
}

static void many_at_a_time(void **state)
{
    enum { N = 40 };
    http_stub s;
    ds_fetch_item items[N];
    ds_fetch_opts o;
    char url[64];
    int arrived = 0;
    ds_err err;

    (void)state;
    http_start(&s);
    snprintf(url, sizeof url, "http://127.0.0.1:%u/slow", s.port);
    for (int i = 0; i < N; i++)
        items[i].url = url;
    ds_fetch_opts_init(&o);
    o.allow_private = true;
    o.parallel = 5;
    assert_ok(ds_fetch(items, N, &o, count_arrival, &arrived, &err));
    assert_int_equal(arrived, N);
    for (int i = 0; i < N; i++)
        assert_int_equal(items[i].status, 0);
    assert_int_equal(atomic_load(&s.requests), N);
    assert_in_range(atomic_load(&s.most_slow), 2, 5);
    http_stop(&s);
    o.parallel = 0;
    assert_refused(ds_fetch(items, 1, &o, NULL, NULL, &err), DS_E_ARG, "0 transfers");
}

static ds_rc refuse_arrival(void *ctx, ds_fetch_item *item, ds_err *err)
{
    (void)ctx;
    (void)item;
    return ds_fail(err, DS_E_AGAIN, "enough");
}

static bool canceled(void *ctx)
{
    return atomic_load((atomic_bool *)ctx);
}

static void *cancel_soon(void *ctx)
{
    usleep(50000);
    atomic_store((atomic_bool *)ctx, true);
    return NULL;
}

static void stopping(void **state)
{
    http_stub *s = *state;
    atomic_bool flag = false;
    ds_fetch_item items[3];
    ds_fetch_opts o;
    char hang[64], picture[64];
    uint64_t start;
    pthread_t t;
    ds_err err;

    snprintf(hang, sizeof hang, "http://127.0.0.1:%u/hang", s->port);
    snprintf(picture, sizeof picture, "http://127.0.0.1:%u/picture/rgb8.png", s->port);
    items[0].url = items[1].url = hang;
    items[2].url = picture;
    ds_fetch_opts_init(&o);
    o.allow_private = true;
    o.canceled = canceled;
    o.cancel_ctx = &flag;
    assert_int_equal(pthread_create(&t, NULL, cancel_soon, &flag), 0);
    start = ds_now_ns();
    assert_int_equal(ds_fetch(items, 3, &o, NULL, NULL, &err), DS_E_CANCELED);
    assert_true(ds_now_ns() - start < 5000000000); /* without it: 10 s */
    pthread_join(t, NULL);
    assert_null(items[2].bytes);
    atomic_store(&flag, false);
    assert_refused(ds_fetch(items, 3, &o, refuse_arrival, NULL, &err), DS_E_AGAIN, "enough");
    assert_null(items[2].bytes);
    assert_ok(ds_fetch(items, 0, &o, NULL, NULL, &err));
}

static int start_stub(void **state)
{
    static http_stub s;

    setenv("http_proxy", "http://127.0.0.1:9", 1);
    setenv("all_proxy", "http://127.0.0.1:9", 1);
    http_start(&s);
    *state = &s;
    return 0;
}

static int stop_stub(void **state)
{
    http_stop(*state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(addresses),      cmocka_unit_test(private_addresses_are_refused),
        cmocka_unit_test(every_answer),   cmocka_unit_test(nothing_is_told),
        cmocka_unit_test(many_at_a_time), cmocka_unit_test(stopping),
    };

    return cmocka_run_group_tests(tests, start_stub, stop_stub);
}
