#include "policy/spec.h"

enum {
    FIRST = 4,
    PROBE = 64,
    PROBE_MOST = 4096,
    FULL_PROBES = 4 /* of this many probes one goes to the maximum, the others to a neighbour or off */
};
static const double forget = 0.995;

void ds_spec_init(ds_spec *s, uint32_t model_drafts, int option)
{
    *s = (ds_spec){ .max = model_drafts < DS_SPEC_MAX ? model_drafts : DS_SPEC_MAX, .fixed = option >= 0, .probe_every = PROBE };
    if (option >= 0 && (uint32_t)option < s->max)
        s->max = (uint32_t)option;
}

static double share(const ds_spec *s, uint32_t i)
{
    return (s->kept[i] + 0.6) / (s->reached[i] + 1.0); /* hopeful before anything is known */
}

static double rate(const ds_spec *s, uint32_t k, uint32_t n, double context)
{
    ds_cost_work x = { (double)n * (1 + k), context * (1 + k), (double)n * (1 + k) * (1 + k) };
    double all = 1.0, tokens = 1.0, us = ds_cost_of(&s->decode, &x);

    for (uint32_t i = 0; i < k; i++) {
        all *= share(s, i);
        tokens += all;
    }
    if (k > 0 && s->draft_seqs > 0.0)
        us += n * s->draft_us / s->draft_seqs;
    return us > 0.0 ? tokens / us : 0.0;
}

static uint32_t choose(ds_spec *s, uint32_t n, double context, uint32_t rows)
{
    uint32_t most = s->max, best = 0;
    double best_rate, r;

    if (n == 0 || most == 0)
        return 0;
    if (most > rows / n)
        most = rows / n;
    if (s->fixed)
        return most;
    s->steps++;
    if (s->steps <= FIRST) /* what is there to know? */
        return s->steps % 2 ? most : 0;
    best_rate = rate(s, 0, n, context);
    for (uint32_t k = 1; k <= most; k++)
        if ((r = rate(s, k, n, context)) > best_rate * 1.02) { /* not for nothing */
            best_rate = r;
            best = k;
        }
    if (best > 0)
        s->probe_every = PROBE;
    if (++s->since_probe >= s->probe_every) {
        s->since_probe = 0;
        s->probes++;
        if (best == 0 && s->probe_every < PROBE_MOST)
            s->probe_every *= 2; /* it hasn't paid for long: ask seldom */
        if (s->probes % FULL_PROBES == 0)
            return most;
        return s->probes % 2 ? (best > 0 ? best - 1 : best) : best < most ? best + 1 : best;
    }
    return best;
}

uint32_t ds_spec_choose(ds_spec *s, uint32_t n, double context, uint32_t rows)
{
    return s->asked = choose(s, n, context, rows);
}

void ds_spec_learn_row(ds_spec *s, uint32_t drafted, uint32_t kept)
{
    for (uint32_t i = 0; i < drafted && i <= kept; i++) {
        s->reached[i] = s->reached[i] * forget + 1.0;
        s->kept[i] = s->kept[i] * forget + (i < kept);
    }
}

void ds_spec_learn_step(ds_spec *s, const ds_cost_work *x, double run_us, double draft_us, uint32_t drafted_seqs)
{
    ds_cost_learn(&s->decode, x, run_us - draft_us);
    if (drafted_seqs > 0) {
        s->draft_us = s->draft_us * forget + draft_us;
        s->draft_seqs = s->draft_seqs * forget + drafted_seqs;
    }
}
