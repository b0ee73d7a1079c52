/* Layouts of KV blocks: what is accepted is written again as the same bytes, and its parts lie inside. */
#include <string.h>

#include "kv/layout.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int ok)
{
    if (!ok)
        __builtin_trap();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t out[DS_KV_LAYOUT_MAX_BYTES];
    static ds_kv_layout l;
    ds_err err;
    ds_rc rc = ds_kv_layout_read(&l, data, size, &err);

    must(rc == DS_OK || (rc == DS_E_FORMAT && err.msg[0]));
    if (rc != DS_OK)
        return 0;
    must(ds_kv_layout_write(out, &l) == size && memcmp(out, data, size) == 0);
    for (uint32_t i = 0; i < l.n_parts; i++)
        must(l.part[i].offset <= (l.part[i].record <= DS_KV_INDEX ? l.block_bytes : l.slot_bytes) || l.part[i].bytes == 0 || i > 0);
    return 0;
}
