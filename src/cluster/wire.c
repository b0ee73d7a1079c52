#include "cluster/wire.h"

#include <stdlib.h>
#include <string.h>

/* ---- numbers ---- */

static void put_n(ds_buf *b, uint64_t v, int bytes)
{
    uint8_t at[8];

    for (int i = 0; i < bytes; i++)
        at[i] = (uint8_t)(v >> (8 * i));
    ds_buf_put(b, at, (size_t)bytes);
}

static void put32(ds_buf *b, uint32_t v)
{
    put_n(b, v, 4);
}

static void put64(ds_buf *b, uint64_t v)
{
    put_n(b, v, 8);
}

static void put_float(ds_buf *b, float v)
{
    uint32_t bits;

    memcpy(&bits, &v, sizeof bits);
    put32(b, bits);
}

static void put_double(ds_buf *b, double v)
{
    uint64_t bits;

    memcpy(&bits, &v, sizeof bits);
    put64(b, bits);
}

static float get_float(ds_frame_in *in)
{
    uint32_t bits = ds_frame_u32(in);
    float v;

    memcpy(&v, &bits, sizeof v);
    return v;
}

static double get_double(ds_frame_in *in)
{
    uint64_t bits = ds_frame_u64(in);
    double v;

    memcpy(&v, &bits, sizeof v);
    return v;
}

/* ---- statistics and plans: numbers in the order of these lists ---- */

typedef enum { U32, U64, F64 } kind;
typedef struct {
    kind kind;
    uint32_t at, n;
} field;

#define F(S, K, name)                                                       \
    {                                                                       \
        K, offsetof(S, name), sizeof(((S *)0)->name) / ((K) == U32 ? 4 : 8) \
    }
#define P4(name) F(ds_gen_plan, U32, name)
#define P8(name) F(ds_gen_plan, U64, name)
#define S4(name) F(ds_gen_stats, U32, name)
#define S8(name) F(ds_gen_stats, U64, name)
#define SH(name) S8(name.n), S8(name.sum_us), S8(name.bucket)

static const field plan_fields[] = { P4(kv_blocks),      P4(state_slots), P4(saved_states), P4(max_context), P4(max_running),
                                     P4(step_tokens),    P4(host_blocks), P4(host_states),  P8(block_bytes), P8(slot_bytes),
                                     P8(host_kv),        P8(kv),          P8(states),       P8(tails),       P8(tables),
                                     P8(buffers),        P8(host),        P8(total),        P8(device),      P8(kv_tokens),
                                     P4(largest_context) };

static const field stats_fields[] = { S4(waiting),
                                      S4(prefilling),
                                      S4(running),
                                      S4(parked),
                                      S4(requests),
                                      S4(lost),
                                      S4(kv_blocks),
                                      S4(kv_used),
                                      S4(kv_cached),
                                      S4(states),
                                      S4(states_used),
                                      S4(slots),
                                      S4(slots_used),
                                      S4(host_blocks),
                                      S4(host_blocks_used),
                                      S4(host_states),
                                      S4(host_states_used),
                                      F(ds_gen_stats, F64, drafts_per_seq),
                                      F(ds_gen_stats, F64, cost),
                                      S8(accepted),
                                      S8(refused_busy),
                                      S8(refused_arg),
                                      S8(ended),
                                      S8(prompt_tokens),
                                      S8(computed_tokens),
                                      S8(recomputed_tokens),
                                      S8(hit_state_tokens),
                                      S8(hit_replay_tokens),
                                      S8(replayed_tokens),
                                      S8(hit_host_tokens),
                                      S8(hit_store_tokens),
                                      S8(fetches),
                                      S8(fetched_blocks),
                                      S8(fetched_states),
                                      S8(fetch_missed),
                                      S8(saves_lost),
                                      S8(host_blocks_saved),
                                      S8(host_blocks_evicted),
                                      S8(host_states_saved),
                                      S8(host_states_evicted),
                                      S8(output_tokens),
                                      S8(dropped_tokens),
                                      S8(drafted),
                                      S8(kept),
                                      S8(preempted_parked),
                                      S8(preempted_recomputed),
                                      S8(states_saved),
                                      S8(states_evicted),
                                      S8(blocks_published),
                                      S8(blocks_evicted),
                                      S8(steps),
                                      S8(step_rows),
                                      S8(device_busy_ns),
                                      S8(device_idle_ns),
                                      S8(host_plan_ns),
                                      S8(host_finish_ns),
                                      S8(host_publish_ns),
                                      S8(draft_ns),
                                      SH(queue),
                                      SH(ttft),
                                      SH(tbt),
                                      SH(step_prefill),
                                      SH(step_decode),
                                      SH(total) };

