/* What the commands that run a model share: opening it, token ids from the command line. */
#ifndef DS_CLI_MODEL_CLI_H
#define DS_CLI_MODEL_CLI_H

#include "base/pool.h"
#include "cli/cli.h"
#include "cli/options.h"
#include "role/parts.h"
#include "model/model.h"

typedef struct {
    ds_pool *pool;
    ds_model *model;
} ds_cli_model;

/* The team of threads and the model. The token map for Engram comes from the directory's tokenizer.json when the
 * checkpoint has none. What "auto" took is said on standard error. On failure nothing is held. */
ds_rc ds_cli_model_open(ds_cli_model *m, const char *dir, const ds_llm_place *place, ds_err *err);
/* Says what `asked` (an option's value) became, if that was "auto": the device, and why none that comes first. */
void ds_cli_say_device(const char *asked, const char *name);
void ds_cli_model_close(ds_cli_model *m);

typedef struct {
    ds_token *p; /* free() it */
    uint32_t n;
    uint32_t odd_at;   /* of the first id that no vocabulary can have */
    char odd_text[24]; /* that id as it stands, cut; "" = there is none */
} ds_cli_ids;

/* `arg` is "1,2,3", or "@FILE" with a JSON array. *wrong_use: the argument alone shows the mistake. */
ds_rc ds_cli_ids_parse(ds_cli_ids *ids, const char *arg, bool *wrong_use, ds_err *err);
/* Ids outside 0 .. vocab-1 are refused. */
ds_rc ds_cli_ids_check(const ds_cli_ids *ids, uint32_t vocab, ds_err *err);

/* deepserve's place in the user's cache directory, as the XDG rules have it; NULL: there is none. */
const char *ds_cli_user_cache(char *out, size_t cap);

#endif
