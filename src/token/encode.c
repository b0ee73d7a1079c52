/* Text and prompts to ids, by one thread or several.
 *
 * Everything that is asked for becomes a list of spans: a stretch of text between safe cuts, or one control token.
 * Spans are dealt to the threads in consecutive groups; each group has an id list of its own, and the lists are put
 * together in order. The ids of a span depend on its bytes alone, so they don't depend on how many threads there
 * are. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/pool.h"
#include "token/tokenizer_internal.h"

#define MAX_THREADS 64
#define PARALLEL_BYTES ((size_t)64 << 10) /* below this, waking a thread costs more than it brings */
#define KEEP_BYTES ((size_t)1 << 20)      /* scratch above this is given back after a call */
#define SPAN_BYTES ((size_t)32 << 10)     /* aim for the pieces of a long text */

typedef struct {
    const char *p;
    size_t n;
    ds_token control; /* the id itself, or DS_TOKEN_NONE: text */
    bool ends_item;   /* last span of a batch item */
    size_t n_ids;     /* what it became; written by the thread that encoded it */
} span;

typedef struct {
    span *p;
    size_t n, cap, text_bytes;
} span_list;

/* One thread's working memory. */
typedef struct {
    ds_tok_bpe *bpe;
    ds_tok_regex_ctx *regex; /* NULL for the released pattern */
} worker;

typedef struct {
    size_t from, to; /* spans */
    ds_ids ids;      /* a stretch of the caller's list, large enough */
    ds_rc rc;
    ds_err err;
} group;

struct ds_encoder {
    const ds_tokenizer *t; /* [const] */
    uint32_t n_workers;    /* [const] */
    ds_pool *pool;         /* [const] NULL for one thread */
    worker *w;             /* [member i] w[i] */
    span_list spans;       /* [owner] of the current call */
    char *joined;          /* [owner] text runs put together */
    size_t joined_cap;
    /* [owner] between runs of the pool; [members] during one: group g belongs to whoever drew g from next_group */
    group *groups;
    size_t n_groups, cap_groups;
    atomic_size_t next_group; /* relaxed: the pool orders everything else */
};

void ds_ids_free(ds_ids *ids)
{
    free(ids->p);
    *ids = (ds_ids){ 0 };
}

bool ds_ids_reserve(ds_ids *ids, size_t more)
{
    size_t cap = ids->cap ? ids->cap : 64;
    ds_token *p;

    if (ids->cap - ids->n >= more)
        return true;
    while (cap - ids->n < more)
        cap += cap / 2;
    p = realloc(ids->p, cap * sizeof *p);
    if (!p)
        return false;
    ids->p = p;
    ids->cap = cap;
    return true;
}

ds_rc ds_encoder_create(ds_encoder **out, const ds_tokenizer *t, const ds_encoder_opts *opts, ds_err *err)
{
    ds_encoder_opts o = opts ? *opts : (ds_encoder_opts){ 0 };
    ds_encoder *e;
    ds_rc rc = DS_OK;

    *out = NULL;
    if (o.n_threads > MAX_THREADS)
        return ds_fail(err, DS_E_ARG, "encoder: %u threads; the limit is %d", o.n_threads, MAX_THREADS);
    e = calloc(1, sizeof *e);
    if (!e)
        return ds_fail(err, DS_E_NOMEM, "encoder: out of memory");
    e->t = t;
    e->n_workers = o.n_threads ? o.n_threads : 1;
    e->w = calloc(e->n_workers, sizeof *e->w);
    if (!e->w)
        rc = ds_fail(err, DS_E_NOMEM, "encoder: out of memory");
    for (uint32_t i = 0; rc == DS_OK && i < e->n_workers; i++) {
        rc = ds_tok_bpe_create(&e->w[i].bpe, t, o.cache_entries ? o.cache_entries : 32768, err);
        if (rc == DS_OK && t->regex)
            rc = ds_tok_regex_ctx_create(&e->w[i].regex, t->regex, err);
    }
    if (rc == DS_OK && e->n_workers > 1)
        rc = ds_pool_create(&e->pool, &(ds_pool_opts){ .n_threads = e->n_workers }, err);
    if (rc != DS_OK) {
        ds_encoder_destroy(e);
        return rc;
    }
    *out = e;
    return DS_OK;
}

