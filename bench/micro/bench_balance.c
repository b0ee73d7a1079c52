/* Placements of experts against simulated routing: how much longer the slowest rank takes than the mean one, for no
 * balancing, the published greedy algorithm, ours at the same period, and ours in small moves ten times as often; next
 * to the floor that sampling sets: ranks whose expected loads are equal. Also how long a plan takes.
 *
 * Experts have log-normal popularity, which stands still or drifts (an Ornstein-Uhlenbeck process of its logarithm). A
 * step draws a Poisson number of rows for each expert; copies share it evenly, so their noise is less than that of the
 * floor's ranks. All numbers come from one seed. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "parallel/balance.h"

enum { EXPERTS = 384, LAYERS = 6, PERIODS = 6, PARTS = 10 /* of a period: its last one is the window */, STEPS = 24 /* drawn of a part */ };

typedef struct {
    const char *name;
    uint32_t ranks, spare;
    double pairs; /* rows times experts of a step, of all ranks */
    double skew;  /* standard deviation of the logarithm of popularity */
    double stay;  /* of that, what is left of a deviation after a part */
} scenario;

static uint64_t counter;

static double unit(void)
{
    return ds_rng_unit(7, 1, counter++);
}

static double normal(void)
{
    return ds_rng_normal(7, 2, counter++);
}

/* By multiplication where the mean is small, else by the normal distribution. */
static double poisson(double mean)
{
    double limit = exp(-mean), p = unit();
    uint32_t n = 0;

    if (mean > 30.0)
        return fmax(0.0, round(mean + sqrt(mean) * normal()));
    for (; p > limit; n++)
        p *= unit();
    return n;
}

static void popularity(double *rate, const double *log_rate, double pairs)
{
    double sum = 0.0;

    for (uint32_t e = 0; e < EXPERTS; e++)
        sum += rate[e] = exp(log_rate[e]);
    for (uint32_t e = 0; e < EXPERTS; e++)
        rate[e] *= pairs / sum;
}

/* Slowest over mean of one drawn step. */
static double slowest(const double *rows, const uint16_t *place, uint32_t ranks, uint32_t slots)
{
    uint32_t copies[EXPERTS] = { 0 };
    double most = 0.0, all = 0.0;

    for (uint32_t i = 0; i < ranks * slots; i++)
        copies[place[i]]++;
    for (uint32_t r = 0; r < ranks; r++) {
        double sum = 0.0;
        for (uint32_t i = 0; i < slots; i++)
            sum += rows[place[r * slots + i]] / copies[place[r * slots + i]];
        most = fmax(most, sum);
        all += sum;
    }
    return most * ranks / all;
}

enum { NONE, GREEDY, PLAN, MOVES, FLOOR, N_WAYS };

