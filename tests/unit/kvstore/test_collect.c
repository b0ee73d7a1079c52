/* What leaves a full store: the functions, and on real requests next to exact LRU.
 *
 * With a trace as argument (lines of `hash_ids`, one for each block of a prompt's chain) it prints hit rates; as a
 * test it looks for ../shared/traces. */
#include <stdio.h>

#include "base/json.h"
#include "base/rng.h"
#include "kvstore/collect.h"
#include "test.h"

static void cutoffs(void **state)
{
    uint64_t used[1000];

    (void)state;
    for (size_t i = 0; i < 1000; i++)
        used[i] = ds_rng_u64(4, i, 0) >> (i % 3 ? 1 : 40); /* all digits matter */
    for (size_t keep = 0; keep <= 1001; keep += 77) {
        uint64_t cut = ds_collect_cutoff(used, 1000, keep);
        size_t stay = 0, above = 0;
        for (size_t i = 0; i < 1000; i++) {
            stay += used[i] >= cut;
            above += used[i] > cut;
        }
        assert_true(keep == 0 ? stay == 0 : keep >= 1000 ? stay == 1000 : stay >= keep && above < keep);
    }
    for (size_t i = 0; i < 10; i++)
        used[i] = 5; /* equal ones stay together */
    assert_int_equal(ds_collect_cutoff(used, 10, 3), 5);
}

static void choices(void **state)
{
    ds_collect_segment s[] = {
        { .segment = 1, .bytes = 100, .keep_bytes = 100 }, { .segment = 2, .bytes = 100, .keep_bytes = 50 },
        { .segment = 3, .bytes = 200, .keep_bytes = 10 },  { .segment = 4, .bytes = 100, .keep_bytes = 5 },
        { .segment = 5, .bytes = 100, .keep_bytes = 120 },
    };

    (void)state;
    assert_int_equal(ds_collect_choose(s, 5, 200), 2);
    assert_int_equal(s[0].segment, 3);
    assert_int_equal(s[1].segment, 4);
    assert_int_equal(ds_collect_choose(s, 5, 300), 3);
    assert_int_equal(ds_collect_choose(s, 5, 1000), 3); /* the others free nothing */
    assert_int_equal(ds_collect_choose(s, 0, 1), 0);
}

/* ---- requests ---- */

typedef struct {
    uint32_t *id; /* blocks of all requests, one request after the other */
    size_t n, cap;
    size_t *end; /* by request */
    uint32_t *tokens;
    size_t n_requests, cap_requests;
    uint32_t max_id;
} trace;

static void add_request(trace *t, const ds_json *o)
{
    const ds_json *ids = ds_json_get(o, "hash_ids");
    int64_t v;

    if (t->n_requests == t->cap_requests) {
        t->cap_requests = t->cap_requests ? 2 * t->cap_requests : 1024;
        t->end = realloc(t->end, t->cap_requests * sizeof *t->end);
        t->tokens = realloc(t->tokens, t->cap_requests * sizeof *t->tokens);
    }
    assert_true(ds_json_i64(ds_json_get(o, "input_length"), &v));
    t->tokens[t->n_requests] = (uint32_t)v;
    for (const ds_json *x = ids->child; x; x = x->next) {
        if (t->n == t->cap) {
            t->cap = t->cap ? 2 * t->cap : 4096;
            t->id = realloc(t->id, t->cap * sizeof *t->id);
        }
        assert_true(ds_json_i64(x, &v));
        t->id[t->n++] = (uint32_t)v;
        t->max_id = (uint32_t)v > t->max_id ? (uint32_t)v : t->max_id;
    }
    t->end[t->n_requests++] = t->n;
}

static bool read_trace(trace *t, const char *path)
{
    FILE *f = fopen(path, "r");
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;

    memset(t, 0, sizeof *t);
    if (!f)
        return false;
    while ((n = getline(&line, &cap, f)) > 0) {
        ds_json_doc *doc;
        ds_err err;
        assert_ok(ds_json_parse(&doc, line, (size_t)n, NULL, &err));
        add_request(t, ds_json_root(doc));
        ds_json_free(doc);
    }
    free(line);
    fclose(f);
    return true;
}

