/* .npy files: whatever is accepted holds exactly the elements of its shape. */
#include <string.h>

#include "format/npy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int ok)
{
    if (!ok)
        __builtin_trap();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ds_err err;
    ds_npy a;
    ds_rc rc = ds_npy_parse(&a, data, size, "x.npy", &err);
    uint64_t n = 1;

    must(rc == DS_OK || rc == DS_E_FORMAT);
    if (rc != DS_OK) {
        must(!a.data && err.msg[0] && !strchr(err.msg, '\n'));
        return 0;
    }
    for (uint32_t i = 0; i < a.ndim; i++)
        n *= a.shape[i]; /* no product of a prefix can overflow unless a factor is 0 */
    must(n == a.count && n * a.element_bytes < size);
    must(n == 0 || memcmp(a.data, data + size - n * a.element_bytes, n * a.element_bytes) == 0);
    ds_npy_free(&a);
    return 0;
}
