/* Asking a JSON value what it holds. */
#include "base/json.h"

#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

const ds_json *ds_json_get(const ds_json *obj, const char *key)
{
    size_t len = strlen(key);

    if (!ds_json_is(obj, DS_JSON_OBJECT))
        return NULL;
    for (const ds_json *v = obj->child; v; v = v->next)
        if (v->key_len == len && memcmp(v->key, key, len) == 0)
            return v;
    return NULL;
}

const ds_json *ds_json_at(const ds_json *arr, size_t i)
{
    const ds_json *v;

    if (!ds_json_is(arr, DS_JSON_ARRAY) || i >= arr->n)
        return NULL;
    for (v = arr->child; i > 0; i--)
        v = v->next;
    return v;
}

bool ds_json_is(const ds_json *v, ds_json_type type)
{
    return v && v->type == type;
}

bool ds_json_str_eq(const ds_json *v, const char *s)
{
    size_t len = strlen(s);

    return ds_json_is(v, DS_JSON_STRING) && v->text_len == len && memcmp(v->text, s, len) == 0;
}

/* The digits of an integer's text as a number; false when it is no integer or above UINT64_MAX. */
static bool read_digits(const ds_json *v, bool *negative, uint64_t *out)
{
    const char *s;
    uint64_t x = 0;

    if (!ds_json_is(v, DS_JSON_NUMBER))
        return false;
    s = v->text;
    *negative = *s == '-';
    for (s += *negative; *s; s++) {
        if (*s < '0' || *s > '9' || __builtin_mul_overflow(x, 10u, &x) || __builtin_add_overflow(x, (uint64_t)(*s - '0'), &x))
            return false;
    }
    *out = x;
    return true;
}

bool ds_json_i64(const ds_json *v, int64_t *out)
{
    bool negative;
    uint64_t x;

    if (!read_digits(v, &negative, &x) || x > (uint64_t)INT64_MAX + negative)
        return false;
    *out = negative ? (int64_t)(0 - x) : (int64_t)x;
    return true;
}

bool ds_json_u64(const ds_json *v, uint64_t *out)
{
    bool negative;
    uint64_t x;

    if (!read_digits(v, &negative, &x) || (negative && x != 0))
        return false;
    *out = x;
    return true;
}

bool ds_json_f64(const ds_json *v, double *out)
{
    locale_t c;
    double x;

    if (!ds_json_is(v, DS_JSON_NUMBER))
        return false;
    c = newlocale(LC_ALL_MASK, "C", (locale_t)0); /* whatever the program's locale; the C library hands out a constant */
    x = c ? strtod_l(v->text, NULL, c) : strtod(v->text, NULL);
    if (c)
        freelocale(c);
    if (isinf(x))
        return false;
    *out = x;
    return true;
}

const char *ds_json_type_name(const ds_json *v)
{
    static const char *const names[] = {
        [DS_JSON_NULL] = "null",     [DS_JSON_FALSE] = "boolean", [DS_JSON_TRUE] = "boolean",  [DS_JSON_NUMBER] = "number",
        [DS_JSON_STRING] = "string", [DS_JSON_ARRAY] = "array",   [DS_JSON_OBJECT] = "object",
    };

    return v ? names[v->type] : "nothing";
}
