/* One piece to ids: byte-pair merging in order of rank, leftmost first (recipe spec 1.4), behind a cache of whole pieces.
 *
 * Three bodies give the same ids. Short pieces: an array of ranks, scanned for its minimum (the quadratic method, on at most
 * SHORT symbols). Long pieces: a heap of (rank, place) over a linked list, O(n log n). And before either, pieces are looked up in the cache, which is
 * a plain table that newer pieces overwrite: the ids of a piece depend on nothing but its bytes. */
#include <stdlib.h>
#include <string.h>

#include "recipe/tokenizer_internal.h"

#define SHORT 96           /* bytes */
#define CACHE_KEY_BYTES 24 /* pieces longer than this aren't cached */
#define CACHE_IDS 8
#define KEEP_BYTES ((size_t)1 << 20)

typedef struct {
    uint64_t key[3]; /* the piece, zero-padded */
    uint8_t len;     /* 0 = empty entry */
    uint8_t n;
    uint8_t unused[6];
    uint32_t id[CACHE_IDS];
} cache_entry; /* one cache line */

typedef struct {
    uint32_t rank, at;
} heap_entry;

struct ds_tok_bpe {
    const ds_tokenizer *t; /* [const] */
    cache_entry *cache;    /* [cache_mask + 1] */
    size_t cache_mask;
    /* scratch of the heap method, grown on demand */
    uint32_t *sym, *prev, *next;
    heap_entry *heap;
    size_t cap;            /* bytes of the longest piece it has room for */
};

ds_rc ds_tok_bpe_create(ds_tok_bpe **out, const ds_tokenizer *t, uint32_t cache_entries, ds_err *err)
{
    ds_tok_bpe *b = calloc(1, sizeof *b);
    size_t n = 1024;

    *out = NULL;
    while (n < cache_entries && n < (1u << 20))
        n *= 2;
    if (b)
        b->cache = aligned_alloc(64, n * sizeof *b->cache);
    if (!b || !b->cache) {
        ds_tok_bpe_destroy(b);
        return ds_fail(err, DS_E_NOMEM, "encoder: out of memory (piece cache of %zu entries)", n);
    }
    memset(b->cache, 0, n * sizeof *b->cache);
    b->cache_mask = n - 1;
    b->t = t;
    *out = b;
    return DS_OK;
}

static void drop_scratch(ds_tok_bpe *b)
{
    free(b->sym);
    free(b->prev);
    free(b->next);
    free(b->heap);
    b->sym = b->prev = b->next = NULL;
    b->heap = NULL;
    b->cap = 0;
}

void ds_tok_bpe_destroy(ds_tok_bpe *b)
{
    if (!b)
        return;
    drop_scratch(b);
    free(b->cache);
    free(b);
}

void ds_tok_bpe_trim(ds_tok_bpe *b)
{
    if (b->cap * 28 > KEEP_BYTES)
        drop_scratch(b);
}

static bool reserve_scratch(ds_tok_bpe *b, size_t n)
{
    if (n <= b->cap)
        return true;
    drop_scratch(b);
    b->sym = malloc(n * sizeof *b->sym);
    b->prev = malloc(n * sizeof *b->prev);
    b->next = malloc(n * sizeof *b->next);
    /* n - 1 pairs at first; a merge takes one entry out and puts at most two in */
    b->heap = malloc(2 * n * sizeof *b->heap);
    if (!b->sym || !b->prev || !b->next || !b->heap) {
        drop_scratch(b);
        return false;
    }
    b->cap = n;
    return true;
}

/* ids may receive up to n ids. Returns their number. */
static size_t merge_short(const ds_tokenizer *t, const uint8_t *p, size_t n, uint32_t *ids)
{
    uint32_t sym[SHORT];
    int32_t rank[SHORT + 1]; /* rank[i]: of merging sym[i] and sym[i + 1]; one more than needed, so that the last has no rank */
    size_t m = n;

    for (size_t i = 0; i < n; i++)
        sym[i] = t->byte_id[p[i]];
    for (size_t i = 0; i + 1 < n; i++)
        rank[i] = t->byte_rank[(size_t)p[i] << 8 | p[i + 1]];
    rank[n - 1] = DS_TOK_NO_RANK;
    for (;;) {
        int32_t best = DS_TOK_NO_RANK;
        size_t at = 0;

        for (size_t i = 0; i < m; i++)
            best = rank[i] < best ? rank[i] : best;
        if (best == DS_TOK_NO_RANK)
            break;
        while (rank[at] != best)
            at++;
        sym[at] = t->merge_id[best];
        memmove(sym + at + 1, sym + at + 2, (m - at - 2) * sizeof *sym);
        memmove(rank + at + 1, rank + at + 2, (m - at - 2) * sizeof *rank);
        m--;
        if (at > 0)
            rank[at - 1] = ds_tok_rank(t, sym[at - 1], sym[at]);
        rank[at] = at + 1 < m ? ds_tok_rank(t, sym[at], sym[at + 1]) : DS_TOK_NO_RANK;
    }
    memcpy(ids, sym, m * sizeof *ids);
    return m;
}

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

