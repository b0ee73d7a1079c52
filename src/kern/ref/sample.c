/* Drawing tokens: logits of a position -> one token, and which drafts stand (see ds_op_sample for the order of
 * operations). */
#include "kern/sample.h"

#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "ref_internal.h"

enum { DRAW_STREAM = 0 };

/* Logits are binned by their distance from the maximum, so that top-p sorts only the bins that it can reach. */
enum { N_BINS = 1024, BINS_PER_NAT = 16 };

int32_t ds_argmax(const float *logits, uint32_t vocab)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < vocab; i++)
        if (logits[i] > logits[best])
            best = i;
    return (ds_token)best;
}

/* Forbids what is held back if that leaves anything. */
static void hold_back(const ds_draw *s, uint32_t vocab, float *logit)
{
    float max = -INFINITY;

    for (uint32_t i = 0; i < vocab; i++) {
        bool held = false;
        for (size_t k = 0; k < s->n_stop && logit[i] > max; k++)
            held = held || s->stop[k] == (ds_token)i;
        if (logit[i] > max && !held)
            max = logit[i];
    }
    for (size_t k = 0; k < s->n_stop && max != -INFINITY; k++)
        logit[s->stop[k]] = -INFINITY;
}

/* Four logits as a mask's bits have them, -inf where they are 0. The bits are as good as random: nothing branches on
 * them. */
static inline void four(float *out, const float *logits, uint32_t bits)
{
    static const uint32_t lanes[16][4] = {
#define LANES(n) { (n)&1 ? UINT32_MAX : 0, (n)&2 ? UINT32_MAX : 0, (n)&4 ? UINT32_MAX : 0, (n)&8 ? UINT32_MAX : 0 }
        LANES(0), LANES(1), LANES(2),  LANES(3),  LANES(4),  LANES(5),  LANES(6),  LANES(7),
        LANES(8), LANES(9), LANES(10), LANES(11), LANES(12), LANES(13), LANES(14), LANES(15),
#undef LANES
    };
    static const uint32_t minus_inf = 0xff800000u;
    uint32_t x[4];

    memcpy(x, logits, sizeof x);
    for (int i = 0; i < 4; i++)
        x[i] = (x[i] & lanes[bits][i]) | (minus_inf & ~lanes[bits][i]);
    memcpy(out, x, sizeof x);
}

static void forbid(uint32_t vocab, float *logit, const uint32_t *allowed)
{
    uint32_t at = 0;

    for (; at + 32 <= vocab; at += 32)
        for (uint32_t i = 0; i < 32; i += 4)
            four(logit + at + i, logit + at + i, allowed[at / 32] >> i & 15);
    for (; at < vocab; at++)
        if (!(allowed[at / 32] >> at % 32 & 1))
            logit[at] = -INFINITY;
}

/* The largest allowed logit, of equal ones the first. False: nothing is allowed. */
static bool best_allowed(uint32_t vocab, const float *logits, const uint32_t *allowed, ds_token *token)
{
    float max[4] = { -INFINITY, -INFINITY, -INFINITY, -INFINITY };
    uint32_t first = vocab, n_words = (vocab + 31) / 32;

    for (uint32_t at = 0; at + 32 <= vocab; at += 32)
        for (uint32_t i = 0; i < 32 && allowed[at / 32]; i += 4) {
            float x[4];
            four(x, logits + at + i, allowed[at / 32] >> i & 15);
            for (int k = 0; k < 4; k++)
                max[k] = x[k] > max[k] ? x[k] : max[k];
        }
    for (uint32_t at = vocab / 32 * 32; at < vocab; at++)
        if (allowed[at / 32] >> at % 32 & 1 && logits[at] > max[0])
            max[0] = logits[at];
    for (int k = 1; k < 4; k++)
        max[0] = max[k] > max[0] ? max[k] : max[0];
    for (uint32_t w = 0; w < n_words; w++)
        for (uint32_t word = allowed[w]; word; word &= word - 1) {
            uint32_t i = w * 32 + (uint32_t)__builtin_ctz(word);
            if (i >= vocab)
                break;
            first = first == vocab ? i : first;
            if (logits[i] == max[0]) {
                *token = (ds_token)i;
                return true;
            }
        }
    *token = (ds_token)first; /* what is allowed isn't a number */
    return first < vocab;
}

