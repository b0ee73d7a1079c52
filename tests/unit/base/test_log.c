#include <fcntl.h>
#include <unistd.h>

#include "base/log.h"
#include "test.h"

/* What lines come out of the sink. */
static const char *take(int fd, char *buf, size_t cap)
{
    ssize_t n = read(fd, buf, cap - 1);

    buf[n > 0 ? n : 0] = '\0';
    return buf;
}

static void lines(void **state)
{
    char buf[5000], longer[3000];
    int p[2];

    (void)state;
    assert_int_equal(pipe2(p, O_NONBLOCK), 0);
    ds_log log = { .level = DS_LOG_INFO, .fd = p[1] };
    ds_logf(&log, DS_LOG_INFO, "engine req=%d tokens=%d", 7, 128);
    assert_string_equal(take(p[0], buf, sizeof buf), "info engine req=7 tokens=128\n");
    ds_logf(&log, DS_LOG_DEBUG, "engine hidden");
    assert_string_equal(take(p[0], buf, sizeof buf), "");
    ds_logf(&log, DS_LOG_ERROR, "http path=%s", "/a\nerror forged\x1b[0m");
    assert_string_equal(take(p[0], buf, sizeof buf), "error http path=/a error forged [0m\n");
    ds_logf(NULL, DS_LOG_ERROR, "nobody");
    ds_logf(&(ds_log){ .level = DS_LOG_DEBUG, .fd = -1 }, DS_LOG_ERROR, "nobody");
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    ds_logf(&log, DS_LOG_WARN, "long %s", longer);
    take(p[0], buf, sizeof buf);
    assert_in_range(strlen(buf), 2000, 2048);
    assert_string_equal(buf + strlen(buf) - 4, "...\n");
    close(p[0]);
    close(p[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(lines) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
