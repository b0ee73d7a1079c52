/* What generate and chat share: the options, an opened model with its tokenizer and generator, and output text with
 * stop strings. */
#ifndef DS_CLI_GEN_H
#define DS_CLI_GEN_H

#include <math.h>

#include <ds/llm.h>
#include <ds/request.h>
#include <ds/tokenizer.h>

#include "base/buf.h"
#include "constrain/constrain.h"
#include "cli/model_cli.h"

typedef struct {
    const char *model, *speculate, *device, *kv_dir;
    int mode, act, kernels;
    int64_t threads, ranks, parallel, chunk, context, max_tokens, min_tokens, top_k, seed;
    bool ignore_eos, pin;
    double temperature, top_p, min_p, repetition, presence, frequency;
    uint64_t kv_capacity;
    ds_opt_list stop;
    ds_constrain_what what; /* of answers whose request says nothing; not an option itself */
} ds_cli_gen_opts;

/* Entries of an option table whose options struct has a ds_cli_gen_opts called g. */
/* clang-format off */
#define DS_CLI_GEN_TABLE(options_type) \
    DS_CLI_OPT_MODEL(offsetof(options_type, g.model)), \
    { .name = "max-tokens", .type = DS_OPT_INT, .offset = offsetof(options_type, g.max_tokens), .def = "1024", .arg = "N", .min = 1, .max = INT32_MAX, \
      .help = "tokens of an answer at most" }, \
    { .name = "temperature", .type = DS_OPT_REAL, .offset = offsetof(options_type, g.temperature), .def = "1", .arg = "T", .min = 0, .max = 100, \
      .help = "0 always takes the most likely token" }, \
    { .name = "top-p", .type = DS_OPT_REAL, .offset = offsetof(options_type, g.top_p), .def = "1", .arg = "P", .min = 0, .max = 1, .open_min = true, \
      .help = "smallest set of tokens that reaches this probability; 1 = off" }, \
    { .name = "top-k", .type = DS_OPT_INT, .offset = offsetof(options_type, g.top_k), .def = "0", .arg = "N", .min = 0, .max = INT32_MAX, \
      .help = "only the N most likely tokens; 0 = off" }, \
    { .name = "min-p", .type = DS_OPT_REAL, .offset = offsetof(options_type, g.min_p), .def = "0", .arg = "P", .min = 0, .max = 1, \
      .help = "only tokens with P times the best one's probability; 0 = off" }, \
    { .name = "repetition-penalty", .type = DS_OPT_REAL, .offset = offsetof(options_type, g.repetition), .def = "1", .arg = "F", .min = 0, .max = 100, \
      .open_min = true, .help = "divides the logits of tokens that occurred; 1 = off" }, \
    { .name = "presence-penalty", .type = DS_OPT_REAL, .offset = offsetof(options_type, g.presence), .def = "0", .arg = "X", .min = -100, .max = 100, \
      .help = "taken from the logits of tokens in the answer" }, \
    { .name = "frequency-penalty", .type = DS_OPT_REAL, .offset = offsetof(options_type, g.frequency), .def = "0", .arg = "X", .min = -100, .max = 100, \
      .help = "the same for each time they occurred" }, \
    { .name = "seed", .type = DS_OPT_INT, .offset = offsetof(options_type, g.seed), .def = "0", .arg = "N", .min = 0, .max = 0x1p62, \
      .help = "the same seed gives the same text" }, \
    { .name = "stop", .type = DS_OPT_LIST, .offset = offsetof(options_type, g.stop), .arg = "TEXT", .help = "end the answer before this text; may be repeated" }, \
    { .name = "speculate", .type = DS_OPT_STR, .offset = offsetof(options_type, g.speculate), .def = "auto", .arg = "auto|off|N", \
      .help = "draft tokens verified a step; never changes the text" }, \
    DS_CLI_OPT_MODE(offsetof(options_type, g.mode), "ced", "all layers on the whole prompt, or the decoder on its end only"), \
    DS_CLI_OPT_ACT(offsetof(options_type, g.act)), \
    DS_CLI_OPT_DEVICE(offsetof(options_type, g.device)), \
    DS_CLI_OPT_KERNELS(offsetof(options_type, g.kernels)), \
    DS_CLI_OPT_THREADS(offsetof(options_type, g.threads)), \
    DS_CLI_OPT_RANKS(offsetof(options_type, g.ranks)), \
    DS_CLI_OPT_PIN(offsetof(options_type, g.pin)), \
    DS_CLI_OPT_CHUNK(offsetof(options_type, g.chunk)), \
    { .name = "kv-dir", .type = DS_OPT_STR, .offset = offsetof(options_type, g.kv_dir), .arg = "DIR", \
      .help = "keep prefixes in this directory, or in a pool of Ceph as in serve: the next run finds them" }, \
    { .name = "kv-capacity", .type = DS_OPT_BYTES, .offset = offsetof(options_type, g.kv_capacity), .def = "16GiB", .arg = "BYTES", .min = 0, .max = INFINITY, \
      .help = "of the files in --kv-dir; 0 = no bound" }, \
    { .name = "context", .type = DS_OPT_INT, .offset = offsetof(options_type, g.context), .def = "0", .arg = "TOKENS", .min = 0, .max = INT32_MAX, \
      .help = "prompt and answer at most; 0 = the model's limit, or what fits" }
