/* The stream parser inside a block: tags, parameters, values, calls. (recipe spec 3.3, rules 3-8 and 14-18) */
#include <string.h>

#include "base/hash.h"
#include "reply/parser_internal.h"

static bool is_space(uint8_t ch)
{
    return ch == ' ' || ch == '\n' || ch == '\t' || ch == '\r' || ch == '\f' || ch == '\v';
}

static void args(ds_parser *p, const char *s, size_t n)
{
    parser_emit(p, DS_PARSE_ARGS, s, n);
}

/* JSON escapes without the quotes: runs that need none go out as they are. */
static void args_escaped(ds_parser *p, const char *s, size_t n)
{
    static const char special[32] = "uuuuuuuubtnufruuuuuuuuuuuuuuuuuu";
    static const char hex[] = "0123456789abcdef";
    size_t from = 0;

    for (size_t i = 0; i < n; i++) {
        unsigned char ch = (unsigned char)s[i];
        if (ch >= 0x20 && ch != '"' && ch != '\\')
            continue;
        char esc[6] = { '\\', (char)ch };
        size_t en = 2;
        if (ch < 0x20) {
            esc[1] = special[ch];
            if (esc[1] == 'u') {
                esc[2] = esc[3] = '0';
                esc[4] = hex[ch >> 4];
                esc[5] = hex[ch & 15];
                en = 6;
            }
        }
        args(p, s + from, i - from);
        args(p, esc, en);
        from = i + 1;
    }
    args(p, s + from, n - from);
}

static void args_string(ds_parser *p, const char *s, size_t n)
{
    args(p, "\"", 1);
    args_escaped(p, s, n);
    args(p, "\"", 1);
}

static void trim(const char **s, size_t *n)
{
    while (*n && is_space((uint8_t) * *s))
        ++*s, --*n;
    while (*n && is_space((uint8_t)(*s)[*n - 1]))
        --*n;
}

/* ---- calls ---- */

static void call_begin(ds_parser *p)
{
    ds_parse_event ev = { .kind = DS_PARSE_CALL, .call = p->stats.calls, .bytes = p->name, .n = p->name_end };

    p->flags = p->o.tool_flags ? p->o.tool_flags(p->o.ctx, p->name, p->name_end) : DS_PARSE_DECLARED;
    p->open = p->announced = true;
    p->params = p->emitted = 0;
    p->custom_text = p->custom_json = p->body_bad = p->wrap_pending = false;
    p->vn = 0;
    p->n_keys = 0;
    p->stats.calls++;
    p->o.sink(p->o.ctx, &ev);
}

static bool schema_has(void *ctx, const char *raw, size_t n)
{
    ds_parser *p = ctx;
    char key[DS_PARSER_MAX_KEY];

    if (n > sizeof key)
        return false;
    n = ds_json_text_unescape(key, raw, n);
    return p->o.tool_has_key(p->o.ctx, p->name, p->name_end, key, n) == 1;
}

/* The call's only parameter is a wrapper: passes its object on instead, if that fits the schema. (rule 8) */
static bool unwrap(ds_parser *p)
{
    const char *s = p->vbuf;
    size_t n = p->vn;

    trim(&s, &n);
    if (!p->wrap_string && n >= 2 && s[0] == '"') {
        if (n > p->vcap - p->vn || !ds_json_text_ok(s, n, 0))
            return false;
        char *text = p->vbuf + p->vn;
        n = ds_json_text_unescape(text, s + 1, n - 2);
        s = text;
        trim(&s, &n);
    }
    if (!ds_json_text_object(s, n, DS_PARSER_MAX_DEPTH, schema_has, p))
        return false;
    args(p, s, n);
    return true;
}

static void emit_key(ds_parser *p)
{
    args(p, p->emitted ? ", \"" : "{\"", p->emitted ? 3 : 2);
    args_escaped(p, p->key, p->key_n);
    args(p, "\": ", 3);
    p->emitted++;
}

