/* Merging of long pieces: the same ids as the scanned array of tokenizer_bpe.c, in bounded time on hostile text.
 *
 * Symbols are a linked list over the bytes of the piece. Where every merge stands behind the merges that make its
 * halves (t->ordered; so trainers write them), a merge only ever makes pairs of higher rank: pairs wait in one
 * bucket for each rank, the buckets are emptied in order, and time is linear. In one bucket places don't overlap,
 * except in a run of one symbol, which is merged from its left end. In files that are not ordered a heap of (rank,
 * place) decides, O(n log n). */
#include <stdlib.h>

#include "base/none.h"
#include "token/tokenizer_internal.h"

#define PAIRS 3 /* pairs ever waiting, for each byte: one at first, two more for each merge */

typedef struct {
    uint32_t at, link; /* place; next of the bucket */
} waiting;

typedef struct {
    uint32_t rank, at;
} heap_entry;

struct ds_tok_long {
    const ds_tokenizer *t;
    size_t n, cap; /* bytes of this piece; of the longest there is room for */
    uint32_t *sym; /* DS_NONE: merged into the symbol on its left */
    uint32_t *prev, *next;
    void *pairs; /* waiting[PAIRS * cap], or heap_entry */
    size_t n_pairs;
    /* buckets; empty between pieces */
    uint32_t *head;   /* [n_merges] */
    uint64_t *filled; /* a bit for each of them */
};

ds_tok_long *ds_tok_long_create(const ds_tokenizer *t)
{
    ds_tok_long *l = calloc(1, sizeof *l);

    if (!l)
        return NULL;
    l->t = t;
    l->head = malloc(((size_t)t->n_merges + 1) * sizeof *l->head);
    l->filled = calloc((size_t)t->n_merges / 64 + 1, sizeof *l->filled);
    if (!l->head || !l->filled) {
        ds_tok_long_destroy(l);
        return NULL;
    }
    for (uint32_t i = 0; i < t->n_merges; i++)
        l->head[i] = DS_NONE;
    return l;
}

static void drop(ds_tok_long *l)
{
    free(l->sym);
    free(l->prev);
    free(l->next);
    free(l->pairs);
    l->sym = l->prev = l->next = NULL;
    l->pairs = NULL;
    l->cap = 0;
}

void ds_tok_long_destroy(ds_tok_long *l)
{
    if (!l)
        return;
    drop(l);
    free(l->head);
    free(l->filled);
    free(l);
}

void ds_tok_long_trim(ds_tok_long *l, size_t keep_bytes)
{
    if (l && l->cap * (3 * sizeof(uint32_t) + PAIRS * sizeof(waiting)) > keep_bytes)
        drop(l);
}

static bool reserve(ds_tok_long *l, size_t n)
{
    if (n <= l->cap)
        return true;
    drop(l);
    l->sym = malloc(n * sizeof *l->sym);
    l->prev = malloc(n * sizeof *l->prev);
    l->next = malloc(n * sizeof *l->next);
    l->pairs = malloc(n * PAIRS * sizeof(waiting));
    if (!l->sym || !l->prev || !l->next || !l->pairs) {
        drop(l);
        return false;
    }
    l->cap = n;
    return true;
}

/* The symbol at `at` takes in its right neighbour. */
static inline void merge_at(ds_tok_long *l, uint32_t at, uint32_t id)
{
    uint32_t right = l->next[at], after = l->next[right];

    l->sym[at] = id;
    l->sym[right] = DS_NONE;
    l->next[at] = after;
    if (after < l->n)
        l->prev[after] = at;
}

/* Rank of the symbol at `at` with its right neighbour. */
static inline int32_t rank_at(const ds_tok_long *l, uint32_t at)
{
    uint32_t right = l->next[at];

    return right < l->n ? ds_tok_rank(l->t, l->sym[at], l->sym[right]) : DS_TOK_NO_RANK;
}

/* ---- buckets ---- */

static inline void wait_for(ds_tok_long *l, int32_t rank, uint32_t at)
{
    waiting *w = l->pairs;

    if (rank == DS_TOK_NO_RANK)
        return;
    w[l->n_pairs] = (waiting){ at, l->head[rank] };
    l->head[rank] = (uint32_t)l->n_pairs++;
    l->filled[rank / 64] |= (uint64_t)1 << (rank % 64);
}

