/* Requests of `deepserve generate`: from the command line or from a line of JSON, by the names that API clients use. */
#ifndef DS_CLI_GEN_REQUEST_H
#define DS_CLI_GEN_REQUEST_H

#include "base/json.h"
#include "cli/gen.h"

typedef struct {
    ds_ids ids; /* the prompt */
    uint32_t max_tokens, min_tokens, n;
    bool ignore_eos;
    ds_gen_sampling sampling;
    ds_str *stop; /* none empty */
    size_t n_stop;
    ds_gen_bias *bias;
    size_t n_bias;
    bool logprobs;
    uint32_t n_top;
    bool prompt_logprobs;
    uint32_t n_prompt_top;
    ds_gen_image *images; /* with embeddings of their own */
    size_t n_images;

    /* what the strings above point into */
    ds_json_doc *doc;
    ds_request *chat;
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
/* The same for the engine. The two lists receive the stop strings; borrowed like everything else. */
enum { DS_CLI_MAX_STOPS = 16, DS_CLI_MAX_STOP_BYTES = 256 };
ds_gen_request ds_cli_request_engine(const ds_cli_request *q, const ds_cli_gen *g, const char *stop[DS_CLI_MAX_STOPS],
                                     size_t stop_bytes[DS_CLI_MAX_STOPS]);
void ds_cli_request_fini(ds_cli_request *q); /* zero-initialised is fine */

#endif
