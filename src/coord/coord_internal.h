/* What the two kinds of coord share: the view of this process and what it has to say. A kind is a function that runs on
 * the tie's thread until it closes.
 *
 * Of the fields only those with [mu] change. */
#ifndef DS_COORD_COORD_INTERNAL_H
#define DS_COORD_COORD_INTERNAL_H

#include <pthread.h>

#include "coord/coord.h"

typedef enum { DS_ORDER_NONE, DS_ORDER_WAITS, DS_ORDER_SENT, DS_ORDER_DONE } ds_order_state;

typedef struct {
    ds_coord_member m;
    bool confirmed; /* the coord has named it since it is there */
} ds_coord_seen;

struct ds_coord {
    /* [const] */
    ds_coord_opts o;
    char address[256];
    void (*run)(ds_coord *c);
    pthread_t thread;
    bool has_thread;
    /* [mu] */
    pthread_mutex_t mu;
    pthread_cond_t woken;
    bool closing;
    ds_coord_now now;
    ds_coord_seen *seen; /* [n_seen], by name */
    uint32_t n_seen;
    uint64_t up_us; /* when the coord came back last */
    uint32_t ttl_ms;
    ds_coord_member mine; /* instance 0: it has nothing to say */
    bool dirty;           /* it has, and hasn't yet */
    bool withdrawn;       /* the coord has heard that it goes */
    ds_order_state order;
    char order_name[DS_COORD_NAME];
    ds_err order_answer;
};

/* All from the thread of the tie or of its connection; each takes mu. */
void ds_coord_is_up(ds_coord *c, uint32_t ttl_ms);
void ds_coord_is_away(ds_coord *c, const char *why);
void ds_coord_said(ds_coord *c, uint64_t epoch);
void ds_coord_refused(ds_coord *c, const char *why); /* what this process said of itself */
/* The members as the coord has them, by name. */
void ds_coord_view(ds_coord *c, const ds_coord_member *m, uint32_t n);
void ds_coord_answered(ds_coord *c, ds_rc rc, const char *why); /* the order */
/* Lets those go whose time of being missing is over. */
void ds_coord_tick(ds_coord *c);

/* With mu: until something is to be done, for at most that long. */
void ds_coord_pause(ds_coord *c, uint32_t ms);

void ds_coord_run_link(ds_coord *c); /* link.c */
void ds_coord_run_etcd(ds_coord *c); /* etcd.c */

#endif
