/* Drawing tokens (ds_op_sample).
 *
 * All rows are drawn from at once, a block of 1,024 threads each, and a second kernel keeps what stands: a row behind
 * a draft counts only if the draft was drawn, so the counts in front of it are those of the output and of the drafts
 * before it. At most BLOCKS blocks run, each with adjusted logits of one row in scratch.
 *
 * Probabilities, relative to the likeliest token's, are whole multiples of 2^-shift (shift >= 30, 45 for 129,280
 * tokens): sums are exact whatever their order, so a draw is a pure function as the op promises, and the token at a
 * place of the cumulated distribution is found without sorting. It is that of ref unless their roundings lie on both
 * sides of a border. Tokens less likely than 2^-shift aren't drawn.
 *
 * Passes of one SM over a row in the L2: 1 for a greedy draw, 5 with temperature, 3 more with top-k and top-p each. */
#include "common.cuh"

enum { THREADS = 1024, BLOCKS = 128, BIAS_TILE = 1024 };

/* Candidates are looked for by value: bins of 1/16 nat, then 8 bits at a time of the values in one bin. */
enum { N_BINS = 1024, BINS_PER_NAT = 16, LIST = 4096, DIGITS = 256 };

typedef unsigned long long mass_t;

typedef struct {
    best_place best[33];
    union {
        ds_token_bias bias[BIAS_TILE];
        struct {
            mass_t bin[N_BINS], digit[DIGITS];
            uint32_t list[LIST];
        };
    };
    double part[33];
    uint32_t n_list, where, low, high, ties;
    mass_t left;
} shared_t;

/* A set of candidates: those with a larger key than `key`, and of that key the ids up to `id`. */
typedef struct {
    uint32_t key;
    uint32_t id;
} edge_t;

/* ---- sums, in a fixed order ---- */

static __device__ double block_total(double v, double *part)
{
#pragma unroll
    for (int o = 16; o; o >>= 1)
        v += __shfl_xor_sync(0xffffffffu, v, o);
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = v;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < THREADS / 32; w++)
            v += part[w];
        part[32] = v;
    }
    __syncthreads();
    return part[32];
}

static __device__ best_place largest(const float *x, uint32_t n, best_place *part)
{
    best_place p = { 0.0, -1 };

    for (uint32_t i = threadIdx.x; i < n; i += THREADS)
        p = better(p, { x[i], (int)i });
    return block_best(p, part);
}

/* ---- random numbers, as base/rng.c ---- */

static __device__ double unit(uint64_t seed, uint64_t index)
{
    uint32_t c0 = (uint32_t)index, c1 = (uint32_t)(index >> 32), c2 = 0, c3 = 0, k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);

    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xd2511f53u * c0, b = (uint64_t)0xcd9e8d57u * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)b;
        c3 = (uint32_t)a;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    return (double)(((uint64_t)c1 << 32 | c0) >> 11) * 0x1p-53;
}

/* ---- what may be drawn ---- */

static __device__ bool listed(const ds_token *list, uint32_t n, ds_token id)
{
    for (uint32_t k = 0; k < n; k++)
        if (list[k] == id)
            return true;
    return false;
}

/* Times that token `id` stands in front of row i: in the output and among the drafts before. */
static __device__ uint32_t times(const ds_sample_rows &q, uint32_t i, uint32_t id)
{
    uint32_t n = q.how.n_output[id];

    for (uint32_t k = 0; k < i; k++)
        n += q.draft[k] == (ds_token)id;
    return n;
}

/* Entries of one token stay in their order: the first one's thread does all of them. */
static __device__ void add_bias(const ds_draw &s, float *l, ds_token_bias *tile)
{
    for (uint32_t begin = 0; begin < s.n_bias; begin += BIAS_TILE) {
        uint32_t n = min(s.n_bias - begin, (uint32_t)BIAS_TILE), t = threadIdx.x;
        __syncthreads();
        if (t < n)
            tile[t] = s.bias[begin + t];
        __syncthreads();
        bool first = t < n;
        for (uint32_t k = 0; first && k < t; k++)
            first = tile[k].id != tile[t].id;
        for (uint32_t k = t; first && k < n; k++)
            if (tile[k].id == tile[t].id)
                l[tile[t].id] = tile[k].bias <= -100.0f ? -CUDART_INF_F : l[tile[t].id] + tile[k].bias;
    }
    __syncthreads();
}

