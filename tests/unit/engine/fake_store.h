/* A store for the engine's tests: in memory, late, unreliable and strict.
 *
 * Everything that engine/store.h allows a store to do, it does at random: answers at once or much later, in any order,
 * in part or not at all; forgets what it promised; refuses, for good or for now; lends a buffer that is still being
 * filled. Everything that the interface demands of the engine, it checks, and whoever reads a buffer that isn't lent
 * to him reads rubbish. Bytes are never wrong: that would be the store's fault, not the engine's.
 * Threads: any; what `rnd` is called from is the caller's business.   Memory: all taken in new. */
#ifndef DS_TEST_FAKE_STORE_H
#define DS_TEST_FAKE_STORE_H

#include "engine/store.h"

typedef struct fake_store fake_store;

typedef struct {
    uint32_t (*rnd)(uint32_t below);
    uint32_t records;  /* blocks and states that it holds at most */
    uint32_t per_cent; /* of answers that come at once; of the others, each turn */
    uint32_t fails;    /* per cent of blocks that don't come though they are there */
    bool on_commit;
} fake_store_opts;

fake_store *fake_store_new(const fake_store_opts *o, uint64_t block_bytes, uint64_t state_bytes);
void fake_store_free(fake_store *s); /* after the engine; aborts if that has left a ticket */
ds_store fake_store_store(fake_store *s);
void fake_store_turn(fake_store *s); /* time passes: answers, writes, losses */
void fake_store_set(fake_store *s, uint32_t per_cent, uint32_t fails);
void fake_store_forget_states(fake_store *s);
void fake_store_closing(fake_store *s); /* whatever is offered from now on is refused for good */
uint32_t fake_store_tickets(const fake_store *s);

#endif
