/* The failing allocations themselves. */
#include <errno.h>

#include "fault.h"
#include "test.h"

static ds_rc two_blocks(void *ctx, ds_err *err)
{
    char *a = malloc(10), *b = a ? strdup("x") : NULL;
    ds_rc rc = b ? DS_OK : ds_fail(err, DS_E_NOMEM, "no memory");

    (*(int *)ctx)++;
    free(b);
    free(a);
    return rc;
}

static void counts_attempts(void **state)
{
    int calls = 0;

    (void)state;
    assert_int_equal(fault_every_allocation(two_blocks, &calls), 2);
    assert_int_equal(calls, 3);
}

static void once_or_from_there_on(void **state)
{
    void *volatile p; /* else the compiler leaves malloc and free out together */

    (void)state;
    fault_arm(2, false);
    p = malloc(1);
    assert_non_null(p);
    free(p);
    p = calloc(1, 1);
    assert_null(p);
    p = malloc(1);
    assert_non_null(p);
    free(p);
    assert_true(fault_disarm());
    fault_arm(1, true);
    for (int i = 0; i < 3; i++) {
        p = malloc(1);
        assert_null(p);
        assert_int_equal(posix_memalign((void **)&p, 64, 64), ENOMEM);
    }
    assert_true(fault_disarm());
    fault_arm(1, false);
    assert_false(fault_disarm());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_attempts),
        cmocka_unit_test(once_or_from_there_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
