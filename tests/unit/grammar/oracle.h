/* What tests of grammars share: is a text in the language, and are masks what trying every token says. */
#ifndef DS_TESTS_GRAMMAR_ORACLE_H
#define DS_TESTS_GRAMMAR_ORACLE_H

#include "test.h"

#include "grammar/grammar.h"

static ds_tokenizer *tok;
static ds_token_trie *trie;

typedef struct {
    size_t at;
    bool match;
} verdict;

static inline verdict judge(ds_grammar *g, const char *s, size_t n)
{
    ds_gstate at = ds_grammar_start(g);
    ds_err err = { 0 };
    verdict v;

    assert_ok(ds_grammar_read(g, &at, s, n, &v.at, &err));
    v.match = v.at == n && ds_grammar_accepts(g, at);
    return v;
}

/* What a grammar reads for a token; 0: nothing that it could allow. */
static size_t token_text(uint32_t id, char *out, size_t cap)
{
    size_t n;
    const char *p = ds_tokenizer_bytes(tok, id, &n);
    ds_token_kind kind = ds_tokenizer_kind(tok, id);

    assert_true(n + 2 <= cap);
    if ((kind != DS_TOKEN_TEXT && kind != DS_TOKEN_CONTROL) || memchr(p, 0xff, n) || memchr(p, 0xfe, n))
        return 0;
    memcpy(out + (kind == DS_TOKEN_CONTROL), p, n);
    if (kind == DS_TOKEN_TEXT)
        return n;
    out[0] = '\xff';
    out[n + 1] = '\xfe';
    return n + 2;
}

/* The mask is the set of tokens that can be read, in every state along so many members, in each for so many bytes.
 * False: a bound of the grammar was in the way. */
static inline bool masks_along(ds_grammar *g, const char *what, uint64_t members, size_t most)
{
    uint32_t words = ds_token_trie_words(trie), *got = calloc(words, 4);
    ds_err err = { 0 };
    ds_buf b = { 0 };
    bool within = true;

    for (uint64_t i = 0; i < members && within; i++) {
        ds_gstate s = ds_grammar_start(g);
        size_t taken;
        ds_buf_clear(&b);
        assert_ok(ds_grammar_sample(g, 7, i, &b, &err));
        for (size_t at = 0;; at++) {
            ds_rc rc = ds_grammar_mask(g, trie, s, got, &err);
            within = rc != DS_E_AGAIN;
            if (!within)
                break;
            assert_ok(rc);
            for (uint32_t id = 0; id < ds_tokenizer_size(tok); id++) {
                char token[300];
                size_t n = token_text(id, token, sizeof token);
                ds_gstate to = s;
                bool want = n > 0;
                if (want) {
                    rc = ds_grammar_read(g, &to, token, n, &taken, &err);
                    within = within && rc != DS_E_AGAIN;
                    if (within)
                        assert_ok(rc);
                    want = taken == n;
                }
                if (within && want != (got[id / 32] >> id % 32 & 1))
                    fail_msg("%s after '%.*s': token %u, mask %d", what, (int)at, ds_buf_str(&b), id, !want);
            }
            if (at == b.len || at == most || !within)
                break;
            assert_ok(ds_grammar_read(g, &s, b.p + at, 1, &taken, &err));
            if (taken != 1)
                fail_msg("%s: '%s' leaves the language at %zu", what, ds_buf_str(&b), at);
        }
        if (within && b.len <= most && !ds_grammar_accepts(g, s))
            fail_msg("%s: '%s' doesn't end", what, ds_buf_str(&b));
    }
    free(got);
    ds_buf_free(&b);
    return within;
}

static inline void masks_are_exact(ds_grammar *g, const char *what)
{
    assert_true(masks_along(g, what, 6, 40));
}

static inline int oracle_main(const struct CMUnitTest *tests, size_t n)
{
    ds_err err = { 0 };
    int failed;

    if (ds_tokenizer_open(&tok, DS_TEST_ROOT "/models/demo/tokenizer.json", &err) != DS_OK ||
        ds_token_trie_create(&trie, tok, &err) != DS_OK) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    failed = _cmocka_run_group_tests("grammar", tests, n, NULL, NULL);
    ds_token_trie_destroy(trie);
    ds_tokenizer_destroy(tok);
    return failed;
}

#endif
