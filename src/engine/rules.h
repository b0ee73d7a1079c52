/* Token rules: which ids a request may draw at all, and words that it may not complete.
 *
 * Allowed ids and forbidden sequences of ids become bits in the mask of a draw. A sequence of one id is never drawn;
 * of a longer one the last id isn't drawn where the output ends with the others. Prompts don't count: a word may be
 * completed across the border of prompt and output.
 *
 * Threads: const after create; the tail of a sample belongs to whoever draws for it.   Memory: taken in create. */
#ifndef DS_ENGINE_RULES_H
#define DS_ENGINE_RULES_H

#include <ds/gen.h>

typedef struct ds_rules ds_rules;

enum { DS_RULES_MAX_SEQUENCES = 1024, DS_RULES_MAX_LENGTH = 256 };

/* *out is NULL when the request has no rules. DS_E_ARG: an id outside the vocabulary, too many or too long
 * sequences, or nothing is left that may be drawn; DS_E_NOMEM. */
ds_rc ds_rules_create(ds_rules **out, const ds_gen_request *q, uint32_t vocab, ds_err *err);
void ds_rules_destroy(ds_rules *r); /* NULL is fine */

/* Ids of the output that have to be remembered: those in front of the last of the longest sequence. 0: the mask is
 * the same everywhere. */
uint32_t ds_rules_memory(const ds_rules *r);
/* Takes from the mask what isn't allowed; `masked` false: everything is, and words is filled here. tail: the last
 * n_tail ids of the output, oldest first; fewer than memory only where the output is shorter. */
void ds_rules_mask(const ds_rules *r, const ds_token *tail, uint32_t n_tail, bool masked, uint32_t *words);

#endif
