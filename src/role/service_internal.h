/* What service.c and plan.c share. */
#ifndef DS_ROLE_SERVICE_INTERNAL_H
#define DS_ROLE_SERVICE_INTERNAL_H

#include "role/service.h"

/* What each engine has of what all have together; sizes in bytes are never exceeded. */
ds_engine_opts ds_service_deal(const ds_service_opts *o);
/* How the tower's runner is made. False: the model has none. */
bool ds_service_tower(const ds_model *m, bool bf16, ds_runner_opts *o);

#endif
