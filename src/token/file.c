/* tokenizer.json -> struct ds_tokenizer. (recipe spec 1.1, 1.5, 1.8)
 *
 * The file is read once, in whatever order its keys stand; only merges that stand before the vocabulary are passed
 * over and read afterwards. Every token goes into one byte arena as it comes. Whatever the encoder doesn't implement
 * exactly is refused. */
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "token/json_pull.h"
#include "token/tokenizer_internal.h"

typedef struct {
    ds_pull j;
    ds_tokenizer *t;
    ds_err *err;
    uint16_t of_byte[256], of_char[0x144];
    size_t n_bytes, cap_bytes; /* of t->bytes */
    uint32_t cap_ids;          /* of t->entry; entries above t->n are zero */
    size_t tokens;             /* that such a file may be expected to have: its bytes / 50, for a token and its merge. A power of two */
    const char *merges_at;     /* merges that stand before the vocabulary */
    bool have_vocab, have_merges, have_byte_level, have_model, have_splits;
    uint32_t cap_merges;
    ds_tok_regex *regex;
    uint32_t n_splits; /* patterns seen so far */
    bool released;     /* all of them are those of ds_tok_released, in order */
} loader;

static bool nomem(loader *l)
{
    return ds_pull_fail(&l->j, DS_E_NOMEM, "out of memory");
}

#define refuse(l, ...) ds_pull_fail(&(l)->j, DS_E_FORMAT, __VA_ARGS__)

/* ---- tokens ---- */

static bool reserve_bytes(loader *l, size_t more)
{
    size_t cap = l->cap_bytes ? l->cap_bytes : 8 * l->tokens;
    uint8_t *p;

    /* 8 spare bytes: lookups may read a word past the end */
    while (cap - 8 < l->n_bytes + more)
        cap *= 2;
    if (cap == l->cap_bytes)
        return true;
    p = l->cap_bytes ? realloc(l->t->bytes, cap) : ds_malloc_large(cap);
    if (!p)
        return nomem(l);
    l->t->bytes = p;
    l->cap_bytes = cap;
    return true;
}

static bool reserve_id(loader *l, uint32_t id)
{
    uint32_t cap = l->cap_ids ? l->cap_ids : (uint32_t)l->tokens;
    ds_tok_entry *p;

    while (cap <= id)
        cap *= 2;
    if (cap != l->cap_ids) {
        p = l->cap_ids ? realloc(l->t->entry, cap * sizeof *p) : ds_malloc_large(cap * sizeof *p);
        if (!p)
            return nomem(l);
        memset(p + l->cap_ids, 0, (cap - l->cap_ids) * sizeof *p);
        l->t->entry = p;
        l->cap_ids = cap;
    }
    if (id >= l->t->n)
        l->t->n = id + 1;
    return true;
}

/* Puts id, whose bytes are in place and have the hash h, into a table that is at most half full. *twin: one of the
 * same bytes that is there already. */
static bool table_add(loader *l, ds_tok_table *table, uint32_t id, uint64_t h, size_t first_cap, uint32_t *twin)
{
    const ds_tok_entry *e = l->t->entry;
    size_t i;

    *twin = DS_NONE;
    if (table->n + 1 > table->cap / 2) {
        ds_tok_table bigger = { .n = table->n, .cap = table->cap ? table->cap * 2 : (uint32_t)first_cap };
        bigger.slot = ds_malloc_large(bigger.cap * sizeof *bigger.slot);
        if (!bigger.slot)
            return nomem(l);
        memset(bigger.slot, 0, bigger.cap * sizeof *bigger.slot);
        for (uint32_t k = 0; k < table->cap; k++) {
            if (!table->slot[k])
                continue;
            for (i = ds_tok_table_at(&bigger, table->slot[k]); bigger.slot[i]; i = (i + 1) & (bigger.cap - 1))
                ;
            bigger.slot[i] = table->slot[k];
        }
        free(table->slot);
        *table = bigger;
    }
    for (i = ds_tok_table_at(table, h); table->slot[i]; i = (i + 1) & (table->cap - 1)) {
        uint32_t other = (uint32_t)(table->slot[i] & DS_TOK_SLOT_ID) - 1;
        if (!((table->slot[i] ^ h) & ~(uint64_t)DS_TOK_SLOT_ID) && e[other].len == e[id].len &&
            (table != &l->t->vocab || e[other].literal == e[id].literal) &&
            ds_tok_same(ds_tok_bytes(l->t, other), ds_tok_bytes(l->t, id), e[id].len))
            *twin = other;
    }
    table->slot[i] = (h & ~(uint64_t)DS_TOK_SLOT_ID) | (id + 1);
    table->n++;
    return true;
}

/* Characters of the byte alphabet to the bytes they stand for, at `out` (room for end - p). Returns the first other
 * character, or `end`. */
