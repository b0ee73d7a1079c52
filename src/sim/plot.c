#include "sim/plot.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { WIDTH = 720, HEIGHT = 380, LEFT = 78, RIGHT = 24, TOP = 78, BOTTOM = 54, ROW = 26 };

static const char style[] =
    "<style>"
    ".p{--bg:#fff;--ink:#1c2126;--dim:#5b6570;--grid:#e3e7eb;--a:#1f5fae;--b:#b3500a;--c:#0d7468;--d:#8a2ca0;--e:#8a6500;--h:31,95,174}"
    "@media(prefers-color-scheme:dark){.p{--bg:#14181c;--ink:#e8ecf0;--dim:#a2adb8;--grid:#2b333b;--a:#7ab3f5;--b:#f2a066;--c:#52cfbf;--d:#"
    "d9a2ec;"
    "--e:#e3c462;--h:122,179,245}}"
    "@media "
    "print{.p{--bg:#fff;--ink:#000;--dim:#333;--grid:#ccc;--a:#1f5fae;--b:#b3500a;--c:#0d7468;--d:#8a2ca0;--e:#8a6500;--h:31,95,174}}"
    ".p{background:var(--bg)}.p text{font:13px system-ui,sans-serif;fill:var(--ink)}.p .t{font-size:16px;font-weight:600}.p .n,.p "
    ".k{fill:var(--dim)}"
    ".p .g{stroke:var(--grid)}.p .x{stroke:var(--dim)}.p .l{fill:none;stroke-width:2;stroke-linejoin:round}"
    ".p .s0{stroke:var(--a)}.p .s1{stroke:var(--b);stroke-dasharray:8 3}.p .s2{stroke:var(--c);stroke-dasharray:2 3}"
    ".p .s3{stroke:var(--d);stroke-dasharray:9 3 2 3}.p .s4{stroke:var(--e);stroke-dasharray:4 2}"
    ".p .o0{fill:var(--a)}.p .o1{fill:var(--b)}.p .o2{fill:var(--c)}.p .o3{fill:var(--d)}.p .o4{fill:var(--e)}"
    "</style>";

void ds_sim_escape(ds_buf *b, const char *text)
{
    for (; *text; text++)
        switch (*text) {
        case '&':
            ds_buf_puts(b, "&amp;");
            break;
        case '<':
            ds_buf_puts(b, "&lt;");
            break;
        case '>':
            ds_buf_puts(b, "&gt;");
            break;
        case '"':
            ds_buf_puts(b, "&quot;");
            break;
        default:
            if ((unsigned char)*text >= ' ')
                ds_buf_putc(b, *text);
        }
}

static void text(ds_buf *b, double x, double y, const char *more, const char *what)
{
    ds_buf_printf(b, "<text x=\"%.1f\" y=\"%.1f\"%s>", x, y, more);
    ds_sim_escape(b, what);
    ds_buf_puts(b, "</text>");
}

static void begin(ds_buf *b, int height, const char *title, const char *note)
{
    ds_buf_printf(b, "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"p\" viewBox=\"0 0 %d %d\" role=\"img\"><title>", WIDTH, height);
    ds_sim_escape(b, title);
    ds_buf_printf(b, "</title>%s<rect width=\"%d\" height=\"%d\" style=\"fill:var(--bg)\"/>", style, WIDTH, height);
    text(b, 16, 24, " class=\"t\"", title);
    if (note)
        text(b, 16, 44, " class=\"n\"", note);
}

/* ---- axes ---- */

typedef struct {
    double from, to, step;
    bool log;
} axis;

/* 1, 2 or 5 times a power of ten, so that there are about `ticks` of them. */
static axis linear(double from, double to, double ticks)
{
    double rough = (to - from) / ticks, ten, step;

    if (!(to > from)) {
        to = from + (from > 0.0 ? from : 1.0);
        rough = (to - from) / ticks;
    }
    ten = pow(10.0, floor(log10(rough)));
    step = rough / ten > 5.0 ? 10.0 * ten : rough / ten > 2.0 ? 5.0 * ten : rough / ten > 1.0 ? 2.0 * ten : ten;
    return (axis){ floor(from / step) * step, ceil(to / step - 1e-9) * step, step, false };
}

static double along(const axis *a, double v)
{
    if (a->log)
        return (log10(v) - log10(a->from)) / (log10(a->to) - log10(a->from));
    return (v - a->from) / (a->to - a->from);
}

