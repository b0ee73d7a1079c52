#include "sim/pages.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "sim/plot.h"

enum { QUANTILES = 100 };

/* A time axis in the unit that suits its length. */
typedef struct {
    double x[DS_SIM_BINS];
    char name[24];
} clock_axis;

static void make_clock(clock_axis *c, const ds_sim_result *r)
{
    double unit = r->end_s > 7200.0 ? 3600.0 : r->end_s > 180.0 ? 60.0 : 1.0;

    for (uint32_t i = 0; i < r->n_bins; i++)
        c->x[i] = fmin((i + 0.5) * r->bin_s, r->end_s) / unit;
    snprintf(c->name, sizeof c->name, "time, %s", unit == 3600.0 ? "h" : unit == 60.0 ? "min" : "s");
}

static void draw_rates(ds_buf *b, const ds_sim_result *r, const clock_axis *t)
{
    static const char *const names[] = { "arrived", "done", "failed" };
    double y[3][DS_SIM_BINS];
    /* The last bin is cut off by the end. */
    uint32_t n = r->n_bins > 1 ? r->n_bins - 1 : r->n_bins;
    ds_sim_chart c = { .title = "Requests", .x = t->name, .y = "requests/s", .from_zero = true, .n = r->sum.failed ? 3 : 2 };

    for (uint32_t i = 0; i < n; i++) {
        y[0][i] = (double)r->bins[i].arrived / r->bin_s;
        y[1][i] = (double)r->bins[i].done / r->bin_s;
        y[2][i] = (double)r->bins[i].failed / r->bin_s;
    }
    for (uint32_t l = 0; l < 3; l++)
        c.line[l] = (ds_sim_line){ .name = names[l], .x = t->x, .y = y[l], .n = n };
    ds_sim_draw_lines(b, &c);
}

static void draw_tokens(ds_buf *b, const ds_sim_result *r, const clock_axis *t)
{
    double y[DS_SIM_BINS];
    uint32_t n = r->n_bins > 1 ? r->n_bins - 1 : r->n_bins;
    ds_sim_chart c = {
        .title = "Answers", .note = "counted when an answer is complete", .x = t->name, .y = "output tokens/s", .from_zero = true, .n = 1
    };

    for (uint32_t i = 0; i < n; i++)
        y[i] = (double)r->bins[i].output_tokens / r->bin_s;
    c.line[0] = (ds_sim_line){ .name = "output tokens", .x = t->x, .y = y, .n = n };
    ds_sim_draw_lines(b, &c);
}

static void draw_live(ds_buf *b, const ds_sim_result *r, const clock_axis *t)
{
    double y[3][DS_SIM_BINS];
    ds_sim_chart c = { .title = "Live requests",
                       .note = "the most that were seen in each part of the time",
                       .x = t->name,
                       .y = "requests",
                       .from_zero = true,
                       .n = 3 };
    static const char *const names[] = { "all", "decoding", "waiting for a rank" };

    for (uint32_t i = 0; i < r->n_bins; i++) {
        y[0][i] = r->bins[i].live;
        y[1][i] = r->bins[i].decoding;
        y[2][i] = r->bins[i].waiting;
    }
    for (uint32_t l = 0; l < 3; l++)
        c.line[l] = (ds_sim_line){ .name = names[l], .x = t->x, .y = y[l], .n = r->n_bins };
    ds_sim_draw_lines(b, &c);
}

static void draw_instances(ds_buf *b, const ds_sim_plan *p, const ds_sim_result *r, const clock_axis *t)
{
    double y[DS_SIM_ROLES][DS_SIM_BINS];
    ds_sim_chart c = { .title = "Instances that take new work",
                       .note = "the fewest that were seen in each part of the time",
                       .x = t->name,
                       .y = "instances",
                       .from_zero = true };

    for (ds_sim_role role = 0; role < DS_SIM_ROLES; role++) {
        bool any = false;
        for (uint32_t g = 0; g < p->n_groups; g++)
            any = any || p->groups[g].role == role;
        for (uint32_t i = 0; i < r->n_bins; i++)
            y[role][i] = r->bins[i].ready[role];
        if (any)
            c.line[c.n++] = (ds_sim_line){ .name = ds_sim_role_name(role), .x = t->x, .y = y[role], .n = r->n_bins };
    }
    ds_sim_draw_lines(b, &c);
}

static void draw_times(ds_buf *b, const ds_sim_result *r)
{
    const ds_times *times[] = { &r->sum.first, &r->sum.pace, &r->sum.total };
    static const char *const names[] = { "first token", "a token after it", "whole answer" };
    double x[3][QUANTILES], y[QUANTILES];
    ds_sim_chart c = { .title = "How many had it by then", .x = "time, s", .y = "share of answers, %", .log_x = true, .n = 3 };

    for (uint32_t i = 0; i < QUANTILES; i++) {
        y[i] = i + 1.0;
        for (uint32_t l = 0; l < 3; l++)
            x[l][i] = (double)ds_times_quantile(times[l], y[i] / 100.0) / 1e9;
    }
    for (uint32_t l = 0; l < 3; l++)
        c.line[l] = (ds_sim_line){ .name = names[l], .x = x[l], .y = y, .n = QUANTILES };
    ds_sim_draw_lines(b, &c);
}

