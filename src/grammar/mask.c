/* Masks: the trie of a vocabulary walked together with the automaton.
 *
 * What may follow a frame while its rule stays open doesn't depend on the stack: it is found once for each frame
 * ("head"), by a walk on a stack that nobody knows. Where that walk leaves the rule within a token, only the tokens
 * below that node of the trie are walked again, with the stack that there is. */
#include <stdlib.h>
#include <string.h>

#include "grammar/grammar_internal.h"

enum { FEW = 1024 /* ids: a head that allows fewer keeps a list */ };

typedef struct {
    uint32_t skip;  /* the next node that isn't below this one */
    uint32_t first; /* order[first .. next node's first): tokens that end here */
    uint16_t depth; /* bytes to here */
    uint8_t byte;
} trie_node;

struct ds_token_trie {
    trie_node *nodes; /* in preorder; 0 is the root; one more at the end */
    uint32_t n_nodes, n_tokens, max_depth, n_order;
    uint32_t *order; /* ids that may be allowed, sorted by bytes */
    uint32_t *at;    /* of each id: the offset of its bytes; at[n_tokens] is the end */
    char *bytes;
};

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

static void build_nodes(ds_token_trie *t, uint32_t *open)
{
    const char *before = "";
    uint32_t n_before = 0;

    t->nodes[0] = (trie_node){ 0 };
    t->n_nodes = 1;
    open[0] = 0;
    for (uint32_t i = 0; i < t->n_order; i++) {
        const char *p = t->bytes + t->at[t->order[i]];
        uint32_t n = t->at[t->order[i] + 1] - t->at[t->order[i]], same = 0;
        while (same < n && same < n_before && p[same] == before[same])
            same++;
        for (uint32_t d = n_before; d > same; d--)
            t->nodes[open[d]].skip = t->n_nodes;
        for (uint32_t d = same + 1; d <= n; d++) {
            open[d] = t->n_nodes;
            t->nodes[t->n_nodes++] = (trie_node){ .first = i, .depth = (uint16_t)d, .byte = (uint8_t)p[d - 1] };
        }
        before = p;
        n_before = n;
    }
    for (uint32_t d = 0; d <= n_before; d++)
        t->nodes[open[d]].skip = t->n_nodes;
    t->nodes[t->n_nodes] = (trie_node){ .first = t->n_order };
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

ds_rc ds_token_trie_create(ds_token_trie **out, const ds_tokenizer *tok, ds_err *err)
{
    ds_token_trie *t = calloc(1, sizeof *t);
    uint32_t n = ds_tokenizer_size(tok), *tmp = NULL, *open = NULL;
    size_t total = 0;

    *out = NULL;
    if (!t)
        return ds_fail(err, DS_E_NOMEM, "token trie: out of memory");
    t->n_tokens = n;
    for (uint32_t id = 0; id < n; id++) {
        size_t len;
        total += token_bytes(tok, id, &len) ? len + 2 : 0;
    }
    t->order = malloc(((size_t)n + 1) * sizeof *t->order);
    t->at = malloc(((size_t)n + 1) * sizeof *t->at);
    t->bytes = malloc(total + 1);
    t->nodes = malloc((total + 2) * sizeof *t->nodes);
    tmp = malloc(((size_t)n + 1) * sizeof *tmp);
    if (!t->order || !t->at || !t->bytes || !t->nodes || !tmp)
        goto oom;
    total = 0;
    for (uint32_t id = 0; id < n; id++) {
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
        t->order[t->n_order++] = id;
        t->max_depth = len > t->max_depth ? (uint32_t)len : t->max_depth;
    }
    t->at[n] = (uint32_t)total;
    open = malloc(((size_t)t->max_depth + 1) * sizeof *open);
    if (!open)
        goto oom;
    sort_ids(t, t->order, tmp, t->n_order);
    build_nodes(t, open);
    free(tmp);
    free(open);
    *out = t;
    return DS_OK;
oom:
    free(tmp);
    ds_token_trie_destroy(t);
    return ds_fail(err, DS_E_NOMEM, "token trie: out of memory");
}

void ds_token_trie_destroy(ds_token_trie *t)
{
    if (!t)
        return;
    free(t->nodes);
    free(t->order);
    free(t->at);
    free(t->bytes);
    free(t);
}

uint32_t ds_token_trie_words(const ds_token_trie *t)
{
    return (t->n_tokens + 31) / 32;
}

/* All tokens below a node that can be read from state s there are set in `words`. leaves: nodes where s->leaves are
 * noted in g->found. */
static bool walk(ds_grammar *g, const ds_token_trie *t, uint32_t node, ds_gstate s, uint32_t *words, bool leaves)
{
    uint32_t base = t->nodes[node].depth, end = t->nodes[node].skip;
    ds_gstate *path;

    while (g->path.n <= t->max_depth)
        if (!PUSH(g, g->path, 0))
            return false;
    path = g->path.p;
    path[0] = s;
    for (uint32_t i = node + 1; i < end;) {
        const trie_node *n = t->nodes + i;
        ds_gstate to = g->words.p[g->states.p[path[n->depth - 1 - base]].next + g->class_of[n->byte]];
        if (to == UNKNOWN && (to = ds_automaton_step(g, path[n->depth - 1 - base], n->byte)) == FAILED)
            return false;
        if (to == 0) {
            i = n->skip;
            continue;
        }
        path[n->depth - base] = to;
        for (uint32_t k = n[0].first; k < n[1].first; k++)
            words[t->order[k] / 32] |= 1u << t->order[k] % 32;
        if (leaves && g->states.p[to].leaves && !PUSH(g, g->found, i))
            return false;
        i++;
    }
    return true;
}

static bool take(ds_grammar *g, uint32_t **out, const uint32_t *p, uint32_t n)
{
    size_t bytes = n * sizeof *p;

    if (n == 0)
        return true;
    if (g->bytes + bytes > g->opts.max_bytes) {
        g->full = "bytes";
        return false;
    }
    *out = malloc(bytes);
    if (!*out)
        return false;
    g->bytes += bytes;
    memcpy(*out, p, bytes);
    return true;
}

static bool make_head(ds_grammar *g, const ds_token_trie *t, uint32_t frame)
{
    uint32_t n_words = ds_token_trie_words(t), *words = calloc(n_words + 1, sizeof *words), n = 0;
    ds_gstate s = ds_automaton_state(g, frame, STACK_OPEN);
    ds_head h = { 0 };
    bool ok = false;

    g->found.n = 0;
    if (!words || s == FAILED || (g->states.p[s].leaves && !PUSH(g, g->found, 0)) || !walk(g, t, 0, s, words, true))
        goto out;
    h.n_leaves = g->found.n;
    if (!take(g, &h.leaves, g->found.p, g->found.n))
        goto out;
    for (uint32_t i = 0; i < n_words; i++)
        n += (uint32_t)__builtin_popcount(words[i]);
    if (n >= FEW) {
        ok = take(g, &h.bits, words, n_words);
    } else {
        g->found.n = 0;
        for (uint32_t i = 0; i < n_words; i++)
            for (uint32_t w = words[i]; w; w &= w - 1)
                if (!PUSH(g, g->found, 32 * i + (uint32_t)__builtin_ctz(w)))
                    goto out;
        h.n_ids = n;
        ok = take(g, &h.ids, g->found.p, n);
    }
    ok = ok && PUSH(g, g->heads, h);
    if (ok)
        g->frames.p[frame].head = g->heads.n - 1;
out:
    if (!ok) {
        free(h.leaves);
        free(h.bits);
        free(h.ids);
    }
    free(words);
    return ok;
}

/* Tokens that may follow one place. The stack gets shorter with each turn. */
static bool add_place(ds_grammar *g, const ds_token_trie *t, uint32_t frame, uint32_t stack, uint32_t *words)
{
    for (;;) {
        const ds_head *h;
        bool root = false;
        uint32_t below, after;
        ds_gstate s = UNKNOWN;

        if (g->frames.p[frame].head == UNKNOWN && !make_head(g, t, frame))
            return false;
        h = g->heads.p + g->frames.p[frame].head;
        if (h->bits)
            for (uint32_t i = 0; i < ds_token_trie_words(t); i++)
                words[i] |= h->bits[i];
        for (uint32_t i = 0; i < h->n_ids; i++)
            words[h->ids[i] / 32] |= 1u << h->ids[i] % 32;
        if (stack == STACK_EMPTY)
            return true;
        after = g->stacks.p[stack].frame;
        below = g->stacks.p[stack].below;
        for (uint32_t i = 0; i < h->n_leaves; i++) {
            if (h->leaves[i] == 0) {
                root = true;
                continue;
            }
            if (s == UNKNOWN && (s = ds_automaton_state(g, after, below)) == FAILED)
                return false;
            if (!walk(g, t, h->leaves[i], s, words, false))
                return false;
        }
        if (!root)
            return true;
        frame = after;
        stack = below;
    }
}

/* Tokens that complete a forbidden text, `row` of which was read already, into g->kill_ids. Row 0: those that hold a
 * whole one; every other row then has, beside these, what goes on with its own beginning. */
static bool make_kill(ds_grammar *g, const ds_token_trie *t, uint32_t row)
{
    uint32_t first = g->kill_ids.n;
    uint16_t *path;

    for (uint32_t i = 0; i < t->n_order && row == 0; i++) { /* forbidden texts begin with '<' */
        const char *p = t->bytes + t->at[t->order[i]], *end = t->bytes + t->at[t->order[i] + 1];
        uint32_t at = 0;
        for (p = memchr(p, '<', (size_t)(end - p)); p && p < end && at != AVOIDED; p++)
            at = g->avoid[at][(uint8_t)*p];
        if (at == AVOIDED && !PUSH(g, g->kill_ids, t->order[i]))
            return false;
    }
    path = row ? malloc((t->max_depth + 1) * sizeof *path) : NULL;
    if (row && !path)
        return false;
    if (row)
        path[0] = (uint16_t)row;
    for (uint32_t i = 1; i < t->n_nodes && row;) {
        const trie_node *n = t->nodes + i;
        uint16_t to = g->avoid[path[n->depth - 1]][n->byte];
        path[n->depth] = to;
        for (uint32_t k = n->first; to == AVOIDED && k < t->nodes[n->skip].first; k++)
            if (!PUSH(g, g->kill_ids, t->order[k])) {
                free(path);
                return false;
            }
        i = to == 0 || to == AVOIDED ? n->skip : i + 1;
    }
    free(path);
    g->killed.p[2 * row] = first;
    g->killed.p[2 * row + 1] = g->kill_ids.n - first;
    return true;
}

static bool kill(ds_grammar *g, const ds_token_trie *t, uint32_t row, uint32_t *words)
{
    if (g->killed.p[2 * row] == UNKNOWN && !make_kill(g, t, row))
        return false;
    for (uint32_t i = 0; i < g->killed.p[2 * row + 1]; i++) {
        uint32_t id = g->kill_ids.p[g->killed.p[2 * row] + i];
        words[id / 32] &= ~(1u << id % 32);
    }
    return true;
}

ds_rc ds_grammar_mask(ds_grammar *g, const ds_token_trie *t, ds_gstate s, uint32_t *words, ds_err *err)
{
    ds_state at = g->states.p[s];

    if (g->trie && g->trie != t)
        return ds_fail(err, DS_E_ARG, "a grammar is used with one vocabulary");
    g->trie = t;
    memset(words, 0, ds_token_trie_words(t) * sizeof *words);
    for (uint32_t i = 0; i < at.n_kernel; i += 2)
        if (!add_place(g, t, g->words.p[at.kernel + i], g->words.p[at.kernel + i + 1], words))
            return ds_grammar_failed(g, err);
    if (g->avoid && !(kill(g, t, 0, words) && (at.avoid == 0 || kill(g, t, at.avoid, words))))
        return ds_grammar_failed(g, err);
    return DS_OK;
}

ds_rc ds_grammar_accept(ds_grammar *g, const ds_token_trie *t, ds_gstate *s, const uint32_t *ids, uint32_t n, uint32_t *taken, ds_err *err)
{
    for (*taken = 0; *taken < n; ++*taken) {
        uint32_t id = ids[*taken];
        size_t len = id < t->n_tokens ? t->at[id + 1] - t->at[id] : 0, got;
        ds_gstate to = *s;
        ds_rc rc = ds_grammar_read(g, &to, t->bytes + (len ? t->at[id] : 0), len, &got, err);
        if (rc != DS_OK)
            return rc;
        if (len == 0 || got < len)
            break;
        *s = to;
    }
    return DS_OK;
}

ds_rc ds_grammar_masks(ds_grammar *g, const ds_token_trie *t, ds_gstate s, const uint32_t *drafts, uint32_t n, uint32_t *words, size_t ld,
                       uint32_t *rows, ds_err *err)
{
    for (*rows = 0;;) {
        uint32_t taken;
        ds_rc rc = ds_grammar_mask(g, t, s, words + *rows * ld, err);
        if (rc != DS_OK)
            return rc;
        if (++*rows > n)
            return DS_OK;
        rc = ds_grammar_accept(g, t, &s, drafts + *rows - 1, 1, &taken, err);
        if (rc != DS_OK || taken == 0)
            return rc;
    }
}