enum { N_PLAN = sizeof plan_fields / sizeof *plan_fields, N_STATS = sizeof stats_fields / sizeof *stats_fields };

static void put_fields(ds_buf *b, const field *f, uint32_t n, const void *from)
{
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < f[i].n; k++) {
            const char *at = (const char *)from + f[i].at + (size_t)k * (f[i].kind == U32 ? 4 : 8);
            uint64_t v = 0;
            memcpy(&v, at, f[i].kind == U32 ? 4 : 8);
            put_n(b, v, f[i].kind == U32 ? 4 : 8);
        }
}

static void get_fields(ds_frame_in *in, const field *f, uint32_t n, void *to)
{
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < f[i].n; k++) {
            char *at = (char *)to + f[i].at + (size_t)k * (f[i].kind == U32 ? 4 : 8);
            uint64_t v = f[i].kind == U32 ? ds_frame_u32(in) : ds_frame_u64(in);
            memcpy(at, &v, f[i].kind == U32 ? 4 : 8);
        }
}

void ds_cw_put_stats(ds_buf *b, uint32_t engine, const ds_gen_stats *s)
{
    put32(b, engine);
    put_fields(b, stats_fields, N_STATS, s);
}

ds_rc ds_cw_read_stats(uint32_t *engine, ds_gen_stats *s, const uint8_t *p, size_t n, ds_err *err)
{
    ds_frame_in in = { p, p + n, false };

    *s = (ds_gen_stats){ 0 };
    *engine = ds_frame_u32(&in);
    get_fields(&in, stats_fields, N_STATS, s);
    return in.bad || in.at != in.end ? ds_fail(err, DS_E_FORMAT, "statistics of %zu bytes", n) : DS_OK;
}

/* ---- how it begins ---- */

static void put_model(ds_buf *b, const ds_cw_model *m)
{
    put32(b, DS_CW_VERSION);
    ds_buf_put(b, m->tokenizer, sizeof m->tokenizer);
    ds_buf_put(b, m->config, sizeof m->config);
}

static ds_rc get_model(ds_cw_model *m, ds_frame_in *in, ds_err *err)
{
    uint32_t version = ds_frame_u32(in);
    const uint8_t *tokenizer = ds_frame_bytes(in, sizeof m->tokenizer), *config = ds_frame_bytes(in, sizeof m->config);

    *m = (ds_cw_model){ 0 };
    if (in->bad || version != DS_CW_VERSION)
        return ds_fail(err, DS_E_FORMAT, "the peer speaks version %u, this program %d", version, DS_CW_VERSION);
    memcpy(m->tokenizer, tokenizer, sizeof m->tokenizer);
    memcpy(m->config, config, sizeof m->config);
    return DS_OK;
}

void ds_cw_put_hello(ds_buf *b, const ds_cw_model *m)
{
    put_model(b, m);
}

ds_rc ds_cw_read_hello(ds_cw_model *m, const uint8_t *p, size_t n, ds_err *err)
{
    ds_frame_in in = { p, p + n, false };
    ds_rc rc = get_model(m, &in, err);

    return rc == DS_OK && in.at != in.end ? ds_fail(err, DS_E_FORMAT, "a HELLO of %zu bytes", n) : rc;
}

void ds_cw_put_welcome(ds_buf *b, const ds_cw_engine *e, const ds_gen_plan *plans, uint32_t n)
{
    size_t how = strnlen(e->how, DS_CW_HOW - 1);

    put_model(b, &e->model);
    ds_buf_put(b, e->weights, sizeof e->weights);
    put32(b, (uint32_t)how);
    ds_buf_put(b, e->how, how);
    put32(b, e->role);
    put32(b, n);
    for (uint32_t i = 0; i < n; i++)
        put_fields(b, plan_fields, N_PLAN, &plans[i]);
}