/* Penalties, bias, mask and what is held back, of row i; forbidden tokens are -inf. */
static __device__ void adjust(const ds_sample_rows &q, uint32_t i, const float *logits, uint32_t vocab, bool proposal, uint64_t index, float *l,
                              shared_t *sh)
{
    const ds_draw &s = q.how;
    const uint32_t *allowed = proposal || !q.allowed ? NULL : q.allowed + i * q.allowed_ld;

    for (uint32_t t = threadIdx.x; t < vocab; t += THREADS) {
        float v = logits[t];
        if (s.n_output) {
            uint32_t n = times(q, i, t);
            if (s.in_prompt && (n || s.in_prompt[t])) {
                double d = v;
                v = (float)(d > 0.0 ? d / s.repetition_penalty : d * s.repetition_penalty);
            }
            if (n)
                v -= (float)(s.presence_penalty + s.frequency_penalty * n);
        }
        l[t] = v;
    }
    if (s.n_bias)
        add_bias(s, l, sh->bias);
    if (allowed) {
        __syncthreads();
        for (uint32_t t = threadIdx.x; t < vocab; t += THREADS)
            if (!(allowed[t / 32] >> (t % 32) & 1))
                l[t] = -CUDART_INF_F;
    }
    if (index < s.stop_upto) { /* unless nothing else is allowed */
        bool other = false;
        __syncthreads();
        for (uint32_t t = threadIdx.x; t < vocab && !other; t += THREADS)
            other = l[t] > -CUDART_INF_F && !listed(s.stop, s.n_stop, (ds_token)t);
        if (__syncthreads_or(other))
            for (uint32_t k = threadIdx.x; k < s.n_stop; k += THREADS)
                l[s.stop[k]] = -CUDART_INF_F;
    }
    __syncthreads();
}

/* ---- candidates ---- In scratch stands for each token its logit over the temperature, relative to the largest: at
 * most 0, -inf for what is forbidden. The key orders them. */

static __device__ uint32_t key_of(float c)
{
    return ~bits_of(c == 0.0f ? -0.0f : c); /* c <= 0: bits grow as c falls */
}

static __device__ uint32_t bin_of(float c)
{
    return (uint32_t)fmin(-(double)c * BINS_PER_NAT, (double)(N_BINS - 1));
}

static __device__ mass_t mass_of(float c, int shift)
{
    return (mass_t)__double2ll_rn(scalbn(exp((double)c), shift));
}

static __device__ bool inside(edge_t e, float c, uint32_t id)
{
    uint32_t key = key_of(c);
    return c > -CUDART_INF_F && (key > e.key || (key == e.key && id <= e.id));
}

/* sh->where: the slot of h[0..n) where the running sum goes beyond `left`; sh->left: what of that falls into the slot.
 * The sum of all is larger than `left`, n a multiple of 32. By one warp: each lane has a piece. */
static __device__ void slot_of(const mass_t *h, uint32_t n, mass_t left, shared_t *sh)
{
    uint32_t lane = threadIdx.x, each = n / 32, i = lane * each;
    mass_t mine = 0, upto;

    for (uint32_t k = 0; k < each; k++)
        mine += h[i + k];
    upto = mine;
#pragma unroll
    for (int o = 1; o < 32; o *= 2) {
        mass_t below = __shfl_up_sync(0xffffffffu, upto, o);
        upto += lane >= o ? below : 0;
    }
    if (upto <= left || upto - mine > left)
        return;
    left -= upto - mine;
    while (h[i] <= left)
        left -= h[i++];
    sh->where = i;
    sh->left = left;
}

/* Where, in rank order (larger first, then lower id), the running sum of weights goes beyond `left`: the set that ends
 * there. Weights are masses, or 1 each with shift < 0. Only the set within `e`. */
