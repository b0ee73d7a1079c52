/* JSON Schema to trees: what the files of that front end share.
 *
 * json_schema.c combines schemas to values; schema_string.c, schema_number.c and schema_object.c write the values of
 * one type each; tools.c writes calls of tools, whose parameters are values. Functions return trees; after a refusal
 * (`bad`) any tree will do. */
#ifndef DS_GRAMMAR_SCHEMA_INTERNAL_H
#define DS_GRAMMAR_SCHEMA_INTERNAL_H

#include <string.h>

#include "grammar/grammar_internal.h"

enum {
    MOST_PARTS = 32,
    MOST_VALUES = 20000, /* lists of parts compiled: combinations of alternatives multiply */
    DEEPEST = 200,
    LONGEST_NAME = 256,
    MOST_WORK = 200000, /* constants judged, pairs of alternatives compared */
    MOST_NAMES = 4000,  /* of an object */
    MOST_MULTIPLES = 2000,
    LARGEST_DIVISOR = 1000,
};

enum { NULL_ = 1, BOOLEAN = 2, INTEGER = 4, FRACTION = 8, STRING = 16, ARRAY = 32, OBJECT = 64, ALL = 127 };

typedef struct {
    const ds_json *s;
    bool ref, all, any, one, conditional, never; /* these keywords are dealt with (never: not), */
    uint32_t dependent;                          /* and so many entries of the dependencies */
    bool ours;                                   /* the front end wrote it */
} part;

typedef struct {
    part p[MOST_PARTS];
    uint32_t n;
} parts;

typedef struct {
    const ds_json *target, *root; /* a schema, and what its references lead into; NULL: no schema's */
    const char *name;
    uint32_t number; /* in the forest */
    bool done;
} ref_rule;

typedef struct schema_made schema_made;
struct schema_made {
    schema_made *next;
    ds_json v;
    char text[24]; /* of a number */
};

/* Keywords of schemas that the front end writes, known by their addresses: this is one of those; strings that are none
 * of a list. */
extern const char schema_ours[], schema_others[];

typedef struct {
    ds_forest f;
    const ds_json *root;
    const struct ds_grammar_calls *calls; /* how calls are written; NULL: there are none */
    const char *label;                    /* what `root` is, for messages; NULL: the JSON Schema */
    ds_err *err;
    bool bad;
    bool call;              /* an object's members are written as parameters of a call */
    bool raw;               /* strings are written as they are, without quotes and escapes */
    ref_rule *refs;         /* rules of this front end */
    schema_made *made;      /* schemas that the front end wrote itself, */
    const ds_json *instead; /* and the keyword that messages about them name */
    uint32_t n_refs, cap_refs;
    uint32_t any_rule, string_rule, char_rule, rest_rule, raw_rule, raw_char_rule; /* 0: not made yet */
    uint32_t number_rules[2];                                                      /* any integer, any number */
    uint32_t values, depth, work;
    uint32_t space; /* white space between tokens */
} schema;

/* ---- trees ---- */

/* Refuses the schema; the message begins with the JSON pointer of `at`. Returns 0. */
uint32_t schema_refuse(schema *c, const ds_json *at, const char *what);
uint32_t schema_regex(schema *c, const char *p);                          /* an expression of ours */
uint32_t schema_rule(schema *c, const ds_json *target, const char *name); /* a new one, for rule_set */
void schema_forget(schema *c, uint32_t from); /* rules from there on may lack their trees: nobody calls them any more */
void schema_rule_set(schema *c, uint32_t rule, uint32_t tree);

static inline uint32_t text(schema *c, const char *s)
{
    return ds_tree_text(&c->f, s, strlen(s));
}

static inline uint32_t none(schema *c)
{
    return ds_tree_new(&c->f, T_NONE, 0, 0);
}

static inline uint32_t cat(schema *c, uint32_t a, uint32_t b)
{
    return ds_tree_cat(&c->f, a, b);
}

static inline uint32_t alt(schema *c, uint32_t a, uint32_t b)
{
    return ds_tree_alt(&c->f, a, b);
}

static inline uint32_t maybe(schema *c, uint32_t a)
{
    return ds_tree_repeat(&c->f, a, 0, 1);
}

/* ---- values ---- */

uint32_t schema_value(schema *c, const parts *in);                           /* one that fits all parts */
void schema_join(schema *c, parts *to, const ds_json *s, const ds_json *at); /* adds a part; NULL: none */
uint32_t schema_types(schema *c, const ds_json *s);                          /* NULL_ | … that one part admits */
/* The narrowest bounds that two keywords give together; false: there are none. */
bool schema_count(const parts *in, const char *lower, const char *upper, uint64_t *min, uint64_t *max);

/* Takes what allOf holds, and with `refs` what references lead to, into the list; false: nothing fits or it is
 * refused. */
bool schema_expand(schema *c, parts *p, bool refs);
bool schema_plain_not(const ds_json *k); /* `not` with nothing but types inside: schema_types() deals with it */
bool schema_is_note(const ds_json *k);   /* a keyword that says nothing about values */
/* What the parts say of the member with this name; false: one forbids it. */
bool schema_member(schema *c, const parts *in, const char *name, uint32_t n, parts *out);
bool schema_required(const parts *in, const char *name);
/* true: a condition was to be decided, and *t is the tree of all cases. */
bool schema_cases(schema *c, const parts *in, uint32_t *t);

/* A part of a schema that the front end writes itself; lives as long as its work. */
const ds_json *schema_make(schema *c, ds_json v);
const ds_json *schema_make_integer(schema *c, int64_t n);
/* What a keyword of the front end's own gives; NULL: it isn't there. */
static inline const ds_json *schema_own(const ds_json *s, const char *key)
{
    const ds_json *k = s->type == DS_JSON_OBJECT ? s->child : NULL;

    while (k && k->key != key)
        k = k->next;
    return k;
}

/* A schema that holds only for values that s doesn't take, if not for all of them; NULL: that isn't supported. */
const ds_json *schema_not(schema *c, const ds_json *s);
const ds_json *schema_target(schema *c, const ds_json *ref);   /* what a reference leads to; NULL: refused */
uint32_t schema_other_strings(schema *c, const ds_json *list); /* strings, without quotes and escapes, that are none of a list */

uint32_t schema_string(schema *c, const parts *in);
uint32_t schema_any_string(schema *c);
uint32_t schema_character(schema *c);  /* of a string, as written */
uint32_t schema_plain_rest(schema *c); /* characters that are written as themselves, any number of them */
uint32_t schema_quoted(schema *c, uint32_t inside);
uint32_t schema_number(schema *c, const parts *in, bool fractions);
/* "<DSML parameter name="…" string="…">value</DSML parameter>": `name` is what stands in the quotes. */
uint32_t schema_parameter(schema *c, uint32_t name, const parts *of);
/* The values that fit, if they are few: a tree of each. false: they aren't, or can't be told. */
bool schema_each(schema *c, const parts *in, uint32_t *trees, uint32_t most, uint32_t *n);
uint32_t schema_array(schema *c, const parts *in);
uint32_t schema_object(schema *c, const parts *in);

/* ---- whole grammars ---- */

void schema_begin(schema *c, const ds_grammar_opts *opts, ds_err *err);
void schema_rules(schema *c); /* makes the rules that references call */
/* Builds, and frees everything. */
ds_rc schema_end(schema *c, ds_grammar **out, const char *what);

#endif
