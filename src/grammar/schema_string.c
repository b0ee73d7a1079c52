/* Strings of a JSON Schema: lengths, patterns, formats. */
#include <string.h>

#include "grammar/schema_internal.h"
#include "schema/schema.h"

#define ESCAPED       \
    "\\\\(?:[\"\\\\/" \
    "bfnrt]|u(?:[0-9A-CEFa-cef][0-9A-Fa-f]{3}|[Dd][0-7][0-9A-Fa-f]{2}|[Dd][89ABab][0-9A-Fa-f]{2}\\\\u[Dd][C-Fc-f][0-9A-Fa-f]{2}))"
#define PLAIN "[^\"\\\\\\x00-\\x1f]"

uint32_t schema_character(schema *c)
{
    if (c->raw) {
        if (!c->raw_char_rule) {
            c->raw_char_rule = schema_rule(c, NULL, "raw character");
            schema_rule_set(c, c->raw_char_rule, schema_regex(c, "[\\s\\S]"));
        }
        return ds_tree_call(&c->f, c->raw_char_rule);
    }
    if (!c->char_rule) {
        c->char_rule = schema_rule(c, NULL, "character");
        schema_rule_set(c, c->char_rule, schema_regex(c, PLAIN "|" ESCAPED));
    }
    return ds_tree_call(&c->f, c->char_rule);
}

uint32_t schema_any_string(schema *c)
{
    if (c->raw) {
        if (!c->raw_rule) {
            c->raw_rule = schema_rule(c, NULL, "raw string");
            schema_rule_set(c, c->raw_rule, ds_tree_anything(&c->f));
        }
        return ds_tree_call(&c->f, c->raw_rule);
    }
    if (!c->string_rule) {
        c->string_rule = schema_rule(c, NULL, "string");
        schema_rule_set(c, c->string_rule, schema_regex(c, "\"(?:" PLAIN "|" ESCAPED ")*\""));
    }
    return ds_tree_call(&c->f, c->string_rule);
}

/* Characters written as themselves, any number of them. */
uint32_t schema_plain_rest(schema *c)
{
    if (!c->rest_rule) {
        c->rest_rule = schema_rule(c, NULL, "rest of a name");
        schema_rule_set(c, c->rest_rule, schema_regex(c, PLAIN "*"));
    }
    return ds_tree_call(&c->f, c->rest_rule);
}

uint32_t schema_quoted(schema *c, uint32_t inside)
{
    if (c->raw)
        return inside;
    return cat(c, cat(c, text(c, "\""), inside), text(c, "\""));
}

#define DAY                                                                                                                                \
    "(?:000[1-9]|00[1-9]\\d|0[1-9]\\d{2}|[1-9]\\d{3})-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|" \
    "02-(?:0[1-9]|1\\d|2[0-8]))"
#define TIME "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d{1,9})?(?:Z|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)"
#define LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define H "[0-9A-Fa-f]{1,4}"
#define SEGMENT "[A-Za-z0-9._~!$&'()*+,;=:@-]*"

static const struct {
    const char *name, *pattern;
} formats[] = {
    { "date", DAY },
    { "time", TIME },
    { "date-time", DAY "T" TIME },
    { "email", "[A-Za-z0-9_+-]{1,32}(?:\\.[A-Za-z0-9_+-]{1,20})?@" LABEL "(?:\\." LABEL "){1,2}" },
    { "hostname", LABEL "(?:\\." LABEL "){0,2}" },
    { "uuid", "[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}" },
    { "ipv4", "(?:(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)\\.){3}(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)" },
    { "ipv6", "(?:" H ":){7}" H "|(?:" H ":){1,6}:" H "|(?:" H ":){1,5}(?::" H "){1,2}|" H ":(?::" H "){1,6}|:(?::" H "){1,7}|(?:" H
              ":){1,7}:|::" },
    { "uri", "[A-Za-z][A-Za-z0-9+.-]*://" LABEL "(?:\\." LABEL "){0,3}(?::[1-9]\\d{0,3})?(?:/" SEGMENT
             ")*(?:\\?[A-Za-z0-9._~!$&'()*+,;=:@/?-]*)?(?:#" SEGMENT ")?" },
};

/* Short ones, so that a bound of the length holds. */
static const char short_uri[] = "https?://" LABEL "(?:\\." LABEL
                                "){0,3}(?::[1-9]\\d{0,3})?(?:/[A-Za-z0-9._~!$&'()*+,;=:@-]{0,40}){0,6}(?:\\?[A-Za-z0-9._~&=-]{0,100})?";

bool schema_count(const parts *in, const char *lower, const char *upper, uint64_t *min, uint64_t *max)
{
    uint64_t x;

    *min = 0;
    *max = UINT64_MAX;
    for (uint32_t i = 0; i < in->n; i++) {
        if (ds_schema_count(ds_json_get(in->p[i].s, lower), &x) && x > *min)
            *min = x;
        if (ds_schema_count(ds_json_get(in->p[i].s, upper), &x) && x < *max)
            *max = x;
    }
    return *min > 0 || *max != UINT64_MAX;
}

uint32_t schema_string(schema *c, const parts *in)
{
    const ds_regex_opts inside = { .search = true, .json = !c->raw, .ecma = true };
    const ds_json *only = NULL, *others = NULL, *one;
    uint64_t min, max;
    uint32_t t = 0;
    bool lengths = schema_count(in, "minLength", "maxLength", &min, &max);

    for (uint32_t i = 0; i < in->n; i++)
        for (const ds_json *k = in->p[i].s->child; k; k = k->next) {
            if (strcmp(k->key, "pattern") != 0 && strcmp(k->key, "format") != 0)
                continue;
            if (only && !(strcmp(k->key, only->key) == 0 && ds_json_str_eq(k, only->text)))
                return schema_refuse(c, k, "two of pattern and format for one string are not supported");
            only = k;
        }
    for (uint32_t i = 0; i < in->n; i++)
        if ((one = schema_own(in->p[i].s, schema_others))) {
            if (others || only || lengths || c->raw)
                return schema_refuse(c, one,
                                     "strings that are not allowed are supported without pattern, format, length and a second list");
            others = one;
        }
    if (min > max)
        return none(c);
    if (others)
        return schema_quoted(c, schema_other_strings(c, others));
    if (!only && !lengths)
        return schema_any_string(c);
    if (!only) {
        if (min > c->f.opts.max_nodes || (max != UINT64_MAX && max > c->f.opts.max_nodes)) {
            c->f.failed = c->f.large = true;
            return 0;
        }
        return schema_quoted(c,
                             ds_tree_repeat(&c->f, schema_character(c), (uint32_t)min, max == UINT64_MAX ? TREE_UNBOUNDED : (uint32_t)max));
    }
    if (!ds_json_is(only, DS_JSON_STRING))
        return schema_refuse(c, only, "a string is needed");
    if (strcmp(only->key, "pattern") == 0) {
        if (ds_regex_tree(&c->f, only->text, only->text_len, &inside, &t, c->err) != DS_OK) {
            ds_err why = *c->err;
            return schema_refuse(c, only, why.msg);
        }
    } else {
        const char *pattern = NULL;
        for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
            if (ds_json_str_eq(only, formats[i].name))
                pattern = lengths && strcmp(formats[i].name, "uri") == 0 ? short_uri : formats[i].pattern;
        if (!pattern)
            return schema_refuse(c, only, "this format is not supported");
        t = schema_regex(c, pattern);
    }
    if (lengths && !ds_tree_fit(&c->f, &t, min, max))
        return schema_refuse(c, only, "the bounds of the length can't be met together with this");
    return schema_quoted(c, t);
}
