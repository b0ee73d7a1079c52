/* Arrivals, lengths and shared prefixes; traces and what is refused in them. */
#include "test.h"

#include <unistd.h>

#include "fault.h"
#include "loadgen/plan.h"

static size_t words(const ds_buf *b)
{
    size_t n = b->len > 0;

    for (size_t i = 0; i < b->len; i++)
        n += b->p[i] == ' ';
    return n;
}

static void poisson(void **state)
{
    const ds_plan_opts o = { .rate = 50, .requests = 20000, .input_tokens = 100, .output_tokens = 10, .spread = 0.5, .seed = 3 };
    ds_plan *p, *again;
    ds_plan_item it, same;
    ds_err err;
    double sum2 = 0, input = 0;
    uint64_t last = 0;

    (void)state;
    assert_ok(ds_plan_create(&p, &o, &err));
    assert_ok(ds_plan_create(&again, &o, &err));
    for (uint64_t i = 0; i < o.requests; i++) {
        assert_true(ds_plan_next(p, &it) && ds_plan_next(again, &same));
        assert_true(it.index == i && it.at_ns >= last && it.at_ns == same.at_ns && it.input_tokens == same.input_tokens);
        assert_true(it.input_tokens >= 50 && it.input_tokens <= 150 && it.output_tokens >= 5 && it.output_tokens <= 15);
        sum2 += pow((double)(it.at_ns - last) * 1e-9, 2);
        input += it.input_tokens;
        last = it.at_ns;
    }
    assert_false(ds_plan_next(p, &it));
    assert_true(fabs((double)last * 1e-9 / 400.0 - 1.0) < 0.03);     /* 20,000 at 50 a second */
    assert_true(fabs(sum2 / 20000.0 / (2.0 / 2500.0) - 1.0) < 0.06); /* exponential: the mean square is twice the squared mean */
    assert_true(fabs(input / 20000.0 - 100.0) < 1.0);
    ds_plan_destroy(p);
    ds_plan_destroy(again);
}

static void duration_ends_it(void **state)
{
    const ds_plan_opts o = { .rate = 100, .duration_ns = UINT64_C(2000000000), .input_tokens = 1, .output_tokens = 1 };
    ds_plan *p;
    ds_plan_item it;
    ds_err err;
    int n = 0;

    (void)state;
    assert_ok(ds_plan_create(&p, &o, &err));
    for (; ds_plan_next(p, &it); n++)
        assert_true(it.at_ns < o.duration_ns);
    assert_in_range(n, 150, 250);
    ds_plan_destroy(p);
}

static void prefixes_are_shared(void **state)
{
    const ds_plan_opts o = { .rate = 1, .requests = 60, .input_tokens = 40, .output_tokens = 1, .prefix_tokens = 30, .prefixes = 3 };
    ds_plan *p;
    ds_plan_item it;
    ds_err err;
    ds_buf seen[60] = { 0 };
    size_t distinct = 0, n = 0;

    (void)state;
    assert_ok(ds_plan_create(&p, &o, &err));
    for (; ds_plan_next(p, &it); n++) {
        ds_plan_prompt(p, &it, &seen[n]);
        assert_int_equal(words(&seen[n]), 40);
        assert_int_equal(strspn(seen[n].p, "abcdefghijklmnopqrstuvwxyz "), seen[n].len);
    }
    for (size_t i = 0; i < n; i++) {
        bool is_new = true;
        for (size_t k = 0; k < i; k++) {
            is_new &= memcmp(seen[i].p, seen[k].p, 100) != 0; /* 30 words are more than 100 characters */
            assert_string_not_equal(seen[i].p, seen[k].p);
        }
        distinct += is_new;
    }
    assert_int_equal(distinct, 3);
    for (size_t i = 0; i < n; i++)
        ds_buf_free(&seen[i]);
    ds_plan_destroy(p);
}

static ds_rc plan_of(ds_plan **p, const char *text, double speed, ds_err *err)
{
    char path[] = "/tmp/ds-plan-XXXXXX";
    int fd = mkstemp(path);
    ds_plan_opts o = { .trace = path, .speed = speed };
    ds_rc rc;

    assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
    rc = ds_plan_create(p, &o, err);
    unlink(path);
    return rc;
}

