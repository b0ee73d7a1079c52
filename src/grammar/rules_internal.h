/* What the notations of rules (EBNF, Lark) share: names and their rules, literals, alternatives with lists that begin
 * with themselves. A notation fills the functions of `ds_rules` and calls ds_rules_define() for each rule. */
#ifndef DS_GRAMMAR_RULES_INTERNAL_H
#define DS_GRAMMAR_RULES_INTERNAL_H

#include "grammar/grammar_internal.h"

enum { RULES_MOST = 4096, RULES_DEEPEST = 200 /* parentheses inside each other */, RULES_LARGEST_REPEAT = 100000 };

typedef struct {
    const char *p; /* its name, in the text */
    size_t n;
    uint32_t number; /* in the forest */
    bool defined;
} ds_named_rule;

typedef struct ds_rules ds_rules;
struct ds_rules {
    ds_forest *f;
    const char *what; /* the notation, for messages */
    const char *p;    /* the text */
    size_t n, at;
    ds_named_rule *rules; /* RULES_MOST */
    uint32_t n_rules, depth;
    ds_err *err;
    bool bad;
    bool no_dashes;                                   /* in names */
    void *own;                                        /* the notation's */
    void (*skip)(ds_rules *r);                        /* white space and comments */
    bool (*ends)(ds_rules *r);                        /* an alternative is over here, besides at | and the end */
    uint32_t (*item)(ds_rules *r);                    /* one item without its repeats */
    uint32_t (*repeated)(ds_rules *r, uint32_t item); /* the item with what stands behind it */
};

bool ds_rules_init(ds_rules *r); /* false: out of memory; then f->failed is set */
void ds_rules_fini(ds_rules *r);

/* Says what is wrong at a byte of the text, and ends reading. Returns 0. */
uint32_t ds_rules_refuse(ds_rules *r, size_t at, const char *what);
bool ds_rules_eat(ds_rules *r, const char *word);
bool ds_rules_number(ds_rules *r, uint32_t *x);
size_t ds_rules_name(const ds_rules *r); /* bytes of the name that stands here */
/* The number in `rules` of the rule with this name, new if need be. */
uint32_t ds_rules_named(ds_rules *r, const char *p, size_t n);
/* Appends the bytes of the literal in quotes that begins here; false: refused. */
bool ds_rules_literal(ds_rules *r, ds_buf *b);
/* Alternatives up to the end; `self`: forest number of the rule that is defined by them, UNKNOWN inside parentheses.
 * A rule that begins with itself, a = a x | y, is y followed by any number of x. */
uint32_t ds_rules_alternatives(ds_rules *r, uint32_t self);
uint32_t ds_rules_parentheses(ds_rules *r, const char *close); /* behind the opening one; to the closing one */
/* Rule i gets its tree: what stands here. */
void ds_rules_define(ds_rules *r, uint32_t i, size_t start);
/* DS_OK, or what has no definition. */
ds_rc ds_rules_check(ds_rules *r);
/* Checks, and builds the grammar of a forest that has no other rules. */
ds_rc ds_rules_build(ds_rules *r, ds_grammar **out);

#endif