static void free_trace(trace *t)
{
    free(t->id);
    free(t->end);
    free(t->tokens);
}

enum { BLOCK_TOKENS = 512 };

/* Of a prompt, in tokens, when so many blocks are there. */
static uint64_t hit_tokens(uint32_t blocks, uint32_t tokens)
{
    uint64_t hit = (uint64_t)blocks * BLOCK_TOKENS;

    return hit < tokens ? hit : tokens;
}

/* Exact LRU of `cap` blocks; 0: no bound. Share of input tokens. A prompt's blocks are used from its end to its
 * beginning, so that what is in front is never older than what stands behind it. */
static double exact_lru(const trace *t, uint32_t cap)
{
    uint32_t ids = t->max_id + 1, *next = malloc((ids + 1) * sizeof *next), *prev = malloc((ids + 1) * sizeof *prev), head = ids, held = 0;
    uint8_t *there = calloc(ids, 1);
    uint64_t hit = 0, all = 0;

    next[head] = prev[head] = head;
    for (size_t r = 0, at = 0; r < t->n_requests; at = t->end[r++]) {
        uint32_t found = 0, n = (uint32_t)(t->end[r] - at);
        while (found < n && there[t->id[at + found]])
            found++;
        hit += hit_tokens(found, t->tokens[r]);
        all += t->tokens[r];
        for (uint32_t i = n; i-- > 0;) {
            uint32_t b = t->id[at + i];
            if (there[b]) {
                next[prev[b]] = next[b];
                prev[next[b]] = prev[b];
            } else {
                there[b] = 1;
                held++;
            }
            prev[b] = prev[head]; /* youngest in front of the head */
            next[b] = head;
            next[prev[head]] = b;
            prev[head] = b;
        }
        while (cap && held > cap) {
            uint32_t b = next[head];
            next[head] = next[b];
            prev[next[b]] = head;
            there[b] = 0;
            held--;
        }
    }
    free(next);
    free(prev);
    free(there);
    return (double)hit / (double)all;
}

/* The store's: segments that are written once, a bound on what all of them take, collection by cutoff and choice. */
typedef struct {
    uint32_t cap, per_segment, n_segments;
    uint64_t *used;    /* by block, 0: not there */
    uint32_t *segment; /* by block */
    uint32_t *list;    /* blocks that are there */
    uint32_t n_list;
    uint32_t *size, *live, *keep;
    uint32_t open, written; /* segment that is written to; blocks in all segments, dead ones too */
    uint64_t copied, saved;
    uint32_t ids;
} model;

static void put(model *m, uint32_t b)
{
    if (m->size[m->open] == m->per_segment) {
        m->open++;
        assert_true(m->open < m->n_segments);
    }
    m->size[m->open]++;
    m->segment[b] = m->open;
    m->written++;
}

/* As ds_kvs_room does it. */
static void collect(model *m, uint32_t more, uint32_t reserve)
{
    uint64_t *used = malloc((m->n_list + 1) * sizeof *used), cut;
    ds_collect_segment *s = malloc((m->open + 1) * sizeof *s);
    size_t n = 0, n_seg = 0, chosen;
    uint32_t away = more + reserve + m->cap / 128, old = away + m->cap / DS_COLLECT_SLACK;

    for (uint32_t i = 0; i < m->n_list; i++)
        used[n++] = m->used[m->list[i]];
    cut = ds_collect_cutoff(used, n, m->cap > old ? m->cap - old : 0);
    for (uint32_t i = 0; i <= m->open; i++)
        m->live[i] = m->keep[i] = 0;
    for (uint32_t i = 0; i < m->n_list; i++) {
        m->live[m->segment[m->list[i]]]++;
        m->keep[m->segment[m->list[i]]] += m->used[m->list[i]] >= cut;
    }
    for (uint32_t i = 0; i < m->open; i++)
        if (m->size[i])
            s[n_seg++] =
                (ds_collect_segment){ .segment = i, .bytes = m->size[i], .live = m->live[i], .keep = m->keep[i], .keep_bytes = m->keep[i] };
    chosen = ds_collect_choose(s, n_seg, m->written + away > m->cap ? m->written + away - m->cap : 0);
    uint8_t *goes = calloc(m->open + 1, 1);
    for (size_t i = 0; i < chosen; i++)
        goes[s[i].segment] = 1;
    for (uint32_t i = 0, last = m->open; i < m->n_list; i++) {
        uint32_t b = m->list[i];
        if (m->segment[b] >= last || !goes[m->segment[b]])
            continue;
        if (m->used[b] < cut) {
            m->used[b] = 0;
            m->list[i--] = m->list[--m->n_list];
        } else {
            put(m, b);
            m->copied++;
        }
    }
    for (size_t i = 0; i < chosen; i++) {
        m->written -= m->size[s[i].segment];
        m->size[s[i].segment] = 0;
    }
    free(goes);
    free(used);
    free(s);
}

