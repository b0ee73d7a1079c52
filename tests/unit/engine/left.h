/* For tests: what left an engine goes on in one. */
#ifndef DS_TEST_LEFT_H
#define DS_TEST_LEFT_H

#include "engine/engine.h"

static void free_left(void *ctx, const uint8_t *p, size_t n)
{
    (void)p;
    (void)n;
    ds_engine_export_free(ctx);
}

/* With its blocks, if they were asked for. Where some of them are missing it is refused, and they are still the
 * caller's; on success the export is gone. */
static inline ds_rc import_left(ds_engine *e, const ds_gen_request *q, ds_engine_export *x, uint64_t *id, ds_err *err)
{
    ds_engine_blocks blocks = { .free = free_left, .ctx = x }, fewer;
    const uint8_t *record;
    size_t n;
    ds_rc rc = ds_engine_export_wait(x, 0, &record, &n, err);

    if (rc != DS_OK)
        return rc;
    blocks.p = ds_engine_export_blocks(x, &blocks.n);
    fewer = blocks;
    fewer.n--;
    if (blocks.p && blocks.n && ds_engine_import(e, q, record, n, &fewer, id, err) == DS_OK)
        return ds_fail(err, DS_E_ARG, "some blocks are missing and nobody minds");
    rc = ds_engine_import(e, q, record, n, &blocks, id, err);
    if (rc == DS_OK && !blocks.p)
        ds_engine_export_free(x);
    return rc;
}

#endif
