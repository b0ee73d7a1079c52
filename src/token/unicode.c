/* Character classes for the split pattern, from utf8proc's categories. */
#include <utf8proc.h>

#include "token/tokenizer_internal.h"

/* White_Space, which is not a matter of category alone: separators, and these controls. */
static bool is_space(uint32_t cp, utf8proc_category_t cat)
{
    return (cp >= 9 && cp <= 13) || cp == 0x85 || cat == UTF8PROC_CATEGORY_ZS || cat == UTF8PROC_CATEGORY_ZL || cat == UTF8PROC_CATEGORY_ZP;
}

static uint8_t classify(uint32_t cp)
{
    /* utf8proc_category() would ask the same, in two calls instead of one: with 330,000 characters that shows when a tokenizer is loaded */
    utf8proc_category_t cat = (utf8proc_category_t)utf8proc_get_property((utf8proc_int32_t)cp)->category;
    uint8_t c = 0;

    if (cat >= UTF8PROC_CATEGORY_LU && cat <= UTF8PROC_CATEGORY_ME)
        c = DS_UC_LETTER;
    else if (cat >= UTF8PROC_CATEGORY_ND && cat <= UTF8PROC_CATEGORY_NO)
        c = DS_UC_NUMBER;
    else if (cat >= UTF8PROC_CATEGORY_PC && cat <= UTF8PROC_CATEGORY_SO)
        c = DS_UC_PUNCT;
    else if (is_space(cp, cat))
        c = DS_UC_SPACE;
    if (cp > 0x9fa5)
        return c;
    if (cp == '\r' || cp == '\n')
        c |= DS_UC_NEWLINE;
    if ((cp >= 0x4e00 && cp <= 0x9fa5) || (cp >= 0x3040 && cp <= 0x30ff))
        c |= DS_UC_CJK;
    if (cp < 128 && (c & DS_UC_LETTER))
        c |= DS_UC_ASCII_LETTER;
    if (cp < 128 && (c & DS_UC_PUNCT))
        c |= DS_UC_ASCII_PUNCT;
    return c;
}

ds_rc ds_uc_table_fill(ds_uc_table *t, ds_err *err)
{
    uint32_t n = 0;

    for (uint32_t hi = 0; hi < 0x110000 >> 8; hi++) {
        uint8_t block[256];
        uint32_t at;

        /* Planes 4 to 13 and the private planes have no assigned characters of these classes: they share the block before them. */
        if (hi > 0x400 && hi < 0xe00) {
            t->index[hi] = t->index[0x400];
            continue;
        }
        if (hi > 0xf00) {
            t->index[hi] = t->index[0xf00];
            continue;
        }
        for (uint32_t lo = 0; lo < 256; lo++)
            block[lo] = classify(hi << 8 | lo);
        /* Equal blocks come in runs: the last ones are the likeliest. */
        for (at = n; at > 0 && memcmp(t->block[at - 1], block, 256) != 0; at--)
            ;
        if (at == 0) {
            if (n == 256)
                return ds_fail(err, DS_E_FORMAT, "this utf8proc's categories need more than 256 blocks");
            memcpy(t->block[n], block, 256);
            at = ++n;
        }
        t->index[hi] = (uint8_t)(at - 1);
    }
    for (uint32_t cp = 0; cp < 128; cp++)
        t->ascii[cp] = ds_uc_class(t, cp);
    return DS_OK;
}
