/* What store and client say to each other: types of frames and the shared slots (docs/formats/frame.md). */
#ifndef DS_KVSTORE_WIRE_INTERNAL_H
#define DS_KVSTORE_WIRE_INTERNAL_H

#include <stdatomic.h>

#include <ds/kvstore.h>

#include "net/frame.h"

enum {
    DS_WIRE_HELLO = 1,
    DS_WIRE_WELCOME,
    DS_WIRE_REFUSED,
    DS_WIRE_FETCH,
    DS_WIRE_FETCHED,
    DS_WIRE_CANCEL,
    DS_WIRE_SAVE,
    DS_WIRE_SAVED,
    DS_WIRE_TOUCH,
    DS_WIRE_STAT,
    DS_WIRE_STATS,
    DS_WIRE_LIST,
    DS_WIRE_ITEMS,
    DS_WIRE_VERIFY,
    DS_WIRE_CHECKED,
    DS_WIRE_FORGET,
    DS_WIRE_FORGOTTEN,
};

enum {
    DS_WIRE_LAST = 1,      /* flag of ITEMS */
    DS_WIRE_BRIEF = 1,     /* flag of SAVE: for the window pool only */
    DS_WIRE_SLOTS = 256,   /* of an engine */
    DS_WIRE_CHUNK = 32,    /* blocks of one FETCH or SAVE that our client sends */
    DS_WIRE_REQUESTS = 64, /* of one connection at a time */
    DS_WIRE_ITEM_BYTES = 96,
    DS_WIRE_TENANT_BYTES = 1024,
    DS_WIRE_SOCKET_BYTES = 1 << 20, /* of a socket's buffers: more than all requests of a connection and their answers */
};

/* The slots of one engine, mapped by both sides. */
typedef struct {
    uint8_t *map;
    uint64_t bytes, stride;
    uint32_t n;
} ds_wire_slots;

static inline uint64_t ds_wire_slots_head(uint32_t n)
{
    return ((uint64_t)n * 8 + 4095) / 4096 * 4096;
}

static inline uint64_t ds_wire_stride(uint32_t block_bytes)
{
    return ((uint64_t)block_bytes + 4095) / 4096 * 4096;
}

/* Release and acquire: who sees a request as a slot's owner sees the bytes that were put there for it. */
static inline void ds_wire_own(const ds_wire_slots *s, uint32_t i, uint64_t request)
{
    atomic_store_explicit((_Atomic uint64_t *)(void *)s->map + i, request, memory_order_release);
}

static inline uint64_t ds_wire_owner(const ds_wire_slots *s, uint32_t i)
{
    return atomic_load_explicit((_Atomic uint64_t *)(void *)s->map + i, memory_order_acquire);
}

static inline uint8_t *ds_wire_slot(const ds_wire_slots *s, uint32_t i)
{
    return s->map + ds_wire_slots_head(s->n) + i * s->stride;
}

#endif
