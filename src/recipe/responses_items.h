/* The items of a Responses request, stored ones before new ones, as messages of the conversation. (recipe spec 4.4) */
#ifndef DS_RECIPE_RESPONSES_ITEMS_H
#define DS_RECIPE_RESPONSES_ITEMS_H

#include "recipe/request_internal.h"

/* Resolves previous_response_id or conversation, which the options hold already, and reads `input` and
 * `instructions`. */
void ds_responses_input(ds_rp *p, const ds_json *input, const ds_json *instructions);

#endif
