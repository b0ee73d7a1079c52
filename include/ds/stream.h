/* Streams: model output, in any pieces, to the response of the request's protocol. (recipe spec 3 to 5)
 *
 *   ds_stream_create   for one request
 *   ds_stream_ready    the prompt has been read: usage of the input, first events
 *   ds_stream_text     output as text   (or)
 *   ds_stream_token    output as token ids, with log-probabilities
 *   ds_stream_finish   the model ended: last events
 *   ds_stream_body     the complete response, as a client that doesn't stream gets it
 *
 * Events come out through the sink as ready JSON; ds_sse_frame puts them on the wire. A request with several choices
 * (n, several prompts) has one output each, 0 .. ds_stream_choices-1, in any interleaving; prompt i's choice k is i
 * * n + k.
 *
 * Threads: one owner at a time.   Memory: grows with the output (it is needed for the body), each piece costs
 * amortised constant time. After DS_E_NOMEM the stream is good for nothing but ds_stream_destroy. */
#ifndef DS_STREAM_H
#define DS_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <ds/err.h>
#include <ds/request.h>
#include <ds/tokenizer.h>

typedef struct ds_stream ds_stream;

/* One event: its name (NULL for Chat and completions, whose events have none) and one JSON text without raw line
 * breaks, both valid until the sink returns. */
typedef void ds_stream_sink(void *ctx, const char *event, const char *data, size_t n);

typedef struct {
    const char *id;                /* response id, from which all others are derived; copied */
    int64_t created;               /* Unix seconds */
    int64_t (*now)(void);          /* for completed_at; NULL: created */
    const char *model;             /* name to answer with; NULL: the request's. Borrowed */
    const ds_tokenizer *tokenizer; /* needed for ds_stream_token. Borrowed */
    const struct ds_seal *seal;    /* keys of encrypted reasoning; NULL: none is made, a Messages signature is the response id. Borrowed */
    ds_stream_sink *sink;          /* NULL: only the body is wanted */
    void *ctx;
    size_t max_value_bytes; /* of a held tool argument; 0 = 8 MiB */
    /* Responses: the response is complete; it may be read (body, items) and stored. False: it couldn't be, and its last
     * event and its body say "store": false. NULL: nobody is asked. */
    bool (*keep)(void *ctx, ds_stream *s);
} ds_stream_opts;

typedef struct {
    ds_token id;
    float logprob;
} ds_top_logprob;

typedef struct {
    float logprob; /* natural logarithm */
    uint32_t n_top;
    const ds_top_logprob *top; /* best first */
} ds_token_logprob;

typedef struct {
    uint64_t prompt_tokens, cached_tokens; /* cached <= prompt */
    uint64_t output_tokens;                /* of all choices */
    uint64_t reasoning_tokens;
    bool reasoning_known; /* false when text came without token counts, or nothing came */
} ds_stream_usage;

typedef enum { DS_END_STOP, DS_END_LENGTH, DS_END_CONTENT_FILTER, DS_END_NONE } ds_stream_end; /* why the model ended; NONE: it just did */

/* The request must outlive the stream and may be read by others meanwhile. DS_E_ARG, DS_E_NOMEM. */
ds_rc ds_stream_create(ds_stream **out, ds_request *r, const ds_stream_opts *opts, ds_err *err);
void ds_stream_destroy(ds_stream *s); /* NULL is fine */
uint32_t ds_stream_choices(const ds_stream *s);

/* First events. Optional: the first output does the same with zero usage; a later call sets the numbers of the last
 * events. */
ds_rc ds_stream_ready(ds_stream *s, uint64_t prompt_tokens, uint64_t cached_tokens, const char *fingerprint /* may be NULL */, ds_err *err);

/* Log-probabilities of a prompt's own tokens, for requests that ask for them (echo with logprobs, prompt_logprobs):
 * once for each position, from 0 on, before the first output of its choices. lp NULL: unknown (position 0,
 * pictures). rank: 1 = the likeliest. DS_E_ARG: no such prompt, or no tokenizer. */
bool ds_stream_wants_prompt(const ds_stream *s);
ds_rc ds_stream_prompt_token(ds_stream *s, uint32_t prompt, ds_token id, const ds_token_logprob *lp, uint32_t rank, ds_err *err);

/* Output of a choice; ignored after it is done. Text needn't end at a character. DS_E_ARG: no such choice, already
 * finished. */
ds_rc ds_stream_text(ds_stream *s, uint32_t choice, const char *text, size_t n, uint32_t n_tokens, ds_err *err);
/* lp may be NULL. DS_E_ARG also when the stream has no tokenizer. Unknown ids give no text. */
ds_rc ds_stream_token(ds_stream *s, uint32_t choice, ds_token id, const ds_token_logprob *lp, ds_err *err);

/* Nothing that the model still says can matter (stop sequence, single call): it may be stopped, then
 * ds_stream_finish called. */
bool ds_stream_done(const ds_stream *s, uint32_t choice);

/* The choice ended: its last events, and with the last choice those of the response. */
ds_rc ds_stream_finish(ds_stream *s, uint32_t choice, ds_stream_end end, ds_err *err);
/* The whole response failed after events were sent: the protocol's error event. No call but body and destroy
 * afterwards. */
ds_rc ds_stream_fail(ds_stream *s, const ds_api_error *e, ds_err *err);

/* Chat's word for how the choice ended ("stop", "length", "tool_calls", "content_filter", "function_call"); NULL
 * before. Static. */
const char *ds_stream_finish_reason(const ds_stream *s, uint32_t choice);
void ds_stream_get_usage(const ds_stream *s, ds_stream_usage *out);

/* Whether the text of a finished choice is what response_format asked for: an object, JSON that the schema accepts,
 * text that the pattern matches. For callers without a constrained decoder. DS_OK also when nothing was asked for,
 * when the answer is calls, when it was cut (a stop sequence too), and when it continues a prefix. DS_E_FORMAT: it
 * isn't; err says where and why. DS_E_ARG: not finished; DS_E_NOMEM. O(text). */
ds_rc ds_stream_check(const ds_stream *s, uint32_t choice, ds_err *err);

/* The complete response body once every choice has finished; *json is valid until the next call on this stream. */
ds_rc ds_stream_body(ds_stream *s, const char **json, size_t *n, ds_err *err);
/* Responses: the output items, as the JSON list text of a store record without its brackets; else "". As
 * ds_stream_body. */
ds_rc ds_stream_items(ds_stream *s, const char **json, size_t *n, ds_err *err);

/* One event as server-sent events have it ("event: …\ndata: …\n\n"), snprintf-fashion: returns its length whatever
 * cap is. event may be NULL. */
size_t ds_sse_frame(char *out, size_t cap, const char *event, const char *data, size_t n);
/* What ends a stream of the protocol: "data: [DONE]\n\n" or "". */
const char *ds_sse_end(ds_proto proto);
#define DS_SSE_COMMENT ": keep-alive\n\n" /* may be sent at any time */

#endif
