/* The JSON reader.
 *
 * One pass, no recursion: open containers stand on a small stack. Texts are decoded into one block that is as long
 * as the input, which is always enough: an escape is longer than what it stands for, a string loses its quotes, and
 * a number's NUL takes the place of the delimiter behind it. Nodes come from chunks of doubling size.
 *
 * Duplicate keys are resolved when an object closes: pairwise in small objects, else through a hash table that all
 * objects share. */
#include "base/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/json_internal.h"
#include "base/mem.h"
#include "base/utf8.h"

enum {
    DEFAULT_DEPTH = 128,
    FIRST_CHUNK = 128, /* nodes */
    PAIRWISE_MAX = 8,  /* members; up to here comparing all pairs is cheaper than a table */
    SLACK = 16,        /* bytes behind the texts: strings are copied 8 bytes at a time */
};

typedef struct chunk chunk;
struct chunk {
    chunk *next;
    ds_json node[];
};

struct ds_json_doc {
    chunk *chunks;
    char *texts;
    ds_json *root;
};

typedef struct {
    ds_json *node; /* NULL = free */
    uint64_t hash;
} slot;

typedef struct {
    ds_json *node; /* the open array or object */
    ds_json *last; /* its last child so far */
} frame;

typedef struct {
    const char *s; /* the input */
    size_t n, at;
    char *out; /* next free byte of doc->texts */
    ds_json_doc *doc;
    ds_json *free_node, *free_end;
    size_t chunk_nodes;
    uint64_t n_values, max_values;
    slot *slots; /* duplicate table, used anew by each large object */
    size_t n_slots;
    uint64_t seed;
    bool refuse_duplicates;
    ds_err *err;
} parser;

/* "line L, column C: what", both from 1, columns in characters. */
static ds_rc refuse(const parser *p, size_t at, const char *what)
{
    size_t line = 1, start = 0, column = 1;
    uint32_t cp;

    for (size_t i = 0; i < at; i++)
        if (p->s[i] == '\n') {
            line++;
            start = i + 1;
        }
    for (size_t i = start; i < at; column++) {
        size_t len = ds_utf8_decode(p->s + i, at - i, &cp);
        i += len ? len : 1;
    }
    return ds_fail(p->err, DS_E_FORMAT, "line %zu, column %zu: %s", line, column, what);
}

/* The same for something that isn't what the grammar wants here. */
static ds_rc refuse_found(const parser *p, size_t at, const char *expected)
{
    char what[160], q[40], found[48] = "the end of the text";

    if (at < p->n) {
        size_t len = p->n - at < 4 ? p->n - at : 4, cp_len;
        uint32_t cp;
        cp_len = ds_utf8_decode(p->s + at, len, &cp);
        snprintf(found, sizeof found, "'%s'", ds_quote(q, sizeof q, p->s + at, cp_len ? cp_len : 1));
    }
    snprintf(what, sizeof what, "expected %s, found %s", expected, found);
    return refuse(p, at, what);
}

static ds_rc no_memory(const parser *p)
{
    return ds_fail(p->err, DS_E_NOMEM, "JSON: out of memory for %zu bytes of text", p->n);
}

static ds_json *new_node(parser *p)
{
    chunk *c;
    size_t most = (p->n - p->at) / 2 + 1; /* values that the rest of the input can hold */

    if (p->free_node < p->free_end)
        return p->free_node++;
    if (p->chunk_nodes > most)
        p->chunk_nodes = most;
    c = ds_malloc_large(sizeof *c + p->chunk_nodes * sizeof(ds_json));
    if (!c)
        return NULL;
    c->next = p->doc->chunks;
    p->doc->chunks = c;
    p->free_node = c->node;
    p->free_end = c->node + p->chunk_nodes;
    p->chunk_nodes *= 2;
    return p->free_node++;
}

static inline void skip_space(parser *p)
{
    size_t at = p->at;

    while (at < p->n && (p->s[at] == ' ' || p->s[at] == '\n' || p->s[at] == '\r' || p->s[at] == '\t'))
        at++;
    p->at = at;
}

static int hex4(const char *s)
{
    int v = 0;

    for (int i = 0; i < 4; i++) {
        char c = s[i];
        int d = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (d < 0)
            return -1;
        v = v << 4 | d;
    }
    return v;
}

