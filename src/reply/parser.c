/* Text, markers and states of the stream parser; tags and calls are in parser_call.c.
 *
 *   REASON --</think>--> CONTENT --block opener--> BLOCK --invoke--> TAG --> BODY --parameter--> TAG --> VALUE -->
 *   BODY ... BLOCK --> END
 *
 * One function, parser_scan(), walks all text: it jumps to the next byte that could matter, follows markers and stop
 * sequences from there, and passes on everything but the suffix that could still become one. */
#include <assert.h>
#include <endian.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "reply/parser_internal.h"

#define BIT(m) (1u << (m))
#define EOS_TEXT "<｜end▁of▁sentence｜>"

/* ---- creation ---- */

static void add_literal(ds_parser *p, marker cls, const char *const parts[4])
{
    literal *l = &p->lits[p->n_lits++];
    size_t n = 0;

    assert(p->n_lits <= MAX_LITERALS);
    for (int i = 0; i < 4; i++) {
        size_t k = strlen(parts[i]);
        assert(n + k < sizeof l->s);
        memcpy(l->s + n, parts[i], k);
        n += k;
    }
    l->cls = (uint8_t)cls;
    l->n = (uint8_t)n;
}

static void make_literals(ds_parser *p)
{
    static const char *const dsml[] = {
        "｜DSML｜", "|DSML|", "||DSML||", "｜｜DSML｜｜", "‖DSML‖",
    };
    static const struct {
        marker cls;
        bool close;
        const char *name;
    } tags[] = {
        { M_BLOCK_OPEN, false, "calls>" }, { M_BLOCK_OPEN, false, "tool_calls>" },       { M_BLOCK_OPEN, false, "function_calls>" },
        { M_BLOCK_CLOSE, true, "calls>" }, { M_BLOCK_CLOSE, true, "tool_calls>" },       { M_BLOCK_CLOSE, true, "function_calls>" },
        { M_INVOKE, false, "invoke" },     { M_INVOKE_NAME, false, "invoke name=\"" },   { M_INVOKE_CLOSE, true, "invoke>" },
        { M_PARAM, false, "parameter" },   { M_PARAM_NAME, false, "parameter name=\"" }, { M_PARAM_CLOSE, true, "parameter>" },
    };

    static const char *const rare[] = { "toolcalls>", "tool>" }; /* blocks while tools are declared */

    add_literal(p, M_THINK_OPEN, (const char *const[]){ "<think>", "", "", "" });
    add_literal(p, M_THINK_CLOSE, (const char *const[]){ "</think>", "", "", "" });
    add_literal(p, M_EOS, (const char *const[]){ EOS_TEXT, "", "", "" });
    for (size_t v = 0; v < (p->o.normalize_lookalikes ? 5 : 1); v++)
        for (size_t t = 0; t < sizeof tags / sizeof tags[0]; t++)
            for (int space = 0; space < 2; space++)
                add_literal(p, tags[t].cls, (const char *const[]){ tags[t].close ? "</" : "<", dsml[v], space ? " " : "", tags[t].name });
    for (size_t t = 0; p->o.tools == DS_PARSER_TOOLS_ON && t < 2; t++)
        for (int space = 0; space < (p->o.normalize_lookalikes ? 1 : 2); space++) { /* a set has room for so many */
            add_literal(p, M_BLOCK_OPEN, (const char *const[]){ "<", dsml[0], space ? " " : "", rare[t] });
            add_literal(p, M_BLOCK_CLOSE, (const char *const[]){ "</", dsml[0], space ? " " : "", rare[t] });
        }
}

static void make_set(ds_parser *p, state s, unsigned classes)
{
    marker_set *set = &p->sets[s];

    for (unsigned i = 0; i < p->n_lits; i++) {
        if (!(classes & BIT(p->lits[i].cls)))
            continue;
        assert(set->n < MAX_SET);
        if (p->lits[i].cls == M_THINK_OPEN)
            set->lead_only |= 1ull << set->n;
        set->all |= 1ull << set->n;
        set->lit[set->n++] = (uint8_t)i;
    }
}

