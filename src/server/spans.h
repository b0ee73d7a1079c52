/* Spans to an OpenTelemetry collector: OTLP over HTTP, as JSON. Opt-in.
 *
 * Threads: add from the event loop; a thread of its own sends, once a second. A collector that is slow or gone costs
 * nothing but its spans: what waits is bounded, the rest is counted and dropped. */
#ifndef DS_SERVER_SPANS_H
#define DS_SERVER_SPANS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/log.h"

typedef struct ds_spans ds_spans;

/* url: of the collector, without /v1/traces. DS_E_NOMEM, DS_E_IO. */
ds_rc ds_spans_create(ds_spans **out, const char *url, const ds_log *log, ds_err *err);
void ds_spans_destroy(ds_spans *s); /* sends what waits, for 2 s at most; NULL is fine */

typedef struct {
    const char *name;           /* static */
    const char *trace, *parent; /* 32 and 16 hexadecimal digits; parent may be NULL */
    uint64_t id;                /* of the span; not 0 */
    uint64_t start_us, end_us;  /* ds_now_us */
    bool server;                /* a request, not a part of one */
    int status;                 /* HTTP; 0 = none */
    const char *request_id;     /* NULL: none */
    uint64_t prompt_tokens, output_tokens;
} ds_span;
void ds_spans_add(ds_spans *s, const ds_span *span); /* s may be NULL */

#endif
