#include "policy/decode.h"

#include "base/none.h"

/* Ranks within so much of the least full count as alike: two seats of 64. Less, and the kind of shortage would hardly
 * ever decide; more, and it would undo the balance. */
static const double alike = 1.0 / 32;

typedef struct {
    double full; /* with the request: the largest of its measures */
    double fit;  /* of what the request needs, how much of it is taken: less is better */
} score;

static bool has_room(const ds_decode_rank *r, const ds_decode_ask *ask)
{
    return r->ready && r->requests < r->max_requests && r->kv_tokens <= r->max_kv_tokens &&
           ask->kv_tokens <= r->max_kv_tokens - r->kv_tokens && r->max_kv_tokens > 0;
}

static score of(const ds_decode_rank *r, const ds_decode_ask *ask)
{
    double seat = 1.0 / (double)r->max_requests, kv = (double)ask->kv_tokens / (double)r->max_kv_tokens;
    double seats = (double)r->requests * seat, caches = (double)r->kv_tokens / (double)r->max_kv_tokens;
    score s = { seats + seat > caches + kv ? seats + seat : caches + kv, seats * seat + caches * kv };

    if (r->max_wait_us > 0) {
        double own = (double)ask->prefill_us / (double)r->max_wait_us, wait = (double)r->prefill_us / (double)r->max_wait_us;
        if (wait + own > s.full)
            s.full = wait + own;
        s.fit += wait * own;
    }
    return s;
}

/* The same for a rank and a seed wherever its row stands. */
static uint64_t drawn(uint64_t seed, uint64_t id)
{
    uint64_t x = id * UINT64_C(0x9e3779b97f4a7c15) ^ seed;

    x = (x ^ x >> 32) * UINT64_C(0xd6e8feb86659fd93);
    x = (x ^ x >> 32) * UINT64_C(0xd6e8feb86659fd93);
    return x ^ x >> 32;
}

/* The candidates with the smallest draws, in `rows`; how many. */
static uint32_t draw(const ds_decode_rank *ranks, uint32_t n, const ds_decode_ask *ask, uint32_t rows[DS_DECODE_DRAWN])
{
    uint64_t key[DS_DECODE_DRAWN];
    uint32_t have = 0;

    for (uint32_t i = 0; i < n; i++) {
        uint64_t k = drawn(ask->seed, ranks[i].id);
        uint32_t at;
        if ((have == DS_DECODE_DRAWN && k > key[have - 1]) || !has_room(&ranks[i], ask))
            continue;
        for (at = have < DS_DECODE_DRAWN ? have++ : have - 1; at > 0; at--) {
            if (key[at - 1] < k || (key[at - 1] == k && ranks[rows[at - 1]].id < ranks[i].id))
                break;
            key[at] = key[at - 1];
            rows[at] = rows[at - 1];
        }
        key[at] = k;
        rows[at] = i;
    }
    return have;
}

uint32_t ds_decode_choose(const ds_decode_rank *ranks, uint32_t n, const ds_decode_ask *ask)
{
    uint32_t rows[DS_DECODE_ALL], m = 0, best = DS_NONE;
    double least = 0.0;
    score s[DS_DECODE_ALL], best_score = { 0 };

    if (n > DS_DECODE_ALL)
        m = draw(ranks, n, ask, rows);
    else
        for (uint32_t i = 0; i < n; i++)
            if (has_room(&ranks[i], ask))
                rows[m++] = i;
    for (uint32_t i = 0; i < m; i++) {
        s[i] = of(&ranks[rows[i]], ask);
        if (i == 0 || s[i].full < least)
            least = s[i].full;
    }
    for (uint32_t i = 0; i < m; i++) {
        uint64_t id = ranks[rows[i]].id;
        if (s[i].full > least + alike)
            continue;
        if (best != DS_NONE) {
            if (s[i].fit > best_score.fit)
                continue;
            if (s[i].fit == best_score.fit && (s[i].full > best_score.full || (s[i].full == best_score.full && id > ranks[best].id)))
                continue;
        }
        best = rows[i];
        best_score = s[i];
    }
    return best;
}
