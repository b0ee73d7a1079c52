/* The released split pattern (recipe spec 1.2), by hand.
 *
 * Three splits apply one after another: numbers (at most three characters a piece), a CJK range, and an alternation.
 * No look-ahead crosses a border that an earlier split made, so for the alternation the text is a list of segments:
 * neither numbers nor CJK, or all CJK. A byte that is not UTF-8 is a segment and a piece of its own. A piece is
 * decided by the text from its start on alone, because both ends of every segment, and so the first digit of every
 * run, are borders. */
#include "token/tokenizer_internal.h"

const char *const ds_tok_released[3] = {
    "\\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    ("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
     "?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"),
};

#define BORDER 0 /* "length" of the end of a segment */

/* Class and length of the character at p, or length BORDER where a segment outside CJK ends. */
static inline size_t peek(const ds_uc_table *uc, const uint8_t *p, const uint8_t *end, uint8_t *cls)
{
    uint32_t cp;
    size_t n;

    *cls = 0;
    if (p >= end)
        return BORDER;
    if (*p < 0x80) {
        *cls = uc->ascii[*p];
        return *cls & DS_UC_NUMBER ? BORDER : 1;
    }
    n = ds_tok_decode(p, end, &cp);
    if (n == 0)
        return BORDER;
    *cls = ds_uc_class(uc, cp);
    if (*cls & (DS_UC_NUMBER | DS_UC_CJK)) {
        *cls = 0;
        return BORDER;
    }
    return n;
}

/* The same inside CJK. */
static inline size_t peek_cjk(const ds_uc_table *uc, const uint8_t *p, const uint8_t *end, uint8_t *cls)
{
    uint32_t cp;

    *cls = 0;
    /* all of the range has three bytes */
    if (p >= end || *p < 0xe3 || *p > 0xe9 || ds_tok_decode(p, end, &cp) == 0)
        return BORDER;
    *cls = ds_uc_class(uc, cp);
    if (*cls & DS_UC_CJK)
        return 3;
    *cls = 0;
    return BORDER;
}

static inline const uint8_t *run_of(const ds_uc_table *uc, const uint8_t *p, const uint8_t *end, uint8_t mask)
{
    uint8_t cls;
    size_t n;

    for (;;) {
        while (p < end && *p < 0x80) {
            if (!(uc->ascii[*p] & mask))
                return p;
            p++;
        }
        n = peek(uc, p, end, &cls);
        if (!(cls & mask))
            return p;
        p += n;
    }
}

static const uint8_t *scan_cjk(const ds_uc_table *uc, const uint8_t *p, const uint8_t *end)
{
    uint8_t cls, next;
    size_t n;

    n = peek_cjk(uc, p, end, &cls);
    if (cls & DS_UC_PUNCT) {
        for (; cls & DS_UC_PUNCT; n = peek_cjk(uc, p, end, &cls))
            p += n;
        return p;
    }
    if (!(cls & DS_UC_LETTER)) { /* unassigned: leads a word, or is (with its like) a gap */
        const uint8_t *q = p + n;
        for (;;) {
            n = peek_cjk(uc, q, end, &next);
            if (next & DS_UC_LETTER) {
                if (q - 3 > p)
                    return q - 3; /* the gap before the character that leads the word */
                break;
            }
            if (n == BORDER || (next & DS_UC_PUNCT))
                return q;
            q += n;
        }
        p = q;
        cls = next;
        n = 3;
    }
    for (; cls & DS_UC_LETTER; n = peek_cjk(uc, p, end, &cls))
        p += n;
    return p;
}

/* A white-space run starts at p, where neither a word nor punctuation can begin with its first character. */
static const uint8_t *scan_space(const ds_uc_table *uc, const uint8_t *p, const uint8_t *end)
{
    const uint8_t *q = p, *newline = NULL, *last = p;
    uint8_t cls;
    size_t n;

    for (n = peek(uc, q, end, &cls); cls & DS_UC_SPACE; n = peek(uc, q, end, &cls)) {
        last = q;
        q += n;
        if (cls & DS_UC_NEWLINE)
            newline = q;
    }
    if (newline)
        return newline;
    /* what a non-space follows in this segment keeps its last character for it */
    return n == BORDER || last == p ? q : last;
}

