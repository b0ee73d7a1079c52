#include "sim/advise.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "sim/sweep.h"

enum { TRIED_MOST = 1024 };

typedef struct {
    const ds_sim_plan *p;
    ds_sim_plan *q; /* with other counts */
    ds_sim_result *r;
    ds_err *err;
    ds_rc rc;
    uint32_t n, tried;
    struct {
        uint32_t a, b;
        double good;
    } memory[TRIED_MOST];
} search;

/* ---- one deployment ---- */

static double share(double part, double whole)
{
    return whole > 0.0 ? part / whole : 0.0;
}

static ds_sim_option run(search *s)
{
    const ds_sim_sum *sum = &s->r->sum;
    ds_sim_option o = { 0 };

    if (s->rc == DS_OK)
        s->rc = ds_sim_run(s->q, s->r, s->err);
    if (s->rc != DS_OK)
        return o;
    s->tried++;
    for (uint32_t g = 0; g < s->q->n_groups; g++) {
        o.count[g] = s->q->groups[g].count * s->p->thin;
        o.price += s->r->groups[g].price * s->p->thin;
    }
    o.good = share((double)sum->good, (double)(sum->counted + sum->failed + sum->overdue));
    o.first_p99_s = (double)ds_times_quantile(&sum->first, 0.99) / 1e9;
    o.pace_p99_s = (double)ds_times_quantile(&sum->pace, 0.99) / 1e9;
    o.output_s = share((double)sum->output_tokens, s->r->end_s);
    o.good_s = share((double)sum->good_tokens, s->r->end_s - s->q->warmup_s);
    o.effective_s = share((double)(sum->prompt_tokens + sum->done_output_tokens), s->r->end_s);
    o.uncached = share((double)sum->computed_tokens, (double)sum->output_tokens);
    o.hit = share((double)sum->hit_tokens, (double)sum->prompt_tokens);
    o.price_of_million = ds_sim_price_of_million(s->q, s->r);
    return o;
}

/* Of the first group so many, and of the second. */
static double good_of(search *s, uint32_t a, uint32_t b)
{
    double good;

    for (uint32_t i = 0; i < s->n; i++)
        if (s->memory[i].a == a && s->memory[i].b == b)
            return s->memory[i].good;
    *s->q = *s->p;
    s->q->groups[0].count = a;
    s->q->groups[1].count = s->p->n_groups > 1 ? b : 0;
    good = run(s).good;
    if (s->n < TRIED_MOST) {
        s->memory[s->n].a = a;
        s->memory[s->n].b = b;
        s->memory[s->n++].good = good;
    }
    return good;
}

static bool enough(search *s, uint32_t a, uint32_t b)
{
    return good_of(s, a, b) >= s->p->search_good;
}

/* The fewest of a group, in [from, to], that are enough beside so many of the other; `to` is. */
static uint32_t fewest(search *s, uint32_t group, uint32_t from, uint32_t to, uint32_t other)
{
    uint32_t step = 1, low = from, high = from;

    /* From below in growing steps: small deployments take less time to simulate. */
    while (high < to && s->rc == DS_OK && !(group == 0 ? enough(s, high, other) : enough(s, other, high))) {
        low = high + 1;
        high = high + step < to ? high + step : to;
        step *= 2;
    }
    while (low < high && s->rc == DS_OK) {
        uint32_t mid = low + (high - low) / 2;
        if (group == 0 ? enough(s, mid, other) : enough(s, other, mid))
            high = mid;
        else
            low = mid + 1;
    }
    return high;
}

static double price_of(const ds_sim_plan *p, uint32_t g)
{
    double price = p->machines[p->groups[g].machine].price * p->groups[g].ranks, sum = 0.0;

    for (uint32_t h = 0; h < p->n_groups; h++)
        sum += p->machines[p->groups[h].machine].price;
    return sum > 0.0 ? price : p->groups[g].ranks; /* without prices ranks are counted */
}

