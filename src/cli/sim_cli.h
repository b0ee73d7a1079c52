/* What `sim` and `plan` share. */
#ifndef DS_CLI_SIM_CLI_H
#define DS_CLI_SIM_CLI_H

#include "base/buf.h"
#include "sim/sim.h"

/* Pictures of a result in a directory and as a page with a report, where the names aren't NULL. `path`: of the file. */
ds_rc ds_cli_sim_draw(const char *svg, const char *html, const char *path, const ds_sim_plan *plan, const ds_sim_result *result,
                      const char *report, ds_err *err);

#endif
