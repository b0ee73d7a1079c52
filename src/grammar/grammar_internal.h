/* Inside of a grammar: syntax trees (what front ends build), the network of nodes, and what reading has built from
 * it. */
#ifndef DS_GRAMMAR_GRAMMAR_INTERNAL_H
#define DS_GRAMMAR_GRAMMAR_INTERNAL_H

#include <ds/str.h>

#include "grammar/grammar.h"

/* ---- syntax trees ------------------------------------------------------------------------------------------------ */

typedef enum {
    T_EMPTY,  /* the empty text */
    T_NONE,   /* nothing: the empty language */
    T_TEXT,   /* bytes a .. a+b of the pool */
    T_CLASS,  /* one code point of ranges a .. a+b */
    T_CAT,    /* a, then b; long lists lean to the left */
    T_ALT,    /* a or b; likewise */
    T_REPEAT, /* a, `min` to `max` times */
    T_CALL,   /* rule a */
    T_CHAIN,  /* b items that may be left out: items a.. are separator, what may follow them any often (0: nothing), then item, needed… */
    T_MEMBERS, /* members a of an object, in any order or so many */
    T_DIGITS,  /* decimal digits of a multiple of a, no sign */
} ds_tree_kind;

#define TREE_UNBOUNDED UINT32_MAX

typedef struct {
    ds_tree_kind kind;
    uint32_t a, b, min, max;
    bool one; /* one character of a string, however it is written */
} ds_tree;

typedef struct {
    uint32_t lo, hi; /* code points, both in */
} ds_range;

/* A growing array of plain elements. */
#define VEC(type)        \
    struct {             \
        type *p;         \
        uint32_t n, cap; \
    }

/* Members of an object, or elements of a list that are all different; members.c. */
typedef struct {
    uint32_t first, n;         /* items */
    uint32_t separator, extra; /* rules; extra: any number of these may come, 0: none */
    uint32_t min, max;         /* how many; max UNKNOWN: any number */
    bool ordered;              /* in the order of the items, extra ones behind them */
} ds_members;

typedef struct {
    uint32_t rule;
    bool needed;
} ds_member_item;

enum { MOST_MEMBERS = 256 /* of one object: a text may see as many places with as many calls each */ };

/* What a front end fills. Functions that add return the number of the tree; after a failure (`failed`) they return
 * 0, a T_EMPTY. */
typedef struct {
    VEC(ds_tree) trees;
    VEC(ds_range) ranges;
    VEC(uint32_t) rules; /* tree of each rule; rule 0 is the start */
    VEC(uint32_t) items; /* of chains */
    VEC(ds_members) members;
    VEC(ds_member_item) member_items;
    ds_buf pool;
    ds_buf never; /* texts that may stand nowhere, each behind its length (a byte); all begin with '<' */
    ds_grammar_opts opts;
    bool failed; /* out of memory, or: */
    bool large;  /* more than max_nodes trees */
} ds_forest;

void ds_forest_init(ds_forest *f, const ds_grammar_opts *opts);
void ds_forest_free(ds_forest *f);
uint32_t ds_tree_new(ds_forest *f, ds_tree_kind kind, uint32_t a, uint32_t b);
uint32_t ds_tree_text(ds_forest *f, const char *p, size_t n);
uint32_t ds_tree_control(ds_forest *f, const char *spelling); /* one control token */
uint32_t ds_tree_anything(ds_forest *f);                      /* any number of any characters */
uint32_t ds_tree_cat(ds_forest *f, uint32_t a, uint32_t b);
uint32_t ds_tree_alt(ds_forest *f, uint32_t a, uint32_t b); /* T_NONE or b alone where a is T_NONE */
/* One of n texts, which get another order: beginnings in common are written once. */
uint32_t ds_tree_words(ds_forest *f, uint32_t *texts, uint32_t n);
uint32_t ds_tree_repeat(ds_forest *f, uint32_t a, uint32_t min, uint32_t max);
uint32_t ds_tree_call(ds_forest *f, uint32_t rule);
uint32_t ds_rule_new(ds_forest *f, uint32_t tree);
/* How many characters a text of the tree has, max UINT32_MAX: any number; false: that isn't known. */
bool ds_tree_length(const ds_forest *f, uint32_t tree, uint64_t *min, uint64_t *max);
/* The tree becomes one of its texts with so many characters (max UINT64_MAX: any number); false: that takes more than
 * a change of one repeat in each alternative. */
