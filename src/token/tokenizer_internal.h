/* The loaded tokenizer and what its files share. Nothing here is for other folders.
 *
 *   file.c       tokenizer.json -> struct ds_tokenizer
 *   tokenizer.c  open, destroy, single tokens
 *   unicode.c    character classes
 *   scan.c       the released split pattern, by hand
 *   regex.c      any other split pattern, by PCRE2
 *   bpe.c        one piece -> ids; bpe_long.c: the long ones
 *   encode.c     text -> pieces -> ids; threads
 *   decode.c     ids -> text
 *   engram.c     the Engram classes */
#ifndef DS_TOKEN_TOKENIZER_INTERNAL_H
#define DS_TOKEN_TOKENIZER_INTERNAL_H

#include <stdint.h>
#include <string.h>

#include <ds/tokenizer.h>

#include "base/err.h"
#include "base/none.h"

/* Bounds of a file: an entry of the pair table packs two ids and a rank into 64 bits. */
#define DS_TOK_ID_BITS 20
#define DS_TOK_MAX_IDS (1u << DS_TOK_ID_BITS)
#define DS_TOK_MAX_MERGES ((1u << 24) - 2)
#define DS_TOK_NO_RANK INT32_MAX
#define DS_TOK_JOIN_LOG 20

/* ---- character classes ---- */

enum {
    DS_UC_LETTER = 1,   /* categories L and M */
    DS_UC_NUMBER = 2,   /* N */
    DS_UC_PUNCT = 4,    /* P and S */
    DS_UC_SPACE = 8,    /* White_Space */
    DS_UC_NEWLINE = 16, /* CR and LF, which are DS_UC_SPACE too */
    DS_UC_CJK = 32,     /* the ranges of the second split */
    DS_UC_ASCII_LETTER = 64,
    DS_UC_ASCII_PUNCT = 128,
}; /* no bit: none of these (control, format, unassigned) */

typedef struct {
    uint8_t ascii[128];
    uint8_t index[0x110000 >> 8]; /* block of each 256 characters */
    uint8_t block[256][256];
} ds_uc_table;

/* Fills in the classes of Unicode 16.0. */
void ds_uc_table_fill(ds_uc_table *t);

/* Whether Unicode 15.0 has this character: the version up to which every supported utf8proc folds alike. O(log
 * runs). */
bool ds_uc_assigned(uint32_t cp);

static inline uint8_t ds_uc_class(const ds_uc_table *t, uint32_t cp)
{
    return t->block[t->index[cp >> 8]][cp & 255];
}

/* ---- foreign split patterns ---- */

typedef struct ds_tok_regex ds_tok_regex;         /* a list of patterns, applied one after another */
typedef struct ds_tok_regex_ctx ds_tok_regex_ctx; /* one thread's memory for them */

/* Called for each piece in order; false stops. */
typedef bool ds_tok_piece_fn(void *arg, const char *p, size_t n);

ds_rc ds_tok_regex_create(ds_tok_regex **out, ds_err *err);
void ds_tok_regex_destroy(ds_tok_regex *r);
ds_rc ds_tok_regex_add(ds_tok_regex *r, const char *pattern, size_t n, ds_err *err);
ds_rc ds_tok_regex_ctx_create(ds_tok_regex_ctx **out, const ds_tok_regex *r, ds_err *err);
void ds_tok_regex_ctx_destroy(ds_tok_regex_ctx *c);
ds_rc ds_tok_regex_split(ds_tok_regex_ctx *c, const char *text, size_t n, ds_tok_piece_fn *fn, void *arg, ds_err *err);

/* ---- the tokenizer ---- */

typedef struct {
    uint32_t off; /* into bytes */
    uint32_t len : 27;
    uint32_t half : 1;    /* of a merge; only while loading */
    uint32_t literal : 1; /* spelled outside the byte alphabet: no piece can become it */
    uint32_t in_vocab : 1;
    uint32_t added : 1;
    uint32_t dropped : 1; /* DS_TOKEN_DROPPED */
} ds_tok_entry;

/* Hash table of tokens by their bytes, at most half full. A slot is the upper bits of the hash with id + 1 in the
 * lower ones; 0 = empty. */
typedef struct {
    uint64_t *slot;
    uint32_t n, cap; /* cap: 0 or a power of two */
} ds_tok_table;
#define DS_TOK_SLOT_ID ((1u << (DS_TOK_ID_BITS + 1)) - 1)

static inline size_t ds_tok_table_at(const ds_tok_table *table, uint64_t hash)
{
    return (size_t)(hash >> (64 - DS_TOK_ID_BITS - 2)) & (table->cap - 1);
}