static const char *unmap_run(const loader *l, const char *p, const char *end, uint8_t *out, size_t *n)
{
    uint8_t *to = out;

    while (p < end) {
        uint32_t cp = (unsigned char)*p, len = 1;
        if (cp >= 0x80) { /* the text is valid UTF-8; two bytes reach to U+07FF */
            cp = cp < 0xe0 ? (cp & 31) << 6 | ((unsigned char)p[1] & 63u) : 0xffff;
            len = 2;
        }
        if (cp >= 0x144 || !l->of_char[cp])
            break;
        *to++ = (uint8_t)(l->of_char[cp] - 1);
        p += len;
    }
    *n = (size_t)(to - out);
    return p;
}

/* The bytes of a key, at `out` (room for s.n); *literal: it has characters outside the byte alphabet, and out is the
 * key itself. */
static size_t unmap(const loader *l, ds_span s, uint8_t *out, bool *literal)
{
    size_t n;

    *literal = unmap_run(l, s.p, s.p + s.n, out, &n) != s.p + s.n;
    if (!*literal)
        return n;
    memcpy(out, s.p, s.n);
    return s.n;
}

static const char *show(char buf[256], ds_span s)
{
    ds_quote(buf, 256, s.p, s.n);
    if (strlen(buf) > 100)
        memcpy(buf + ds_utf8_floor(buf, 97), "...", 4);
    return buf;
}

/* Fills t->join_pair and t->join_byte: where tokens reach over a border between three-byte characters. */
static void find_joins(ds_tokenizer *t, const uint8_t *w, size_t n)
{
    for (size_t p = 1; p < n; p++) {
        bool left, right;

        if (!ds_tok_is_lead3(w[p]) || w[p - 1] < 0x80)
            continue;
        left = p >= 3 && ds_tok_is_lead3(w[p - 3]) && (w[p - 2] & 0xc0) == 0x80 && (w[p - 1] & 0xc0) == 0x80;
        right = n - p >= 3;
        if (left && right) {
            size_t bit = ds_tok_join_bit(w + p - 3);
            t->join_pair[bit / 64] |= (uint64_t)1 << (bit % 64);
        } else {
            t->join_byte[((size_t)w[p - 1] << 8 | w[p]) / 64] |= (uint64_t)1 << (w[p] % 64);
        }
    }
}

static bool read_vocab(loader *l)
{
    ds_tokenizer *t = l->t;
    char buf[256];
    ds_span key;
    uint32_t id, twin;
    bool literal;

    if (l->have_vocab)
        return refuse(l, "a second vocabulary");
    l->have_vocab = true;
    /* duplicate keys are found by the token table, which costs nothing extra */
    if (!ds_pull_object(&l->j, true))
        return false;
    while (ds_pull_key(&l->j, &key)) {
        if (key.n == 0)
            return refuse(l, "an empty token");
        if (!reserve_bytes(l, key.n))
            return false;
        uint8_t *p = t->bytes + l->n_bytes;
        size_t n = unmap(l, key, p, &literal);
        uint64_t h = ds_tok_hash(p, n, t->seed ^ literal);
        if (t->vocab.n)
            __builtin_prefetch(&t->vocab.slot[ds_tok_table_at(&t->vocab, h)], 1);
        if (!literal)
            find_joins(t, p, n);
        if (!ds_pull_u32(&l->j, DS_TOK_MAX_IDS - 1, &id) || !reserve_id(l, id))
            return false;
        if (t->entry[id].in_vocab)
            return refuse(l, "the vocabulary has id %u twice", id);
        if (t->entry[id].added && (t->entry[id].len != n || memcmp(ds_tok_bytes(t, id), p, n) != 0))
            return refuse(l, "id %u is one token in the vocabulary and another in added_tokens", id);
        t->entry[id].off = (uint32_t)l->n_bytes;
        t->entry[id].len = (uint32_t)n & 0x7ffffff;
        t->entry[id].in_vocab = 1;
        t->entry[id].literal = literal;
        l->n_bytes += n;
        if (n == 1 && !literal)
            t->byte_id[*p] = id;
        if (!table_add(l, &t->vocab, id, h, 2 * l->tokens, &twin))
            return false;
        if (twin != DS_NONE)
            return refuse(l, "the vocabulary has \"%s\" twice", show(buf, key));
    }
    return l->j.rc == DS_OK;
}

/* Spellings that never reach a user, apart from the three sentence marks: placeholders. */
static bool is_dropped(ds_span s)
{
    static const char *const whole[] = {
        "<｜begin▁of▁sentence｜>",
        "<｜end▁of▁sentence｜>",
        "<｜▁pad▁｜>",
        "<｜place▁holder▁for▁copy｜>",
        "<｜place▁holder▁for▁pointer▁replace｜>",
        "<｜deepseek_image｜>", /* a request that repeats it as text is refused */
        "<｜image｜>",
    };
    static const struct {
        const char *head, *tail;
    } numbered[] = { { "<｜place▁holder▁no▁", "｜>" }, { "<|place_holder_mm_span_", "|>" } };

    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++) {
        if (ds_span_is(s, whole[i]))
            return true;
    }
    for (size_t i = 0; i < sizeof numbered / sizeof *numbered; i++) {
        size_t a = strlen(numbered[i].head), b = strlen(numbered[i].tail), k;
        if (s.n <= a + b || memcmp(s.p, numbered[i].head, a) != 0 || memcmp(s.p + s.n - b, numbered[i].tail, b) != 0)
            continue;
        for (k = a; k < s.n - b && s.p[k] >= '0' && s.p[k] <= '9'; k++)
            ;
        if (k == s.n - b)
            return true;
    }
    return false;
}

