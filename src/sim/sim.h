/* A deployment on a virtual clock.
 *
 * The decisions are those of production, by the same functions: which rank computes a prompt and which decodes
 * (policy/prefill.h, policy/decode.h), how many rows of a prompt go into a step (policy/chunk.h), how many drafts
 * (policy/spec.h), whose turn it is (policy/queue.h), how long a hit is (kv/hit.h), how an instance leaves
 * (policy/instance.h); load is the size of a live set (policy/live.h). What is not simulated but computed is the time
 * of a step, from the cost of its rows, and what a link takes, from its bytes.
 *
 * A sequence that decodes gets the mean number of tokens in a step, with drafts a fraction more than one; the steps
 * between two changes of a batch are taken at once, with the sum of their times.
 *
 * Threads: one owner.   Memory: live requests, sessions, entries of the store; figures have a fixed size.
 * The same plan gives the same result, byte for byte. */
#ifndef DS_SIM_SIM_H
#define DS_SIM_SIM_H

#include "loadgen/times.h"
#include "sim/file.h"
#include "sim/store.h"

enum { DS_SIM_BINS = 240 };

typedef struct { /* what happened in a part of the time; gauges are the largest that was seen */
    uint64_t arrived, done, failed, input_tokens, output_tokens;
    uint32_t waiting, decoding, live;
    uint32_t ready[DS_SIM_ROLES]; /* instances, the least */
    bool seen;
} ds_sim_bin;

typedef struct {
    uint64_t arrived, done, failed, live; /* arrived = done + failed + live */
    uint64_t restarted;                   /* attempts after the first: their instance died, or they moved without KV */
    uint64_t refused, late;               /* failed: too many were live; it waited too long */
    /* Tokens of prompts whose computation ended: asked = hit + computed. Replayed ones were computed besides. */
    uint64_t prompt_tokens, hit_tokens, computed_tokens, replayed_tokens;
    uint64_t output_tokens, done_output_tokens; /* delivered; of done requests */
    uint64_t lost_tokens;                       /* computed of prompts, and lost with an instance */
    double fetched_bytes, moved_bytes;
    /* Of requests that arrived after the warm-up. */
    uint64_t counted, good; /* done; of these, within the objective */
    uint64_t overdue;       /* live, and without a first token for longer than the objective allows */
    uint64_t good_tokens;   /* output of these */
    ds_times first, gap, pace, total, wait;
} ds_sim_sum;

typedef struct {
    uint32_t instances, ranks;
    double busy;    /* share of time that ranks had a step */
    double slowest; /* the rank with most predicted work, over the mean; 0: none did any */
    double price;   /* of all, for an hour */
} ds_sim_group_sum;

typedef struct {
    uint64_t requests, prompt_tokens, hit_tokens; /* whose prompt was computed */
    uint64_t full_hits;                           /* 90 % of the prompt or more */
} ds_sim_load_sum;

typedef struct {
    double end_s;
    uint64_t events;
    ds_sim_sum sum;
    ds_sim_store_sum store;
    ds_sim_group_sum groups[DS_SIM_GROUPS];
    ds_sim_load_sum loads[DS_SIM_LOADS];
    uint32_t n_bins;
    double bin_s;
    ds_sim_bin bins[DS_SIM_BINS];
} ds_sim_result;

/* Fills *r, which is large. DS_E_IO, DS_E_FORMAT: a trace. DS_E_NOMEM. */
ds_rc ds_sim_run(const ds_sim_plan *p, ds_sim_result *r, ds_err *err);

#endif