struct ds_tokenizer {
    /* [const] after loading */
    uint8_t *bytes;      /* of all tokens */
    ds_tok_entry *entry; /* [n] */
    uint32_t n;
    uint32_t max_bytes;    /* of the longest token */
    uint32_t byte_id[256]; /* the token of each single byte */
    int32_t *byte_rank;    /* [65536] rank of a pair of bytes, first << 8 | second */
    uint64_t *pair;        /* hash table of merges: left << 44 | right << 24 | rank; all ones = empty */
    uint32_t pair_shift;   /* 64 - log2(slots) */
    uint32_t *merge_id;    /* [n_merges] result */
    uint32_t n_merges;
    ds_tok_table vocab, added;
    uint64_t seed;            /* of both, drawn at load */
    bool ordered;             /* every merge stands behind those that make its halves */
    bool ignore_merges;       /* a piece that is a token is that token */
    uint64_t *join_pair;      /* [1 << DS_TOK_JOIN_LOG bits] Bloom filter of neighbouring three-byte characters inside tokens */
    uint64_t join_byte[1024]; /* a bit for each pair of bytes where a token has only a part of such a character */
    uint32_t *char_id;        /* [65536] the token that each three-byte character merges to on its own; DS_NONE: several */
    ds_tok_regex *regex;      /* NULL: the released pattern, by hand */
    ds_uc_table uc;
};

static inline const uint8_t *ds_tok_bytes(const ds_tokenizer *t, uint32_t id)
{
    return t->bytes + t->entry[id].off;
}

static inline uint64_t ds_tok_mix(uint64_t a, uint64_t b)
{
    unsigned __int128 m = (unsigned __int128)a * b;
    return (uint64_t)m ^ (uint64_t)(m >> 64);
}

static inline uint64_t ds_tok_hash(const uint8_t *p, size_t n, uint64_t seed)
{
    uint64_t h = seed ^ n, w;

    for (; n >= 8; n -= 8, p += 8) {
        memcpy(&w, p, 8);
        h = ds_tok_mix(h ^ w, 0x9e3779b97f4a7c15u ^ seed);
    }
    w = 0;
    if (n >= 4) { /* the two halves overlap: with n in the hash, no two texts give the same words */
        uint32_t a, b;
        memcpy(&a, p, 4);
        memcpy(&b, p + n - 4, 4);
        w = (uint64_t)a << 32 | b;
    } else if (n) {
        w = (uint64_t)p[0] << 16 | (uint64_t)p[n / 2] << 8 | p[n - 1];
    }
    return ds_tok_mix(h ^ w, 0xd6e8feb86659fd93u ^ seed);
}

static inline bool ds_tok_same(const uint8_t *a, const uint8_t *b, size_t n)
{
    uint64_t x, y;
    uint32_t v, w, s, t;

    if (n < 4)
        return n == 0 || (a[0] == b[0] && a[n / 2] == b[n / 2] && a[n - 1] == b[n - 1]);
    if (n < 8) { /* the two words overlap, as below */
        memcpy(&v, a, 4);
        memcpy(&w, b, 4);
        memcpy(&s, a + n - 4, 4);
        memcpy(&t, b + n - 4, 4);
        return v == w && s == t;
    }
    for (size_t i = 0; i < n - 8; i += 8) {
        memcpy(&x, a + i, 8);
        memcpy(&y, b + i, 8);
        if (x != y)
            return false;
    }
    memcpy(&x, a + n - 8, 8);
    memcpy(&y, b + n - 8, 8);
    return x == y;
}

/* The first token of the table with this hash and these bytes, or DS_NONE. */
static inline uint32_t ds_tok_lookup(const ds_tokenizer *t, const ds_tok_table *table, uint64_t hash, const uint8_t *p, size_t n)
{
    if (table->n == 0)
        return DS_NONE;
    for (size_t i = ds_tok_table_at(table, hash); table->slot[i]; i = (i + 1) & (table->cap - 1)) {
        uint32_t id;

        if ((table->slot[i] ^ hash) & ~(uint64_t)DS_TOK_SLOT_ID)
            continue;
        id = (uint32_t)(table->slot[i] & DS_TOK_SLOT_ID) - 1;
        if (t->entry[id].len == n && ds_tok_same(ds_tok_bytes(t, id), p, n))
            return id;
    }
    return DS_NONE;
}

/* Id of the vocabulary token (or added token) with these bytes, or DS_NONE. */
uint32_t ds_tok_find(const ds_tokenizer *t, const uint8_t *p, size_t n, bool literal);
uint32_t ds_tok_find_added(const ds_tokenizer *t, const uint8_t *p, size_t n);

static inline size_t ds_tok_pair_slot(const ds_tokenizer *t, uint64_t key)
{
    return (size_t)(key * 0x9e3779b97f4a7c15u >> t->pair_shift);
}

/* Rank of merging two neighbours, or DS_TOK_NO_RANK. */
static inline int32_t ds_tok_rank(const ds_tokenizer *t, uint32_t left, uint32_t right)
{
    uint64_t key = (uint64_t)left << DS_TOK_ID_BITS | right;
    size_t mask = ((size_t)1 << (64 - t->pair_shift)) - 1;

    for (size_t i = ds_tok_pair_slot(t, key);; i = (i + 1) & mask) {
        uint64_t e = t->pair[i];
        if (e >> 24 == key)
            return (int32_t)(e & 0xffffff);
        if (e == UINT64_MAX)
            return DS_TOK_NO_RANK;
    }
}