static void draw_hits(ds_buf *b, const ds_sim_plan *p, const ds_sim_result *r)
{
    const char *names[DS_SIM_LOADS];
    double values[DS_SIM_LOADS];

    for (uint32_t l = 0; l < p->n_loads; l++) {
        names[l] = p->loads[l].name;
        values[l] = r->loads[l].prompt_tokens ? 100.0 * (double)r->loads[l].hit_tokens / (double)r->loads[l].prompt_tokens : 0.0;
    }
    ds_sim_draw_bars(b, &(ds_sim_bars){ .title = "Prompt tokens that were in the store",
                                        .x = "share of prompt tokens, %",
                                        .most = 100.0,
                                        .n = p->n_loads,
                                        .names = names,
                                        .values = values });
}

/* ---- sweeps ---- */

static void draft_note(char *buf, size_t cap, const ds_sim_plan *p)
{
    size_t at = (size_t)snprintf(buf, cap, "%s", p->n_kept ? "assumed: drafts kept of those reached" : "without drafts");

    for (uint32_t i = 0; i < p->n_kept && at < cap; i++)
        at += (size_t)snprintf(buf + at, cap - at, "%s%.0f %%", i ? ", " : " ", 100.0 * p->kept[i]);
}

static void draw_first_over_load(ds_buf *b, const ds_sim_sweeps *s)
{
    double x[DS_SIM_SWEEP], p50[DS_SIM_SWEEP], p99[DS_SIM_SWEEP];
    ds_sim_chart c = {
        .title = "Time to the first token over load", .x = "load, times that of the plan", .y = "time, s", .from_zero = true, .n = 2
    };

    for (uint32_t i = 0; i < s->n_points; i++) {
        x[i] = s->points[i].load;
        p50[i] = s->points[i].first_p50_s;
        p99[i] = s->points[i].first_p99_s;
    }
    c.line[0] = (ds_sim_line){ .name = "p99", .x = x, .y = p99, .n = s->n_points, .dots = true };
    c.line[1] = (ds_sim_line){ .name = "p50", .x = x, .y = p50, .n = s->n_points, .dots = true };
    ds_sim_draw_lines(b, &c);
}

static void draw_front(ds_buf *b, const ds_sim_plan *p, const ds_sim_result *r, const ds_sim_sweeps *s)
{
    double x[DS_SIM_SWEEP], y[DS_SIM_SWEEP], ranks = 0.0;
    char note[160];
    ds_sim_chart c = { .title = "Throughput against speed for a user",
                       .note = note,
                       .x = "tokens/s of one answer, p50",
                       .y = "output tokens/s for each rank",
                       .from_zero = true,
                       .n = 1 };

    draft_note(note, sizeof note, p);
    for (uint32_t g = 0; g < p->n_groups; g++)
        ranks += r->groups[g].ranks;
    for (uint32_t i = 0; i < s->n_points; i++) {
        x[i] = s->points[i].pace_p50_s > 0.0 ? 1.0 / s->points[i].pace_p50_s : 0.0;
        y[i] = s->points[i].output_s / ranks;
    }
    c.line[0] = (ds_sim_line){ .name = "one point for each load", .x = x, .y = y, .n = s->n_points, .dots = true };
    ds_sim_draw_lines(b, &c);
}

static void draw_price(ds_buf *b, const ds_sim_plan *p, const ds_sim_sweeps *s)
{
    double x[DS_SIM_SWEEP], y[DS_SIM_SWEEP];
    char note[160];
    ds_sim_chart c = { .title = "Price of a million good output tokens",
                       .note = note,
                       .x = "busy time of ranks that decode, %",
                       .y = "price",
                       .from_zero = true,
                       .n = 1 };

    draft_note(note, sizeof note, p);
    for (uint32_t i = 0; i < s->n_points; i++) {
        x[i] = 100.0 * s->points[i].busy;
        y[i] = s->points[i].price;
    }
    c.line[0] = (ds_sim_line){ .name = "one point for each load", .x = x, .y = y, .n = s->n_points, .dots = true };
    ds_sim_draw_lines(b, &c);
}

static void name_amount(char buf[24], double v, const double *steps, const char *const *units)
{
    int u = 0;

    while (units[u + 1] && v >= steps[u + 1])
        u++;
    snprintf(buf, 24, "%.4g %s", v / steps[u], units[u]);
}