static void make_sets(ds_parser *p)
{
    bool on = p->o.tools == DS_PARSER_TOOLS_ON;
    unsigned block = p->o.tools != DS_PARSER_TOOLS_OFF ? BIT(M_BLOCK_OPEN) : 0;

    make_set(p, S_REASON, BIT(M_THINK_OPEN) | BIT(M_THINK_CLOSE) | BIT(M_EOS) | (on && !p->o.strict_thinking ? block : 0));
    if (p->o.start == DS_PARSER_RAW)
        make_set(p, S_CONTENT, BIT(M_EOS));
    else
        make_set(p, S_CONTENT, BIT(M_THINK_CLOSE) | BIT(M_EOS) | block | (on && p->o.recover_orphan_invoke ? BIT(M_INVOKE_NAME) : 0));
    make_set(p, S_JSON_PRE, BIT(M_THINK_CLOSE) | block);
    make_set(p, S_JSON, BIT(M_EOS));
    make_set(p, S_JSON_AFTER, block);
    make_set(p, S_BLOCK, BIT(M_INVOKE) | BIT(M_BLOCK_CLOSE));
    make_set(p, S_BODY, BIT(M_PARAM) | BIT(M_INVOKE) | BIT(M_INVOKE_CLOSE) | BIT(M_BLOCK_CLOSE));
    make_set(p, S_VALUE, BIT(M_PARAM_CLOSE) | BIT(M_INVOKE_CLOSE) | BIT(M_BLOCK_CLOSE) | BIT(M_PARAM_NAME) | BIT(M_EOS));
    make_set(p, S_BAD, BIT(M_INVOKE_CLOSE) | BIT(M_BLOCK_CLOSE) | BIT(M_INVOKE_NAME) | BIT(M_EOS));
    make_set(p, S_ORPHAN, BIT(M_INVOKE_CLOSE) | BIT(M_EOS));
    p->sets[S_REASON].nl_max = SIZE_MAX;
    p->sets[S_CONTENT].nl_max = block ? SIZE_MAX : 0;
    p->sets[S_VALUE].nl_max = 1; /* before a close that isn't the parameter's own */
    p->sets[S_VALUE].swallow = BIT(M_INVOKE_CLOSE) | BIT(M_BLOCK_CLOSE) | BIT(M_PARAM_NAME);
    if (!p->o.preserve_newlines) {
        p->sets[S_REASON].swallow = BIT(M_THINK_CLOSE) | BIT(M_BLOCK_OPEN);
        p->sets[S_CONTENT].swallow = BIT(M_BLOCK_OPEN) | BIT(M_INVOKE_NAME);
    }
    p->sets[S_CONTENT].stops = p->sets[S_JSON].stops = p->sets[S_BAD].stops = true;
}

static ds_rc make_stops(ds_parser *p, const ds_parser_opts *o, ds_err *err)
{
    size_t bytes = 0;

    if (o->n_stops > DS_PARSER_MAX_STOPS)
        return ds_fail(err, DS_E_ARG, "stop: %zu sequences, at most %d are allowed", o->n_stops, DS_PARSER_MAX_STOPS);
    for (size_t i = 0; i < o->n_stops; i++) {
        if (o->stop_bytes[i] > 1u << 20)
            return ds_fail(err, DS_E_ARG, "stop: sequence %zu has %zu bytes, at most 1 MiB is allowed", i, o->stop_bytes[i]);
        bytes += o->stop_bytes[i];
    }
    p->special['<'] = true;
    if (bytes == 0)
        return DS_OK;
    p->stop_mem = malloc(bytes * (sizeof(uint32_t) + 1));
    if (!p->stop_mem)
        return ds_fail(err, DS_E_NOMEM, "stop: out of memory for %zu bytes", bytes);
    uint32_t *fail = p->stop_mem;
    uint8_t *text = (uint8_t *)(fail + bytes);
    for (size_t i = 0; i < o->n_stops; i++) {
        uint32_t n = (uint32_t)o->stop_bytes[i];
        if (n == 0)
            continue;
        stop *st = &p->stops[i]; /* keeps the caller's index: an ignored one has n = 0 */
        memcpy(text, o->stops[i], n);
        *st = (stop){ .s = text, .n = n, .fail = fail };
        p->special[text[0]] = true;
        fail[0] = 0;
        for (uint32_t j = 1, k = 0; j < n; j++) {
            while (k && text[j] != text[k])
                k = fail[k - 1];
            k += text[j] == text[k];
            fail[j] = k;
        }
        fail += n;
        text += n;
    }
    p->n_stops = (unsigned)o->n_stops;
    return DS_OK;
}