const char *ds_cw_role_name(ds_cw_role role)
{
    static const char *const names[DS_CW_ROLES] = { "mixed", "prefill", "decode" };

    return names[role];
}

/* Text that is shown: printable ASCII. */
static bool get_how(char how[DS_CW_HOW], ds_frame_in *in)
{
    uint32_t n = ds_frame_u32(in);
    const uint8_t *p = n < DS_CW_HOW ? ds_frame_bytes(in, n) : NULL;

    for (uint32_t i = 0; p && i < n; i++) {
        if (p[i] < 0x20 || p[i] > 0x7e)
            return false;
        how[i] = (char)p[i];
    }
    return p != NULL;
}

ds_rc ds_cw_read_welcome(ds_cw_engine *e, ds_gen_plan plans[DS_GEN_MANY_MAX], uint32_t *n_plans, const uint8_t *p, size_t n, ds_err *err)
{
    ds_frame_in in = { p, p + n, false };
    const uint8_t *weights;
    uint32_t role;
    ds_rc rc;

    *e = (ds_cw_engine){ 0 };
    rc = get_model(&e->model, &in, err);
    weights = ds_frame_bytes(&in, sizeof e->weights);
    if (rc == DS_OK && (!weights || !get_how(e->how, &in)))
        return ds_fail(err, DS_E_FORMAT, "a WELCOME of %zu bytes", n);
    if (rc == DS_OK)
        memcpy(e->weights, weights, sizeof e->weights);
    role = ds_frame_u32(&in);
    if (rc == DS_OK && role >= DS_CW_ROLES)
        rc = ds_fail(err, DS_E_FORMAT, "a WELCOME of an engine of role %u", role);
    e->role = role < DS_CW_ROLES ? (ds_cw_role)role : DS_CW_MIXED;
    *n_plans = ds_frame_u32(&in);
    if (rc == DS_OK && (*n_plans == 0 || *n_plans > DS_GEN_MANY_MAX))
        rc = ds_fail(err, DS_E_FORMAT, "a WELCOME of %u engines", *n_plans);
    for (uint32_t i = 0; rc == DS_OK && i < *n_plans; i++) {
        plans[i] = (ds_gen_plan){ 0 };
        get_fields(&in, plan_fields, N_PLAN, &plans[i]);
    }
    return rc == DS_OK && (in.bad || in.at != in.end) ? ds_fail(err, DS_E_FORMAT, "a WELCOME of %zu bytes", n) : rc;
}

unsigned ds_cw_first_bytes(const uint8_t *digest)
{
    return (unsigned)digest[0] << 24 | (unsigned)digest[1] << 16 | (unsigned)digest[2] << 8 | digest[3];
}

ds_rc ds_cw_same_model(const ds_cw_model *asks, const ds_cw_model *serves, ds_err *err)
{
    if (memcmp(asks->tokenizer, serves->tokenizer, sizeof asks->tokenizer) != 0)
        return ds_fail(err, DS_E_ARG, "the engine's tokenizer.json is %08x, the entry's %08x", ds_cw_first_bytes(serves->tokenizer),
                       ds_cw_first_bytes(asks->tokenizer));
    if (memcmp(asks->config, serves->config, sizeof asks->config) != 0)
        return ds_fail(err, DS_E_ARG, "the engine's config.json is %08x, the entry's %08x", ds_cw_first_bytes(serves->config),
                       ds_cw_first_bytes(asks->config));
    return DS_OK;
}

/* ---- requests ---- */

static void put_bytes(ds_buf *b, const void *p, size_t n)
{
    put32(b, (uint32_t)n);
    ds_buf_put(b, p, n);
}

static void put_text(ds_buf *b, const char *s) /* NULL is another one than "" */
{
    put32(b, s != NULL);
    put_bytes(b, s, s ? strlen(s) : 0);
}

