/* librados, loaded when it is first needed. The build holds the table's signatures against its header. */
#include "kvstore/rados_api.h"

#include "base/err.h"

#ifdef DS_HAVE_RADOS

#include <dlfcn.h>
#include <pthread.h>
#include <rados/librados.h>
#include <stdio.h>

_Static_assert((int)DS_RADOS_CREATE_EXCLUSIVE == LIBRADOS_CREATE_EXCLUSIVE && (int)DS_RADOS_EQUAL == (int)LIBRADOS_CMPXATTR_OP_EQ &&
                   DS_RADOS_LOCK_RENEW == LIBRADOS_LOCK_FLAG_MAY_RENEW && (int)DS_RADOS_FULL_TRY == (int)LIBRADOS_OPERATION_FULL_TRY,
               "constants of librados");

static pthread_once_t once = PTHREAD_ONCE_INIT;
static ds_rados_api api; /* [const] after once */
static char why[300];    /* [const] after once: it can't be had */

static void load(void)
{
    void *lib = dlopen("librados.so.2", RTLD_NOW | RTLD_LOCAL);

    if (!lib) {
        snprintf(why, sizeof why, "Ceph's librados can't be loaded (Debian has it in librados2): %s", dlerror());
        return;
    }
#define LOAD(member)                                                                                                                \
    do {                                                                                                                            \
        void *p = dlsym(lib, "rados_" #member);                                                                                     \
        _Static_assert(__builtin_types_compatible_p(__typeof__(&rados_##member), __typeof__(api.member)), "signature of " #member); \
        if (!p)                                                                                                                     \
            snprintf(why, sizeof why, "this Ceph's librados is too old: it has no rados_" #member);                                 \
        *(void **)(void *)&api.member = p;                                                                                          \
    } while (0)
    LOAD(create);
    LOAD(conf_read_file);
    LOAD(conf_get);
    LOAD(conf_set);
    LOAD(connect);
    LOAD(shutdown);
    LOAD(ioctx_create);
    LOAD(ioctx_destroy);
    LOAD(ioctx_set_namespace);
    LOAD(ioctx_pool_required_alignment2);
    LOAD(nobjects_list_open);
    LOAD(nobjects_list_next);
    LOAD(nobjects_list_close);
    LOAD(stat);
    LOAD(read);
    LOAD(remove);
    LOAD(lock_exclusive);
    LOAD(unlock);
    LOAD(create_write_op);
    LOAD(release_write_op);
    LOAD(write_op_create);
    LOAD(write_op_write);
    LOAD(write_op_setxattr);
    LOAD(write_op_cmpxattr);
    LOAD(write_op_remove);
    LOAD(write_op_operate);
    LOAD(aio_write_op_operate);
    LOAD(aio_create_completion2);
    LOAD(aio_read);
    LOAD(aio_get_return_value);
    LOAD(aio_release);
    LOAD(aio_cancel);
#undef LOAD
}

ds_rc ds_rados_load(const ds_rados_api **out, ds_err *err)
{
    pthread_once(&once, load);
    *out = &api;
    return why[0] ? ds_fail(err, DS_E_ARG, "%s", why) : DS_OK;
}

#else

ds_rc ds_rados_load(const ds_rados_api **out, ds_err *err)
{
    *out = NULL;
    return ds_fail(err, DS_E_ARG, "rados://: this program was built without Ceph's librados (meson setup -Drados=enabled)");
}

#endif
