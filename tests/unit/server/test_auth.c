#include "test.h"

#include <unistd.h>

#include "base/hash.h"
#include "server/auth.h"
#include "server/server.h"

static char path[] = "/tmp/ds-auth-XXXXXX";

static void write_file(const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

/* "NAME sha256:… REST" with the hash of `key`. */
static char *line(const char *name, const char *key, const char *rest)
{
    uint8_t hash[32];
    char hex[65], *out;

    ds_sha256(hash, key, strlen(key));
    ds_hex(hex, hash, 32);
    assert_true(asprintf(&out, "%s sha256:%s %s\n", name, hex, rest) > 0);
    return out;
}

static void files(void **state)
{
    static const struct {
        const char *text, *why;
    } bad[] = {
        { "alice\n", "line 1: expected sha256" },
        { "# x\n\nalice sha256:12\n", "line 3" },
        { "al/ice sha256:0000000000000000000000000000000000000000000000000000000000000000\n", "a name is" },
        { "a sha256:0000000000000000000000000000000000000000000000000000000000000000 rps=0\n", "rps=0" },
        { "a sha256:0000000000000000000000000000000000000000000000000000000000000000 rps=nan\n", "rps=nan" },
        { "a sha256:0000000000000000000000000000000000000000000000000000000000000000 hps=1\n", "hps=1" },
        { "a sha256:0000000000000000000000000000000000000000000000000000000000000000 tenant=\n", "tenant" },
        { "a sha256:00000000000000000000000000000000000000000000000000000000000000000\n", "64" },
    };
    ds_auth *a;
    ds_err err = { 0 };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_file(bad[i].text);
        assert_refused(ds_auth_open(&a, path, &err), DS_E_FORMAT, bad[i].why);
        assert_null(a);
    }
    char *one = line("a", "k1", ""), *two;
    assert_true(asprintf(&two, "%s%s", one, one) > 0);
    write_file(two);
    assert_refused(ds_auth_open(&a, path, &err), DS_E_FORMAT, "twice");
    free(one);
    free(two);
    assert_refused(ds_auth_open(&a, "/nowhere/keys", &err), DS_E_IO, "");
    write_file("# nobody\n\n");
    assert_ok(ds_auth_open(&a, path, &err));
    assert_null(ds_auth_find(a, "", 0));
    ds_auth_close(a);
}

static void quotas(void **state)
{
    char *alice = line("alice", "k1", "tenant=team rps=2 concurrent=3 # it's hers"), *bob = line("bob", "k2", "tokens_per_minute=60"),
         *text;
    ds_auth *a;
    ds_auth_key *k;
    ds_err err = { 0 };
    uint32_t retry;
    uint64_t t = 1000000;

    (void)state;
    assert_true(asprintf(&text, "%s%s", alice, bob) > 0);
    write_file(text);
    assert_ok(ds_auth_open(&a, path, &err));
    k = ds_auth_find(a, "k1", 2);
    assert_non_null(k);
    assert_string_equal(k->tenant, "team");
    assert_null(ds_auth_find(a, "k", 1));
    assert_int_equal(ds_auth_enter(k, t, &retry), DS_QUOTA_OK);
    assert_int_equal(ds_auth_enter(k, t, &retry), DS_QUOTA_OK);
    assert_int_equal(ds_auth_enter(k, t, &retry), DS_QUOTA_RATE);
    assert_int_equal(retry, 1);
    t += 500000;
    assert_int_equal(ds_auth_enter(k, t, &retry), DS_QUOTA_OK);
    t += 5000000;
    assert_int_equal(ds_auth_enter(k, t, &retry), DS_QUOTA_CONCURRENT);
    for (int i = 0; i < 2; i++)
        ds_auth_leave(k, 10, t);
    assert_int_equal(ds_auth_enter(k, t, &retry), DS_QUOTA_OK);

    /* over a reload a key keeps its account; the last request of one that is gone frees it */
    write_file(bob);
    assert_ok(ds_auth_reload(a, &err));
    assert_null(ds_auth_find(a, "k1", 2));
    ds_auth_leave(k, 0, t);
    ds_auth_leave(k, 0, t);
    write_file("x\n");
    assert_refused(ds_auth_reload(a, &err), DS_E_FORMAT, "line 1");

    k = ds_auth_find(a, "k2", 2);
    assert_int_equal(ds_auth_enter(k, t, &retry), DS_QUOTA_OK);
    ds_auth_leave(k, 90, t); /* 30 more than there were */
    assert_int_equal(ds_auth_enter(k, t, &retry), DS_QUOTA_TOKENS);
    assert_true(retry >= 30 && retry <= 32);
    write_file(text);
    assert_ok(ds_auth_reload(a, &err));
    assert_int_equal(ds_auth_enter(ds_auth_find(a, "k2", 2), t, &retry), DS_QUOTA_TOKENS);
    assert_int_equal(ds_auth_enter(ds_auth_find(a, "k2", 2), t + 32000000, &retry), DS_QUOTA_OK);
    ds_auth_leave(ds_auth_find(a, "k2", 2), 0, t);
    ds_auth_close(a);
    free(alice);
    free(bob);
    free(text);
}

static void new_keys(void **state)
{
    char *key, *text;
    ds_auth *a;
    ds_err err = { 0 };

    (void)state;
    assert_ok(ds_server_new_key(&key, &text, "carol", &err));
    assert_null(strstr(text, key));
    write_file(text);
    assert_ok(ds_auth_open(&a, path, &err));
    assert_non_null(ds_auth_find(a, key, strlen(key)));
    assert_true(ds_auth_has(a, "carol") && !ds_auth_has(a, "dave"));
    ds_auth_close(a);
    free(key);
    free(text);
    assert_refused(ds_server_new_key(&key, &text, "a b", &err), DS_E_ARG, "a name is");
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(files), cmocka_unit_test(quotas), cmocka_unit_test(new_keys) };
    int status, fd = mkstemp(path);

    if (fd < 0)
        return 1;
    close(fd);
    status = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return status;
}