/* *s stands on a backslash; writes what the escape means to *out and moves both on. */
static ds_rc read_escape(const parser *p, const char **s, char **out)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char *at = *s, *hit;
    const size_t start = (size_t)(at - p->s), left = p->n - start;
    int unit, low;
    uint32_t cp;

    if (left < 2)
        return refuse(p, p->n, "the text ends inside a string");
    if (at[1] != 'u') {
        hit = at[1] ? strchr(from, at[1]) : NULL;
        if (!hit)
            return refuse(p, start, "unknown escape in a string");
        *(*out)++ = to[hit - from];
        *s = at + 2;
        return DS_OK;
    }
    unit = left < 6 ? -1 : hex4(at + 2);
    if (unit < 0)
        return refuse(p, start, "\\u needs four hexadecimal digits");
    *s = at + 6;
    cp = (uint32_t)unit;
    if (unit >= 0xd800 && unit < 0xe000) {
        low = left >= 12 && at[6] == '\\' && at[7] == 'u' ? hex4(at + 8) : -1;
        if (unit >= 0xdc00 || low < 0xdc00 || low > 0xdfff)
            return refuse(p, start, "lone surrogate escape");
        cp = 0x10000u + ((cp - 0xd800u) << 10) + ((uint32_t)low - 0xdc00u);
        *s = at + 12;
    }
    *out += ds_utf8_encode(*out, cp);
    return DS_OK;
}

/* Invalid UTF-8 somewhere in [at, p->n): names the place. */
static ds_rc refuse_utf8(const parser *p, size_t at)
{
    uint32_t cp;
    size_t len;

    while ((len = ds_utf8_decode(p->s + at, p->n - at, &cp)) > 0)
        at += len;
    return refuse(p, at, "invalid UTF-8");
}

/* p->at stands on the opening quote. The text is decoded to p->out. The position is kept in registers: stores to the
 * text could change *p for all that the compiler knows. */
static ds_rc read_string(parser *p, const char **text, uint32_t *text_len)
{
    const char *const begin = p->s + p->at + 1, *const end = p->s + p->n, *s = begin;
    char *const to = p->out, *o = to;
    uint64_t seen = 0; /* all bytes, or-ed: is there anything but ASCII? */
    ds_rc rc;

    for (;;) {
        unsigned char c;

        while (end - s >= 8) {
            uint64_t w, stop;
            size_t len;
            memcpy(&w, s, 8);
            memcpy(o, &w, 8);
            stop = ds_json_run_end(w);
            if (stop) {
                len = (size_t)__builtin_ctzll(stop) / 8;
                seen |= w & (stop ^ (stop - 1)); /* without what lies behind */
                s += len;
                o += len;
                break;
            }
            seen |= w;
            s += 8;
            o += 8;
        }
        if (s == end)
            return refuse(p, p->at, "the string that begins here doesn't end");
        c = (unsigned char)*s;
        if (c == '"')
            break;
        if (c == '\\') {
            rc = read_escape(p, &s, &o);
            if (rc != DS_OK)
                return rc;
        } else if (c < 0x20) {
            return refuse(p, (size_t)(s - p->s), "control character in a string; write it as an escape");
        } else { /* near the end of the input */
            seen |= c;
            *o++ = (char)c;
            s++;
        }
    }
    if ((seen & 0x8080808080808080u) && !ds_utf8_valid(begin, (size_t)(s - begin)))
        return refuse_utf8(p, (size_t)(begin - p->s));
    *o = '\0';
    *text = to;
    *text_len = (uint32_t)(o - to);
    p->at = (size_t)(s - p->s) + 1;
    p->out = o + 1;
    return DS_OK;
}

static inline bool is_digit(const parser *p, size_t at)
{
    return at < p->n && p->s[at] >= '0' && p->s[at] <= '9';
}

static ds_rc read_number(parser *p, ds_json *v)
{
    size_t at = p->at + (p->s[p->at] == '-'), len;

    if (!is_digit(p, at))
        return refuse_found(p, at, p->s[p->at] == '-' ? "a digit" : "a value");
    if (p->s[at] == '0' && is_digit(p, at + 1))
        return refuse(p, p->at, "a number can't begin with 0");
    while (is_digit(p, at))
        at++;
    if (at < p->n && p->s[at] == '.') {
        at++;
        if (!is_digit(p, at))
            return refuse_found(p, at, "a digit");
        while (is_digit(p, at))
            at++;
    }
    if (at < p->n && (p->s[at] == 'e' || p->s[at] == 'E')) {
        at++;
        if (at < p->n && (p->s[at] == '+' || p->s[at] == '-'))
            at++;
        if (!is_digit(p, at))
            return refuse_found(p, at, "a digit");
        while (is_digit(p, at))
            at++;
    }
    len = at - p->at;
    memcpy(p->out, p->s + p->at, len);
    p->out[len] = '\0';
    v->type = DS_JSON_NUMBER;
    v->text = p->out;
    v->text_len = (uint32_t)len;
    p->out += len + 1;
    p->at = at;
    return DS_OK;
}

