/* What the commands that make a service of a model have in common: `serve` for itself, `engine` for others. */
#ifndef DS_CLI_SERVICE_CLI_H
#define DS_CLI_SERVICE_CLI_H

#include <math.h>

#include "cli/model_cli.h"
#include "role/service.h"

typedef struct {
    const char *cache_dir, *device, *speculate, *kv;
    ds_opt_list kv_dirs;
    int mode, act, kernels;
    bool prefix_cache, pin;
    int64_t threads, ranks, engines, context, max_running, max_requests, step_tokens, prefills, replay_keep, kv_blocks, saved_states,
        verify_rows;
    uint64_t memory, kv_memory, kv_capacity, target_tbt_ms;
} ds_cli_service_opts;

/* Entries of an option table whose options struct has a ds_cli_service_opts at `base`. */
/* clang-format off */
#define DS_CLI_OPTS_SERVICE(base) \
    { .name = "cache-dir", .type = DS_OPT_STR, .offset = (base) + offsetof(ds_cli_service_opts, cache_dir), .arg = "DIR", .help = "where digests of model files are remembered (default: deepserve in the user's cache directory)" }, \
    { .name = "context", .type = DS_OPT_INT, .offset = (base) + offsetof(ds_cli_service_opts, context), .def = "0", .arg = "TOKENS", .min = 0, .max = INT32_MAX, .help = "prompt and answer at most; 0 = the model's limit, or what fits" }, \
    { .name = "max-running", .type = DS_OPT_INT, .offset = (base) + offsetof(ds_cli_service_opts, max_running), .def = "16", .arg = "N", .min = 1, .max = 4096, .help = "answers computed at a time" }, \
    { .name = "max-requests", .type = DS_OPT_INT, .offset = (base) + offsetof(ds_cli_service_opts, max_requests), .def = "256", .arg = "N", .min = 1, .max = 1 << 20, .help = "requests accepted and not ended, waiting ones too; more get a 429" }, \
    { .name = "memory", .type = DS_OPT_BYTES, .offset = (base) + offsetof(ds_cli_service_opts, memory), .def = "0", .arg = "BYTES", .min = 0, .max = INFINITY, .help = "for caches and buffers; 0 = up to 90% of what is free, less the weights" }, \
    { .name = "kv-memory", .type = DS_OPT_BYTES, .offset = (base) + offsetof(ds_cli_service_opts, kv_memory), .def = "0", .arg = "BYTES", .min = 0, .max = INFINITY, .help = "of that, for prefixes that leave the engine's own blocks: they come back from there; 0 = none" }, \
    { .name = "kv-dir", .type = DS_OPT_LIST, .offset = (base) + offsetof(ds_cli_service_opts, kv_dirs), .arg = "DIR", .help = "keep prefixes in this directory: they are there after a restart too. May be repeated, each is a device then, and one or two of them may fail. Or in a pool of Ceph: rados://POOL[/NAMESPACE][?conf=FILE][&id=NAME]" }, \
    { .name = "kv", .type = DS_OPT_STR, .offset = (base) + offsetof(ds_cli_service_opts, kv), .arg = "unix:PATH", .help = "keep prefixes in the store of this kvd, which other servers use too; instead of --kv-dir" }, \
    { .name = "kv-capacity", .type = DS_OPT_BYTES, .offset = (base) + offsetof(ds_cli_service_opts, kv_capacity), .def = "16GiB", .arg = "BYTES", .min = 0, .max = INFINITY, .help = "of all files in --kv-dir together; 0 = no bound" }, \
    { .name = "step-tokens", .type = DS_OPT_INT, .offset = (base) + offsetof(ds_cli_service_opts, step_tokens), .def = "512", .arg = "TOKENS", .min = 1, .max = 1 << 18, .help = "rows of an engine step at most" }, \
    { .name = "prefills", .type = DS_OPT_INT, .offset = (base) + offsetof(ds_cli_service_opts, prefills), .def = "4", .arg = "N", .min = 1, .max = 4096, .help = "prompts in progress at a time" }, \
    { .name = "replay-keep", .type = DS_OPT_INT, .offset = (base) + offsetof(ds_cli_service_opts, replay_keep), .def = "0", .arg = "TOKENS", .min = 0, .max = 1 << 16, .help = "of a cached prefix without saved state, computed again; 0 = the model's window. More come closer to a cold run" }, \
    { .name = "kv-blocks", .type = DS_OPT_INT, .offset = (base) + offsetof(ds_cli_service_opts, kv_blocks), .def = "0", .arg = "N", .min = 0, .max = 1 << 28, .help = "blocks of 128 tokens for prompts and answers; 0 = four contexts, or what --memory leaves" }, \
    { .name = "saved-states", .type = DS_OPT_INT, .offset = (base) + offsetof(ds_cli_service_opts, saved_states), .def = "0", .arg = "N", .min = 0, .max = 1 << 18, .help = "states that prompts can be continued from; 0 = twice --max-running" }, \
    { .name = "verify-rows", .type = DS_OPT_INT, .offset = (base) + offsetof(ds_cli_service_opts, verify_rows), .def = "64", .arg = "N", .min = 1, .max = 1 << 16, .help = "draft tokens of all answers verified in a step at most" }, \
    { .name = "target-tbt", .type = DS_OPT_MS, .offset = (base) + offsetof(ds_cli_service_opts, target_tbt_ms), .def = "0", .arg = "TIME", .min = 0, .max = INFINITY, .help = "wanted time between tokens; prompts get what decoding leaves of it; 0 = no target" }, \
    { .name = "prefix-cache", .type = DS_OPT_FLAG, .offset = (base) + offsetof(ds_cli_service_opts, prefix_cache), .def = "true", .help = "share what prompts have in common" }, \
    { .name = "speculate", .type = DS_OPT_STR, .offset = (base) + offsetof(ds_cli_service_opts, speculate), .def = "auto", .arg = "auto|off|N", .help = "draft tokens verified a step; never changes the text" }, \
    { .name = "mode", .type = DS_OPT_ENUM, .offset = (base) + offsetof(ds_cli_service_opts, mode), .def = "ced", .arg = "NAME", .choices = "exact|ced", .help = "all layers on the whole prompt, or the decoder on its end only" }, \
    { .name = "act", .type = DS_OPT_ENUM, .offset = (base) + offsetof(ds_cli_service_opts, act), .def = "f32", .arg = "NAME", .choices = "f32|bf16", .help = "activations" }, \
    DS_CLI_OPT_DEVICE((base) + offsetof(ds_cli_service_opts, device)), \
    DS_CLI_OPT_KERNELS((base) + offsetof(ds_cli_service_opts, kernels)), \
    { .name = "threads", .type = DS_OPT_INT, .offset = (base) + offsetof(ds_cli_service_opts, threads), .arg = "N", .min = 1, .max = 1024, .help = "threads of the model (default: one for each CPU)" }, \
    DS_CLI_OPT_RANKS((base) + offsetof(ds_cli_service_opts, ranks)), \
    DS_CLI_OPT_PIN((base) + offsetof(ds_cli_service_opts, pin)), \
    { .name = "engines", .type = DS_OPT_INT, .offset = (base) + offsetof(ds_cli_service_opts, engines), .def = "1", .arg = "N", .min = 1, .max = DS_GEN_MANY_MAX, .help = "engines on the one model; they share its threads, --memory, --kv-memory, --kv-blocks, --saved-states, --max-running, --max-requests and --prefills" },
/* clang-format on */

/* Values that the option table can't judge. An exit status, or -1: nothing is wrong. */
int ds_cli_service_check(const ds_cli_service_opts *m, const char *command);
/* encoding: the option's, 1 = v4. cache: room for a default path. */
void ds_cli_service_get(ds_service_opts *o, const ds_cli_service_opts *m, int encoding, char *cache, size_t cap);
/* What was opened and what it takes, to standard error. */
void ds_cli_service_say(const ds_service *s, const ds_cli_service_opts *m);
void ds_cli_service_say_experts(const ds_service *s); /* of that, whether memory holds all experts; nothing if it does */

#endif
