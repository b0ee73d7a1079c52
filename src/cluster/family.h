/* The engines of one entry, which must be one model: a text that goes on in another engine would else go on as another
 * model's. The first that is greeted says what they are, for as long as the entry lives.
 *
 * Threads: all functions from any.   Locks: `mu`, nothing is called with it. */
#ifndef DS_CLUSTER_FAMILY_H
#define DS_CLUSTER_FAMILY_H

#include <pthread.h>
#include <stdbool.h>

#include "cluster/wire.h"
#include "net/addr.h"

enum { DS_FAMILY_NOTE = 320 };

typedef struct {
    pthread_mutex_t mu;
    bool known;
    ds_cw_engine first;
    char name[DS_ADDR_TEXT]; /* of the first */
} ds_family;

void ds_family_init(ds_family *f);
void ds_family_fini(ds_family *f);
/* DS_E_ARG: its weights are others than the first's; both are named. *note: it computes otherwise (program, kernels,
 * activations), so that texts which go on there may differ from what they would have been; empty, or a line. */
ds_rc ds_family_join(ds_family *f, const ds_cw_engine *e, const char *name, char note[DS_FAMILY_NOTE], ds_err *err);

#endif
