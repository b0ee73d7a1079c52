/* What engine processes and entries say: the first byte chooses the message. Whatever is read as a request is written
 * again. */
#include <stdlib.h>

#include "cluster/handoff.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static ds_gen_plan plans[DS_GEN_MANY_MAX];
    static ds_gen_stats stats;
    ds_frame_in in;
    ds_cw_request *r;
    ds_cw_model m;
    ds_cw_engine self;
    ds_event ev;
    ds_buf b = { 0 };
    ds_cw_part part;
    uint64_t from;
    uint32_t n;

    if (!size)
        return 0;
    switch (data[0]) {
    case 'a':
        if (ds_cw_read_request(&r, data + 1, size - 1, 2, NULL) != DS_OK)
            break;
        ds_cw_put_request(&b, ds_cw_request_get(r), 2);
        if (!b.oom && b.len != size - 1)
            abort();
        ds_buf_free(&b);
        ds_cw_request_free(r);
        break;
    case 'e':
        in = (ds_frame_in){ data + 1, data + size, false };
        while (ds_cw_read_event(&ev, &in, 1000))
            ds_cw_put_event(&b, 1, &ev, 1000);
        ds_buf_free(&b);
        break;
    case 'h':
        (void)!ds_cw_read_hello(&m, data + 1, size - 1, NULL);
        break;
    case 'w':
        (void)!ds_cw_read_welcome(&self, plans, &n, data + 1, size - 1, NULL);
        break;
    case 't':
        if (ds_cw_read_take(&from, &n, data + 1, size - 1, NULL) == DS_OK && (n == 0 || n > DS_CW_MAX_PART))
            abort();
        break;
    case 'p':
        if (ds_cw_read_part(&part, data + 1, size - 1, NULL) == DS_OK &&
            (part.n != size - 25 || part.from + part.n > part.n_record + part.n_blocks))
            abort();
        break;
    case 's':
        (void)!ds_cw_read_stats(&n, &stats, data + 1, size - 1, NULL);
        break;
    }
    return 0;
}
