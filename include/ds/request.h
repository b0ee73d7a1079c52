/* Requests: the body of one API call -> one internal conversation -> prompt runs. (recipe spec 2 and 4)
 *
 *   ds_request_parse      checks a body completely and takes it apart; every refusal is a ds_api_error with HTTP
 *                         status and field path
 *   ds_request_info       what the server, the engine and the response writer need to know about it: plain data
 *   ds_request_tool       a declared tool by the name that the model writes
 *   ds_request_render     the prompt as runs of control tokens and text
 *
 * Threads: a ds_request belongs to one thread while it is made and rendered; afterwards it is immutable and may be
 * read by many. Memory: everything hangs on the request and is freed at once; every pointer below stays valid until
 * ds_request_destroy. A request takes O(body) memory; the body itself isn't needed after parsing. */
#ifndef DS_REQUEST_H
#define DS_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <ds/err.h>
#include <ds/run.h>
#include <ds/sampling.h>
#include <ds/str.h>

typedef enum {
    DS_PROTO_CHAT,        /* OpenAI Chat Completions */
    DS_PROTO_RESPONSES,   /* OpenAI Responses */
    DS_PROTO_MESSAGES,    /* Anthropic Messages, count_tokens too */
    DS_PROTO_COMPLETIONS, /* legacy completions and fill-in-the-middle */
} ds_proto;

typedef enum { DS_ENC_V41, DS_ENC_V4 } ds_encoding;
typedef enum { DS_EFFORT_NONE, DS_EFFORT_LOW, DS_EFFORT_HIGH, DS_EFFORT_XHIGH, DS_EFFORT_MAX, DS_EFFORT_NUMBER } ds_effort;

/* ---- options ----------------------------------------------------------------------------------------------------- */

typedef enum { DS_REASONING_OFFICIAL, DS_REASONING_KEEP_ALL, DS_REASONING_DROP_ALL } ds_old_reasoning; /* recipe 2.4 */
typedef enum { DS_USAGE_DEEPSEEK, DS_USAGE_OPENAI } ds_usage_shape; /* recipe 4.3: on the finishing chunk | also an extra chunk */
typedef enum { DS_UNKNOWN_TOOL_PASS, DS_UNKNOWN_TOOL_CONTENT } ds_unknown_tool;
typedef enum { DS_THINKING_AUTO, DS_THINKING_ON, DS_THINKING_OFF } ds_thinking_default;
typedef enum { DS_UNKNOWN_MEMBERS_IGNORE, DS_UNKNOWN_MEMBERS_WARN, DS_UNKNOWN_MEMBERS_REFUSE } ds_unknown_members;

/* Every switch that the recipe spec names; ds_recipe_opts_init gives the defaults. Zero is not always the default. */
typedef struct {
    ds_encoding encoding;
    /* prompt */
    ds_old_reasoning old_reasoning; /* keep_all, drop_all */
    bool require_reasoning;         /* with tools: a turn without its reasoning is a 400, as at the hosted API */
    bool official_schemas;          /* tools block prints the client's function object unchanged */
    bool v4_preview;                /* V4: effort rules of the April preview */
    bool plain_tools_prose;         /* tag words inside the tools prose are text, not control tokens */
    bool grounding_tokens;          /* grounding spellings in assistant text are control tokens (default on) */
    uint8_t effort_v41[4];          /* numbers for low, high, xhigh, max */
    uint32_t default_max_tokens;    /* thinking off */
    uint32_t default_max_tokens_thinking;
    uint32_t max_context_tokens; /* prompt + output; 0 = not checked */
    uint32_t max_tools;          /* a longer list is a 400 */
    uint32_t max_images;
    bool no_image_token;                /* the tokenizer has no image placeholder: its spelling is text like any other */
    const char *image_token;            /* spelling of the image placeholder in the tokenizer at hand; borrowed, never NULL */
    ds_thinking_default thinking;       /* of a request that says nothing: auto = on, but off where a tool or a schema is forced */
    ds_unknown_members unknown_members; /* top-level members that are in no table */
    bool tasks;                         /* accept `task` on messages (quick instructions) */
    /* protocol */
    bool recipe_call_order;   /* calls of a turn sorted by id as strings: Responses, and V4 everywhere */
    bool lenient_history;     /* Responses: missing and late outputs are repaired */
    bool refuse_web_search;   /* Responses: hosted web search tool is a 400 (default: ignored) */
    bool ignore_web_search;   /* Messages: typed web search tool is ignored (default: 400) */
    bool ignore_server_tools; /* Messages: every typed tool is ignored (default: 400) */
    bool allow_regex;         /* response_format {"type":"regex","regex":…} becomes a constraint (default: 400) */
    bool refuse_bad_sealed;   /* a foreign or damaged encrypted_content is a 400 (default: dropped) */
    bool openai_errors;       /* Messages: error bodies in OpenAI's shape */
    bool no_constraints;      /* the caller has no constrained decoder: what needs one is a 400 */
    bool own_decoder;         /* it has one that says itself what of a strict schema it can't keep; not asked here then */
    /* output parser and response writer, carried for the stream module (recipe 3.3, 4.3) */
    ds_usage_shape usage_shape;
    ds_unknown_tool unknown_tool;
    bool strict_thinking; /* a block inside reasoning is reasoning text */
    bool recover_orphan_invoke;
    bool preserve_newlines;
    bool wrapper_repair;
    bool stream_raw_values;
    bool schema_coercion;
    bool normalize_lookalikes;
    bool eof_is_stop;       /* end of stream after calls is `stop`, as Recipe has it */
    int8_t suppress_markup; /* rule 10: -1 = on for tool_choice none only, 0 = off, 1 = whenever tools are off */
} ds_recipe_opts;

