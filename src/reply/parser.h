/* The stream parser: model output, in any pieces, to reasoning, content and tool calls. (recipe spec 3)
 *
 * Push bytes as they come; a sink receives events. Any partition of the same bytes, also inside a UTF-8 sequence or
 * a tag, gives the same events but for where text is cut; no piece ever ends inside a UTF-8 sequence. Both dialects'
 * tag names are understood, so the parser doesn't need to know which one the model speaks. Only a suffix that could
 * still become a tag or a stop sequence is held back.
 *
 * Positions count the bytes of the output after invalid UTF-8 was replaced; they let the caller tell which token an
 * event's text came from.
 *
 * Threads: one owner.   Memory: all taken in create() (about 20 KiB; with tools 64 KiB and max_value_bytes more,
 * with recover_orphan_invoke twice that); push() and finish() allocate nothing.   Time: linear in the input. */
#ifndef DS_REPLY_PARSER_H
#define DS_REPLY_PARSER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define DS_PARSER_MAX_STOPS 64
#define DS_PARSER_MAX_NAME 256 /* bytes of a call's name */
#define DS_PARSER_MAX_KEY 4096 /* bytes of a parameter's key */
#define DS_PARSER_MAX_CALLS 1024
#define DS_PARSER_MAX_KEYS 4096 /* parameters of one call; later ones are dropped and counted */
#define DS_PARSER_MAX_DEPTH 128 /* nesting of a JSON value */

typedef struct ds_parser ds_parser;

typedef enum {
    DS_PARSE_REASONING, /* text */
    DS_PARSE_CONTENT,   /* text */
    DS_PARSE_CALL,      /* a call begins; bytes = its name, trimmed */
    DS_PARSE_ARGS,      /* a piece of the call's arguments: the pieces of a complete call form one JSON object */
    DS_PARSE_INPUT,     /* a piece of a custom call's input, not escaped (instead of DS_PARSE_ARGS) */
    DS_PARSE_CALL_END,
} ds_parse_kind;

typedef struct {
    ds_parse_kind kind;
    uint32_t call;     /* number of the call, from 0 */
    bool complete;     /* CALL_END: false when the output ended inside the call */
    const char *bytes; /* until the sink returns */
    size_t n;
    uint64_t begin, end; /* REASONING and CONTENT: the positions that the text came from */
} ds_parse_event;

typedef void ds_parse_sink(void *ctx, const ds_parse_event *ev);

typedef enum {
    DS_PARSER_CONTENT,        /* thinking off */
    DS_PARSER_REASONING,      /* the prompt ended with <think> */
    DS_PARSER_CONTENT_PREFIX, /* prefix completion: leading newlines stay */
    DS_PARSER_REASONING_PREFIX,
    DS_PARSER_BLOCK, /* the prompt ended with the block opener (tool choice required) */
    DS_PARSER_RAW,   /* completions: everything is content; stop sequences only */
} ds_parser_start;

typedef enum {
    DS_PARSER_TOOLS_OFF, /* markup is text */
    DS_PARSER_TOOLS_ON,
    DS_PARSER_TOOLS_SUPPRESS, /* a block in the content is dropped with everything after it */
} ds_parser_tools;

enum { DS_PARSE_DECLARED = 1, DS_PARSE_CUSTOM = 2 }; /* what a tool is */
enum {
    DS_TYPE_STRING = 1,
    DS_TYPE_NUMBER = 2,
    DS_TYPE_INTEGER = 4,
    DS_TYPE_BOOLEAN = 8,
    DS_TYPE_NULL = 16,
    DS_TYPE_OBJECT = 32,
    DS_TYPE_ARRAY = 64
};