/* DS_TYPE_ bits of valid JSON text. */
static unsigned text_types(const char *s, size_t n)
{
    trim(&s, &n);
    switch (n ? s[0] : 0) {
    case '"':
        return DS_TYPE_STRING;
    case '{':
        return DS_TYPE_OBJECT;
    case '[':
        return DS_TYPE_ARRAY;
    case 't':
    case 'f':
        return DS_TYPE_BOOLEAN;
    case 'n':
        return DS_TYPE_NULL;
    default:
        return memchr(s, '.', n) || memchr(s, 'e', n) || memchr(s, 'E', n) ? DS_TYPE_NUMBER : DS_TYPE_NUMBER | DS_TYPE_INTEGER;
    }
}

/* A value marked as string whose schema wants something else: that, if the text is it. */
static void emit_coerced(ds_parser *p)
{
    if (ds_json_text_ok(p->vbuf, p->vn, DS_PARSER_MAX_DEPTH) && (text_types(p->vbuf, p->vn) & p->types))
        args(p, p->vbuf, p->vn);
    else
        args_string(p, p->vbuf, p->vn);
}

static void emit_raw(ds_parser *p)
{
    if (p->types == DS_TYPE_STRING && ds_json_text_ok(p->vbuf, p->vn, DS_PARSER_MAX_DEPTH) && text_types(p->vbuf, p->vn) != DS_TYPE_STRING)
        args_string(p, p->vbuf, p->vn);
    else if (ds_json_text_ok(p->vbuf, p->vn, DS_PARSER_MAX_DEPTH)) {
        args(p, p->vbuf, p->vn);
    } else {
        p->stats.repaired_values++;
        args_string(p, p->vbuf, p->vn);
    }
}

/* The held wrapper is an ordinary parameter after all. */
static void release_wrapper(ds_parser *p)
{
    p->wrap_pending = false;
    emit_key(p);
    if (p->wrap_string)
        args_string(p, p->vbuf, p->vn);
    else
        emit_raw(p);
    p->vn = 0;
}

void parser_call_end(ds_parser *p, bool complete)
{
    if (complete && !p->custom_text) {
        const char *body = p->vbuf;
        size_t n = p->vn;
        if (p->wrap_pending) {
            if (!unwrap(p)) {
                release_wrapper(p);
                args(p, "}", 1);
            }
        } else if (p->emitted) {
            args(p, "}", 1);
        } else if (p->params == 0 && !p->body_bad && (trim(&body, &n), n > 0) &&
                   ds_json_text_object(body, n, DS_PARSER_MAX_DEPTH, NULL, NULL)) {
            args(p, body, n);
        } else {
            args(p, "{}", 2);
        }
    }
    ds_parse_event ev = { .kind = DS_PARSE_CALL_END, .call = p->stats.calls - 1, .complete = complete };
    p->open = p->wrap_pending = false;
    p->vn = 0;
    p->o.sink(p->o.ctx, &ev);
    p->state = S_BLOCK;
    p->calls_closed += complete;
    if (complete && p->o.max_calls && p->calls_closed >= p->o.max_calls) {
        p->state = S_END;
        p->done = p->single = true;
    }
}

/* The tag read so far, and all up to the call's closing tag, is content. (rule 14) */
void parser_bad_call(ds_parser *p)
{
    p->stats.bad_calls++;
    p->state = S_BAD;
    parser_content_raw(p, p->hdr, p->hdr_n, p->hdr_pos);
}

/* ---- tags ---- */

static void param_begin(ds_parser *p)
{
    if (p->wrap_pending)
        release_wrapper(p);
    p->params++;
    p->vn = p->key_n = 0;
    p->key_long = p->skip = p->wrap = false;
    p->types = 0;
    p->ptype = -1;
}

void parser_tag_open(ds_parser *p, marker m, uint64_t end)
{
    p->tag_from = p->state;
    p->state = S_TAG;
    p->tag_lit = p->cand;
    p->tag_param = m == M_PARAM || m == M_PARAM_NAME;
    p->tag_first = m == M_INVOKE || m == M_PARAM;
    p->has_name = p->announced = false;
    p->astate = A_SPACE;
    p->hdr_pos = end - p->cand->n;
    memcpy(p->hdr, p->cand->s, p->cand->n);
    p->hdr_n = p->cand->n;
    if (!p->tag_param) {
        p->name_n = p->name_end = 0;
        p->name_over = false;
    }
    if (!p->tag_first) { /* the marker ended with name=" */
        p->astate = A_QUOTED;
        p->attr = ATTR_NAME;
        if (p->tag_param)
            param_begin(p);
    }
}

