/* The key of a block of cached KV: a SHA-256 value (docs/formats/block-key.md). Threads: plain data. */
#ifndef DS_KEY_H
#define DS_KEY_H

#include <stdint.h>

typedef struct {
    uint8_t b[32];
} ds_key;

#endif