static ds_rc read_word(parser *p, ds_json *v)
{
    static const struct {
        const char *word;
        size_t len;
        ds_json_type type;
    } words[] = { { "true", 4, DS_JSON_TRUE }, { "false", 5, DS_JSON_FALSE }, { "null", 4, DS_JSON_NULL } };

    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (p->n - p->at >= words[i].len && memcmp(p->s + p->at, words[i].word, words[i].len) == 0) {
            v->type = words[i].type;
            p->at += words[i].len;
            return DS_OK;
        }
    return refuse_found(p, p->at, "a value");
}

static inline bool same_key(const ds_json *a, const ds_json *b)
{
    return a->key_len == b->key_len && memcmp(a->key, b->key, a->key_len) == 0;
}

/* The value of `v`, which is about to leave the list, goes to the place of `first`. */
static ds_rc take_over(const parser *p, ds_json *first, const ds_json *v)
{
    char what[120], q[64];

    if (p->refuse_duplicates) {
        snprintf(what, sizeof what, "key \"%s\" stands twice in the object that ends here", ds_quote(q, sizeof q, v->key, v->key_len));
        return refuse(p, p->at, what);
    }
    first->type = v->type;
    first->n = v->n;
    first->text = v->text;
    first->text_len = v->text_len;
    first->child = v->child;
    return DS_OK;
}

/* Table for n keys, empty. */
static bool clear_slots(parser *p, uint32_t n, size_t *mask)
{
    size_t want = 32;

    while (want < (size_t)n * 2)
        want *= 2;
    *mask = want - 1;
    if (want > p->n_slots) {
        free(p->slots);
        p->slots = malloc(want * sizeof *p->slots);
        p->n_slots = p->slots ? want : 0;
        if (!p->slots)
            return false;
        if (p->seed == 0 && getrandom(&p->seed, sizeof p->seed, GRND_NONBLOCK) != (ssize_t)sizeof p->seed)
            p->seed = ds_now_ns() | 1; /* early at boot */
    }
    memset(p->slots, 0, want * sizeof *p->slots);
    return true;
}

/* Walks the members in order; the first of each key stays, with the last value. */
static ds_rc drop_duplicates(parser *p, ds_json *obj)
{
    ds_json *prev = NULL, *next;
    bool small = obj->n <= PAIRWISE_MAX;
    size_t mask = 0;
    ds_rc rc;

    if (!small && !clear_slots(p, obj->n, &mask))
        return no_memory(p);
    for (ds_json *v = (ds_json *)obj->child; v; v = next) {
        ds_json *first = NULL;

        next = (ds_json *)v->next;
        if (small) {
            for (ds_json *u = (ds_json *)obj->child; u != v && !first; u = (ds_json *)u->next)
                if (same_key(u, v))
                    first = u;
        } else {
            uint64_t h = ds_hash64(v->key, v->key_len, p->seed);
            size_t i = h & mask;
            while (p->slots[i].node && !(p->slots[i].hash == h && same_key(p->slots[i].node, v)))
                i = (i + 1) & mask;
            first = p->slots[i].node;
            if (!first)
                p->slots[i] = (slot){ v, h };
        }
        if (!first) {
            prev = v;
            continue;
        }
        rc = take_over(p, first, v);
        if (rc != DS_OK)
            return rc;
        prev->next = next; /* a duplicate is never the first */
        obj->n--;
    }
    return DS_OK;
}

/* p->at stands where a key should be; leaves it behind the colon. */
static ds_rc read_key(parser *p, const char **key, uint32_t *key_len)
{
    ds_rc rc;

    if (p->at == p->n || p->s[p->at] != '"')
        return refuse_found(p, p->at, "a key in quotes");
    rc = read_string(p, key, key_len);
    if (rc != DS_OK)
        return rc;
    skip_space(p);
    if (p->at == p->n || p->s[p->at] != ':')
        return refuse_found(p, p->at, "':'");
    p->at++;
    skip_space(p);
    return DS_OK;
}

