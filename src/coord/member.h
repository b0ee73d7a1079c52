/* What the coord keeps of each process of a cluster, and the bytes of it (docs/formats/coord.md): in its messages, and
 * in its journal. All that is read is outside bytes.
 *
 * Threads: none.   Memory: plain values; a member has room for all of itself. */
#ifndef DS_COORD_MEMBER_H
#define DS_COORD_MEMBER_H

#include "base/buf.h"
#include "net/frame.h"
#include "policy/instance.h"

enum { DS_COORD_NAME = 48, DS_COORD_WORD = 32, DS_COORD_ADDRESS = 160, DS_COORD_MAX_MEMBERS = 1024 };

typedef struct {
    char name[DS_COORD_NAME];       /* of one live process at a time: letters, digits, - _ . */
    char role[DS_COORD_WORD];       /* "mixed", "entry", "store", … */
    char address[DS_COORD_ADDRESS]; /* where it listens */
    char version[DS_COORD_WORD];    /* the program's */
    uint64_t instance;              /* of the process: random, never 0 */
    uint8_t model[32];              /* digest of what engines and entries must have in common; zeros: it has none */
    ds_instance_state state;
    uint64_t epoch; /* given by the coord, higher than any before; another one is another process of that name */
    bool drain;     /* somebody wants it away */
    /* as it said last; not in the journal */
    uint32_t live;              /* requests */
    uint64_t kv_used, kv_total; /* blocks of an engine, bytes of a store; 0 of 0: it has none */
} ds_coord_member;

/* DS_E_ARG says what is wrong with what a process says of itself. */
ds_rc ds_coord_member_check(const ds_coord_member *m, ds_err *err);

void ds_coord_put_member(ds_buf *b, const ds_coord_member *m);
/* False: what is left is no member; in->bad. */
bool ds_coord_read_member(ds_coord_member *m, ds_frame_in *in);

/* Numbers and texts of at most cap - 1 bytes, little-endian; reading sets in->bad. */
void ds_coord_put_u32(ds_buf *b, uint32_t v);
void ds_coord_put_u64(ds_buf *b, uint64_t v);
void ds_coord_put_text(ds_buf *b, const char *s);
void ds_coord_read_text(char *out, size_t cap, ds_frame_in *in);

#endif
