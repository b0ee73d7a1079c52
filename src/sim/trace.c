#include "sim/trace.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "base/json.h"

enum { ROW_BYTES = 16 << 20, ROWS_MAX = 1 << 28, SECONDS_MAX = 1 << 30 };

struct ds_sim_trace {
    ds_sim_form form;
    FILE *f;
    char label[104], *line;
    size_t cap, row; /* number of the line */
    uint64_t first_ns, last_ns;
    bool begun; /* azure: its head was read */
    bool started;
    uint64_t *ids;
    size_t cap_ids;
    ds_sim_row *sorted; /* access */
    size_t n_sorted, at_sorted;
};

static ds_rc wrong(const ds_sim_trace *t, ds_err *err, const char *what)
{
    return ds_fail(err, DS_E_FORMAT, "%s: row %zu: %s", t->label, t->row, what);
}

/* *n: bytes without the line's end. *more is false at the end of the file. */
static ds_rc read_line(ds_sim_trace *t, size_t *n, bool *more, ds_err *err)
{
    int c;

    *n = 0;
    *more = false;
    while ((c = getc(t->f)) != EOF && c != '\n') {
        if (*n + 1 >= t->cap) {
            size_t cap = t->cap ? t->cap * 2 : 4096;
            char *line = cap > ROW_BYTES ? NULL : realloc(t->line, cap);
            if (!line) {
                t->row++;
                return cap > ROW_BYTES ? wrong(t, err, "longer than 16 MiB") : ds_fail(err, DS_E_NOMEM, "%s: out of memory", t->label);
            }
            t->line = line;
            t->cap = cap;
        }
        t->line[(*n)++] = (char)c;
    }
    if (c == EOF && ferror(t->f))
        return ds_fail(err, DS_E_IO, "%s: %s", t->label, strerror(errno));
    if (c == EOF && *n == 0)
        return DS_OK;
    *more = true;
    t->row++;
    if (*n > 0 && t->line[*n - 1] == '\r')
        --*n;
    if (t->line)
        t->line[*n] = '\0';
    return t->row > ROWS_MAX ? wrong(t, err, "too many rows") : DS_OK;
}

static bool tokens_of(const ds_json *v, uint64_t least, uint32_t *out)
{
    uint64_t x;

    if (!ds_json_u64(v, &x) || x < least || x > DS_SIM_TRACE_TOKENS)
        return false;
    *out = (uint32_t)x;
    return true;
}

static ds_rc ids_of(ds_sim_trace *t, const ds_json *v, ds_sim_row *row, ds_err *err)
{
    size_t n = 0;

    if (!ds_json_is(v, DS_JSON_ARRAY))
        return wrong(t, err, "hash_ids is no array");
    if (v->n > t->cap_ids) {
        uint64_t *ids = realloc(t->ids, v->n * sizeof *ids);
        if (!ids)
            return ds_fail(err, DS_E_NOMEM, "%s: out of memory", t->label);
        t->ids = ids;
        t->cap_ids = v->n;
    }
    for (const ds_json *c = v->child; c; c = c->next)
        if (!ds_json_u64(c, &t->ids[n++]))
            return wrong(t, err, "an element of hash_ids is no whole number");
    row->ids = t->ids;
    row->n_ids = n;
    return DS_OK;
}

static ds_rc mooncake(ds_sim_trace *t, const ds_json *o, uint64_t *at_ns, ds_sim_row *row, ds_err *err)
{
    double ms;

    if (!ds_json_f64(ds_json_get(o, "timestamp"), &ms) || ms < 0.0 || ms > SECONDS_MAX * 1e3)
        return wrong(t, err, "timestamp is no time in milliseconds");
    if (!tokens_of(ds_json_get(o, "input_length"), 1, &row->input))
        return wrong(t, err, "input_length is no number of tokens");
    if (!tokens_of(ds_json_get(o, "output_length"), 0, &row->output))
        return wrong(t, err, "output_length is no number of tokens");
    *at_ns = (uint64_t)(ms * 1e6);
    return ids_of(t, ds_json_get(o, "hash_ids"), row, err);
}

