/* A text that belongs to something else: the request, the document or the schema that it was read from. */
#ifndef DS_STR_H
#define DS_STR_H

#include <stddef.h>

typedef struct {
    const char *p; /* UTF-8, followed by a NUL that n doesn't count; NULL = absent. NULs inside are legal */
    size_t n;      /* bytes */
} ds_str;

#endif
