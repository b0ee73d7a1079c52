#include "constrain/constrain.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "constrain/constrain_internal.h"

enum { KEY_BYTES = 32 };

/* In front of a description: the text begins in a thought. */
#define AFTER_THOUGHT 'T'

/* A compiled grammar. */
typedef struct entry {
    /* [const] */
    uint8_t key[KEY_BYTES];
    uint8_t tenant[KEY_BYTES];
    char *what; /* [n_what] AFTER_THOUGHT, then what compile depends on */
    size_t n_what;
    /* [mu] of this entry */
    pthread_mutex_t mu;
    ds_grammar *g;
    /* [table] */
    struct entry *next;
    uint32_t users;
    uint64_t used; /* when it was begun or left last, in begins and ends */
    size_t bytes;  /* when it was left last */
} entry;

struct ds_constrain {
    /* [const] */
    ds_constrain_opts o;
    ds_token_trie *trie;
    uint32_t n_words, n_ids;
    ds_token think_end; /* DS_TOKEN_NONE: texts have no thoughts */
    uint32_t *thought;  /* [n_words] everything but the ends of a text */
    ds_token *stop;
    size_t n_stop;
    /* [table] */
    pthread_mutex_t table;
    entry *entries;
    uint64_t clock;
    ds_constrain_stats st;
};

typedef enum { THOUGHT, GRAMMAR, ENDED } phase;

typedef struct {
    phase phase;
    ds_gstate at;
} place;

struct ds_constrained {
    ds_gen_grammar face;
    ds_constrain *c;
    entry *e;
    /* [e->mu] */
    ds_err why; /* why a sample couldn't go on */
    uint32_t n;
    place samples[];
};

/* ---- one vocabulary ---------------------------------------------------------------------------------------------- */

static bool is_stop(const ds_constrain *c, ds_token id)
{
    for (size_t i = 0; i < c->n_stop; i++)
        if (c->stop[i] == id)
            return true;
    return false;
}

static void allow_stops(const ds_constrain *c, uint32_t *words)
{
    for (size_t i = 0; i < c->n_stop; i++)
        words[c->stop[i] / 32] |= 1u << (c->stop[i] % 32);
}

ds_rc ds_constrain_create(ds_constrain **out, const ds_tokenizer *t, const ds_token *stop_ids, size_t n_stop_ids,
                          const ds_constrain_opts *opts, ds_err *err)
{
    ds_constrain *c = calloc(1, sizeof *c);
    ds_rc rc;

    *out = NULL;
    if (!c)
        return ds_fail(err, DS_E_NOMEM, "constraints: out of memory");
    pthread_mutex_init(&c->table, NULL);
    if (opts)
        c->o = *opts;
    c->o.max_grammars = c->o.max_grammars ? c->o.max_grammars : 256;
    c->o.max_tenant = c->o.max_tenant ? c->o.max_tenant : 64;
    c->o.max_bytes = c->o.max_bytes ? c->o.max_bytes : (size_t)512 << 20;
    c->n_ids = ds_tokenizer_size(t);
    c->think_end = ds_tokenizer_control(t, "</think>");
    rc = ds_token_trie_create(&c->trie, t, err);
    if (rc == DS_OK) {
        c->n_words = ds_token_trie_words(c->trie);
        c->thought = calloc(c->n_words, sizeof *c->thought);
        c->stop = calloc(n_stop_ids + 1, sizeof *c->stop);
        if (!c->thought || !c->stop)
            rc = ds_fail(err, DS_E_NOMEM, "constraints: out of memory");
    }
    if (rc != DS_OK) {
        ds_constrain_destroy(c);
        return rc;
    }
    for (; c->n_stop < n_stop_ids; c->n_stop++)
        c->stop[c->n_stop] = stop_ids[c->n_stop];
    for (uint32_t i = 0; i < c->n_ids; i++)
        c->thought[i / 32] |= (uint32_t)!is_stop(c, (ds_token)i) << (i % 32);
    *out = c;
    return DS_OK;
}

