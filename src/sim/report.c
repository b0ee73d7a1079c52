#include "sim/report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "sim/sweep.h"

typedef unsigned long long ull;

static const struct {
    const char *key, *name;
    size_t at;
} times[] = {
    { "wait", "wait for a rank", offsetof(ds_sim_sum, wait) },  { "first_token", "first token", offsetof(ds_sim_sum, first) },
    { "gap", "gap between tokens", offsetof(ds_sim_sum, gap) }, { "pace", "time a token after it", offsetof(ds_sim_sum, pace) },
    { "total", "whole answer", offsetof(ds_sim_sum, total) },
};
enum { N_TIMES = sizeof times / sizeof *times };

static const ds_times *times_of(const ds_sim_result *r, size_t i)
{
    return (const ds_times *)(const void *)((const char *)&r->sum + times[i].at);
}

static double share(double part, double whole)
{
    return whole > 0.0 ? part / whole : 0.0;
}

static double counted_s(const ds_sim_plan *p, const ds_sim_result *r)
{
    return r->end_s - p->warmup_s;
}

static double price(const ds_sim_plan *p, const ds_sim_result *r)
{
    double sum = 0.0;

    for (uint32_t g = 0; g < p->n_groups; g++)
        sum += r->groups[g].price;
    return sum;
}

/* ---- text ---- */

static const char *duration(char buf[24], double s)
{
    snprintf(buf, 24, s < 1e-3 ? "%.1f us" : s < 1.0 ? "%.1f ms" : "%.2f s", s < 1e-3 ? s * 1e6 : s < 1.0 ? s * 1e3 : s);
    return buf;
}

static const char *bytes(char buf[24], double x)
{
    static const char *const units[] = { "B", "KB", "MB", "GB", "TB", "PB" };
    int u = 0;

    for (; x >= 1000.0 && u < 5; u++)
        x /= 1000.0;
    snprintf(buf, 24, u ? "%.1f %s" : "%.0f %s", x, units[u]);
    return buf;
}

static void text_machines(ds_buf *b, const ds_sim_plan *p)
{
    for (uint32_t m = 0; m < p->n_machines; m++) {
        const double *c = p->machines[m].cost.coef;
        char origin[64];
        ds_buf_printf(
            b, "machine %s (%s): a step takes %.4g us + %.4g us a row + %.4g ps for each row and token before it + %.4g ps a row squared\n",
            p->machines[m].name, ds_sim_machine_origin(origin, &p->machines[m]), c[0], c[1], c[2] * 1e6, c[3] * 1e6);
    }
}

static void text_loads(ds_buf *b, const ds_sim_plan *p, const ds_sim_result *r)
{
    ds_buf_printf(b, "\n%-16s %12s %16s %8s %22s\n", "load", "prompts", "tokens", "hit", "hit for 90 % or more");
    for (uint32_t l = 0; l < p->n_loads; l++) {
        const ds_sim_load_sum *s = &r->loads[l];
        ds_buf_printf(b, "%-16s %12llu %16llu %6.2f %% %20.2f %%\n", p->loads[l].name, (ull)s->requests, (ull)s->prompt_tokens,
                      100.0 * share((double)s->hit_tokens, (double)s->prompt_tokens),
                      100.0 * share((double)s->full_hits, (double)s->requests));
    }
}

static void text_groups(ds_buf *b, const ds_sim_plan *p, const ds_sim_result *r)
{
    ds_buf_printf(b, "\n%-8s %-16s %9s %6s %8s %17s %10s\n", "role", "machine", "instances", "ranks", "busy", "slowest over mean", "price");
    for (uint32_t g = 0; g < p->n_groups; g++) {
        const ds_sim_group_sum *s = &r->groups[g];
        ds_buf_printf(b, "%-8s %-16s %9u %6u %6.2f %% ", ds_sim_role_name(p->groups[g].role), p->machines[p->groups[g].machine].name,
                      s->instances, s->ranks, 100.0 * s->busy);
        if (s->slowest > 0.0)
            ds_buf_printf(b, "%17.3f", s->slowest);
        else
            ds_buf_printf(b, "%17s", "-");
        ds_buf_printf(b, " %8.2f/h\n", s->price);
    }
}