/* All neighbours from the leftmost x of this run on. */
static void merge_run(ds_tok_long *l, uint32_t at, uint32_t id)
{
    uint32_t x = l->sym[at], first, last;

    while (l->prev[at] != DS_NONE && l->sym[l->prev[at]] == x)
        at = l->prev[at];
    first = at;
    do {
        merge_at(l, at, id);
        last = at;
        at = l->next[at];
    } while (at < l->n && l->sym[at] == x && l->next[at] < l->n && l->sym[l->next[at]] == x);
    if (l->prev[first] != DS_NONE)
        wait_for(l, rank_at(l, l->prev[first]), l->prev[first]);
    for (at = first;; at = l->next[at]) {
        wait_for(l, rank_at(l, at), at);
        if (at == last)
            break;
    }
}

static void empty_bucket(ds_tok_long *l, uint32_t rank)
{
    const waiting *w = l->pairs;
    uint32_t k = l->head[rank], id = l->t->merge_id[rank];

    l->head[rank] = DS_NONE;
    for (; k != DS_NONE; k = w[k].link) {
        uint32_t at = w[k].at;

        if (l->sym[at] == DS_NONE || rank_at(l, at) != (int32_t)rank)
            continue; /* one of the two has become something else meanwhile */
        if (l->sym[at] == l->sym[l->next[at]]) {
            merge_run(l, at, id);
            continue;
        }
        merge_at(l, at, id);
        if (l->prev[at] != DS_NONE)
            wait_for(l, rank_at(l, l->prev[at]), l->prev[at]);
        wait_for(l, rank_at(l, at), at);
    }
}

static void merge_by_bucket(ds_tok_long *l, const uint8_t *p)
{
    size_t words = (size_t)l->t->n_merges / 64 + 1;

    l->n_pairs = 0;
    /* from the right, so that buckets run from the left: memory likes it */
    for (size_t i = l->n - 1; i-- > 0;)
        wait_for(l, l->t->byte_rank[(size_t)p[i] << 8 | p[i + 1]], (uint32_t)i);
    for (size_t w = 0; w < words; w++) {
        while (l->filled[w]) {
            uint32_t bit = (uint32_t)__builtin_ctzll(l->filled[w]);
            l->filled[w] &= l->filled[w] - 1;
            empty_bucket(l, (uint32_t)(w * 64) + bit);
        }
    }
}

/* ---- heap ---- */

static inline bool less(heap_entry a, heap_entry b)
{
    return a.rank != b.rank ? a.rank < b.rank : a.at < b.at;
}

static void sift_down(heap_entry *h, size_t n, size_t i)
{
    heap_entry e = h[i];

    for (;;) {
        size_t c = 2 * i + 1;
        if (c >= n)
            break;
        if (c + 1 < n && less(h[c + 1], h[c]))
            c++;
        if (!less(h[c], e))
            break;
        h[i] = h[c];
        i = c;
    }
    h[i] = e;
}

static void push(ds_tok_long *l, int32_t rank, uint32_t at)
{
    heap_entry *h = l->pairs, e = { (uint32_t)rank, at };
    size_t i = l->n_pairs;

    if (rank == DS_TOK_NO_RANK)
        return;
    l->n_pairs++;
    for (; i > 0 && less(e, h[(i - 1) / 2]); i = (i - 1) / 2)
        h[i] = h[(i - 1) / 2];
    h[i] = e;
}

static void merge_by_heap(ds_tok_long *l, const uint8_t *p)
{
    heap_entry *h = l->pairs;

    l->n_pairs = 0;
    for (size_t i = 0; i + 1 < l->n; i++)
        push(l, l->t->byte_rank[(size_t)p[i] << 8 | p[i + 1]], (uint32_t)i);
    while (l->n_pairs) {
        heap_entry e = h[0];

        h[0] = h[--l->n_pairs];
        if (l->n_pairs)
            sift_down(h, l->n_pairs, 0);
        if (l->sym[e.at] == DS_NONE || rank_at(l, e.at) != (int32_t)e.rank)
            continue;
        merge_at(l, e.at, l->t->merge_id[e.rank]);
        if (l->prev[e.at] != DS_NONE)
            push(l, rank_at(l, l->prev[e.at]), l->prev[e.at]);
        push(l, rank_at(l, e.at), e.at);
    }
}

size_t ds_tok_long_merge(ds_tok_long *l, const uint8_t *p, size_t n, ds_token *ids)
{
    size_t m = 0;

    if (!reserve(l, n))
        return 0;
    l->n = n;
    for (size_t i = 0; i < n; i++) {
        l->sym[i] = l->t->byte_id[p[i]];
        l->prev[i] = (uint32_t)i - 1; /* DS_NONE before the first */
        l->next[i] = (uint32_t)i + 1; /* n after the last */
    }
    if (l->t->ordered)
        merge_by_bucket(l, p);
    else
        merge_by_heap(l, p);
    for (size_t i = 0; i < n; i = l->next[i])
        ids[m++] = l->sym[i];
    return m;
}
