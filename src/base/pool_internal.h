/* The CPUs that a pool can pin its members to. */
#ifndef DS_BASE_POOL_INTERNAL_H
#define DS_BASE_POOL_INTERNAL_H

#include <stdint.h>

#include "base/err.h"

/* *cpus: the numbers of all CPUs in this process's affinity mask, ascending; free() it. *n >= 1. DS_E_IO,
 * DS_E_NOMEM. */
ds_rc ds_cpus_allowed(uint32_t **cpus, uint32_t *n, ds_err *err);

/* CPUs that a cgroup quota allows, rounded up; 0 when there is no quota. `text` is the content of cpu.max ("max
 * 100000", "150000 100000"). */
uint32_t ds_cpu_quota(const char *text);

#endif