/* The first byte after the tag's name says whether it is one; if so the tag has its effect on what is open. */
static bool tag_confirmed(ds_parser *p, uint8_t ch)
{
    if (!is_space(ch) && ch != '>') {
        p->state = p->tag_from;
        if (p->state == S_BODY)
            parser_body_text(p, p->tag_lit->s, p->tag_lit->n);
        return false;
    }
    p->tag_first = false;
    if (!p->tag_param) {
        if (p->open) {
            parser_call_end(p, true);
            if (p->done)
                return false;
            p->state = S_TAG;
        }
        return true;
    }
    param_begin(p);
    return true;
}

static bool put_key(ds_parser *p, uint64_t h)
{
    size_t at = (h >> 1) % KEY_SLOTS;

    for (; p->keys[at]; at = (at + 1) % KEY_SLOTS)
        if (p->keys[at] == h)
            return false;
    p->keys[at] = h;
    return true;
}

/* Remembers the key; false if the call has it already or has too many. A handful is searched in order, more through
 * a table. */
static bool add_key(ds_parser *p)
{
    uint64_t h = ds_hash64(p->key, p->key_n, 0x9e3779b97f4a7c15ull) | 1; /* 0 = empty slot */

    if (p->n_keys <= FEW_KEYS) {
        for (uint32_t i = 0; i < p->n_keys; i++)
            if (p->few[i] == h)
                return false;
        if (p->n_keys < FEW_KEYS) {
            p->few[p->n_keys++] = h;
            return true;
        }
        memset(p->keys, 0, KEY_SLOTS * sizeof *p->keys);
        for (uint32_t i = 0; i < FEW_KEYS; i++)
            put_key(p, p->few[i]);
    }
    if (p->n_keys == DS_PARSER_MAX_KEYS || !put_key(p, h))
        return false;
    p->n_keys++;
    return true;
}

static bool key_is(const ds_parser *p, const char *s)
{
    return p->key_n == strlen(s) && memcmp(p->key, s, p->key_n) == 0;
}

static void key_done(ds_parser *p)
{
    p->has_name = true;
    p->skip = p->key_long || p->custom_text || !add_key(p);
    if (p->skip) {
        p->stats.dropped_params++;
        return;
    }
    if ((p->flags & DS_PARSE_CUSTOM) && !p->custom_json)
        return; /* depends on the value's type, known at the end of the tag */
    p->wrap = p->o.repair_wrapper && p->params == 1 && p->o.tool_has_key && (key_is(p, "arguments") || key_is(p, "input")) &&
              p->o.tool_has_key(p->o.ctx, p->name, p->name_end, p->key, p->key_n) == 0;
    if (p->o.coerce && p->o.tool_key_types)
        p->types = p->o.tool_key_types(p->o.ctx, p->name, p->name_end, p->key, p->key_n);
    if (!p->wrap)
        emit_key(p);
}

/* false: the call turned out malformed or one too many; the state has changed. */
static bool name_done(ds_parser *p)
{
    p->has_name = true;
    if (p->name_end == 0) {
        parser_bad_call(p);
        return false;
    }
    if (p->stats.calls >= DS_PARSER_MAX_CALLS) {
        p->stats.dropped_calls++;
        p->state = S_END;
        return false;
    }
    if (p->o.unknown_tool_as_content && !(p->o.tool_flags && (p->o.tool_flags(p->o.ctx, p->name, p->name_end) & DS_PARSE_DECLARED))) {
        parser_bad_call(p);
        return false;
    }
    call_begin(p);
    return true;
}

/* One byte of a call's name; false: it can't be one. Leading white space is not kept, trailing white space is beyond
 * name_end. */
static bool name_byte(ds_parser *p, uint8_t ch)
{
    if (is_space(ch)) {
        if (p->name_n == 0)
            return true;
        if (p->name_n < DS_PARSER_MAX_NAME)
            p->name[p->name_n++] = (char)ch;
        else
            p->name_over = true;
        return true;
    }
    if (ch == '>' || p->name_over || p->name_n == DS_PARSER_MAX_NAME || memchr(p->name + p->name_end, '\n', p->name_n - p->name_end))
        return false;
    p->name[p->name_n++] = (char)ch;
    p->name_end = p->name_n;
    return true;
}

