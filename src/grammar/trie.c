/* The trie of a vocabulary.
 *
 * Nearly all tokens are plain text: they hold no quote, backslash, angle bracket or control character. A language that
 * goes on with any plain text at some place (inside a string) allows them all, so beside the trie of all tokens there
 * are smaller ones, without the plain tokens of up to so many characters, for places where as many are allowed. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/trie_internal.h"

/* Characters that something treats apart: JSON's, tags, ends of lines of regular expressions, the model's markup. */
static const char plain_text[] = "[^\\x00-\\x1f\"\\\\<\\x7f\\u2028\\u2029\\uff5c]*";

static int compare(const ds_token_trie *t, uint32_t a, uint32_t b)
{
    size_t n = t->at[a + 1] - t->at[a], m = t->at[b + 1] - t->at[b];
    int c = memcmp(t->bytes + t->at[a], t->bytes + t->at[b], n < m ? n : m);

    return c ? c : n != m ? (n > m) - (n < m) : (a > b) - (a < b);
}

/* Merge sort: the order needs the trie, which qsort can't give. */
static void sort_ids(const ds_token_trie *t, uint32_t *p, uint32_t *tmp, uint32_t n)
{
    uint32_t h = n / 2, i = 0, k = h, at = 0;

    if (n < 2)
        return;
    sort_ids(t, p, tmp, h);
    sort_ids(t, p + h, tmp, n - h);
    while (i < h || k < n)
        tmp[at++] = k == n || (i < h && compare(t, p[i], p[k]) < 0) ? p[i++] : p[k++];
    memcpy(p, tmp, n * sizeof *p);
}

static uint32_t common(const ds_token_trie *t, uint32_t a, uint32_t b)
{
    uint32_t n = t->at[a + 1] - t->at[a], m = t->at[b + 1] - t->at[b], same = 0;

    while (same < n && same < m && t->bytes[t->at[a] + same] == t->bytes[t->at[b] + same])
        same++;
    return same;
}

/* Bytes that languages mostly treat alike are of one kind. */
static void make_kinds(ds_token_trie *t)
{
    static const char apart[] = "_-. /:,\"\\\n+'()[]{}=<@";
    uint8_t n = 9;

    for (uint32_t b = 0; b < 256; b++)
        t->byte_kind[b] = b < 32 ? 0 : b < 128 ? 1 : b < 192 ? 2 : 3;
    for (uint32_t b = 'a'; b <= 'z'; b++) {
        t->byte_kind[b] = b <= 'f' ? 4 : 5;
        t->byte_kind[b - 'a' + 'A'] = b <= 'f' ? 6 : 7;
    }
    for (uint32_t b = '0'; b <= '9'; b++)
        t->byte_kind[b] = b == '0' ? n : 8;
    for (const char *p = apart; *p; p++)
        t->byte_kind[(uint8_t)*p] = ++n;
    assert(n < 32);
}

/* Nodes of a part whose order is there. open: room for max_depth + 2. */
static bool build_nodes(const ds_token_trie *t, trie_part *part, uint32_t *open)
{
    uint32_t n_before = 0;
    size_t total = 2;

    for (uint32_t i = 0; i < part->n_order; i++)
        total += t->at[part->order[i] + 1] - t->at[part->order[i]] - (i ? common(t, part->order[i - 1], part->order[i]) : 0);
    part->nodes = calloc(total, sizeof *part->nodes);
    if (!part->nodes)
        return false;
    part->n_nodes = 1;
    open[0] = 0;
    for (uint32_t i = 0; i < part->n_order; i++) {
        const char *p = t->bytes + t->at[part->order[i]];
        uint32_t n = t->at[part->order[i] + 1] - t->at[part->order[i]], same = i ? common(t, part->order[i - 1], part->order[i]) : 0;
        for (uint32_t d = n_before; d > same; d--)
            part->nodes[open[d]].skip = part->n_nodes;
        for (uint32_t d = same + 1; d <= n; d++) {
            open[d] = part->n_nodes;
            if (d == 1)
                part->child[(uint8_t)p[0]] = part->n_nodes;
            part->nodes[part->n_nodes++] = (trie_node){ .first = i, .depth = (uint16_t)d, .byte = (uint8_t)p[d - 1] };
        }
        n_before = n;
    }
    for (uint32_t d = 0; d <= n_before; d++)
        part->nodes[open[d]].skip = part->n_nodes;
    part->nodes[part->n_nodes] = (trie_node){ .first = part->n_order };
    memset(open, 0, ((size_t)t->max_depth + 2) * sizeof *open); /* now: kinds at each depth, of nodes whose parent comes next */
    for (uint32_t i = part->n_nodes; i-- > 0;) {
        trie_node *n = part->nodes + i;
        n->below = open[n->depth + 1];
        open[n->depth + 1] = 0;
        open[n->depth] |= n->below | 1u << t->byte_kind[n->byte];
    }
    return true;
}

