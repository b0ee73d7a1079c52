/* What the oracle's ops take from the arena at most. */
#include "kern/sample.h"
#include "ref_internal.h"

static void at_least(size_t *most, size_t threads, size_t n, size_t each)
{
    size_t bytes;
    if (*most == SIZE_MAX)
        return;
    if (!ds_size_mul(&bytes, n, each) || !ds_size_mul(&bytes, bytes, threads))
        *most = SIZE_MAX;
    else if (bytes > *most)
        *most = bytes;
}

size_t ds_scratch_bytes_ref(const ds_kern_limits *lim)
{
    size_t most = 0, threads = lim->threads ? lim->threads : 1;
    size_t list = (size_t)lim->window + lim->topk + lim->max_rows;

    at_least(&most, threads, lim->widest_in, sizeof(float));
    at_least(&most, threads, lim->max_entries + (size_t)(lim->index_heads + 1) * lim->index_dim, 3 * sizeof(float));
    at_least(&most, threads, list + 2, lim->head_dim * sizeof(float) + 2 * sizeof(double));
    at_least(&most, threads, lim->inner, sizeof(float));
    at_least(&most, threads, lim->vocab ? ds_sample_scratch(lim->vocab) : 0, 1);
    at_least(&most, threads, lim->patches + (size_t)lim->vit_dim, sizeof(double));
    return most > SIZE_MAX - 1024 ? SIZE_MAX : most + 1024; /* each piece is rounded up to 64 bytes */
}
