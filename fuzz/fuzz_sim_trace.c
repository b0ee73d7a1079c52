/* Request logs: the first byte says the form. Rows have tokens within bounds and times that don't go back, and what is
 * refused is said with its row. */
#include <string.h>

#include "sim/trace.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int ok)
{
    if (!ok)
        __builtin_trap();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ds_sim_trace *t;
    ds_sim_row row;
    ds_err err = { 0 };
    uint64_t last = 0;
    bool more = true;
    ds_rc rc;

    if (size == 0)
        return 0;
    rc = ds_sim_trace_text(&t, (const char *)data + 1, size - 1, "log", (ds_sim_form)(data[0] % DS_SIM_FORMS), &err);
    must(rc == DS_OK || (!t && rc == DS_E_FORMAT));
    while (rc == DS_OK && more) {
        rc = ds_sim_trace_next(t, &row, &more, &err);
        if (rc != DS_OK || !more)
            break;
        must(row.input >= 1 && row.input <= DS_SIM_TRACE_TOKENS && row.output >= 1 && row.output <= DS_SIM_TRACE_TOKENS);
        must(row.cached <= row.input && row.at_ns >= last && (row.n_ids == 0 || row.ids));
        last = row.at_ns;
    }
    must(rc == DS_OK || strncmp(err.msg, "log: row ", 9) == 0);
    ds_sim_trace_close(t);
    return 0;
}
