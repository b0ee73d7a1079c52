/* What the protocol adapters share while a body is taken apart.
 *
 * Errors: every check goes through ds_rp. A wrong type stops at once. What is wrong with a value is remembered with
 * its stage, and parsing goes on; the refusal of the earliest stage is the one that is reported, so that messages
 * don't depend on the order of members (recipe spec 4.1, validation order). Functions do nothing once p->rc is set,
 * so callers check where it saves work. */
#ifndef DS_RECIPE_REQUEST_INTERNAL_H
#define DS_RECIPE_REQUEST_INTERNAL_H

#include <ds/request.h>

#include "base/json.h"
#include "base/str.h"
#include "recipe/conversation.h"
#include "recipe/region.h"

typedef struct ds_doc ds_doc; /* a parsed text that the request refers to */
struct ds_doc {
    ds_doc *next;
    ds_json_doc *doc;
};

typedef struct ds_resolved ds_resolved; /* an item_reference and the stored item that it names */
struct ds_resolved {
    ds_resolved *next;
    const ds_json *reference, *item;
};

struct ds_request {
    ds_region mem;
    ds_request_info_data info;
    ds_conv conv;
    ds_doc *docs;
    ds_idmap tool_map;           /* rendered name -> index */
    const ds_json **tool_source; /* per tool: the client's function object, for official_schemas */
    ds_image *images;            /* info.images, writable */
    uint32_t cap_images;
    ds_effort effort;
    /* Responses: what a store record holds */
    const ds_json *stored_items, *input;
    ds_resolved *resolved, *last_resolved; /* in the order of the input */
    ds_str items;
    /* completions */
    struct ds_prompt *prompts;
    ds_str suffix;
    /* rendered */
    struct ds_rendered *rendered; /* n_prompts of them */
};

struct ds_prompt {
    ds_str text; /* absent: ids */
    ds_token *ids;
    size_t n_ids;
};

struct ds_rendered {
    char *text;   /* heap */
    ds_run *runs; /* heap */
    size_t n_runs, text_bytes;
};

typedef enum { /* in the order in which refusals win */
               DS_STAGE_TYPE,
               DS_STAGE_MODEL,
               DS_STAGE_SAMPLING,
               DS_STAGE_TOOLS,
               DS_STAGE_CHOICE,
               DS_STAGE_MESSAGES,
               DS_STAGE_FORMAT,
               DS_STAGE_SIZE,
} ds_stage;

/* Where we are in the body: a chain on the C stack, written out only for an error. */
typedef struct ds_path ds_path;
struct ds_path {
    const ds_path *up; /* NULL: the body */
    const char *key;   /* NULL: index */
    uint32_t index;
};

typedef struct {
    ds_request *r;
    ds_region *mem; /* = &r->mem */
    const ds_recipe_opts *o;
    const ds_request_io *io;
    bool count;
    ds_rc rc;
    ds_api_error *why; /* filled when rc is DS_E_FORMAT */
    ds_err *err;
    ds_stage held_stage; /* DS_STAGE_TYPE: nothing held */
    ds_api_error held;
    ds_idmap ids; /* scratch of the adapters */
    ds_api_error hook_why;
    bool mentions_json; /* some content contains "json" */
    bool choice_named;
    bool thinking_asked;           /* thinking or effort: the client said something */
    const ds_msg *caller;          /* Messages: the last assistant message */
    uint32_t open_calls, answered; /* of its calls */
} ds_rp;

/* "messages[2].content[0].type" */
void ds_path_text(char *out, size_t cap, const ds_path *at, const char *key);

