#include "base/buf.h"
#include "base/mem.h"
#include "fault.h"
#include "test.h"

static void sizes_are_checked(void **state)
{
    size_t x = 5;

    (void)state;
    assert_true(ds_size_mul(&x, 3, 7));
    assert_int_equal(x, 21);
    assert_false(ds_size_mul(&x, SIZE_MAX, 2));
    assert_int_equal(x, 21);
    assert_true(ds_size_add(&x, SIZE_MAX, 0));
    assert_true(x == SIZE_MAX);
    assert_false(ds_size_add(&x, SIZE_MAX, 1));
    assert_true(x == SIZE_MAX);
}

static void blocks_are_aligned_and_zero(void **state)
{
    (void)state;
    for (size_t n = 0; n < 200; n += 7) {
        unsigned char *p = ds_calloc_aligned(n, 3);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 64, 0);
        for (size_t i = 0; i < 3 * n; i++)
            assert_int_equal(p[i], 0);
        free(p);
    }
    assert_null(ds_calloc_aligned(SIZE_MAX / 2, 3));
    assert_null(ds_calloc_aligned(SIZE_MAX, 1));
}

static void large_blocks(void **state)
{
    static const size_t sizes[] = { 0, 1, (1 << 20) - 1, 1 << 20, (2 << 20) - 1, 2 << 20, (2 << 20) + 1 };

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char *p = ds_malloc_large(sizes[i]);
        assert_non_null(p);
        memset(p, 1, sizes[i]);
        p = realloc(p, sizes[i] + 5000);
        assert_non_null(p);
        assert_true(sizes[i] == 0 || p[sizes[i] - 1] == 1);
        free(p);
    }
    assert_null(ds_malloc_large(SIZE_MAX));
    assert_null(ds_malloc_large(SIZE_MAX - (4 << 20)));
}

static void arena_marks_and_peak(void **state)
{
    ds_arena a;
    ds_err err;

    (void)state;
    assert_ok(ds_arena_init(&a, 256, &err));
    size_t m = ds_arena_mark(&a);
    unsigned char *p = ds_arena_alloc(&a, 3, 1), *q = ds_arena_alloc(&a, 64, 64);
    assert_ptr_equal(p, a.base);
    assert_ptr_equal(q, a.base + 64);
    assert_non_null(ds_arena_alloc(&a, 128, 64));
    assert_null(ds_arena_alloc(&a, 1, 1));
    assert_non_null(ds_arena_alloc(&a, 0, 1));
    ds_arena_rewind(&a, m);
    assert_ptr_equal(ds_arena_alloc(&a, 256, 64), a.base);
    assert_int_equal(a.peak, 256);
    ds_arena_rewind(&a, m);
    assert_null(ds_arena_alloc(&a, SIZE_MAX, 64));
    assert_null(ds_arena_alloc(&a, 257, 1));
    ds_arena_fini(&a);
    assert_null(a.base);
    ds_arena_fini(&a);
}

static void arena_too_large(void **state)
{
    ds_arena a;
    ds_err err;

    (void)state;
    assert_refused(ds_arena_init(&a, SIZE_MAX - 10, &err), DS_E_NOMEM, "out of memory");
    ds_arena_fini(&a);
}

static void buffer_grows(void **state)
{
    ds_buf b = { 0 };

    (void)state;
    assert_string_equal(ds_buf_str(&b), "");
    for (int i = 0; i < 1000; i++)
        assert_true(ds_buf_printf(&b, "%d,", i));
    assert_int_equal(b.len, 10 * 2 + 90 * 3 + 900 * 4);
    assert_int_equal(b.p[b.len], '\0');
    assert_memory_equal(b.p, "0,1,2,3,", 8);
    ds_buf_clear(&b);
    assert_string_equal(ds_buf_str(&b), "");
    assert_true(ds_buf_put(&b, "a\0b", 3) && ds_buf_putc(&b, 'c') && ds_buf_puts(&b, "de") && ds_buf_put(&b, NULL, 0));
    assert_int_equal(b.len, 6);
    assert_memory_equal(b.p, "a\0bcde", 7);
    ds_buf_free(&b);
    assert_null(b.p);
}

static void buffer_prints_every_length(void **state)
{
    char text[300];

    (void)state;
    memset(text, 'x', sizeof text);
    for (int n = 0; n < 300; n++) {
        ds_buf b = { 0 };
        assert_true(ds_buf_printf(&b, "%.*s", n, text));
        assert_int_equal(b.len, n);
        assert_int_equal(strlen(b.p), n);
        ds_buf_free(&b);
    }
}

static void buffer_out_of_memory(void **state)
{
    ds_buf b = { 0 };

    (void)state;
    ds_buf_puts(&b, "kept");
    fault_arm(1, true);
    char big[200];
    memset(big, 'x', sizeof big);
    assert_false(ds_buf_put(&b, big, sizeof big));
    assert_true(b.oom);
    assert_false(ds_buf_puts(&b, "!")); /* there is room, but text would be missing in the middle */
    assert_false(ds_buf_printf(&b, "%d", 1));
    assert_true(fault_disarm());
    assert_string_equal(ds_buf_str(&b), "kept");
    assert_false(ds_buf_puts(&b, "!"));
    ds_buf_clear(&b);
    assert_true(ds_buf_puts(&b, "again"));
    assert_false(ds_buf_reserve(&b, SIZE_MAX));
    assert_true(b.oom);
    assert_string_equal(ds_buf_str(&b), "again");
    ds_buf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_are_checked),
        cmocka_unit_test(blocks_are_aligned_and_zero),
        cmocka_unit_test(large_blocks),
        cmocka_unit_test(arena_marks_and_peak),
        cmocka_unit_test(arena_too_large),
        cmocka_unit_test(buffer_grows),
        cmocka_unit_test(buffer_prints_every_length),
        cmocka_unit_test(buffer_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
