/* Failing allocations, for tests of create() functions and of whatever else takes memory.
 *
 * Add fault_dep to the test's dependencies: the linker then sends every malloc, calloc, realloc, posix_memalign,
 * aligned_alloc, strdup and strndup of our libraries and of the test through here (those inside shared libraries
 * stay as they are). Leaks on the failing path show in the build with the address sanitizer. */
#ifndef DS_TEST_FAULT_H
#define DS_TEST_FAULT_H

#include <stdbool.h>

#include "base/err.h"

/* The n-th allocation from now on, counted over all threads, fails; n = 1 is the next. With `all_after`, so do those
 * after it. */
void fault_arm(unsigned n, bool all_after);
/* Ends it. True if an allocation failed. */
bool fault_disarm(void);

/* One attempt: create, use a little, destroy. Returns what create returned; on failure nothing may be left. */
typedef ds_rc fault_attempt_fn(void *ctx, ds_err *err);

/* Runs `attempt` with allocation 1, 2, 3 … failing until one passes untouched. Every failed attempt must return
 * DS_E_NOMEM with a message, and the last one DS_OK. Returns how many allocations an attempt makes. A test fails
 * otherwise. */
unsigned fault_every_allocation(fault_attempt_fn *attempt, void *ctx);

#endif