void ds_recipe_opts_init(ds_recipe_opts *o);
/* One `--set NAME=VALUE`. DS_E_ARG names the option and what it takes; *o is then unchanged. */
ds_rc ds_recipe_opts_set(ds_recipe_opts *o, const char *assignment, ds_err *err);
/* Line i of `--set help` ("name=values  (default) what it does", static); NULL after the last. */
const char *ds_recipe_opts_help(size_t i);

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

typedef struct {
    int status;        /* HTTP: 400, 404, 413, 500 …; 0 = none */
    const char *type;  /* OpenAI's name, static: "invalid_request_error" */
    const char *code;  /* static; NULL is written as null */
    char param[160];   /* JSON path of the field: "messages[2].content[0].type"; "" is written as null */
    char message[512]; /* one line, printable */
} ds_api_error;

/* Writes the protocol's error body, snprintf-fashion: returns its length without the NUL, whatever cap is.
 * request_id (Messages) may be NULL: the member is then left out. The Anthropic type follows from the status. */
size_t ds_api_error_body(char *out, size_t cap, const ds_api_error *e, ds_proto proto, bool openai_shape, const char *request_id);
/* Fills *e; message as printf. Returns DS_E_FORMAT. type and code follow from status when NULL. */
ds_rc ds_api_fail(ds_api_error *e, int status, const char *type, const char *code, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 6, 7)));

/* ---- what the caller provides ------------------------------------------------------------------------------------ */

typedef enum { DS_IMAGE_DATA, DS_IMAGE_URL, DS_IMAGE_FILE } ds_image_kind;
typedef enum { DS_DETAIL_HIGH, DS_DETAIL_LOW, DS_DETAIL_ORIGINAL, DS_DETAIL_AUTO } ds_image_detail;

typedef struct {
    ds_image_kind kind;
    ds_image_detail detail;
    ds_str media_type; /* DATA: "image/jpeg", "image/png", "image/gif", "image/webp" */
    ds_str source;     /* DATA: base64 or percent-encoded text as sent; URL: the address; FILE: the id */
    bool percent;      /* DATA: source is percent-encoded, not base64 */
    const char *param; /* JSON path of the field, for error bodies */
    /* set by ds_request_layout_image */
    uint32_t width, height;      /* of the decoded picture */
    uint32_t fitted_w, fitted_h; /* after the size rule, multiples of 14 */
    uint32_t rows, cols;         /* token grid */
    uint32_t tokens;             /* rows * (cols + 1) + 2 */
} ds_image;

/* Stored responses: one JSON record {"items":[…]} for each response id, the input and output items of its whole
 * chain in order. The implementation knows the tenant; another tenant's id isn't found. Called from the thread that
 * parses. */