static void put_ids(ds_buf *b, const ds_token *ids, size_t n)
{
    put32(b, (uint32_t)n);
    for (size_t i = 0; i < n; i++)
        put32(b, (uint32_t)ids[i]);
}

enum {
    Q_LOGPROBS = 1,
    Q_PROMPT_LOGPROBS = 2,
    Q_NO_CACHE = 4,
    Q_REPORT_STOP_ID = 8,
    Q_SEEDED = 16,
    Q_GRAMMAR = 32,
    Q_HAND_OVER = 64,
    Q_FROM = 128,
    Q_ALL = 255
};

void ds_cw_put_request(ds_buf *b, const ds_gen_request *q, uint32_t hidden)
{
    const ds_sampling *s = &q->sampling;

    put32(b, (q->logprobs ? Q_LOGPROBS : 0) | (q->prompt_logprobs ? Q_PROMPT_LOGPROBS : 0) | (q->no_cache ? Q_NO_CACHE : 0) |
                 (q->report_stop_id ? Q_REPORT_STOP_ID : 0) | (s->seeded ? Q_SEEDED : 0) | (q->grammar ? Q_GRAMMAR : 0) |
                 (q->hand_over ? Q_HAND_OVER : 0) | (q->from ? Q_FROM : 0));
    put32(b, q->max_tokens);
    put32(b, q->min_tokens);
    put32(b, q->n);
    put32(b, q->n_top);
    put32(b, q->n_prompt_top);
    put32(b, q->priority);
    put32(b, (uint32_t)q->replay);
    put32(b, s->top_k);
    put64(b, s->seed);
    put64(b, q->tag);
    put_double(b, s->temperature);
    put_double(b, s->top_p);
    put_double(b, s->min_p);
    put_double(b, s->repetition_penalty);
    put_double(b, s->presence_penalty);
    put_double(b, s->frequency_penalty);
    put_text(b, q->cache_domain);
    put_text(b, q->cache_salt);
    put_ids(b, q->prompt, q->n_prompt);
    put_ids(b, q->output, q->n_output);
    put_ids(b, q->allowed, q->n_allowed);
    put_ids(b, q->stop_ids, q->n_stop_ids);
    put32(b, (uint32_t)q->n_bias);
    for (size_t i = 0; i < q->n_bias; i++) {
        put32(b, (uint32_t)q->bias[i].id);
        put_float(b, q->bias[i].bias);
    }
    put32(b, (uint32_t)q->n_bad);
    for (size_t i = 0; i < q->n_bad; i++)
        put_ids(b, q->bad[i].ids, q->bad[i].n);
    put32(b, (uint32_t)q->n_stop);
    for (size_t i = 0; i < q->n_stop; i++)
        put_bytes(b, q->stop[i].p, q->stop[i].n);
    put_bytes(b, q->grammar ? q->grammar->what.p : NULL, q->grammar ? q->grammar->what.n : 0);
    put32(b, (uint32_t)q->n_images);
    for (size_t i = 0; i < q->n_images; i++) {
        const ds_gen_image *m = &q->images[i];
        put32(b, m->pos);
        put32(b, m->n);
        ds_buf_put(b, m->digest, sizeof m->digest);
        for (size_t k = 0; k < (size_t)m->n * hidden; k++)
            put_float(b, m->embedding[k]);
    }
    if (q->from) {
        put_text(b, q->from->address);
        put64(b, q->from->epoch);
        put64(b, q->from->ticket);
    }
}

typedef struct chunk {
    struct chunk *next;
    max_align_t bytes[];
} chunk;

struct ds_cw_request {
    ds_gen_request q;
    ds_gen_grammar grammar;
    ds_gen_from from;
    chunk *chunks;
    bool oom;
};

static void *room(ds_cw_request *r, size_t bytes)
{
    chunk *c = bytes < SIZE_MAX - sizeof *c ? malloc(sizeof *c + bytes) : NULL;

    if (!c) {
        r->oom = true;
        return NULL;
    }
    c->next = r->chunks;
    r->chunks = c;
    return c->bytes;
}

