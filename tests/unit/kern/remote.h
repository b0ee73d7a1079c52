/* A table for tests whose ops run on a device: what an op reads is copied there, and what it writes comes back.
 *
 * So a test of ops that works on plain memory tests a device's bodies too. All that an op is given stands in one
 * piece of device memory, with bytes between the pieces; afterwards everything that it may not write must be as it
 * was, else the program ends with a message. One at a time; not fast. */
#ifndef DS_TEST_REMOTE_H
#define DS_TEST_REMOTE_H

#include "kern/device.h"

/* The table works until remote_close. d stays the caller's. */
ds_rc remote_open(ds_kern *k, ds_device *d, ds_err *err);
void remote_close(void);

#endif