/* Penalties, bias, mask and what is held back into tmp->logit; forbidden tokens are -inf. */
static void adjust(const ds_draw *s, uint32_t vocab, ds_draw_scratch *tmp, const float *logits, const uint32_t *allowed, uint64_t index)
{
    memcpy(tmp->logit, logits, vocab * sizeof *logits);
    for (uint32_t i = 0; s->n_output && i < vocab; i++) {
        uint32_t n = s->n_output[i];
        if (s->in_prompt && (n || s->in_prompt[i])) {
            double l = tmp->logit[i];
            tmp->logit[i] = (float)(l > 0.0 ? l / s->repetition_penalty : l * s->repetition_penalty);
        }
        if (n)
            tmp->logit[i] -= (float)(s->presence_penalty + s->frequency_penalty * n);
    }
    for (size_t i = 0; i < s->n_bias; i++) {
        if (s->bias[i].bias <= -100.0f)
            tmp->logit[s->bias[i].id] = -INFINITY;
        else
            tmp->logit[s->bias[i].id] += s->bias[i].bias;
    }
    if (allowed)
        forbid(vocab, tmp->logit, allowed);
    if (index < s->stop_upto)
        hold_back(s, vocab, tmp->logit);
}

static bool ranks_before(ds_draw_cand x, ds_draw_cand y)
{
    return x.logit > y.logit || (x.logit == y.logit && x.id < y.id);
}

static int by_rank(const void *a, const void *b)
{
    return ranks_before(*(const ds_draw_cand *)a, *(const ds_draw_cand *)b) ? -1 : 1; /* ids differ, so nothing is equal */
}

static void swap(ds_draw_cand *a, ds_draw_cand *b)
{
    ds_draw_cand t = *a;
    *a = *b;
    *b = t;
}

/* Moves the k best of c[0..n) to the front, in any order. Ranks are unique, so is the set. Expected O(n). */
static void select_best(ds_draw_cand *c, size_t n, size_t k)
{
    size_t lo = 0, hi = n;
    while (hi - lo > 1) {
        swap(&c[lo + (hi - lo) / 2], &c[hi - 1]); /* pivot: the middle, so that sorted input isn't the worst case */
        ds_draw_cand pivot = c[hi - 1];
        size_t at = lo;
        for (size_t i = lo; i < hi - 1; i++)
            if (ranks_before(c[i], pivot))
                swap(&c[i], &c[at++]);
        swap(&c[at], &c[hi - 1]); /* c[lo..at) rank before c[at], the rest after */
        if (k == at || k == at + 1)
            return;
        if (k < at)
            hi = at;
        else
            lo = at + 1;
    }
}

static size_t bin_of(float logit)
{
    double d = -(double)logit * BINS_PER_NAT;
    return d >= N_BINS - 1 ? N_BINS - 1 : (size_t)d;
}

/* Keeps the smallest set, best first, whose probability reaches p of the total; afterwards c[0..result) is sorted. */
static size_t keep_top_p(ds_draw_cand *c, size_t n, double p)
{
    double mass[N_BINS] = { 0 }, total = 0.0;
    for (size_t i = 0; i < n; i++)
        mass[bin_of(c[i].logit)] += exp(c[i].logit);
    for (size_t b = 0; b < N_BINS; b++)
        total += mass[b];

    size_t last = 0; /* the margin keeps a member from being lost to the rounding of the sums */
    for (double sum = mass[0]; last < N_BINS - 1 && sum <= p * total * (1.0 + 1e-12); sum += mass[last])
        last++;
    size_t m = 0;
    for (size_t i = 0; i < n; i++)
        if (bin_of(c[i].logit) <= last)
            swap(&c[m++], &c[i]);
    qsort(c, m, sizeof *c, by_rank);
    double sum = 0.0;
    for (size_t i = 0; i < m; i++) {
        sum += exp(c[i].logit);
        if (sum >= p * total)
            return i + 1;
    }
    return m;
}

/* The candidates that survive every filter; tmp->prob isn't normalised, *total is its sum. 0 when none is allowed.
 * Temperature > 0. */
