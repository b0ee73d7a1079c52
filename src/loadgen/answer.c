/* A state machine over bytes; lines and heads that lie within one piece are read where they lie. */
#include "loadgen/answer.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { STATUS, HEADER, SIZED, CHUNK_SIZE, CHUNK_EXT, CHUNK_DATA, CHUNK_END, TRAILER, TO_EOF, COMPLETE };

/* ---- members of JSON text, found by name ---- */

static const char *find_value(const char *p, const char *end, const char *name)
{
    char quoted[48];
    size_t n = (size_t)snprintf(quoted, sizeof quoted, "\"%s\"", name);

    assert(n < sizeof quoted);
    while ((p = memmem(p, (size_t)(end - p), quoted, n)) != NULL) {
        p += n;
        while (p < end && *p == ' ')
            p++;
        if (p == end || *p != ':') /* a string with that text, not a name */
            continue;
        for (p++; p < end && *p == ' '; p++)
            ;
        return p < end ? p : NULL;
    }
    return NULL;
}

const char *ds_answer_string(const char *json, size_t n, const char *name, size_t *len)
{
    const char *end = json + n, *p = find_value(json, end, name), *q;

    if (!p || *p != '"')
        return NULL;
    for (q = ++p; q < end && *q != '"'; q++)
        if (*q == '\\')
            q++;
    if (q >= end)
        return NULL;
    *len = (size_t)(q - p);
    return p;
}

bool ds_answer_number(const char *json, size_t n, const char *name, uint64_t *out)
{
    const char *end = json + n, *p = find_value(json, end, name);
    uint64_t x = 0;

    if (!p || *p < '0' || *p > '9')
        return false;
    for (; p < end && *p >= '0' && *p <= '9'; p++)
        if (__builtin_mul_overflow(x, 10u, &x) || __builtin_add_overflow(x, (uint64_t)(*p - '0'), &x))
            return false;
    *out = x;
    return true;
}

/* ---- what a body says ---- */

static void read_usage(ds_answer *a, const char *json, size_t n)
{
    const char *usage;

    if (!memmem(json, n, "_tokens\"", 8))
        return;
    usage = find_value(json, json + n, "usage");
    if (!usage || *usage != '{')
        return;
    n -= (size_t)(usage - json);
    if (!ds_answer_number(usage, n, "completion_tokens", &a->completion) && !ds_answer_number(usage, n, "output_tokens", &a->completion))
        return;
    a->has_usage = true;
    if (!ds_answer_number(usage, n, "prompt_tokens", &a->prompt))
        ds_answer_number(usage, n, "input_tokens", &a->prompt);
    if (!ds_answer_number(usage, n, "cached_tokens", &a->cached))
        ds_answer_number(usage, n, "prompt_cache_hit_tokens", &a->cached);
}

static void read_json(ds_answer *a, const char *json, size_t n)
{
    static const char *const names[] = { "content", "reasoning_content", "text", "arguments" };
    const char *piece, *value;
    bool some = false;
    size_t len;

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        piece = ds_answer_string(json, n, names[i], &len);
        if (!piece || len == 0)
            continue;
        some = true;
        if (a->output && i != 1 && i != 3)
            a->output(a->ctx, piece, len);
        else if (a->output)
            a->output(a->ctx, piece, 0); /* thoughts and calls: counted, not part of the text */
        break;
    }
    if (!some && a->output && a->stream && ds_answer_string(json, n, "name", &len))
        a->output(a->ctx, json, 0); /* a call begins */
    value = find_value(json, json + n, "finish_reason");
    if (value && *value == '"')
        a->ended = true;
    value = a->stream ? find_value(json, json + n, "error") : NULL;
    if (value && *value == '{')
        a->failed = true;
    read_usage(a, json, n);
}

static void read_line(ds_answer *a, const char *p, size_t n)
{
    if (n && p[n - 1] == '\r')
        n--;
    if (n < 5 || memcmp(p, "data:", 5) != 0)
        return;
    p += 5;
    n -= 5;
    if (n && *p == ' ') {
        p++;
        n--;
    }
    if (n == 6 && memcmp(p, "[DONE]", 6) == 0)
        a->ended = true;
    else
        read_json(a, p, n);
}

