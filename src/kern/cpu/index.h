/* Index scores and selection for every instruction set: what is scored for which rows, and the choice of the best. */
#ifndef DS_KERN_CPU_INDEX_H
#define DS_KERN_CPU_INDEX_H

#include "kern/kern.h"

/* Queries of one row: for each head and group of 32, the codes times two as bytes, in the order in which keys are
 * decoded. */
typedef struct {
    int8_t *q;      /* [heads][dim] */
    int32_t *base;  /* [heads][dim/32]: -12 times the sum of a group's q, since keys are stored with 12 added */
    float *scale;   /* [heads][dim/32]: the group's scale, times 1/4 for the two doublings */
    const float *g; /* [heads] */
    float g_scale;
    bool finite; /* all g are */
} ds_index_query;

typedef struct {
    size_t lanes;
    /* Keys of `lanes` records: bytes as dwords [dim/32][8][lanes] and scales [dim/32][lanes]. */
    void (*keys)(uint32_t *codes, float *scales, const uint8_t *const *rec, uint32_t dim);
    void (*score)(float *out, const ds_index_query *q, const uint32_t *codes, const float *scales, uint32_t heads, uint32_t dim);
    /* How many of key[0..n) are at least t. */
    size_t (*count)(const int32_t *key, size_t n, int32_t t);
} ds_index_body;

void ds_index_topk_cpu(ds_exec *e, const ds_op_index_topk *a, const ds_index_body *b);
size_t ds_index_scratch(const ds_kern_limits *lim);

#endif