/* The six bytes of two three-byte characters, mixed. */
static inline size_t ds_tok_join_bit(const uint8_t *a)
{
    uint64_t w = (uint64_t)a[0] << 40 | (uint64_t)a[1] << 32 | (uint64_t)a[2] << 24 | (uint64_t)a[3] << 16 | (uint64_t)a[4] << 8 | a[5];
    return (size_t)(w * 0x9e3779b97f4a7c15u >> (64 - DS_TOK_JOIN_LOG));
}

static inline bool ds_tok_bit(const uint64_t *bits, size_t i)
{
    return bits[i / 64] >> (i % 64) & 1;
}

/* a: two three-byte characters. False: no token reaches over the border between them, so that text around it can be
 * encoded in two parts. */
static inline bool ds_tok_may_join(const ds_tokenizer *t, const uint8_t *a)
{
    return ds_tok_bit(t->join_pair, ds_tok_join_bit(a)) || ds_tok_bit(t->join_byte, (size_t)a[2] << 8 | a[3]);
}

static inline bool ds_tok_is_lead3(uint8_t b)
{
    return b >= 0xe0 && b < 0xf0;
}

/* Code point of the three-byte character at p. */
static inline uint32_t ds_tok_char3(const uint8_t *p)
{
    return (uint32_t)(p[0] & 15) << 12 | (uint32_t)(p[1] & 63) << 6 | (p[2] & 63);
}

/* The character at p (p < end): its bytes, and its code point; 0 = not UTF-8. Same rules as ds_utf8_decode. */
static inline size_t ds_tok_decode(const uint8_t *p, const uint8_t *end, uint32_t *cp)
{
    uint32_t c = p[0];
    size_t left = (size_t)(end - p);

    if (c < 0x80) {
        *cp = c;
        return 1;
    }
    if (c >= 0xe0 && c < 0xf0) {
        uint32_t v;
        if (left < 3 || (p[1] & 0xc0) != 0x80 || (p[2] & 0xc0) != 0x80)
            return 0;
        v = (c & 15) << 12 | (uint32_t)(p[1] & 63) << 6 | (p[2] & 63);
        *cp = v;
        return v >= 0x800 && (v < 0xd800 || v > 0xdfff) ? 3 : 0;
    }
    if (c < 0xe0) {
        if (c < 0xc2 || left < 2 || (p[1] & 0xc0) != 0x80)
            return 0;
        *cp = (c & 31) << 6 | (p[1] & 63);
        return 2;
    }
    if (left < 4 || (p[1] & 0xc0) != 0x80 || (p[2] & 0xc0) != 0x80 || (p[3] & 0xc0) != 0x80)
        return 0;
    *cp = (c & 15) << 18 | (uint32_t)(p[1] & 63) << 12 | (uint32_t)(p[2] & 63) << 6 | (p[3] & 63);
    return c < 0xf5 && *cp >= 0x10000 && *cp < 0x110000 ? 4 : 0;
}

/* ---- the released split pattern ---- */

/* The three patterns of recipe spec 1.2, as the file spells them. */
extern const char *const ds_tok_released[3];

/* End of the piece that starts at p < end, where p is where a piece starts. */
const uint8_t *ds_tok_scan(const ds_uc_table *uc, const uint8_t *p, const uint8_t *end);

/* A place in (from, n) where every split of the whole text has a border, whatever follows or precedes; 0 = none.
 * O(distance). */
size_t ds_tok_safe_cut(const ds_tokenizer *t, const char *text, size_t n, size_t from);

/* ---- one piece ---- */

typedef struct ds_tok_bpe ds_tok_bpe; /* one thread's cache and scratch */

ds_rc ds_tok_bpe_create(ds_tok_bpe **out, const ds_tokenizer *t, uint32_t cache_entries, ds_err *err);
void ds_tok_bpe_destroy(ds_tok_bpe *b);
void ds_tok_bpe_trim(ds_tok_bpe *b); /* gives back scratch above 1 MiB */
/* Appends the ids of a piece. `end` is the end of readable memory behind p, >= p + n. False: out of memory, ids
 * unchanged. */
#define DS_TOK_SPARE_IDS 8 /* may be written behind the ids, within their capacity: it grows if it has less than that to spare */
bool ds_tok_bpe_piece(ds_tok_bpe *b, const uint8_t *p, size_t n, const uint8_t *end, ds_ids *ids);

/* Scratch for long pieces. NULL: out of memory. */
typedef struct ds_tok_long ds_tok_long;
ds_tok_long *ds_tok_long_create(const ds_tokenizer *t);
void ds_tok_long_destroy(ds_tok_long *l);
void ds_tok_long_trim(ds_tok_long *l, size_t keep_bytes);
/* ids has room for n. Returns their number, 0 when out of memory; n > 0. */
size_t ds_tok_long_merge(ds_tok_long *l, const uint8_t *p, size_t n, ds_token *ids);

bool ds_ids_reserve(ds_ids *ids, size_t more); /* false: out of memory */

/* The byte alphabet of recipe spec 1.3: code point of each byte, and byte + 1 of each code point below 0x144 (0 =
 * none). */
void ds_tok_alphabet(uint16_t of_byte[256], uint16_t of_char[0x144]);

#endif
