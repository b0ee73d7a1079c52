/* Return codes and error messages of every deepserve library.
 *
 * A function that can fail returns a ds_rc and fills an optional ds_err. The code is for the program, the message
 * for the operator: what, where, which value, in one line. */
#ifndef DS_ERR_H
#define DS_ERR_H

typedef enum {
    DS_OK = 0,
    DS_E_NOMEM = -1,    /* the heap is exhausted */
    DS_E_ARG = -2,      /* the caller's bug, or a value that the user gave */
    DS_E_FORMAT = -3,   /* outside bytes are malformed */
    DS_E_IO = -4,       /* the OS refused */
    DS_E_AGAIN = -5,    /* a bounded pool is full: retry later */
    DS_E_CANCELED = -6, /* somebody asked to stop */
    DS_E_DEVICE = -7,   /* the accelerator failed: this context is dead */
} ds_rc;

typedef struct {
    ds_rc rc;
    char msg[504]; /* NUL-terminated; longer text is cut at a UTF-8 border and ends in "..." */
} ds_err;

#endif