static ds_rc nothing_is_enough(search *s)
{
    char first[80] = "", gap[80] = "";
    ds_sim_option o;

    *s->q = *s->p;
    for (uint32_t g = 0; g < s->p->n_groups; g++)
        s->q->groups[g].count = s->p->search_most;
    o = run(s);
    if (s->rc != DS_OK)
        return s->rc;
    if (isfinite(s->p->first_s))
        snprintf(first, sizeof first, "; first token p99 %.3g s of %.3g s", o.first_p99_s, s->p->first_s);
    if (isfinite(s->p->gap_s))
        snprintf(gap, sizeof gap, "; a token after it p99 %.3g s of %.3g s", o.pace_p99_s, s->p->gap_s);
    return ds_fail(s->err, DS_E_ARG,
                   "%u instances of each role aren't enough: %.2f %% of answers are within the objective instead of %.2f %%%s%s",
                   s->p->search_most * s->p->thin, 100.0 * o.good, 100.0 * s->p->search_good, first, gap);
}

/* The cheapest counts that are enough. */
static void find(search *s, uint32_t best[2])
{
    uint32_t most = s->p->search_most, a, least_b, b;
    double price_a = price_of(s->p, 0), price_b, cheapest = INFINITY;

    best[1] = 0;
    if (s->p->n_groups == 1) {
        best[0] = fewest(s, 0, 1, most, 0);
        return;
    }
    price_b = price_of(s->p, 1);
    a = fewest(s, 0, 1, most, most);
    least_b = fewest(s, 1, 1, most, most);
    b = most;
    for (; s->rc == DS_OK && a <= most && a * price_a + least_b * price_b < cheapest; a++) {
        b = fewest(s, 1, least_b, b, a);
        if (enough(s, a, b) && a * price_a + b * price_b < cheapest) {
            cheapest = a * price_a + b * price_b;
            best[0] = a;
            best[1] = b;
        }
        if (b == least_b)
            break;
    }
}

/* ---- what else would be ---- */

/* Of those that may be away as many are simulated as thinning leaves; all are counted and paid. */
static ds_sim_option run_with_spares(search *s)
{
    ds_sim_option o = run(s);
    uint32_t rest = s->p->search_failures % s->p->thin;
    double before = o.price;

    for (uint32_t g = 0; g < s->p->n_groups; g++) {
        o.count[g] += rest;
        o.price += rest * s->p->machines[s->p->groups[g].machine].price * s->p->groups[g].ranks;
    }
    o.price_of_million *= before > 0.0 ? o.price / before : 1.0;
    return o;
}

static void variant(search *s, ds_sim_advice *out, const char *what)
{
    ds_sim_variant *v = &out->variants[out->n_variants++];

    snprintf(v->what, sizeof v->what, "%s", what);
    v->is = run_with_spares(s);
}

static void begin_variant(search *s, const ds_sim_advice *out)
{
    *s->q = *s->p;
    for (uint32_t g = 0; g < s->p->n_groups; g++)
        s->q->groups[g].count = out->needed.count[g] / s->p->thin + s->p->search_failures / s->p->thin;
}

static void vary(search *s, ds_sim_advice *out)
{
    char what[64];

    for (uint32_t g = 0; g < s->p->n_groups; g++)
        for (int more = -1; more <= 1; more += 2) {
            begin_variant(s, out);
            if (more < 0 && s->q->groups[g].count == 1)
                continue;
            s->q->groups[g].count += (uint32_t)more;
            snprintf(what, sizeof what, "%u %s %s", s->p->thin, more < 0 ? "less for" : "more for", ds_sim_role_name(s->p->groups[g].role));
            variant(s, out, what);
        }
    if (s->p->has_store) {
        begin_variant(s, out);
        s->q->has_store = false;
        variant(s, out, "no store");
        for (int day = 0; day < 2; day++) {
            begin_variant(s, out);
            for (uint32_t l = 0; l < s->q->n_loads; l++)
                s->q->loads[l].ttl_s = day ? 86400.0 : 3600.0;
            variant(s, out, day ? "the store keeps for a day" : "the store keeps for an hour");
        }
    }
    if (s->p->n_kept > 0) {
        begin_variant(s, out);
        s->q->n_kept = 0;
        variant(s, out, "no drafts");
        begin_variant(s, out);
        for (uint32_t i = 0; i < s->q->n_kept; i++)
            s->q->kept[i] *= 0.8;
        variant(s, out, "drafts kept a fifth less often");
    }
    for (int twice = 0; twice < 2; twice++) {
        begin_variant(s, out);
        for (uint32_t l = 0; l < s->q->n_loads; l++) {
            s->q->loads[l].rate *= twice ? 2.0 : 1.25;
            s->q->loads[l].speed *= twice ? 2.0 : 1.25;
        }
        variant(s, out, twice ? "twice the load" : "a quarter more load");
    }
}