static size_t filter(const ds_draw *s, uint32_t vocab, ds_draw_scratch *tmp, double *total)
{
    float max = tmp->logit[ds_argmax(tmp->logit, vocab)];
    size_t n = 0, m = 0;

    *total = 0.0;
    if (max == -INFINITY)
        return 0;
    for (uint32_t i = 0; i < vocab; i++) { /* without a branch, as above; n <= i */
        tmp->cands[n].id = i;
        n += tmp->logit[i] != -INFINITY;
    }
    for (size_t i = 0; i < n; i++)
        tmp->cands[i].logit = (float)(((double)tmp->logit[tmp->cands[i].id] - max) / s->temperature);
    if (s->top_k && s->top_k < n) {
        select_best(tmp->cands, n, s->top_k);
        n = s->top_k;
        qsort(tmp->cands, n, sizeof *tmp->cands, by_rank); /* the draw walks this order: it may not depend on the selection's */
    }
    if (s->top_p < 1.0)
        n = keep_top_p(tmp->cands, n, s->top_p);
    for (size_t i = 0; i < n; i++) {
        double p = exp(tmp->cands[i].logit); /* the best has 1 */
        if (p < s->min_p)
            continue;
        tmp->cands[m] = tmp->cands[i];
        tmp->prob[m++] = p;
        *total += p;
    }
    return m;
}

bool ds_draw_is_argmax(const ds_draw *s, uint64_t index)
{
    return s->temperature == 0.0 && !s->n_output && !s->n_bias && index >= s->stop_upto;
}

bool ds_draw_token(const ds_draw *s, uint32_t vocab, ds_draw_scratch *tmp, const float *logits, const uint32_t *allowed, uint64_t index,
                   ds_token *token)
{
    if (ds_draw_is_argmax(s, index)) {
        if (allowed)
            return best_allowed(vocab, logits, allowed, token);
        *token = ds_argmax(logits, vocab);
        return true;
    }
    adjust(s, vocab, tmp, logits, allowed, index);
    if (s->temperature == 0.0) {
        *token = ds_argmax(tmp->logit, vocab);
        return tmp->logit[*token] != -INFINITY;
    }
    double total;
    size_t n = filter(s, vocab, tmp, &total), i = 0;
    if (n == 0)
        return false;
    for (double at = ds_rng_unit(s->seed, DRAW_STREAM, index) * total; i + 1 < n; i++) {
        at -= tmp->prob[i];
        if (at < 0.0)
            break;
    }
    *token = (ds_token)tmp->cands[i].id;
    return true;
}

bool ds_draw_probs(const ds_draw *s, uint32_t vocab, ds_draw_scratch *tmp, const float *logits, const uint32_t *allowed, uint64_t index,
                   float *probs)
{
    adjust(s, vocab, tmp, logits, allowed, index);
    memset(probs, 0, vocab * sizeof *probs);
    if (s->temperature == 0.0) {
        ds_token best = ds_argmax(tmp->logit, vocab);
        if (tmp->logit[best] == -INFINITY)
            return false;
        probs[best] = 1.0f;
        return true;
    }
    double total;
    size_t n = filter(s, vocab, tmp, &total);
    for (size_t i = 0; i < n; i++)
        probs[tmp->cands[i].id] = (float)(tmp->prob[i] / total);
    return n > 0;
}

void ds_logprobs(const float *logits, uint32_t vocab, ds_token token, float *chosen, ds_logprob *top, uint32_t n_top)
{
    float max = logits[ds_argmax(logits, vocab)];
    double sum = 0.0;
    for (uint32_t i = 0; i < vocab; i++)
        sum += exp((double)logits[i] - max);
    double lse = (double)max + log(sum);
    uint32_t n = 0;

    *chosen = (float)(logits[token] - lse);
    for (uint32_t i = 0; n_top && i < vocab; i++) { /* insertion into a short sorted list */
        if (n == n_top && logits[i] <= top[n - 1].logprob)
            continue;
        uint32_t at = n < n_top ? n++ : n - 1;
        for (; at > 0 && top[at - 1].logprob < logits[i]; at--)
            top[at] = top[at - 1];
        top[at] = (ds_logprob){ (ds_token)i, logits[i] };
    }
    for (uint32_t i = 0; i < n_top; i++)
        top[i] = i < n ? (ds_logprob){ top[i].id, (float)(top[i].logprob - lse) } : (ds_logprob){ -1, -INFINITY };
}

