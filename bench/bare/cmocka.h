/* The few parts of cmocka that the kernel tests use, for machines that lack it; see ../amx.sh. */
#ifndef DS_BENCH_BARE_CMOCKA_H
#define DS_BENCH_BARE_CMOCKA_H

typedef int (*CMFixtureFunction)(void **state);
struct CMUnitTest {
    const char *name;
    void (*test_func)(void **state);
    CMFixtureFunction setup_func, teardown_func;
    void *initial_state;
};

static jmp_buf bare_failed;

#define cmocka_unit_test(f)     \
    {                           \
#f, f, NULL, NULL, NULL \
    }
#define print_message(...) printf(__VA_ARGS__)
#define print_error(...) printf(__VA_ARGS__)
#define fail() longjmp(bare_failed, 1)
#define fail_msg(...) (printf("%s:%d: ", __FILE__, __LINE__), printf(__VA_ARGS__), puts(""), fail())
#define assert_true(c) ((c) ? (void)0 : fail_msg("%s", #c))
#define assert_non_null(p) assert_true((p) != NULL)
#define assert_int_equal(a, b) assert_true((a) == (b))
#define assert_string_equal(a, b) assert_true(strcmp((a), (b)) == 0)

static inline int _cmocka_run_group_tests(const char *group, const struct CMUnitTest *t, size_t n, CMFixtureFunction setup,
                                          CMFixtureFunction teardown)
{
    int failed = 0;

    (void)group;
    (void)setup;
    (void)teardown;
    for (size_t i = 0; i < n; i++) {
        void *state = NULL;
        volatile int bad = t[i].setup_func && t[i].setup_func(&state) != 0;
        if (!bad && setjmp(bare_failed) == 0)
            t[i].test_func(&state);
        else
            bad = 1;
        if (t[i].teardown_func && state)
            t[i].teardown_func(&state);
        printf("%s %s\n", bad ? "FAILED" : "ok    ", t[i].name);
        failed += bad;
    }
    return failed;
}
#define cmocka_run_group_tests(tests, s, t) _cmocka_run_group_tests(#tests, tests, sizeof(tests) / sizeof *(tests), s, t)

#endif
