/* Classes of token ids for the Engram tables. (model spec 3.12)
 *
 * Two ids are one class when their texts are equal after folding: NFKC, NFD, no marks, lower case, white space
 * collapsed and stripped. An id whose bytes are no UTF-8 text is keyed by its spelling in the byte alphabet instead,
 * and an id that folds to nothing by its text as it is. Folding is utf8proc's, whose tables grow with Unicode: a
 * text with a character that Unicode 15.0 doesn't have is keyed as it is, whatever utf8proc knows of it. For all
 * others normal forms, marks and lower case are the same in every version since (Unicode's stability policies). */
#include <stdlib.h>
#include <utf8proc.h>

#include "base/buf.h"
#include "base/utf8.h"
#include "token/tokenizer_internal.h"

/* Before that it isn't Unicode 15.0's. */
_Static_assert(UTF8PROC_VERSION_MAJOR > 2 || (UTF8PROC_VERSION_MAJOR == 2 && UTF8PROC_VERSION_MINOR >= 8), "utf8proc 2.8 or later");

typedef struct {
    utf8proc_int32_t *p;
    size_t cap;
} chars;

/* Appends the canonical decomposition of n characters (in canonical order) to c; *n becomes their number. False: out
 * of memory. */
static bool decompose(chars *c, const char *text, size_t bytes, utf8proc_option_t options, size_t *n)
{
    utf8proc_ssize_t need;

    for (;;) {
        need = utf8proc_decompose((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)bytes, c->p, (utf8proc_ssize_t)c->cap, options);
        if (need < 0)
            return false;
        if ((size_t)need <= c->cap)
            break;
        utf8proc_int32_t *p = realloc(c->p, (size_t)need * sizeof *p);
        if (!p)
            return false;
        c->p = p;
        c->cap = (size_t)need;
    }
    *n = (size_t)need;
    return true;
}

static bool is_mark(utf8proc_int32_t cp)
{
    utf8proc_category_t cat = utf8proc_category(cp);

    return cat >= UTF8PROC_CATEGORY_MN && cat <= UTF8PROC_CATEGORY_ME;
}

static bool put_char(ds_buf *b, utf8proc_int32_t cp)
{
    char utf8[4];

    return ds_buf_put(b, utf8, ds_utf8_encode(utf8, (uint32_t)cp));
}

static bool is_blank(uint32_t cp)
{
    return cp == ' ' || cp == '\t' || cp == '\r' || cp == '\n';
}

/* Whether every version of utf8proc says the same about this valid UTF-8. */
static bool foldable(const char *text, size_t n)
{
    uint32_t cp = 0;

    for (const char *p = text, *end = text + n; p < end;) {
        p += ds_utf8_decode(p, (size_t)(end - p), &cp);
        if (cp >= 128 && !ds_uc_assigned(cp))
            return false;
    }
    return true;
}

/* Folds valid UTF-8 into `out`. */
static bool fold(const ds_uc_table *uc, chars *c, ds_buf *out, ds_buf *tmp, const char *text, size_t n)
{
    size_t k, m = 0;
    uint32_t cp = 0;
    const char *p, *end;

    /* A compatibility decomposition is NFD of NFKC: composing in between and taking apart again changes nothing. */
    if (!decompose(c, text, n, UTF8PROC_STABLE | UTF8PROC_COMPAT | UTF8PROC_DECOMPOSE, &k))
        return false;
    ds_buf_clear(tmp);
    for (size_t i = 0; i < k; i++) {
        utf8proc_int32_t low;
        if (is_mark(c->p[i]))
            continue;
        low = utf8proc_tolower(c->p[i]);
        if (is_blank((uint32_t)low)) {
            if (m++)
                continue; /* inside a run */
            low = ' ';
        } else {
            m = 0;
        }
        if (!put_char(tmp, low))
            return false;
    }
    ds_buf_clear(out);
    if (tmp->len == 1 && tmp->p[0] == ' ')
        return ds_buf_putc(out, ' ');
    p = ds_buf_str(tmp);
    end = p + tmp->len;
    while (p < end) {
        size_t len = ds_utf8_decode(p, (size_t)(end - p), &cp);
        if (!(ds_uc_class(uc, cp) & DS_UC_SPACE))
            break;
        p += len;
    }
    while (end > p) {
        const char *q = end - 1;
        while (q > p && ((unsigned char)*q & 0xc0) == 0x80)
            q--;
        ds_utf8_decode(q, (size_t)(end - q), &cp);
        if (!(ds_uc_class(uc, cp) & DS_UC_SPACE))
            break;
        end = q;
    }
    return end == p || ds_buf_put(out, p, (size_t)(end - p));
}

static bool spell(const uint16_t of_byte[256], ds_buf *out, const char *text, size_t n)
{
    ds_buf_clear(out);
    for (size_t i = 0; i < n; i++) {
        if (!put_char(out, of_byte[(unsigned char)text[i]]))
            return false;
    }
    return true;
}

static bool keep(ds_buf *out, const char *text, size_t n)
{
    ds_buf_clear(out);
    return ds_buf_put(out, text, n);
}

typedef struct {
    size_t off, len;
    uint32_t id_class; /* + 1; 0 = empty */
} slot;

ds_rc ds_tokenizer_engram_map(const ds_tokenizer *t, uint32_t *map, uint32_t *n_classes, ds_err *err)
{
    uint16_t of_byte[256], of_char[0x144];
    ds_buf keys = { 0 }, folded = { 0 }, tmp = { 0 };
    chars c = { 0 };
    size_t cap = 1024;
    uint32_t n = 0;
    slot *slots;
    ds_rc rc = DS_OK;

    ds_tok_alphabet(of_byte, of_char);
    while (cap < (size_t)t->n * 2)
        cap *= 2;
    slots = calloc(cap, sizeof *slots);
    for (uint32_t id = 0; slots && id < t->n; id++) {
        size_t len, i;
        const char *text = ds_tokenizer_bytes(t, id, &len);
        bool ok;

        /* U+FFFD in the text says as much as bytes that are no text */
        if (!ds_utf8_valid(text, len) || memmem(text, len, "\xef\xbf\xbd", 3))
            ok = spell(of_byte, &folded, text, len);
        else if (!foldable(text, len))
            ok = keep(&folded, text, len);
        else
            ok = fold(&t->uc, &c, &folded, &tmp, text, len) && (folded.len || keep(&folded, text, len));
        if (!ok) {
            rc = DS_E_NOMEM;
            break;
        }
        for (i = ds_tok_hash((const uint8_t *)ds_buf_str(&folded), folded.len, t->seed) & (cap - 1); slots[i].id_class;
             i = (i + 1) & (cap - 1)) {
            if (slots[i].len == folded.len && memcmp(ds_buf_str(&keys) + slots[i].off, ds_buf_str(&folded), folded.len) == 0)
                break;
        }
        if (!slots[i].id_class) {
            slots[i] = (slot){ keys.len, folded.len, ++n };
            if (!ds_buf_put(&keys, folded.p, folded.len)) {
                rc = DS_E_NOMEM;
                break;
            }
        }
        map[id] = slots[i].id_class - 1;
    }
    if (!slots || rc != DS_OK)
        rc = ds_fail(err, DS_E_NOMEM, "Engram classes: out of memory");
    *n_classes = rc == DS_OK ? n : 0;
    free(slots);
    free(c.p);
    ds_buf_free(&keys);
    ds_buf_free(&folded);
    ds_buf_free(&tmp);
    return rc;
}