/* ---- the op ------------------------------------------------------------------------------------------------------ */

typedef struct {
    const ds_op_sample *a;
    unsigned char *scratch; /* ds_sample_scratch(vocab) bytes for each member */
} job;

static size_t column(uint32_t vocab, size_t size)
{
    return (vocab * size + 63) & ~(size_t)63;
}

size_t ds_sample_scratch(uint32_t vocab)
{
    return column(vocab, sizeof(float)) + column(vocab, sizeof(ds_draw_cand)) + column(vocab, sizeof(double));
}

static ds_draw_scratch scratch_at(unsigned char *p, uint32_t vocab)
{
    ds_draw_scratch tmp = { .logit = (void *)p };

    p += column(vocab, sizeof(float));
    tmp.cands = (void *)p;
    tmp.prob = (void *)(p + column(vocab, sizeof(ds_draw_cand)));
    return tmp;
}

static bool stops(const ds_draw *s, ds_token token)
{
    for (uint32_t i = 0; i < s->n_stop; i++)
        if (s->stop[i] == token)
            return true;
    return false;
}

static void draft_of(const ds_op_sample *a, uint32_t s, ds_draw_scratch *tmp)
{
    const ds_sample_rows *q = &a->seq[s];
    const float *logits = a->logits + q->row * a->ld;

    if (!ds_draw_token(&q->how, a->vocab, tmp, logits, NULL, q->index + a->later, &a->id[s]))
        a->id[s] = ds_argmax(logits, a->vocab);
}

static void draws_of(const ds_op_sample *a, uint32_t s, ds_draw_scratch *tmp)
{
    const ds_sample_rows *q = &a->seq[s];
    ds_drawn *out = &a->out[s];

    *out = (ds_drawn){ 0 };
    for (uint32_t i = 0; i < q->n; i++) {
        const float *logits = a->logits + (q->row + i) * a->ld;
        const uint32_t *allowed = q->allowed ? q->allowed + i * q->allowed_ld : NULL;
        ds_token token;
        if (!ds_draw_token(&q->how, a->vocab, tmp, logits, allowed, q->index + a->later + i, &token)) {
            out->none = true;
            return;
        }
        if (q->logprobs)
            ds_logprobs(logits, a->vocab, token, &out->logprob[i], a->top + ((size_t)s * DS_MAX_DRAWS + i) * DS_MAX_TOP, q->n_top);
        out->token[i] = token;
        out->n++;
        out->stopped = stops(&q->how, token);
        if (!out->stopped && q->how.n_output)
            q->how.n_output[token]++;
        if (out->stopped || (i + 1 < q->n && token != q->draft[i]))
            return;
    }
}

static void sample_seqs(void *arg, size_t begin, size_t end, uint32_t member)
{
    const job *j = arg;
    ds_draw_scratch tmp = scratch_at(j->scratch + member * ds_sample_scratch(j->a->vocab), j->a->vocab);

    for (size_t s = begin; s < end; s++) {
        if (j->a->id)
            draft_of(j->a, (uint32_t)s, &tmp);
        else
            draws_of(j->a, (uint32_t)s, &tmp);
    }
}

void ds_sample_ref(ds_exec *e, const ds_op_sample *a)
{
    size_t mark = ds_arena_mark(e->scratch);

    /* relaxed: ops in front are done */
    if (atomic_load_explicit(&e->fault->kind, memory_order_relaxed) != DS_FAULT_NONE) {
        for (uint32_t s = 0; s < a->n_seqs && !a->id; s++)
            a->out[s] = (ds_drawn){ 0 };
        return;
    }
    ds_exec_for(e, a->n_seqs, 1, sample_seqs, &(job){ a, ds_exec_scratch(e, ds_exec_members(e) * ds_sample_scratch(a->vocab)) });
    ds_arena_rewind(e->scratch, mark);
}
