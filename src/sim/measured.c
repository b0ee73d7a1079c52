#include "sim/measured.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"

/* As often as the fit's forgetting leaves no step of the first passes in front of the others. */
enum { PASSES = 200, LEAST = 4, MOST = 10000, MOST_BYTES = 4 << 20 };

typedef struct {
    ds_cost_work work;
    double us;
} step;

static ds_rc wrong(const char *label, size_t row, const char *what, ds_err *err)
{
    return ds_fail(err, DS_E_FORMAT, "%s: row %zu: %s", label, row, what);
}

static bool number(const ds_json *o, const char *key, double least, double most, double *out)
{
    return ds_json_f64(ds_json_get(o, key), out) && *out >= least && *out <= most;
}

static ds_rc read_step(const char *text, size_t n, const char *label, size_t row, step *out, ds_err *err)
{
    ds_json_doc *doc;
    ds_err inner = { 0 };
    double sequences, rows, context;
    ds_rc rc = ds_json_parse(&doc, text, n, NULL, &inner);
    const ds_json *o;

    if (rc != DS_OK)
        return rc == DS_E_FORMAT ? wrong(label, row, inner.msg, err) : ds_fail(err, rc, "%s: %s", label, inner.msg);
    o = ds_json_root(doc);
    if (!number(o, "sequences", 1.0, 1e6, &sequences))
        rc = wrong(label, row, "sequences is no number of sequences", err);
    else if (!number(o, "rows", sequences, 1e9, &rows))
        rc = wrong(label, row, "rows is no number of rows, one for each sequence at least", err);
    else if (!number(o, "context", 0.0, 1e9, &context))
        rc = wrong(label, row, "context is no number of tokens", err);
    else if (!number(o, "us", 1e-3, 1e12, &out->us))
        rc = wrong(label, row, "us is no time in microseconds", err);
    else
        out->work = (ds_cost_work){ rows, rows * context, rows * rows / sequences };
    ds_json_free(doc);
    return rc;
}

ds_rc ds_sim_measured_parse(ds_sim_measured *out, const char *text, size_t n, const char *label, ds_err *err)
{
    step *steps = calloc(MOST, sizeof *steps);
    size_t row = 0, at = 0;
    ds_rc rc = steps ? DS_OK : ds_fail(err, DS_E_NOMEM, "%s: out of memory", label);

    *out = (ds_sim_measured){ 0 };
    while (at < n && rc == DS_OK) {
        const char *line = text + at, *end = memchr(line, '\n', n - at);
        size_t length = end ? (size_t)(end - line) : n - at;
        at += length + 1;
        row++;
        if (length == 0)
            continue;
        if (out->steps == MOST)
            rc = wrong(label, row, "more than 10000 steps", err);
        else
            rc = read_step(line, length, label, row, &steps[out->steps++], err);
    }
    if (rc == DS_OK && out->steps < LEAST)
        rc = ds_fail(err, DS_E_FORMAT, "%s: %u steps, at least %d", label, out->steps, LEAST);
    for (int pass = 0; pass < PASSES && rc == DS_OK; pass++) {
        if (pass > 0 && (uint64_t)pass * out->steps > 100000)
            break;
        for (uint32_t i = 0; i < out->steps; i++)
            ds_cost_learn(&out->cost, &steps[i].work, steps[i].us);
    }
    if (rc == DS_OK && out->cost.coef[0] + out->cost.coef[1] <= 0.0)
        rc = ds_fail(err, DS_E_FORMAT, "%s: no cost of a step or of a row can be fitted to it", label);
    for (uint32_t i = 0; i < out->steps && rc == DS_OK; i++)
        out->most_off = fmax(out->most_off, fabs(ds_cost_of(&out->cost, &steps[i].work) - steps[i].us) / steps[i].us);
    free(steps);
    return rc;
}

ds_rc ds_sim_measured_read(ds_sim_measured *out, const char *path, ds_err *err)
{
    char *text, label[104];
    size_t n;
    ds_rc rc = ds_file_read(&text, &n, path, MOST_BYTES, err);

    if (rc != DS_OK)
        return rc;
    rc = ds_sim_measured_parse(out, text, n, ds_file_label(label, sizeof label, path), err);
    free(text);
    return rc;
}
