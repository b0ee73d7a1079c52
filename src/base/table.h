/* A table of records that come and go, with ids that tell a record from the one that had its place before.
 *
 * A record is a struct whose first member is a ds_record. Its id is its place and a generation that grows each time
 * the place is taken: an id that is over finds nothing. The table grows by doubling, which moves records: a pointer
 * holds until the next take, an id until the record is given back. A table that is all zero but for `bytes` is empty.
 *
 * Threads: none of its own; the owner's lock.   Memory: never shrinks before fini. */
#ifndef DS_BASE_TABLE_H
#define DS_BASE_TABLE_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint64_t id; /* generation << 32 | place, generation > 0; 0: free */
    uint32_t generation;
    uint32_t next_free; /* place + 1; 0: the last */
} ds_record;

typedef struct {
    size_t bytes; /* of a record */
    void *records;
    uint32_t n;      /* places */
    uint32_t n_live; /* records that are taken */
    uint32_t free;   /* place + 1; 0: none */
} ds_table;

/* A record of zeros with an id of its own. NULL: out of memory, or no places are left. O(1), amortised. */
void *ds_table_take(ds_table *t);
/* NULL: that record was given back, or never was. O(1). */
void *ds_table_get(const ds_table *t, uint64_t id);
/* Whatever record has that place now. NULL: none. O(1). */
void *ds_table_at(const ds_table *t, uint32_t place);
/* The record's memory is the table's again; what it points to is the caller's. O(1). */
void ds_table_give(ds_table *t, void *record);
/* Each record once, in the order of places: begins with NULL, and ends with it. Giving back the one that was got is
 * fine, taking isn't. O(places) for all. */
void *ds_table_next(const ds_table *t, const void *after);
void ds_table_fini(ds_table *t);

#endif
