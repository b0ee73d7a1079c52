/* What lies where in a KV block and in a state slot, as data: two processes may exchange their bytes when their
 * layouts are equal.
 *
 * A layout lists *parts*: rows of records of one kind. Those of a block come first, then those of a slot. Written
 * down canonically (docs/formats/kv-block.md), its SHA-256 is the layout id, which is in every block's key: what one
 * process can't read or wouldn't have computed bit for bit, it doesn't find. Who fills it: the model the places
 * (ds_model_kv_layout), the engine what it computes with (mode, activations). Threads: plain data.   Memory: none is
 * allocated. */
#ifndef DS_KV_LAYOUT_H
#define DS_KV_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* Tokens of a block: the one place that says so. Part of every format and key; another value is another
 * DS_KV_LAYOUT_VERSION. */
#define DS_KV_BLOCK_TOKENS 128
/* Rows of a verify step that window rings have room for behind the window at least, so that rejected rows overwrite
 * nothing that may be read again. A model with longer draft blocks has more (ds_kv_layout.rollback). */
#define DS_KV_ROLLBACK 6

#define DS_KV_LAYOUT_VERSION 1u /* of the records' meaning: changes whenever equal bytes would be read differently */

typedef enum {
    DS_KV_MAIN = 1, /* block: entries of a KV source, record j of entry j */
    DS_KV_INDEX,    /* block: its index keys */
    DS_KV_WINDOW,   /* slot: a layer's window records, ring by position */
    DS_KV_OPEN,     /* slot: first halves of a ratio-2 source's entries, ring by position */
    DS_KV_HISTORY,  /* slot: token classes for Engram, ring by position */
} ds_kv_record;

typedef struct {
    ds_kv_record record;
    uint32_t of;     /* MAIN, INDEX, OPEN: ordinal of the KV source; WINDOW: layer, drafts behind the backbone; HISTORY: 0 */
    uint32_t ratio;  /* tokens that a record stands for */
    uint32_t bytes;  /* of a record; records lie side by side */
    uint32_t count;  /* of records; in a slot, position p is record p % count */
    uint64_t offset; /* of the first, in the block or the slot */
} ds_kv_part;

typedef enum {
    DS_KV_CED,        /* prompts: the decoder on the last window only; entries may rest on a replay */
    DS_KV_CED_STRICT, /* the same, never on a replay */
    DS_KV_EXACT,      /* all layers on every token */
} ds_kv_mode;

enum { DS_KV_MAX_PARTS = 1088, DS_KV_NUMERICS_BYTES = 16, DS_KV_LAYOUT_MAX_BYTES = 72 + 32 * DS_KV_MAX_PARTS };

typedef struct {
    uint32_t version, block_tokens;
    uint32_t window, ring, rollback; /* positions: of a window, of a ring of window records, ring - window */
    ds_kv_mode mode;
    uint32_t bf16;                       /* activations: 0 = f32, 1 = bf16 */
    char numerics[DS_KV_NUMERICS_BYTES]; /* whose arithmetic ("ref", "avx2"): other kernels give other last bits. Zeros behind it */
    uint64_t block_bytes, slot_bytes;
    uint32_t n_parts;
    ds_kv_part part[DS_KV_MAX_PARTS];
} ds_kv_layout;

/* Writes the canonical bytes, at most DS_KV_LAYOUT_MAX_BYTES of them, and returns their number. */
size_t ds_kv_layout_write(uint8_t *out, const ds_kv_layout *l);
/* The reverse. Outside bytes: DS_E_FORMAT says what is wrong, and then *l holds anything. */
ds_rc ds_kv_layout_read(ds_kv_layout *l, const uint8_t *in, size_t n, ds_err *err);
/* The first thing in which two layouts differ, "" when they are equal: a name and both values, for an operator. */
const char *ds_kv_layout_difference(char *buf, size_t cap, const ds_kv_layout *a, const ds_kv_layout *b);
void ds_kv_layout_id(uint8_t id[32], const ds_kv_layout *l);

#endif
