/* Lines that a person types in a terminal, with editing and history (libedit; ~/.editrc is read).
 *
 * Signals are let in while it waits for a key and at no other time: the terminal's settings are restored before a
 * second one can end the program. Sets LC_CTYPE to UTF-8.   Threads: one, the main thread; one ds_term a process. */
#ifndef DS_CLI_TERM_H
#define DS_CLI_TERM_H

#include <stdbool.h>

#include "base/buf.h"
#include "base/err.h"

typedef struct ds_term ds_term;

typedef enum {
    DS_TERM_LINE, /* `line` has it */
    DS_TERM_END,  /* Ctrl-D on an empty line, or the terminal is gone */
    DS_TERM_SIGNAL,
} ds_term_got;

/* Standard input and output are a terminal. `history` names a file that is read now and written by close(), mode
 * 0600; NULL: none. DS_E_NOMEM; DS_E_IO: that file. */
ds_rc ds_term_open(ds_term **out, const char *history, ds_err *err);
ds_rc ds_term_close(ds_term *t, ds_err *err); /* NULL is fine; DS_E_IO: the history wasn't written */

/* One line without its line feed. `more`: it goes on a message, the prompt says so. *typed: something stood on the
 * line when the signal came. */
ds_term_got ds_term_line(ds_term *t, bool more, ds_buf *line, bool *typed);

/* Puts a message into the history, as often as it is typed in a row once. */
void ds_term_remember(ds_term *t, const char *line);

unsigned ds_term_columns(void *unused); /* 0: unknown */

#endif
