/* The pictures of a simulation, and one page with all of them.
 *
 * Threads: any.   Memory: the buffers'; check their oom. */
#ifndef DS_SIM_PAGES_H
#define DS_SIM_PAGES_H

#include "base/buf.h"
#include "sim/sweep.h"

enum { DS_SIM_PICTURES = 10 };

typedef struct {
    const char *name; /* of its file, without .svg */
    ds_buf svg;
} ds_sim_picture;

/* Draws those that the result and the sweeps have data for: how many. Free each buffer. */
uint32_t ds_sim_pictures(ds_sim_picture out[DS_SIM_PICTURES], const ds_sim_plan *p, const ds_sim_result *r, const ds_sim_sweeps *s);
/* A page that needs nothing else: the report and the pictures. */
void ds_sim_page(ds_buf *b, const char *title, const char *report, const ds_sim_picture *pictures, uint32_t n);

#endif
