/* The linker's --wrap=NAME turns calls of NAME into __wrap_NAME, and __real_NAME into the C library's (or the
 * sanitizer's). */
#include "fault.h"

#include <errno.h>
#include <stdatomic.h>

#include "test.h"

static atomic_long countdown; /* 0 = off; at 1 the next allocation fails */
static atomic_bool fired, keep_failing;

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
int __real_posix_memalign(void **p, size_t align, size_t n);
void *__real_aligned_alloc(size_t align, size_t n);
char *__real_strdup(const char *s);
char *__real_strndup(const char *s, size_t n);

void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
int __wrap_posix_memalign(void **p, size_t align, size_t n);
void *__wrap_aligned_alloc(size_t align, size_t n);
char *__wrap_strdup(const char *s);
char *__wrap_strndup(const char *s, size_t n);

static bool due(void)
{
    if (atomic_load(&countdown) == 0)
        return false;
    if (atomic_load(&keep_failing) && atomic_load(&fired))
        return true;
    if (atomic_fetch_sub(&countdown, 1) != 1)
        return false;
    if (atomic_load(&keep_failing))
        atomic_store(&countdown, 1);
    atomic_store(&fired, true);
    return true;
}

/* Runs `call` unless this allocation is due to fail. */
#define OR_FAIL(call) (due() ? (errno = ENOMEM, NULL) : (call))

void *__wrap_malloc(size_t n)
{
    return OR_FAIL(__real_malloc(n));
}

void *__wrap_calloc(size_t n, size_t size)
{
    return OR_FAIL(__real_calloc(n, size));
}

void *__wrap_realloc(void *p, size_t n)
{
    return OR_FAIL(__real_realloc(p, n));
}

int __wrap_posix_memalign(void **p, size_t align, size_t n)
{
    return due() ? ENOMEM : __real_posix_memalign(p, align, n);
}

void *__wrap_aligned_alloc(size_t align, size_t n)
{
    return OR_FAIL(__real_aligned_alloc(align, n));
}

char *__wrap_strdup(const char *s)
{
    return OR_FAIL(__real_strdup(s));
}

char *__wrap_strndup(const char *s, size_t n)
{
    return OR_FAIL(__real_strndup(s, n));
}

void fault_arm(unsigned n, bool all_after)
{
    atomic_store(&fired, false);
    atomic_store(&keep_failing, all_after);
    atomic_store(&countdown, (long)n);
}

bool fault_disarm(void)
{
    atomic_store(&countdown, 0);
    return atomic_load(&fired);
}

unsigned fault_every_allocation(fault_attempt_fn *attempt, void *ctx)
{
    for (unsigned n = 1;; n++) {
        ds_err err = { 0 };
        bool failed;
        ds_rc rc;

        fault_arm(n, false);
        rc = attempt(ctx, &err);
        failed = fault_disarm();
        if (!failed) {
            if (rc != DS_OK)
                fail_msg("with no allocation failing: returned %d (%s)", rc, err.msg);
            return n - 1;
        }
        if (rc != DS_E_NOMEM)
            fail_msg("allocation %u failing: returned %d (%s), expected DS_E_NOMEM", n, rc, err.msg);
        if (err.msg[0] == '\0')
            fail_msg("allocation %u failing: no message", n);
    }
}