ds_rc ds_parser_create(ds_parser **out, const ds_parser_opts *opts, ds_err *err)
{
    ds_rc rc;
    ds_parser *p = calloc(1, sizeof *p);

    *out = NULL;
    if (!p)
        return ds_fail(err, DS_E_NOMEM, "parser: out of memory");
    p->o = *opts;
    p->stats.stop = -1;
    p->vcap = opts->max_value_bytes ? opts->max_value_bytes : 8u << 20;
    rc = make_stops(p, opts, err);
    if (rc != DS_OK)
        goto fail;
    if (opts->tools == DS_PARSER_TOOLS_ON) {
        p->vbuf = malloc(p->vcap);
        p->keys = malloc(KEY_SLOTS * sizeof *p->keys);
        if (opts->recover_orphan_invoke) {
            p->ocap = p->vcap + 2 * HDR_MAX; /* at least a tag */
            p->obuf = malloc(p->ocap);
        }
        if (!p->vbuf || !p->keys || (opts->recover_orphan_invoke && !p->obuf)) {
            rc = ds_fail(err, DS_E_NOMEM, "parser: out of memory for values of %zu bytes", p->vcap);
            goto fail;
        }
    }
    make_literals(p);
    for (unsigned i = 0; i < p->n_lits; i++)
        p->second[(uint8_t)p->lits[i].s[1]] = true;
    make_sets(p);
    p->lead = !opts->preserve_newlines && (opts->start == DS_PARSER_CONTENT || opts->start == DS_PARSER_REASONING);
    switch (opts->start) {
    case DS_PARSER_REASONING:
    case DS_PARSER_REASONING_PREFIX:
        p->state = S_REASON;
        break;
    case DS_PARSER_RAW:
    case DS_PARSER_CONTENT_PREFIX: /* the JSON value began in the prefix */
        p->state = S_CONTENT;
        break;
    case DS_PARSER_CONTENT:
        p->state = opts->json_mode ? S_JSON_PRE : S_CONTENT;
        break;
    case DS_PARSER_BLOCK:
        p->state = opts->tools == DS_PARSER_TOOLS_ON ? S_BLOCK : S_CONTENT;
        break;
    }
    p->think_dropped = opts->preserve_newlines; /* <think> is looked for while `lead` is set */
    p->r_done = p->state != S_REASON;
    *out = p;
    return DS_OK;
fail:
    ds_parser_destroy(p);
    return rc;
}

void ds_parser_destroy(ds_parser *p)
{
    if (!p)
        return;
    free(p->stop_mem);
    free(p->vbuf);
    free(p->obuf);
    free(p->keys);
    free(p);
}

/* ---- text ---- */

void parser_emit(ds_parser *p, ds_parse_kind kind, const char *s, size_t n)
{
    if (n == 0 && kind != DS_PARSE_CALL && kind != DS_PARSE_CALL_END)
        return;
    ds_parse_event ev = { .kind = kind, .bytes = s, .n = n, .call = p->stats.calls - 1 };
    p->o.sink(p->o.ctx, &ev);
}

/* Text of reasoning or content that came from begin..end. */
static void put_text(ds_parser *p, const char *s, size_t n, uint64_t begin, uint64_t end)
{
    ds_parse_event ev = {
        .kind = p->state == S_REASON ? DS_PARSE_REASONING : DS_PARSE_CONTENT, .bytes = s, .n = n, .begin = begin, .end = end
    };
    p->o.sink(p->o.ctx, &ev);
}

/* Text of the current state that is certain. */
static void out(ds_parser *p, const char *s, size_t n, uint64_t pos)
{
    if (n == 0)
        return;
    switch (p->state) {
    case S_REASON:
    case S_CONTENT:
    case S_JSON:
    case S_BAD:
        put_text(p, s, n, pos, pos + n);
        break;
    case S_VALUE:
        parser_value_text(p, s, n);
        break;
    case S_BODY:
        parser_body_text(p, s, n);
        break;
    case S_ORPHAN:
        memmove(p->obuf + p->on, s, n);
        p->on += n;
        break;
    default:
        break;
    }
}

typedef struct {
    size_t nl;
    unsigned cl;
    const literal *cand;
    uint32_t k;
    const stop *kstop;
    size_t n; /* bytes */
} held;

static held held_now(const ds_parser *p)
{
    held h = { p->nl, p->cl, p->cand, p->k, p->kstop, 0 };
    h.n = (h.k > h.nl ? h.k : h.nl) + h.cl;
    return h;
}

/* The first m of the held bytes, the first of which stands at pos. */
static void out_held(ds_parser *p, const held *h, size_t m, uint64_t pos)
{
    static const char newlines[] =
        "\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n";

    size_t before = h->n - h->cl, left = m < before ? m : before;

    m -= left;
    if (h->k > h->nl) {
        out(p, (const char *)h->kstop->s, left, pos);
        pos += left;
        left = 0;
    }
    while (left > 0) {
        size_t n = left < sizeof newlines - 1 ? left : sizeof newlines - 1;
        out(p, newlines, n, pos);
        pos += n;
        left -= n;
    }
    if (m)
        out(p, h->cand->s, m, pos);
}

static void drop_held(ds_parser *p)
{
    p->nl = 0;
    p->cl = 0;
    for (unsigned i = 0; i < p->n_stops; i++)
        p->stops[i].k = 0;
    p->k = 0;
}

void parser_flush_held(ds_parser *p, uint64_t end)
{
    held h = held_now(p);

    bool eos = h.cl && h.cand->cls == M_EOS && h.cl == h.cand->n; /* only finish() meets a complete one */

    out_held(p, &h, h.n - (eos ? h.cl : 0), end - h.n);
    drop_held(p);
}

static uint64_t still_alive(const ds_parser *p, const marker_set *set, uint64_t alive, unsigned cl, uint8_t ch)
{
    uint64_t r = 0;
    for (uint64_t m = alive; m; m &= m - 1) {
        const literal *l = &p->lits[set->lit[__builtin_ctzll(m)]];
        if (l->n > cl && (uint8_t)l->s[cl] == ch)
            r |= m & -m;
    }
    return r;
}

