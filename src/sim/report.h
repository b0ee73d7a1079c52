/* Results of a simulation as text and as JSON: a function of plan and result alone.
 *
 * Threads: any.   Memory: the buffer's; check its oom. */
#ifndef DS_SIM_REPORT_H
#define DS_SIM_REPORT_H

#include "base/buf.h"
#include "sim/sim.h"

void ds_sim_report_text(ds_buf *b, const ds_sim_plan *p, const ds_sim_result *r);
/* One object and a line's end. */
void ds_sim_report_json(ds_buf *b, const ds_sim_plan *p, const ds_sim_result *r);

#endif