const ds_tokenizer *ds_encoder_tokenizer(const ds_encoder *e)
{
    return e->t;
}

void ds_encoder_destroy(ds_encoder *e)
{
    if (!e)
        return;
    ds_pool_destroy(e->pool);
    for (uint32_t i = 0; e->w && i < e->n_workers; i++) {
        ds_tok_bpe_destroy(e->w[i].bpe);
        ds_tok_regex_ctx_destroy(e->w[i].regex);
    }
    free(e->w);
    free(e->spans.p);
    free(e->joined);
    free(e->groups);
    free(e);
}

/* ---- one span ---- */

typedef struct {
    const ds_tokenizer *t;
    worker *w;
    ds_ids *ids;
    const uint8_t *end;
} sink;

/* End of the first part of a piece that no merge joins with what follows. */
static inline const uint8_t *first_part(const ds_tokenizer *t, const uint8_t *p, const uint8_t *end)
{
    while (end - p >= 6) {
        if (ds_tok_is_lead3(p[0]) && ds_tok_is_lead3(p[3]) && !ds_tok_may_join(t, p))
            return p + 3;
        p += p[0] < 0xc0 ? 1 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
    }
    return end;
}

/* A piece in parts that the cache is likely to have. [p, q) is valid UTF-8 or one byte. */
static inline bool encode_piece(const ds_tokenizer *t, worker *w, const uint8_t *p, const uint8_t *q, const uint8_t *end, ds_ids *ids)
{
    if (q - p >= 6 && (p[0] | p[1]) >= 0x80) {
        for (const uint8_t *cut; (cut = first_part(t, p, q)) < q; p = cut) {
            if (!ds_tok_bpe_piece(w->bpe, p, (size_t)(cut - p), end, ids))
                return false;
        }
    }
    return ds_tok_bpe_piece(w->bpe, p, (size_t)(q - p), end, ids);
}

static bool take_piece(void *arg, const char *p, size_t n)
{
    sink *s = arg;

    return encode_piece(s->t, s->w, (const uint8_t *)p, (const uint8_t *)p + n, s->end, s->ids);
}

static ds_rc encode_text(const ds_tokenizer *t, worker *w, const char *text, size_t n, ds_ids *ids, ds_err *err)
{
    const uint8_t *p = (const uint8_t *)text, *end = p + n;

    if (t->regex)
        return ds_tok_regex_split(w->regex, text, n, take_piece, &(sink){ t, w, ids, end }, err);
    while (p < end) {
        const uint8_t *q = ds_tok_scan(&t->uc, p, end);
        if (!encode_piece(t, w, p, q, end, ids))
            return ds_fail(err, DS_E_NOMEM, "encoder: out of memory");
        p = q;
    }
    return DS_OK;
}

static ds_rc encode_spans(ds_encoder *e, worker *w, size_t from, size_t to, ds_ids *ids, ds_err *err)
{
    ds_rc rc = DS_OK;

    for (size_t i = from; i < to && rc == DS_OK; i++) {
        span *s = &e->spans.p[i];
        size_t before = ids->n;

        if (s->control == DS_TOKEN_NONE)
            rc = encode_text(e->t, w, s->p, s->n, ids, err);
        else if (!ds_ids_reserve(ids, 1))
            rc = ds_fail(err, DS_E_NOMEM, "encoder: out of memory");
        else
            ids->p[ids->n++] = s->control;
        s->n_ids = ids->n - before;
    }
    return rc;
}

/* ---- all spans ---- */

static ds_rc add_span(ds_encoder *e, span s, ds_err *err)
{
    span_list *l = &e->spans;

    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 64;
        span *p = realloc(l->p, cap * sizeof *p);
        if (!p)
            return ds_fail(err, DS_E_NOMEM, "encoder: out of memory");
        l->p = p;
        l->cap = cap;
    }
    l->p[l->n++] = s;
    l->text_bytes += s.n;
    if (l->text_bytes > DS_TOKENIZER_TEXT_MAX)
        return ds_fail(err, DS_E_ARG, "text of more than %u bytes", DS_TOKENIZER_TEXT_MAX);
    return DS_OK;
}

/* A text becomes several spans when there are threads to share them and the released pattern, whose safe places are
 * known. */
