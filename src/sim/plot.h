/* Pictures as SVG: lines, bars, a heat map. Axes have ticks and units, lines differ in their dashes too, so that a
 * print without colours can be read; on a dark screen the colours are others. No script, no font, nothing from
 * elsewhere.   Threads: any.   Memory: the buffer's; check its oom. */
#ifndef DS_SIM_PLOT_H
#define DS_SIM_PLOT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"

enum { DS_SIM_LINES = 5 };

typedef struct {
    const char *name;
    const double *x, *y; /* finite; x rising, but for `dots` */
    uint32_t n;
    bool dots; /* each point is marked */
} ds_sim_line;

typedef struct {
    const char *title;
    const char *note;  /* a line below the title; NULL: none */
    const char *x, *y; /* what the axes are, with units */
    bool log_x;        /* points with x <= 0 are left out */
    bool from_zero;    /* x too */
    uint32_t n;
    ds_sim_line line[DS_SIM_LINES];
} ds_sim_chart;

void ds_sim_draw_lines(ds_buf *b, const ds_sim_chart *c);

typedef struct {
    const char *title, *note, *x; /* x: what the length of a bar is, with its unit */
    double most;                  /* end of the axis */
    uint32_t n;
    const char *const *names;
    const double *values;
} ds_sim_bars;

void ds_sim_draw_bars(ds_buf *b, const ds_sim_bars *c);

typedef struct {
    const char *title, *note, *x, *y;
    uint32_t columns, rows;
    const char *const *column_names, *const *row_names;
    const double *values; /* [rows][columns], 0 .. 100 */
} ds_sim_heat;

void ds_sim_draw_heat(ds_buf *b, const ds_sim_heat *c);

/* &, <, > and quotes as entities, control characters left out. */
void ds_sim_escape(ds_buf *b, const char *text);

#endif
