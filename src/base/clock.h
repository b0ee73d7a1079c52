/* Time. Threads: any. */
#ifndef DS_BASE_CLOCK_H
#define DS_BASE_CLOCK_H

#include <stdint.h>

uint64_t ds_now_ns(void); /* CLOCK_MONOTONIC */
uint64_t ds_now_us(void);
int64_t ds_wall_s(void); /* Unix time, seconds */

#endif