bool ds_tree_fit(ds_forest *f, uint32_t *tree, uint64_t min, uint64_t max);
void ds_forest_item(ds_forest *f, uint32_t x); /* the next number of `items` */
/* m->first is set; items: at most MOST_MEMBERS. */
uint32_t ds_tree_members(ds_forest *f, ds_members m, const ds_member_item *items);

/* Sets of code points under construction; taken over by ds_tree_class sorted, merged and without surrogates. */
typedef VEC(ds_range) ds_set;
bool ds_set_add(ds_set *s, uint32_t lo, uint32_t hi);
bool ds_set_normal(ds_set *s);                                            /* sorted and merged */
bool ds_set_invert(ds_set *s);                                            /* what isn't in it */
bool ds_set_category(ds_set *s, const char *name, size_t n, bool *known); /* general category "L", "Lu", "Letter" */
uint32_t ds_tree_class(ds_forest *f, ds_set *s);                          /* s is normal afterwards and stays the caller's */

uint32_t ds_tree_json_class(ds_forest *f, ds_set *s); /* the same as JSON strings write it */

/* Checks, compiles, and frees nothing of the forest. On success *out owns the grammar. `what` names the front end in
 * messages. */
ds_rc ds_grammar_build(ds_grammar **out, const ds_forest *f, const char *const *rule_names, const char *what, ds_err *err);

/* A regular expression as a tree of f. */
typedef struct {
    bool search;   /* unanchored: the expression matches somewhere */
    bool json;     /* the text stands inside a JSON string: characters are written as JSON writes them */
    bool verbatim; /* no syntax: the characters as they stand */
    bool icase;    /* ASCII letters of either case */
    bool dot_all;  /* `.` is any character */
    bool ecma;     /* `.` leaves out every line end that ECMA-262 knows, not only the line feed */
} ds_regex_opts;
ds_rc ds_regex_tree(ds_forest *f, const char *p, size_t n, const ds_regex_opts *opts, uint32_t *tree, ds_err *err);

/* Whether no text matches both, each found anywhere in it as in a JSON Schema; false too where that takes too long to
 * find out. */
bool ds_regex_apart(ds_str a, ds_str b);

/* Rules in the notation of Lark as a tree of f, where they become rules too. */
ds_rc ds_lark_tree(ds_forest *f, const char *text, size_t n, uint32_t *tree, ds_err *err);

/* ---- the network ------------------------------------------------------------------------------------------------- */

typedef enum {
    N_END,     /* of a rule */
    N_BYTE,    /* lo..hi, then a */
    N_SPLIT,   /* a or b, without a byte */
    N_CALL,    /* rule b, then a */
    N_MEMBERS, /* what is left of an object: content b in words, then a (members.c) */
    N_DEAD,    /* leads nowhere */
} ds_node_kind;

typedef struct {
    uint8_t kind, lo, hi;
    uint32_t a, b;
} ds_node;

/* A frame: the nodes of one rule where a text may stand, as a set. 0 is the empty set. */
typedef struct {
    uint32_t nodes, n_nodes; /* into words */
    uint32_t next;           /* into words: for each byte class a frame, or UNKNOWN */
    uint32_t calls, n_calls; /* into words: pairs rule, frame after it; UNKNOWN: not yet made */
    uint32_t open;           /* its state on an unknown stack; UNKNOWN: not yet made */
    uint32_t head;           /* what may follow it (heads.c), UNKNOWN: not yet known */
    uint32_t loop, limit;    /* a frame of a countdown: the same without a bound, and the bound; loop UNKNOWN: not yet known */
    uint32_t same;           /* kinds of bytes that lead back to it (heads.c), once `turns` */
    bool turns;
    bool ends, bytes; /* an N_END is among the nodes; an N_BYTE is */
} ds_frame;

/* A stack: frame to go on with when the rule on top ends, and the stack below. */
typedef struct {
    uint32_t frame, below, depth;
} ds_stack;