typedef struct {
    void *ctx;
    /* *json (NULL: no such id) stays valid until release(). */
    ds_rc (*load)(void *ctx, const char *id, const char **json, size_t *n, void **hold, ds_err *err);
    void (*release)(void *ctx, void *hold);
} ds_response_store;

/* All optional. A callback that refuses fills *why and returns DS_E_FORMAT; other codes are internal failures. */
typedef struct {
    void *ctx;
    /* File ids of images and documents: *data is valid until the next call. Without it file_id is a 400. */
    ds_rc (*file)(void *ctx, const char *file_id, const char **media_type, const unsigned char **data, size_t *n, ds_api_error *why,
                  ds_err *err);
    /* Text of a document (PDF …) given as base64: *text valid until the next call. Without it "[Unsupported Document]" stands in its place. */
    ds_rc (*document)(void *ctx, const char *media_type, const char *base64, size_t n, const char **text, size_t *text_n, ds_api_error *why,
                      ds_err *err);
    const ds_response_store *store;
    const struct ds_seal *seal; /* key ring of encrypted reasoning; NULL: blobs are dropped and none are made */
} ds_request_io;

/* ---- the request ------------------------------------------------------------------------------------------------- */

typedef enum { DS_TOOL_FUNCTION, DS_TOOL_CUSTOM } ds_tool_kind;
typedef enum { DS_CHOICE_AUTO, DS_CHOICE_NONE, DS_CHOICE_REQUIRED } ds_tool_choice;
typedef enum { DS_GRAMMAR_NONE, DS_GRAMMAR_LARK, DS_GRAMMAR_REGEX } ds_grammar_syntax;

typedef struct {
    ds_str name;        /* as the model reads and writes it: "f", "ns::f" */
    ds_str ns;          /* namespace, absent if none */
    ds_str fn;          /* name inside the namespace; = name if none */
    ds_tool_kind kind;  /* CUSTOM: one string parameter `input` stands for the free-form text */
    ds_str description; /* as rendered */
    ds_str parameters;  /* JSON Schema as rendered (Python style); "{}" when absent */
    bool strict;
    bool shown;                /* stands in the tools block (a named or allowed choice hides the others) */
    ds_grammar_syntax grammar; /* CUSTOM with a grammar format */
    ds_str definition;         /* its text */
} ds_tool;

typedef enum {
    DS_CONSTRAINT_NONE,
    DS_CONSTRAINT_JSON_OBJECT,
    DS_CONSTRAINT_JSON_SCHEMA, /* text = the schema, compact JSON */
    DS_CONSTRAINT_REGEX,       /* text = the pattern */
    DS_CONSTRAINT_LARK,        /* text = the grammar */
    DS_CONSTRAINT_EBNF,        /* text = rules in the notation of GBNF */
    DS_CONSTRAINT_CHOICE,      /* text = a JSON array of strings */
} ds_constraint_kind;

/* What the visible content must match; it starts after </think>. Independent of it: tool_choice REQUIRED demands a
 * call, and strict tools constrain their arguments by `parameters`. */
typedef struct {
    ds_constraint_kind kind;
    ds_str text;
    ds_str name;       /* of the schema, as the client called it */
    bool strict;       /* the client demands that unsupported keywords are refused */
    const char *param; /* JSON path of the member that holds it, for error bodies; NULL: none */
} ds_constraint;

/* How a dialect writes calls: the control token, and the names of the tags behind it. */
typedef struct {
    const char *token, *block, *call, *parameter;
} ds_call_markup;
const ds_call_markup *ds_call_markup_of(ds_encoding e);

typedef enum { /* where the output parser starts (recipe 3.2) */
               DS_START_CONTENT,
               DS_START_REASONING,
               DS_START_BLOCK,        /* inside the call block: the prompt ended with its opener */
               DS_START_CONTENT_KEEP, /* prefix completion: leading newlines are kept */
               DS_START_REASONING_KEEP,
               DS_START_RAW, /* completions: no parsing, decoding and stop strings only */
} ds_parse_start;

typedef struct {
    ds_str name, json;
} ds_echo; /* a member of the response object and its compact JSON */

