/* Recorded model outputs, for protocol tests: an engine without a model that answers with them.
 *
 * The file is JSON lines. Each is one answer: {"text":"…"} with the model's output as it is, markers like </think>
 * included; optionally "when":"…", a text that the request's body must contain (in its JSON form), and
 * "repeat":true. A request gets the first line that fits and wasn't used; lines with "repeat" are never used up.
 * Without one that fits the output is empty. Threads: choose from one thread; a chosen answer is constant. */
#ifndef DS_CLI_REPLAY_H
#define DS_CLI_REPLAY_H

#include <ds/tokenizer.h>

#include "base/err.h"

typedef struct ds_replay ds_replay;

/* DS_E_IO, DS_E_FORMAT with the line, DS_E_NOMEM. */
ds_rc ds_replay_open(ds_replay **out, const char *path, const ds_tokenizer *t, ds_err *err);
void ds_replay_close(ds_replay *r); /* NULL is fine */
/* The answer to a request; NULL: none fits. Valid as long as r. */
const ds_ids *ds_replay_choose(ds_replay *r, const char *body, size_t n);

#endif
