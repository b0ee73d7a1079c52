/* A process's tie to the coord of its cluster: it says what it is, and hears who else is there.
 *
 *   ds_coord_open       doesn't wait: the coord may come later, go, and come back
 *   ds_coord_say        what this process is, from now on; again when that changes
 *   ds_coord_status     how busy it is, which is passed on every few seconds
 *   ds_coord_members    who is there, as it was heard last
 *   ds_coord_close      takes back what was said
 *
 * While the coord is away the last view stays, and nothing of this process waits for it. When it is back, a member that
 * it doesn't know of any more stays in the view for a lease's time and half of it: until then it has said that it is
 * there. So a coord that went, with or without its memory, changes no view.
 *
 * ADDRESS is unix:PATH or HOST:PORT of `deepserve coord`, or etcd:http://HOST:PORT[/PREFIX] for an etcd (version 3,
 * its JSON gateway).
 *
 * Threads: all functions from any; one of its own, and the connection's, from which `changed` is called: it must not
 * call back.   Locks: `mu`, nothing is called with it.   Memory: the view, DS_COORD_MAX_MEMBERS at most. */
#ifndef DS_COORD_COORD_H
#define DS_COORD_COORD_H

#include "base/log.h"
#include "coord/member.h"

typedef struct ds_coord ds_coord;

/* Zero means the default that is named. */
typedef struct {
    bool watch;        /* wants to hear who is there; else only what is wanted of this process */
    uint32_t retry_ms; /* between attempts when it is away; 500 */
    uint32_t ttl_ms;   /* etcd: a lease; 10000. A coord says its own */
    /* Members, or what is wanted of this one, are others than before. */
    void (*changed)(void *ctx);
    void *ctx;
    const ds_log *log; /* NULL: silent */
} ds_coord_opts;

/* DS_E_ARG: the address; DS_E_IO, DS_E_NOMEM. */
ds_rc ds_coord_open(ds_coord **out, const char *address, const ds_coord_opts *o, ds_err *err);
/* instance 0 gets one; epoch and drain are the coord's; how busy it is counts until _status says it anew. The name
 * stays the same. DS_E_ARG: a malformed member. */
ds_rc ds_coord_say(ds_coord *c, const ds_coord_member *mine, ds_err *err);
void ds_coord_status(ds_coord *c, uint32_t live, uint64_t kv_used, uint64_t kv_total);

typedef struct {
    bool up;           /* the coord is there now */
    bool seen;         /* a view came at all */
    uint64_t epoch;    /* of this process; 0: the coord hasn't taken it yet */
    bool drain;        /* this process is wanted away */
    uint64_t revision; /* counts the changes of the view here */
    uint32_t n;        /* members */
    char why[160];     /* not up, or refused: why */
} ds_coord_now;
ds_coord_now ds_coord_get(ds_coord *c);
/* Copies up to cap members, by name; returns how many there are. */
uint32_t ds_coord_members(ds_coord *c, ds_coord_member *out, uint32_t cap);
/* Until a first view came. DS_E_IO: none within the time, and why. */
ds_rc ds_coord_wait(ds_coord *c, uint32_t timeout_ms, ds_err *err);
/* That process should drain. DS_E_ARG: the coord knows none of that name; DS_E_IO: no answer within the time. */
ds_rc ds_coord_drain(ds_coord *c, const char *name, uint32_t timeout_ms, ds_err *err);
/* Waits for the coord to hear that this process goes, for a second at most. NULL is fine. */
void ds_coord_close(ds_coord *c);

#endif
