/* A device that holds the host to the rules of kern/device.h: the ops of the CPU on memory that nobody else can touch.
 *
 *  - Addresses of device memory are never mapped: a stray access of the host is a segmentation fault there. Ops and
 *    copies get arguments in which each such address is replaced by that of the bytes.
 *  - What `read` brings is in stage memory only once a mark behind it has been waited for; until then 0xee stands
 *    there.
 *  - Stage memory that `write` reads must not change until then: if it did, the program ends with a message.
 *  - An op that isn't in locked.c's list runs with addresses as they are, and so faults.
 *  - Mapped files and the heap can't be read in place: weights are copied (`place` is there). */
#ifndef DS_TEST_LOCKED_H
#define DS_TEST_LOCKED_H

#include "kern/device.h"

/* kernels: as ds_kern_init. Close with ds_device_close; what was allocated must have been freed. */
ds_rc locked_create(ds_device **out, const char *kernels, ds_err *err);
/* From now on waits say DS_E_DEVICE, as those of a device that died; false: no more. */
void locked_break(bool broken);

#endif