/* 2023-11-16 18:17:03.9799600 and 2026-12-01T10:00:00.123Z */
static bool time_of(const char *text, size_t n, uint64_t *ns)
{
    struct tm tm = { 0 };
    unsigned y, mo, d, h, mi, s;
    char copy[48];
    int used = 0;
    uint64_t fraction = 0, place = 1000000000;
    time_t at;

    if (n >= sizeof copy)
        return false;
    memcpy(copy, text, n);
    copy[n] = '\0';
    if (strspn(copy, "0123456789-:.TZ ") != n || sscanf(copy, "%4u-%2u-%2u%*[ T]%2u:%2u:%2u%n", &y, &mo, &d, &h, &mi, &s, &used) != 6)
        return false;
    if (y < 1970 || y > 2200 || mo < 1 || mo > 12 || d < 1 || d > 31 || h > 23 || mi > 59 || s > 60)
        return false;
    text = copy + used;
    if (*text == '.')
        for (text++; *text >= '0' && *text <= '9'; text++) {
            place /= 10;
            fraction += (uint64_t)(*text - '0') * place;
        }
    if (*text && strcmp(text, "Z") != 0)
        return false;
    tm.tm_year = (int)y - 1900;
    tm.tm_mon = (int)mo - 1;
    tm.tm_mday = (int)d;
    tm.tm_hour = (int)h;
    tm.tm_min = (int)mi;
    tm.tm_sec = (int)s;
    at = timegm(&tm);
    if (at < 0)
        return false;
    *ns = (uint64_t)at * 1000000000 + fraction;
    return true;
}

static ds_rc access_row(ds_sim_trace *t, const ds_json *o, uint64_t *at_ns, ds_sim_row *row, bool *skip, ds_err *err)
{
    const ds_json *when = ds_json_get(o, "time");
    double ms;

    *skip = !ds_json_get(o, "prompt_tokens");
    if (*skip)
        return DS_OK;
    if (!ds_json_is(when, DS_JSON_STRING) || !time_of(when->text, when->text_len, at_ns))
        return wrong(t, err, "time is no time");
    if (!ds_json_f64(ds_json_get(o, "ms"), &ms) || ms < 0.0 || ms > 1e12)
        return wrong(t, err, "ms is no duration");
    if (!tokens_of(ds_json_get(o, "prompt_tokens"), 1, &row->input))
        return wrong(t, err, "prompt_tokens is no number of tokens");
    if (!tokens_of(ds_json_get(o, "output_tokens"), 0, &row->output))
        return wrong(t, err, "output_tokens is no number of tokens");
    if (!tokens_of(ds_json_get(o, "cached_tokens"), 0, &row->cached) || row->cached > row->input)
        return wrong(t, err, "cached_tokens is no number of tokens of the prompt");
    *at_ns -= *at_ns > (uint64_t)(ms * 1e6) ? (uint64_t)(ms * 1e6) : *at_ns; /* it was written at the end */
    return DS_OK;
}

static ds_rc json_row(ds_sim_trace *t, size_t n, uint64_t *at_ns, ds_sim_row *row, bool *skip, ds_err *err)
{
    ds_json_doc *doc;
    ds_err inner = { 0 };
    ds_rc rc = ds_json_parse(&doc, t->line, n, NULL, &inner);

    if (rc != DS_OK)
        return rc == DS_E_FORMAT ? wrong(t, err, inner.msg) : ds_fail(err, rc, "%s: %s", t->label, inner.msg);
    if (!ds_json_is(ds_json_root(doc), DS_JSON_OBJECT))
        rc = wrong(t, err, "no JSON object");
    else if (t->form == DS_SIM_MOONCAKE)
        rc = mooncake(t, ds_json_root(doc), at_ns, row, err);
    else
        rc = access_row(t, ds_json_root(doc), at_ns, row, skip, err);
    ds_json_free(doc);
    return rc;
}

static bool cell_tokens(const char **text, uint32_t *out, char end)
{
    size_t n = strspn(*text, "0123456789");
    unsigned long x;

    if (n == 0 || n > 9 || (*text)[n] != end)
        return false;
    x = strtoul(*text, NULL, 10);
    *text += n + 1;
    *out = (uint32_t)x;
    return x <= DS_SIM_TRACE_TOKENS;
}

static ds_rc azure(ds_sim_trace *t, uint64_t *at_ns, ds_sim_row *row, ds_err *err)
{
    const char *comma = strchr(t->line, ','), *text = comma ? comma + 1 : NULL;

    if (!comma || !time_of(t->line, (size_t)(comma - t->line), at_ns))
        return wrong(t, err, "TIMESTAMP is no time");
    if (!cell_tokens(&text, &row->input, ',') || row->input == 0)
        return wrong(t, err, "ContextTokens is no number of tokens");
    if (!cell_tokens(&text, &row->output, '\0'))
        return wrong(t, err, "GeneratedTokens is no number of tokens");
    return DS_OK;
}

/* The next row with its own clock. */
static ds_rc read_row(ds_sim_trace *t, uint64_t *at_ns, ds_sim_row *row, bool *more, ds_err *err)
{
    for (;;) {
        size_t n;
        bool skip = false;
        ds_rc rc = read_line(t, &n, more, err);
        if (rc != DS_OK || !*more)
            return rc;
        if (n == 0 || strspn(t->line, " \t") == n)
            continue;
        if (t->form == DS_SIM_AZURE && !t->begun) {
            t->begun = true;
            if (strcmp(t->line, "TIMESTAMP,ContextTokens,GeneratedTokens") != 0)
                return wrong(t, err, "no line TIMESTAMP,ContextTokens,GeneratedTokens");
            continue;
        }
        *row = (ds_sim_row){ 0 };
        rc = memchr(t->line, 0, n)     ? wrong(t, err, "a NUL inside")
             : t->form == DS_SIM_AZURE ? azure(t, at_ns, row, err)
                                       : json_row(t, n, at_ns, row, &skip, err);
        if (rc != DS_OK)
            return rc;
        if (skip)
            continue;
        row->output = row->output ? row->output : 1;
        return DS_OK;
    }
}