static bool add_token(loader *l, uint32_t id, ds_span s)
{
    ds_tokenizer *t = l->t;
    char buf[256];
    uint32_t twin;

    if (s.n == 0)
        return refuse(l, "added token %u is empty", id);
    if (s.n > 4096)
        return refuse(l, "added token %u has %zu bytes; the limit is 4096", id, s.n);
    if (!reserve_id(l, id) || !reserve_bytes(l, s.n))
        return false;
    if (t->entry[id].added)
        return refuse(l, "added_tokens has id %u twice", id);
    if (t->entry[id].in_vocab && (t->entry[id].len != s.n || memcmp(ds_tok_bytes(t, id), s.p, s.n) != 0))
        return refuse(l, "id %u is one token in the vocabulary and \"%s\" in added_tokens", id, show(buf, s));
    if (!t->entry[id].in_vocab) {
        memcpy(t->bytes + l->n_bytes, s.p, s.n);
        t->entry[id].off = (uint32_t)l->n_bytes;
        t->entry[id].len = (uint32_t)s.n & 0x7ffffff;
        l->n_bytes += s.n;
    }
    t->entry[id].added = 1;
    t->entry[id].dropped = is_dropped(s);
    if (!table_add(l, &t->added, id, ds_tok_hash(ds_tok_bytes(t, id), s.n, t->seed), 1024, &twin))
        return false;
    return twin == DS_NONE || refuse(l, "added_tokens has \"%s\" twice", show(buf, s));
}

static bool read_added(loader *l)
{
    if (ds_pull_null(&l->j))
        return true;
    if (!ds_pull_array(&l->j))
        return false;
    while (ds_pull_item(&l->j)) {
        uint32_t id = DS_NONE;
        char copy[4100];
        ds_span key, s, content = { NULL, 0 };

        if (!ds_pull_object(&l->j, false))
            return false;
        while (ds_pull_key(&l->j, &key)) {
            if (ds_span_is(key, "id")) {
                if (!ds_pull_u32(&l->j, DS_TOK_MAX_IDS - 1, &id))
                    return false;
            } else if (ds_span_is(key, "content")) {
                if (!ds_pull_string(&l->j, &s))
                    return false;
                content = (ds_span){ copy, s.n };
                memcpy(copy, s.p, s.n < sizeof copy ? s.n : sizeof copy);
            } else if (!ds_pull_skip(&l->j)) {
                return false;
            }
        }
        if (l->j.rc != DS_OK)
            return false;
        if (id == DS_NONE || !content.p)
            return refuse(l, "an added token without %s", content.p ? "id" : "content");
        if (!add_token(l, id, content))
            return false;
    }
    return l->j.rc == DS_OK;
}

/* ---- merges ---- */

/* Merges are read in blocks: looking up halves is a chain of cache misses, and those of a block overlap. */
enum { BLOCK = 32 };

typedef struct {
    const char *at;   /* in the file, for messages */
    size_t raw, n[2]; /* the halves as bytes, one after another in block.raw */
    bool literal[2];
    uint64_t hash[2];
    uint32_t id[3]; /* halves, result */
} merge;

typedef struct {
    merge m[BLOCK];
    uint32_t n;
    ds_buf raw;
} block;

/* Appends half k. */
static bool put_half(loader *l, block *b, merge *m, int k, ds_span s)
{
    if (s.n == 0)
        return refuse(l, "merge %u has an empty half", l->t->n_merges + b->n);
    if (!ds_buf_reserve(&b->raw, s.n))
        return nomem(l);
    m->n[k] = unmap(l, s, (uint8_t *)b->raw.p + b->raw.len, &m->literal[k]);
    b->raw.len += m->n[k];
    return true;
}

/* "left right" */
static bool put_halves(loader *l, block *b, merge *m, ds_span s)
{
    const char *end = s.p + s.n, *stop;
    uint8_t *out;

    if (!ds_buf_reserve(&b->raw, s.n))
        return nomem(l);
    out = (uint8_t *)b->raw.p + b->raw.len;
    stop = unmap_run(l, s.p, end, out, &m->n[0]);
    m->literal[0] = m->literal[1] = false;
    if (stop > s.p && stop + 1 < end && *stop == ' ' && unmap_run(l, stop + 1, end, out + m->n[0], &m->n[1]) == end) {
        b->raw.len += m->n[0] + m->n[1];
        return true;
    }
    stop = memchr(s.p, ' ', s.n); /* something is wrong with it */
    if (!stop || memchr(stop + 1, ' ', (size_t)(end - stop - 1)))
        return refuse(l, "merge %u is not two tokens with one space between them", l->t->n_merges + b->n);
    return put_half(l, b, m, 0, (ds_span){ s.p, (size_t)(stop - s.p) }) &&
           put_half(l, b, m, 1, (ds_span){ stop + 1, (size_t)(end - stop - 1) });
}