/* How many things of at least `each` bytes follow. 0 if there isn't that much. */
static uint32_t count(ds_frame_in *in, size_t each)
{
    uint32_t n = ds_frame_u32(in);

    if (n > (size_t)(in->end - in->at) / each)
        in->bad = true;
    return in->bad ? 0 : n;
}

static ds_token *get_ids(ds_cw_request *r, ds_frame_in *in, uint32_t *n)
{
    ds_token *ids;

    *n = count(in, 4);
    ids = *n ? room(r, *n * sizeof *ids) : NULL;
    for (uint32_t i = 0; ids && i < *n; i++)
        ids[i] = (ds_token)ds_frame_u32(in);
    return ids;
}

static ds_str get_bytes(ds_cw_request *r, ds_frame_in *in)
{
    uint32_t n = count(in, 1);
    const uint8_t *from = ds_frame_bytes(in, n);
    char *to = from ? room(r, (size_t)n + 1) : NULL;

    if (!to)
        return (ds_str){ 0 };
    memcpy(to, from, n);
    to[n] = '\0';
    return (ds_str){ to, n };
}

static const char *get_text(ds_cw_request *r, ds_frame_in *in)
{
    uint32_t there = ds_frame_u32(in);
    ds_str s = get_bytes(r, in);

    in->bad = in->bad || there > 1 || (!there && s.n) || (s.p && strlen(s.p) != s.n);
    return there ? s.p : NULL;
}

static void get_lists(ds_cw_request *r, ds_frame_in *in)
{
    ds_gen_request *q = &r->q;
    uint32_t n;

    q->prompt = get_ids(r, in, &q->n_prompt);
    q->output = get_ids(r, in, &q->n_output);
    q->allowed = get_ids(r, in, &n);
    q->n_allowed = n;
    q->stop_ids = get_ids(r, in, &n);
    q->n_stop_ids = n;
    q->n_bias = count(in, 8);
    ds_token_bias *bias = q->n_bias ? room(r, q->n_bias * sizeof *bias) : NULL;
    for (size_t i = 0; bias && i < q->n_bias; i++) {
        bias[i].id = (ds_token)ds_frame_u32(in);
        bias[i].bias = get_float(in);
    }
    q->bias = bias;
    q->n_bad = count(in, 4);
    ds_token_seq *bad = q->n_bad ? room(r, q->n_bad * sizeof *bad) : NULL;
    for (size_t i = 0; bad && i < q->n_bad; i++)
        bad[i].ids = get_ids(r, in, &bad[i].n);
    q->bad = bad;
    q->n_stop = count(in, 4);
    ds_str *stop = q->n_stop ? room(r, q->n_stop * sizeof *stop) : NULL;
    for (size_t i = 0; stop && i < q->n_stop; i++)
        stop[i] = get_bytes(r, in);
    q->stop = stop;
}

static void get_images(ds_cw_request *r, ds_frame_in *in, uint32_t hidden)
{
    ds_gen_request *q = &r->q;
    ds_gen_image *images;

    q->n_images = count(in, 40);
    images = q->n_images ? room(r, q->n_images * sizeof *images) : NULL;
    for (size_t i = 0; images && i < q->n_images; i++) {
        ds_gen_image *m = &images[i];
        *m = (ds_gen_image){ .pos = ds_frame_u32(in) };
        m->n = ds_frame_u32(in);
        const uint8_t *digest = ds_frame_bytes(in, sizeof m->digest);
        size_t rows = hidden ? (size_t)(in->end - in->at) / 4 / hidden : 0, n = (size_t)m->n * hidden;
        float *e = digest && m->n && m->n <= rows ? room(r, n * sizeof *e) : NULL;
        if (!e) {
            in->bad = true;
            return;
        }
        memcpy(m->digest, digest, sizeof m->digest);
        for (size_t k = 0; k < n; k++)
            e[k] = get_float(in);
        m->embedding = e;
    }
    q->images = images;
}