typedef struct {
    ds_proto proto;
    ds_recipe_opts opts; /* the options it was parsed with */
    ds_str model;
    ds_sampling sampling; /* what the client gave */
    uint32_t n;           /* samples of each prompt; 1 */
    bool logprobs;
    uint32_t top_logprobs;        /* 0..20 */
    bool prompt_logprobs;         /* vLLM's: of the prompt's own tokens */
    uint32_t prompt_top_logprobs; /* 0..20 */
    bool ignore_eos;              /* servers' extension */
    uint32_t min_tokens;
    uint32_t n_logit_bias;
    const ds_token_bias *logit_bias;
    /* vLLM's, Chat and completions */
    uint32_t n_stop_ids, n_allowed_ids, n_bad_words;
    const ds_token *stop_ids;    /* end the answer, besides the model's own */
    const ds_token *allowed_ids; /* no others are drawn; none given: all */
    const ds_str *bad_words;     /* none empty */
    bool include_stop;           /* what ended the answer belongs to it: a stop string, a token of stop_ids */
    int64_t truncate_prompt;     /* the prompt's last tokens, so many; -1: as many as leave room for an answer; 0: all */
    uint32_t max_tokens;         /* output limit; the default when the client gave none. 0: completions that only want their prompt */
    bool has_max_tokens;         /* the client gave it */
    uint32_t n_stop;
    const ds_str *stop; /* none empty */

    bool stream;
    bool include_usage; /* Chat, completions: stream_options.include_usage */
    bool thinking;
    ds_effort effort;        /* NONE when thinking is off */
    uint32_t effort_number;  /* 1..100, V4.1 */
    bool hide_thinking;      /* Messages: thinking.display is omitted; only the signature is sent */
    int64_t thinking_budget; /* Messages: budget_tokens, passed to the caller only; -1 */
    ds_parse_start start;

    uint32_t n_tools; /* all declared tools; ignored hosted kinds are not among them */
    const ds_tool *tools;
    ds_tool_choice tool_choice; /* NONE also when no tool is shown. A named choice is REQUIRED with one tool shown */
    bool parse_tools;           /* tools are on: at least one shown and choice not none */
    bool suppress_markup;       /* rule 10 */
    bool parallel_tool_calls;   /* false: stop reading after the first closed call */
    bool legacy_functions;      /* Chat: the client used `functions`; answer with function_call */
    ds_constraint constraint;
    bool json_mode; /* the output parser's JSON mode (recipe 3.2) */

    /* Responses */
    ds_str previous_response_id;
    ds_str conversation_id;
    bool store; /* default true for Responses, false elsewhere */
    bool include_encrypted_reasoning;
    bool include_logprobs; /* include: message.output_text.logprobs */
    bool truncation_auto;
    uint32_t n_echo; /* members of the response object that repeat the request, in order, every one with a value */
    const ds_echo *echo;

    /* completions */
    uint32_t n_prompts; /* 1 for the other protocols */
    bool echo_prompt;
    bool has_suffix;

    uint32_t n_images; /* in prompt order */
    const ds_image *images;
    ds_str unknown_members; /* names, ", " between them: what no table has; absent if none */
    ds_str user;            /* user, user_id, safety_identifier or metadata.user_id; absent if none */
    ds_str prompt_cache_key;
} ds_request_info_data;

typedef struct ds_request ds_request;

typedef struct {
    ds_proto proto;
    const ds_recipe_opts *opts; /* NULL = defaults */
    const ds_request_io *io;    /* NULL = nothing provided; used during the call only */
    bool count_tokens;          /* Messages count_tokens, Responses input_tokens: max_tokens and stream are ignored */
} ds_request_parse_args;

/* On success *out owns the request, else it is NULL. DS_E_FORMAT: refused, *refusal is filled (required) and err
 * repeats its message; DS_E_NOMEM. Linear in the body. */
ds_rc ds_request_parse(ds_request **out, const ds_request_parse_args *args, const char *body, size_t n, ds_api_error *refusal, ds_err *err);
void ds_request_destroy(ds_request *r); /* NULL is fine */

/* The table of request members, sorted by name; NULL after the last. on: for Chat, Responses, Messages, completions
 * in turn T taken, I ignored (no answer depends on it), R refused by name, - unknown. neutral: compact JSON values,
 * separated by spaces, that ask for nothing and are never refused; may be NULL. */