static __device__ edge_t find(const float *c, uint32_t vocab, edge_t e, int shift, mass_t left, shared_t *sh)
{
    uint32_t t = threadIdx.x, prefix = 0;

    __syncthreads();
    for (uint32_t b = t; b < N_BINS; b += THREADS)
        sh->bin[b] = 0;
    if (t == 0)
        sh->n_list = 0;
    __syncthreads();
    for (uint32_t i = t; i < vocab; i += THREADS)
        if (inside(e, c[i], i)) {
            mass_t w = shift < 0 ? 1 : mass_of(c[i], shift);
            if (w)
                atomicAdd(&sh->bin[bin_of(c[i])], w);
        }
    __syncthreads();
    if (t < 32)
        slot_of(sh->bin, N_BINS, left, sh);
    __syncthreads();
    uint32_t bin = sh->where;
    for (uint32_t i = t; i < vocab; i += THREADS)
        if (inside(e, c[i], i) && bin_of(c[i]) == bin) {
            uint32_t at = atomicAdd(&sh->n_list, 1u);
            if (at < LIST)
                sh->list[at] = i;
        }
    __syncthreads();
    bool all = sh->n_list > LIST; /* the bin's members don't fit: look at all again */
    uint32_t n = all ? vocab : sh->n_list;

    for (int low = 24; low >= 0; low -= 8) {
        if (t < DIGITS)
            sh->digit[t] = 0;
        __syncthreads();
        for (uint32_t k = t; k < n; k += THREADS) {
            uint32_t i = all ? k : sh->list[k], key = key_of(c[i]);
            if (all && !(inside(e, c[i], i) && bin_of(c[i]) == bin))
                continue;
            if (low == 24 || key >> (low + 8) == prefix)
                atomicAdd(&sh->digit[DIGITS - 1 - (key >> low & 255)], shift < 0 ? (mass_t)1 : mass_of(c[i], shift));
        }
        __syncthreads();
        if (t < 32)
            slot_of(sh->digit, DIGITS, sh->left, sh);
        __syncthreads();
        prefix = prefix << 8 | (DIGITS - 1 - sh->where);
    }
    /* all that are left have one value: mostly it is one, else the how-manieth and which id that is, by halving */
    if (t == 0)
        sh->ties = 0;
    __syncthreads();
    for (uint32_t k = t; k < n; k += THREADS) {
        uint32_t i = all ? k : sh->list[k];
        if (key_of(c[i]) == prefix && inside(e, c[i], i)) {
            atomicAdd(&sh->ties, 1u);
            sh->low = i;
        }
    }
    __syncthreads();
    if (sh->ties == 1)
        return { prefix, sh->low };
    __syncthreads();
    if (t == 0) {
        sh->ties = (uint32_t)(sh->left / (shift < 0 ? 1 : mass_of(float_of(~prefix), shift)));
        sh->low = 0;
        sh->high = vocab - 1;
    }
    __syncthreads();
    while (sh->low < sh->high) {
        uint32_t low = sh->low, high = sh->high, mid = (low + high) / 2, mine = 0;
        for (uint32_t k = t; k < n; k += THREADS) {
            uint32_t i = all ? k : sh->list[k];
            mine += i <= mid && key_of(c[i]) == prefix && inside(e, c[i], i);
        }
        uint32_t upto = (uint32_t)block_total((double)mine, sh->part);
        if (t == 0) {
            sh->low = upto > sh->ties ? low : mid + 1;
            sh->high = upto > sh->ties ? mid : high;
        }
        __syncthreads();
    }
    return { prefix, sh->low };
}

static __device__ mass_t total_of(const float *c, uint32_t vocab, edge_t e, int shift, shared_t *sh)
{
    mass_t mine = 0;

    __syncthreads();
    if (threadIdx.x == 0)
        sh->left = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < vocab; i += THREADS)
        if (inside(e, c[i], i))
            mine += mass_of(c[i], shift);
    if (mine)
        atomicAdd(&sh->left, mine);
    __syncthreads();
    return sh->left;
}

static __device__ uint32_t count_of(const float *c, uint32_t vocab, shared_t *sh)
{
    uint32_t mine = 0;

    for (uint32_t i = threadIdx.x; i < vocab; i += THREADS)
        mine += c[i] > -CUDART_INF_F;
    return (uint32_t)block_total((double)mine, sh->part);
}

/* The id, in rising order within `e`, where the running sum of masses goes beyond `left`. A thread has a piece of the
 * ids; the sums of pieces are walked by one thread. */