ds_rc ds_cw_read_request(ds_cw_request **out, const uint8_t *p, size_t n, uint32_t hidden, ds_err *err)
{
    ds_frame_in in = { p, p + n, false };
    ds_cw_request *r = calloc(1, sizeof *r);
    uint32_t bits;

    *out = NULL;
    if (!r)
        return ds_fail(err, DS_E_NOMEM, "out of memory for a request");
    ds_gen_request *q = &r->q;
    ds_sampling *s = &q->sampling;
    bits = ds_frame_u32(&in);
    q->logprobs = bits & Q_LOGPROBS;
    q->prompt_logprobs = bits & Q_PROMPT_LOGPROBS;
    q->no_cache = bits & Q_NO_CACHE;
    q->report_stop_id = bits & Q_REPORT_STOP_ID;
    s->seeded = bits & Q_SEEDED;
    q->max_tokens = ds_frame_u32(&in);
    q->min_tokens = ds_frame_u32(&in);
    q->n = ds_frame_u32(&in);
    q->n_top = ds_frame_u32(&in);
    q->n_prompt_top = ds_frame_u32(&in);
    q->priority = ds_frame_u32(&in);
    uint32_t replay = ds_frame_u32(&in);
    q->replay = (ds_gen_replay)replay;
    s->top_k = ds_frame_u32(&in);
    s->seed = ds_frame_u64(&in);
    q->tag = ds_frame_u64(&in);
    s->temperature = get_double(&in);
    s->top_p = get_double(&in);
    s->min_p = get_double(&in);
    s->repetition_penalty = get_double(&in);
    s->presence_penalty = get_double(&in);
    s->frequency_penalty = get_double(&in);
    q->cache_domain = get_text(r, &in);
    q->cache_salt = get_text(r, &in);
    get_lists(r, &in);
    r->grammar.what = get_bytes(r, &in);
    if (bits & Q_GRAMMAR)
        q->grammar = &r->grammar;
    in.bad = in.bad || (!q->grammar && r->grammar.what.n);
    get_images(r, &in, hidden);
    q->hand_over = bits & Q_HAND_OVER;
    if (bits & Q_FROM) {
        r->from.address = get_text(r, &in);
        r->from.epoch = ds_frame_u64(&in);
        r->from.ticket = ds_frame_u64(&in);
        in.bad = in.bad || !r->from.address || !r->from.ticket || q->hand_over || q->n > 1 || q->prompt_logprobs || !q->n_output;
        q->from = &r->from;
    }
    if (!r->oom && !in.bad && in.at == in.end && !(bits & ~(uint32_t)Q_ALL) && replay <= DS_REPLAY_NEVER && q->n <= DS_CW_MAX_SAMPLES) {
        *out = r;
        return DS_OK;
    }
    bool oom = r->oom;
    ds_cw_request_free(r);
    return oom ? ds_fail(err, DS_E_NOMEM, "out of memory for a request of %zu bytes", n)
               : ds_fail(err, DS_E_FORMAT, "a request of %zu bytes that is none", n);
}

ds_gen_request *ds_cw_request_get(ds_cw_request *r)
{
    return &r->q;
}

void ds_cw_request_made(ds_cw_request *r, const ds_gen_grammar *made)
{
    ds_str what = r->grammar.what;

    r->grammar = *made;
    r->grammar.what = what;
}