typedef struct {
    const char *name, *on, *neutral, *note;
} ds_request_member;
const ds_request_member *ds_request_member_at(size_t i);
const ds_request_info_data *ds_request_info(const ds_request *r);

/* The declared tool that the model calls by this name; NULL if none. O(1) expected. */
const ds_tool *ds_request_tool(const ds_request *r, const char *name, size_t n);

/* Tells the decoded size of image i and lays it out (recipe 2.8). DS_E_ARG: i, or a side is 0. */
ds_rc ds_request_layout_image(ds_request *r, uint32_t i, uint32_t width, uint32_t height, ds_err *err);
/* The size rule alone: fills fitted_w … tokens from width and height. DS_E_ARG when a side is 0 or the rule doesn't
 * settle. */
ds_rc ds_image_layout(ds_image *image, ds_err *err);

/* The rule's numbers, a model's vision_config; those of the released model are what the functions above use. (model
 * spec 3.15) */
typedef struct {
    uint32_t patch;      /* pixels of a patch's side, 1..256: 14 */
    uint32_t merge;      /* patches of a token's side, 1..16: 3 */
    uint32_t max_tokens; /* of one image, its start, newlines and end included, 8..65536: 1024 */
    uint64_t min_pixels; /* smaller pictures are enlarged, at most 2^32: 544 * 544 */
    double max_wh_ratio; /* wider pictures are squeezed; 0 = no limit */
} ds_image_rule;
void ds_image_rule_init(ds_image_rule *rule);
ds_rc ds_image_layout_by(ds_image *image, const ds_image_rule *rule, ds_err *err);
/* ds_request_layout_image by another rule. */
ds_rc ds_request_layout_image_by(ds_request *r, uint32_t i, uint32_t width, uint32_t height, const ds_image_rule *rule, ds_err *err);

/* The prompt (of prompt `i` < n_prompts). *runs belong to the request. One image placeholder for each image, spelled
 * as opts.image_token. Renders once; later calls return the same. DS_E_NOMEM, DS_E_ARG. */
ds_rc ds_request_render(ds_request *r, uint32_t i, const ds_run **runs, size_t *n_runs, ds_err *err);
/* completions with token ids as prompt: *ids is NULL for text. */
void ds_request_prompt_ids(const ds_request *r, uint32_t i, const ds_token **ids, size_t *n_ids);
/* The prompt is these ids and nothing else from now on (vLLM's truncate_prompt_tokens); what `echo` repeats is their
 * text. Copied. DS_E_NOMEM, DS_E_ARG: no such prompt. */
ds_rc ds_request_set_prompt_ids(ds_request *r, uint32_t i, const ds_token *ids, size_t n, ds_err *err);
/* Tokens that the laid-out images add to the encoded runs: sum of tokens - 1. */
size_t ds_request_image_extra_tokens(const ds_request *r);
/* Widens each image token of ids (n_ids of them) to its image's count, in place from the end; cap >= n_ids + extra.
 * Returns the new length; 0 if the number of image tokens isn't n_images. */
size_t ds_request_expand_images(const ds_request *r, ds_token image_id, ds_token *ids, size_t n_ids, size_t cap);

/* The prompt against max_context_tokens: DS_E_FORMAT with context_length_exceeded when it leaves no room for one
 * token. The output limit is cut to what remains (*max_tokens receives it; may be NULL). */
ds_rc ds_request_check_length(const ds_request *r, size_t prompt_tokens, uint32_t *max_tokens, ds_api_error *refusal);

/* truncation "auto": drops whole turns from the beginning, until they held at least min_bytes of text; system text
 * at the head and the last turn stay. *turns receives how many went; 0 = nothing more can go. Images of dropped
 * turns are gone from info.images, and the next render is a new one: earlier runs are invalid. DS_E_NOMEM. */
ds_rc ds_request_drop_oldest(ds_request *r, size_t min_bytes, uint32_t *turns, ds_err *err);

/* The input items of a Responses request with those of the chain before it, as the JSON list text of a store record
 * without its brackets ("" when empty): "{…},{…}". Belongs to the request; "" for other protocols. DS_E_NOMEM. */
ds_rc ds_request_items(ds_request *r, ds_str *items, ds_err *err);

#endif