static double px(const axis *a, double v)
{
    return LEFT + along(a, v) * (WIDTH - LEFT - RIGHT);
}

static double py(const axis *a, double v)
{
    return HEIGHT - BOTTOM - along(a, v) * (HEIGHT - BOTTOM - TOP);
}

static const char *number(char buf[32], double v)
{
    static const char *const suffix[] = { "", "k", "M", "G", "T", "P" };
    int s = 0;

    for (; fabs(v) >= 10000.0 && s < 5; s++)
        v /= 1000.0;
    snprintf(buf, 32, "%.6g%s", fabs(v) < 1e-12 ? 0.0 : v, suffix[s]);
    return buf;
}

static void x_tick(ds_buf *b, const axis *a, double v, bool named)
{
    char buf[32];
    double x = px(a, v);

    ds_buf_printf(b, "<path class=\"%s\" d=\"M%.1f %d V%d\"/>", "g", x, TOP, HEIGHT - BOTTOM);
    if (named)
        text(b, x, HEIGHT - BOTTOM + 18, " text-anchor=\"middle\" class=\"k\"", number(buf, v));
}

static void draw_axes(ds_buf *b, const axis *x, const axis *y, const char *x_name, const char *y_name)
{
    char buf[32];

    if (x->log) {
        for (double ten = x->from; ten <= x->to * 1.001; ten *= 10.0)
            for (int m = 1; m <= 5 && ten * m <= x->to * 1.001; m += m == 1 ? 1 : 3)
                x_tick(b, x, ten * m, m == 1 || x->to / x->from < 1e4);
    } else
        for (int i = 0; x->from + i * x->step <= x->to + x->step / 2.0; i++)
            x_tick(b, x, x->from + i * x->step, true);
    for (int i = 0; y->from + i * y->step <= y->to + y->step / 2.0; i++) {
        double v = y->from + i * y->step, at = py(y, v);
        ds_buf_printf(b, "<path class=\"g\" d=\"M%d %.1f H%d\"/>", LEFT, at, WIDTH - RIGHT);
        text(b, LEFT - 8, at + 4, " text-anchor=\"end\" class=\"k\"", number(buf, v));
    }
    ds_buf_printf(b, "<path class=\"x\" fill=\"none\" d=\"M%d %d V%d H%d\"/>", LEFT, TOP, HEIGHT - BOTTOM, WIDTH - RIGHT);
    text(b, (LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 12, " text-anchor=\"middle\"", x_name);
    ds_buf_printf(b, "<g transform=\"rotate(-90 18 %.1f)\">", (TOP + HEIGHT - BOTTOM) / 2.0);
    text(b, 18, (TOP + HEIGHT - BOTTOM) / 2.0, " text-anchor=\"middle\"", y_name);
    ds_buf_puts(b, "</g>");
}

/* ---- lines ---- */

void ds_sim_draw_lines(ds_buf *b, const ds_sim_chart *c)
{
    double x0 = INFINITY, x1 = -INFINITY, y1 = 0.0, at = LEFT;
    axis x, y;

    for (uint32_t l = 0; l < c->n; l++)
        for (uint32_t i = 0; i < c->line[l].n; i++) {
            if (c->log_x && c->line[l].x[i] <= 0.0)
                continue;
            x0 = fmin(x0, c->line[l].x[i]);
            x1 = fmax(x1, c->line[l].x[i]);
            y1 = fmax(y1, c->line[l].y[i]);
        }
    begin(b, HEIGHT, c->title, c->note);
    if (!(x1 >= x0)) {
        text(b, WIDTH / 2.0, HEIGHT / 2.0, " text-anchor=\"middle\" class=\"n\"", "nothing to show");
        ds_buf_puts(b, "</svg>\n");
        return;
    }
    if (c->log_x)
        x = (axis){ pow(10.0, floor(log10(x0))), pow(10.0, fmax(ceil(log10(x1)), floor(log10(x0)) + 1.0)), 0.0, true };
    else
        x = linear(c->from_zero ? 0.0 : x0, x1, 8.0);
    y = linear(0.0, y1, 5.0);
    draw_axes(b, &x, &y, c->x, c->y);
    for (uint32_t l = 0; l < c->n; l++) {
        const ds_sim_line *s = &c->line[l];
        char more[32];
        const char *verb = "M";
        ds_buf_printf(b, "<path class=\"l s%u\" d=\"", l);
        for (uint32_t i = 0; i < s->n; i++) {
            if (c->log_x && s->x[i] <= 0.0)
                continue;
            ds_buf_printf(b, "%s%.1f %.1f", verb, px(&x, s->x[i]), py(&y, s->y[i]));
            verb = "L";
        }
        ds_buf_puts(b, "\"/>");
        for (uint32_t i = 0; i < s->n && s->dots; i++)
            ds_buf_printf(b, "<circle class=\"o%u\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\"/>", l, px(&x, s->x[i]), py(&y, s->y[i]));
        ds_buf_printf(b, "<path class=\"l s%u\" d=\"M%.1f 62h26\"/>", l, at);
        snprintf(more, sizeof more, " class=\"n\"");
        text(b, at + 32, 66, more, s->name);
        at += 52.0 + 7.2 * (double)strlen(s->name);
    }
    ds_buf_puts(b, "</svg>\n");
}

/* ---- bars ---- */

void ds_sim_draw_bars(ds_buf *b, const ds_sim_bars *c)
{
    enum { NAMES = 190 };
    int height = TOP + (int)c->n * ROW + 48;
    char buf[48];

    begin(b, height, c->title, c->note);
    for (int i = 0; i <= 5; i++) {
        double x = NAMES + i * (WIDTH - NAMES - 70) / 5.0;
        ds_buf_printf(b, "<path class=\"g\" d=\"M%.1f %d V%d\"/>", x, TOP - 8, height - 40);
        text(b, x, height - 26, " text-anchor=\"middle\" class=\"k\"", number(buf, c->most * i / 5.0));
    }
    for (uint32_t i = 0; i < c->n; i++) {
        double y = TOP + (double)i * ROW, w = fmax(0.0, fmin(1.0, c->values[i] / c->most)) * (WIDTH - NAMES - 70);
        text(b, NAMES - 10, y + 13, " text-anchor=\"end\"", c->names[i]);
        ds_buf_printf(b, "<rect class=\"o0\" x=\"%d\" y=\"%.1f\" width=\"%.1f\" height=\"%d\"/>", NAMES, y, w, ROW - 8);
        snprintf(buf, sizeof buf, "%.1f", c->values[i]);
        text(b, NAMES + w + 6, y + 13, "", buf);
    }
    text(b, (NAMES + WIDTH - 70) / 2.0, height - 8, " text-anchor=\"middle\"", c->x);
    ds_buf_puts(b, "</svg>\n");
}

/* ---- heat map ---- */

void ds_sim_draw_heat(ds_buf *b, const ds_sim_heat *c)
{
    enum { CELL = 34 };
    int height = TOP + (int)c->rows * CELL + 60;
    double w = (WIDTH - LEFT - 60 - RIGHT) / (double)(c->columns ? c->columns : 1), left = LEFT + 60;
    char buf[48];

    begin(b, height, c->title, c->note);
    for (uint32_t r = 0; r < c->rows; r++) {
        double y = TOP + (double)r * CELL;
        text(b, left - 10, y + 22, " text-anchor=\"end\" class=\"k\"", c->row_names[r]);
        for (uint32_t k = 0; k < c->columns; k++) {
            double v = c->values[r * c->columns + k], x = left + k * w;
            ds_buf_printf(b, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%d\" style=\"fill:rgba(var(--h),%.3f)\"/>", x + 1, y + 1,
                          w - 2, CELL - 2, 0.06 + 0.5 * v / 100.0);
            snprintf(buf, sizeof buf, "%.1f", v);
            text(b, x + w / 2.0, y + 22, " text-anchor=\"middle\"", buf);
        }
    }
    for (uint32_t k = 0; k < c->columns; k++)
        text(b, left + (k + 0.5) * w, height - 42, " text-anchor=\"middle\" class=\"k\"", c->column_names[k]);
    text(b, left + w * c->columns / 2.0, height - 16, " text-anchor=\"middle\"", c->x);
    ds_buf_printf(b, "<g transform=\"rotate(-90 18 %.1f)\">", TOP + c->rows * CELL / 2.0);
    text(b, 18, TOP + c->rows * CELL / 2.0, " text-anchor=\"middle\"", c->y);
    ds_buf_puts(b, "</g></svg>\n");
}
