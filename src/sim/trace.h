/* Request logs, a row at a time.
 *
 *   mooncake  JSON lines {"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [a block of 512 tokens
 *             each]}; equal ids are equal text
 *   azure     CSV with the columns TIMESTAMP,ContextTokens,GeneratedTokens
 *   access    the access log of `deepserve serve`: JSON lines with time, ms, prompt_tokens, output_tokens and
 *             cached_tokens; lines of requests that had no tokens are passed over
 *
 * Reading is reading of outside bytes: what is wrong is said with the file's name and row. Rows stand in the order of
 * their times, but for the access log, which is written when requests end; it is sorted by their beginning.
 *
 * Threads: one owner.   Memory: one row; of an access log 32 bytes a request. */
#ifndef DS_SIM_TRACE_H
#define DS_SIM_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum { DS_SIM_TRACE_BLOCK = 512, DS_SIM_TRACE_TOKENS = 1 << 27 /* of a row, at most */ };

typedef enum { DS_SIM_MOONCAKE, DS_SIM_AZURE, DS_SIM_ACCESS, DS_SIM_FORMS } ds_sim_form;

typedef struct ds_sim_trace ds_sim_trace;

typedef struct {
    uint64_t at_ns;         /* from the first row */
    uint32_t input, output; /* tokens, output >= 1 */
    uint32_t cached;        /* access: of the input, as it was */
    const uint64_t *ids;    /* mooncake; valid until the next row */
    size_t n_ids;
} ds_sim_row;

/* DS_E_IO, DS_E_NOMEM, DS_E_FORMAT; then *out is NULL. */
ds_rc ds_sim_trace_open(ds_sim_trace **out, const char *path, ds_sim_form form, ds_err *err);
/* The same of text in memory, borrowed until it is closed. */
ds_rc ds_sim_trace_text(ds_sim_trace **out, const char *text, size_t n, const char *label, ds_sim_form form, ds_err *err);
void ds_sim_trace_close(ds_sim_trace *t);
/* *more is false at the end. DS_E_FORMAT, DS_E_IO, DS_E_NOMEM. */
ds_rc ds_sim_trace_next(ds_sim_trace *t, ds_sim_row *row, bool *more, ds_err *err);

#endif
