/* Random numbers are functions of (seed, what for, number), so requests don't depend on the order in which they are
 * asked for. */
#include "loadgen/plan.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/rng.h"

enum { LINE_MAX_BYTES = 64 << 20 };
enum { ARRIVAL = 1, INPUT, OUTPUT, PREFIX, THINK }; /* streams of random numbers */

typedef struct {
    uint64_t at_ms, order;
    uint32_t input, output;
    size_t first, n;
} trace_line;

struct ds_plan {
    ds_plan_opts o;
    uint64_t next;
    double at_s; /* of the last arrival */
    trace_line *lines;
    uint64_t *ids;
    size_t n_lines, cap_lines, n_ids, cap_ids;
};

/* ---- words ---- */

static const char words[64][8] = {
    "about",  "after",  "again", "air",  "all",   "along", "also",  "always", "animal", "answer", "around", "ask",   "back",
    "before", "begin",  "below", "book", "both",  "boy",   "build", "call",   "carry",  "city",   "close",  "come",  "country",
    "cut",    "day",    "door",  "down", "earth", "end",   "every", "face",   "far",    "father", "feet",   "few",   "find",
    "first",  "follow", "food",  "form", "found", "give",  "great", "group",  "hand",   "head",   "help",   "high",  "home",
    "house",  "keep",   "kind",  "land", "large", "learn", "leave", "letter", "life",   "light",  "line",   "world",
};

static uint64_t mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* n words that are a function of seed and text id. Ten from each random number: a prompt of 100,000 words must not
 * hold up the event loop. */
static void put_words(ds_buf *b, uint64_t seed, uint64_t text, size_t n)
{
    uint64_t key = mix(seed ^ mix(text)), bits = 0;

    if (!ds_buf_reserve(b, n * 8))
        return;
    for (size_t i = 0; i < n; i++) {
        const char *w;
        size_t len;

        if (i % 10 == 0)
            bits = mix(key + i);
        w = words[bits & 63];
        bits >>= 6;
        len = strlen(w);
        if (b->len)
            b->p[b->len++] = ' ';
        memcpy(b->p + b->len, w, len);
        b->len += len;
    }
    b->p[b->len] = '\0';
}

/* Texts of one plan: shared prefixes, a request's own words by turn, blocks of a trace. */
static uint64_t text_id(unsigned kind, uint64_t number)
{
    return (uint64_t)kind << 60 ^ number;
}

void ds_plan_prompt(const ds_plan *p, const ds_plan_item *item, ds_buf *out)
{
    size_t left = item->input_tokens;

    if (item->ids) {
        for (size_t i = 0; i < item->n_ids && left; i++) {
            size_t n = left < DS_PLAN_TRACE_BLOCK ? left : DS_PLAN_TRACE_BLOCK;
            put_words(out, p->o.seed, text_id(1, item->ids[i]), n);
            left -= n;
        }
    } else if (p->o.prefixes && p->o.prefix_tokens) {
        size_t n = left < p->o.prefix_tokens ? left : p->o.prefix_tokens;
        uint64_t which = (uint64_t)(ds_rng_unit(p->o.seed, PREFIX, item->index) * p->o.prefixes);
        put_words(out, p->o.seed, text_id(2, which), n);
        left -= n;
    }
    put_words(out, p->o.seed, text_id(3, item->index), left);
}

void ds_plan_turn(const ds_plan *p, const ds_plan_item *item, uint32_t turn, ds_buf *out)
{
    put_words(out, p->o.seed, text_id(4, item->index << 16 | turn), item->input_tokens);
}

uint64_t ds_plan_think_ns(const ds_plan *p, uint64_t index, uint32_t turn, uint64_t mean_ns)
{
    return (uint64_t)(-log1p(-ds_rng_unit(p->o.seed, THINK, index << 16 | turn)) * (double)mean_ns);
}

/* ---- traces ---- */

static bool grow(void **p, size_t *cap, size_t need, size_t size)
{
    size_t n = *cap ? *cap : 1024;
    void *q;

    if (need <= *cap)
        return true;
    while (n < need)
        n *= 2;
    q = realloc(*p, n * size);
    if (!q)
        return false;
    *p = q;
    *cap = n;
    return true;
}