static ds_rc add_text(ds_encoder *e, const char *p, size_t n, bool ends_item, ds_err *err)
{
    ds_rc rc = DS_OK;

    if (n > DS_TOKENIZER_TEXT_MAX)
        return ds_fail(err, DS_E_ARG, "text of %zu bytes; the limit is %u", n, DS_TOKENIZER_TEXT_MAX);
    while (rc == DS_OK && e->pool && !e->t->regex && n >= 2 * SPAN_BYTES) {
        size_t cut = ds_tok_safe_cut(e->t, p, n, SPAN_BYTES);
        if (cut == 0)
            break;
        rc = add_span(e, (span){ .p = p, .n = cut, .control = DS_TOKEN_NONE }, err);
        p += cut;
        n -= cut;
    }
    return rc == DS_OK ? add_span(e, (span){ .p = p, .n = n, .control = DS_TOKEN_NONE, .ends_item = ends_item }, err) : rc;
}

static void run_groups(void *arg, uint32_t member, uint32_t n_members)
{
    ds_encoder *e = arg;
    size_t i;

    (void)n_members;
    while ((i = atomic_fetch_add_explicit(&e->next_group, 1, memory_order_relaxed)) < e->n_groups) {
        group *g = &e->groups[i];
        g->rc = encode_spans(e, &e->w[member], g->from, g->to, &g->ids, &g->err);
    }
}

/* Cuts the span list into groups of about SPAN_BYTES. Each gets room behind the ids for as many as its spans can
 * become, so that nothing is allocated while the threads run; what isn't used stays untouched memory. */
static ds_rc make_groups(ds_encoder *e, ds_ids *ids, ds_err *err)
{
    size_t cap = e->spans.text_bytes / SPAN_BYTES + 2, at = ids->n;

    e->n_groups = 0;
    if (cap > e->cap_groups) {
        group *p = realloc(e->groups, cap * sizeof *p);
        if (!p)
            return ds_fail(err, DS_E_NOMEM, "encoder: out of memory");
        e->groups = p;
        e->cap_groups = cap;
    }
    if (!ds_ids_reserve(ids, e->spans.text_bytes + e->spans.n + cap * DS_TOK_SPARE_IDS))
        return ds_fail(err, DS_E_NOMEM, "encoder: out of memory");
    for (size_t from = 0, to; from < e->spans.n; from = to) {
        size_t bytes = 0, room;
        for (to = from; to < e->spans.n && bytes < SPAN_BYTES; to++)
            bytes += e->spans.p[to].n;
        room = bytes + (to - from) + DS_TOK_SPARE_IDS;
        e->groups[e->n_groups++] = (group){ .from = from, .to = to, .ids = { .p = ids->p + at, .cap = room } };
        at += room;
    }
    return DS_OK;
}

static ds_rc encode_parallel(ds_encoder *e, ds_ids *ids, ds_err *err)
{
    ds_rc rc = make_groups(e, ids, err);

    if (rc != DS_OK)
        return rc;
    atomic_store_explicit(&e->next_group, 0, memory_order_relaxed);
    ds_pool_run(e->pool, run_groups, e);
    for (size_t i = 0; i < e->n_groups; i++) {
        const group *g = &e->groups[i];
        if (g->rc != DS_OK)
            return ds_fail(err, g->rc, "%s", g->err.msg);
        memmove(ids->p + ids->n, g->ids.p, g->ids.n * sizeof *ids->p);
        ids->n += g->ids.n;
    }
    if (ids->cap / 2 > ids->n) {
        ds_token *p = realloc(ids->p, ids->n * sizeof *p + sizeof *p);
        if (p) {
            ids->p = p;
            ids->cap = ids->n + 1;
        }
    }
    return DS_OK;
}

static void trim(ds_encoder *e)
{
    for (uint32_t i = 0; i < e->n_workers; i++)
        ds_tok_bpe_trim(e->w[i].bpe);
    if (e->joined_cap > KEEP_BYTES) {
        free(e->joined);
        e->joined = NULL;
        e->joined_cap = 0;
    }
    if (e->spans.cap * sizeof *e->spans.p > KEEP_BYTES) {
        free(e->spans.p);
        e->spans = (span_list){ 0 };
    }
}