ds_rc ds_sim_advise(const ds_sim_plan *p, ds_sim_advice *out, ds_err *err)
{
    search *s = calloc(1, sizeof *s);
    uint32_t best[2];
    ds_rc rc;

    *out = (ds_sim_advice){ 0 };
    if (!s)
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    s->p = p;
    s->err = err;
    s->q = malloc(sizeof *s->q);
    s->r = malloc(sizeof *s->r);
    if (!s->q || !s->r)
        s->rc = ds_fail(err, DS_E_NOMEM, "out of memory");
    if (s->rc == DS_OK && !enough(s, p->search_most, p->search_most) && s->rc == DS_OK)
        s->rc = nothing_is_enough(s);
    if (s->rc == DS_OK)
        find(s, best);
    if (s->rc == DS_OK) {
        *s->q = *p;
        for (uint32_t g = 0; g < p->n_groups; g++)
            s->q->groups[g].count = best[g];
        out->needed = run(s);
    }
    if (s->rc == DS_OK) {
        begin_variant(s, out);
        out->best = run_with_spares(s);
    }
    if (s->rc == DS_OK)
        vary(s, out);
    out->tried = s->tried;
    rc = s->rc;
    free(s->q);
    free(s->r);
    free(s);
    return rc;
}

/* ---- text ---- */

static void text_counts(ds_buf *b, const ds_sim_plan *p, const ds_sim_option *o)
{
    for (uint32_t g = 0; g < p->n_groups; g++)
        ds_buf_printf(b, "%s%u %s on %s", g ? ", " : "", o->count[g], ds_sim_role_name(p->groups[g].role),
                      p->machines[p->groups[g].machine].name);
}

static void text_assumptions(ds_buf *b, const ds_sim_plan *p)
{
    ds_buf_puts(b, "\nassumed\n");
    for (uint32_t m = 0; m < p->n_machines; m++) {
        const double *c = p->machines[m].cost.coef;
        char origin[64];
        ds_buf_printf(b,
                      "  machine %s (%s): step %.4g us, row %.4g us, row_context %.4g ps, row_row %.4g ps, draft %.4g us, price %.4g/h\n",
                      p->machines[m].name, ds_sim_machine_origin(origin, &p->machines[m]), c[0], c[1], c[2] * 1e6, c[3] * 1e6,
                      p->machines[m].draft_s * 1e6, p->machines[m].price);
    }
    for (uint32_t g = 0; g < p->n_groups; g++)
        ds_buf_printf(b, "  %s: %u ranks each, %u seats and %.4g tokens of KV a rank, %u rows and parts of %u prompts a step\n",
                      ds_sim_role_name(p->groups[g].role), p->groups[g].ranks, p->groups[g].requests, (double)p->groups[g].kv_tokens,
                      p->groups[g].rows, p->groups[g].prompts);
    ds_buf_printf(b, "  KV: %.4g bytes a token; transfer %.4g GB/s, fetch %.4g GB/s (0: no time), latency %.4g us\n", p->token_bytes,
                  p->transfer_s_byte > 0.0 ? 1e-9 / p->transfer_s_byte : 0.0, p->fetch_s_byte > 0.0 ? 1e-9 / p->fetch_s_byte : 0.0,
                  p->latency_s * 1e6);
    if (p->has_store)
        ds_buf_printf(b, "  store: %.4g GB, windows for %.4g s\n", p->capacity_bytes * p->thin / 1e9, p->window_s);
    else
        ds_buf_puts(b, "  no store\n");
    for (uint32_t l = 0; l < p->n_loads; l++)
        ds_buf_printf(b, "  load %s: priority %u, kept in the store for %.4g s\n", p->loads[l].name, p->loads[l].priority,
                      p->loads[l].ttl_s);
    ds_buf_puts(b, p->n_kept ? "  drafts kept of those reached:" : "  no drafts");
    for (uint32_t i = 0; i < p->n_kept; i++)
        ds_buf_printf(b, " %.4g %%", 100.0 * p->kept[i]);
    ds_buf_printf(b, "\n  seed %llu; more instances of a role are no worse; an instance that is away is away all the time\n",
                  (unsigned long long)p->seed);
    if (p->thin > 1)
        ds_buf_printf(b, "  one of %u requests, sessions and instances was simulated: rates, and times somewhat longer, are of that part\n",
                      p->thin);
}

