/* Rows of option tables that several commands have, so that a name means the same everywhere. `at` is
 * offsetof(options, member). */
#ifndef DS_CLI_OPTIONS_H
#define DS_CLI_OPTIONS_H

#include "cli/kernels.h"

/* clang-format off */
/* running a model */
#define DS_CLI_OPT_MODEL(at) { .name = "model", .type = DS_OPT_STR, .offset = at, .arg = "DIR", .required = true, .help = "model directory" }
#define DS_CLI_OPT_IDS(at, required_, help_) { .name = "tokens", .type = DS_OPT_STR, .offset = at, .arg = "IDS", .required = required_, .help = help_ }
#define DS_CLI_OPT_MODE(at, def_, help_) \
    { .name = "mode", .type = DS_OPT_ENUM, .offset = at, .def = def_, .arg = "NAME", .choices = "exact|ced", .help = help_ }
#define DS_CLI_OPT_ACT(at) { .name = "act", .type = DS_OPT_ENUM, .offset = at, .def = "f32", .arg = "NAME", .choices = "f32|bf16", .help = "activations" }
#define DS_CLI_OPT_DEVICE(at) \
    { .name = "device", .type = DS_OPT_STR, .offset = at, .def = "cpu", .arg = "cpu|cuda[:N]|auto", .help = "what the model computes on; auto: a GPU where there is one" }
#define DS_CLI_OPT_KERNELS(at) \
    { .name = "kernels", .type = DS_OPT_ENUM, .offset = at, .def = "best", .arg = "NAME", .choices = DS_CLI_KERNELS, .help = "instruction set of the CPU" }
#define DS_CLI_OPT_THREADS(at) \
    { .name = "threads", .type = DS_OPT_INT, .offset = at, .arg = "N", .min = 1, .max = 1024, .help = "threads (default: one for each CPU)" }
#define DS_CLI_OPT_RANKS(at) \
    { .name = "ranks", .type = DS_OPT_INT, .offset = at, .def = "1", .arg = "N", .min = 1, .max = 128, \
      .help = "processes that hold a part of the model's experts each; they share --threads. Changes no result" }
#define DS_CLI_OPT_PIN(at) \
    { .name = "pin", .type = DS_OPT_FLAG, .offset = at, .help = "helper threads stay each on a CPU of its own (not when there are more threads than CPUs)" }
#define DS_CLI_OPT_CHUNK(at) \
    { .name = "chunk", .type = DS_OPT_INT, .offset = at, .def = "512", .arg = "TOKENS", .min = 1, .max = 1 << 20, \
      .help = "prompt tokens of a step; doesn't change a bit of the result" }

/* requests and answers */
#define DS_CLI_OPT_PROTOCOL(at, help_) \
    { .name = "protocol", .type = DS_OPT_ENUM, .offset = at, .def = "chat", .arg = "NAME", .choices = "chat|responses|messages|completions", .help = help_ }
#define DS_CLI_OPT_ENCODING(at) \
    { .name = "encoding", .type = DS_OPT_ENUM, .offset = at, .def = "v4.1", .arg = "NAME", .choices = "v4.1|v4", .help = "dialect of the model" }
#define DS_CLI_OPT_SET(at) \
    { .name = "set", .type = DS_OPT_LIST, .offset = at, .arg = "NAME=VALUE", .help = "a switch of the recipe; `--set help` lists them" }
/* clang-format on */

#endif