static __device__ ds_token walk_ids(const float *c, uint32_t vocab, edge_t e, int shift, mass_t left, shared_t *sh)
{
    uint32_t t = threadIdx.x, each = (vocab + THREADS - 1) / THREADS, begin = min(t * each, vocab), end = min(begin + each, vocab);
    mass_t mine = 0;

    __syncthreads();
    for (uint32_t i = begin; i < end; i++)
        if (inside(e, c[i], i))
            mine += mass_of(c[i], shift);
    sh->bin[t] = mine;
    __syncthreads();
    if (t < 32)
        slot_of(sh->bin, N_BINS, left, sh);
    __syncthreads();
    if (t == sh->where) {
        mass_t rest = sh->left;
        for (uint32_t i = begin; i < end; i++)
            if (inside(e, c[i], i)) {
                mass_t w = mass_of(c[i], shift);
                if (rest < w) {
                    sh->low = i;
                    break;
                }
                rest -= w;
            }
    }
    __syncthreads();
    return (ds_token)sh->low;
}
static_assert((int)N_BINS == (int)THREADS, "a bin a thread");

/* The least part of `total` that isn't below p of it, less one: what a set must go beyond. */
static __device__ mass_t beyond(double p, mass_t total)
{
    mass_t need = (mass_t)ceil(p * (double)total);
    return need > 1 ? min(need, total) - 1 : 0;
}

/* -1: nothing is allowed. l: adjusted logits, used up. */
static __device__ ds_token draw(const ds_draw &s, float *l, uint32_t vocab, uint64_t index, shared_t *sh)
{
    best_place top = largest(l, vocab, sh->best);
    int shift = 30 + __clz((int)vocab);
    edge_t e = { 0, 0 }; /* all but -inf */
    bool ranked = false;

    if (top.v == -CUDART_INF_F)
        return -1;
    if (s.temperature == 0.0)
        return top.at;
    for (uint32_t i = threadIdx.x; i < vocab; i += THREADS)
        l[i] = (float)(((double)l[i] - top.v) / s.temperature);
    __syncthreads();
    if (s.top_k && s.top_k < count_of(l, vocab, sh)) {
        e = find(l, vocab, e, -1, s.top_k - 1, sh);
        ranked = true;
    }
    if (s.top_p < 1.0) {
        e = find(l, vocab, e, shift, beyond(s.top_p, total_of(l, vocab, e, shift, sh)), sh);
        ranked = true;
    }
    if (s.min_p > 0.0) {
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < vocab; i += THREADS)
            if (exp((double)l[i]) < s.min_p)
                l[i] = -CUDART_INF_F;
        __syncthreads();
    }
    mass_t total = total_of(l, vocab, e, shift, sh), at = (mass_t)(unit(s.seed, index) * (double)total);
    at = min(at, total - 1);
    return ranked ? (ds_token)find(l, vocab, e, shift, at, sh).id : walk_ids(l, vocab, e, shift, at, sh);
}

/* ---- log-probabilities ---- */

static __device__ void log_probs(const float *x, uint32_t vocab, ds_token token, float *chosen, ds_logprob *top, uint32_t n_top, shared_t *sh)
{
    best_place last = largest(x, vocab, sh->best);
    double mine = 0.0;

    for (uint32_t i = threadIdx.x; i < vocab; i += THREADS)
        mine += exp((double)x[i] - last.v);
    double lse = last.v + log(block_total(mine, sh->part));
    if (threadIdx.x == 0)
        *chosen = (float)(x[token] - lse);
    for (uint32_t k = 0; k < n_top; k++) {
        if (k > 0) { /* the best behind the last */
            best_place p = { 0.0, -1 };
            for (uint32_t i = threadIdx.x; i < vocab; i += THREADS)
                if (x[i] < last.v || (x[i] == last.v && (int)i > last.at))
                    p = better(p, { x[i], (int)i });
            last = last.at < 0 ? last : block_best(p, sh->best);
        }
        if (threadIdx.x == 0)
            top[k] = { last.at, last.at < 0 ? -CUDART_INF_F : (float)(last.v - lse) };
    }
}

/* ---- the op ---- */

static __device__ bool is_argmax(const ds_draw &s, uint64_t index)
{
    return s.temperature == 0.0 && !s.n_output && !s.n_bias && index >= s.stop_upto;
}

