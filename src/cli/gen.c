#include "cli/gen.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/service_cli.h"
#include "role/service.h"

enum { SPECULATE_MAX = 64 };

int ds_cli_speculate(int *out, const char *word, const char *command)
{
    char q[112], *end = NULL;
    long n = *word >= '0' && *word <= '9' ? strtol(word, &end, 10) : -1;

    if (strcmp(word, "auto") == 0)
        *out = DS_ENGINE_DRAFTS_AUTO;
    else if (strcmp(word, "off") == 0)
        *out = 0;
    else if (n < 0 || n > SPECULATE_MAX || *end)
        return ds_cli_wrong(command, "--speculate '%s': expected auto, off or a number up to %d", ds_quote(q, sizeof q, word, strlen(word)),
                            SPECULATE_MAX);
    else
        *out = (int)n;
    return -1;
}

ds_rc ds_cli_gen_open(ds_cli_gen *g, const ds_cli_gen_opts *o, int speculate, uint32_t parallel, ds_err *err)
{
    char cache[4096];
    const ds_llm_opts lo = {
        .device = o->device,
        .kernels = ds_cli_kernels(o->kernels),
        .mode = o->mode == 0 ? DS_ENGINE_EXACT : DS_ENGINE_CED,
        .bf16 = o->act == 1,
        .pin = o->pin,
        .threads = (uint32_t)o->threads,
        .max_context = (uint32_t)o->context,
        .max_running = parallel,
        .drafts = speculate,
        .step_tokens = (uint32_t)o->chunk,
        .kv_dir = o->kv_dir,
        .kv_capacity = o->kv_capacity,
        .cache_dir = o->kv_dir ? ds_cli_user_cache(cache, sizeof cache) : NULL,
    };
    ds_rc rc;

    *g = (ds_cli_gen){ .parallel = parallel };
    rc = ds_llm_open_ranks(&g->llm, o->model, &lo, (uint32_t)o->ranks, "/proc/self/exe", err);
    if (rc != DS_OK)
        return rc;
    ds_cli_say_device(o->device, ds_llm_device(g->llm));
    g->model = ds_service_model(ds_llm_service(g->llm));
    g->tokenizer = ds_llm_tokenizer(g->llm);
    g->engine = ds_llm_engine(g->llm);
    g->stop_ids = ds_llm_stop_ids(g->llm, &g->n_stop_ids);
    g->context = ds_llm_context(g->llm);
    if (o->context == 0 && g->context < ds_model_config(g->model)->max_position_embeddings)
        fprintf(stderr, "context: %u tokens, what fits into memory (the model's limit is %u)\n", g->context,
                ds_model_config(g->model)->max_position_embeddings);
    ds_cli_service_say_experts(ds_llm_service(g->llm));
    rc = ds_encoder_create(&g->encoder, g->tokenizer, NULL, err);
    if (rc != DS_OK)
        ds_cli_gen_close(g);
    return rc;
}

void ds_cli_gen_close(ds_cli_gen *g)
{
    ds_encoder_destroy(g->encoder);
    ds_llm_close(g->llm);
    *g = (ds_cli_gen){ 0 };
}

ds_rc ds_cli_gen_failure(const ds_event *end, ds_err *err)
{

    if (end->end.reason == DS_ENDED_DEADLINE)
        return ds_fail(err, DS_E_CANCELED, "the deadline passed");
    if (end->end.reason == DS_ENDED_LOST)
        return ds_fail(err, DS_E_IO, "the engine was lost after %u tokens", end->end.n_tokens);
    return ds_fail(err, end->end.rc == DS_OK ? DS_E_FORMAT : end->end.rc, "the model gave values that are not finite after %u tokens",
                   end->end.n_tokens);
}

ds_rc ds_cli_gen_run(ds_cli_gen *g, const ds_gen_request *q, ds_cli_event_fn *fn, void *ctx, ds_err *err)
{
    ds_event ev[64];
    uint64_t id;
    ds_rc rc = ds_engine_add(g->engine, q, &id, err);
    bool last = rc != DS_OK, canceled = false;

    while (!last) {
        size_t n = ds_engine_wait(g->engine, 50) ? ds_engine_poll(g->engine, ev, sizeof ev / sizeof *ev) : 0;
        bool go_on = n > 0 || fn(ctx, NULL);
        for (size_t i = 0; i < n; i++) {
            go_on = fn(ctx, &ev[i]) && go_on;
            if (ev[i].kind == DS_EV_END) {
                last = last || ev[i].end.last;
                if (ev[i].end.reason == DS_ENDED_LOST && (rc = ds_service_state(ds_llm_service(g->llm), err)) != DS_OK)
                    continue;
                if (ev[i].end.reason == DS_ENDED_FAILED || ev[i].end.reason == DS_ENDED_LOST)
                    rc = ds_cli_gen_failure(&ev[i], err);
            }
        }
        if (!go_on && !canceled) {
            ds_engine_cancel(g->engine, id);
            canceled = true;
        }
    }
    return rc;
}

/* ---- text ---- */

ds_rc ds_cli_text_init(ds_cli_text *t, const ds_tokenizer *tok, ds_err *err)
{
    *t = (ds_cli_text){ .room = malloc(ds_decoder_room(tok)) };
    if (!t->room)
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    ds_decoder_init(&t->dec, tok, false);
    return DS_OK;
}

void ds_cli_text_fini(ds_cli_text *t)
{
    free(t->room);
    ds_buf_free(&t->text);
    *t = (ds_cli_text){ 0 };
}

void ds_cli_text_push(ds_cli_text *t, ds_token id, uint32_t held_bytes)
{
    t->clear = ds_cli_text_safe(t);
    ds_buf_put(&t->text, t->room, ds_decoder_push(&t->dec, (uint32_t)id, t->room, NULL));
    t->held = held_bytes;
}

void ds_cli_text_cut(ds_cli_text *t, ds_str stop, bool keep)
{
    const char *hit = memmem(ds_buf_str(&t->text) + t->clear, t->text.len - t->clear, stop.p, stop.n);

    if (hit)
        t->text.len = (size_t)(hit - t->text.p) + (keep ? stop.n : 0);
}

size_t ds_cli_text_safe(const ds_cli_text *t)
{
    return t->text.len > t->held ? t->text.len - t->held : 0;
}

/* ---- signals ---- */

static volatile sig_atomic_t came;

static void note_signal(int sig)
{
    came = sig;
}

static void end_program(int sig)
{
    static const char text[] = "deepserve: stopped before the first result\n";
    ssize_t ignored = write(STDERR_FILENO, text, sizeof text - 1);

    (void)ignored;
    _exit(128 + sig);
}

void ds_cli_signals_end(void)
{
    struct sigaction a = { .sa_handler = end_program };

    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
}

void ds_cli_signals_catch(void)
{
    struct sigaction a = { .sa_handler = note_signal, .sa_flags = (int)SA_RESETHAND };

    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
}

int ds_cli_signal(void)
{
    return came;
}

void ds_cli_signal_forget(void)
{
    came = 0;
    ds_cli_signals_catch();
}