enum { STACK_EMPTY = 0, STACK_OPEN = 1 /* whatever lies below isn't known: for masks that hold under any stack */ };

/* A state: places (frame, stack) as reached by the last byte, and those from which a byte can be read. */
typedef struct {
    uint32_t kernel, n_kernel; /* into words: pairs, and behind them `avoid` */
    uint32_t places, n_places;
    uint32_t next;  /* into words: for each byte class a state, or UNKNOWN */
    uint32_t mask;  /* into words: what its mask is made of (mask.c), UNKNOWN: not yet known */
    uint32_t avoid; /* how much of a forbidden text was just read: a row of ds_grammar.avoid */
    bool ends;      /* the text may end */
    bool leaves;    /* STACK_OPEN was popped */
} ds_state;

/* A control token is read as its spelling between two bytes that are in no text. */
enum { CONTROL_BEGIN = 0xff, CONTROL_END = 0xfe };

#define AVOIDED UINT16_MAX /* a forbidden text is complete */

/* How many calls a text has still room for, and how many it needs before something else can follow; from 65,535 on any
 * number, for no token has as many. */
static inline uint32_t ds_limit(uint64_t most, uint64_t needed)
{
    return (uint32_t)(most < UINT16_MAX ? most : UINT16_MAX) | (uint32_t)(needed < UINT16_MAX ? needed : UINT16_MAX) << 16;
}
#define NO_LIMIT UINT16_MAX

/* Tokens that may follow a frame whatever the stack, and trie nodes where its rule may end within a token. Of the frame
 * without bound of a countdown also how many calls each of them takes, so that it serves all bounds. */
typedef struct {
    uint32_t part; /* of the trie that was walked */
    bool plain;    /* plain tokens of that part are allowed, too */
    bool counted;
    uint32_t *bits; /* NULL: few, as ids */
    uint32_t *ids, n_ids;
    uint32_t *leaves, n_leaves;  /* nodes of that part */
    uint8_t *calls, *leaf_calls; /* counted: of each id and leaf; 127 at most, and PAST_CALLS */
} ds_head;

enum { PAST_CALLS = 128 /* what follows the last call has begun */ };

/* Calls of one rule in a row. The first n may each be the last: number i has i others behind it. Then come those that
 * must be, which are read before. */
typedef struct {
    uint32_t first, n, needed; /* the nodes first, first + 2, … and, after these, needed nodes one after another */
    uint32_t loop;             /* the same with any number of calls */
} ds_countdown;

#define UNKNOWN UINT32_MAX
#define FAILED (UINT32_MAX - 1)

typedef struct {
    uint32_t number, hash; /* number + 1; 0: free */
} ds_slot;

typedef struct {
    ds_slot *slot; /* open addressing */
    uint32_t cap, n;
} ds_table;

typedef struct {
    uint32_t node, content;
} ds_member_node;

struct ds_grammar {
    ds_grammar_opts opts;
    size_t bytes;     /* taken by everything below */
    const char *full; /* what exceeded its bound; NULL: nothing */
    uint64_t effort;  /* of the call that goes on: nodes and places that were looked at */
    VEC(ds_node) nodes;
    VEC(uint32_t) start; /* of each rule */
    VEC(ds_countdown) countdowns;
    VEC(uint32_t) rank; /* of each node: lower ones lead to the end */
    uint8_t class_of[256], class_byte[256];
    uint32_t n_classes;
    VEC(uint32_t) words;
    VEC(ds_frame) frames;
    VEC(ds_stack) stacks;
    VEC(ds_state) states;
    VEC(ds_head) heads;
    uint16_t (*avoid)[256]; /* rows of an automaton that finds forbidden texts; NULL: there are none */
    uint32_t n_avoid;
    VEC(uint32_t) killed;   /* for each row where its list begins in `kill_ids`, UNKNOWN: not yet made; and its length */
    VEC(uint32_t) kill_ids; /* tokens that complete a forbidden text */
    ds_table frame_table, stack_table, state_table;
    ds_table below_table; /* heads below a head: triples head, frame, head in `below` */
    VEC(uint32_t) below;
    VEC(uint32_t) mark; /* of nodes, for closures */
    uint32_t stamp;
    VEC(ds_members) members;
    VEC(ds_member_item) items;
    VEC(ds_member_node) member_nodes; /* those made while reading */
    VEC(uint32_t) rest;               /* a content under construction */
    ds_table member_table;
    VEC(uint32_t) set; /* a set under construction */
    VEC(uint32_t) work;
    VEC(uint32_t) kernel; /* pairs under construction */
    VEC(uint32_t) places;
    VEC(uint32_t) path;      /* where a walk stands along a token */
    VEC(uint8_t) path_calls; /* and how many calls it has read */
    VEC(uint32_t) found;     /* nodes of the trie that a walk came upon */
    VEC(uint8_t) found_calls;
    VEC(uint32_t) ids; /* and tokens */
    VEC(uint8_t) id_calls;
    VEC(uint32_t) used; /* heads of a mask under construction */
    uint8_t sorts[256]; /* bytes that stand for all others of their class, here and in plain text */
    uint32_t n_sorts;
    uint64_t walked;           /* what walks have cost so far: nodes of the trie, and half as much for tokens */
    const ds_token_trie *trie; /* the masks in `heads` are for it */
    ds_gstate first;
};