static __device__ void draw_row(const ds_op_sample &a, uint32_t s, uint32_t i, float *l, shared_t *sh)
{
    const ds_sample_rows &q = a.seq[s];
    const float *logits = a.logits + (q.row + i) * a.ld;
    uint64_t index = q.index + a.later + i;
    ds_token token;

    if (is_argmax(q.how, index) && (a.id || !q.allowed)) {
        token = largest(logits, a.vocab, sh->best).at;
    } else {
        adjust(q, i, logits, a.vocab, a.id != NULL, index, l, sh);
        token = draw(q.how, l, a.vocab, index, sh);
    }
    if (a.id) {
        if (token < 0)
            token = largest(logits, a.vocab, sh->best).at;
        if (threadIdx.x == 0)
            a.id[s] = token;
        return;
    }
    if (threadIdx.x == 0)
        a.out[s].token[i] = token;
    if (q.logprobs && token >= 0)
        log_probs(logits, a.vocab, token, &a.out[s].logprob[i], a.top + ((size_t)s * DS_MAX_DRAWS + i) * DS_MAX_TOP, q.n_top, sh);
}

/* Rows in the order (place in the sequence, sequence), so that blocks without work come last. */
static __global__ void __launch_bounds__(THREADS, 1) draw_kernel(ds_op_sample a, float *scratch, size_t ld, const ds_fault *f)
{
    after_others();
    __shared__ shared_t sh;
    uint32_t n = a.n_seqs * (a.id ? 1 : DS_MAX_DRAWS);

    if (f->kind != DS_FAULT_NONE) /* the logits may be anything */
        return;
    for (uint32_t w = blockIdx.x; w < n; w += gridDim.x)
        if (w / a.n_seqs < a.seq[w % a.n_seqs].n) {
            __syncthreads();
            draw_row(a, w % a.n_seqs, w / a.n_seqs, scratch + blockIdx.x * ld, &sh);
        }
}

/* Which draws stand. A thread a sequence. */
static __global__ void stand_kernel(ds_op_sample a, const ds_fault *f)
{
    after_others();
    uint32_t s = blockIdx.x * blockDim.x + threadIdx.x, n = 0;

    if (s >= a.n_seqs)
        return;
    const ds_sample_rows &q = a.seq[s];
    ds_drawn out = a.out[s];
    out.stopped = out.none = false;
    while (n < q.n && !out.stopped && f->kind == DS_FAULT_NONE) {
        ds_token token = out.token[n];
        out.none = token < 0;
        if (out.none)
            break;
        out.stopped = listed(q.how.stop, q.how.n_stop, token);
        if (!out.stopped && q.how.n_output)
            q.how.n_output[token]++;
        n++;
        if (n < q.n && token != q.draft[n - 1])
            break;
    }
    out.n = n;
    for (uint32_t i = 0; i < DS_MAX_DRAWS; i++) {
        out.logprob[i] = i < n && q.logprobs ? out.logprob[i] : 0.0f;
        out.token[i] = i < n ? out.token[i] : 0;
    }
    a.out[s] = out;
}

static size_t row_ld(uint32_t vocab)
{
    return (vocab + 63) & ~(size_t)63;
}

void ds_sample_cuda(ds_exec *e, const ds_op_sample *a)
{
    size_t mark = ds_arena_mark(e->scratch), rows = (size_t)a->n_seqs * (a->id ? 1 : DS_MAX_DRAWS);
    unsigned blocks = (unsigned)(rows < BLOCKS ? rows : BLOCKS);

    if (!a->n_seqs)
        return;
    float *scratch = (float *)ds_exec_scratch(e, blocks * row_ld(a->vocab) * sizeof(float));
    launch(e, draw_kernel, blocks, THREADS, 0, *a, scratch, row_ld(a->vocab), e->fault);
    if (!a->id)
        launch(e, stand_kernel, blocks_of(a->n_seqs, 32), 32, 0, *a, e->fault);
    launched(e, "sample");
    ds_arena_rewind(e->scratch, mark);
}

size_t ds_sample_cuda_scratch(const ds_kern_limits *lim)
{
    return lim->vocab ? BLOCKS * row_ld(lim->vocab) * sizeof(float) + 64 : 0;
}