/* Reads a merge into the block and asks memory for the slots of its halves. */
static bool read_merge(loader *l, block *b)
{
    const ds_tokenizer *t = l->t;
    merge *m = &b->m[b->n];
    const uint8_t *p;
    ds_span s;

    m->raw = b->raw.len;
    if (ds_pull_peek(&l->j) == '[') {
        if (!ds_pull_array(&l->j))
            return false;
        for (int i = 0; i < 2; i++) {
            if (!ds_pull_item(&l->j))
                return l->j.rc != DS_OK ? false : refuse(l, "merge %u has %d halves", t->n_merges + b->n, i);
            if (!ds_pull_string(&l->j, &s) || !put_half(l, b, m, i, s))
                return false;
        }
        if (ds_pull_item(&l->j))
            return refuse(l, "merge %u has more than two halves", t->n_merges + b->n);
        if (l->j.rc != DS_OK)
            return false;
    } else if (!ds_pull_string(&l->j, &s) || !put_halves(l, b, m, s)) {
        return false;
    }
    m->at = l->j.p;
    p = (const uint8_t *)b->raw.p + m->raw;
    for (int k = 0; k < 2; p += m->n[k++]) {
        if (m->n[k] == 1 || !t->vocab.n)
            continue;
        m->hash[k] = ds_tok_hash(p, m->n[k], t->seed);
        __builtin_prefetch(&t->vocab.slot[ds_tok_table_at(&t->vocab, m->hash[k])]);
    }
    b->n++;
    return true;
}

/* Asks for what the look-ups of the block will touch behind their slots: first the entries, then the bytes. */
static void prefetch_halves(const ds_tokenizer *t, const block *b, bool bytes)
{
    for (uint32_t i = 0; i < b->n && t->vocab.n; i++) {
        for (int k = 0; k < 2; k++) {
            uint32_t id;
            if (b->m[i].n[k] == 1)
                continue;
            id = (uint32_t)(t->vocab.slot[ds_tok_table_at(&t->vocab, b->m[i].hash[k])] & DS_TOK_SLOT_ID);
            if (id == 0)
                continue;
            if (bytes)
                __builtin_prefetch(ds_tok_bytes(t, id - 1));
            else
                __builtin_prefetch(&t->entry[id - 1]);
        }
    }
}

static bool grow_pairs(loader *l)
{
    ds_tokenizer *t = l->t;
    size_t slots = (size_t)1 << (64 - t->pair_shift), mask = 2 * slots - 1;
    uint64_t *old = t->pair, *p = ds_malloc_large(2 * slots * sizeof *p);

    if (!p)
        return nomem(l);
    memset(p, 0xff, 2 * slots * sizeof *p);
    t->pair_shift--;
    for (size_t k = 0; k < slots; k++) {
        size_t i;
        if (old[k] == UINT64_MAX)
            continue;
        for (i = ds_tok_pair_slot(t, old[k] >> 24); p[i] != UINT64_MAX; i = (i + 1) & mask)
            ;
        p[i] = old[k];
    }
    free(old);
    t->pair = p;
    return true;
}

/* As the file spells it. */
static const char *spell(const loader *l, char buf[256], const uint8_t *raw, size_t n, bool literal)
{
    char text[512];
    size_t len = 0;

    for (size_t i = 0; i < n && !literal && len < sizeof text - 4; i++)
        len += ds_utf8_encode(text + len, l->of_byte[raw[i]]);
    return show(buf, literal ? (ds_span){ (const char *)raw, n } : (ds_span){ text, len });
}

/* Finds the ids of merge `number`. */
static bool resolve_merge(loader *l, const block *b, merge *m, uint32_t number, uint32_t guess)
{
    const ds_tokenizer *t = l->t;
    const uint8_t *raw = (const uint8_t *)b->raw.p + m->raw, *p = raw;
    size_t n = m->n[0] + m->n[1];
    char buf[256];

    for (int k = 0; k < 2; p += m->n[k++]) {
        if (m->literal[k])
            m->id[k] = DS_NONE;
        else
            m->id[k] = m->n[k] == 1 ? t->byte_id[*p] : ds_tok_lookup(t, &t->vocab, m->hash[k], p, m->n[k]);
        if (m->id[k] == DS_NONE || t->entry[m->id[k]].literal)
            return refuse(l, "merge %u: \"%s\" is not in the vocabulary", number, spell(l, buf, p, m->n[k], m->literal[k]));
    }
    m->id[2] = guess;
    if (guess >= t->n || !t->entry[guess].in_vocab || t->entry[guess].literal || t->entry[guess].len != n ||
        !ds_tok_same(ds_tok_bytes(t, guess), raw, n))
        m->id[2] = ds_tok_find(t, raw, n, false);
    if (m->id[2] == DS_NONE)
        return refuse(l, "merge %u: its result \"%s\" is not in the vocabulary", number, spell(l, buf, raw, n, false));
    return true;
}