static void tag_end(ds_parser *p)
{
    if (!p->tag_param) {
        if (p->has_name)
            p->state = S_BODY;
        else
            parser_bad_call(p);
        return;
    }
    p->state = S_VALUE;
    if (!p->has_name) {
        p->stats.dropped_params++;
        p->skip = true;
    }
    if (p->skip) {
        p->vkind = V_SKIP;
        return;
    }
    if ((p->flags & DS_PARSE_CUSTOM) && !p->custom_json) {
        p->custom_text = key_is(p, "input") && p->ptype == 1;
        p->custom_json = !p->custom_text;
        if (p->custom_text) {
            p->vkind = V_INPUT;
            return;
        }
        emit_key(p);
    }
    if (p->wrap) {
        p->vkind = V_WRAP;
        p->wrap_string = p->ptype == 1;
        return;
    }
    p->vkind = p->ptype == 1 && p->types && !(p->types & DS_TYPE_STRING) ? V_COERCE
               : p->ptype == 1                                           ? V_STRING
               : p->ptype == 0 && p->o.stream_raw                        ? V_RAW_STREAM
                                                                         : V_RAW;
    if (p->vkind == V_STRING)
        args(p, "\"", 1);
}

static void attr_begin(ds_parser *p)
{
    p->attr = ATTR_OTHER;
    if (p->attr_n == 4 && memcmp(p->attr_name, "name", 4) == 0 && !p->has_name)
        p->attr = ATTR_NAME;
    else if (p->attr_n == 6 && memcmp(p->attr_name, "string", 6) == 0)
        p->attr = ATTR_STRING;
    p->attr_val_n = 0;
}

/* false: the state is another one now */
static bool quoted_end(ds_parser *p)
{
    p->astate = A_SPACE;
    if (p->attr == ATTR_STRING) {
        bool yes = p->attr_val_n == 4 && memcmp(p->attr_val, "true", 4) == 0,
             no = p->attr_val_n == 5 && memcmp(p->attr_val, "false", 5) == 0;
        p->ptype = yes ? 1 : no ? 0 : -1;
    } else if (p->attr == ATTR_NAME) {
        if (!p->tag_param)
            return name_done(p);
        key_done(p);
    }
    return true;
}

/* false: the name is malformed */
static bool quoted_byte(ds_parser *p, uint8_t ch)
{
    if (p->attr == ATTR_STRING) {
        if (p->attr_val_n < sizeof p->attr_val)
            p->attr_val[p->attr_val_n++] = (char)ch;
    } else if (p->attr == ATTR_NAME && p->tag_param) {
        if (p->key_n < DS_PARSER_MAX_KEY)
            p->key[p->key_n++] = (char)ch;
        else
            p->key_long = true;
    } else if (p->attr == ATTR_NAME) {
        return name_byte(p, ch);
    }
    return true;
}

/* The call is malformed because of byte i, which isn't in hdr: content begins anew at its character. */
static size_t bad_at(ds_parser *p, const uint8_t *s, size_t i)
{
    while (i > 0 && (s[i] & 0xc0) == 0x80) {
        i--;
        p->hdr_n--;
    }
    parser_bad_call(p);
    return i;
}

