/* API keys, tenants and their quotas.
 *
 * Keys file, one key a line: NAME sha256:HEX [tenant=T] [rps=N] [concurrent=N] [tokens_per_minute=N]; `#` starts a
 * comment. Only hashes are kept; a presented key is hashed and compared with every entry in constant time. Threads:
 * owner is the event loop.   Memory: the file's size, at most DS_AUTH_MAX_KEYS entries. */
#ifndef DS_SERVER_AUTH_H
#define DS_SERVER_AUTH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define DS_AUTH_MAX_KEYS 4096
#define DS_AUTH_NAME_MAX 64

typedef struct ds_auth ds_auth;

typedef struct {
    char name[DS_AUTH_NAME_MAX + 1], tenant[DS_AUTH_NAME_MAX + 1];
    uint8_t hash[32];
    double rps, tokens_per_minute; /* 0 = no limit */
    uint32_t concurrent;           /* 0 = no limit */
    /* use, kept over reload for a key of the same name */
    double requests, tokens; /* what may be used now */
    uint64_t at_us;          /* when that was true */
    uint32_t running;
    uint32_t refs; /* requests that hold this entry, and the list */
} ds_auth_key;

/* DS_E_IO, DS_E_FORMAT with the line's number, DS_E_NOMEM. */
ds_rc ds_auth_open(ds_auth **out, const char *path, ds_err *err);
ds_rc ds_auth_reload(ds_auth *a, ds_err *err); /* on failure nothing changed */
void ds_auth_close(ds_auth *a);                /* NULL is fine */

bool ds_auth_has(const ds_auth *a, const char *name); /* is there an entry of that name */

/* The entry of a presented key, or NULL. O(keys). */
ds_auth_key *ds_auth_find(ds_auth *a, const char *key, size_t n);

typedef enum { DS_QUOTA_OK, DS_QUOTA_RATE, DS_QUOTA_CONCURRENT, DS_QUOTA_TOKENS } ds_quota;
/* Takes one request from the key's quotas; on a refusal nothing is taken and *retry_s says when to come again. Give
 * it back with ds_auth_leave. */
ds_quota ds_auth_enter(ds_auth_key *k, uint64_t now_us, uint32_t *retry_s);
void ds_auth_leave(ds_auth_key *k, uint64_t tokens_used, uint64_t now_us); /* may free k */

#endif