static int by_time(const void *a, const void *b)
{
    const ds_sim_row *x = a, *y = b;

    return x->at_ns != y->at_ns ? (x->at_ns < y->at_ns ? -1 : 1) : (x->n_ids < y->n_ids ? -1 : x->n_ids > y->n_ids);
}

static ds_rc read_access(ds_sim_trace *t, ds_err *err)
{
    size_t cap = 0;

    for (;;) {
        ds_sim_row row;
        bool more;
        ds_rc rc = read_row(t, &row.at_ns, &row, &more, err);
        if (rc != DS_OK || !more) {
            if (t->n_sorted)
                qsort(t->sorted, t->n_sorted, sizeof *t->sorted, by_time);
            for (size_t i = 0; i < t->n_sorted; i++)
                t->sorted[i].n_ids = 0;
            return rc;
        }
        if (t->n_sorted == cap) {
            ds_sim_row *rows = realloc(t->sorted, (cap ? cap * 2 : 1024) * sizeof *rows);
            if (!rows)
                return ds_fail(err, DS_E_NOMEM, "%s: out of memory", t->label);
            t->sorted = rows;
            cap = cap ? cap * 2 : 1024;
        }
        row.n_ids = t->n_sorted; /* ties by their place in the log */
        t->sorted[t->n_sorted++] = row;
    }
}

static ds_rc start(ds_sim_trace **out, ds_sim_trace *t, ds_err *err)
{
    ds_rc rc = t->form == DS_SIM_ACCESS ? read_access(t, err) : DS_OK;

    if (rc == DS_OK)
        *out = t;
    else
        ds_sim_trace_close(t);
    return rc;
}

ds_rc ds_sim_trace_open(ds_sim_trace **out, const char *path, ds_sim_form form, ds_err *err)
{
    ds_sim_trace *t = calloc(1, sizeof *t);
    uint64_t bytes;
    int fd;
    ds_rc rc;

    *out = NULL;
    if (!t)
        return ds_fail(err, DS_E_NOMEM, "%s: out of memory", path);
    t->form = form;
    ds_file_label(t->label, sizeof t->label, path);
    rc = ds_file_open(&fd, &bytes, path, err);
    if (rc == DS_OK && !(t->f = fdopen(fd, "r")))
        rc = ds_fail(err, DS_E_IO, "%s: %s", t->label, strerror(errno));
    if (rc != DS_OK) {
        ds_sim_trace_close(t);
        return rc;
    }
    return start(out, t, err);
}

ds_rc ds_sim_trace_text(ds_sim_trace **out, const char *text, size_t n, const char *label, ds_sim_form form, ds_err *err)
{
    ds_sim_trace *t = calloc(1, sizeof *t);

    *out = NULL;
    if (!t)
        return ds_fail(err, DS_E_NOMEM, "%s: out of memory", label);
    t->form = form;
    snprintf(t->label, sizeof t->label, "%s", label);
    t->f = n ? fmemopen((char *)(uintptr_t)text, n, "r") : fopen("/dev/null", "r");
    if (!t->f) {
        ds_sim_trace_close(t);
        return ds_fail(err, DS_E_NOMEM, "%s: out of memory", label);
    }
    return start(out, t, err);
}

void ds_sim_trace_close(ds_sim_trace *t)
{
    if (!t)
        return;
    if (t->f)
        fclose(t->f);
    free(t->line);
    free(t->ids);
    free(t->sorted);
    free(t);
}

ds_rc ds_sim_trace_next(ds_sim_trace *t, ds_sim_row *row, bool *more, ds_err *err)
{
    uint64_t at_ns;
    ds_rc rc = DS_OK;

    if (t->form == DS_SIM_ACCESS) {
        *more = t->at_sorted < t->n_sorted;
        if (!*more)
            return DS_OK;
        *row = t->sorted[t->at_sorted++];
        row->at_ns -= t->sorted[0].at_ns;
        return DS_OK;
    }
    rc = read_row(t, &at_ns, row, more, err);
    if (rc != DS_OK || !*more)
        return rc;
    if (!t->started)
        t->first_ns = t->last_ns = at_ns;
    t->started = true;
    if (at_ns < t->last_ns)
        return wrong(t, err, "its time lies before that of the row in front");
    t->last_ns = at_ns;
    row->at_ns = at_ns - t->first_ns;
    return DS_OK;
}