/* Encodes e->spans, unless rc already says why not. */
static ds_rc encode(ds_encoder *e, ds_rc rc, ds_ids *ids, size_t *ends, ds_err *err)
{
    size_t before = ids->n;

    if (rc == DS_OK && e->pool && e->spans.text_bytes >= PARALLEL_BYTES && e->spans.n > 1)
        rc = encode_parallel(e, ids, err);
    else if (rc == DS_OK)
        rc = encode_spans(e, &e->w[0], 0, e->spans.n, ids, err);
    if (rc != DS_OK) {
        ids->n = before;
    } else if (ends) {
        for (size_t i = 0; i < e->spans.n; i++) {
            before += e->spans.p[i].n_ids;
            if (e->spans.p[i].ends_item)
                *ends++ = before;
        }
    }
    trim(e);
    return rc;
}

static void begin(ds_encoder *e)
{
    e->spans.n = 0;
    e->spans.text_bytes = 0;
}

ds_rc ds_encoder_text(ds_encoder *e, const char *text, size_t n, ds_ids *ids, ds_err *err)
{
    begin(e);
    return encode(e, add_text(e, text, n, false, err), ids, NULL, err);
}

ds_rc ds_encoder_batch(ds_encoder *e, const char *const *texts, const size_t *lens, size_t n, ds_ids *ids, size_t *ends, ds_err *err)
{
    ds_rc rc = DS_OK;

    begin(e);
    for (size_t i = 0; i < n && rc == DS_OK; i++)
        rc = add_text(e, texts[i], lens[i], true, err);
    return encode(e, rc, ids, ends, err);
}

/* Number of runs from i on that make one text (bytes in *total), 0 if run i is control. */
static size_t text_runs(const ds_run *runs, size_t n_runs, size_t i, size_t *total)
{
    size_t k = i;

    for (*total = 0; k < n_runs && !runs[k].control; k++) {
        if (runs[k].n > DS_TOKENIZER_TEXT_MAX || *total > DS_TOKENIZER_TEXT_MAX)
            *total = SIZE_MAX / 2; /* too much in any case: add_text refuses it */
        else
            *total += runs[k].n;
    }
    return k - i;
}

static ds_rc add_control(ds_encoder *e, const ds_run *run, ds_err *err)
{
    ds_token id = ds_tokenizer_control_n(e->t, run->p, run->n);
    char quoted[256];

    if (id == DS_TOKEN_NONE)
        return ds_fail(err, DS_E_ARG, "the tokenizer has no added token \"%.120s\"", ds_quote(quoted, sizeof quoted, run->p, run->n));
    return add_span(e, (span){ .control = id }, err);
}

/* Room in e->joined for all text that has to be put together. */
static ds_rc reserve_joined(ds_encoder *e, const ds_run *runs, size_t n_runs, ds_err *err)
{
    size_t need = 0, total;

    for (size_t i = 0, k; i < n_runs; i += k ? k : 1) {
        k = text_runs(runs, n_runs, i, &total);
        if (k > 1)
            need += total;
        if (need > DS_TOKENIZER_TEXT_MAX)
            return ds_fail(err, DS_E_ARG, "text of more than %u bytes", DS_TOKENIZER_TEXT_MAX);
    }
    if (need > e->joined_cap) {
        free(e->joined);
        e->joined = malloc(need);
        e->joined_cap = e->joined ? need : 0;
        if (!e->joined)
            return ds_fail(err, DS_E_NOMEM, "encoder: out of memory");
    }
    return DS_OK;
}

ds_rc ds_encoder_runs(ds_encoder *e, const ds_run *runs, size_t n_runs, ds_ids *ids, ds_err *err)
{
    ds_rc rc = reserve_joined(e, runs, n_runs, err);
    size_t used = 0, total, k;

    begin(e);
    for (size_t i = 0; i < n_runs && rc == DS_OK; i += k ? k : 1) {
        k = text_runs(runs, n_runs, i, &total);
        if (k == 0) {
            rc = add_control(e, &runs[i], err);
        } else if (k == 1) {
            rc = add_text(e, runs[i].p, runs[i].n, false, err);
        } else {
            char *to = e->joined + used;
            for (size_t r = i; r < i + k; r++) {
                if (runs[r].n)
                    memcpy(e->joined + used, runs[r].p, runs[r].n);
                used += runs[r].n;
            }
            rc = add_text(e, to, total, false, err);
        }
    }
    return encode(e, rc, ids, NULL, err);
}
