/* One piece to ids: byte-pair merging in order of rank, leftmost first (recipe spec 1.4), behind a cache of whole
 * pieces.
 *
 * The cache is a plain table that newer pieces overwrite: the ids of a piece depend on nothing but its bytes. Short
 * pieces that it doesn't have are merged in an array of ranks that is scanned for its minimum (quadratic, on at most
 * SHORT symbols), long ones in tokenizer_bpe_long.c. */
#include <stdlib.h>
#include <string.h>

#include "token/tokenizer_internal.h"

#define SHORT 96           /* bytes */
#define CACHE_KEY_BYTES 24 /* pieces longer than this aren't cached */
#define CACHE_IDS DS_TOK_SPARE_IDS
#define KEEP_BYTES ((size_t)1 << 20)

typedef struct {
    uint64_t key[3]; /* the piece, zero-padded */
    uint8_t len;     /* 0 = empty entry */
    uint8_t n;
    uint8_t unused[6];
    ds_token id[CACHE_IDS];
} cache_entry; /* one cache line */

struct ds_tok_bpe {
    const ds_tokenizer *t; /* [const] */
    cache_entry *cache;    /* [cache_mask + 1] */
    size_t cache_mask;
    ds_tok_long *merger; /* NULL until a piece needs it */
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

void ds_tok_bpe_destroy(ds_tok_bpe *b)
{
    if (!b)
        return;
    ds_tok_long_destroy(b->merger);
    free(b->cache);
    free(b);
}

void ds_tok_bpe_trim(ds_tok_bpe *b)
{
    ds_tok_long_trim(b->merger, KEEP_BYTES);
}

/* Symbols to start from: bytes, but three-byte characters that are tokens where no token has only a part of them.
 * Whatever reaches over the borders of such a character has all of it, so its bytes merge among themselves first;
 * and since a merge stands behind those that make its halves, when they do so changes nothing for others. */
static size_t start_with_chars(const ds_tokenizer *t, const uint8_t *p, size_t n, uint32_t *sym)
{
    size_t m = 0;

    for (size_t i = 0; i < n;) {
        if (n - i >= 3 && ds_tok_is_lead3(p[i]) &&
            (i == 0 || (i >= 3 && ds_tok_is_lead3(p[i - 3]) && !ds_tok_bit(t->join_byte, (size_t)p[i - 1] << 8 | p[i]))) &&
            (i + 3 == n || (ds_tok_is_lead3(p[i + 3]) && !ds_tok_bit(t->join_byte, (size_t)p[i + 2] << 8 | p[i + 3])))) {
            uint32_t id = t->char_id[ds_tok_char3(p + i)];
            if (id != DS_NONE) {
                sym[m++] = id;
                i += 3;
                continue;
            }
        }
        sym[m++] = t->byte_id[p[i++]];
    }
    return m;
}

/* ids may receive up to n ids. Returns their number. */
static size_t merge_short(const ds_tokenizer *t, const uint8_t *p, size_t n, ds_token *ids)
{
    uint32_t sym[SHORT];
    int32_t rank[SHORT + 1]; /* rank[i]: of merging sym[i] and sym[i + 1]; one more than needed, so that the last has no rank */
    size_t m = n;

    if (t->ordered && n >= 3 && (ds_tok_is_lead3(p[0]) || ds_tok_is_lead3(p[1]))) {
        m = start_with_chars(t, p, n, sym);
        for (size_t i = 0; i + 1 < m; i++)
            rank[i] = ds_tok_rank(t, sym[i], sym[i + 1]);
    } else {
        for (size_t i = 0; i < n; i++)
            sym[i] = t->byte_id[p[i]];
        for (size_t i = 0; i + 1 < n; i++)
            rank[i] = t->byte_rank[(size_t)p[i] << 8 | p[i + 1]];
    }
    rank[m - 1] = DS_TOK_NO_RANK;
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
        c = &b->cache[(ds_tok_mix(key[0] ^ n, 0x9e3779b97f4a7c15u) ^
                       ds_tok_mix(key[1] ^ 0xd6e8feb86659fd93u, key[2] ^ 0xa0761d6478bd642fu)) &
                      b->cache_mask];
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
        if (id != DS_NONE) {
            ids->p[ids->n++] = (ds_token)id;
            return true;
        }
    }
    if (n <= SHORT) {
        got = merge_short(t, p, n, ids->p + ids->n);
    } else {
        if (!b->merger)
            b->merger = ds_tok_long_create(t);
        got = b->merger ? ds_tok_long_merge(b->merger, p, n, ids->p + ids->n) : 0;
        if (got == 0)
            return false;
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
