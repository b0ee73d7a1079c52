/* The table of request members: no member that changes an answer is ever ignored. (docs/server.md, "Request members")
 *
 * Each protocol's adapter reads the members that are taken; this module looks at all others once, before the adapter
 * runs: those that are harmless pass, those that would change the answer are a 400 that names them, and what is in
 * no table is refused, or noted, as the option unknown_members says. Threads: one request, one thread.   Memory: the
 * request's region. */
#ifndef DS_RECIPE_MEMBERS_H
#define DS_RECIPE_MEMBERS_H

#include "recipe/request_internal.h"

/* O(members x log table). */
void ds_rp_members(ds_rp *p, const ds_json *body);

#endif
