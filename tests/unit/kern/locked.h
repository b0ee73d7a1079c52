/* A device that holds the host to the rules of kern/device.h: the ops of the CPU on memory that nobody else can touch.
 *
 *  - Device memory has no access rights except while an op or a copy runs: a stray access of the host is a segmentation fault there.
 *  - What `read` brings is in stage memory only once a mark behind it has been waited for; until then 0xee stands there.
 *  - Stage memory that `write` reads must not change until then: if it did, the program ends with a message.
 *  - Mapped files and the heap can't be read in place: weights are copied (`place` is there).
 *
 * While another thread's op runs the memory is open to all, so a test with several threads catches less. */
#ifndef DS_TEST_LOCKED_H
#define DS_TEST_LOCKED_H

#include "kern/device.h"

/* kernels: as ds_kern_init. Close with ds_device_close; what was allocated must have been freed. */
ds_rc locked_create(ds_device **out, const char *kernels, ds_err *err);

#endif