static bool add_merge(loader *l, const block *b, const merge *m)
{
    ds_tokenizer *t = l->t;
    uint64_t key = (uint64_t)m->id[0] << DS_TOK_ID_BITS | m->id[1];
    size_t mask, i;

    if (t->n_merges == DS_TOK_MAX_MERGES)
        return refuse(l, "more than %u merges", DS_TOK_MAX_MERGES);
    if (t->n_merges == l->cap_merges) {
        uint32_t cap = l->cap_merges ? l->cap_merges * 2 : (uint32_t)l->tokens;
        uint32_t *p = realloc(t->merge_id, cap * sizeof *p);
        if (!p)
            return nomem(l);
        t->merge_id = p;
        l->cap_merges = cap;
    }
    if (t->n_merges >= (size_t)1 << (63 - t->pair_shift) && !grow_pairs(l))
        return false;
    mask = ((size_t)1 << (64 - t->pair_shift)) - 1;
    for (i = ds_tok_pair_slot(t, key); t->pair[i] != UINT64_MAX; i = (i + 1) & mask) {
        if (t->pair[i] >> 24 == key)
            return refuse(l, "merge %u is the same as merge %u", t->n_merges, (uint32_t)(t->pair[i] & 0xffffff));
    }
    t->pair[i] = key << 24 | t->n_merges;
    if (m->n[0] == 1 && m->n[1] == 1) {
        const uint8_t *raw = (const uint8_t *)b->raw.p + m->raw;
        t->byte_rank[(size_t)raw[0] << 8 | raw[1]] = (int32_t)t->n_merges;
    }
    t->merge_id[t->n_merges++] = m->id[2];
    if (t->entry[m->id[2]].half)
        t->ordered = false;
    t->entry[m->id[0]].half = t->entry[m->id[1]].half = 1;
    return true;
}

/* Puts the merges of a block into the tables. */
static bool finish_block(loader *l, block *b)
{
    ds_tokenizer *t = l->t;
    /* trainers number results in the order of the merges */
    uint32_t guess = t->n_merges ? t->merge_id[t->n_merges - 1] + 1 : 0;
    const char *back = l->j.p;
    bool ok = true;

    prefetch_halves(t, b, false);
    prefetch_halves(t, b, true);
    for (uint32_t i = 0; i < b->n && ok; i++) {
        l->j.p = b->m[i].at;
        ok = resolve_merge(l, b, &b->m[i], t->n_merges + i, guess);
        guess = b->m[i].id[2] + 1;
        __builtin_prefetch(&t->pair[ds_tok_pair_slot(t, (uint64_t)b->m[i].id[0] << DS_TOK_ID_BITS | b->m[i].id[1])], 1);
    }
    for (uint32_t i = 0; i < b->n && ok; i++) {
        l->j.p = b->m[i].at;
        ok = add_merge(l, b, &b->m[i]);
    }
    if (ok)
        l->j.p = back;
    b->n = 0;
    ds_buf_clear(&b->raw);
    return ok;
}

static bool read_merges(loader *l)
{
    block *b = calloc(1, sizeof *b);
    bool ok = true;

    l->have_merges = true;
    if (!b)
        return nomem(l);
    if (ds_pull_array(&l->j)) {
        while (ok && ds_pull_item(&l->j)) {
            ok = read_merge(l, b);
            if (ok && b->n == BLOCK)
                ok = finish_block(l, b);
        }
        if (ok && l->j.rc == DS_OK)
            finish_block(l, b);
    }
    ds_buf_free(&b->raw);
    free(b);
    return l->j.rc == DS_OK;
}

/* ---- the rest of the model ---- */

static bool read_type(loader *l, const char *wanted, const char *what)
{
    char buf[256];
    ds_span s;

    if (!ds_pull_string(&l->j, &s))
        return false;
    return ds_span_is(s, wanted) || refuse(l, "%s has type \"%s\"; only %s is supported", what, show(buf, s), wanted);
}

/* Null, or an empty string. */
static bool read_absent(loader *l, const char *what)
{
    ds_span s;

    if (ds_pull_null(&l->j))
        return true;
    return ds_pull_string(&l->j, &s) && (s.n == 0 || refuse(l, "%s is not supported", what));
}

static bool read_dropout(loader *l)
{
    const char *from;

    if (ds_pull_null(&l->j))
        return true;
    if (ds_pull_peek(&l->j) != '0')
        return refuse(l, "model.dropout is no number");
    from = l->j.p;
    if (!ds_pull_skip(&l->j))
        return false;
    for (const char *q = from; q < l->j.p && *q != 'e' && *q != 'E'; q++) {
        if (*q >= '1' && *q <= '9')
            return refuse(l, "model.dropout other than 0 is not supported");
    }
    return true;
}