/* Follows one byte of a marker that has begun. M_NONE with cl = 0: it was none; the byte is not consumed. */
static marker step_marker(ds_parser *p, const marker_set *set, uint8_t ch)
{
    uint64_t alive = still_alive(p, set, p->alive, p->cl, ch);

    if (!alive) {
        p->cl = 0;
        return M_NONE;
    }
    p->alive = alive;
    p->cand = &p->lits[set->lit[__builtin_ctzll(alive)]];
    p->cl++;
    if (p->cl < p->cand->n || p->cand->cls == M_EOS)
        return M_NONE;
    return p->cand->cls;
}

static bool begin_marker(ds_parser *p, const marker_set *set)
{
    uint64_t alive = p->lead && !p->think_dropped ? set->all : set->all & ~set->lead_only;

    if (!alive)
        return false;
    p->alive = alive;
    p->cand = &p->lits[set->lit[__builtin_ctzll(alive)]];
    p->cl = 1;
    return true;
}

/* One visible byte, behind which is position `end`; true if it completes a stop sequence (stats.stop, kstop). */
static bool step_stops(ds_parser *p, uint8_t ch, uint64_t end)
{
    p->k = 0;
    for (unsigned i = 0; i < p->n_stops; i++) {
        stop *st = &p->stops[i];
        if (st->n == 0)
            continue;
        while (st->k && st->s[st->k] != ch)
            st->k = st->fail[st->k - 1];
        st->k += st->s[st->k] == ch;
        if (st->k == st->n && end > p->stops_from) {
            p->stats.stop = (int)i;
            p->kstop = st;
            return true;
        }
        if (st->k == st->n)
            st->k = st->fail[st->k - 1];
        if (st->k > p->k) {
            p->k = st->k;
            p->kstop = st;
        }
    }
    return false;
}

/* Bytes before the next one that could matter: a '<' that may begin a marker, or the first byte of a stop sequence. */
static size_t to_special(const ds_parser *p, const uint8_t *s, size_t n, bool stops)
{
    size_t i = 0;

    if (stops && p->n_stops) {
        while (i < n && !p->special[s[i]])
            i++;
        return i;
    }
    while (i < n) {
        if (n - i < 32) {
            while (i < n && s[i] != '<')
                i++;
        } else {
            const uint8_t *at = memchr(s + i, '<', n - i);
            i = at ? (size_t)(at - s) : n;
        }
        if (n - i < 2 || p->second[s[i + 1]])
            return i;
        i++;
    }
    return n;
}

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Consumes text until a marker of the set or a stop sequence is complete (*hit) or the input ends (M_NONE); returns
 * the bytes consumed. p->pos is the position of s[0] and stays. */
size_t parser_scan(ds_parser *p, const marker_set *set, const uint8_t *s, size_t n, marker *hit)
{
    const held h = held_now(p);
    size_t base = 0, i = 0, keep;
    bool elsewhere = false, *lead = p->state == S_REASON || p->state == S_CONTENT ? &p->lead : &elsewhere;

    *hit = M_NONE;
    if (h.n == 0 && !*lead && n && (set->nl_max == 0 || s[n - 1] != '\n') && to_special(p, s, n, set->stops) == n) { /* the usual case */
        out(p, (const char *)s, n, p->pos);
        return n;
    }
    while (i < n) {
        if (p->cl == 0 && p->k == 0) {
            if (*lead) { /* nothing is held then */
                while (i < n && s[i] == '\n')
                    i++;
                base = i;
            }
            size_t j = i + to_special(p, s + i, n - i, set->stops);
            if (j > i) {
                *lead = false;
                if (set->nl_max) {
                    size_t r = 0, most = min_size(j - i, set->nl_max);
                    while (r < most && s[j - 1 - r] == '\n')
                        r++;
                    p->nl = r == j - i ? min_size(p->nl + r, set->nl_max) : r;
                }
                i = j;
            }
            if (i == n)
                break;
        }
        uint8_t ch = s[i++];
        if (p->cl) {
            unsigned cl = p->cl;
            marker m = step_marker(p, set, ch);
            if (m != M_NONE) {
                *hit = m;
                keep = p->cl + (set->swallow & BIT(m) ? p->nl : 0);
                goto found;
            }
            if (p->cl)
                continue;
            p->nl = 0; /* it was text: now it counts for stop sequences */
            *lead = false;
            for (unsigned t = 0; set->stops && t < cl; t++)
                if (step_stops(p, (uint8_t)p->cand->s[t], p->pos + i - cl + t)) {
                    *hit = M_STOP;
                    keep = p->kstop->n + (cl - t - 1) + 1;
                    goto found;
                }
        }
        if (ch == '<' && begin_marker(p, set))
            continue;
        *lead = false;
        p->nl = ch == '\n' ? min_size(p->nl + 1, set->nl_max) : 0;
        if (set->stops && step_stops(p, ch, p->pos + i)) {
            *hit = M_STOP;
            keep = p->kstop->n;
            goto found;
        }
    }
    keep = held_now(p).n;
found:;
    size_t m = h.n + (i - base) - keep, from_held = min_size(m, h.n);
    if (from_held)
        out_held(p, &h, from_held, p->pos - h.n);
    out(p, (const char *)s + base, m - from_held, p->pos + base);
    if (*hit == M_STOP && p->o.keep_stop)
        put_text(p, (const char *)p->kstop->s, p->kstop->n, p->pos + i - keep, p->pos + i - keep + p->kstop->n);
    if (*hit != M_NONE) {
        p->swallowed = set->swallow & BIT(*hit) ? p->nl : 0;
        drop_held(p);
    }
    return i;
}

