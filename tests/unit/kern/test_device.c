/* Devices: choosing one, memory, copies in order, the ferry; and that the locked device catches what it is there to
 * catch. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kern/locked.h"
#include "test.h"

static ds_err err;

static void a_device_is_chosen_by_name(void **state)
{
    ds_device *d;
    (void)state;
    assert_ok(ds_device_open(&d, NULL, NULL, &err));
    ds_device_close(d);
    assert_ok(ds_device_open(&d, "cpu:0", &(ds_device_opts){ "ref" }, &err));
    assert_string_equal(d->name, "cpu");
    assert_string_equal(d->k.name, "ref");
    assert_false(d->records);
    ds_device_close(d);
    assert_refused(ds_device_open(&d, "cpu:1", NULL, &err), DS_E_ARG, "has 1 of them");
    assert_null(d);
    assert_refused(ds_device_open(&d, "cpu:", NULL, &err), DS_E_ARG, "no such kind");
    assert_refused(ds_device_open(&d, "cpu:0x", NULL, &err), DS_E_ARG, "no such kind");
    assert_refused(ds_device_open(&d, "cpux", NULL, &err), DS_E_ARG, "no such kind");
    assert_refused(ds_device_open(&d, "", NULL, &err), DS_E_ARG, "no such kind");
    assert_refused(ds_device_open(&d, "cpu", &(ds_device_opts){ "none" }, &err), DS_E_ARG, "kernels 'none'");
    ds_device_close(NULL);
}

static void bytes_come_back(ds_device *d)
{
    unsigned char in[1000], out[1000];
    ds_mem m = { .d = d };
    ds_ferry f;
    unsigned char *a = ds_mem_take(&m, DS_MEM_DEVICE, sizeof in, &err), *b = ds_mem_take(&m, DS_MEM_DEVICE, sizeof in, &err);

    assert_non_null(a);
    assert_non_null(b);
    assert_int_equal((uintptr_t)a % 256, 0);
    assert_int_equal(m.bytes[DS_MEM_DEVICE], 2 * sizeof in);
    assert_non_null(ds_mem_take(&m, DS_MEM_STAGE, 0, &err));
    for (size_t i = 0; i < sizeof in; i++)
        in[i] = (unsigned char)(i * 7 + 1);
    assert_ok(ds_ferry_init(&f, d, NULL, 96, &err)); /* pieces: 96 doesn't divide 1000 */
    assert_ok(ds_ferry_get(&f, out, a, sizeof out, &err));
    for (size_t i = 0; i < sizeof out; i++)
        assert_int_equal(out[i], 0);
    assert_ok(ds_ferry_put(&f, a, in, sizeof in, &err));
    d->fn->copy(d, f.s, b + 1, a, sizeof in - 1);
    d->fn->zero(d, f.s, b + 500, 3);
    assert_ok(ds_ferry_get(&f, out, b, sizeof out, &err));
    memset(in + 499, 0, 3);
    assert_int_equal(out[0], 0);
    assert_memory_equal(out + 1, in, sizeof in - 1);
    assert_ok(ds_ferry_put(&f, a, in, 0, &err));
    ds_ferry_fini(&f);
    ds_ferry_fini(&f);
    ds_mem_free(&m);
    assert_int_equal(m.bytes[DS_MEM_DEVICE] + m.n, 0);
    assert_non_null(ds_mem_take(&m, DS_MEM_DEVICE, 1, &err)); /* usable again */
    ds_mem_free(&m);
}

static void bytes_come_back_from_the_cpu(void **state)
{
    ds_device *d;
    (void)state;
    assert_ok(ds_device_open(&d, "cpu", NULL, &err));
    bytes_come_back(d);
    ds_device_close(d);
}

static void bytes_come_back_from_the_locked_one(void **state)
{
    ds_device *d;
    (void)state;
    assert_ok(locked_create(&d, "ref", &err));
    bytes_come_back(d);
    ds_device_close(d);
}

static void huge_sizes_are_refused(void **state)
{
    ds_device *d;
    void *p;
    (void)state;
    assert_ok(ds_device_open(&d, "cpu", NULL, &err));
    assert_refused(d->fn->alloc(d, DS_MEM_DEVICE, SIZE_MAX - 8, &p, &err), DS_E_NOMEM, "out of memory");
    assert_null(p);
    assert_refused(d->fn->alloc(d, DS_MEM_STAGE, SIZE_MAX / 4, &p, &err), DS_E_NOMEM, "out of memory");
    ds_device_close(d);
}

/* What a host must not do, each in a process of its own. */
typedef enum { READ_IT, WRITE_IT, READ_FREED, CHANGE_STAGE, LEAVE_MEMORY, GOOD } deed;

static void commit(deed what)
{
    ds_device *d;
    ds_mem m = { 0 };
    ds_stream *s;
    volatile unsigned char *a;
    unsigned char *stage;
    ds_fence *e;

    signal(SIGSEGV, SIG_DFL); /* the way out that is asked for, whatever a sanitizer would say about it */
    signal(SIGBUS, SIG_DFL);
    if (!freopen("/dev/null", "w", stderr) || locked_create(&d, "ref", &err) != DS_OK)
        _exit(9);
    m.d = d;
    a = ds_mem_take(&m, DS_MEM_DEVICE, 64, &err);
    stage = ds_mem_take(&m, DS_MEM_STAGE, 64, &err);
    if (!a || !stage || d->fn->stream_create(d, &s, &err) != DS_OK || d->fn->fence_create(d, &e, &err) != DS_OK)
        _exit(9);
    stage[0] = 5;
    d->fn->write(d, s, (void *)a, stage, 64);
    if (what == READ_IT)
        _exit(a[0] ? 8 : 7);
    if (what == WRITE_IT)
        a[63] = 1;
    if (what == CHANGE_STAGE)
        stage[0] = 1;
    d->fn->mark(d, s, e);
    if (d->fn->wait(d, e, &err) != DS_OK)
        _exit(9);
    stage[0] = 1;
    d->fn->read(d, s, stage, (void *)a, 64);
    if (stage[0] == 5)
        _exit(6); /* too early */
    d->fn->mark(d, s, e);
    if (d->fn->wait(d, e, &err) != DS_OK || stage[0] != 5)
        _exit(5);
    d->fn->fence_destroy(d, e);
    d->fn->stream_destroy(d, s);
    if (what != LEAVE_MEMORY)
        ds_mem_free(&m);
    if (what == READ_FREED)
        _exit(a[0] ? 8 : 7);
    ds_device_close(d);
    _exit(0);
}

static int end_of(deed what)
{
    int status;
    pid_t p = fork();

    assert_true(p >= 0);
    if (p == 0)
        commit(what);
    assert_int_equal(waitpid(p, &status, 0), p);
    return WIFSIGNALED(status) ? WTERMSIG(status) : -WEXITSTATUS(status);
}

static void the_locked_one_catches_the_host(void **state)
{
    (void)state;
    assert_int_equal(end_of(GOOD), 0);
    assert_int_equal(end_of(READ_IT), SIGSEGV);
    assert_int_equal(end_of(WRITE_IT), SIGSEGV);
    assert_int_equal(end_of(READ_FREED), SIGSEGV);
    assert_int_equal(end_of(CHANGE_STAGE), SIGABRT);
    assert_int_equal(end_of(LEAVE_MEMORY), SIGABRT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_device_is_chosen_by_name),          cmocka_unit_test(bytes_come_back_from_the_cpu),
        cmocka_unit_test(bytes_come_back_from_the_locked_one), cmocka_unit_test(huge_sizes_are_refused),
        cmocka_unit_test(the_locked_one_catches_the_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