static bool read_model(loader *l)
{
    ds_span key;
    bool flag, have_type = false;

    l->have_model = true;
    if (!ds_pull_object(&l->j, false))
        return false;
    while (ds_pull_key(&l->j, &key)) {
        bool ok;
        if (ds_span_is(key, "type")) {
            have_type = true;
            ok = read_type(l, "BPE", "model");
        } else if (ds_span_is(key, "vocab")) {
            ok = read_vocab(l);
        } else if (ds_span_is(key, "merges")) {
            if (l->have_vocab) {
                ok = read_merges(l);
            } else {
                ds_pull_peek(&l->j);
                l->merges_at = l->j.p;
                ok = ds_pull_skip(&l->j);
            }
        } else if (ds_span_is(key, "dropout")) {
            ok = read_dropout(l);
        } else if (ds_span_is(key, "continuing_subword_prefix")) {
            ok = read_absent(l, "model.continuing_subword_prefix");
        } else if (ds_span_is(key, "end_of_word_suffix")) {
            ok = read_absent(l, "model.end_of_word_suffix");
        } else if (ds_span_is(key, "ignore_merges")) {
            ok = ds_pull_null(&l->j) || (ds_pull_bool(&l->j, &flag) && ((l->t->ignore_merges = flag), true));
        } else {
            ok = ds_pull_skip(&l->j); /* unk_token, fuse_unk, byte_fallback matter only where a byte has no token */
        }
        if (!ok)
            return false;
    }
    if (l->j.rc != DS_OK)
        return false;
    if (!have_type)
        return refuse(l, "the model has no type");
    if (!l->have_vocab)
        return refuse(l, "the model has no vocab");
    if (l->merges_at) {
        const char *back = l->j.p;
        l->j.p = l->merges_at;
        if (!read_merges(l))
            return false;
        l->j.p = back;
    }
    return l->have_merges || refuse(l, "the model has no merges");
}

/* ---- how text is split ---- */

static bool read_pattern(loader *l)
{
    ds_span key, s;
    char buf[256];
    bool regex = false;

    if (!ds_pull_object(&l->j, false))
        return false;
    while (ds_pull_key(&l->j, &key)) {
        if (!ds_span_is(key, "Regex"))
            return refuse(l, "a split by \"%s\"; only Regex is supported", show(buf, key));
        regex = true;
        if (!ds_pull_string(&l->j, &s))
            return false;
        if (s.n > 65536)
            return refuse(l, "a pattern of %zu bytes; the limit is 65536", s.n);
        l->released = l->released && l->n_splits < 3 && ds_span_is(s, ds_tok_released[l->n_splits]);
        if (++l->n_splits > 16)
            return refuse(l, "more than 16 split patterns");
        ds_err why = { 0 };
        ds_rc rc = ds_tok_regex_add(l->regex, s.p, s.n, &why);
        if (rc != DS_OK)
            return ds_pull_fail(&l->j, rc, "%s", why.msg);
    }
    return l->j.rc == DS_OK && (regex || refuse(l, "a split without a pattern"));
}