void ds_cw_request_free(ds_cw_request *r)
{
    if (!r)
        return;
    for (chunk *c = r->chunks, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    free(r);
}

/* ---- events ---- */

static void put_token(ds_buf *b, const ds_event *ev, uint64_t now_us)
{
    put32(b, (uint32_t)ev->token.id);
    put32(b, ev->token.index);
    put32(b, ev->token.held_bytes);
    put_float(b, ev->token.logprob);
    put32(b, ev->token.rank);
    put64(b, now_us > ev->token.readable_us ? now_us - ev->token.readable_us : 0); /* ago */
    put32(b, ev->token.n_top);
    for (uint32_t i = 0; i < ev->token.n_top; i++) {
        put32(b, (uint32_t)ev->token.top[i].id);
        put_float(b, ev->token.top[i].logprob);
    }
}

static void put_end(ds_buf *b, const ds_event *ev)
{
    put32(b, (uint32_t)ev->end.reason);
    put32(b, (uint32_t)ev->end.rc);
    put32(b, (uint32_t)ev->end.stop_id);
    put32(b, ev->end.stop);
    put32(b, ev->end.cut_bytes);
    put32(b, ev->end.n_tokens);
    put32(b, ev->end.completion_tokens);
    put32(b, ev->end.drafted);
    put32(b, ev->end.accepted);
    put64(b, ev->end.prefill_us);
    put64(b, ev->end.decode_us);
    put64(b, ev->end.ticket);
    put32(b, ev->end.last);
}

void ds_cw_put_event(ds_buf *b, uint64_t id, const ds_event *ev, uint64_t now_us)
{
    put32(b, (uint32_t)ev->kind);
    put32(b, ev->sample);
    put64(b, id);
    switch (ev->kind) {
    case DS_EV_START:
        put32(b, ev->start.n_prompt);
        put32(b, ev->start.cached);
        put32(b, ev->start.replayed);
        put64(b, ev->start.queued_us);
        break;
    case DS_EV_TOKEN:
    case DS_EV_PROMPT:
        put_token(b, ev, now_us);
        break;
    case DS_EV_END:
        put_end(b, ev);
        break;
    }
}

static void get_token(ds_event *ev, ds_frame_in *in, uint64_t now_us)
{
    uint64_t ago;

    ev->token.id = (ds_token)ds_frame_u32(in);
    ev->token.index = ds_frame_u32(in);
    ev->token.held_bytes = ds_frame_u32(in);
    ev->token.logprob = get_float(in);
    ev->token.rank = ds_frame_u32(in);
    ago = ds_frame_u64(in);
    ev->token.readable_us = ago < now_us ? now_us - ago : 0;
    ev->token.n_top = ds_frame_u32(in);
    if (ev->token.n_top > sizeof ev->token.top / sizeof *ev->token.top)
        in->bad = true;
    for (uint32_t i = 0; !in->bad && i < ev->token.n_top; i++) {
        ev->token.top[i].id = (ds_token)ds_frame_u32(in);
        ev->token.top[i].logprob = get_float(in);
    }
}

static void get_end(ds_event *ev, ds_frame_in *in)
{
    uint32_t reason = ds_frame_u32(in), rc = ds_frame_u32(in);

    if (reason >= DS_N_ENDED || (int32_t)rc > DS_OK || (int32_t)rc < DS_E_DEVICE)
        in->bad = true;
    ev->end.reason = (ds_end_reason)reason;
    ev->end.rc = (ds_rc)(int32_t)rc;
    ev->end.stop_id = (ds_token)ds_frame_u32(in);
    ev->end.stop = ds_frame_u32(in);
    ev->end.cut_bytes = ds_frame_u32(in);
    ev->end.n_tokens = ds_frame_u32(in);
    ev->end.completion_tokens = ds_frame_u32(in);
    ev->end.drafted = ds_frame_u32(in);
    ev->end.accepted = ds_frame_u32(in);
    ev->end.prefill_us = ds_frame_u64(in);
    ev->end.decode_us = ds_frame_u64(in);
    ev->end.ticket = ds_frame_u64(in);
    in->bad = in->bad || (ev->end.ticket && reason != DS_ENDED_CANCELED);
    ev->end.last = ds_frame_u32(in);
}

bool ds_cw_read_event(ds_event *ev, ds_frame_in *in, uint64_t now_us)
{
    uint32_t what;

    if (in->bad || in->at == in->end)
        return false;
    what = ds_frame_u32(in);
    *ev = (ds_event){ .kind = (ds_event_kind)what, .sample = ds_frame_u32(in) };
    ev->request = ds_frame_u64(in);
    switch (what) {
    case DS_EV_START:
        ev->start.n_prompt = ds_frame_u32(in);
        ev->start.cached = ds_frame_u32(in);
        ev->start.replayed = ds_frame_u32(in);
        ev->start.queued_us = ds_frame_u64(in);
        break;
    case DS_EV_TOKEN:
    case DS_EV_PROMPT:
        get_token(ev, in, now_us);
        break;
    case DS_EV_END:
        get_end(ev, in);
        break;
    default:
        in->bad = true;
    }
    return !in->bad;
}
