/* Framing of a request head, checked more strictly than the HTTP library does. (docs/server.md, "What is refused")
 *
 * Two parties that disagree about where a request ends can be made to smuggle one inside another. So a head is taken
 * only when every byte of it is accounted for: each line must begin where the one before it ended, two bytes after
 * its value, and the sum of all must be the number of bytes that the library read. What it joined, skipped or cut
 * (folded lines, lines without a name, NUL bytes, bare line feeds) shows up as a gap. (NUL and line feed at the end
 * of a line take the place of CR LF unnoticed: the library overwrites both.) Threads: a ds_framing is a
 * value.   Memory: none. */
#ifndef DS_SERVER_FRAMING_H
#define DS_SERVER_FRAMING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    size_t bytes;    /* accounted for so far */
    const char *why; /* first thing that is wrong; NULL = nothing yet */
    bool http10, has_length, has_coding, has_host, chunked, empty_value;
    uintptr_t next;  /* where the next line begins; 0 = not known yet */
    uint64_t length; /* Content-Length */
} ds_framing;

/* The request line. `target` as it came, with its query. */
void ds_framing_start(ds_framing *f, const char *method, size_t target_bytes, const char *version);
/* One header line. The lines in order; name and value as they lie in the buffer that the head was read into. */
void ds_framing_header(ds_framing *f, const char *name, size_t name_n, const char *value, size_t value_n);
/* All lines were given; head_bytes is what the library read. NULL: the request is well framed, else what is wrong
 * (static, one line). */
const char *ds_framing_end(ds_framing *f, size_t head_bytes);

#endif
