/* What is compiled. */
#ifndef DS_CONSTRAIN_CONSTRAIN_INTERNAL_H
#define DS_CONSTRAIN_CONSTRAIN_INTERNAL_H

#include "base/buf.h"
#include "constrain/constrain.h"

/* As the front end of its kind; DS_E_ARG also for text that isn't JSON where it must be. */
ds_rc constrain_compile(ds_grammar **out, const ds_constrain_what *what, const ds_grammar_opts *o, ds_err *err);
/* Appends all that compile depends on: equal for equal grammars. */
void constrain_describe(ds_buf *b, const ds_constrain_what *what);

/* The other way round: outside bytes. What is read borrows from them and from the room, which is freed by free(tools).
 * DS_E_FORMAT: nobody described this. */
enum { CONSTRAIN_MAX_TOOLS = 4096 };
typedef struct {
    ds_constrain_what what;
    ds_request_info_data info;
    ds_tool *tools;
} constrain_read_room;
ds_rc constrain_read(constrain_read_room *room, ds_str description, ds_err *err);

#endif
