/* What the room's other parts ask of a store in this process. */
#ifndef DS_KVSTORE_LOCAL_H
#define DS_KVSTORE_LOCAL_H

#include <ds/kvstore.h>

/* Whether a user can store blocks: its identity is known and its layout is one. id: of the layout. DS_E_ARG. */
ds_rc ds_kvstore_check_user(const ds_kvstore_user *u, uint8_t id[32], uint32_t *block_bytes, ds_err *err);

#endif
