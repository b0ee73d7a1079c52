/* A store in directories of its own, chains whose blocks can be told by their keys, and calls that wait. */
#ifndef DS_TEST_STORE_RIG_H
#define DS_TEST_STORE_RIG_H

#include <ds/kvstore.h>

enum { RIG_DIRS = 12, RIG_BLOCK = 3000 };

typedef struct {
    char root[64], dir[RIG_DIRS][96];
    const char *dirs[RIG_DIRS];
    uint32_t n;
    uint8_t layout[256];
    ds_kvstore_user user;
    ds_kvstore_opts o; /* to be changed before opening */
} rig;

void rig_init(rig *r, uint32_t k, uint32_t m);
void rig_fini(rig *r);
void rig_layout(rig *r, uint32_t block_bytes, uint32_t bf16);
void rig_states(rig *r, uint32_t state_bytes); /* the user's "blocks" are window states */

ds_key rig_ns(uint32_t chain);
ds_key rig_key(uint32_t chain, uint32_t i);
void rig_keys(ds_key *out, uint32_t chain, uint32_t from, uint32_t n);
void rig_fill(uint8_t *out, uint32_t chain, uint32_t i);
bool rig_right(const uint8_t *block, uint32_t chain, uint32_t i);

typedef struct {
    uint32_t chain, from, n;
    uint32_t exact; /* UINT32_MAX: all */
    ds_kvstore_class klass;
    const char *tenant;
    bool brief;
} rig_blocks;
/* Saves and waits. */
ds_kvstore_saved rig_save(ds_kvstore *s, rig_blocks b);
/* Fetches and waits; every block that comes must be right, or the test fails. */
ds_kvstore_fetched rig_fetch(ds_kvstore *s, uint32_t chain, uint32_t from, uint32_t n, uint64_t deadline_ns);
uint32_t rig_match(ds_kvstore *s, uint32_t chain, uint32_t n);

#endif
