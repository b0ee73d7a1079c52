/* Constrained output: a grammar, where a text stands in it, and which tokens may come next.
 *
 * A front end (regular expression, choices, JSON Schema, EBNF) makes rules over bytes; rules may call each other.
 * From them states are built as texts need them and kept, so that reading a byte is one look-up after the first
 * time. A state stands for the whole past of a text, the stack of open rules included, and is a number: copying it
 * forks, an older one kept is the way back.
 *
 * Every state that can be reached can be completed: what leads nowhere is cut out when the grammar is made. Only
 * nesting beyond DS_GRAMMAR_DEPTH is cut while reading.
 *
 * Threads: one thread uses a grammar at a time, for reading grows it. A ds_token_trie is immutable and shared.
 * Memory: bounded for each grammar (ds_grammar_opts); what would need more is DS_E_AGAIN from the function that came
 * upon it, and the grammar stays as it is: states that exist stay good. */
#ifndef DS_GRAMMAR_GRAMMAR_H
#define DS_GRAMMAR_GRAMMAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <ds/tokenizer.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"

enum { DS_GRAMMAR_DEPTH = 1000 }; /* rules open inside each other */

typedef struct ds_grammar ds_grammar;
typedef uint32_t ds_gstate; /* of one grammar, valid as long as it */

typedef struct {
    size_t max_bytes;    /* 0 = 32 MiB: rules, states and masks */
    uint32_t max_nodes;  /* 0 = 262144: size of the rules with repeats written out */
    uint32_t max_states; /* 0 = 65536 */
    bool compact;        /* JSON without white space between its tokens */
    bool any_order;      /* keys of an object in any order (up to 256 keys), not the schema's */
} ds_grammar_opts;       /* may be NULL everywhere */

/* ---- making one -------------------------------------------------------------------------------------------------- */

/* On success *out owns the grammar, else *out is NULL. DS_E_ARG: refused, with the position or path and what isn't
 * supported, too large, or an empty language; DS_E_NOMEM. Time is linear in the size with repeats written out. */

/* The whole text matches. Syntax and meaning are ECMA-262's with the `u` flag: characters are code points, \d \w \s
 * are ASCII, `.` is anything but a line feed. Classes, \p{..} general categories, groups, alternation, bounded
 * repeats (lazy ones have the same language), ^ and $ at the ends. Look-around, back references, word boundaries,
 * flags and atomic groups are refused by name. */
ds_rc ds_grammar_regex(ds_grammar **out, const char *pattern, size_t n, const ds_grammar_opts *opts, ds_err *err);
/* One of the strings of a JSON array. */
ds_rc ds_grammar_choices(ds_grammar **out, const ds_json *list, const ds_grammar_opts *opts, ds_err *err);

/* Rules in the notation of GBNF, from `root` on (docs/grammar.md). Rules that begin with themselves are lists; other
 * left recursion is refused. Messages give line and column. */
ds_rc ds_grammar_ebnf(ds_grammar **out, const char *text, size_t n, const ds_grammar_opts *opts, ds_err *err);
/* Rules and terminals in the notation of Lark, from `start` on (docs/grammar.md); messages as above. */
ds_rc ds_grammar_lark(ds_grammar **out, const char *text, size_t n, const ds_grammar_opts *opts, ds_err *err);
/* JSON text of a value that fits a JSON Schema (2020-12, draft 7, `nullable` of OpenAPI): narrower where
 * docs/grammar.md says so, never wider. What isn't supported is refused with the JSON pointer of the keyword. The
 * schema isn't needed afterwards. */
ds_rc ds_grammar_json_schema(ds_grammar **out, const ds_json *schema, const ds_grammar_opts *opts, ds_err *err);

/* JSON text of any value, or of any object. */
ds_rc ds_grammar_json(ds_grammar **out, bool object, const ds_grammar_opts *opts, ds_err *err);

/* ---- calls of tools ---- */

typedef enum {
    DS_TOOL_JSON, /* parameters by a JSON Schema: strings raw, everything else as JSON */
    DS_TOOL_TEXT, /* one parameter `input`: any text */
    DS_TOOL_REGEX,
    DS_TOOL_LARK,
} ds_tool_input;

typedef struct {
    const char *name;
    size_t name_bytes;
    ds_tool_input input;
    const ds_json *parameters; /* JSON: the schema; NULL: any parameters */
    bool strict;               /* JSON: refused when the schema isn't supported; else such a tool takes any parameters */
    const char *definition;    /* REGEX, LARK: what `input` must be */
    size_t definition_bytes;
} ds_grammar_tool;

typedef enum {
    DS_CALLS_OPEN, /* the prompt ends with the block's opening tag and its line feed */
    DS_CALLS_MUST, /* two line feeds and a block */
    DS_CALLS_MAY,  /* content, and then perhaps a block */
} ds_calls_start;

/* An answer that calls tools, as src/recipe writes it and src/reply reads it (recipe spec 2.7). Markup is written with
 * the control token `dsml`, which the vocabulary must have; so it can't be confused with text, which never spells a
 * tag in ordinary tokens. */
