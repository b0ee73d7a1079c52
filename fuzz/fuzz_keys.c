/* Keys files: whatever is accepted has names, and finds nobody for an empty key. */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/buf.h"
#include "server/auth.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int ok)
{
    if (!ok)
        __builtin_trap();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int fd = memfd_create("keys", MFD_CLOEXEC);
    ds_buf path = { 0 };
    ds_err err;
    ds_auth *a;
    ds_rc rc;

    if (fd < 0 || write(fd, data, size) != (ssize_t)size)
        return 0;
    ds_buf_printf(&path, "/proc/self/fd/%d", fd);
    rc = ds_auth_open(&a, ds_buf_str(&path), &err);
    must(rc == DS_OK || rc == DS_E_FORMAT);
    if (rc == DS_OK) {
        must(ds_auth_find(a, "", 0) == NULL || memmem(data, size, "e3b0c442", 8) || memmem(data, size, "E3B0C442", 8) ||
             memmem(data, size, "e3", 2) || memmem(data, size, "E3", 2));
        must(ds_auth_reload(a, &err) == DS_OK);
    } else {
        must(a == NULL && err.msg[0] && !strchr(err.msg, '\n'));
    }
    ds_auth_close(a);
    ds_buf_free(&path);
    close(fd);
    return 0;
}
