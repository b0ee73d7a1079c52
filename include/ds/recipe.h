/* The protocol library: requests of three API protocols to prompts and token ids, model output back to responses and
 * events.
 *
 *   ds/tokenizer.h   tokenizer.json: text <-> ids                       (recipe spec 1)
 *   ds/request.h     request body -> conversation -> prompt runs        (recipe spec 2 and 4)
 *   ds/stream.h      model output, in any pieces -> response or events  (recipe spec 3 and 4)
 *
 * It depends on nothing of the engine. */
#ifndef DS_RECIPE_H
#define DS_RECIPE_H

#include <ds/err.h>
#include <ds/request.h>
#include <ds/stream.h>
#include <ds/tokenizer.h>

/* Options that the tokenizer at hand decides: how its image placeholder is spelled, and whether it has grounding
 * tokens. */
void ds_recipe_opts_fit(ds_recipe_opts *o, const ds_tokenizer *t);

/* The prompt and what else the engine is told, as one JSON object (what `deepserve render` writes): prompt, runs,
 * ids and prompt_tokens (with an encoder, else e is NULL; a prompt that came as ids has them always, and no runs),
 * images, image_records, thinking, effort, stop, max_tokens, constraint. *json is freed with ds_recipe_free.
 * Pictures that aren't laid out have null members. DS_E_FORMAT: too long for the context, or an id outside of the
 * encoder's vocabulary; *why is filled; DS_E_ARG: no such prompt; DS_E_NOMEM. */
ds_rc ds_request_json(ds_request *r, uint32_t prompt, ds_encoder *e, char **json, size_t *n, ds_api_error *why, ds_err *err);
void ds_recipe_free(void *p);

/* ---- for bindings ------------------------------------------------------------------------------------------------ */

/* Default options on the heap, freed with ds_recipe_free: a binding needn't know their layout, ds_recipe_opts_set
 * changes them. */
ds_rc ds_recipe_opts_create(ds_recipe_opts **out, ds_encoding encoding, ds_err *err);
/* Sizes of the structs that a binding lays out itself, in this order: ds_err, ds_api_error, ds_request_parse_args,
 * ds_request_io, ds_response_store, ds_stream_opts, ds_stream_usage, ds_top_logprob, ds_token_logprob, ds_run,
 * ds_ids, ds_encoder_opts, ds_decoder, ds_image, ds_image_rule, ds_image_limits, ds_pixels, ds_prepare_opts,
 * ds_picture, ds_fetch_opts, ds_fetch_item, ds_images_opts. Static; *n = how many. */
const size_t *ds_recipe_abi(size_t *n);

#endif