void parser_content_raw(ds_parser *p, const char *s, size_t n, uint64_t pos)
{
    static const marker_set none = { .stops = true };
    uint64_t at = p->pos;
    marker hit;

    p->pos = pos;
    p->lead = false;
    parser_scan(p, &none, (const uint8_t *)s, n, &hit);
    if (hit == M_STOP) {
        p->state = S_END;
        p->done = true;
    }
    p->pos = at;
}

/* ---- states ---- */

static void begin_block(ds_parser *p)
{
    p->state = p->o.tools == DS_PARSER_TOOLS_ON ? S_BLOCK : S_END;
}

static void stop_matched(ds_parser *p)
{
    p->state = S_END;
    p->done = true;
}

static size_t in_reason(ds_parser *p, const uint8_t *s, size_t n)
{
    marker m;
    size_t used = parser_scan(p, &p->sets[S_REASON], s, n, &m);

    switch (m) {
    case M_THINK_OPEN:
        p->think_dropped = true;
        break;
    case M_THINK_CLOSE:
        p->r_closed = true;
        p->r_end = p->pos + used;
        p->state = p->o.json_mode ? S_JSON_PRE : S_CONTENT;
        p->lead = !p->o.preserve_newlines;
        break;
    case M_BLOCK_OPEN:
        p->r_closed = true;
        p->r_end = p->pos + used - p->cand->n;
        begin_block(p);
        break;
    default:
        break;
    }
    return used;
}

static size_t in_content(ds_parser *p, const uint8_t *s, size_t n)
{
    marker m;
    size_t used = parser_scan(p, &p->sets[S_CONTENT], s, n, &m);

    switch (m) {
    case M_STOP:
        stop_matched(p);
        break;
    case M_BLOCK_OPEN:
        begin_block(p);
        break;
    case M_INVOKE_NAME:
        p->state = S_ORPHAN;
        p->o_pos = p->pos + used - p->cand->n;
        p->o_nl = p->swallowed;
        p->o_checked = false;
        memcpy(p->obuf, p->cand->s, p->cand->n);
        p->on = p->o_head = p->cand->n;
        break;
    default: /* a stray </think> is dropped; `lead` is what it was before */
        break;
    }
    return used;
}

static size_t in_json_pre(ds_parser *p, const uint8_t *s, size_t n)
{
    static const char word[] = "json\n";
    const marker_set *set = &p->sets[S_JSON_PRE];

    for (size_t i = 0; i < n; i++) {
        uint8_t ch = s[i];
        if (p->cl) {
            marker m = step_marker(p, set, ch);
            if (m != M_NONE)
                drop_held(p);
            if (m == M_BLOCK_OPEN) {
                begin_block(p);
                return i + 1;
            }
            if (m != M_NONE || p->cl)
                continue;
        }
        if (ch == '<')
            begin_marker(p, set);
        if (ch == '{' || ch == '[') {
            p->state = S_JSON;
            p->ticks = p->word = 0;
            return i;
        }
        if (ch == '`') {
            p->ticks = p->word ? 1 : p->ticks < 3 ? p->ticks + 1 : 3;
            p->word = 0;
        } else if (p->ticks == 3 && p->word == 0 && ch == '\n') {
            p->word = 5;
        } else if (p->ticks == 3 && ch == (uint8_t)word[p->word]) {
            p->word++;
        } else {
            p->ticks = p->word = 0;
        }
        if (p->word == 5) {
            p->state = S_JSON;
            p->ticks = p->word = 0;
            return i + 1;
        }
    }
    return n;
}

/* Bytes up to the end of the value that was opened first; *closed if it ends there. */
static size_t follow_json(ds_parser *p, const uint8_t *s, size_t n, bool *closed)
{
    *closed = false;
    for (size_t i = 0; i < n; i++) {
        uint8_t ch = s[i];
        if (p->in_string) {
            if (p->escape)
                p->escape = false;
            else if (ch == '\\')
                p->escape = true;
            else if (ch == '"')
                p->in_string = false;
        } else if (ch == '"') {
            p->in_string = p->depth > 0;
        } else if (ch == '{' || ch == '[') {
            p->depth++;
        } else if ((ch == '}' || ch == ']') && p->depth > 0 && --p->depth == 0) {
            *closed = true;
            return i + 1;
        }
    }
    return n;
}

