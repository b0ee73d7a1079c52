/* Rotary tables (spec 3.6, 3.15): frequencies in f64, rounded to f32; the angle is an f32 product; its cosine and
 * sine are correct to f32. */
#include <math.h>

#include "model/model_internal.h"

static const double pi = 3.14159265358979323846;

static double yarn_corner(double rd, double length, double rotations, double theta)
{
    return rd * log(length / (2.0 * pi * rotations)) / (2.0 * log(theta));
}

static float frequency(const ds_config *c, ds_rope_kind kind, uint32_t i)
{
    double rd = c->qk_rope_head_dim;
    double theta = kind == DS_ROPE_COMPRESS ? c->compress_rope_theta : c->rope_theta;
    double f = pow(theta, -2.0 * i / rd);

    if (kind == DS_ROPE_COMPRESS && c->yarn && c->rope_original_max_position_embeddings) {
        double length = c->rope_original_max_position_embeddings;
        double low = fmax(floor(yarn_corner(rd, length, c->rope_beta_fast, theta)), 0.0);
        double high = fmin(ceil(yarn_corner(rd, length, c->rope_beta_slow, theta)), rd - 1.0);
        double ramp = fmin(fmax((i - low) / fmax(high - low, 1e-3), 0.0), 1.0);
        f = f * (1.0 - ramp) + f / c->rope_factor * ramp;
    }
    return (float)f;
}

typedef struct {
    float *cs;
    const float *f;
    uint32_t half, first;
} fill_job;

static void fill(void *arg, size_t begin, size_t end, uint32_t member)
{
    const fill_job *j = arg;

    (void)member;
    for (size_t p = begin; p < end; p++) {
        float *cs = j->cs + p * j->half * 2;
        for (uint32_t i = 0; i < j->half; i++) {
            float angle = (float)(j->first + p) * j->f[i];
            cs[2 * i] = (float)cos((double)angle);
            cs[2 * i + 1] = (float)sin((double)angle);
        }
    }
}

void ds_rope_fill(float *cs, const ds_config *c, ds_rope_kind kind, uint32_t first, uint32_t positions, ds_exec *e)
{
    float f[2048]; /* config.h bounds qk_rope_head_dim at 4096 */
    fill_job j = { cs, f, c->qk_rope_head_dim / 2, first };

    for (uint32_t i = 0; i < j.half; i++)
        f[i] = frequency(c, kind, i);
    ds_exec_for(e, positions, 64, fill, &j);
}

void ds_rope2d_fill(float *cs, uint32_t dim, double theta, uint32_t positions)
{
    uint32_t quarter = dim / 4;

    for (uint32_t p = 0; p < positions; p++)
        for (uint32_t i = 0; i < quarter; i++) {
            float f = (float)pow(theta, -2.0 * i / (dim / 2.0));
            float angle = (float)p * f;
            *cs++ = (float)cos((double)angle);
            *cs++ = (float)sin((double)angle);
        }
}