typedef struct {
    ds_parse_sink *sink;
    void *ctx;
    ds_parser_start start;
    ds_parser_tools tools;
    bool json_mode;             /* only the JSON value of the content is passed on */
    bool strict_thinking;       /* calls inside reasoning are reasoning text */
    bool preserve_newlines;     /* newlines at borders stay */
    bool recover_orphan_invoke; /* a call without a block counts when its tool is declared and it closes */
    bool repair_wrapper;        /* {"arguments": {…}} or {"input": {…}} becomes the inner object where the schema says so */
    bool coerce;      /* the schema's type decides where it differs from the string flag and the value fits; typed strings are held */
    bool eof_is_stop; /* an end without a reason is END_OF_STREAM also after calls */
    bool stream_raw;  /* JSON values are passed on as they arrive, and not repaired */
    bool unknown_tool_as_content;
    bool normalize_lookalikes; /* ASCII, doubled and U+2016 bars count as markup */
    bool flush_tail;           /* an incomplete UTF-8 sequence at the end becomes U+FFFD instead of nothing */
    uint32_t max_calls;        /* 0 = no limit below DS_PARSER_MAX_CALLS; after that many closed calls the parser is done */
    size_t max_value_bytes;    /* 0 = 8 MiB: JSON values up to that are held for repair, longer ones become strings */
    const char *const *stops;  /* copied; empty ones are ignored */
    const size_t *stop_bytes;
    size_t n_stops;      /* <= DS_PARSER_MAX_STOPS */
    bool keep_stop;      /* the sequence that ends the content belongs to it */
    uint64_t min_tokens; /* a sequence that is complete within so many tokens is text */
    /* DS_PARSE_DECLARED, DS_PARSE_CUSTOM of a call's name; NULL: every tool counts as declared, none as custom. */
    unsigned (*tool_flags)(void *ctx, const char *name, size_t n);
    /* DS_TYPE_ bits that the tool's schema allows for the property, 0 = not known. Needed by coerce only. */
    unsigned (*tool_key_types)(void *ctx, const char *name, size_t n, const char *key, size_t key_bytes);
    /* Whether the tool's schema defines the property: 1 yes, 0 no, -1 not known. Needed by repair_wrapper only. */
    int (*tool_has_key)(void *ctx, const char *name, size_t n, const char *key, size_t key_bytes);
} ds_parser_opts;

typedef enum { /* why the backend ended */
               DS_BACKEND_STOP,
               DS_BACKEND_LENGTH,
               DS_BACKEND_CONTENT_FILTER,
               DS_BACKEND_NONE, /* it just ended */
} ds_backend_end;

typedef enum { /* (recipe spec 3.5) */
               DS_FINISH_STOP,
               DS_FINISH_TOOL_CALLS,
               DS_FINISH_STOP_SEQUENCE,
               DS_FINISH_LENGTH,
               DS_FINISH_CONTENT_FILTER,
               DS_FINISH_END_OF_STREAM,
} ds_finish;

typedef struct {
    uint64_t tokens;           /* of all pushes that were read */
    uint64_t reasoning_tokens; /* those whose last byte belongs to the reasoning, </think> included */
    uint32_t calls;            /* announced */
    int stop;                  /* index of the stop sequence that matched, -1 = none */
    /* anomalies */
    uint32_t bad_calls;       /* returned as content */
    uint32_t dropped_params;  /* duplicate, too long or nameless keys; parameters after a custom call's input */
    uint32_t repaired_values; /* not JSON, too deep or too long: passed on as strings */
    uint32_t dropped_calls;   /* beyond the limit */
    uint64_t ignored_bytes;   /* after the block */
    uint64_t bad_utf8;        /* sequences replaced by U+FFFD */
} ds_parser_stats;

/* On success *out owns the parser, else *out is NULL. DS_E_ARG, DS_E_NOMEM. */
ds_rc ds_parser_create(ds_parser **out, const ds_parser_opts *opts, ds_err *err);
void ds_parser_destroy(ds_parser *p); /* NULL is fine */

/* The next push is one token of n bytes; control: an added one, markup that the model wrote on purpose. For callers
 * that know tokens: half a piece of markup at the end of an output that the limit cut is then no text. */
void ds_parser_token(ds_parser *p, bool control, size_t n);

/* n bytes that took n_tokens tokens (the sink is called from here). Where one push carries several tokens they count
 * as evenly spread. After the parser is done pushes are ignored and not counted. */
void ds_parser_push(ds_parser *p, const void *bytes, size_t n, uint32_t n_tokens);

/* Nothing that follows can matter: a stop sequence matched, or max_calls calls closed. The backend should be told to
 * stop. */
bool ds_parser_done(const ds_parser *p);

/* Flushes what is held back, ends an open call and says how the answer ended. Once; no push afterwards. */
ds_finish ds_parser_finish(ds_parser *p, ds_backend_end end);

const ds_parser_stats *ds_parser_get_stats(const ds_parser *p);
/* Position after the bytes pushed so far: the token that ended there has its last byte at position - 1. */
uint64_t ds_parser_position(const ds_parser *p);

/* Bytes at that end of a character that isn't complete yet; 0 when the parser is done. */
size_t ds_parser_tail(const ds_parser *p);

/* Checks of JSON text without allocation, also used by the response side. */
/* One JSON value with white space around it, nested at most max_depth, no number that overflows, no lone surrogate
 * escape. */
bool ds_json_text_ok(const char *s, size_t n, unsigned max_depth);
/* The same for an object, telling its top-level keys as written (escapes kept) to `key`, which may return false to
 * give up. */
bool ds_json_text_object(const char *s, size_t n, unsigned max_depth, bool (*key)(void *ctx, const char *raw, size_t raw_bytes), void *ctx);
/* Decodes the escapes of a valid JSON string body; returns the bytes written (never more than n), out may be s. */
size_t ds_json_text_unescape(char *out, const char *s, size_t n);

#endif
