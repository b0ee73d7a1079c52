/* tokenizer.json: text to token ids and back. (recipe spec 1)
 *
 * A ds_tokenizer is the loaded file: immutable, shared by any number of threads. A ds_encoder is one thread's
 * working memory (piece cache, scratch); it may own helper threads of its own. A ds_decoder is a small struct in the
 * caller's storage, one for each output stream.
 *
 * Text is bytes. It is never searched for added tokens: those enter a prompt only as control runs. Bytes that are
 * not UTF-8 are pieces of their own, one token each, and decoding gives them back unchanged. So encoding refuses
 * text only for its size, or when a foreign split pattern exceeds its match limit.
 *
 * Of the file, `truncation`, `padding` and `post_processor` have no say in text -> ids and are not read. */
#ifndef DS_TOKENIZER_H
#define DS_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <ds/err.h>
#include <ds/run.h>
#include <ds/token.h>

#define DS_TOKENIZER_FILE_MAX (64u << 20) /* bytes of tokenizer.json */
#define DS_TOKENIZER_TEXT_MAX (1u << 30)  /* bytes of one text; runs: of all text together */

typedef struct ds_tokenizer ds_tokenizer;

/* ---- the file ---------------------------------------------------------------------------------------------------- */

/* Reads a regular file. On success *out owns the tokenizer, else *out is NULL. DS_E_IO, DS_E_FORMAT (what is wrong
 * with the file, with line and column or the token's name; the path is in front), DS_E_NOMEM. About 50 ms for 128k
 * tokens. */
ds_rc ds_tokenizer_open(ds_tokenizer **out, const char *path, ds_err *err);
/* The same from memory; `json` isn't needed afterwards. */
ds_rc ds_tokenizer_parse(ds_tokenizer **out, const char *json, size_t n, ds_err *err);
void ds_tokenizer_destroy(ds_tokenizer *t); /* NULL is fine; all encoders must be gone */

uint32_t ds_tokenizer_size(const ds_tokenizer *t); /* ids are 0 .. size-1, without holes, added tokens included: the model's vocab_size */

/* ---- single tokens ----------------------------------------------------------------------------------------------- */

/* The bytes that id stands for, added tokens as they are spelled; not terminated, valid as long as t. Unknown id: ""
 * with *n = 0. */
const char *ds_tokenizer_bytes(const ds_tokenizer *t, ds_token id, size_t *n);
size_t ds_tokenizer_max_bytes(const ds_tokenizer *t); /* of the longest token */

/* The added token with exactly this spelling, or DS_TOKEN_NONE. O(1). */
ds_token ds_tokenizer_control(const ds_tokenizer *t, const char *spelling);
ds_token ds_tokenizer_control_n(const ds_tokenizer *t, const char *spelling, size_t n);

typedef enum {
    DS_TOKEN_TEXT,    /* ordinary vocabulary */
    DS_TOKEN_CONTROL, /* added; its spelling stays in decoded text, because the output parser needs it (</think>, DSML) */
    DS_TOKEN_DROPPED, /* begin and end of sentence, padding, placeholders: never part of what a user sees */
    DS_TOKEN_UNKNOWN, /* no such id */
} ds_token_kind;
/* By the spec's list of spellings, never by the file's `special` flag. */
ds_token_kind ds_tokenizer_kind(const ds_tokenizer *t, ds_token id);

/* Compressed classes of all ids for the Engram tables (model spec 3.12): map[0 .. size) receives the class of each
 * id, *n_classes their count. Classes are numbered by first appearance. DS_E_NOMEM; about 100 ms for 129k ids. */
ds_rc ds_tokenizer_engram_map(const ds_tokenizer *t, uint32_t *map, uint32_t *n_classes, ds_err *err);

/* ---- encoding ---------------------------------------------------------------------------------------------------- */

typedef struct {
    ds_token *p; /* NULL while empty and never grown */
    size_t n, cap;
} ds_ids; /* zero-initialised is empty; owner: one thread */

void ds_ids_free(ds_ids *ids); /* back to zero-initialised */

typedef struct {
    uint32_t n_threads; /* 0 = 1; at most 64; helpers sleep between calls. Text below 64 KiB is always encoded by the caller alone */
    uint32_t
        cache_entries; /* pieces remembered by each thread, 64 bytes each; rounded up to a power of two in 1024 .. 1048576; 0 = 32768 */
} ds_encoder_opts;

typedef struct ds_encoder ds_encoder; /* one thread uses it at a time */

/* t must outlive it. opts may be NULL. DS_E_ARG, DS_E_NOMEM. */
ds_rc ds_encoder_create(ds_encoder **out, const ds_tokenizer *t, const ds_encoder_opts *opts, ds_err *err);
void ds_encoder_destroy(ds_encoder *e); /* NULL is fine */
const ds_tokenizer *ds_encoder_tokenizer(const ds_encoder *e);

/* Each appends to *ids and leaves it as it was on failure. The ids don't depend on threads, on the cache, or on what
 * was encoded before. Time is O(n), in files whose merges aren't in a trainer's order O(n log n) in the longest
 * piece. Scratch memory: at most 36 bytes for each byte of the longest piece; what exceeds 1 MiB is given back
 * before the call returns. DS_E_NOMEM; DS_E_ARG: text too long, a control run that names no added token, match
 * limit. */
ds_rc ds_encoder_text(ds_encoder *e, const char *text, size_t n, ds_ids *ids, ds_err *err);
/* Adjacent text runs are encoded as if they were one. Empty text runs are skipped. */
ds_rc ds_encoder_runs(ds_encoder *e, const ds_run *runs, size_t n_runs, ds_ids *ids, ds_err *err);
/* n texts at once: ids receives all of them one after another, ends[i] the value of ids->n after text i. */
ds_rc ds_encoder_batch(ds_encoder *e, const char *const *texts, const size_t *lens, size_t n, ds_ids *ids, size_t *ends, ds_err *err);

/* ---- decoding ---------------------------------------------------------------------------------------------------- */

/* Ids to text, one at a time: what is released is always valid UTF-8, and joined it is the bytes of all ids with
 * every ill-formed sequence (maximal subpart, as Unicode recommends) replaced by U+FFFD. At most 3 bytes are held
 * back, only while they may still become a character. Plain data: copy with = to fork a stream. Nothing allocates. */
typedef struct {
    const ds_tokenizer *t;
    uint32_t held_tokens; /* ids pushed and not yet accounted for */
    uint8_t held[3];
    uint8_t n_held;
    bool keep_dropped; /* DS_TOKEN_DROPPED ids give their spelling too */
} ds_decoder;

void ds_decoder_init(ds_decoder *d, const ds_tokenizer *t, bool keep_dropped);
/* Room that push and finish need at `out`: 3 * (longest token + 3). */
size_t ds_decoder_room(const ds_tokenizer *t);
/* Returns the bytes written to out. *n_tokens (may be NULL) receives how many ids this text accounts for: an id
 * whose last bytes are held counts with the piece that completes them; ids without text count at once, or with what
 * is held before them. */
size_t ds_decoder_push(ds_decoder *d, ds_token id, char *out, uint32_t *n_tokens);
/* End of stream: an incomplete tail is dropped with its tokens (*n_tokens = 0), or with `replace` becomes one
 * U+FFFD. Ready for a new stream then. */
size_t ds_decoder_finish(ds_decoder *d, bool replace, char *out, uint32_t *n_tokens);

#endif
