/* Counters of the server and the text that Prometheus reads. (docs/server.md, "Metrics")
 *
 * Label values come from fixed lists, but for the one name of the model and the numbers of engines, so the number of
 * series is a constant. Threads: owner is the event loop.   Memory: none is taken but for the text. */
#ifndef DS_SERVER_METRICS_H
#define DS_SERVER_METRICS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <ds/gen.h>

#include "base/buf.h"
#include "constrain/constrain.h"

enum { DS_HISTOGRAM_BOUNDS = 20, DS_METRICS_MODEL_MAX = 256 /* bytes of a model's name that are shown */ };
typedef struct {
    uint64_t n[DS_HISTOGRAM_BOUNDS + 1]; /* the last: above all bounds */
    double sum;
} ds_histogram;

typedef enum {
    DS_REFUSED_FRAMING,
    DS_REFUSED_TOO_LARGE,
    DS_REFUSED_AUTH,
    DS_REFUSED_NOT_FOUND,
    DS_REFUSED_INVALID,
    DS_REFUSED_QUOTA,
    DS_REFUSED_QUEUE_FULL,
    DS_REFUSED_UNAVAILABLE,
    DS_REFUSED_INTERNAL,
    DS_N_REFUSED,
} ds_refused;

typedef enum {
    DS_FINISHED_STOP,
    DS_FINISHED_LENGTH,
    DS_FINISHED_TOOLS,
    DS_FINISHED_ABORT,
    DS_FINISHED_DEADLINE,
    DS_FINISHED_ERROR,
    DS_FINISHED_REFUSED, /* after all, by the engine it came to */
    DS_N_FINISHED
} ds_finished;

typedef struct {
    uint64_t accepted, refused[DS_N_REFUSED], disconnected, stalled, http[6] /* by status / 100 */;
    uint64_t ended[DS_N_FINISHED];    /* accepted requests, each once */
    uint64_t finished[DS_N_FINISHED]; /* their choices */
    uint64_t prompt_tokens, cached_tokens, generated_tokens;
    uint64_t lost_tokens[3]; /* computed and not delivered: client gone, deadline, failure */
    uint64_t bytes_out, connections_total;
    uint64_t store_failed;
    uint32_t connections, preparing /* with the workers */, streams;
    ds_histogram ttft, itl, tpot, e2e, queue, prefill, decode, prepare, cancel; /* seconds */
    ds_histogram delivery;                                                      /* seconds, short ones */
    ds_histogram prompt_size, output_size;                                      /* tokens */
} ds_metrics;

void ds_histogram_seconds(ds_histogram *h, double s);
void ds_histogram_delay(ds_histogram *h, double s); /* seconds, of which a few milliseconds are many */
void ds_histogram_tokens(ds_histogram *h, double n);

/* What is known of an engine. */
typedef struct {
    bool has_stats, has_plan;
    ds_gen_stats stats;
    ds_gen_plan plan;
} ds_metrics_engine;

/* What isn't counted here or in an engine. */
typedef struct {
    uint64_t stored_records, stored_bytes;
    ds_constrain_stats grammars; /* 0: there are none */
} ds_metrics_beside;

/* Appends the page. `model` is the value of the label model_name. Totals are of all engines together; what shows how
 * busy and how full each is has the label engine, its number, when there are several. n_engines may be 0. */
void ds_metrics_write(ds_buf *b, const ds_metrics *m, const char *prefix, const char *model, const ds_metrics_engine *engines,
                      uint32_t n_engines, const ds_metrics_beside *beside);

#endif