static void run(const scenario *sc)
{
    ds_balance_shape s = { .experts = EXPERTS,
                           .ranks = sc->ranks,
                           .slots = EXPERTS / sc->ranks + sc->spare,
                           .records = DS_BALANCE_RECORDS },
                     bare = { .experts = EXPERTS, .ranks = sc->ranks, .slots = EXPERTS / sc->ranks, .records = 1 };
    void *scratch = ds_calloc_aligned(1, ds_balance_scratch_bytes(&s));
    size_t n = (size_t)s.ranks * s.slots;
    uint16_t *place[MOVES + 1];
    double sum[N_WAYS] = { 0 }, count = 0.0;
    float *load = calloc(DS_BALANCE_RECORDS * EXPERTS, sizeof *load);

    for (int w = 0; w <= MOVES; w++)
        place[w] = calloc(n, sizeof **place);
    for (uint32_t e = 0; e < EXPERTS; e++)
        place[NONE][e] = (uint16_t)e;
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        double log_rate[EXPERTS], rate[EXPERTS], rows[EXPERTS];
        for (uint32_t e = 0; e < EXPERTS; e++)
            log_rate[e] = sc->skew * normal();
        for (uint32_t part = 0; part < PERIODS * PARTS; part++) {
            popularity(rate, log_rate, sc->pairs);
            for (uint32_t step = 0; step < STEPS && part >= PARTS; step++) {
                double floor_most = 0.0;
                for (uint32_t e = 0; e < EXPERTS; e++)
                    rows[e] = poisson(rate[e]);
                for (int w = 0; w <= MOVES; w++)
                    sum[w] += slowest(rows, place[w], sc->ranks, w == NONE ? bare.slots : s.slots);
                for (uint32_t r = 0; r < sc->ranks; r++)
                    floor_most = fmax(floor_most, poisson(sc->pairs / sc->ranks));
                sum[FLOOR] += floor_most * sc->ranks / sc->pairs;
                count += 1.0;
            }
            for (uint32_t b = 0; b < DS_BALANCE_RECORDS; b++) /* what was recorded of this part */
                for (uint32_t e = 0; e < EXPERTS; e++)
                    load[b * EXPERTS + e] = (float)poisson(rate[e] * 16.0);
            if (part % PARTS == PARTS - 1) {
                ds_balance_greedy(&s, load, place[GREEDY], scratch);
                ds_balance_plan(&s, load, place[PLAN], scratch);
            }
            if (part == PARTS - 1)
                memcpy(place[MOVES], place[PLAN], n * sizeof **place);
            else if (part >= PARTS)
                ds_balance_move(&s, load, place[MOVES], (uint32_t)n / 10, scratch);
            for (uint32_t e = 0; e < EXPERTS; e++)
                log_rate[e] = sc->stay * log_rate[e] + sqrt(1.0 - sc->stay * sc->stay) * sc->skew * normal();
        }
    }
    for (int w = 0; w < N_WAYS; w++)
        sum[w] /= count;
    printf("op=balance case=%s ranks=%u slots=%u pairs=%.0f skew=%.1f stay=%.3f none=%.3f greedy=%.3f ours=%.3f moves=%.3f floor=%.3f "
           "gap_closed_pct=%.0f gap_closed_moves_pct=%.0f\n",
           sc->name, s.ranks, s.slots, sc->pairs, sc->skew, sc->stay, sum[NONE], sum[GREEDY], sum[PLAN], sum[MOVES], sum[FLOOR],
           100.0 * (sum[GREEDY] - sum[PLAN]) / (sum[GREEDY] - sum[FLOOR]), 100.0 * (sum[GREEDY] - sum[MOVES]) / (sum[GREEDY] - sum[FLOOR]));
    for (int w = 0; w <= MOVES; w++)
        free(place[w]);
    free(load);
    free(scratch);
}

static void time_plans(uint32_t ranks, uint32_t spare)
{
    enum { PLANS = 40, REPS = 9 };
    ds_balance_shape s = { .experts = EXPERTS, .ranks = ranks, .slots = EXPERTS / ranks + spare, .records = DS_BALANCE_RECORDS };
    void *scratch = ds_calloc_aligned(1, ds_balance_scratch_bytes(&s));
    float *load = calloc((size_t)PLANS * DS_BALANCE_RECORDS * EXPERTS, sizeof *load);
    uint16_t *place = calloc((size_t)ranks * s.slots, sizeof *place);
    uint64_t best = UINT64_MAX;

    for (uint32_t l = 0; l < PLANS; l++)
        for (uint32_t e = 0; e < EXPERTS; e++) {
            double rate = 200.0 * exp(normal());
            for (uint32_t b = 0; b < DS_BALANCE_RECORDS; b++)
                load[((size_t)l * DS_BALANCE_RECORDS + b) * EXPERTS + e] = (float)poisson(rate);
        }
    for (int rep = 0; rep < REPS; rep++) {
        uint64_t begin = ds_now_ns(), took;
        for (uint32_t l = 0; l < PLANS; l++)
            ds_balance_plan(&s, load + (size_t)l * DS_BALANCE_RECORDS * EXPERTS, place, scratch);
        took = ds_now_ns() - begin;
        best = took < best ? took : best;
    }
    printf("op=balance_plan layers=%d experts=%d ranks=%u slots=%u reps=%d ms_best=%.2f\n", PLANS, EXPERTS, ranks, s.slots, REPS,
           (double)best / 1e6);
    free(load);
    free(place);
    free(scratch);
}

int main(void)
{
    static const scenario all[] = {
        { "prefill", 4, 4, 4 * 8192 * 6, 1.0, 1.0 },        { "prefill_drift", 4, 4, 4 * 8192 * 6, 1.0, 0.98 },
        { "prefill", 8, 4, 8 * 8192 * 6, 1.0, 1.0 },        { "decode", 64, 1, 64 * 128 * 6, 0.7, 1.0 },
        { "decode_drift", 64, 1, 64 * 128 * 6, 0.7, 0.98 }, { "decode_drift_fast", 64, 1, 64 * 128 * 6, 0.7, 0.9 },
        { "decode", 128, 1, 128 * 128 * 6, 0.7, 1.0 },
    };

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        run(&all[i]);
    time_plans(64, 1);
    time_plans(4, 4);
    return 0;
}
