/* What the numbers of a random checkpoint are. */
#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "format/synth.h"

/* Values are mean + std * z; from element `tail` on std is tail_std. */
typedef struct {
    float mean, std, tail_std;
    uint64_t tail;
    bool hc_base;
} style;

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && memcmp(s + n - m, end, m) == 0;
}

static style style_of(const ds_tensor_want *w, const ds_config *c)
{
    float fan = 1.0f / sqrtf((float)(w->ndim == 2 ? w->shape[1] : w->shape[0]));
    float quiet = 0.25f / sqrtf(2.0f * (float)c->num_hidden_layers); /* what sublayers add stays small beside the streams */
    style s = { .std = fan, .tail = UINT64_MAX };

    if (w->norm) {
        s.mean = strstr(w->name, "compressor") ? 0.5f : 1.0f;
        s.std = 0.1f * s.mean;
        return s;
    }
    switch ((ds_tensor_kind)w->kind) {
    case DS_KIND_HC:
        if (ends_with(w->name, "_base")) {
            s.std = 0.3f;
            s.hc_base = true;
        } else if (ends_with(w->name, "_scale")) {
            s.mean = 0.3f;
            s.std = 0.06f;
        }
        return s;
    case DS_KIND_ATTENTION:
        if (ends_with(w->name, "attn_sink"))
            s.std = 1.0f;
        else if (ends_with(w->name, "wo_b.weight"))
            s.std = fan * quiet;
        return s;
    case DS_KIND_ROUTER:
        if (w->ndim == 1)
            s.std = 0.1f;
        return s;
    case DS_KIND_EXPERT:
    case DS_KIND_SHARED:
        if (ends_with(w->name, ".w2.weight"))
            s.std = fan * quiet;
        return s;
    case DS_KIND_ENGRAM_TABLE:
        s.std = 1.0f;
        return s;
    case DS_KIND_ENGRAM:
        if (ends_with(w->name, "_weight")) {
            s.mean = 1.0f;
            s.std = 0.2f;
        } else {
            s.tail = (uint64_t)c->hc_mult * c->hidden_size * w->shape[1]; /* keys first, then the value */
            s.tail_std = fan * quiet;
        }
        return s;
    case DS_KIND_EMBED:
        if (!ends_with(w->name, "head.weight"))
            s.std = 1.0f;
        return s;
    case DS_KIND_DRAFT:
        if (ends_with(w->name, "markov_head.embed.weight"))
            s.std = 1.0f;
        else if (ends_with(w->name, "markov_head.head.weight"))
            s.std = 0.3f * fan;
        return s;
    case DS_KIND_VISION:
        if (w->ndim == 1)
            s.std = 0.1f;
        return s;
    default:
        return s;
    }
}

/* FNV-1a: the stream of a tensor depends on its name alone. */
static uint64_t stream_of(const char *name)
{
    uint64_t h = 0xcbf29ce484222325ull;
    for (; *name; name++)
        h = (h ^ (unsigned char)*name) * 0x100000001b3ull;
    return h;
}

/* Nearly normal, mean 0, variance 1, |z| < 3.47: the sum of four 16-bit numbers. Exact integers, so the same on
 * every machine. */
static float near_normal(uint32_t a, uint32_t b)
{
    int32_t sum = (int32_t)((a & 0xffff) + (a >> 16) + (b & 0xffff) + (b >> 16));
    return (float)(sum - 131070) * (1.0f / 37837.227f);
}

void ds_synth_values(float *out, const ds_tensor_want *w, const ds_config *c, uint64_t seed, uint64_t first, size_t n)
{
    style s = style_of(w, c);
    uint64_t stream = stream_of(w->name);
    const uint32_t key[2] = { (uint32_t)seed, (uint32_t)(seed >> 32) };

    for (size_t i = 0; i < n; i += 2) {
        uint64_t at = first + i, counter = at / 2;
        uint32_t r[4];
        const uint32_t block[4] = { (uint32_t)counter, (uint32_t)(counter >> 32), (uint32_t)stream, (uint32_t)(stream >> 32) };
        ds_philox(r, key, block);
        out[i] = s.mean + (at < s.tail ? s.std : s.tail_std) * near_normal(r[0], r[1]);
        if (i + 1 < n)
            out[i + 1] = s.mean + (at + 1 < s.tail ? s.std : s.tail_std) * near_normal(r[2], r[3]);
    }
    if (!s.hc_base)
        return;
    /* Row 0 of the input mix leads, and the mixing matrix leans to the identity (section 3.16). */
    uint32_t m = c->hc_mult;
    for (size_t i = 0; i < n; i++) {
        uint64_t at = first + i;
        if (at == 0)
            out[i] += 1.0f;
        else if (at >= 2 * m && (at - 2 * m) / m == (at - 2 * m) % m)
            out[i] += 2.0f;
    }
}
