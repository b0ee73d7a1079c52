/* Measured steps: what is accepted has a cost without negative parts, and what isn't is said with the file's name. */
#include <math.h>
#include <string.h>

#include "sim/measured.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int ok)
{
    if (!ok)
        __builtin_trap();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ds_sim_measured m;
    ds_err err = { 0 };
    ds_rc rc = ds_sim_measured_parse(&m, (const char *)data, size, "steps", &err);

    if (rc != DS_OK) {
        must(rc == DS_E_FORMAT && strncmp(err.msg, "steps: ", 7) == 0);
        return 0;
    }
    must(m.steps >= 4 && m.most_off >= 0.0);
    for (int i = 0; i < 4; i++)
        must(isfinite(m.cost.coef[i]) && m.cost.coef[i] >= 0.0);
    return 0;
}