void ds_sim_report_text(ds_buf *b, const ds_sim_plan *p, const ds_sim_result *r)
{
    const ds_sim_sum *s = &r->sum;
    char a[24], c[24], d[24], e[24], f[24];

    if (p->thin > 1)
        ds_buf_printf(b, "one of %u sessions, requests and instances was simulated: counts, rates and prices are of that part\n", p->thin);
    text_machines(b, p);
    ds_buf_printf(b, "%.1f s, seed %llu\n\n", r->end_s, (ull)p->seed);
    ds_buf_printf(b, "requests  %llu arrived = %llu done + %llu failed (%llu refused, %llu late) + %llu live; %llu attempts again\n",
                  (ull)s->arrived, (ull)s->done, (ull)s->failed, (ull)s->refused, (ull)s->late, (ull)s->live, (ull)s->restarted);
    ds_buf_printf(b, "prompts   %llu tokens = %llu hit (%.2f %%) + %llu computed; %llu replayed, %llu lost besides\n",
                  (ull)s->prompt_tokens, (ull)s->hit_tokens, 100.0 * share((double)s->hit_tokens, (double)s->prompt_tokens),
                  (ull)s->computed_tokens, (ull)s->replayed_tokens, (ull)s->lost_tokens);
    ds_buf_printf(b, "answers   %llu tokens, %.1f tokens/s\n", (ull)s->output_tokens, share((double)s->output_tokens, r->end_s));
    ds_buf_printf(b, "links     %s fetched from the store, %s moved to decode\n", bytes(a, s->fetched_bytes), bytes(c, s->moved_bytes));
    if (p->has_store)
        ds_buf_printf(b, "store     %s written = %s held + %s evicted + %s expired; at most %s\n", bytes(a, (double)r->store.written_bytes),
                      bytes(c, (double)r->store.held_bytes), bytes(d, (double)r->store.evicted_bytes),
                      bytes(e, (double)r->store.expired_bytes), bytes(f, (double)r->store.most_bytes));
    ds_buf_printf(b, "\n%-24s %12s %12s %12s %12s %12s\n", "time", "mean", "p50", "p90", "p99", "max");
    for (size_t i = 0; i < N_TIMES; i++) {
        const ds_times *t = times_of(r, i);
        ds_buf_printf(b, "%-24s %12s %12s %12s %12s %12s\n", times[i].name, duration(a, share(t->sum, (double)t->n) / 1e9),
                      duration(c, (double)ds_times_quantile(t, 0.5) / 1e9), duration(d, (double)ds_times_quantile(t, 0.9) / 1e9),
                      duration(e, (double)ds_times_quantile(t, 0.99) / 1e9), duration(f, (double)t->max / 1e9));
    }
    text_loads(b, p, r);
    text_groups(b, p, r);
    if (isfinite(p->first_s) || isfinite(p->gap_s)) {
        ds_buf_printf(b, "\nwithin the objective%s%s%s%s: %.2f %% of answers, %.1f tokens/s", isfinite(p->first_s) ? ", first token " : "",
                      isfinite(p->first_s) ? duration(a, p->first_s) : "", isfinite(p->gap_s) ? ", a token after it " : "",
                      isfinite(p->gap_s) ? duration(c, p->gap_s) : "", 100.0 * share((double)s->good, (double)s->counted),
                      share((double)s->good_tokens, counted_s(p, r)));
        if (price(p, r) > 0.0)
            ds_buf_printf(b, "; %.3f for a million of them", ds_sim_price_of_million(p, r));
        ds_buf_putc(b, '\n');
    }
}

/* ---- JSON ---- */

static void number(ds_buf *b, const char *key, double x)
{
    ds_buf_printf(b, "\"%s\":", key);
    ds_json_write_f64(b, x);
}

static void json_times(ds_buf *b, const ds_sim_result *r)
{
    ds_buf_puts(b, ",\"times_ms\":{");
    for (size_t i = 0; i < N_TIMES; i++) {
        const ds_times *t = times_of(r, i);
        ds_buf_printf(b, "%s\"%s\":{\"n\":%llu,", i ? "," : "", times[i].key, (ull)t->n);
        number(b, "mean", share(t->sum, (double)t->n) / 1e6);
        ds_buf_putc(b, ',');
        number(b, "p50", (double)ds_times_quantile(t, 0.5) / 1e6);
        ds_buf_putc(b, ',');
        number(b, "p90", (double)ds_times_quantile(t, 0.9) / 1e6);
        ds_buf_putc(b, ',');
        number(b, "p99", (double)ds_times_quantile(t, 0.99) / 1e6);
        ds_buf_putc(b, ',');
        number(b, "max", (double)t->max / 1e6);
        ds_buf_putc(b, '}');
    }
    ds_buf_putc(b, '}');
}

static void json_groups(ds_buf *b, const ds_sim_plan *p, const ds_sim_result *r)
{
    ds_buf_puts(b, ",\"instances\":[");
    for (uint32_t g = 0; g < p->n_groups; g++) {
        const ds_sim_machine *m = &p->machines[p->groups[g].machine];
        ds_buf_printf(b, "%s{\"role\":\"%s\",\"machine\":", g ? "," : "", ds_sim_role_name(p->groups[g].role));
        ds_json_write_str(b, m->name, strlen(m->name), DS_JSON_COMPACT);
        ds_buf_printf(b, ",\"predicted\":%s,\"measured_steps\":%u,\"instances\":%u,\"ranks\":%u,", m->predicted ? "true" : "false",
                      m->steps, r->groups[g].instances, r->groups[g].ranks);
        number(b, "busy", r->groups[g].busy);
        ds_buf_putc(b, ',');
        number(b, "slowest_over_mean", r->groups[g].slowest);
        ds_buf_putc(b, ',');
        number(b, "price_h", r->groups[g].price);
        ds_buf_putc(b, '}');
    }
    ds_buf_putc(b, ']');
}