/* Bytes of the body, framing taken off. False: a line beyond the bound, or no memory. */
static bool body(ds_answer *a, const char *p, size_t n)
{
    while (n) {
        const char *nl = a->stream ? memchr(p, '\n', n) : NULL;
        size_t len = nl ? (size_t)(nl - p) : n;

        if (nl && a->line.len == 0) {
            read_line(a, p, len);
        } else {
            if (a->line.len + len > DS_ANSWER_LINE_MAX || !ds_buf_put(&a->line, p, len))
                return false;
            if (nl) {
                read_line(a, a->line.p, a->line.len);
                ds_buf_clear(&a->line);
            }
        }
        p += len + (nl != NULL);
        n -= len + (nl != NULL);
    }
    return true;
}

static ds_answer_state complete(ds_answer *a)
{
    if (a->line.len) {
        if (a->stream)
            read_line(a, a->line.p, a->line.len);
        else
            read_json(a, a->line.p, a->line.len);
        ds_buf_clear(&a->line);
    }
    a->phase = COMPLETE;
    return DS_ANSWER_DONE;
}

/* ---- the head ---- */

static bool status_line(ds_answer *a, const char *p, size_t n)
{
    if (n < 12 || memcmp(p, "HTTP/1.", 7) != 0 || (p[7] != '0' && p[7] != '1') || p[8] != ' ')
        return false;
    for (int i = 9; i < 12; i++)
        if (p[i] < '0' || p[i] > '9')
            return false;
    if (p[9] == '0' || (n > 12 && p[12] != ' '))
        return false;
    a->status = (p[9] - '0') * 100 + (p[10] - '0') * 10 + (p[11] - '0');
    a->close = p[7] == '0';
    return true;
}

static bool has_word(const char *p, size_t n, const char *word)
{
    size_t w = strlen(word);

    for (size_t i = 0; i + w <= n; i++)
        if (strncasecmp(p + i, word, w) == 0)
            return true;
    return false;
}

static bool header(ds_answer *a, const char *p, size_t n)
{
    const char *colon = memchr(p, ':', n);
    size_t name;

    if (!colon || colon == p)
        return false;
    name = (size_t)(colon - p);
    n -= name + 1;
    p = colon + 1;
    while (n && (*p == ' ' || *p == '\t')) {
        p++;
        n--;
    }
    if (name == 14 && strncasecmp(colon - name, "Content-Length", name) == 0) {
        uint64_t x = 0;
        if (n == 0 || a->sized)
            return false;
        for (size_t i = 0; i < n; i++)
            if (p[i] < '0' || p[i] > '9' || __builtin_mul_overflow(x, 10u, &x) || __builtin_add_overflow(x, (uint64_t)(p[i] - '0'), &x))
                return false;
        a->sized = true;
        a->left = x;
    } else if (name == 17 && strncasecmp(colon - name, "Transfer-Encoding", name) == 0) {
        if (n != 7 || strncasecmp(p, "chunked", 7) != 0)
            return false;
        a->chunked = true;
    } else if (name == 10 && strncasecmp(colon - name, "Connection", name) == 0) {
        if (has_word(p, n, "close"))
            a->close = true;
    } else if (name == 12 && strncasecmp(colon - name, "Content-Type", name) == 0) {
        a->stream = has_word(p, n, "text/event-stream");
    }
    return true;
}

/* The empty line behind the headers. */
static ds_answer_state head_done(ds_answer *a)
{
    a->at = 0;
    if (a->status < 200) { /* 100 Continue and its like: the answer comes after it */
        a->status = 0;
        a->chunked = a->sized = a->stream = false;
        a->phase = STATUS;
        return DS_ANSWER_MORE;
    }
    if (a->status == 204 || a->status == 304)
        return complete(a);
    if (a->chunked) {
        if (a->sized)
            return DS_ANSWER_BAD;
        a->phase = CHUNK_SIZE;
        a->left = 0;
        a->digits = 0;
    } else if (a->sized) {
        a->phase = SIZED;
        if (a->left == 0)
            return complete(a);
    } else {
        a->phase = TO_EOF;
        a->close = true;
    }
    return DS_ANSWER_MORE;
}