static ds_rc read_line(ds_plan *p, const char *text, size_t n, ds_err *err)
{
    ds_json_doc *doc;
    const ds_json *root, *ids;
    uint64_t at, in, out, id;
    double ms;
    trace_line t = { .order = p->n_lines, .first = p->n_ids };
    ds_rc rc = ds_json_parse(&doc, text, n, NULL, err);

    if (rc != DS_OK)
        return rc;
    root = ds_json_root(doc);
    ids = ds_json_get(root, "hash_ids");
    if (ds_json_u64(ds_json_get(root, "timestamp"), &at))
        t.at_ms = at;
    else if (ds_json_f64(ds_json_get(root, "timestamp"), &ms) && ms >= 0 && ms < 1e15)
        t.at_ms = (uint64_t)ms;
    else
        rc = ds_fail(err, DS_E_FORMAT, "timestamp: milliseconds are wanted");
    if (rc == DS_OK && (!ds_json_u64(ds_json_get(root, "input_length"), &in) || in == 0 || in > 1 << 24))
        rc = ds_fail(err, DS_E_FORMAT, "input_length: 1 to %d is wanted", 1 << 24);
    if (rc == DS_OK && (!ds_json_u64(ds_json_get(root, "output_length"), &out) || out > 1 << 24))
        rc = ds_fail(err, DS_E_FORMAT, "output_length: up to %d is wanted", 1 << 24);
    if (rc == DS_OK && ids && !ds_json_is(ids, DS_JSON_ARRAY))
        rc = ds_fail(err, DS_E_FORMAT, "hash_ids: a list is wanted");
    for (const ds_json *x = rc == DS_OK && ids ? ids->child : NULL; x && rc == DS_OK; x = x->next) {
        if (!ds_json_u64(x, &id))
            rc = ds_fail(err, DS_E_FORMAT, "hash_ids: whole numbers are wanted");
        else if (!grow((void **)&p->ids, &p->cap_ids, p->n_ids + 1, sizeof *p->ids))
            rc = ds_fail(err, DS_E_NOMEM, "out of memory");
        else
            p->ids[p->n_ids++] = id;
    }
    ds_json_free(doc);
    if (rc != DS_OK)
        return rc;
    if (!grow((void **)&p->lines, &p->cap_lines, p->n_lines + 1, sizeof *p->lines))
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    t.input = (uint32_t)in;
    t.output = out ? (uint32_t)out : 1;
    t.n = p->n_ids - t.first;
    p->lines[p->n_lines++] = t;
    return DS_OK;
}

static int by_time(const void *a, const void *b)
{
    const trace_line *x = a, *y = b;

    if (x->at_ms != y->at_ms)
        return x->at_ms < y->at_ms ? -1 : 1;
    return x->order < y->order ? -1 : x->order > y->order;
}

static ds_rc read_trace(ds_plan *p, ds_err *err)
{
    FILE *f = fopen(p->o.trace, "re");
    char *line = NULL;
    size_t cap = 0, number = 0;
    ssize_t n;
    ds_rc rc = DS_OK;

    if (!f)
        return ds_fail(err, DS_E_IO, "%s: %s", p->o.trace, strerror(errno));
    while (rc == DS_OK && (n = getline(&line, &cap, f)) >= 0) {
        number++;
        if (n > LINE_MAX_BYTES)
            rc = ds_fail(err, DS_E_FORMAT, "longer than %d bytes", LINE_MAX_BYTES);
        else if (strspn(line, " \t\r\n") != (size_t)n)
            rc = read_line(p, line, (size_t)n, err);
        if (rc != DS_OK)
            ds_err_prefix(err, rc, "%s: line %zu: ", p->o.trace, number);
    }
    if (rc == DS_OK && ferror(f))
        rc = ds_fail(err, DS_E_IO, "%s: %s", p->o.trace, strerror(errno));
    if (rc == DS_OK && p->n_lines == 0)
        rc = ds_fail(err, DS_E_FORMAT, "%s: no requests in it", p->o.trace);
    free(line);
    fclose(f);
    if (rc == DS_OK)
        qsort(p->lines, p->n_lines, sizeof *p->lines, by_time);
    return rc;
}

/* ---- arrivals ---- */

static uint32_t length(const ds_plan *p, uint64_t stream, uint64_t index, uint32_t mean)
{
    double x = mean * (1.0 + p->o.spread * (2.0 * ds_rng_unit(p->o.seed, stream, index) - 1.0));

    return x < 1.0 ? 1 : (uint32_t)(x + 0.5);
}

bool ds_plan_next(ds_plan *p, ds_plan_item *out)
{
    ds_plan_item it = { .index = p->next };

    if (p->o.requests && p->next >= p->o.requests)
        return false;
    if (p->o.trace) {
        const trace_line *t;
        if (p->next >= p->n_lines)
            return false;
        t = &p->lines[p->next];
        it.at_ns = (uint64_t)((double)(t->at_ms - p->lines[0].at_ms) * 1e6 / (p->o.speed > 0 ? p->o.speed : 1.0));
        it.input_tokens = t->input;
        it.output_tokens = t->output;
        it.ids = p->ids ? p->ids + t->first : NULL;
        it.n_ids = t->n;
    } else {
        p->at_s += -log1p(-ds_rng_unit(p->o.seed, ARRIVAL, p->next)) / p->o.rate;
        it.at_ns = (uint64_t)(p->at_s * 1e9);
        it.input_tokens = length(p, INPUT, p->next, p->o.input_tokens);
        it.output_tokens = length(p, OUTPUT, p->next, p->o.output_tokens);
    }
    if (p->o.duration_ns && it.at_ns >= p->o.duration_ns)
        return false;
    p->next++;
    *out = it;
    return true;
}

ds_rc ds_plan_create(ds_plan **out, const ds_plan_opts *o, ds_err *err)
{
    ds_plan *p = calloc(1, sizeof *p);
    ds_rc rc = DS_OK;

    *out = NULL;
    if (!p)
        return ds_fail(err, DS_E_NOMEM, "load plan: out of memory");
    p->o = *o;
    if (o->trace)
        rc = read_trace(p, err);
    if (rc != DS_OK) {
        ds_plan_destroy(p);
        return rc;
    }
    *out = p;
    return DS_OK;
}

void ds_plan_destroy(ds_plan *p)
{
    if (!p)
        return;
    free(p->lines);
    free(p->ids);
    free(p);
}
