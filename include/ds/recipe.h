/* The protocol library: requests of three API protocols to prompts and token ids, model output back to responses and events.
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

#endif
