/* A prompt as the renderer hands it to the tokenizer: a list of runs, each either one special token or plain text.
 * (recipe spec 1.6)
 *
 * Text runs are never searched for special tokens, so nothing that a client writes can become one. Adjacent text
 * runs don't occur: the renderer joins them, because only a control token breaks the text. */
#ifndef DS_RUN_H
#define DS_RUN_H

#include <stdbool.h>
#include <stddef.h>

typedef struct {
    const char *p; /* UTF-8, not terminated */
    size_t n;      /* bytes, > 0 */
    bool control;  /* p is the spelling of one added token, without which the tokenizer can't encode this prompt */
} ds_run;

#endif
