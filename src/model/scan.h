/* Looking through tensors for values that no weight may have: NaN and infinity, and NaN scales (spec 6, "Loading
 * rules").
 *
 * Threads: one owner; ds_scan_run shares the work out to a pool.   Memory: a pointer for each tensor. */
#ifndef DS_MODEL_SCAN_H
#define DS_MODEL_SCAN_H

#include "base/pool.h"
#include "format/safetensors.h"

#define DS_SCAN_AT_LOAD_BYTES (64u << 20) /* tables from this size on are checked row by row as they are read */

typedef struct {
    const ds_tensor **t;
    size_t n, cap;
} ds_scan;

bool ds_scan_add(ds_scan *s, const ds_tensor *t); /* false: the heap is exhausted */
/* DS_E_FORMAT names file, tensor and element of the first bad value, in the order of adding, however many threads
 * look. pool may be NULL. */
ds_rc ds_scan_run(const ds_scan *s, const ds_st *st, ds_pool *pool, ds_err *err);
void ds_scan_fini(ds_scan *s);

#endif