typedef struct ds_grammar_calls {
    const ds_grammar_tool *tools;
    uint32_t n_tools;
    ds_calls_start start;
    bool single;                          /* one call, no more */
    const ds_json *content;               /* MAY: a JSON Schema that the content fits where there is one; NULL: any text */
    const char *dsml;                     /* the control token's spelling */
    const char *block, *call, *parameter; /* names of tags, with the space in front that the dialect wants */
    const char *const *never;             /* texts that may stand nowhere, beside the beginnings of tags; each begins with '<' */
    uint32_t n_never;
} ds_grammar_calls;

/* Messages name the tool: "tool lookup: #/properties/x: …". Nothing of `calls` is needed afterwards. Text read by
 * ds_grammar_read() has control tokens as their spelling between bytes FF and FE. */
ds_rc ds_grammar_tools(ds_grammar **out, const ds_grammar_calls *calls, const ds_grammar_opts *opts, ds_err *err);

void ds_grammar_destroy(ds_grammar *g); /* NULL is fine */

/* ---- reading ----------------------------------------------------------------------------------------------------- */

ds_gstate ds_grammar_start(const ds_grammar *g);
/* Whether the text may end in s. */
bool ds_grammar_accepts(const ds_grammar *g, ds_gstate s);
/* Reads as many bytes as the language allows: *taken of n, and *s is the state after them. DS_E_AGAIN; then *taken
 * and *s say how far it came. How a text is split into calls makes no difference. */
ds_rc ds_grammar_read(ds_grammar *g, ds_gstate *s, const char *text, size_t n, size_t *taken, ds_err *err);

/* ---- tokens ------------------------------------------------------------------------------------------------------ */

/* The tokens of a vocabulary, by their bytes. Control tokens are allowed only where a grammar names them, never as the
 * text that they are spelled like; dropped ones (end of sentence, padding) nowhere. */
typedef struct ds_token_trie ds_token_trie;

/* t isn't needed afterwards. DS_E_NOMEM. About 70 ms and 15 MiB for 128k tokens. */
ds_rc ds_token_trie_create(ds_token_trie **out, const ds_tokenizer *t, ds_err *err);
void ds_token_trie_destroy(ds_token_trie *t);         /* NULL is fine */
uint32_t ds_token_trie_words(const ds_token_trie *t); /* 32-bit words of a mask: one bit an id */

/* Finds ahead what masks will need at the places where much can follow, near ones first, in some 0.5 ms; whoever has
 * time for it before a text begins calls it once. Masks are the same without. DS_E_NOMEM, DS_E_AGAIN as below. */
ds_rc ds_grammar_prepare(ds_grammar *g, const ds_token_trie *t, ds_err *err);
/* words[0 .. ds_token_trie_words) receives bit id % 32 of word id / 32 for every token that may come next. Whether
 * the text may end is ds_grammar_accepts(). A grammar is used with one trie. DS_E_AGAIN, DS_E_NOMEM: words are
 * undefined. */
ds_rc ds_grammar_mask(ds_grammar *g, const ds_token_trie *t, ds_gstate s, uint32_t *words, ds_err *err);
/* Tokens in order, while they are legal: *taken of n, *s after them. DS_E_AGAIN as above. */
ds_rc ds_grammar_accept(ds_grammar *g, const ds_token_trie *t, ds_gstate *s, const ds_token *ids, uint32_t n, uint32_t *taken, ds_err *err);
/* The mask after s and after each legal draft, one every `ld` words: *rows = 1 + the number of drafts before the
 * first illegal one. */
ds_rc ds_grammar_masks(ds_grammar *g, const ds_token_trie *t, ds_gstate s, const ds_token *drafts, uint32_t n, uint32_t *words, size_t ld,
                       uint32_t *rows, ds_err *err);

/* Appends the bytes that must come next, one after another, as long as the text can't end and only one can follow; *s
 * moves behind them. Control tokens as in ds_grammar_tools. DS_E_AGAIN, DS_E_NOMEM. */
ds_rc ds_grammar_forced(ds_grammar *g, ds_gstate *s, ds_buf *out, ds_err *err);
/* The same as tokens: *ids becomes the encoder's segmentation of that text, without tokens at its end that the text
 * behind it might change; *s moves behind them. Tokens before are not cut anew. None: ids->n = 0. */
ds_rc ds_grammar_jump(ds_grammar *g, const ds_token_trie *t, ds_encoder *e, ds_gstate *s, ds_ids *ids, ds_err *err);

/* ---- looking ----------------------------------------------------------------------------------------------------- */

/* Appends a random member: the same for equal seed and number. Repeats end sooner the longer the text is. */
ds_rc ds_grammar_sample(const ds_grammar *g, uint64_t seed, uint64_t number, ds_buf *out, ds_err *err);

typedef struct {
    uint32_t nodes;  /* of the rules */
    uint32_t states; /* built so far */
    size_t bytes;    /* held */
} ds_grammar_stats;
ds_grammar_stats ds_grammar_stat(const ds_grammar *g);

#endif