/* One line of head or trailer, without its end. */
static ds_answer_state head_line(ds_answer *a, const char *p, size_t n)
{
    if (n && p[n - 1] == '\r')
        n--;
    if (a->phase == STATUS) {
        if (!status_line(a, p, n))
            return DS_ANSWER_BAD;
        a->phase = HEADER;
    } else if (a->phase == TRAILER) {
        if (n == 0)
            return complete(a);
    } else if (n == 0) {
        return head_done(a);
    } else if (!header(a, p, n)) {
        return DS_ANSWER_BAD;
    }
    return DS_ANSWER_MORE;
}

static ds_answer_state chunk_size(ds_answer *a, char c)
{
    int v = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;

    if (a->phase == CHUNK_SIZE && v >= 0) {
        if (++a->digits > 15)
            return DS_ANSWER_BAD;
        a->left = a->left << 4 | (unsigned)v;
    } else if (c == '\n') {
        if (a->digits == 0)
            return DS_ANSWER_BAD;
        a->phase = a->left ? CHUNK_DATA : TRAILER;
        a->at = 0;
    } else if (c == '\r' || c == ';' || c == ' ') {
        a->phase = CHUNK_EXT;
    } else if (a->phase != CHUNK_EXT || ++a->at > DS_ANSWER_HEAD_MAX) {
        return DS_ANSWER_BAD;
    }
    return DS_ANSWER_MORE;
}

ds_answer_state ds_answer_feed(ds_answer *a, const char *bytes, size_t n, size_t *used)
{
    const char *p = bytes, *end = bytes + n, *nl;
    ds_answer_state state = a->phase == COMPLETE ? DS_ANSWER_DONE : DS_ANSWER_MORE;
    size_t k;

    while (p < end && state == DS_ANSWER_MORE) {
        switch (a->phase) {
        case STATUS:
        case HEADER:
        case TRAILER:
            /* In a trailer the body's last line still waits in `line`, so trailers are skipped, not kept. */
            nl = memchr(p, '\n', (size_t)(end - p));
            k = nl ? (size_t)(nl - p) : (size_t)(end - p);
            if ((size_t)a->at + k > DS_ANSWER_HEAD_MAX)
                return DS_ANSWER_BAD;
            if (a->phase == TRAILER) {
                for (const char *q = p; q < p + k; q++)
                    a->broken_line |= *q != '\r';
                a->at += (int)k + 1;
                if (nl && !a->broken_line)
                    state = complete(a);
                if (nl)
                    a->broken_line = false;
            } else if (nl && a->line.len == 0) {
                a->at += (int)k + 1;
                state = head_line(a, p, k);
            } else {
                if (!ds_buf_put(&a->line, p, k))
                    return DS_ANSWER_BAD;
                a->at += (int)k + 1;
                if (nl) {
                    k = a->line.len;
                    a->line.len = 0; /* its bytes stay where they are */
                    state = head_line(a, a->line.p, k);
                    k = (size_t)(nl - p);
                }
            }
            p += k + (nl != NULL);
            break;
        case SIZED:
        case CHUNK_DATA:
        case TO_EOF:
            k = (size_t)(end - p);
            if (a->phase != TO_EOF && k > a->left)
                k = (size_t)a->left;
            if (!body(a, p, k))
                return DS_ANSWER_BAD;
            p += k;
            if (a->phase == TO_EOF)
                break;
            a->left -= k;
            if (a->left == 0 && a->phase == SIZED)
                state = complete(a);
            else if (a->left == 0)
                a->phase = CHUNK_END;
            break;
        case CHUNK_SIZE:
        case CHUNK_EXT:
            state = chunk_size(a, *p++);
            break;
        case CHUNK_END:
            if (*p != '\r' && *p != '\n')
                return DS_ANSWER_BAD;
            if (*p++ == '\n') {
                a->phase = CHUNK_SIZE;
                a->digits = 0;
            }
            break;
        default:
            state = DS_ANSWER_DONE;
        }
    }
    *used = (size_t)(p - bytes);
    return state;
}

ds_answer_state ds_answer_eof(ds_answer *a)
{
    if (a->phase == TO_EOF)
        return complete(a);
    return a->phase == COMPLETE ? DS_ANSWER_DONE : DS_ANSWER_BAD;
}

void ds_answer_begin(ds_answer *a)
{
    ds_buf line = a->line;

    ds_buf_clear(&line);
    *a = (ds_answer){ .output = a->output, .ctx = a->ctx, .line = line };
}

void ds_answer_fini(ds_answer *a)
{
    ds_buf_free(&a->line);
}