static void free_entry(entry *e)
{
    ds_grammar_destroy(e->g);
    free(e->what);
    pthread_mutex_destroy(&e->mu);
    free(e);
}

void ds_constrain_destroy(ds_constrain *c)
{
    if (!c)
        return;
    for (entry *e = c->entries, *next; e; e = next) {
        next = e->next;
        free_entry(e);
    }
    pthread_mutex_destroy(&c->table);
    ds_token_trie_destroy(c->trie);
    free(c->thought);
    free(c->stop);
    free(c);
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

/* The one that was used longest ago among those that nobody uses, of a tenant or (NULL) of all. */
static entry *oldest_idle(const ds_constrain *c, const uint8_t *tenant)
{
    entry *oldest = NULL;

    for (entry *e = c->entries; e; e = e->next)
        if (e->users == 0 && (!tenant || memcmp(e->tenant, tenant, KEY_BYTES) == 0) && (!oldest || e->used < oldest->used))
            oldest = e;
    return oldest;
}

static bool evict(ds_constrain *c, const uint8_t *tenant)
{
    entry *old = oldest_idle(c, tenant), **at = &c->entries;

    if (!old)
        return false;
    while (*at != old)
        at = &(*at)->next;
    *at = old->next;
    c->st.grammars--;
    c->st.bytes -= old->bytes;
    c->st.evicted++;
    free_entry(old);
    return true;
}

/* Room for one more of a tenant. */
static bool make_room(ds_constrain *c, const uint8_t *tenant, size_t bytes)
{
    uint32_t n = 0;

    for (const entry *e = c->entries; e; e = e->next)
        n += memcmp(e->tenant, tenant, KEY_BYTES) == 0;
    if (n >= c->o.max_tenant && !evict(c, tenant))
        return false;
    while (c->st.grammars >= c->o.max_grammars || (c->st.bytes + bytes > c->o.max_bytes && c->st.grammars > 0))
        if (!evict(c, NULL))
            return false;
    return true;
}

static entry *find(ds_constrain *c, const uint8_t *key)
{
    for (entry *e = c->entries; e; e = e->next)
        if (memcmp(e->key, key, KEY_BYTES) == 0) {
            c->st.in_use += e->users++ == 0;
            e->used = ++c->clock;
            return e;
        }
    return NULL;
}

/* Compiles, and does ahead what takes long, so that no text waits for it. */
static ds_rc compile(entry **out, const ds_constrain *c, const ds_constrain_what *what, ds_err *err)
{
    entry *e = calloc(1, sizeof *e);
    uint32_t *words = calloc(c->n_words, sizeof *words);
    ds_rc rc = DS_OK;

    if (!e || !words)
        rc = ds_fail(err, DS_E_NOMEM, "constraint: out of memory");
    if (rc == DS_OK)
        rc = constrain_compile(&e->g, what, &c->o.grammar, err);
    if (rc == DS_OK)
        rc = ds_grammar_prepare(e->g, c->trie, err);
    if (rc == DS_OK)
        rc = ds_grammar_mask(e->g, c->trie, ds_grammar_start(e->g), words, err);
    if (rc == DS_E_AGAIN) /* not a matter of time: it is too large */
        rc = err->rc = DS_E_ARG;
    free(words);
    if (rc != DS_OK) {
        if (e)
            ds_grammar_destroy(e->g);
        free(e);
        return rc;
    }
    pthread_mutex_init(&e->mu, NULL);
    e->bytes = ds_grammar_stat(e->g).bytes;
    *out = e;
    return DS_OK;
}

/* Puts a new one into the table, unless another thread was faster. */
static ds_rc insert(ds_constrain *c, entry **e, ds_err *err)
{
    entry *other, *mine = *e;
    ds_rc rc = DS_OK;

    pthread_mutex_lock(&c->table);
    c->st.compiled++;
    other = find(c, mine->key);
    if (other) {
        *e = other;
    } else if (!make_room(c, mine->tenant, mine->bytes)) {
        rc = ds_fail(err, DS_E_AGAIN, "too many different constraints are in use");
    } else {
        mine->next = c->entries;
        c->entries = mine;
        mine->users = 1;
        mine->used = ++c->clock;
        c->st.grammars++;
        c->st.in_use++;
        c->st.bytes += mine->bytes;
        mine = NULL;
    }
    pthread_mutex_unlock(&c->table);
    if (mine)
        free_entry(mine);
    return rc;
}

static ds_rc get(entry **out, ds_constrain *c, const char *tenant, const ds_constrain_what *what, ds_err *err)
{
    uint8_t who[KEY_BYTES], key[KEY_BYTES];
    uint64_t began = ds_now_ns();
    ds_buf b = { 0 };
    ds_rc rc;

    ds_sha256(who, tenant ? tenant : "", tenant ? strlen(tenant) + 1 : 0);
    ds_buf_put(&b, who, sizeof who);
    constrain_describe(&b, what);
    if (b.oom) {
        ds_buf_free(&b);
        return ds_fail(err, DS_E_NOMEM, "constraint: out of memory");
    }
    ds_sha256(key, b.p, b.len);
    pthread_mutex_lock(&c->table);
    *out = find(c, key);
    c->st.found += *out != NULL;
    pthread_mutex_unlock(&c->table);
    if (*out) {
        ds_buf_free(&b);
        return DS_OK;
    }
    rc = compile(out, c, what, err);
    if (rc == DS_OK) {
        b.p[sizeof who - 1] = AFTER_THOUGHT;
        (*out)->n_what = b.len - sizeof who + 1;
        memmove(b.p, b.p + sizeof who - 1, (*out)->n_what);
        (*out)->what = b.p;
        (*out)->bytes += b.cap;
        b = (ds_buf){ 0 };
    }
    ds_buf_free(&b);
    pthread_mutex_lock(&c->table);
    c->st.refused += rc == DS_E_ARG;
    c->st.compile_ns += ds_now_ns() - began;
    pthread_mutex_unlock(&c->table);
    if (rc != DS_OK)
        return rc;
    memcpy((*out)->key, key, sizeof key);
    memcpy((*out)->tenant, who, sizeof who);
    return insert(c, out, err);
}

static void leave(ds_constrain *c, entry *e)
{
    size_t bytes;

    pthread_mutex_lock(&e->mu);
    bytes = ds_grammar_stat(e->g).bytes + e->n_what;
    pthread_mutex_unlock(&e->mu);
    pthread_mutex_lock(&c->table);
    c->st.bytes = c->st.bytes - e->bytes + bytes;
    e->bytes = bytes;
    e->used = ++c->clock;
    c->st.in_use -= --e->users == 0;
    pthread_mutex_unlock(&c->table);
}

ds_constrain_stats ds_constrain_stat(ds_constrain *c)
{
    ds_constrain_stats st;

    pthread_mutex_lock(&c->table);
    st = c->st;
    pthread_mutex_unlock(&c->table);
    return st;
}

/* ---- a request's texts ------------------------------------------------------------------------------------------- */

/* Goes on by one token. False: it may not stand there, and p is where it was. */
static bool step(ds_constrained *r, place *p, ds_token id)
{
    const ds_constrain *c = r->c;
    uint32_t taken = 0;
    ds_err why = { 0 };

    if (p->phase == THOUGHT) {
        if (id == c->think_end)
            p->phase = GRAMMAR;
        return !is_stop(c, id);
    }
    if (is_stop(c, id)) {
        bool end = p->phase == ENDED || ds_grammar_accepts(r->e->g, p->at);
        if (end)
            p->phase = ENDED;
        return end;
    }
    if (p->phase == ENDED)
        return false;
    if (ds_grammar_accept(r->e->g, c->trie, &p->at, &id, 1, &taken, &why) != DS_OK)
        r->why = why;
    return taken == 1;
}

/* False: the grammar can't go on. */
static bool row(ds_constrained *r, const place *p, uint32_t *words)
{
    const ds_constrain *c = r->c;

    if (p->phase == THOUGHT) {
        memcpy(words, c->thought, c->n_words * sizeof *words);
        return true;
    }
    if (p->phase == ENDED)
        memset(words, 0, c->n_words * sizeof *words);
    else if (ds_grammar_mask(r->e->g, c->trie, p->at, words, &r->why) != DS_OK)
        return false;
    if (p->phase == ENDED || ds_grammar_accepts(r->e->g, p->at))
        allow_stops(c, words);
    return true;
}

static uint32_t masks(void *ctx, uint32_t sample, const ds_token *drafts, uint32_t n, uint32_t *words, size_t ld)
{
    ds_constrained *r = ctx;
    place p = r->samples[sample];
    uint32_t rows = 0;

    pthread_mutex_lock(&r->e->mu);
    while (row(r, &p, words + rows * ld)) {
        rows++;
        if (rows > n || !step(r, &p, drafts[rows - 1]) || p.phase == ENDED)
            break;
    }
    pthread_mutex_unlock(&r->e->mu);
    return rows;
}

static void accept(void *ctx, uint32_t sample, const ds_token *tokens, uint32_t n)
{
    ds_constrained *r = ctx;

    pthread_mutex_lock(&r->e->mu);
    for (uint32_t i = 0; i < n; i++)
        step(r, &r->samples[sample], tokens[i]);
    pthread_mutex_unlock(&r->e->mu);
}

ds_rc ds_constrain_begin(ds_constrained **out, ds_constrain *c, const char *tenant, const ds_constrain_what *what, uint32_t n, ds_err *err)
{
    static const ds_gen_grammar_fn fn = { masks, accept };
    ds_constrained *r = calloc(1, sizeof *r + n * sizeof *r->samples);
    ds_rc rc = r ? get(&r->e, c, tenant, what, err) : ds_fail(err, DS_E_NOMEM, "constraint: out of memory");

    *out = NULL;
    if (rc != DS_OK) {
        free(r);
        return rc;
    }
    r->face = (ds_gen_grammar){ .fn = &fn, .ctx = r, .what = { r->e->what + !what->after_thought, r->e->n_what - !what->after_thought } };
    r->c = c;
    r->n = n;
    for (uint32_t i = 0; i < n; i++)
        r->samples[i] = (place){ what->after_thought && c->think_end != DS_TOKEN_NONE ? THOUGHT : GRAMMAR, ds_grammar_start(r->e->g) };
    *out = r;
    return DS_OK;
}

ds_rc ds_constrain_begin_same(ds_constrained **out, ds_constrain *c, ds_str what, uint32_t n, ds_err *err)
{
    bool after_thought = what.n && what.p[0] == AFTER_THOUGHT;
    constrain_read_room room;
    ds_rc rc;

    *out = NULL;
    rc = constrain_read(&room, (ds_str){ what.p + after_thought, what.n - after_thought }, err);
    room.what.after_thought = after_thought;
    if (rc == DS_OK)
        rc = ds_constrain_begin(out, c, NULL, &room.what, n, err);
    free(room.tools);
    return rc;
}

const ds_gen_grammar *ds_constrained_grammar(const ds_constrained *r)
{
    return &r->face;
}

const char *ds_constrained_failure(ds_constrained *r)
{
    bool failed;

    pthread_mutex_lock(&r->e->mu);
    failed = r->why.rc != DS_OK;
    pthread_mutex_unlock(&r->e->mu);
    return failed ? r->why.msg : NULL;
}

void ds_constrained_end(ds_constrained *r)
{
    if (!r)
        return;
    leave(r->c, r->e);
    free(r);
}