static void json_loads(ds_buf *b, const ds_sim_plan *p, const ds_sim_result *r)
{
    ds_buf_puts(b, ",\"loads\":[");
    for (uint32_t l = 0; l < p->n_loads; l++) {
        const ds_sim_load_sum *s = &r->loads[l];
        ds_buf_puts(b, l ? ",{\"name\":" : "{\"name\":");
        ds_json_write_str(b, p->loads[l].name, strlen(p->loads[l].name), DS_JSON_COMPACT);
        ds_buf_printf(b, ",\"prompts\":%llu,\"prompt_tokens\":%llu,\"hit_tokens\":%llu,\"full_hits\":%llu}", (ull)s->requests,
                      (ull)s->prompt_tokens, (ull)s->hit_tokens, (ull)s->full_hits);
    }
    ds_buf_putc(b, ']');
}

static void json_timeline(ds_buf *b, const ds_sim_result *r)
{
    ds_buf_puts(b, ",\"timeline\":{");
    number(b, "bin_s", r->bin_s);
    ds_buf_puts(
        b, ",\"columns\":[\"arrived\",\"done\",\"failed\",\"input_tokens\",\"output_tokens\",\"waiting\",\"decoding\",\"live\",\"prefill\","
           "\"decode\",\"mixed\"],\"bins\":[");
    for (uint32_t i = 0; i < r->n_bins; i++) {
        const ds_sim_bin *c = &r->bins[i];
        ds_buf_printf(b, "%s[%llu,%llu,%llu,%llu,%llu,%u,%u,%u,%u,%u,%u]", i ? "," : "", (ull)c->arrived, (ull)c->done, (ull)c->failed,
                      (ull)c->input_tokens, (ull)c->output_tokens, c->waiting, c->decoding, c->live, c->ready[DS_SIM_PREFILL],
                      c->ready[DS_SIM_DECODE], c->ready[DS_SIM_MIXED]);
    }
    ds_buf_puts(b, "]}");
}

void ds_sim_report_json(ds_buf *b, const ds_sim_plan *p, const ds_sim_result *r)
{
    const ds_sim_sum *s = &r->sum;

    ds_buf_printf(b, "{\"seed\":%llu,\"thin\":%u,", (ull)p->seed, p->thin);
    number(b, "seconds", r->end_s);
    ds_buf_printf(
        b,
        ",\"events\":%llu,\"requests\":{\"arrived\":%llu,\"done\":%llu,\"failed\":%llu,\"live\":%llu,\"refused\":%llu,\"late\":%llu,"
        "\"again\":%llu}",
        (ull)r->events, (ull)s->arrived, (ull)s->done, (ull)s->failed, (ull)s->live, (ull)s->refused, (ull)s->late, (ull)s->restarted);
    ds_buf_printf(b,
                  ",\"tokens\":{\"prompt\":%llu,\"hit\":%llu,\"computed\":%llu,\"replayed\":%llu,\"lost\":%llu,\"output\":%llu,\"done_"
                  "output\":%llu},",
                  (ull)s->prompt_tokens, (ull)s->hit_tokens, (ull)s->computed_tokens, (ull)s->replayed_tokens, (ull)s->lost_tokens,
                  (ull)s->output_tokens, (ull)s->done_output_tokens);
    number(b, "hit_share", share((double)s->hit_tokens, (double)s->prompt_tokens));
    ds_buf_putc(b, ',');
    number(b, "output_tokens_s", share((double)s->output_tokens, r->end_s));
    ds_buf_puts(b, ",\"bytes\":{");
    number(b, "fetched", s->fetched_bytes);
    ds_buf_putc(b, ',');
    number(b, "moved", s->moved_bytes);
    ds_buf_printf(b, ",\"written\":%llu,\"held\":%llu,\"evicted\":%llu,\"expired\":%llu,\"most\":%llu}", (ull)r->store.written_bytes,
                  (ull)r->store.held_bytes, (ull)r->store.evicted_bytes, (ull)r->store.expired_bytes, (ull)r->store.most_bytes);
    json_times(b, r);
    ds_buf_printf(b, ",\"objective\":{\"counted\":%llu,\"good\":%llu,", (ull)s->counted, (ull)s->good);
    number(b, "good_tokens_s", share((double)s->good_tokens, counted_s(p, r)));
    ds_buf_putc(b, ',');
    number(b, "price_of_million_good_tokens", ds_sim_price_of_million(p, r));
    ds_buf_putc(b, '}');
    json_loads(b, p, r);
    json_groups(b, p, r);
    json_timeline(b, r);
    ds_buf_puts(b, "}\n");
}
