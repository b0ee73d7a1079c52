/* An engine process: a service whose generator is for other processes (cluster/host.h), which compile no grammars and
 * have no weights.
 *
 * Threads: open, drain and close from one.   Locks: one, around the making of the table of grammars. */
#ifndef DS_ROLE_ENGINE_H
#define DS_ROLE_ENGINE_H

#include "role/service.h"

typedef struct ds_engine_role ds_engine_role;

/* A service of that directory, listening at the address (net/addr.h). *out is NULL on failure. */
ds_rc ds_engine_role_open(ds_engine_role **out, const char *dir, const char *address, const ds_service_opts *o, ds_err *err);
const ds_service *ds_engine_role_service(const ds_engine_role *r);
const char *ds_engine_role_address(const ds_engine_role *r); /* with the port that it got */
uint32_t ds_engine_role_live(const ds_engine_role *r);       /* requests that haven't ended */
/* No new requests; true once all are ended. */
bool ds_engine_role_drain(ds_engine_role *r);
void ds_engine_role_close(ds_engine_role *r); /* NULL is fine */

#endif