/* ---- errors ---- */
void ds_rp_type(ds_rp *p, const ds_path *at, const char *key, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
void ds_rp_refuse(ds_rp *p, ds_stage stage, const ds_path *at, const char *key, const char *fmt, ...) __attribute__((format(printf, 5, 6)));
void ds_rp_refuse_status(ds_rp *p, ds_stage stage, int status, const char *type, const char *code, const ds_path *at, const char *key,
                         const char *fmt, ...) __attribute__((format(printf, 8, 9)));
void ds_rp_oom(ds_rp *p);
/* True when parsing must stop; notices an exhausted region. */
bool ds_rp_stop(ds_rp *p);

/* ---- fields: `null` counts as absent everywhere ---- */
/* f[i] = member names[i], or NULL. One pass over the members. */
void ds_fields(const ds_json *obj, const char *const *names, size_t n, const ds_json **f);
bool ds_rp_str(ds_rp *p, const ds_json *v, const ds_path *at, const char *key, ds_str *out); /* false: absent or refused */
bool ds_rp_bool(ds_rp *p, const ds_json *v, const ds_path *at, const char *key, bool *out);
bool ds_rp_i64(ds_rp *p, const ds_json *v, const ds_path *at, const char *key, int64_t *out);
bool ds_rp_f64(ds_rp *p, const ds_json *v, const ds_path *at, const char *key, double *out);
bool ds_rp_object(ds_rp *p, const ds_json *v, const ds_path *at, const char *key);
bool ds_rp_array(ds_rp *p, const ds_json *v, const ds_path *at, const char *key);
/* Index of a string value in a "|"-separated list; -1: absent or refused with the list in the message. */
int ds_rp_enum(ds_rp *p, const ds_json *v, const ds_path *at, const char *key, const char *allowed);
/* A required member is missing. */
void ds_rp_missing(ds_rp *p, const ds_path *at, const char *key);

/* Parses text that the request will refer to; NULL when it isn't JSON. */
const ds_json *ds_rp_parse(ds_rp *p, const char *text, size_t n);
/* A value as text in the region. */
ds_str ds_rp_json_text(ds_rp *p, const ds_json *v, ds_json_style style);

/* ---- common pieces ---- */
void ds_rp_model(ds_rp *p, const ds_json *v); /* absent: the caller's own */
typedef struct {
    const ds_json *temperature, *top_p, *top_k, *min_p, *presence, *frequency, *repetition, *seed, *n, *logprobs, *top_logprobs,
        *logit_bias, *ignore_eos, *min_tokens, *prompt_logprobs, *stop_ids, *allowed_ids, *bad_words, *include_stop, *truncate_prompt;
} ds_sampling_fields;
void ds_rp_sampling(ds_rp *p, const ds_sampling_fields *f);
void ds_rp_max_tokens(ds_rp *p, const ds_json *v, const char *key); /* 0: completions only */
/* list_only: Messages. refuse_empty: an empty string is an error instead of being dropped. */
void ds_rp_stop_list(ds_rp *p, const ds_json *v, const char *key, bool list_only, bool refuse_empty);
/* Effort by name; DS_EFFORT_NONE for "none". False: absent or refused. */
bool ds_rp_effort(ds_rp *p, const ds_json *v, const ds_path *at, const char *key, bool allow_none, bool allow_number, ds_effort *out,
                  uint32_t *number);
/* thinking: -1 = not said. Fills info.thinking, effort; ds_rp_tools_end decides about those who said nothing. */
void ds_rp_thinking(ds_rp *p, int thinking, bool has_effort, ds_effort effort, uint32_t number);

/* Text that a client sends: the image placeholder's spelling is refused (recipe 2.8). */
void ds_rp_check_text(ds_rp *p, ds_stage stage, ds_str s, const ds_path *at, const char *key);
/* The same for every string and key of a JSON value. */
void ds_rp_check_json(ds_rp *p, ds_stage stage, const ds_json *v, const ds_path *at, const char *key);
void ds_rp_note_json(ds_rp *p, ds_str s);

/* ---- images and documents ---- */
/* url: data: or http(s). Adds an image and puts it into *content. */
void ds_rp_image_url(ds_rp *p, ds_parts *content, const ds_json *url, const ds_json *detail, const ds_path *at, const char *key,
                     const char *detail_key);
void ds_rp_image_base64(ds_rp *p, ds_parts *content, ds_str media_type, ds_str data, const ds_path *at);
void ds_rp_image_file(ds_rp *p, ds_parts *content, ds_str file_id, const ds_json *detail, const ds_path *at, const char *key);
/* A data: URL of any type as content: images become images, text is inlined, others go through io->document. False:
 * nothing could be made of it (the caller puts its own words there). */
bool ds_rp_data_url_content(ds_rp *p, ds_parts *content, ds_str url, const ds_path *at, const char *key);
bool ds_rp_document(ds_rp *p, ds_parts *content, ds_str media_type, ds_str base64, ds_str before, const ds_path *at);
bool ds_rp_base64(ds_rp *p, ds_str text, ds_str *out); /* decoded into the region; false: malformed */

/* ---- tools ---- */
void ds_rp_tools_begin(ds_rp *p, size_t max_new);
/* source: the client's object. NULL when refused. Checks the name, uniqueness, the schema. */
ds_tool *ds_rp_add_tool(ds_rp *p, ds_str name, ds_str description, const ds_json *parameters, bool strict, const ds_json *source,
                        const ds_path *at);
/* name, description, format (text or grammar) of a custom tool; the object that holds them. */
void ds_rp_add_custom(ds_rp *p, const ds_json *obj, const ds_path *at, bool nested_grammar);
bool ds_rp_name_ok(ds_str name);
/* The declared tool of that rendered name, or NULL. */
ds_tool *ds_rp_find_tool(ds_rp *p, ds_str name);
void ds_rp_choose_named(ds_rp *p, ds_str name, const ds_path *at, const char *key);
/* Shows only the named ones. */
void ds_rp_choose_allowed(ds_rp *p, const ds_json *obj, const ds_path *at, bool nested);
/* After tools and choice are known. format: where a JSON Schema with its `strict` would stand, or NULL. */
void ds_rp_tools_end(ds_rp *p, const ds_json *format);

/* ---- response format ---- */
/* type text | json_object | json_schema (| regex); `nested`: the schema stands in a member json_schema. */
void ds_rp_response_format(ds_rp *p, const ds_json *v, const ds_path *at, bool nested, bool allow_regex, bool needs_mention);
void ds_rp_json_schema(ds_rp *p, const ds_json *obj, const ds_path *at);
/* vLLM's guided_* and structured_outputs; before ds_rp_tools_end. NULL: absent. */
typedef struct {
    const ds_json *json, *regex, *choice, *grammar, *structured;
} ds_guided_fields;
void ds_rp_guided(ds_rp *p, const ds_guided_fields *f);

/* ---- history ---- */
void ds_rp_call_text(ds_rp *p, ds_call *c, const ds_json *arguments, const ds_path *at, const char *key);
void ds_rp_call_object(ds_rp *p, ds_call *c, const ds_json *input, const ds_path *at, const char *key);
void ds_rp_call_input(ds_rp *p, ds_call *c, ds_str input, const ds_path *at, const char *key);
void ds_rp_call_name(ds_rp *p, const ds_call *c, const ds_path *at, const char *key);
/* The id of the first call of m that has no result yet; p->ids knows them. */
ds_str ds_rp_unanswered(const ds_rp *p, const ds_msg *m);
/* Sealed reasoning: true and *text when the blob is ours. Otherwise dropped or refused. */
bool ds_rp_unseal(ds_rp *p, ds_str blob, const ds_path *at, const char *key, ds_str *text);

/* ---- adapters: a body to the conversation; the members that each reads ---- */
void ds_request_chat(ds_rp *p, const ds_json *body);
void ds_request_responses(ds_rp *p, const ds_json *body);
void ds_request_messages(ds_rp *p, const ds_json *body);
void ds_request_completions(ds_rp *p, const ds_json *body);
extern const char *const ds_chat_members[], *const ds_responses_members[], *const ds_messages_members[],
                                                                               *const ds_completions_members[]; /* NULL behind */

/* render.c */
ds_rc ds_render_conversation(ds_request *r, struct ds_rendered *out, ds_err *err);
ds_rc ds_render_completion(ds_request *r, uint32_t i, struct ds_rendered *out, ds_err *err);

#endif