/* A gap: characters of no class, up to one that leads a word, or to one that starts something itself. */
static const uint8_t *scan_gap(const ds_uc_table *uc, const uint8_t *p, const uint8_t *end)
{
    const uint8_t *last = p;
    uint8_t cls;
    size_t n = peek(uc, p, end, &cls);

    while (n != BORDER && !(cls & (DS_UC_LETTER | DS_UC_PUNCT | DS_UC_SPACE))) {
        last = p;
        p += n;
        n = peek(uc, p, end, &cls);
    }
    return cls & DS_UC_LETTER ? last : p;
}

static const uint8_t *scan_digits(const ds_uc_table *uc, const uint8_t *p, const uint8_t *end)
{
    uint32_t cp;

    for (int i = 0; i < 3 && p < end; i++) {
        size_t n = ds_tok_decode(p, end, &cp);
        if (n == 0 || !(ds_uc_class(uc, cp) & DS_UC_NUMBER))
            break;
        p += n;
    }
    return p;
}

const uint8_t *ds_tok_scan(const ds_uc_table *uc, const uint8_t *p, const uint8_t *end)
{
    uint8_t cls, next;
    uint32_t cp;
    size_t n, m;

    if (*p < 0x80) {
        cls = uc->ascii[*p];
        n = 1;
    } else {
        n = ds_tok_decode(p, end, &cp);
        if (n == 0)
            return p + 1;
        cls = ds_uc_class(uc, cp);
    }
    if (cls & DS_UC_CJK)
        return scan_cjk(uc, p, end);
    if (cls & DS_UC_LETTER)
        return run_of(uc, p + n, end, DS_UC_LETTER);
    if (cls & DS_UC_NUMBER)
        return scan_digits(uc, p, end);
    m = peek(uc, p + n, end, &next);
    if (cls & DS_UC_PUNCT) {
        if ((cls & DS_UC_ASCII_PUNCT) && (next & DS_UC_ASCII_LETTER)) {
            for (p += 2; p < end && *p < 0x80 && (uc->ascii[*p] & DS_UC_ASCII_LETTER); p++)
                ;
            return p;
        }
        p = run_of(uc, p + n, end, DS_UC_PUNCT);
        while (p < end && (*p == '\r' || *p == '\n'))
            p++;
        return p;
    }
    if ((next & DS_UC_LETTER) && !(cls & DS_UC_NEWLINE))
        return run_of(uc, p + n + m, end, DS_UC_LETTER);
    if (*p == ' ' && (next & DS_UC_PUNCT)) {
        p = run_of(uc, p + n + m, end, DS_UC_PUNCT);
        while (p < end && (*p == '\r' || *p == '\n'))
            p++;
        return p;
    }
    if (cls & DS_UC_SPACE)
        return scan_space(uc, p, end);
    return scan_gap(uc, p, end);
}

size_t ds_tok_safe_cut(const ds_tokenizer *t, const char *text, size_t n, size_t from)
{
    const uint8_t *p = (const uint8_t *)text + from, *end = (const uint8_t *)text + n;
    uint8_t before = 0;
    size_t len_before = 0;

    /* A byte that continues no character starts one. */
    while (p < end && (*p & 0xc0) == 0x80)
        p++;
    while (p < end) {
        uint8_t cls = 0;
        uint32_t cp;
        size_t len = ds_tok_decode(p, end, &cp);

        if (len)
            cls = ds_uc_class(&t->uc, cp);
        /* A word always ends where its letters do. */
        if ((before & DS_UC_LETTER) && !(cls & DS_UC_LETTER))
            return (size_t)(p - (const uint8_t *)text);
        /* Inside a word, where no merge reaches over. */
        if ((before & cls & DS_UC_LETTER) && (before & DS_UC_CJK) == (cls & DS_UC_CJK) && len_before == 3 && len == 3 &&
            !ds_tok_may_join(t, p - 3))
            return (size_t)(p - (const uint8_t *)text);
        before = cls;
        len_before = len;
        p += len ? len : 1;
    }
    return 0;
}
