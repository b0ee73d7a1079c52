/* The parts of shared memory that several processes change at the same time: rings and bells.
 *
 *   ring   one writer, one reader, n slots. `posted` and `taken` count messages and are written by one side each;
 *          message number i stands in slot i % n. The writer fills a slot, then raises posted; the reader reads it
 *          where it lies, then raises taken. n divides 2^32, so that the counts may wrap around.
 *   bell   wakes a rank. Who waits says so in `asleep`, looks once more, and sleeps on `rings`; who has changed
 *          something looks at `asleep` after the change, raises `rings` and wakes. All these accesses are in one order
 *          (sequentially consistent), so either the one sees the change or the other sees that somebody sleeps.
 *
 * Everything goes through the functions of `io`, so that the test that walks through every interleaving
 * (tests/unit/parallel/test_ring_orders.c) runs this code and not a copy of it. */
#ifndef DS_PARALLEL_RING_INTERNAL_H
#define DS_PARALLEL_RING_INTERNAL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct {
    _Alignas(64) atomic_uint posted;
    _Alignas(64) atomic_uint taken;
} ds_ring;

/* Why a rank sleeps, and so who has to wake it. */
enum {
    DS_BELL_AWAKE,
    DS_BELL_ANY,   /* whatever changes */
    DS_BELL_ROUND, /* only the last word of a round, or the end */
};

typedef struct {
    _Alignas(64) atomic_uint rings;
    atomic_uint asleep;
} ds_bell;

typedef struct {
    unsigned (*load)(atomic_uint *at);
    void (*store)(atomic_uint *at, unsigned v);
    void (*add)(atomic_uint *at);
    void (*sleep)(atomic_uint *at, unsigned seen, void *ctx); /* while *at == seen; may return early */
    void (*wake)(atomic_uint *at);
} ds_ring_io;

#define DS_RING_INLINE static inline __attribute__((always_inline))

/* The writer's: has the ring room for message number `mine`? */
DS_RING_INLINE bool ds_ring_has_room(ds_ring *r, unsigned mine, unsigned slots, const ds_ring_io *io)
{
    return mine - io->load(&r->taken) < slots;
}

/* The slot of message number `mine` is full. */
DS_RING_INLINE void ds_ring_post(ds_ring *r, unsigned mine, const ds_ring_io *io)
{
    io->store(&r->posted, mine + 1);
}

/* The reader's: is message number `mine` there? */
DS_RING_INLINE bool ds_ring_has_come(ds_ring *r, unsigned mine, const ds_ring_io *io)
{
    return io->load(&r->posted) != mine;
}

DS_RING_INLINE void ds_ring_done(ds_ring *r, unsigned mine, const ds_ring_io *io)
{
    io->store(&r->taken, mine + 1);
}

/* Something has changed that concerns those who sleep for `why` or for anything. */
DS_RING_INLINE void ds_bell_ring(ds_bell *b, unsigned why, const ds_ring_io *io)
{
    unsigned asleep = io->load(&b->asleep);

    if (asleep == DS_BELL_AWAKE || asleep > why)
        return;
    io->add(&b->rings);
    io->wake(&b->rings);
}

/* Sleeps until the bell rings, unless `missing` finds at the last moment that nothing is. Wakes up for nothing too. */
DS_RING_INLINE void ds_bell_sleep(ds_bell *b, unsigned why, int (*missing)(void *ctx), void *ctx, const ds_ring_io *io)
{
    unsigned seen = io->load(&b->rings);

    io->store(&b->asleep, why);
    if (missing(ctx) >= 0)
        io->sleep(&b->rings, seen, ctx);
    io->store(&b->asleep, DS_BELL_AWAKE);
}

#endif