static size_t in_json(ds_parser *p, const uint8_t *s, size_t n)
{
    bool closed;
    marker m;
    size_t end = follow_json(p, s, n, &closed);

    size_t used = parser_scan(p, &p->sets[S_JSON], s, end, &m);
    if (m == M_STOP) {
        stop_matched(p);
    } else if (closed) {
        parser_flush_held(p, p->pos + used);
        p->state = S_JSON_AFTER;
    }
    return used;
}

static size_t in_block(ds_parser *p, const uint8_t *s, size_t n)
{
    marker m;
    size_t used = parser_scan(p, &p->sets[p->state], s, n, &m);

    if (m == M_BLOCK_OPEN) /* after the JSON value */
        begin_block(p);
    else if (m == M_BLOCK_CLOSE)
        p->state = S_END;
    else if (m == M_INVOKE)
        parser_tag_open(p, m, p->pos + used);
    return used;
}

static size_t in_bad(ds_parser *p, const uint8_t *s, size_t n)
{
    marker m;
    size_t used = parser_scan(p, &p->sets[S_BAD], s, n, &m);

    if (m == M_STOP) {
        stop_matched(p);
    } else if (m == M_BLOCK_CLOSE) {
        p->state = S_END;
    } else if (m == M_INVOKE_NAME) {
        parser_tag_open(p, m, p->pos + used);
    } else if (m == M_INVOKE_CLOSE) {
        uint64_t pos = p->pos + used - p->cand->n;
        p->state = S_BAD;
        parser_content_raw(p, p->cand->s, p->cand->n, pos);
        if (p->state == S_BAD) {
            parser_flush_held(p, p->pos + used);
            p->state = S_BLOCK;
        }
    }
    return used;
}

/* ---- a call without a block ---- */

/* It is text after all: the marker counts for nothing, the rest only when `again`. */
static void orphan_is_text(ds_parser *p, bool again)
{
    uint64_t at = p->pos;
    size_t n = p->on;

    p->state = S_CONTENT;
    for (size_t i = 0; i < p->o_nl && p->state == S_CONTENT; i++)
        parser_content_raw(p, "\n", 1, p->o_pos - p->o_nl + i);
    if (p->state == S_CONTENT)
        parser_content_raw(p, p->obuf, again ? p->o_head : n, p->o_pos);
    if (again && p->state == S_CONTENT) {
        p->pos = p->o_pos + p->o_head;
        parser_feed(p, (const uint8_t *)p->obuf + p->o_head, n - p->o_head);
    }
    p->pos = at;
}

/* The name has just been completed by its quote: whether it is a declared tool's. */
static bool orphan_is_declared(const ds_parser *p)
{
    const char *s = p->obuf + p->o_head;
    size_t n = p->on - p->o_head - 1;

    while (n && (unsigned char)s[0] <= ' ')
        s++, n--;
    while (n && (unsigned char)s[n - 1] <= ' ')
        n--;
    if (n == 0 || n > DS_PARSER_MAX_NAME || memchr(s, '<', n) || memchr(s, '>', n) || memchr(s, '\n', n))
        return false;
    return p->o.tool_flags && (p->o.tool_flags(p->o.ctx, s, n) & DS_PARSE_DECLARED);
}

static size_t in_orphan(ds_parser *p, const uint8_t *s, size_t n)
{
    marker m;

    if (!p->o_checked) { /* up to its quote; what is fed again on refusal stays short */
        const uint8_t *quote = memchr(s, '"', n);
        size_t room = HDR_MAX - (p->on - p->o_head);
        n = quote ? (size_t)(quote - s) + 1 : n;
        if (n > room) {
            orphan_is_text(p, true);
            return 0;
        }
        memmove(p->obuf + p->on, s, n); /* what is fed again may lie in obuf itself */
        p->on += n;
        p->o_checked = quote != NULL;
        if (quote && !orphan_is_declared(p))
            orphan_is_text(p, true);
        return n;
    }
    size_t room = p->ocap - p->on - p->cl;
    if (n > room && (n = ds_utf8_floor((const char *)s, room)) == 0) {
        parser_flush_held(p, p->pos);
        orphan_is_text(p, false);
        return 0;
    }
    size_t used = parser_scan(p, &p->sets[S_ORPHAN], s, n, &m);
    if (m == M_INVOKE_CLOSE) {
        memcpy(p->obuf + p->on, p->cand->s, p->cand->n);
        p->on += p->cand->n;
        uint64_t at = p->pos;
        p->pos = p->o_pos;
        p->state = S_BLOCK;
        parser_feed(p, (const uint8_t *)p->obuf, p->on);
        p->pos = at;
        if (p->state == S_BLOCK)
            p->state = S_CONTENT;
    }
    return used;
}

/* ---- input ---- */

