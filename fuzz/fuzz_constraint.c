/* A constraint as another process described it. What is read describes itself with the same bytes. */
#include <stdlib.h>
#include <string.h>

#include "constrain/constrain_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    constrain_read_room room;
    ds_buf b = { 0 };

    if (constrain_read(&room, (ds_str){ (const char *)data, size }, NULL) != DS_OK)
        return 0;
    constrain_describe(&b, &room.what);
    if (!b.oom && (b.len > size || memcmp(b.p + 5, data + 5, b.len - 5) != 0))
        abort();
    ds_buf_free(&b);
    free(room.tools);
    return 0;
}
