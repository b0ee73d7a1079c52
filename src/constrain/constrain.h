/* Constrained texts: from what a client asks for to what an engine asks (ds_gen_grammar).
 *
 *   ds_constrain_create   for one vocabulary: its trie, and room for compiled grammars
 *   ds_constrain_want     what a request of a protocol asks for
 *   ds_constrain_begin    a grammar for a request, compiled or found, and a place in it for each of its samples
 *   ds_constrained_*      what the engine gets, why it failed, the end
 *
 * A grammar is compiled once for a tenant and kept while there is room: bounded in number, for each tenant and in
 * all, and in bytes. Those in use are never thrown out; when nothing can be thrown out, begin says DS_E_AGAIN. A
 * place in a grammar is a number, so samples and requests share one; a lock for each grammar lets one of them at a
 * time read, and whichever engine its thread belongs to doesn't matter.
 *
 * A text that begins in a thought is free up to the token that ends thoughts, but for the end of the text: then the
 * grammar begins. The ids that end a text are allowed where the grammar accepts, and nothing is behind them.
 *
 * Threads: all functions from any thread; destroy when nothing that was begun is left. begin may take as long as a
 * grammar's bounds allow: not for an event loop.   Locks: the table's, and each grammar's; never one inside another. */
#ifndef DS_CONSTRAIN_CONSTRAIN_H
#define DS_CONSTRAIN_CONSTRAIN_H

#include <ds/gen.h>
#include <ds/request.h>
#include <ds/tokenizer.h>

#include "grammar/grammar.h"

typedef struct ds_constrain ds_constrain;
typedef struct ds_constrained ds_constrained;

/* Zero means the default that is named. */
typedef struct {
    uint32_t max_grammars; /* compiled at a time; 256 */
    uint32_t max_tenant;   /* of one tenant; 64 */
    size_t max_bytes;      /* that all together may hold when another is added; 512 MiB */
    ds_grammar_opts grammar;
} ds_constrain_opts;

/* t isn't needed afterwards. stop_ids: those that end a text. opts may be NULL. DS_E_NOMEM. About 100 ms for 128k
 * tokens. */
ds_rc ds_constrain_create(ds_constrain **out, const ds_tokenizer *t, const ds_token *stop_ids, size_t n_stop_ids,
                          const ds_constrain_opts *opts, ds_err *err);
void ds_constrain_destroy(ds_constrain *c); /* NULL is fine */

/* What a text must be. Borrowed strings. */
typedef struct {
    ds_constraint_kind kind;           /* NONE with `calls`: any content */
    ds_str text;                       /* the schema, pattern, list or rules */
    const ds_request_info_data *calls; /* not NULL: the text may or must call its tools */
    bool after_thought;                /* it begins inside a thought */
    const char *param;                 /* the member that asks for it, for error bodies */
} ds_constrain_what;

/* DS_OK: *any says whether the request asks for anything, and then *what. DS_E_ARG: two things that exclude each
 * other here; what->param is set. */
ds_rc ds_constrain_want(ds_constrain_what *what, bool *any, const ds_request_info_data *i, ds_err *err);

/* n: samples. tenant: those of one name share grammars; NULL = the common one. DS_E_ARG: refused, with position or
 * path; DS_E_AGAIN: too many grammars are in use; DS_E_NOMEM. */
ds_rc ds_constrain_begin(ds_constrained **out, ds_constrain *c, const char *tenant, const ds_constrain_what *what, uint32_t n, ds_err *err);
/* The same from ds_gen_grammar.what of another process, outside bytes; DS_E_FORMAT: nobody described this. */
ds_rc ds_constrain_begin_same(ds_constrained **out, ds_constrain *c, ds_str what, uint32_t n, ds_err *err);
/* For ds_gen_request.grammar. Valid until end. */
const ds_gen_grammar *ds_constrained_grammar(const ds_constrained *r);
/* After a sample ended with DS_ENDED_FAILED: why, if it was the grammar that couldn't go on; NULL: it wasn't. */
const char *ds_constrained_failure(ds_constrained *r);
void ds_constrained_end(ds_constrained *r); /* NULL is fine. The generator has nothing of it any more */

typedef struct {
    uint32_t grammars, in_use; /* compiled; of them with requests */
    uint64_t compiled, found, refused, evicted;
    uint64_t compile_ns;
    size_t bytes;
} ds_constrain_stats;
ds_constrain_stats ds_constrain_stat(ds_constrain *c);

#endif
