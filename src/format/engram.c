#include "format/engram.h"

#include <assert.h>
#include <stdbool.h>

/* ---- primes ---- */

static bool is_prime(uint64_t n)
{
    if (n < 4)
        return n >= 2;
    if (n % 2 == 0 || n % 3 == 0)
        return false;
    for (uint64_t d = 5; d * d <= n; d += 6)
        if (n % d == 0 || n % (d + 2) == 0)
            return false;
    return true;
}

/* The search skips what was given out before, to any layer or order, so the columns take the primes from the start
 * on in increasing order. */
void ds_engram_primes(uint64_t *prime, uint64_t *offset, uint32_t n_layers, uint32_t columns, uint64_t search_start)
{
    uint64_t p = search_start;
    for (uint32_t l = 0; l < n_layers; l++) {
        uint64_t at = 0;
        for (uint32_t c = 0; c < columns; c++, p++) {
            while (!is_prime(p))
                p++;
            *prime++ = p;
            *offset++ = at;
            at += p;
        }
    }
}

/* ---- NumPy's default_rng: SeedSequence, PCG64 (XSL-RR 128/64), Lemire's bounded integers ---- */

typedef unsigned __int128 u128;

#define U128(hi, lo) ((u128)(hi) << 64 | (lo))

typedef struct {
    u128 state, inc;
} pcg64;

static uint32_t seq_hash(uint32_t value, uint32_t *mult)
{
    value ^= *mult;
    *mult *= 0x931e8875u;
    value *= *mult;
    return value ^ value >> 16;
}

static uint32_t seq_mix(uint32_t x, uint32_t y)
{
    uint32_t r = x * 0xca01f9ddu - y * 0x4973f715u;
    return r ^ r >> 16;
}

/* Entropy of one 32-bit word spread over a pool of four, then eight output words. */
static void seed_sequence(uint64_t out[4], uint32_t entropy)
{
    uint32_t pool[4], mult = 0x43b0d7e5u, words[8];

    for (int i = 0; i < 4; i++)
        pool[i] = seq_hash(i == 0 ? entropy : 0, &mult);
    for (int src = 0; src < 4; src++)
        for (int dst = 0; dst < 4; dst++)
            if (src != dst)
                pool[dst] = seq_mix(pool[dst], seq_hash(pool[src], &mult));
    mult = 0x8b51f9ddu;
    for (int i = 0; i < 8; i++) {
        uint32_t v = pool[i % 4] ^ mult;
        mult *= 0x58f38dedu;
        v *= mult;
        words[i] = v ^ v >> 16;
    }
    for (int i = 0; i < 4; i++)
        out[i] = (uint64_t)words[2 * i + 1] << 32 | words[2 * i];
}

static void pcg_step(pcg64 *g)
{
    g->state = g->state * U128(2549297995355413924ull, 4865540595714422341ull) + g->inc;
}

static void pcg_seed(pcg64 *g, uint32_t seed)
{
    uint64_t w[4];
    seed_sequence(w, seed);
    g->state = 0;
    g->inc = U128(w[2], w[3]) << 1 | 1;
    pcg_step(g);
    g->state += U128(w[0], w[1]);
    pcg_step(g);
}

static uint64_t pcg_next(pcg64 *g)
{
    pcg_step(g);
    uint64_t x = (uint64_t)(g->state >> 64) ^ (uint64_t)g->state;
    unsigned rot = (unsigned)(g->state >> 122);
    return x >> rot | x << (-rot & 63);
}

/* Uniform in [0, n), n >= 1. NumPy takes its 32-bit path below 2^32: halves of one 64-bit draw, low half first. */
typedef struct {
    pcg64 g;
    bool have_half;
    uint32_t half;
} bounded;

static uint32_t next32(bounded *b)
{
    if (b->have_half) {
        b->have_half = false;
        return b->half;
    }
    uint64_t x = pcg_next(&b->g);
    b->have_half = true;
    b->half = (uint32_t)(x >> 32);
    return (uint32_t)x;
}

static uint64_t draw_below(bounded *b, uint64_t n)
{
    if (n == 1)
        return 0;
    if (n - 1 <= UINT32_MAX) {
        if (n - 1 == UINT32_MAX)
            return next32(b);
        uint32_t m = (uint32_t)n;
        uint64_t p = (uint64_t)next32(b) * m;
        if ((uint32_t)p < m)
            for (uint32_t floor_ = (UINT32_MAX - (m - 1)) % m; (uint32_t)p < floor_;)
                p = (uint64_t)next32(b) * m;
        return p >> 32;
    }
    u128 p = (u128)pcg_next(&b->g) * n;
    if ((uint64_t)p < n)
        for (uint64_t floor_ = (UINT64_MAX - (n - 1)) % n; (uint64_t)p < floor_;)
            p = (u128)pcg_next(&b->g) * n;
    return (uint64_t)(p >> 64);
}

void ds_engram_multipliers(uint64_t *multiplier, uint32_t n, uint32_t layer, uint32_t compressed_vocab)
{
    bounded b = { .have_half = false };
    uint64_t half_bound = (uint64_t)INT64_MAX / compressed_vocab / 2;

    pcg_seed(&b.g, 10007u * layer);
    for (uint32_t i = 0; i < n; i++)
        multiplier[i] = 2 * draw_below(&b, half_bound ? half_bound : 1) + 1;
}

/* ---- hash ---- */

void ds_engram_init(ds_engram_hash *h, const ds_config *c, uint32_t table, int32_t pad_class)
{
    uint64_t prime[DS_CONFIG_MAX_ENGRAM_LAYERS * DS_CONFIG_MAX_ENGRAM_COLUMNS],
        offset[DS_CONFIG_MAX_ENGRAM_LAYERS * DS_CONFIG_MAX_ENGRAM_COLUMNS];

    assert(table < c->n_engram_layers);
    *h = (ds_engram_hash){
        .columns = ds_config_engram_columns(c),
        .n_heads = c->engram_n_heads,
        .max_ngram = c->engram_max_ngram_size,
        .pad_class = pad_class,
    };
    ds_engram_primes(prime, offset, table + 1, h->columns, c->engram_vocab_size);
    for (uint32_t i = 0; i < h->columns; i++) {
        h->prime[i] = prime[table * h->columns + i];
        h->offset[i] = offset[table * h->columns + i];
        h->rows += h->prime[i];
    }
    ds_engram_multipliers(h->multiplier, h->max_ngram, c->engram_layer_ids[table], c->engram_compressed_vocab_size);
}

void ds_engram_ids(uint64_t *ids, const ds_engram_hash *h, const int32_t *history)
{
    bool alive = true;
    uint64_t x = 0;
    uint32_t col = 0;

    for (uint32_t s = 0; s < h->max_ngram; s++) {
        alive = alive && history[s] >= 0;
        uint64_t t = (uint64_t)(alive ? history[s] : h->pad_class);
        x = s == 0 ? t * h->multiplier[0] : x ^ (t * h->multiplier[s]);
        if (s == 0)
            continue;
        for (uint32_t k = 0; k < h->n_heads; k++, col++)
            ids[col] = x % h->prime[col] + h->offset[col];
    }
}
