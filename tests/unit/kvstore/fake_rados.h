/* librados for tests: objects in memory, one thread that does what is asked asynchronously, and faults at every call.
 *
 * One cluster for the process. What it holds outlives its clients: one can die and another look at what is left. */
#ifndef DS_TEST_FAKE_RADOS_H
#define DS_TEST_FAKE_RADOS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvstore/rados_api.h"

typedef enum {
    FAKE_WELL,
    FAKE_FAILS,  /* nothing is done, -errno is told */
    FAKE_LIES,   /* it is done, and -errno is told */
    FAKE_SPOILS, /* a read has another byte, or ends early */
    FAKE_STALLS, /* no answer until it is cancelled or a limit passes: -ETIMEDOUT */
    FAKE_HANGS,  /* an asynchronous call: no answer until it is cancelled */
} fake_fate;

/* What becomes of a call, by its name in the table. Called with the cluster's lock held. *errno_: EIO. */
typedef fake_fate fake_judge(void *ctx, const char *call, int *errno_);

extern const ds_rados_api fake_rados;

/* An empty cluster, whose pool takes writes at multiples of `align` and at an object's end only (1: anywhere). */
void fake_begin(uint64_t align);
void fake_end(void);
void fake_judged_by(fake_judge *judge, void *ctx); /* NULL: all is well */
void fake_expire_locks(void);                      /* all leases have run out, and who had them doesn't get them again */
uint32_t fake_objects(void);
/* Bytes of an object whose name begins so, to be spoiled by the test; NULL: there is none. */
uint8_t *fake_bytes(const char *begin, size_t *n);

#endif
