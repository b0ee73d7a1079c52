/* Behind ds/kvstore.h: what a store in this process and a connection to one have in common. */
#ifndef DS_KVSTORE_KVSTORE_INTERNAL_H
#define DS_KVSTORE_KVSTORE_INTERNAL_H

#include <ds/kvstore.h>

typedef struct {
    void (*close)(ds_kvstore *s);
    uint32_t (*match)(ds_kvstore *s, const ds_key *keys, uint32_t n, bool exact);
    ds_rc (*fetch)(ds_kvstore *s, const ds_kvstore_fetch_req *r, uint64_t *ticket, ds_err *err);
    bool (*cancel)(ds_kvstore *s, uint64_t ticket);
    ds_rc (*save)(ds_kvstore *s, const ds_kvstore_save_req *r, ds_err *err);
    void (*touch)(ds_kvstore *s, const ds_key *keys, uint32_t n);
    ds_rc (*stat)(ds_kvstore *s, ds_kvstore_stats *out, ds_err *err);
    ds_rc (*verify)(ds_kvstore *s, unsigned how, const volatile bool *stop, ds_kvstore_check *out, ds_err *err);
    ds_rc (*forget)(ds_kvstore *s, const char *tenant, uint64_t *n, ds_err *err);
    ds_rc (*list)(ds_kvstore *s, bool (*fn)(void *ctx, const ds_kvstore_item *item), void *ctx, ds_err *err);
} ds_kvstore_ops;

struct ds_kvstore {
    const ds_kvstore_ops *ops; /* [const] */
    bool has_user;             /* [const] match, fetch and save are for users */
    bool brief;                /* [const] takes window states for its memory */
};

enum { DS_KVSTORE_MAX_BLOCKS = 1 << 16 }; /* of one call */

#endif
