/* Random checkpoints in the released layout, for tests and for sizing (`deepserve synth`).
 *
 * The same config, seed and form give the same bytes on any machine and with any number of threads: every value is
 * integer random bits of (seed, tensor name, element) scaled by a float. Values are tame (model spec, section 8):
 * what a sublayer adds to the streams is small, and every mechanism (sinks, router biases, mHC, gates) is off its
 * neutral point. Threads: one caller; works with its own pool.   Memory: the tensor list, and about 8 MB a thread. */
#ifndef DS_FORMAT_SYNTH_H
#define DS_FORMAT_SYNTH_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "format/config.h"
#include "format/tensors.h"

#define DS_SYNTH_SHARD_BYTES ((uint64_t)6600 << 20) /* gives the released shape its 48 files */
#define DS_SYNTH_TOKENIZER_MIN_VOCAB 259u           /* three special tokens and 256 bytes */
#define DS_SYNTH_TOKENIZER_MAX_VOCAB 65536u

typedef struct {
    const ds_config *config;
    const char *config_text; /* as it was read; config_bytes long */
    size_t config_bytes;
    const char *out; /* directory; must not exist, or be empty */
    uint64_t seed;
    bool quantised;                      /* FP8, MXFP4 as released; else BF16 */
    bool sparse;                         /* right names, shapes and sizes, but no values: files of holes */
    uint32_t n_threads;                  /* 0: one for each CPU, at most 16 */
    uint64_t shard_bytes;                /* a file is closed before it would pass this; 0 = DS_SYNTH_SHARD_BYTES */
    const volatile sig_atomic_t *cancel; /* may be NULL; non-zero: stop, clean up, DS_E_CANCELED */
    void (*progress)(void *arg, uint64_t done_bytes, uint64_t total_bytes); /* may be NULL; called now and then */
    void *progress_arg;
} ds_synth_opts;

typedef struct {
    uint64_t tensors, bytes, shards;
    bool has_tokenizer; /* vocabularies of DS_SYNTH_TOKENIZER_MIN_VOCAB .. MAX_VOCAB */
} ds_synth_result;

/* Writes into a temporary directory beside `out` and renames it when all is there; on failure nothing is left. */
ds_rc ds_synth_write(const ds_synth_opts *o, ds_synth_result *result, ds_err *err);

/* Elements first .. first + n - 1 of a tensor's values; first is even. */
void ds_synth_values(float *out, const ds_tensor_want *w, const ds_config *c, uint64_t seed, uint64_t first, size_t n);

/* The tiny byte-level tokenizer.json: <｜begin▁of▁sentence｜>, <｜end▁of▁sentence｜>, <｜▁pad▁｜>, the bytes at 3 + b,
 * then added tokens. No merges. */
void ds_synth_tokenizer(ds_buf *out, uint32_t vocab_size);
/* How many Engram classes it has. */
static inline uint32_t ds_synth_tokenizer_classes(uint32_t vocab_size)
{
    return vocab_size - 29; /* 26 letters lose their case; tab, line feed, carriage return and space are one */
}

#endif
