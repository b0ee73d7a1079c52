/* Encrypted reasoning: text that a client stores for us without being able to read or change it. (recipe spec 4.9)
 *
 * A blob is base64url without padding of: "ds1" · key id (8 bytes) · nonce (12) · AES-256-GCM ciphertext · tag (16).
 * The head is authenticated. It is bound to nothing but the key, so it survives a restart and moves between hosts
 * that share keys. A key ring has one key that seals and any number of older ones that still open: rotate by putting
 * the new key first. Threads: a ring is immutable; any thread may use it. */
#ifndef DS_RECIPE_SEAL_H
#define DS_RECIPE_SEAL_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define DS_SEAL_KEY_BYTES 32
#define DS_SEAL_MAX_KEYS 16

typedef struct ds_seal ds_seal;

/* keys[0] seals. A key's id is taken from its SHA-256, so equal keys have equal ids everywhere. DS_E_ARG: no key,
 * more than the maximum. */
ds_rc ds_seal_create(ds_seal **out, const uint8_t (*keys)[DS_SEAL_KEY_BYTES], size_t n_keys, ds_err *err);
void ds_seal_destroy(ds_seal *s); /* wipes the keys; NULL is fine */

size_t ds_seal_blob_bytes(size_t text_bytes); /* exact */
size_t ds_seal_opened_max(size_t blob_bytes); /* at most; 0 when it can't be a blob */

/* out receives ds_seal_blob_bytes(n) characters, no NUL. The nonce is random. DS_E_IO: no randomness; DS_E_NOMEM. */
ds_rc ds_seal_close(const ds_seal *s, const char *text, size_t n, char *out, ds_err *err);
/* DS_E_FORMAT: foreign, damaged, or sealed with a key that is no longer in the ring. cap >= ds_seal_opened_max(n). */
ds_rc ds_seal_open(const ds_seal *s, const char *blob, size_t n, char *out, size_t cap, size_t *out_n, ds_err *err);

#endif
