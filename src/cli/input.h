/* Bytes of --input, from a file or a pipe. A signal that ds_cli_signals_catch() notes also ends a wait for more. */
#ifndef DS_CLI_INPUT_H
#define DS_CLI_INPUT_H

#include <stdbool.h>
#include <stddef.h>

typedef struct {
    int fd;
    bool deaf; /* signals that came don't count any more */
    int error; /* errno of a failed read, EINTR: a signal came; 0: none */
    size_t at, n;
    char buf[65536];
} ds_cli_input;

/* The next byte; -1 at the end, on an error, and when a signal came. */
int ds_cli_input_byte(ds_cli_input *in);

#endif