/* GPT-2's pattern, which a ByteLevel with use_regex applies. */
static const char byte_level_pattern[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

typedef struct {
    const char *type_at, *list_at, *pattern_at; /* values of the members, to be read once the type is known */
    bool invert, isolated, prefix_space, use_regex;
} splitter;

static bool read_splitter(loader *l, bool nested);

/* Reads the value at p, then goes on where it was. */
static bool read_splitter_list(loader *l, const char *p)
{
    const char *back = l->j.p;

    l->j.p = p;
    if (!ds_pull_array(&l->j))
        return false;
    while (ds_pull_item(&l->j)) {
        if (!read_splitter(l, true))
            return false;
    }
    l->j.p = back;
    return l->j.rc == DS_OK;
}

static bool read_splitter(loader *l, bool nested)
{
    splitter s = { .prefix_space = true, .use_regex = true };
    char buf[256];
    const char *back;
    ds_span key, type;

    if (l->have_byte_level)
        return refuse(l, "a pre-tokenizer behind ByteLevel is not supported");
    if (!ds_pull_object(&l->j, false))
        return false;
    while (ds_pull_key(&l->j, &key)) {
        bool ok;
        ds_pull_peek(&l->j);
        if (ds_span_is(key, "invert")) {
            ok = ds_pull_bool(&l->j, &s.invert);
        } else if (ds_span_is(key, "add_prefix_space")) {
            ok = ds_pull_bool(&l->j, &s.prefix_space);
        } else if (ds_span_is(key, "use_regex")) {
            ok = ds_pull_bool(&l->j, &s.use_regex);
        } else if (ds_span_is(key, "behavior")) {
            ok = ds_pull_string(&l->j, &type);
            s.isolated = ok && ds_span_is(type, "Isolated");
        } else {
            if (ds_span_is(key, "type"))
                s.type_at = l->j.p;
            else if (ds_span_is(key, "pretokenizers"))
                s.list_at = l->j.p;
            else if (ds_span_is(key, "pattern"))
                s.pattern_at = l->j.p;
            ok = ds_pull_skip(&l->j);
        }
        if (!ok)
            return false;
    }
    if (l->j.rc != DS_OK)
        return false;
    if (!s.type_at)
        return refuse(l, "a pre-tokenizer without a type");
    back = l->j.p;
    l->j.p = s.type_at;
    if (!ds_pull_string(&l->j, &type))
        return false;
    if (ds_span_is(type, "Sequence") && !nested) {
        if (!s.list_at)
            return refuse(l, "a pre-tokenizer sequence without pretokenizers");
        if (!read_splitter_list(l, s.list_at))
            return false;
    } else if (ds_span_is(type, "Split")) {
        if (!s.isolated || s.invert)
            return refuse(l, "a split that isn't \"Isolated\", or is inverted, is not supported");
        if (!s.pattern_at)
            return refuse(l, "a split without a pattern");
        l->j.p = s.pattern_at;
        if (!read_pattern(l))
            return false;
    } else if (ds_span_is(type, "ByteLevel")) {
        if (s.prefix_space)
            return refuse(l, "ByteLevel with add_prefix_space is not supported");
        l->have_byte_level = true;
        if (s.use_regex) {
            ds_err why = { 0 };
            l->released = false;
            l->n_splits++;
            ds_rc rc = ds_tok_regex_add(l->regex, byte_level_pattern, sizeof byte_level_pattern - 1, &why);
            if (rc != DS_OK)
                return ds_pull_fail(&l->j, rc, "%s", why.msg);
        }
    } else {
        return refuse(l, "pre-tokenizer type \"%s\" is not supported", show(buf, type));
    }
    l->j.p = back;
    return true;
}

static bool read_pre_tokenizer(loader *l)
{
    l->have_splits = true;
    return read_splitter(l, false);
}

static bool read_normalizer(loader *l)
{
    ds_span key;
    bool sequence = false;
    const char *list = NULL, *back;

    if (ds_pull_null(&l->j))
        return true;
    if (!ds_pull_object(&l->j, false))
        return false;
    while (ds_pull_key(&l->j, &key)) {
        ds_pull_peek(&l->j);
        if (ds_span_is(key, "type")) {
            if (!read_type(l, "Sequence", "the normalizer"))
                return false;
            sequence = true;
        } else {
            if (ds_span_is(key, "normalizers"))
                list = l->j.p;
            if (!ds_pull_skip(&l->j))
                return false;
        }
    }
    if (l->j.rc != DS_OK)
        return false;
    if (!sequence || !list)
        return refuse(l, "the normalizer is no Sequence");
    back = l->j.p;
    l->j.p = list;
    if (!ds_pull_array(&l->j) || ds_pull_item(&l->j))
        return refuse(l, "the normalizer is not empty: text would not be encoded as it is");
    l->j.p = back;
    return l->j.rc == DS_OK;
}

static bool read_decoder(loader *l)
{
    ds_span key;
    bool have = false;

    if (ds_pull_null(&l->j))
        return true;
    if (!ds_pull_object(&l->j, false))
        return false;
    while (ds_pull_key(&l->j, &key)) {
        if (ds_span_is(key, "type")) {
            have = true;
            if (!read_type(l, "ByteLevel", "the decoder"))
                return false;
        } else if (!ds_pull_skip(&l->j)) {
            return false;
        }
    }
    return l->j.rc == DS_OK && (have || refuse(l, "the decoder has no type"));
}

static bool read_top(loader *l)
{
    ds_span key, s;
    char buf[256];

    if (!ds_pull_object(&l->j, false))
        return false;
    while (ds_pull_key(&l->j, &key)) {
        bool ok;
        if (ds_span_is(key, "version"))
            ok = ds_pull_string(&l->j, &s) && (ds_span_is(s, "1.0") || refuse(l, "version \"%s\"; only 1.0 is known", show(buf, s)));
        else if (ds_span_is(key, "added_tokens"))
            ok = read_added(l);
        else if (ds_span_is(key, "normalizer"))
            ok = read_normalizer(l);
        else if (ds_span_is(key, "pre_tokenizer"))
            ok = read_pre_tokenizer(l);
        else if (ds_span_is(key, "decoder"))
            ok = read_decoder(l);
        else if (ds_span_is(key, "model"))
            ok = read_model(l);
        else
            ok = ds_pull_skip(&l->j);
        if (!ok)
            return false;
    }
    return ds_pull_end(&l->j);
}

/* Notes a token of three bytes in t->char_id if its bytes merge to it. */
static void find_char(ds_tokenizer *t, uint32_t id)
{
    const uint8_t *w = ds_tok_bytes(t, id);
    int32_t left = t->byte_rank[(size_t)w[0] << 8 | w[1]], right = t->byte_rank[(size_t)w[1] << 8 | w[2]], last;

    if (left == DS_TOK_NO_RANK && right == DS_TOK_NO_RANK)
        return;
    if (left <= right)
        last = ds_tok_rank(t, t->merge_id[left], t->byte_id[w[2]]);
    else
        last = ds_tok_rank(t, t->byte_id[w[0]], t->merge_id[right]);
    if (last != DS_TOK_NO_RANK && t->merge_id[last] == id)
        t->char_id[ds_tok_char3(w)] = id;
}

/* What can be said only about the file as a whole. */
static ds_rc finish(loader *l)
{
    ds_tokenizer *t = l->t;

    if (!l->have_model)
        return ds_fail(l->err, DS_E_FORMAT, "no model");
    if (!l->have_splits || !l->have_byte_level)
        return ds_fail(l->err, DS_E_FORMAT, "no ByteLevel pre-tokenizer: the vocabulary would not be one of bytes");
    for (uint32_t id = 0; id < t->n; id++) {
        if (!t->entry[id].in_vocab && !t->entry[id].added)
            return ds_fail(l->err, DS_E_FORMAT, "no token has id %u, but there are ids up to %u", id, t->n - 1);
        if (t->entry[id].added && !t->entry[id].in_vocab) {
            uint8_t key[4096];
            bool literal;
            size_t n = unmap(l, (ds_span){ (const char *)ds_tok_bytes(t, id), t->entry[id].len }, key, &literal);
            uint32_t twin = ds_tok_find(t, key, n, literal);
            if (twin != DS_NONE)
                return ds_fail(l->err, DS_E_FORMAT, "added token %u stands in the vocabulary as id %u", id, twin);
        }
        if (t->entry[id].len > t->max_bytes)
            t->max_bytes = t->entry[id].len;
    }
    for (uint32_t b = 0; b < 256; b++) {
        if (t->byte_id[b] == DS_NONE)
            return ds_fail(l->err, DS_E_FORMAT, "no token for byte 0x%02x", b);
    }
    for (uint32_t id = 0; id < t->n; id++) {
        ds_tok_entry e = t->entry[id];
        if (e.in_vocab && !e.literal && e.len == 3 && ds_tok_is_lead3(t->bytes[e.off]))
            find_char(t, id);
    }
    /* a piece that is a token counts as a whole there: it must not be taken apart */
    if (t->ignore_merges)
        memset(t->join_byte, 0xff, sizeof t->join_byte);
    if (l->released && l->n_splits == 3)
        return DS_OK;
    t->regex = l->regex;
    l->regex = NULL;
    return DS_OK;
}

ds_rc ds_tokenizer_parse(ds_tokenizer **out, const char *json, size_t n, ds_err *err)
{
    loader *l = calloc(1, sizeof *l);
    ds_tokenizer *t = calloc(1, sizeof *t);
    ds_rc rc = DS_OK;

    *out = NULL;
    if (!l || !t) {
        free(l);
        free(t);
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    }
    l->t = t;
    l->err = err;
    l->released = true;
    for (l->tokens = 1024; l->tokens < n / 50; l->tokens *= 2)
        ;
    memset(t->byte_id, 0xff, sizeof t->byte_id);
    ds_tok_alphabet(l->of_byte, l->of_char);
    if (n > DS_TOKENIZER_FILE_MAX) {
        rc = ds_fail(err, DS_E_FORMAT, "%zu bytes; the limit is %u", n, DS_TOKENIZER_FILE_MAX);
        goto done;
    }
    if (getrandom(&t->seed, sizeof t->seed, GRND_NONBLOCK) != sizeof t->seed)
        t->seed = (uintptr_t)t; /* early at boot: unknown to whoever wrote the file, if not random */
    t->pair_shift = 63 - (uint32_t)__builtin_ctzll(l->tokens);
    t->pair = ds_malloc_large(2 * l->tokens * sizeof *t->pair);
    t->byte_rank = malloc(65536 * sizeof *t->byte_rank);
    t->join_pair = calloc((1 << DS_TOK_JOIN_LOG) / 64, sizeof *t->join_pair);
    t->char_id = malloc(65536 * sizeof *t->char_id);
    if (!t->pair || !t->byte_rank || !t->join_pair || !t->char_id) {
        rc = ds_fail(err, DS_E_NOMEM, "out of memory");
        goto done;
    }
    t->ordered = true;
    memset(t->pair, 0xff, 2 * l->tokens * sizeof *t->pair);
    memset(t->char_id, 0xff, 65536 * sizeof *t->char_id);
    for (size_t i = 0; i < 65536; i++)
        t->byte_rank[i] = DS_TOK_NO_RANK;
    rc = ds_tok_regex_create(&l->regex, err);
    if (rc != DS_OK)
        goto done;
    if (!ds_pull_init(&l->j, json, n, err) || !read_top(l))
        rc = l->j.rc;
    else
        rc = finish(l);
    if (rc == DS_OK)
        ds_uc_table_fill(&t->uc);
done:
    ds_pull_fini(&l->j);
    ds_tok_regex_destroy(l->regex);
    if (rc == DS_OK)
        *out = t;
    else
        ds_tokenizer_destroy(t);
    free(l);
    return rc;
}
