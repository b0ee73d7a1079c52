/* What the response writers share: a stream is a list of choices, a choice a list of items (reasoning, text, call),
 * of which the last may be open.
 *
 * respond.c feeds the parser and keeps the items; a protocol's writer (respond_proto) turns their opening, growth
 * and closing into events, and the finished list into a body. Item text that has been passed on is text[0..sent). */
#ifndef DS_REPLY_RESPOND_INTERNAL_H
#define DS_REPLY_RESPOND_INTERNAL_H

#include <string.h>

#include <ds/stream.h>

#include "base/buf.h"
#include "base/json.h"
#include "reply/parser.h"
#include "recipe/seal.h"

typedef enum { ITEM_REASONING, ITEM_TEXT, ITEM_CALL } item_kind;

typedef struct {
    item_kind kind;
    uint32_t index;      /* among the choice's items */
    uint32_t call;       /* among its calls */
    bool open, complete; /* complete: not cut by the end of the output */
    bool custom;         /* a custom tool's call: text is its input */
    bool call_follows;   /* TEXT */
    const ds_tool *tool; /* CALL; NULL: not declared */
    ds_buf name, text;
    size_t sent;
    ds_buf lp; /* log-probabilities of the text: JSON objects joined by commas */
    size_t lp_sent;
    char *sealed; /* REASONING: encrypted text once closed, NULL if none */
    size_t sealed_n;
} item;

typedef struct {     /* a token whose text hasn't come out of the parser yet */
    uint64_t end;    /* position after its last byte */
    size_t from, to; /* its entry in choice.lp */
} lp_wait;

typedef struct {
    ds_stream *s;
    uint32_t index;
    ds_parser *parser;
    item *items;
    size_t n_items, cap_items;
    item *cur; /* the open item, NULL if none */
    bool finished, untracked;
    ds_finish finish;
    ds_buf lp; /* entries that wait */
    lp_wait *wait;
    size_t n_wait, cap_wait, wait_head;
    ds_buf echo; /* completions: the prompt, if it is repeated */
    /* completions: log-probabilities in that protocol's shape */
    ds_buf tokens, token_logprobs, top_logprobs, text_offset;
    size_t lp_sent[4]; /* of these lists */
    uint64_t chars;    /* code points of the text so far */
    bool begun;
} choice;

/* Of one prompt, when its log-probabilities are wanted. */
typedef struct {
    uint32_t n;     /* positions so far */
    uint64_t chars; /* code points of the text in front of the next */
    ds_buf json;    /* vLLM's prompt_logprobs, without its brackets */
} scored;

typedef struct {
    void (*begin)(ds_stream *s);
    void (*begin_choice)(ds_stream *s, choice *c); /* before its first output; may be NULL */
    void (*open)(ds_stream *s, choice *c, item *it);
    void (*delta)(ds_stream *s, choice *c, item *it, const char *text, size_t n, const char *lp, size_t lp_n);
    void (*close)(ds_stream *s, choice *c, item *it);
    void (*end)(ds_stream *s, choice *c, bool last); /* last: all choices have finished */
    void (*fail)(ds_stream *s, const ds_api_error *e);
    void (*body)(ds_stream *s, ds_buf *b);
} respond_proto;

struct ds_stream {
    ds_request *r;
    const ds_request_info_data *info;
    ds_stream_opts o;
    const respond_proto *proto;
    char *id;
    ds_str model;
    char *fingerprint;
    choice *choices;
    scored *scored; /* [prompts], or NULL */
    uint32_t n_choices, n_finished;
    bool begun, failed, logprobs;
    bool unkept; /* the caller couldn't store it */
    uint64_t prompt_tokens, cached_tokens;
    uint64_t sequence; /* Responses: sequence_number of the next event */
    bool pinged;
    ds_buf head;                 /* Chat, completions: what every chunk begins with; made with the first */
    ds_buf ev;                   /* the event that is being written */
    ds_buf out;                  /* body or items */
    bool oom;                    /* an allocation failed */
    struct tool_schema *schemas; /* parsed parameters of the tools, when an option needs them */
};

extern const respond_proto respond_chat, respond_responses, respond_messages, respond_completions;

/* Writes to b what JSON text needs; U+2028 and its like are escaped everywhere, so that any part may become an
 * event. */
void respond_str(ds_buf *b, const char *p, size_t n);
void respond_buf(ds_buf *b, const ds_buf *text);
/* Chat, completions: a body or chunk up to its list of choices; of a chunk, which all begin alike, it is kept. */
void respond_head(ds_stream *s, ds_buf *b, const char *object);
void respond_chunk_head(ds_stream *s, const char *object);
void respond_u32(ds_buf *b, uint32_t x);
/* Sends s->ev (name NULL: without) and empties it. */
void respond_send(ds_stream *s, const char *name);
/* `"call_{id}_{n}"` with the given prefix; choices above 0 have their number in it. */
void respond_call_id(ds_stream *s, ds_buf *b, const char *prefix, const choice *c, const item *it);
/* Arguments as a JSON value: the object itself, {} when they are no complete JSON object. */
void respond_input(ds_stream *s, ds_buf *b, const item *it);
/* `"prompt_tokens":…` and the rest of the OpenAI chat usage object, with braces. */
void respond_chat_usage(ds_stream *s, ds_buf *b);
/* Encrypts a closed reasoning item's text into `sealed`, if there are keys. */
void respond_seal(ds_stream *s, item *it);
/* Chat, completions: the member prompt_logprobs of a prompt, with a comma in front; nothing when it wasn't asked
 * for. */
void respond_prompt_logprobs(ds_stream *s, ds_buf *b, uint32_t prompt);
/* Responses: the items so far, joined by commas. */
void respond_output_items(ds_stream *s, ds_buf *b);
item *respond_open(choice *c, item_kind kind);
/* The stop sequence that matched; absent if none. */
ds_str respond_stop(const ds_stream *s, const choice *c);
const char *respond_finish_name(const ds_stream *s, const choice *c);

#endif