/* What the trie holds of a token, but for the bytes around control tokens; NULL: it is never allowed. Bytes that are
 * in no UTF-8 are kept for those. */
static const char *token_bytes(const ds_tokenizer *tok, uint32_t id, size_t *len)
{
    const char *p = ds_tokenizer_bytes(tok, id, len);
    ds_token_kind kind = ds_tokenizer_kind(tok, id);

    if ((kind != DS_TOKEN_TEXT && kind != DS_TOKEN_CONTROL) || *len == 0 || *len >= UINT16_MAX - 2 || memchr(p, CONTROL_BEGIN, *len) ||
        memchr(p, CONTROL_END, *len))
        return NULL;
    return p;
}

/* All tokens in the order of their bytes. */
static bool take_tokens(ds_token_trie *t, const ds_tokenizer *tok, uint32_t *tmp)
{
    trie_part *all = &t->parts[0];
    size_t total = 0;

    for (uint32_t id = 0; id < t->n_tokens; id++) {
        size_t len;
        total += token_bytes(tok, id, &len) ? len + 2 : 0;
    }
    t->bytes = malloc(total + 1);
    if (!t->bytes)
        return false;
    total = 0;
    for (uint32_t id = 0; id < t->n_tokens; id++) {
        size_t len;
        const char *p = token_bytes(tok, id, &len);
        bool control = ds_tokenizer_kind(tok, id) == DS_TOKEN_CONTROL;
        t->at[id] = (uint32_t)total;
        if (!p)
            continue;
        if (control)
            t->bytes[total++] = (char)CONTROL_BEGIN;
        memcpy(t->bytes + total, p, len);
        total += len;
        if (control)
            t->bytes[total++] = (char)CONTROL_END;
        len += control ? 2 : 0;
        all->order[all->n_order++] = id;
        t->max_depth = len > t->max_depth ? (uint32_t)len : t->max_depth;
    }
    t->at[t->n_tokens] = (uint32_t)total;
    sort_ids(t, all->order, tmp, all->n_order);
    return true;
}

/* The automaton of plain text: a grammar's, written out. */
static ds_rc plain_rows(ds_token_trie *t, ds_err *err)
{
    ds_gstate state[MOST_ROWS];
    uint32_t n = 1;
    ds_grammar *g;
    ds_rc rc = ds_grammar_regex(&g, plain_text, sizeof plain_text - 1, NULL, err);

    if (rc != DS_OK)
        return rc;
    state[0] = ds_grammar_start(g);
    for (uint32_t row = 0; row < n && rc == DS_OK; row++)
        for (uint32_t b = 0; b < 256; b++) {
            ds_gstate to = ds_automaton_step(g, state[row], (uint8_t)b);
            uint32_t k = to && to != FAILED && ds_grammar_accepts(g, to) ? 0 : 1;
            if (to == FAILED) {
                rc = ds_grammar_failed(g, err);
                break;
            }
            if (to == 0) {
                t->plain[row][b] = NOT_PLAIN;
                continue;
            }
            while (k && k < n && state[k] != to)
                k++;
            if (k == n && n < MOST_ROWS)
                state[n++] = to;
            t->plain[row][b] = (uint8_t)(k < MOST_ROWS ? k : NOT_PLAIN);
        }
    memcpy(t->plain_class, g->class_of, sizeof t->plain_class);
    ds_grammar_destroy(g);
    return rc;
}

/* Characters of a plain token, the last one perhaps not complete; 0: it isn't plain. */
static uint32_t plain_length(const ds_token_trie *t, uint32_t id)
{
    uint32_t row = 0, length = 0;

    for (uint32_t at = t->at[id]; at < t->at[id + 1]; at++) {
        length += row == 0;
        row = t->plain[row][(uint8_t)t->bytes[at]];
        if (row == NOT_PLAIN)
            return 0;
    }
    return length;
}