/* clang-format on */

typedef struct {
    ds_llm *llm;
    ds_encoder *encoder;
    /* parts of llm */
    const ds_model *model;
    const ds_tokenizer *tokenizer;
    ds_engine *engine;
    bool fetch; /* addresses of pictures are followed */
    const ds_token *stop_ids;
    size_t n_stop_ids;
    uint32_t context, parallel; /* tokens; sequences */
} ds_cli_gen;

/* What the options say of draws. */
ds_sampling ds_cli_sampling(const ds_cli_gen_opts *o);
/* The value of --speculate: auto, off or a number. -1, or after a message about anything else the exit status. */
int ds_cli_speculate(int *out, const char *word, const char *command);
/* Opens all of it and starts the engine, for `parallel` sequences at a time. A context of 0 becomes the model's
 * limit, or less where memory is short (said on standard error). On failure nothing is held. */
ds_rc ds_cli_gen_open(ds_cli_gen *g, const ds_cli_gen_opts *o, int speculate, uint32_t parallel, ds_err *err);
void ds_cli_gen_close(ds_cli_gen *g);

/* An event of the request, or NULL every now and then while nothing happens. False cancels it; its events go on to
 * the end. */
typedef bool ds_cli_event_fn(void *ctx, const ds_event *ev);
/* One request to its end. DS_E_FORMAT: the model failed. */
ds_rc ds_cli_gen_run(ds_cli_gen *g, const ds_gen_request *q, ds_cli_event_fn *fn, void *ctx, ds_err *err);
/* Why an end with DS_ENDED_FAILED, DS_ENDED_LOST or DS_ENDED_DEADLINE is one, into err. */
ds_rc ds_cli_gen_failure(const ds_event *end, ds_err *err);

/* Output text of one answer. The engine finds stop strings; it counts bytes of tokens, and here a character that
 * isn't whole has none, or those of its replacement. */
typedef struct {
    ds_decoder dec;
    char *room;
    ds_buf text;
    size_t sent;   /* bytes that the caller has shown */
    uint32_t held; /* bytes at the end that may become part of a stop string */
    size_t clear;  /* bytes that were safe before the last token */
} ds_cli_text;

ds_rc ds_cli_text_init(ds_cli_text *t, const ds_tokenizer *tok, ds_err *err);
void ds_cli_text_fini(ds_cli_text *t);
/* Appends a token's text; held_bytes: of its event. Check text.oom at the end. */
void ds_cli_text_push(ds_cli_text *t, ds_token id, uint32_t held_bytes);
/* The last token completed this stop string: the text ends before it, or with `keep` behind it. */
void ds_cli_text_cut(ds_cli_text *t, ds_str stop, bool keep);
/* Bytes of text that can't become part of a stop string any more. */
size_t ds_cli_text_safe(const ds_cli_text *t);

/* SIGINT and SIGTERM set a flag; a second one ends the program at once. Returns the number of the signal that came,
 * 0 if none. */
void ds_cli_signals_catch(void);
void ds_cli_signals_end(void); /* until then: they end the program with their status, before there is any result */
int ds_cli_signal(void);
void ds_cli_signal_forget(void); /* the next one is the first again */

#endif