size_t parser_in_tag(ds_parser *p, const uint8_t *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint8_t ch = s[i];
        if (p->tag_first && !tag_confirmed(p, ch))
            return i;
        bool in_name = p->astate == A_QUOTED && p->attr == ATTR_NAME && !p->tag_param;
        if (ch == '<' && (in_name || p->astate != A_QUOTED)) { /* another tag begins where this one should have ended */
            if (in_name)
                parser_bad_call(p);
            else
                tag_end(p);
            return i;
        }
        if (!p->tag_param && !p->announced) {
            if (p->hdr_n == HDR_MAX)
                return bad_at(p, s, i);
            p->hdr[p->hdr_n++] = (char)ch;
        }
        if (p->astate == A_QUOTED) {
            if (ch != '"') {
                if (quoted_byte(p, ch))
                    continue;
                p->hdr_n--;
                return bad_at(p, s, i);
            }
            if (!quoted_end(p))
                return i + 1;
            continue;
        }
        if (ch == '>') {
            tag_end(p);
            return i + 1;
        }
        switch (p->astate) {
        case A_SPACE:
        case A_AFTER_NAME:
            if (is_space(ch))
                break;
            if (ch == '=' && p->astate == A_AFTER_NAME) {
                p->astate = A_EQUALS;
                break;
            }
            p->attr_n = 0;
            p->astate = A_NAME;
            /* fall through */
        case A_NAME:
            if (is_space(ch))
                p->astate = A_AFTER_NAME;
            else if (ch == '=')
                p->astate = A_EQUALS;
            else if (p->attr_n < sizeof p->attr_name)
                p->attr_name[p->attr_n++] = (char)ch;
            break;
        case A_EQUALS:
            if (is_space(ch))
                break;
            attr_begin(p);
            p->astate = ch == '"' ? A_QUOTED : A_BARE;
            break;
        case A_BARE:
            if (is_space(ch))
                p->astate = A_SPACE;
            break;
        case A_QUOTED:
            break;
        }
    }
    return n;
}

/* ---- between parameters ---- */

void parser_body_text(ds_parser *p, const char *s, size_t n)
{
    if (p->params || p->body_bad)
        return;
    if (n > p->vcap - p->vn) {
        p->body_bad = true;
        return;
    }
    memcpy(p->vbuf + p->vn, s, n);
    p->vn += n;
}

/* A closing tag of the call or the block. */
static void close_tag(ds_parser *p, marker m)
{
    parser_call_end(p, true);
    if (m == M_BLOCK_CLOSE)
        p->state = S_END;
}

size_t parser_in_body(ds_parser *p, const uint8_t *s, size_t n)
{
    marker m;
    size_t used = parser_scan(p, &p->sets[S_BODY], s, n, &m);

    if (m == M_PARAM || m == M_INVOKE)
        parser_tag_open(p, m, p->pos + used);
    else if (m == M_INVOKE_CLOSE || m == M_BLOCK_CLOSE)
        close_tag(p, m);
    return used;
}

/* ---- values ---- */

void parser_value_text(ds_parser *p, const char *s, size_t n)
{
    switch (p->vkind) {
    case V_STRING:
        args_escaped(p, s, n);
        break;
    case V_RAW_STREAM:
        args(p, s, n);
        break;
    case V_INPUT:
        parser_emit(p, DS_PARSE_INPUT, s, n);
        break;
    case V_RAW:
    case V_WRAP:
    case V_COERCE:
        if (n <= p->vcap - p->vn) {
            memcpy(p->vbuf + p->vn, s, n);
            p->vn += n;
            break;
        }
        if (p->vkind == V_WRAP)
            emit_key(p);
        p->stats.repaired_values += p->vkind == V_RAW || !p->wrap_string; /* too long to check: a string */
        args(p, "\"", 1);
        args_escaped(p, p->vbuf, p->vn);
        args_escaped(p, s, n);
        p->vn = 0;
        p->vkind = V_STRING;
        break;
    case V_SKIP:
        break;
    }
}

static void value_end(ds_parser *p)
{
    switch (p->vkind) {
    case V_STRING:
        args(p, "\"", 1);
        break;
    case V_RAW:
        emit_raw(p);
        p->vn = 0;
        break;
    case V_COERCE:
        emit_coerced(p);
        p->vn = 0;
        break;
    case V_WRAP:
        p->wrap_pending = true;
        break;
    default:
        break;
    }
    p->state = S_BODY;
}

size_t parser_in_value(ds_parser *p, const uint8_t *s, size_t n)
{
    marker m;
    size_t used = parser_scan(p, &p->sets[S_VALUE], s, n, &m);

    if (m == M_NONE)
        return used;
    value_end(p);
    if (m == M_PARAM_NAME)
        parser_tag_open(p, m, p->pos + used);
    else if (m != M_PARAM_CLOSE)
        close_tag(p, m);
    return used;
}