/* Room for so many elements behind the first n; false: memory or bound. */
bool ds_grammar_grow(ds_grammar *g, void **p, uint32_t n, uint32_t more, uint32_t *cap, size_t size);
#define ROOM(g, v, more) ((v).cap - (v).n >= (more) || ds_grammar_grow(g, (void **)&(v).p, (v).n, more, &(v).cap, sizeof *(v).p))
#define PUSH(g, v, x) (ROOM(g, v, 1) && (((v).p[(v).n++] = (x)), true))

/* A call from outside begins; the bound is for one. */
static inline void ds_grammar_call(ds_grammar *g)
{
    g->effort = 0;
}

typedef bool ds_same_fn(const ds_grammar *g, uint32_t number, const uint32_t *p, uint32_t n);
/* The slot of a content, or the free one where it belongs; NULL: no room. */
ds_slot *ds_automaton_find(ds_grammar *g, ds_table *t, const uint32_t *p, uint32_t n, ds_same_fn *same);

/* A content at the beginning of an object: its place in words. */
bool ds_members_begin(ds_grammar *g, uint32_t object, uint32_t after, uint32_t *content);
/* The node of the branches and calls that node `at` stands for; nodes move. FAILED. */
uint32_t ds_members_expand(ds_grammar *g, uint32_t at);
/* Whether the end can be reached from there, by the ranks that are known. */
bool ds_members_live(const ds_grammar *g, const uint32_t *rank, uint32_t at);
/* Rules of random items (uint32_t), in order. few: no more than must be. false: out of memory. */
bool ds_members_draw(const ds_grammar *g, uint32_t at, uint64_t seed, uint64_t number, uint64_t *drawn, bool few, ds_buf *rules);

bool ds_automaton_init(ds_grammar *g);
/* 0: not in the language; FAILED */
ds_gstate ds_automaton_step(ds_grammar *g, ds_gstate s, uint8_t byte);
ds_gstate ds_automaton_state(ds_grammar *g, uint32_t frame, uint32_t stack); /* the state of one place; FAILED */
/* The next frame of the same rule; 0: none; FAILED. Where there are no calls, that is all that can come. */
uint32_t ds_automaton_frame_step(ds_grammar *g, uint32_t frame, uint32_t class);
/* Finds frames.calls and n_calls as they are to stay. false: memory or a bound. */
bool ds_automaton_calls(ds_grammar *g, uint32_t frame);
uint32_t ds_automaton_first(ds_grammar *g, uint32_t rule); /* the frame at its beginning; FAILED */
/* The stack with a frame on top; FAILED, UNKNOWN: too deep. */
uint32_t ds_automaton_push(ds_grammar *g, uint32_t frame, uint32_t below);
/* Finds frames.loop and limit; where the frame isn't of a countdown that is simple enough, itself. false: memory or a
 * bound. */
bool ds_automaton_loop(ds_grammar *g, uint32_t frame);
ds_rc ds_grammar_failed(const ds_grammar *g, ds_err *err);

#endif
