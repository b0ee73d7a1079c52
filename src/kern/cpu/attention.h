/* What attention is for every instruction set: a row's list of records, and how rows or heads are dealt to threads. */
#ifndef DS_KERN_CPU_ATTENTION_H
#define DS_KERN_CPU_ATTENTION_H

#include "kern/kern.h"

/* A row's entries. */
typedef struct {
    const uint8_t **rec; /* [n] window records, then main records */
    float *entry;        /* [padded][dim] decoded */
    float *turned;       /* [dim][padded] */
    size_t n, n_window, padded, dim;
} ds_attention_row;

typedef struct {
    size_t lanes, head_block;
    void (*decode)(const ds_attention_row *w, size_t i0, size_t i1);
    void (*heads)(const ds_attention_row *w, const ds_op_attention *a, size_t r, uint32_t h0, uint32_t h1, float *order, float *s,
                  bool bf16);
} ds_attention_body;

void ds_attention_cpu(ds_exec *e, const ds_op_attention *a, const ds_attention_body *b);
size_t ds_attention_scratch(const ds_kern_limits *lim);

#endif
