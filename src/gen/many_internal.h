/* What tests ask of several generators as one. */
#ifndef DS_GEN_MANY_INTERNAL_H
#define DS_GEN_MANY_INTERNAL_H

#include <ds/gen.h>

/* What is with each part now: nothing, when every event was polled. */
typedef struct {
    uint32_t requests[DS_GEN_MANY_MAX];
    uint64_t tokens[DS_GEN_MANY_MAX]; /* work ahead */
} ds_gen_many_work;
void ds_gen_many_work_get(ds_gen_many *m, ds_gen_many_work *out);

#endif
