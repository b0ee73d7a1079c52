/* Bytes and lines from a file or a pipe, for --input and chat: a signal that ds_cli_signals_catch() notes also ends a
 * wait for more. All of an input and of an output at once, for the others. */
#ifndef DS_CLI_INPUT_H
#define DS_CLI_INPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

enum {
    DS_CLI_LINE_MAX_BYTES = 64 << 20,  /* what is kept of a line; more is for the caller to refuse, */
    DS_CLI_SKIP_MAX_BYTES = 256 << 20, /* and a line longer than this is an error */
};

typedef struct {
    int fd;
    bool deaf; /* signals that came don't count any more */
    int error; /* errno of a failed read, EINTR: a signal came; 0: none */
    size_t at, n;
    char buf[65536];
} ds_cli_input;

/* The next byte; -1 at the end, on an error, and when a signal came. */
int ds_cli_input_byte(ds_cli_input *in);

/* The next line without its line feed; *bytes is its length, of which at most DS_CLI_LINE_MAX_BYTES are kept. False:
 * there is none (*rc stays DS_OK), it can't be read (DS_E_IO, DS_E_FORMAT, DS_E_NOMEM; the message begins with
 * `name`), or a signal came (DS_E_CANCELED). */
bool ds_cli_input_line(ds_cli_input *in, const char *name, ds_buf *line, uint64_t *bytes, ds_rc *rc, ds_err *err);

/* All of it, at most `most` bytes, behind what `in` has. DS_E_IO, DS_E_ARG: more than that; DS_E_NOMEM. The message
 * begins with `what`. */
ds_rc ds_cli_read_all(int fd, const char *what, size_t most, ds_buf *in, ds_err *err);
/* All of it to standard output. DS_E_IO. */
ds_rc ds_cli_write_all(const ds_buf *out, ds_err *err);

#endif
