/* Requests of `deepserve generate`: from the command line or from a line of JSON, by the names that API clients use. */
#ifndef DS_CLI_GEN_REQUEST_H
#define DS_CLI_GEN_REQUEST_H

#include <ds/gen_request.h>

#include "base/json.h"
#include "cli/gen.h"
#include "constrain/constrain.h"
#include "recipe/bad_words.h"

typedef struct {
    ds_ids ids;                /* the prompt */
    ds_request_info_data info; /* what the line gave: of a chat request all of it, of others what they have */
    ds_sampling sampling;      /* what the options gave, for the rest */
    uint32_t max_tokens;
    ds_str *stop; /* info.stop and info.logit_bias, where they aren't the chat request's own */
    ds_token_bias *bias;
    ds_token *rule_ids; /* info.stop_ids and info.allowed_ids, likewise */
    ds_str *words;      /* info.bad_words, likewise */
    ds_bad_words bad;
    ds_gen_image *images; /* with embeddings of their own */
    size_t n_images;
    ds_constrain_what what;  /* the answers must be; kind NONE without calls: anything */
    ds_constrained *grammar; /* ds_cli_request_begin's */

    /* what the strings above point into */
    ds_json_doc *doc;
    ds_request *chat; /* the line, or the completions request that its constraint belongs to */
} ds_cli_request;

/* The options as a request without prompt; `line` moves the seed. */
ds_rc ds_cli_request_init(ds_cli_request *q, const ds_cli_gen_opts *o, uint64_t line, ds_err *err);
/* Raw text: the begin-of-sentence id, then the text's ids. */
ds_rc ds_cli_request_text(ds_cli_request *q, ds_cli_gen *g, const char *text, size_t n, ds_err *err);
/* One line of JSONL: {"prompt": …}, {"tokens": […]} or a chat request; its own values win over those of the options.
 * The line isn't needed afterwards. */
ds_rc ds_cli_request_json(ds_cli_request *q, ds_cli_gen *g, const char *line, size_t n, ds_err *err);
/* Gets the pictures of q->chat, widens their placeholders in q->ids and embeds them. What can't be shown is
 * DS_E_FORMAT. */
ds_rc ds_cli_request_images(ds_cli_request *q, ds_cli_gen *g, ds_err *err);
/* The grammar of its answers, if they have one. DS_E_ARG: refused; DS_E_AGAIN: when others are done. */
ds_rc ds_cli_request_begin(ds_cli_request *q, ds_cli_gen *g, ds_err *err);
/* Why an end with DS_ENDED_FAILED or DS_ENDED_LOST is one, into err. */
ds_rc ds_cli_request_failure(const ds_cli_request *q, const ds_event *end, ds_err *err);
/* The same for the engine, after begin; borrowed like everything else. */
ds_gen_request ds_cli_request_engine(const ds_cli_request *q, const ds_cli_gen *g, ds_gen_room *room);
enum { DS_CLI_MAX_STOPS = 16, DS_CLI_MAX_STOP_BYTES = 256 };
void ds_cli_request_fini(ds_cli_request *q); /* zero-initialised is fine */

#endif
