/* Whole steps of a model on a GPU: how long the device takes for a decode step and its draws, and what a step adds
 * when the host waits for each and says the next. Arguments: the model's directory, the device ("cuda").
 *
 * `device` puts REPS steps of a shape on the stream and waits once; the host is ahead of it, so this is the device's
 * own time. `waited` waits for each. The difference is the gap that the host leaves. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "kern/device.h"
#include "model/model.h"

enum { REPS = 50, ROUNDS = 7, MOST = 64, DRAFTS = 5, POS = 1000 };

static ds_err err;

static void must(ds_rc rc)
{
    if (rc == DS_OK)
        return;
    printf("%s\n", err.msg);
    exit(1);
}

/* Any map with the right number of classes: which n-grams meet doesn't change what a step costs. */
static ds_rc any_map(void *ctx, const char *dir, int32_t *map, uint32_t vocab, ds_err *e)
{
    ds_config *c = calloc(1, sizeof *c);
    ds_rc rc = c ? ds_config_load(c, dir, e) : ds_fail(e, DS_E_NOMEM, "out of memory");

    (void)ctx;
    for (uint32_t i = 0; i < vocab && rc == DS_OK; i++)
        map[i] = (int32_t)(i % c->engram_compressed_vocab_size);
    free(c);
    return rc;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void put(ds_runner *r, const ds_seq *seqs, uint32_t n)
{
    ds_sample_rows *q = ds_runner_sample_rows(r);
    uint32_t row = 0;

    must(ds_runner_step(r, seqs, n, NULL, &err));
    for (uint32_t i = 0; i < n; row += seqs[i++].n)
        q[i] = (ds_sample_rows){ .how = { .top_p = 1.0, .repetition_penalty = 1.0 }, .index = 1, .row = row, .n = seqs[i].n };
    ds_runner_sample(r, n);
}

/* Median microseconds a step. The same step again and again: what is said doesn't change, so nothing is overwritten. */
static double time_steps(ds_runner *r, const ds_seq *seqs, uint32_t n, bool each)
{
    double us[ROUNDS];

    for (int k = 0; k < ROUNDS; k++) {
        uint64_t begin = ds_now_ns();
        for (int i = 0; i < REPS; i++) {
            put(r, seqs, n);
            if (each)
                must(ds_runner_wait(r, &err));
        }
        must(ds_runner_wait(r, &err));
        us[k] = (double)(ds_now_ns() - begin) / 1e3 / REPS;
    }
    qsort(us, ROUNDS, sizeof *us, ascending);
    return us[ROUNDS / 2];
}

int main(int argc, char **argv)
{
    static const uint32_t counts[] = { 1, 4, 16, 60 };
    static int32_t tokens[1 + DRAFTS], before[16]; /* in front of the rows: any ids */
    static uint32_t blocks[MOST][POS / DS_KV_BLOCK_TOKENS + 2];
    static ds_seq seqs[MOST];
    ds_model *m;
    ds_runner *r;
    ds_model_layout lay;
    uint32_t per = POS / DS_KV_BLOCK_TOKENS + 2;

    if (argc < 2) {
        printf("use: bench-gpu-steps MODEL [DEVICE]\n");
        return 2;
    }
    if (ds_model_open(&m, argv[1], &(ds_model_opts){ .device_name = argc > 2 ? argv[2] : "cuda", .token_map = any_map }, &err) != DS_OK) {
        printf("skipped: %s\n", err.msg);
        return 77;
    }
    ds_model_layout_get(m, &lay);
    must(ds_runner_create(&r, m,
                          &(ds_runner_opts){ .bf16 = true,
                                             .max_rows = MOST * (1 + DRAFTS),
                                             .max_seqs = MOST,
                                             .max_context = lay.max_context < 4096 ? lay.max_context : 4096,
                                             .n_blocks = MOST * per,
                                             .n_slots = MOST,
                                             .device_logits = true },
                          &err));
    for (uint32_t i = 0; i < MOST; i++)
        for (uint32_t b = 0; b < per; b++)
            blocks[i][b] = i * per + b;
    for (uint32_t i = 0; i < 1 + DRAFTS; i++)
        tokens[i] = (int32_t)(i + 3);
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        for (uint32_t n = 1; n <= 1 + DRAFTS; n += DRAFTS) {
            double device, waited;
            for (uint32_t i = 0; i < counts[c]; i++) {
                seqs[i] = (ds_seq){ .slot = i,
                                    .tail = DS_NONE,
                                    .blocks = blocks[i],
                                    .n_blocks = per,
                                    .pos = POS,
                                    .n = n,
                                    .tokens = tokens,
                                    .before = before,
                                    .enc_win = POS,
                                    .dec_from = POS,
                                    .dec_win = POS,
                                    .n_logits = n };
                ds_runner_reset_slot(r, i);
            }
            time_steps(r, seqs, counts[c], true);
            device = time_steps(r, seqs, counts[c], false);
            waited = time_steps(r, seqs, counts[c], true);
            printf("step seqs=%u rows=%u device_us=%.1f waited_us=%.1f gap_us=%.1f gap_pct=%.1f\n", counts[c], counts[c] * n, device,
                   waited, waited - device, 100.0 * (waited - device) / waited);
        }
    ds_runner_destroy(r);
    ds_model_close(m);
    return 0;
}
