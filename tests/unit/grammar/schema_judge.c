/* What the grammar of a schema says of texts, for a judge of other make (tests/e2e/test_schemas_random.py). No test
 * itself, though it stops where a mask isn't what trying every token of the demonstration model says.
 *
 *   schema_judge [PLACES]   a case a line: {"schema":…, "texts":["…"], "any_order":true|false}
 *
 * One line of answer each: {"refused":"…"}, or {"match":[…], "samples":["…"]}. PLACES: where masks are tried, along
 * each of two members. */
#include <stdio.h>
#include <stdlib.h>

#include "oracle.h"

enum { SAMPLES = 6 };

static void say(const ds_buf *b)
{
    fwrite(ds_buf_str(b), 1, b->len, stdout);
    putchar('\n');
    fflush(stdout);
}

static void stop(const char *what)
{
    fprintf(stderr, "schema_judge: %s\n", what);
    exit(1);
}

/* Masks along a member, at so many places spread over it. */
static void try_masks(ds_grammar *g, const ds_buf *text, size_t places)
{
    uint32_t *got = calloc(ds_token_trie_words(trie), 4);
    ds_gstate s = ds_grammar_start(g);
    size_t step = text->len / (places ? places : 1) + 1, taken;
    char what[200];
    ds_err err = { 0 };

    for (size_t at = 0; got && at <= text->len; at++) {
        if (at % step == 0 && ds_grammar_mask(g, trie, s, got, &err) != DS_OK)
            break; /* a bound */
        for (uint32_t id = 0; id < ds_tokenizer_size(tok) && at % step == 0; id++) {
            char token[300];
            size_t n = token_text(id, token, sizeof token);
            ds_gstate to = s;
            bool want = n > 0;
            if (want && ds_grammar_read(g, &to, token, n, &taken, &err) != DS_OK)
                continue;
            want = want && taken == n;
            if (want != (got[id / 32] >> id % 32 & 1)) {
                snprintf(what, sizeof what, "after %zu bytes of %.60s: token %u is%s in the mask", at, ds_buf_str(text), id,
                         want ? "n't" : "");
                stop(what);
            }
        }
        if (at == text->len || ds_grammar_read(g, &s, text->p + at, 1, &taken, &err) != DS_OK)
            break;
        if (taken != 1)
            stop("a member leaves the language");
    }
    free(got);
}

static void answer(const ds_json *line, size_t places)
{
    const ds_grammar_opts o = { .any_order = ds_json_is(ds_json_get(line, "any_order"), DS_JSON_TRUE) };
    const ds_json *texts = ds_json_get(line, "texts");
    ds_buf b = { 0 }, one = { 0 };
    ds_grammar *g;
    ds_err err = { 0 };

    if (ds_grammar_json_schema(&g, ds_json_get(line, "schema"), &o, &err) != DS_OK) {
        ds_buf_puts(&b, "{\"refused\":");
        ds_json_write_str(&b, err.msg, strlen(err.msg), DS_JSON_COMPACT);
        ds_buf_putc(&b, '}');
        say(&b);
        ds_buf_free(&b);
        return;
    }
    ds_buf_puts(&b, "{\"match\":[");
    for (const ds_json *t = texts->child; t; t = t->next) {
        ds_gstate s = ds_grammar_start(g);
        size_t taken;
        bool match =
            ds_grammar_read(g, &s, t->text, t->text_len, &taken, &err) == DS_OK && taken == t->text_len && ds_grammar_accepts(g, s);
        ds_buf_puts(&b, match ? "true" : "false");
        ds_buf_puts(&b, t->next ? "," : "");
    }
    ds_buf_puts(&b, "],\"samples\":[");
    for (uint64_t i = 0; i < SAMPLES; i++) {
        ds_buf_clear(&one);
        if (ds_grammar_sample(g, 11, i, &one, &err) != DS_OK)
            stop(err.msg);
        ds_buf_puts(&b, i ? "," : "");
        ds_json_write_str(&b, ds_buf_str(&one), one.len, DS_JSON_COMPACT);
        if (i < 2)
            try_masks(g, &one, places);
    }
    ds_buf_puts(&b, "]}");
    say(&b);
    ds_buf_free(&b);
    ds_buf_free(&one);
    ds_grammar_destroy(g);
}

int main(int argc, char **argv)
{
    size_t places = argc > 1 ? strtoul(argv[1], NULL, 10) : 4, cap = 0;
    char *line = NULL;
    ssize_t n;
    ds_err err = { 0 };

    if (ds_tokenizer_open(&tok, DS_TEST_ROOT "/models/demo/tokenizer.json", &err) != DS_OK ||
        ds_token_trie_create(&trie, tok, &err) != DS_OK)
        stop(err.msg);
    while ((n = getline(&line, &cap, stdin)) > 0) {
        ds_json_doc *doc;
        if (ds_json_parse(&doc, line, (size_t)n, NULL, &err) != DS_OK)
            stop(err.msg);
        answer(ds_json_root(doc), places);
        ds_json_free(doc);
    }
    free(line);
    ds_token_trie_destroy(trie);
    ds_tokenizer_destroy(tok);
    return 0;
}