static void trace_is_read(void **state)
{
    ds_plan *p;
    ds_plan_item a, b, c, d;
    ds_buf x = { 0 }, y = { 0 };
    ds_err err;

    (void)state;
    assert_ok(plan_of(&p,
                      "{\"timestamp\": 3000, \"input_length\": 600, \"output_length\": 5, \"hash_ids\": [7, 9]}\n\n"
                      "{\"timestamp\": 1000.5, \"input_length\": 1100, \"output_length\": 0, \"hash_ids\": [7, 8]}\r\n"
                      "{\"timestamp\": 1000, \"input_length\": 3, \"output_length\": 6}",
                      2.0, &err));
    assert_true(ds_plan_next(p, &a) && ds_plan_next(p, &b) && ds_plan_next(p, &c) && !ds_plan_next(p, &d));
    assert_true(a.input_tokens == 1100 && a.output_tokens == 1 && a.at_ns == 0 && a.index == 0); /* in the order of the file at one time */
    assert_true(b.input_tokens == 3 && b.at_ns == 0);
    assert_true(c.input_tokens == 600 && c.at_ns == UINT64_C(1000000000)); /* twice as fast, from the first */
    ds_plan_prompt(p, &a, &x);
    ds_plan_prompt(p, &c, &y);
    assert_int_equal(words(&x), 1100); /* what the ids don't cover is the request's own */
    assert_int_equal(words(&y), 600);
    assert_memory_equal(x.p, y.p, 512 * 4);
    assert_true(memcmp(x.p, y.p, y.len) != 0);
    ds_buf_free(&x);
    ds_buf_free(&y);
    ds_plan_destroy(p);
}

static void bad_traces(void **state)
{
    static const struct {
        const char *text, *why;
    } bad[] = {
        { "", "no requests" },
        { "{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 1}\n[]", "line 2: timestamp" },
        { "{", "line 1" },
        { "{\"timestamp\": -1, \"input_length\": 1, \"output_length\": 1}", "timestamp" },
        { "{\"timestamp\": 1, \"input_length\": 0, \"output_length\": 1}", "input_length" },
        { "{\"timestamp\": 1, \"input_length\": 1}", "output_length" },
        { "{\"timestamp\": 1, \"input_length\": 1, \"output_length\": 99999999999}", "output_length" },
        { "{\"timestamp\": 1, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [1.5]}", "hash_ids" },
        { "{\"timestamp\": 1, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": 4}", "hash_ids" },
    };
    ds_plan *p;
    ds_err err;

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_refused(plan_of(&p, bad[i].text, 1, &err), DS_E_FORMAT, bad[i].why);
        assert_null(p);
    }
    assert_refused(ds_plan_create(&p, &(ds_plan_opts){ .trace = "/nonexistent/trace" }, &err), DS_E_IO, "/nonexistent/trace");
}

static void thinking_time(void **state)
{
    ds_plan *p;
    ds_err err;
    double sum = 0;

    (void)state;
    assert_ok(ds_plan_create(&p, &(ds_plan_opts){ .rate = 1, .requests = 1, .input_tokens = 1, .output_tokens = 1 }, &err));
    for (uint64_t i = 0; i < 10000; i++)
        sum += (double)ds_plan_think_ns(p, i, 1, 1000000);
    assert_true(fabs(sum / 1e10 - 1.0) < 0.05);
    ds_plan_destroy(p);
}

static ds_rc attempt(void *ctx, ds_err *err)
{
    ds_plan *p;
    ds_rc rc = ds_plan_create(&p, ctx, err);

    ds_plan_destroy(p);
    return rc;
}

static void out_of_memory(void **state)
{
    char path[] = "/tmp/ds-plan-XXXXXX";
    int fd = mkstemp(path);
    ds_plan_opts o = { .trace = path };

    (void)state;
    for (int i = 0; i < 3; i++)
        assert_true(dprintf(fd, "{\"timestamp\": 1, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [1]}\n") > 0);
    close(fd);
    assert_true(fault_every_allocation(attempt, &o) > 3);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(poisson),       cmocka_unit_test(duration_ends_it), cmocka_unit_test(prefixes_are_shared),
        cmocka_unit_test(trace_is_read), cmocka_unit_test(bad_traces),       cmocka_unit_test(thinking_time),
        cmocka_unit_test(out_of_memory)
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
