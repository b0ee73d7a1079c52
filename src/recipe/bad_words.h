/* vLLM's bad_words as sequences of token ids. */
#ifndef DS_RECIPE_BAD_WORDS_H
#define DS_RECIPE_BAD_WORDS_H

#include <ds/request.h>
#include <ds/tokenizer.h>

typedef struct {
    ds_token *ids;      /* of all sequences, one behind the other */
    ds_token_seq *list; /* [n], in `ids` */
    uint32_t n;
} ds_bad_words;

/* Each word as it stands at the beginning of a text and behind a space (spaces in front of it are dropped), where that
 * makes other tokens. On failure nothing is held. DS_E_NOMEM, DS_E_ARG (a word beyond the tokenizer's limits). */
ds_rc ds_bad_words_make(ds_bad_words *out, const ds_str *words, uint32_t n, ds_encoder *e, ds_err *err);
void ds_bad_words_free(ds_bad_words *b); /* zeros are fine */

#endif