static void sift_up(heap_entry *h, size_t i)
{
    heap_entry e = h[i];

    for (; i > 0 && less(e, h[(i - 1) / 2]); i = (i - 1) / 2)
        h[i] = h[(i - 1) / 2];
    h[i] = e;
}

/* A place that was merged into its left neighbour has no symbol. A heap entry is stale when the pair at its place no longer has its rank. */
static size_t merge_long(ds_tok_bpe *b, const uint8_t *p, size_t n, uint32_t *ids)
{
    const ds_tokenizer *t = b->t;
    uint32_t *sym = b->sym, *prev = b->prev, *next = b->next;
    heap_entry *h = b->heap;
    size_t hn = 0, m = 0;

    for (size_t i = 0; i < n; i++) {
        sym[i] = t->byte_id[p[i]];
        prev[i] = (uint32_t)i - 1; /* UINT32_MAX before the first */
        next[i] = (uint32_t)i + 1; /* n after the last */
    }
    for (size_t i = 0; i + 1 < n; i++) {
        int32_t rank = t->byte_rank[(size_t)p[i] << 8 | p[i + 1]];
        if (rank != DS_TOK_NO_RANK)
            h[hn++] = (heap_entry){ (uint32_t)rank, (uint32_t)i };
    }
    for (size_t i = hn / 2; i-- > 0;)
        sift_down(h, hn, i);
    while (hn) {
        heap_entry e = h[0];
        uint32_t right = next[e.at];
        int32_t rank;

        h[0] = h[--hn];
        if (hn)
            sift_down(h, hn, 0);
        if (sym[e.at] == DS_TOKEN_NONE || right == n || ds_tok_rank(t, sym[e.at], sym[right]) != (int32_t)e.rank)
            continue;
        sym[e.at] = t->merge_id[e.rank];
        sym[right] = DS_TOKEN_NONE;
        next[e.at] = next[right];
        if (next[right] < n) {
            prev[next[right]] = e.at;
            rank = ds_tok_rank(t, sym[e.at], sym[next[right]]);
            if (rank != DS_TOK_NO_RANK) {
                h[hn] = (heap_entry){ (uint32_t)rank, e.at };
                sift_up(h, hn++);
            }
        }
        if (prev[e.at] != UINT32_MAX) {
            rank = ds_tok_rank(t, sym[prev[e.at]], sym[e.at]);
            if (rank != DS_TOK_NO_RANK) {
                h[hn] = (heap_entry){ (uint32_t)rank, prev[e.at] };
                sift_up(h, hn++);
            }
        }
    }
    for (size_t i = 0; i < n; i = next[i])
        ids[m++] = sym[i];
    return m;
}

/* The piece as three words, zero-padded. */
static inline void load_key(uint64_t key[3], const uint8_t *p, size_t n, const uint8_t *end)
{
    if (n <= 8 && end - p >= 8) {
        memcpy(key, p, 8);
        key[0] &= n == 8 ? UINT64_MAX : ((uint64_t)1 << (8 * n)) - 1;
        key[1] = key[2] = 0;
        return;
    }
    key[0] = key[1] = key[2] = 0;
    memcpy(key, p, n);
}

bool ds_tok_bpe_piece(ds_tok_bpe *b, const uint8_t *p, size_t n, const uint8_t *end, ds_ids *ids)
{
    const ds_tokenizer *t = b->t;
    cache_entry *c = NULL;
    uint64_t key[3] = { 0, 0, 0 };
    size_t got;

    if (n <= CACHE_KEY_BYTES) {
        load_key(key, p, n, end);
        c = &b->cache[(ds_tok_mix(key[0] ^ n, 0x9e3779b97f4a7c15u) ^ ds_tok_mix(key[1] ^ 0xd6e8feb86659fd93u, key[2] ^ 0xa0761d6478bd642fu)) & b->cache_mask];
        if (c->len == n && c->key[0] == key[0] && c->key[1] == key[1] && c->key[2] == key[2]) {
            if (ids->cap - ids->n < CACHE_IDS && !ds_ids_reserve(ids, CACHE_IDS))
                return false;
            memcpy(ids->p + ids->n, c->id, sizeof c->id); /* a fixed size is faster; what is too much gets overwritten */
            ids->n += c->n;
            return true;
        }
    }
    if (!ds_ids_reserve(ids, n))
        return false;
    if (t->ignore_merges) {
        uint32_t id = ds_tok_find(t, p, n, false);
        if (id != DS_TOKEN_NONE) {
            ids->p[ids->n++] = id;
            return true;
        }
    }
    if (n <= SHORT) {
        got = merge_short(t, p, n, ids->p + ids->n);
    } else {
        if (!reserve_scratch(b, n))
            return false;
        got = merge_long(b, p, n, ids->p + ids->n);
    }
    if (c && got <= CACHE_IDS) {
        memcpy(c->key, key, sizeof key);
        memcpy(c->id, ids->p + ids->n, got * sizeof *c->id);
        c->len = (uint8_t)n;
        c->n = (uint8_t)got;
    }
    ids->n += got;
    return true;
}