/* The text from p->at on is one value. */
static ds_rc read_all(parser *p, uint32_t max_depth)
{
    frame stack[DS_JSON_MAX_DEPTH];
    size_t depth = 0; /* open containers */
    const char *key = NULL;
    uint32_t key_len = 0;
    ds_rc rc;

    skip_space(p);
    for (;;) { /* each turn reads one value, then everything up to where the next one begins */
        frame *f = depth ? &stack[depth - 1] : NULL;
        ds_json *v;
        char c = p->at < p->n ? p->s[p->at] : '\0';

        if (p->at == p->n)
            return refuse_found(p, p->at, "a value");
        if (p->n_values++ == p->max_values)
            return refuse(p, p->at, "too many values");
        v = new_node(p);
        if (!v)
            return no_memory(p);
        *v = (ds_json){ .key = key, .key_len = key_len };
        if (!f)
            p->doc->root = v;
        else if (f->last)
            f->last->next = v;
        else
            f->node->child = v;
        if (f) {
            f->last = v;
            f->node->n++;
        }
        rc = DS_OK;
        if (c == '"') {
            v->type = DS_JSON_STRING;
            rc = read_string(p, &v->text, &v->text_len);
        } else if (c == '{' || c == '[') {
            v->type = c == '{' ? DS_JSON_OBJECT : DS_JSON_ARRAY;
            if (depth == max_depth)
                return refuse(p, p->at, "nested too deep");
            stack[depth++] = (frame){ v, NULL };
            p->at++;
            skip_space(p);
            if (p->at == p->n || p->s[p->at] != (c == '{' ? '}' : ']')) {
                key = NULL;
                key_len = 0;
                rc = c == '{' ? read_key(p, &key, &key_len) : DS_OK;
                if (rc != DS_OK)
                    return rc;
                continue;
            }
            depth--; /* empty */
            p->at++;
        } else if (c == 't' || c == 'f' || c == 'n') {
            rc = read_word(p, v);
        } else {
            rc = read_number(p, v);
        }
        if (rc != DS_OK)
            return rc;

        for (;;) { /* behind a value */
            bool object;
            skip_space(p);
            if (depth == 0)
                return p->at == p->n ? DS_OK : refuse_found(p, p->at, "nothing more after the value");
            f = &stack[depth - 1];
            object = f->node->type == DS_JSON_OBJECT;
            c = p->at < p->n ? p->s[p->at] : '\0';
            if (c == ',') {
                p->at++;
                skip_space(p);
                key = NULL;
                key_len = 0;
                if (object && (rc = read_key(p, &key, &key_len)) != DS_OK)
                    return rc;
                break;
            }
            if (c != (object ? '}' : ']'))
                return refuse_found(p, p->at, object ? "',' or '}'" : "',' or ']'");
            rc = object && f->node->n > 1 ? drop_duplicates(p, f->node) : DS_OK;
            if (rc != DS_OK)
                return rc;
            p->at++;
            depth--;
        }
    }
}

ds_rc ds_json_parse(ds_json_doc **out, const char *text, size_t n, const ds_json_opts *opts, ds_err *err)
{
    uint32_t max_depth = opts && opts->max_depth ? opts->max_depth : DEFAULT_DEPTH;
    parser p = { .s = text, .n = n, .chunk_nodes = FIRST_CHUNK, .max_values = UINT64_MAX, .err = err };
    ds_rc rc;

    *out = NULL;
    if (n > UINT32_MAX)
        return ds_fail(err, DS_E_FORMAT, "JSON: %zu bytes of text, at most 4 GiB can be read", n);
    if (max_depth > DS_JSON_MAX_DEPTH)
        return ds_fail(err, DS_E_ARG, "JSON: max_depth %u is above %d", max_depth, DS_JSON_MAX_DEPTH);
    if (opts) {
        p.refuse_duplicates = opts->refuse_duplicates;
        if (opts->max_values)
            p.max_values = opts->max_values;
    }
    p.doc = calloc(1, sizeof *p.doc);
    if (!p.doc || !(p.doc->texts = malloc(n + SLACK))) {
        ds_json_free(p.doc);
        return no_memory(&p);
    }
    p.out = p.doc->texts;
    if (n >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)
        rc = refuse(&p, 0, "byte order mark");
    else
        rc = read_all(&p, max_depth);
    free(p.slots);
    if (rc != DS_OK) {
        ds_json_free(p.doc);
        return rc;
    }
    *out = p.doc;
    return DS_OK;
}

void ds_json_free(ds_json_doc *doc)
{
    if (!doc)
        return;
    for (chunk *c = doc->chunks, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    free(doc->texts);
    free(doc);
}

const ds_json *ds_json_root(const ds_json_doc *doc)
{
    return doc->root;
}