static void draw_stores(ds_buf *b, const ds_sim_plan *p, const ds_sim_sweeps *s)
{
    static const double bytes[] = { 1, 1e3, 1e6, 1e9, 1e12, 1e15 }, seconds[] = { 1, 60, 3600, 86400 };
    static const char *const byte_units[] = { "B", "KB", "MB", "GB", "TB", "PB", NULL }, *const second_units[] = { "s", "min", "h", "d",
                                                                                                                   NULL };
    char columns[DS_SIM_SWEEP][24], rows[DS_SIM_SWEEP][24];
    const char *column_names[DS_SIM_SWEEP], *row_names[DS_SIM_SWEEP];
    double values[DS_SIM_SWEEP * DS_SIM_SWEEP];

    for (uint32_t c = 0; c < p->n_sweep_capacities; c++) {
        name_amount(columns[c], p->sweep_capacities[c], bytes, byte_units);
        column_names[c] = columns[c];
    }
    for (uint32_t t = 0; t < p->n_sweep_ttls; t++) {
        name_amount(rows[t], p->sweep_ttls[t], seconds, second_units);
        row_names[t] = rows[t];
        for (uint32_t c = 0; c < p->n_sweep_capacities; c++)
            values[t * p->n_sweep_capacities + c] = 100.0 * s->hits[t][c];
    }
    ds_sim_draw_heat(b, &(ds_sim_heat){ .title = "What a larger store finds",
                                        .note = "share of prompt tokens, %",
                                        .x = "capacity",
                                        .y = "time to live",
                                        .columns = p->n_sweep_capacities,
                                        .rows = p->n_sweep_ttls,
                                        .column_names = column_names,
                                        .row_names = row_names,
                                        .values = values });
}

uint32_t ds_sim_pictures(ds_sim_picture out[DS_SIM_PICTURES], const ds_sim_plan *p, const ds_sim_result *r, const ds_sim_sweeps *s)
{
    clock_axis t;
    uint32_t n = 0;

    memset(out, 0, DS_SIM_PICTURES * sizeof *out);
    make_clock(&t, r);
    out[n].name = "requests";
    draw_rates(&out[n++].svg, r, &t);
    out[n].name = "answers";
    draw_tokens(&out[n++].svg, r, &t);
    out[n].name = "live";
    draw_live(&out[n++].svg, r, &t);
    out[n].name = "instances";
    draw_instances(&out[n++].svg, p, r, &t);
    out[n].name = "times";
    draw_times(&out[n++].svg, r);
    if (p->has_store) {
        out[n].name = "hits";
        draw_hits(&out[n++].svg, p, r);
    }
    if (s->n_points > 0) {
        out[n].name = "first-token";
        draw_first_over_load(&out[n++].svg, s);
        out[n].name = "front";
        draw_front(&out[n++].svg, p, r, s);
        out[n].name = "price";
        draw_price(&out[n++].svg, p, s);
    }
    if (p->n_sweep_ttls > 0) {
        out[n].name = "store";
        draw_stores(&out[n++].svg, p, s);
    }
    return n;
}

void ds_sim_page(ds_buf *b, const char *title, const char *report, const ds_sim_picture *pictures, uint32_t n)
{
    ds_buf_puts(b,
                "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">"
                "<meta name=\"color-scheme\" content=\"light dark\"><title>");
    ds_sim_escape(b, title);
    ds_buf_puts(
        b,
        "</title>\n<style>body{font:15px system-ui,sans-serif;max-width:1500px;margin:2em auto;padding:0 1em;background:#fff;color:#1c2126}"
        "pre{overflow-x:auto;font:13px "
        "ui-monospace,monospace;line-height:1.4}figure{margin:0;break-inside:avoid}svg{width:100%;display:block}"
        "main{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,560px),1fr));gap:1.5em}"
        "@media(prefers-color-scheme:dark){body{background:#14181c;color:#e8ecf0}}"
        "@media print{body{background:#fff;color:#000}main{display:block}pre{white-space:pre-wrap}}</style></head>\n<body><h1>");
    ds_sim_escape(b, title);
    ds_buf_puts(b, "</h1>\n<main>\n");
    for (uint32_t i = 0; i < n; i++) {
        ds_buf_puts(b, "<figure>");
        ds_buf_put(b, pictures[i].svg.p, pictures[i].svg.len);
        ds_buf_puts(b, "</figure>\n");
    }
    ds_buf_puts(b, "</main>\n<pre>");
    for (const char *line = report; *line;) { /* line by line: what escapes leaves line ends out */
        size_t k = strcspn(line, "\n");
        char text[512];
        snprintf(text, sizeof text, "%.*s", (int)(k < 500 ? k : 500), line);
        ds_sim_escape(b, text);
        ds_buf_putc(b, '\n');
        line += k + (line[k] == '\n');
    }
    ds_buf_puts(b, "</pre></body></html>\n");
}