void parser_feed(ds_parser *p, const uint8_t *s, size_t n)
{
    while (n > 0) {
        size_t used = n;
        switch (p->state) {
        case S_REASON:
            used = in_reason(p, s, n);
            break;
        case S_CONTENT:
            used = in_content(p, s, n);
            break;
        case S_JSON_PRE:
            used = in_json_pre(p, s, n);
            break;
        case S_JSON:
            used = in_json(p, s, n);
            break;
        case S_JSON_AFTER:
        case S_BLOCK:
            used = in_block(p, s, n);
            break;
        case S_TAG:
            used = parser_in_tag(p, s, n);
            break;
        case S_BODY:
            used = parser_in_body(p, s, n);
            break;
        case S_VALUE:
            used = parser_in_value(p, s, n);
            break;
        case S_BAD:
            used = in_bad(p, s, n);
            break;
        case S_ORPHAN:
            used = in_orphan(p, s, n);
            break;
        case S_END:
            p->stats.ignored_bytes += n;
            break;
        case S_COUNT:
            break;
        }
        s += used;
        n -= used;
        p->pos += used;
    }
}

/* One character: its length, 0 when s[0..n) is the beginning of one, or minus the bytes that can never become one. */
static int utf8_char(const uint8_t *s, size_t n)
{
    uint32_t cp;
    bool cut;
    size_t len = ds_utf8_decode((const char *)s, n, &cp);

    if (len)
        return (int)len;
    len = ds_utf8_bad((const char *)s, n, &cut);
    return cut ? 0 : -(int)len;
}

/* Bytes of whole valid characters at the start of s. */
static size_t utf8_prefix(const uint8_t *s, size_t n)
{
    size_t i = 0;

    while (i < n) {
        uint64_t w;
        uint32_t v;
        while (n - i >= 8 && (memcpy(&w, s + i, 8), !(w & 0x8080808080808080ull)))
            i += 8;
        /* three bytes, the first not E0 or ED, whose second byte has a smaller range */
        while (n - i >= 4 && (memcpy(&v, s + i, 4), v = le32toh(v), (v & 0xc0c0f0) == 0x8080e0) && (v & 0xff) != 0xe0 && (v & 0xff) != 0xed)
            i += 3;
        if (i == n)
            break;
        if (s[i] < 0x80) {
            i++;
            continue;
        }
        int len = utf8_char(s + i, n - i);
        if (len <= 0)
            break;
        i += (size_t)len;
    }
    return i;
}

static void feed_replacement(ds_parser *p)
{
    p->stats.bad_utf8++;
    parser_feed(p, (const uint8_t *)"\xef\xbf\xbd", 3);
}

/* Whole characters to parser_feed(), U+FFFD for what can never become one; an incomplete tail waits. */
static void clean(ds_parser *p, const uint8_t *s, size_t n)
{
    while (p->u8n && n) {
        p->u8[p->u8n++] = *s++;
        n--;
        int len = utf8_char(p->u8, p->u8n);
        if (len > 0) {
            p->u8n = 0;
            parser_feed(p, p->u8, (size_t)len);
        } else if (len < 0) { /* the byte before last ended the subpart: this one begins anew */
            uint8_t last = p->u8[p->u8n - 1];
            p->u8n = 0;
            feed_replacement(p);
            if (last < 0x80) {
                parser_feed(p, &last, 1);
            } else if (utf8_char(&last, 1) == 0) {
                p->u8[0] = last;
                p->u8n = 1;
            } else {
                feed_replacement(p);
            }
        }
    }
    while (n) {
        size_t ok = utf8_prefix(s, n);
        if (ok)
            parser_feed(p, s, ok);
        s += ok;
        n -= ok;
        if (n == 0)
            break;
        int len = utf8_char(s, n);
        if (len == 0) {
            memcpy(p->u8, s, n);
            p->u8n = (unsigned)n;
            break;
        }
        feed_replacement(p);
        s -= len;
        n += (size_t)(ssize_t)len;
    }
}

size_t ds_parser_tail(const ds_parser *p)
{
    return p->done ? 0 : p->u8n;
}

uint64_t ds_parser_position(const ds_parser *p)
{
    return p->pos + p->u8n;
}

/* Tokens of the push begin..end whose last byte lies after `at`. */
static uint64_t tokens_after(uint64_t begin, uint64_t end, uint32_t n, uint64_t at)
{
    if (end <= at)
        return 0;
    if (begin >= at)
        return n;
    return n - (uint64_t)((__uint128_t)n * (at - begin) / (end - begin));
}

static void count_reasoning(ds_parser *p, uint64_t begin, uint32_t n_tokens)
{
    unsigned at = p->ring_n++ % RING;

    p->ring[at].begin = begin;
    p->ring[at].end = ds_parser_position(p);
    p->ring[at].n = n_tokens;
    p->stats.reasoning_tokens += n_tokens;
    if (!p->r_closed)
        return;
    for (unsigned i = 0; i < RING && i < p->ring_n; i++)
        p->stats.reasoning_tokens -= tokens_after(p->ring[i].begin, p->ring[i].end, p->ring[i].n, p->r_end);
    p->r_done = true;
}