/* Plain tokens sorted by length, and as bits. length: of each token in the order of their bytes. */
static bool sort_plain(ds_token_trie *t, const uint32_t *length)
{
    const trie_part *all = &t->parts[0];
    uint32_t n_words = ds_token_trie_words(t), n = 0, at = 0;

    for (uint32_t i = 0; i < all->n_order; i++) {
        t->longest = length[i] > t->longest ? length[i] : t->longest;
        n += length[i] > 0;
    }
    t->by_length = malloc(((size_t)n + 1) * sizeof *t->by_length);
    t->longer = calloc((size_t)t->longest + 2, sizeof *t->longer);
    if (!t->by_length || !t->longer)
        return false;
    for (uint32_t i = 0; i < all->n_order; i++)
        if (length[i])
            t->longer[length[i]]++;
    for (uint32_t k = 0; k <= t->longest; k++) { /* for now: where those of k characters begin */
        uint32_t of_k = t->longer[k];
        t->longer[k] = at;
        at += of_k;
    }
    for (uint32_t i = 0; i < all->n_order; i++)
        if (length[i])
            t->by_length[t->longer[length[i]]++] = all->order[i];
    for (uint32_t k = 1; k <= SHORT + 1; k++) {
        uint32_t to = k <= SHORT && k < t->longest ? t->longer[k] : n;
        t->shorter[k] = calloc((size_t)n_words + 1, sizeof *t->shorter[k]);
        if (!t->shorter[k])
            return false;
        for (uint32_t i = 0; i < to; i++)
            t->shorter[k][t->by_length[i] / 32] |= 1u << t->by_length[i] % 32;
    }
    return true;
}

/* Parts 1 and up. */
static bool make_parts(ds_token_trie *t, uint32_t *length)
{
    static const uint32_t most[N_PARTS] = { 0, 0, 16, 8, 4, 2 };
    const trie_part *all = &t->parts[0];

    for (uint32_t i = 0; i < all->n_order; i++)
        length[i] = plain_length(t, all->order[i]);
    if (!sort_plain(t, length))
        return false;
    for (uint32_t k = 1; k < N_PARTS; k++) {
        trie_part *part = &t->parts[k];
        part->most = most[k];
        part->plain = t->shorter[most[k] ? most[k] : SHORT + 1];
        part->order = malloc(((size_t)all->n_order + 1) * sizeof *part->order);
        if (!part->order)
            return false;
        for (uint32_t i = 0; i < all->n_order; i++)
            if (length[i] == 0 || (most[k] && length[i] > most[k]))
                part->order[part->n_order++] = all->order[i];
    }
    return true;
}

ds_rc ds_token_trie_create(ds_token_trie **out, const ds_tokenizer *tok, ds_err *err)
{
    ds_token_trie *t = calloc(1, sizeof *t);
    uint32_t n = ds_tokenizer_size(tok), *tmp = malloc(((size_t)n + 1) * sizeof *tmp), *open = NULL;
    ds_rc rc = DS_OK;
    bool ok = t && tmp;

    *out = NULL;
    if (ok) {
        t->n_tokens = n;
        t->parts[0].order = malloc(((size_t)n + 1) * sizeof *t->parts[0].order);
        t->at = malloc(((size_t)n + 1) * sizeof *t->at);
        ok = t->parts[0].order && t->at && take_tokens(t, tok, tmp) && (open = malloc(((size_t)t->max_depth + 2) * sizeof *open));
    }
    if (ok) {
        make_kinds(t);
        rc = plain_rows(t, err);
    }
    ok = ok && (rc != DS_OK || make_parts(t, tmp));
    for (uint32_t k = 0; k < N_PARTS && ok && rc == DS_OK; k++)
        ok = build_nodes(t, &t->parts[k], open);
    free(tmp);
    free(open);
    if (!ok)
        rc = ds_fail(err, DS_E_NOMEM, "token trie: out of memory");
    if (rc == DS_OK)
        *out = t;
    else
        ds_token_trie_destroy(t);
    return rc;
}

void ds_token_trie_destroy(ds_token_trie *t)
{
    if (!t)
        return;
    for (uint32_t k = 0; k < N_PARTS; k++) {
        free(t->parts[k].nodes);
        free(t->parts[k].order);
    }
    for (uint32_t k = 1; k <= SHORT + 1; k++)
        free(t->shorter[k]);
    free(t->by_length);
    free(t->longer);
    free(t->at);
    free(t->bytes);
    free(t);
}

uint32_t ds_token_trie_words(const ds_token_trie *t)
{
    return (t->n_tokens + 31) / 32;
}
