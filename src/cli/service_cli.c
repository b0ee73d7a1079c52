#include "cli/service_cli.h"

#include <inttypes.h>
#include <stdio.h>

#include <ds/kvstore.h>

#include "base/hash.h"
#include "cli/gen.h"
#include "kern/device.h"

int ds_cli_service_check(const ds_cli_service_opts *m, const char *command)
{
    ds_err err = { 0 };
    int drafts, status = ds_cli_speculate(&drafts, m->speculate, command);

    if (status != -1)
        return status;
    if (m->kv && m->kv_dirs.n)
        return ds_cli_wrong(command, "--kv and --kv-dir exclude each other");
    if (ds_kvstore_check_places(m->kv_dirs.v, (uint32_t)m->kv_dirs.n, &err) != DS_OK)
        return ds_cli_wrong(command, "--kv-dir %s", err.msg);
    return -1;
}

void ds_cli_service_get(ds_service_opts *o, const ds_cli_service_opts *m, int encoding, char *cache, size_t cap)
{
    int drafts;

    ds_cli_speculate(&drafts, m->speculate, "serve"); /* checked before */
    o->place = (ds_llm_place){ m->device, ds_cli_kernels(m->kernels), { .n_threads = (uint32_t)m->threads, .pin = m->pin } };
    o->engine = (ds_engine_opts){
        .mode = m->mode == 0 ? DS_ENGINE_EXACT : DS_ENGINE_CED,
        .replay_keep = (uint32_t)m->replay_keep,
        .no_prefix_cache = !m->prefix_cache,
        .bf16 = m->act == 1,
        .max_context = (uint32_t)m->context,
        .max_running = (uint32_t)m->max_running,
        .max_requests = (uint32_t)m->max_requests,
        .max_samples = 32,
        .step_tokens = (uint32_t)m->step_tokens,
        .prefills = (uint32_t)m->prefills,
        .kv_blocks = (uint32_t)m->kv_blocks,
        .saved_states = (uint32_t)m->saved_states,
        .verify_rows = (uint32_t)m->verify_rows,
        .memory_bytes = m->memory,
        .kv_memory = m->kv_memory,
        .target_tbt_us = (uint32_t)(m->target_tbt_ms * 1000),
        .drafts = drafts,
    };
    o->engines = (uint32_t)m->engines;
    o->ranks = (uint32_t)m->ranks;
    o->program = "/proc/self/exe";
    o->dialect = encoding == 1 ? "v4" : "v4.1";
    o->cache_dir = m->cache_dir ? m->cache_dir : ds_cli_user_cache(cache, cap);
    o->kv_dirs = m->kv_dirs.v;
    o->n_kv_dirs = (uint32_t)m->kv_dirs.n;
    o->kv_capacity = m->kv_capacity;
    o->kv_address = m->kv;
}

static void say_model(const ds_service *s)
{
    const ds_model_digest_info *info;
    const ds_engine_identity *id = ds_service_identity(s, &info);
    char hex[17];

    if (!id)
        return;
    ds_hex(hex, id->model, 8);
    if (info->remembered)
        fprintf(stderr, "model: %s (remembered)\n", hex);
    else
        fprintf(stderr, "model: %s (%.1f MiB read%s%s)\n", hex, (double)info->read_bytes / 0x1p20,
                info->unkept.rc == DS_OK ? "" : "; not remembered: ", info->unkept.rc == DS_OK ? "" : info->unkept.msg);
}

void ds_cli_service_say_experts(const ds_service *s)
{
    const ds_service_plan *p = ds_service_plan_of(s);
    uint64_t others = p->weights - p->chosen + p->total, left = p->available > others ? p->available - others : 0;

    if (p->chosen > left)
        fprintf(stderr, "experts: memory has room for %.1f GiB of %.1f; the others are read from the files when a token chooses them\n",
                (double)left / 0x1p30, (double)p->chosen / 0x1p30);
}

static void say_plan(const ds_service *s, const ds_cli_service_opts *m)
{
    const ds_service_plan *p = ds_service_plan_of(s);
    uint32_t limit = ds_service_config(s)->max_position_embeddings;

    if (!m->context && ds_service_model(s) && p->engine.max_context < limit)
        fprintf(stderr, "context: %u tokens, what fits into memory (the model's limit is %u)\n", p->engine.max_context, limit);
    fprintf(stderr, "memory: %.1f MiB in caches and buffers, KV for %" PRIu64 " tokens, context of %u, %u at a time\n",
            (double)p->total / 0x1p20, p->engine.kv_tokens * p->engines, p->engine.max_context, p->engine.max_running * p->engines);
    if (p->tower)
        fprintf(stderr, "pictures: %.1f MiB of that\n", (double)p->tower / 0x1p20);
    if (p->engine.host_blocks)
        fprintf(stderr, "host memory: %.1f MiB of that, KV for %" PRIu64 " tokens that left the engine, %u states\n",
                (double)p->engine.host_kv * p->engines / 0x1p20, (uint64_t)p->engine.host_blocks * DS_KV_BLOCK_TOKENS * p->engines,
                p->engine.host_states * p->engines);
    ds_cli_service_say_experts(s);
}

void ds_cli_service_say(const ds_service *s, const ds_cli_service_opts *m)
{
    if (ds_service_model(s))
        ds_cli_say_device(m->device, ds_model_device(ds_service_model(s))->name);
    say_model(s);
    say_plan(s, m);
}
