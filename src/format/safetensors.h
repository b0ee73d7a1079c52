/* Safetensors: one file or a sharded checkpoint, mapped and never copied (model spec, section 6 "Loading rules").
 *
 * Opening reads headers and the index only; no tensor byte is touched. Refused, each with file and tensor:
 * truncation, spans that overlap, leave holes or differ from shape x dtype, bytes after the last span, a name twice,
 * a header above 100 MB, an index that names a file outside the directory, a missing file or a tensor that its file
 * doesn't hold, anything but regular files. Accepted: any order, any alignment, tensors of any dtype that nobody
 * uses. A file that somebody shortens while it is mapped ends the process with SIGBUS when the lost part is read.
 * Threads: immutable after opening.   Memory: about 120 bytes a tensor, and one header at a time while opening. Time
 * is linear. */
#ifndef DS_FORMAT_SAFETENSORS_H
#define DS_FORMAT_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define DS_ST_HEADER_MAX_BYTES 100000000u /* the index file too */
#define DS_ST_MAX_SHARDS 1024u
#define DS_ST_MAX_TENSORS 4194304u
#define DS_ST_MAX_NDIM 32u
#define DS_ST_INDEX_NAME "model.safetensors.index.json"

typedef enum {
    DS_DT_OTHER, /* a dtype that we don't know: its size isn't checked */
    DS_DT_BOOL,
    DS_DT_U8,
    DS_DT_I8,
    DS_DT_F8_E5M2,
    DS_DT_F8_E4M3,
    DS_DT_F8_E8M0,
    DS_DT_U16,
    DS_DT_I16,
    DS_DT_F16,
    DS_DT_BF16,
    DS_DT_U32,
    DS_DT_I32,
    DS_DT_F32,
    DS_DT_U64,
    DS_DT_I64,
    DS_DT_F64,
} ds_dtype;

size_t ds_dtype_bytes(ds_dtype t);     /* of one element; 0 for DS_DT_OTHER */
const char *ds_dtype_name(ds_dtype t); /* as in the header: "BF16"; "?" for DS_DT_OTHER */

typedef struct {
    const char *name;      /* NUL-terminated; a NUL inside it counts in name_len */
    const uint64_t *shape; /* ndim entries */
    const void *data;      /* in the mapping, at any alignment */
    uint64_t bytes;
    uint32_t name_len;
    uint16_t shard;
    uint8_t ndim;
    uint8_t dtype; /* ds_dtype */
} ds_tensor;

typedef struct ds_st ds_st;

/* `path` is a directory (with DS_ST_INDEX_NAME, or else all its .safetensors files) or one file. On failure *out is
 * NULL. DS_E_FORMAT, DS_E_IO, DS_E_NOMEM. */
ds_rc ds_st_open(ds_st **out, const char *path, ds_err *err);
void ds_st_close(ds_st *st); /* NULL is fine; every ds_tensor and its data end here */

/* NULL when there is none. O(1). */
const ds_tensor *ds_st_find(const ds_st *st, const char *name);

/* All tensors, in no particular order; with an index only those that it lists. */
const ds_tensor *ds_st_tensors(const ds_st *st, size_t *n);
size_t ds_st_shards(const ds_st *st);
const char *ds_st_shard_path(const ds_st *st, size_t shard);
uint64_t ds_st_data_bytes(const ds_st *st);                 /* sum over ds_st_tensors */
uint64_t ds_st_data_start(const ds_st *st, size_t shard);   /* bytes of a file in front of its first tensor: length and header */
uint64_t ds_st_offset(const ds_st *st, const ds_tensor *t); /* of its data in its file */

/* Index of the first element that is NaN or infinite (floats), NaN (E4M3, E8M0); UINT64_MAX if there is none or the
 * dtype has no such values. `data` may have any alignment. Runs at memory speed. */
uint64_t ds_st_first_bad(ds_dtype t, const void *data, uint64_t n_elements);

#endif
