/* The list of subcommands, in the order of `deepserve --help`. One line each. */
#include "cli/cli.h"

#include <stddef.h>

const ds_cmd ds_commands[] = {
    { "bench", ds_cmd_bench, "the kernels next to what the machine can do" },
    { "chat", ds_cmd_chat, "talk with a model in the terminal" },
    { "coord", ds_cmd_coord, "who is in a cluster: its members find each other there" },
    { "ctl", ds_cmd_ctl, "look after a cluster, or a KV store" },
    { "engine", ds_cmd_engine, "an engine process, for entries" },
    { "entry", ds_cmd_entry, "the API over HTTP, on engines of other processes" },
    { "generate", ds_cmd_generate, "prompts to text, one or many" },
    { "grammar", ds_cmd_grammar, "a constraint at the shell: match, mask, compile, sample" },
    { "inspect", ds_cmd_inspect, "shape, layers, bytes and memory plan of a model" },
    { "kvd", ds_cmd_kvd, "the KV store, for the engines of this machine" },
    { "logits", ds_cmd_logits, "token ids to logits" },
    { "draft", ds_cmd_draft, "what the draft blocks propose after a prompt" },
    { "parse", ds_cmd_parse, "model output to an API response or its stream events" },
    { "rank", ds_cmd_rank, "one of the processes of --ranks; nobody types it" },
    { "render", ds_cmd_render, "an API request to the prompt and its token ids" },
    { "serve", ds_cmd_serve, "the API over HTTP" },
    { "keys", ds_cmd_keys, "API keys for serve" },
    { "plan", ds_cmd_plan, "how many instances a load needs, and what they cost" },
    { "sim", ds_cmd_sim, "a deployment and its load on a virtual clock" },
    { "synth", ds_cmd_synth, "a random checkpoint from a config and a seed" },
    { "tokenize", ds_cmd_tokenize, "text to token ids and back" },
    { "up", ds_cmd_up, "a whole cluster on this machine, from one file" },
    { NULL, NULL, NULL },
};