void ds_sim_advice_text(ds_buf *b, const ds_sim_plan *p, const ds_sim_advice *a)
{
    const ds_sim_option *o = &a->best;

    ds_buf_puts(b, "deployment  ");
    text_counts(b, p, o);
    if (p->search_failures > 0) {
        ds_buf_puts(b, "; needed are ");
        text_counts(b, p, &a->needed);
        ds_buf_printf(b, ", %u of each may be away", p->search_failures);
    }
    ds_buf_printf(b, "\nprice       %.2f/h = sum over ranks of their machine's price; %.3f for a million good output tokens\n", o->price,
                  o->price_of_million);
    ds_buf_printf(
        b, "good        %.2f %% = answers within the objective / (done + failed + overdue); wanted %.2f %%, with those away %.2f %%\n",
        100.0 * o->good, 100.0 * p->search_good, 100.0 * a->needed.good);
    ds_buf_printf(b, "goodput     %.1f tokens/s = output tokens of good answers / time\n", o->good_s);
    ds_buf_printf(b, "effective   %.1f tokens/s = (prompt tokens, hit or computed, + output tokens) / time\n", o->effective_s);
    ds_buf_printf(b, "uncached    %.3f = computed prompt tokens / output tokens; hit %.2f %% of prompt tokens\n", o->uncached,
                  100.0 * o->hit);
    ds_buf_printf(b, "\n%-34s %9s %14s %14s %9s %12s %9s\n", "if", "good", "first p99, s", "token p99, s", "hit", "price/h", "million");
    for (uint32_t i = 0; i <= a->n_variants; i++) {
        const ds_sim_option *v = i ? &a->variants[i - 1].is : o;
        ds_buf_printf(b, "%-34s %7.2f %% %14.3f %14.4f %7.2f %% %12.2f %9.3f\n", i ? a->variants[i - 1].what : "as it is", 100.0 * v->good,
                      v->first_p99_s, v->pace_p99_s, 100.0 * v->hit, v->price, v->price_of_million);
    }
    text_assumptions(b, p);
    ds_buf_printf(b, "searched    %u simulations, up to %u instances of a role\n", a->tried, p->search_most * p->thin);
}

/* ---- JSON ---- */

static void member(ds_buf *b, const char *key, double x)
{
    ds_buf_printf(b, ",\"%s\":", key);
    ds_json_write_f64(b, x);
}

static void json_option(ds_buf *b, const ds_sim_plan *p, const ds_sim_option *o)
{
    ds_buf_puts(b, "{\"instances\":{");
    for (uint32_t g = 0; g < p->n_groups; g++)
        ds_buf_printf(b, "%s\"%s\":%u", g ? "," : "", ds_sim_role_name(p->groups[g].role), o->count[g]);
    ds_buf_putc(b, '}');
    member(b, "good", o->good);
    member(b, "first_token_p99_s", o->first_p99_s);
    member(b, "pace_p99_s", o->pace_p99_s);
    member(b, "output_tokens_s", o->output_s);
    member(b, "good_tokens_s", o->good_s);
    member(b, "effective_tokens_s", o->effective_s);
    member(b, "uncached_per_output", o->uncached);
    member(b, "hit_share", o->hit);
    member(b, "price_h", o->price);
    member(b, "price_of_million_good_tokens", o->price_of_million);
    ds_buf_putc(b, '}');
}

void ds_sim_advice_json(ds_buf *b, const ds_sim_plan *p, const ds_sim_advice *a)
{
    ds_buf text = { 0 };

    ds_buf_printf(b, "{\"seed\":%llu,\"thin\":%u,\"tried\":%u,\"deployment\":", (unsigned long long)p->seed, p->thin, a->tried);
    json_option(b, p, &a->best);
    ds_buf_puts(b, ",\"needed\":");
    json_option(b, p, &a->needed);
    ds_buf_puts(b, ",\"variants\":[");
    for (uint32_t i = 0; i < a->n_variants; i++) {
        ds_buf_printf(b, "%s{\"if\":\"%s\",\"is\":", i ? "," : "", a->variants[i].what);
        json_option(b, p, &a->variants[i].is);
        ds_buf_putc(b, '}');
    }
    text_assumptions(&text, p);
    ds_buf_puts(b, "],\"assumptions\":");
    if (text.oom)
        b->oom = true;
    else
        ds_json_write_str(b, text.p, text.len, DS_JSON_COMPACT);
    ds_buf_puts(b, "}\n");
    ds_buf_free(&text);
}
