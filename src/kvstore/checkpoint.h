/* The index's checkpoint (docs/formats/index-checkpoint.md): what a store that stops writes down, so that it knows at
 * once what it has when it starts again. The footers of its segments say the same, slower, and nothing is lost with
 * it: in any doubt it isn't believed.
 *
 * It holds for a store that nobody has changed since: it is removed before the first change.
 * Threads: one; load has two helpers of its own, which end with it.   Memory: 9 MiB, the segments' numbers and 4 bytes
 * for each MiB of the file. */
#ifndef DS_KVSTORE_CHECKPOINT_H
#define DS_KVSTORE_CHECKPOINT_H

#include "kvstore/index.h"

typedef struct ds_checkpoint ds_checkpoint;

typedef struct {
    uint8_t id[32];
    uint32_t block_bytes;
} ds_checkpoint_layout;

typedef struct {
    uint64_t segment, generation;
} ds_checkpoint_segment;

enum { DS_CHECKPOINT_LAYOUTS = 256 };

/* What there is. Layouts by number, as the index's blocks name them; segments in ascending order. */
typedef struct {
    uint8_t store[16];
    const ds_checkpoint_layout *layouts;
    const ds_checkpoint_segment *segments;
    uint32_t n_layouts;
    uint64_t n_segments;
} ds_checkpoint_of;

/* Bytes of the file for this index, with as many layouts and segments. */
uint64_t ds_checkpoint_bytes(const ds_checkpoint_of *w, const ds_index *ix);
/* Writes it into the directory, whole or not at all. DS_E_IO, DS_E_NOMEM. */
ds_rc ds_checkpoint_write(const char *dir, const ds_checkpoint_of *w, const ds_index *ix, ds_err *err);
/* False: there is one, and it can't be removed. */
bool ds_checkpoint_remove(const char *dir);

/* Reads what is in front of the blocks. DS_E_IO: there is none, or it can't be read; DS_E_FORMAT; DS_E_NOMEM. */
ds_rc ds_checkpoint_open(ds_checkpoint **out, const char *dir, ds_err *err);
ds_rc ds_checkpoint_read(ds_checkpoint **out, int fd, ds_err *err); /* the same; fd is the reader's from then on */
const ds_checkpoint_of *ds_checkpoint_what(const ds_checkpoint *c); /* valid until close */
/* Reads the blocks into an index that has none. layout[i]: what the index calls layout i. DS_E_FORMAT: it isn't what
 * a store writes, or for a larger index; DS_E_NOMEM. Then the index is good for destroy only. */
ds_rc ds_checkpoint_load(ds_checkpoint *c, ds_index *ix, const uint32_t layout[DS_CHECKPOINT_LAYOUTS], ds_err *err);
void ds_checkpoint_close(ds_checkpoint *c); /* NULL is fine */

#endif
