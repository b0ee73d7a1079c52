/* Reads one HTTP/1.1 answer, piece by piece as it comes from the socket: status, framing, and what the load
 * generator wants to know from the body.
 *
 * A body is either a stream of server-sent events or one JSON text. Of both only a few members are looked for, by
 * their quoted name: a quotation mark inside a JSON string is escaped, so `"name":` can't be part of a text. That is
 * exact for JSON and costs a tenth of parsing it. Everything is bounded: a head has at most DS_ANSWER_HEAD_MAX
 * bytes, a line of a stream or a whole JSON body at most DS_ANSWER_LINE_MAX; more is a DS_ANSWER_BAD. Threads: one
 * owner.   Memory: buffers for what is cut by the end of a piece; ds_answer_fini frees them. */
#ifndef DS_LOADGEN_ANSWER_H
#define DS_LOADGEN_ANSWER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

enum { DS_ANSWER_HEAD_MAX = 64 * 1024, DS_ANSWER_LINE_MAX = 16 * 1024 * 1024 };

typedef enum {
    DS_ANSWER_MORE, /* goes on */
    DS_ANSWER_DONE, /* complete */
    DS_ANSWER_BAD,  /* no HTTP, or beyond a bound */
} ds_answer_state;

typedef struct {
    /* Called for each event, and each complete JSON body, that carries output (`pieces`: its text as it stands in the JSON, escaped; n bytes, borrowed for the call). */
    void (*output)(void *ctx, const char *pieces, size_t n);
    void *ctx;

    /* what came so far */
    int status;                          /* 0: not known yet */
    bool close;                          /* the connection can't be used again */
    bool stream;                         /* text/event-stream */
    bool ended;                          /* [DONE] or a finish_reason was seen */
    bool failed;                         /* stream: an error event */
    uint64_t prompt, cached, completion; /* tokens, from the usage */
    bool has_usage;

    /* private */
    int phase, at;
    bool chunked, sized, broken_line;
    uint64_t left; /* bytes of the body, or of the chunk */
    uint32_t digits;
    ds_buf line;
} ds_answer;

/* `output` and `ctx` are set by the caller, the rest starts as zero. */
void ds_answer_begin(ds_answer *a); /* a new answer on the same connection; keeps memory, output and ctx */
void ds_answer_fini(ds_answer *a);
/* *used: bytes taken; less than n only with DS_ANSWER_DONE (what follows belongs to nobody). */
ds_answer_state ds_answer_feed(ds_answer *a, const char *bytes, size_t n, size_t *used);
/* The peer closed its side: DONE if the answer may end so. */
ds_answer_state ds_answer_eof(ds_answer *a);

/* The value of the first member `name` in JSON text, NULL when there is none. For a string *n is the length of its
 * text inside the quotation marks, which start[0..n) is. */
const char *ds_answer_string(const char *json, size_t n, const char *name, size_t *len);
bool ds_answer_number(const char *json, size_t n, const char *name, uint64_t *out);

#endif
