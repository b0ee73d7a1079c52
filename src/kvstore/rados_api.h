/* The functions of Ceph's librados that a store uses, as a table: the real ones, or a test's.
 *
 * Names, signatures and meaning are those of <rados/librados.h>, whose handles are all void pointers; so what stands on
 * the table builds without it. The library is loaded when the first store needs it: programs start without it. */
#ifndef DS_KVSTORE_RADOS_API_H
#define DS_KVSTORE_RADOS_API_H

#include <stddef.h>
#include <stdint.h>
#include <sys/time.h>
#include <time.h>

#include <ds/err.h>

typedef void ds_rados_callback(void *completion, void *arg);

typedef struct ds_rados_api {
    int (*create)(void **cluster, const char *id);
    int (*conf_read_file)(void *cluster, const char *path);
    int (*conf_get)(void *cluster, const char *option, char *buf, size_t len);
    int (*conf_set)(void *cluster, const char *option, const char *value);
    int (*connect)(void *cluster);
    void (*shutdown)(void *cluster);
    int (*ioctx_create)(void *cluster, const char *pool, void **io);
    void (*ioctx_destroy)(void *io);
    void (*ioctx_set_namespace)(void *io, const char *name);
    int (*ioctx_pool_required_alignment2)(void *io, uint64_t *alignment);
    int (*nobjects_list_open)(void *io, void **list);
    int (*nobjects_list_next)(void *list, const char **entry, const char **key, const char **name);
    void (*nobjects_list_close)(void *list);
    int (*stat)(void *io, const char *oid, uint64_t *size, time_t *mtime);
    int (*read)(void *io, const char *oid, char *buf, size_t len, uint64_t off);
    int (*remove)(void *io, const char *oid);
    int (*lock_exclusive)(void *io, const char *oid, const char *name, const char *cookie, const char *desc, struct timeval *duration,
                          uint8_t flags);
    int (*unlock)(void *io, const char *oid, const char *name, const char *cookie);
    void *(*create_write_op)(void);
    void (*release_write_op)(void *op);
    void (*write_op_create)(void *op, int exclusive, const char *category);
    void (*write_op_write)(void *op, const char *buf, size_t len, uint64_t off);
    void (*write_op_setxattr)(void *op, const char *name, const char *value, size_t len);
    void (*write_op_cmpxattr)(void *op, const char *name, uint8_t comparison, const char *value, size_t len);
    void (*write_op_remove)(void *op);
    int (*write_op_operate)(void *op, void *io, const char *oid, time_t *mtime, int flags);
    int (*aio_write_op_operate)(void *op, void *io, void *completion, const char *oid, time_t *mtime, int flags);
    int (*aio_create_completion2)(void *arg, ds_rados_callback *done, void **completion);
    int (*aio_read)(void *io, const char *oid, void *completion, char *buf, size_t len, uint64_t off);
    int (*aio_get_return_value)(void *completion);
    void (*aio_release)(void *completion);
    int (*aio_cancel)(void *io, void *completion);
} ds_rados_api;

enum { DS_RADOS_CREATE_EXCLUSIVE = 1, DS_RADOS_EQUAL = 1, DS_RADOS_LOCK_RENEW = 1, DS_RADOS_FULL_TRY = 64 };

/* The real ones. DS_E_ARG: this program was built without them, or the machine hasn't the library. */
ds_rc ds_rados_load(const ds_rados_api **out, ds_err *err);

#endif
