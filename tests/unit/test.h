/* cmocka and our few helpers. A test program is small, runs under a second, needs no network, no fixed port, no GPU. */
#ifndef DS_TEST_H
#define DS_TEST_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"

/* The call succeeds, or the test fails with the error's message. Needs a ds_err named err. */
#define assert_ok(call)                         \
    do {                                        \
        if ((call) != DS_OK)                    \
            fail_msg("%s: %s", #call, err.msg); \
    } while (0)

/* The call fails with `rc_` and a message that contains `part`. Needs a ds_err named err. */
#define assert_refused(call, rc_, part)                                   \
    do {                                                                  \
        ds_rc got_ = (call);                                              \
        if (got_ != (rc_))                                                \
            fail_msg("%s: returned %d, expected %d", #call, got_, (rc_)); \
        if (!strstr(err.msg, (part)))                                     \
            fail_msg("message '%s' lacks '%s'", err.msg, (part));         \
    } while (0)

/* Every |a - b| <= rel * max(|a|, |b|) + abs; names the worst element. */
static inline void assert_close_at(const float *a, const float *b, size_t n, double rel, double abs_, const char *file, int line)
{
    size_t worst = 0;
    double excess = 0.0;
    for (size_t i = 0; i < n; i++) {
        double x = a[i], y = b[i];
        double bound = rel * fmax(fabs(x), fabs(y)) + abs_;
        double over = isnan(x) != isnan(y) ? INFINITY : (isnan(x) ? 0.0 : (x == y ? 0.0 : fabs(x - y) - bound));
        if (over > excess) {
            excess = over;
            worst = i;
        }
    }
    if (excess > 0.0) {
        print_error("%s:%d: element %zu of %zu: %.9g, expected %.9g\n", file, line, worst, n, (double)a[worst], (double)b[worst]);
        fail();
    }
}
#define assert_close(a, b, n, rel, abs_) assert_close_at((a), (b), (n), (rel), (abs_), __FILE__, __LINE__)

#endif