/* The usual small piece: whole characters without '<', not ending in a newline, in text or in a string, with nothing
 * held. False: it isn't one. */
static bool push_plain(ds_parser *p, const uint8_t *s, size_t n)
{
    bool value = p->state == S_VALUE && p->vkind == V_STRING;
    uint8_t all = 0;

    if (n == 0 || n > 64 || p->nl + p->cl + p->k + p->u8n || (p->lead && !value) || s[n - 1] == '\n')
        return false;
    if (!value && p->state != S_REASON && (p->state != S_CONTENT || p->n_stops))
        return false;
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '<')
            return false;
        all |= s[i];
    }
    if (all >= 0x80 && utf8_prefix(s, n) != n)
        return false;
    if (value) {
        parser_value_text(p, (const char *)s, n);
    } else {
        put_text(p, (const char *)s, n, p->pos, p->pos + n);
    }
    p->pos += n;
    return true;
}

void ds_parser_push(ds_parser *p, const void *bytes, size_t n, uint32_t n_tokens)
{
    uint64_t begin = ds_parser_position(p);

    if (p->done)
        return;
    if (p->stats.tokens < p->o.min_tokens) {
        uint64_t left = p->o.min_tokens - p->stats.tokens;
        p->stops_from = begin + (left >= n_tokens ? n : n * left / n_tokens);
    }
    p->stats.tokens += n_tokens;
    if (!push_plain(p, bytes, n))
        clean(p, bytes, n);
    if (!p->r_done) {
        if (n)
            count_reasoning(p, begin, n_tokens);
        else
            p->stats.reasoning_tokens += n_tokens;
    }
}

bool ds_parser_done(const ds_parser *p)
{
    return p->done;
}

void ds_parser_token(ds_parser *p, bool control, size_t n)
{
    p->by_token = true;
    if (control)
        p->control = ds_parser_position(p) + n;
}

/* The limit cut the output inside markup: what is held of it is dropped, instead of becoming text. A '<' alone
 * counts where a block begins: at the very start or behind an empty line. */
static void drop_cut_markup(ds_parser *p)
{
    bool tools = p->o.tools != DS_PARSER_TOOLS_OFF, begun = p->control > p->pos - p->cl;

    if (p->state == S_TAG && !p->tag_param && !p->announced && p->control > p->hdr_pos) {
        p->state = S_END;
    } else if (p->state == S_ORPHAN && p->control > p->o_pos) {
        p->state = S_END;
    } else if (p->cl == 0 || p->cl == p->cand->n) {
        return;
    } else if (p->state == S_VALUE && p->control) {
        p->pos -= p->cl;
        p->cl = 0;
    } else if (begun || (p->state == S_CONTENT && tools && p->cl == 1 && (p->lead || p->nl >= 2))) {
        drop_held(p);
    }
}

ds_finish ds_parser_finish(ds_parser *p, ds_backend_end end)
{
    if (!p->done && p->u8n && p->o.flush_tail) {
        p->u8n = 0;
        feed_replacement(p);
    }
    if (p->by_token && !p->done && end == DS_BACKEND_LENGTH)
        drop_cut_markup(p);
    if (p->state == S_TAG && !p->tag_param && !p->announced)
        parser_bad_call(p);
    if (p->state == S_ORPHAN) {
        parser_flush_held(p, p->pos);
        orphan_is_text(p, false);
    }
    if (p->state == S_CONTENT || p->state == S_JSON || p->state == S_BAD) {
        unsigned cl = p->cl;
        if (cl && cl < p->cand->n) { /* half a marker is text, and may complete a stop sequence */
            p->cl = 0;
            parser_content_raw(p, p->cand->s, cl, p->pos - cl);
        }
    }
    if (p->state != S_END)
        parser_flush_held(p, p->pos);
    if (p->open)
        parser_call_end(p, false);
    p->state = S_END;
    bool calls = p->stats.calls > 0, stopped = p->done && !p->single;
    p->done = true;
    if (p->single || (stopped && calls))
        return DS_FINISH_TOOL_CALLS;
    if (stopped)
        return DS_FINISH_STOP_SEQUENCE;
    if (end == DS_BACKEND_LENGTH)
        return DS_FINISH_LENGTH;
    if (end == DS_BACKEND_CONTENT_FILTER)
        return DS_FINISH_CONTENT_FILTER;
    if (calls && !(end == DS_BACKEND_NONE && p->o.eof_is_stop))
        return DS_FINISH_TOOL_CALLS;
    return end == DS_BACKEND_STOP ? DS_FINISH_STOP : DS_FINISH_END_OF_STREAM;
}

const ds_parser_stats *ds_parser_get_stats(const ds_parser *p)
{
    return &p->stats;
}
