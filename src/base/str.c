#include "base/str.h"

#include <string.h>

#include "base/err.h"

ds_str ds_json_str_of(const ds_json *v)
{
    return v && v->type == DS_JSON_STRING ? (ds_str){ v->text, v->text_len } : (ds_str){ NULL, 0 };
}

ds_str ds_lit(const char *s)
{
    return (ds_str){ s, strlen(s) };
}

bool ds_str_is(ds_str s, const char *word)
{
    return s.p && s.n == strlen(word) && memcmp(s.p, word, s.n) == 0;
}

bool ds_str_starts(ds_str s, const char *prefix)
{
    size_t n = strlen(prefix);

    return s.p && s.n >= n && memcmp(s.p, prefix, n) == 0;
}

const char *ds_str_word(char *buf, size_t cap, ds_str s)
{
    size_t n = s.n < 40 ? s.n : 40;

    while (n < s.n && n > 0 && ((unsigned char)s.p[n] & 0xC0) == 0x80)
        n--;
    if (n < s.n && cap > 48) {
        ds_quote(buf, cap - 4, s.p, n);
        strcat(buf, "...");
        return buf;
    }
    return ds_quote(buf, cap, s.p, n);
}