static double by_segments(const trace *t, uint32_t cap, double *amplification)
{
    model m = { .cap = cap, .per_segment = cap / 128 ? cap / 128 : 1, .ids = t->max_id + 1 };
    uint32_t reserve = m.per_segment * 3 / 2;
    uint64_t hit = 0, all = 0, clock = 0;

    m.n_segments = (uint32_t)(16 * t->n / m.per_segment) + 16;
    m.used = calloc(m.ids, sizeof *m.used);
    m.segment = calloc(m.ids, sizeof *m.segment);
    m.list = calloc(m.ids, sizeof *m.list);
    m.size = calloc(m.n_segments, sizeof *m.size);
    m.live = calloc(m.n_segments, sizeof *m.live);
    m.keep = calloc(m.n_segments, sizeof *m.keep);
    for (size_t r = 0, at = 0; r < t->n_requests; at = t->end[r++]) {
        uint32_t found = 0, n = (uint32_t)(t->end[r] - at);
        clock++;
        while (found < n && m.used[t->id[at + found]]) {
            m.used[t->id[at + found]] = ds_collect_rank(clock, found);
            found++;
        }
        hit += hit_tokens(found, t->tokens[r]);
        all += t->tokens[r];
        for (int round = 0; round < 4 && m.written + (n - found) + reserve > cap; round++)
            collect(&m, n - found, reserve);
        if (m.written + (n - found) + reserve > cap)
            continue; /* refused: it is too much for this store */
        for (uint32_t i = 0; i < n; i++) {
            uint32_t b = t->id[at + i];
            if (!m.used[b]) {
                m.list[m.n_list++] = b;
                put(&m, b);
                m.saved++;
            }
            m.used[b] = ds_collect_rank(clock, i);
        }
        assert_true(m.written <= cap);
    }
    *amplification = m.saved ? (double)(m.saved + m.copied) / (double)m.saved : 1;
    free(m.used);
    free(m.segment);
    free(m.list);
    free(m.size);
    free(m.live);
    free(m.keep);
    return (double)hit / (double)all;
}

static const char *path = DS_TEST_ROOT "/../shared/traces/mooncake_conversation_trace.jsonl";

static void close_to_exact_lru(void **state)
{
    static const double shares[] = { 0.03, 0.05, 0.08, 0.10, 0.15, 0.20 };
    trace t;

    (void)state;
    if (!read_trace(&t, path)) {
        print_message("%s isn't there\n", path);
        skip();
    }
    uint8_t *seen = calloc(t.max_id + 1, 1);
    uint32_t distinct = 0;
    for (size_t i = 0; i < t.n; i++) {
        distinct += !seen[t.id[i]];
        seen[t.id[i]] = 1;
    }
    free(seen);
    print_message("%zu requests, %u different blocks, no bound: %.2f %%\n", t.n_requests, distinct, 100 * exact_lru(&t, 0));
    for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
        uint32_t cap = (uint32_t)(shares[i] * distinct);
        double amplification, lru = 100 * exact_lru(&t, cap), ours = 100 * by_segments(&t, cap, &amplification);
        print_message("%2.0f %% = %6u blocks: exact LRU %.2f %%, by segments %.2f %%, written %.2f times\n", 100 * shares[i], cap, lru,
                      ours, amplification);
        assert_true(ours > lru - 0.5);
    }
    free_trace(&t);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(cutoffs), cmocka_unit_test(choices), cmocka_unit_test(close_to_exact_lru) };

    if (argc > 1)
        path = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
