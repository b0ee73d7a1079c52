/* deepserve grammar: a constraint at the shell. */
#include "cli/cli.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "cli/input.h"
#include "grammar/grammar.h"

enum { FILE_MAX_BYTES = 16 << 20 };

typedef struct {
    const char *json_schema, *regex, *ebnf, *lark, *choices;
    const char *tokenizer, *prefix;
    int64_t seed, n;
    bool json, any_order;
} options;

typedef enum { MATCH, MASK, COMPILE, SAMPLE } verb;

static const ds_opt table[] = {
    { .name = "json-schema",
      .type = DS_OPT_STR,
      .offset = offsetof(options, json_schema),
      .arg = "F.json",
      .help = "JSON text of a value that fits" },
    { .name = "regex",
      .type = DS_OPT_STR,
      .offset = offsetof(options, regex),
      .arg = "S",
      .help = "a regular expression for the whole text" },
    { .name = "ebnf", .type = DS_OPT_STR, .offset = offsetof(options, ebnf), .arg = "F", .help = "rules in the notation of GBNF" },
    { .name = "lark", .type = DS_OPT_STR, .offset = offsetof(options, lark), .arg = "F", .help = "rules in the notation of Lark" },
    { .name = "choices", .type = DS_OPT_STR, .offset = offsetof(options, choices), .arg = "F.json", .help = "one string of a JSON array" },
    { .name = "tokenizer",
      .type = DS_OPT_STR,
      .offset = offsetof(options, tokenizer),
      .arg = "F.json",
      .help = "mask: whose tokens; compile: the first mask is made too" },
    { .name = "prefix",
      .type = DS_OPT_STR,
      .offset = offsetof(options, prefix),
      .arg = "TEXT",
      .help = "mask: the text so far (default: none)" },
    { .name = "seed",
      .type = DS_OPT_INT,
      .offset = offsetof(options, seed),
      .def = "0",
      .arg = "N",
      .min = 0,
      .max = INFINITY,
      .help = "sample: the same seed gives the same texts" },
    { .name = "n",
      .type = DS_OPT_INT,
      .offset = offsetof(options, n),
      .def = "1",
      .arg = "N",
      .min = 1,
      .max = 1e6,
      .help = "sample: texts" },
    { .name = "any-order",
      .type = DS_OPT_FLAG,
      .offset = offsetof(options, any_order),
      .help = "JSON: keys in any order, not the schema's" },
    { .name = "json", .type = DS_OPT_FLAG, .offset = offsetof(options, json), .help = "results as JSON, which they always are" },
    { 0 },
};

static const ds_opt_cmd command = {
    .command = "deepserve grammar",
    .summary =
        "VERB is match: is the text on standard input in the language, can it be continued to one that is, how many of its bytes fit;\n"
        "mask: the token ids that may follow a prefix; compile: time, states and bytes; sample: random members, one JSON string a line.",
    .usage = "VERB (--json-schema F.json | --regex S | --ebnf F | --lark F | --choices F.json) [options]",
    .example = "echo -n 2026-01 | deepserve grammar match --regex '[0-9]{4}-[0-9]{2}-[0-9]{2}'",
    .opts = table,
};

static ds_rc make(const options *o, ds_grammar **g, ds_err *err)
{
    const char *path = o->choices ? o->choices : o->ebnf ? o->ebnf : o->lark ? o->lark : o->json_schema;
    ds_json_doc *doc = NULL;
    char *text, label[100];
    size_t n;
    ds_rc rc;

    if (o->regex)
        return ds_grammar_regex(g, o->regex, strlen(o->regex), NULL, err);
    rc = ds_file_read(&text, &n, path, FILE_MAX_BYTES, err);
    if (rc != DS_OK)
        return rc;
    if (o->ebnf || o->lark) {
        rc = o->ebnf ? ds_grammar_ebnf(g, text, n, NULL, err) : ds_grammar_lark(g, text, n, NULL, err);
        free(text);
        return rc;
    }
    rc = ds_json_parse(&doc, text, n, NULL, err);
    if (rc != DS_OK)
        ds_err_prefix(err, rc, "%s: ", ds_file_label(label, sizeof label, path));
    else if (o->choices)
        rc = ds_grammar_choices(g, ds_json_root(doc), NULL, err);
    else
        rc = ds_grammar_json_schema(g, ds_json_root(doc), &(ds_grammar_opts){ .any_order = o->any_order }, err);
    ds_json_free(doc);
    free(text);
    return rc;
}

static ds_rc match(ds_grammar *g, ds_buf *out, ds_err *err)
{
    ds_cli_input in = { .fd = 0 };
    ds_gstate s = ds_grammar_start(g);
    uint64_t at = 0, read = 0;
    ds_rc rc = DS_OK;

    for (int c; rc == DS_OK && (c = ds_cli_input_byte(&in)) != -1; read++) {
        char byte = (char)c;
        size_t taken = 0;
        if (at == read)
            rc = ds_grammar_read(g, &s, &byte, 1, &taken, err);
        at += taken;
    }
    if (rc == DS_OK && in.error)
        return ds_fail(err, DS_E_IO, "standard input: %s", strerror(in.error));
    ds_buf_printf(out, "{\"match\":%s,\"prefix\":%s,\"at\":%" PRIu64 "}\n", at == read && ds_grammar_accepts(g, s) ? "true" : "false",
                  at == read ? "true" : "false", at);
    return rc;
}

static ds_rc mask(ds_grammar *g, const ds_token_trie *t, const char *prefix, ds_buf *out, ds_err *err)
{
    uint32_t n = ds_token_trie_words(t), *words = calloc((size_t)n + 1, sizeof *words);
    ds_gstate s = ds_grammar_start(g);
    const char *comma = "";
    size_t taken;
    ds_rc rc = words ? ds_grammar_read(g, &s, prefix, strlen(prefix), &taken, err) : ds_fail(err, DS_E_NOMEM, "out of memory");

    if (rc == DS_OK && taken < strlen(prefix))
        rc = ds_fail(err, DS_E_ARG, "--prefix leaves the language after %zu of %zu bytes", taken, strlen(prefix));
    if (rc == DS_OK)
        rc = ds_grammar_mask(g, t, s, words, err);
    if (rc == DS_OK) {
        ds_buf_printf(out, "{\"eos\":%s,\"ids\":[", ds_grammar_accepts(g, s) ? "true" : "false");
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t w = words[i]; w; w &= w - 1, comma = ",")
                ds_buf_printf(out, "%s%u", comma, 32 * i + (uint32_t)__builtin_ctz(w));
        ds_buf_puts(out, "]}\n");
    }
    free(words);
    return rc;
}

static ds_rc sample(const ds_grammar *g, const options *o, ds_buf *out, ds_err *err)
{
    ds_buf one = { 0 };
    ds_rc rc = DS_OK;

    for (int64_t i = 0; i < o->n && rc == DS_OK; i++) {
        ds_buf_clear(&one);
        rc = ds_grammar_sample(g, (uint64_t)o->seed, (uint64_t)i, &one, err);
        ds_json_write_str(out, ds_buf_str(&one), one.len, DS_JSON_COMPACT);
        ds_buf_putc(out, '\n');
    }
    ds_buf_free(&one);
    return rc;
}

static ds_rc work(verb v, const options *o, ds_buf *out, ds_err *err)
{
    ds_token_trie *trie = NULL;
    ds_tokenizer *t = NULL;
    ds_grammar *g = NULL;
    uint64_t began, ns;
    ds_rc rc = DS_OK;

    if (o->tokenizer) {
        rc = ds_tokenizer_open(&t, o->tokenizer, err);
        if (rc == DS_OK)
            rc = ds_token_trie_create(&trie, t, err);
    }
    began = ds_now_ns();
    if (rc == DS_OK)
        rc = make(o, &g, err);
    if (rc == DS_OK && trie)
        rc = ds_grammar_prepare(g, trie, err);
    ns = ds_now_ns() - began;
    if (rc == DS_OK && v == MATCH)
        rc = match(g, out, err);
    else if (rc == DS_OK && v == MASK)
        rc = mask(g, trie, o->prefix ? o->prefix : "", out, err);
    else if (rc == DS_OK && v == SAMPLE)
        rc = sample(g, o, out, err);
    else if (rc == DS_OK) {
        ds_buf discard = { 0 };
        if (trie)
            rc = mask(g, trie, "", &discard, err);
        ds_buf_free(&discard);
        ds_buf_printf(out, "{\"compile_ns\":%" PRIu64 ",\"states\":%u,\"bytes\":%zu}\n", ns, ds_grammar_stat(g).states,
                      ds_grammar_stat(g).bytes);
    }
    ds_grammar_destroy(g);
    ds_token_trie_destroy(trie);
    ds_tokenizer_destroy(t);
    return rc;
}

int ds_cmd_grammar(int argc, char **argv)
{
    static const char *const verbs[] = { "match", "mask", "compile", "sample", NULL };
    options o = { 0 };
    const char *word = NULL;
    size_t n = 0;
    ds_buf out = { 0 };
    ds_err err = { 0 };
    int v = 0;
    bool help;
    ds_rc rc;

    if (ds_opt_parse(&command, &o, argc, argv, &word, 1, &n, NULL, &help, &err) != DS_OK)
        return ds_cli_wrong("grammar", "%s", err.msg);
    if (help) {
        ds_opt_print_help(&command, stdout);
        return 0;
    }
    while (n && verbs[v] && strcmp(verbs[v], word) != 0)
        v++;
    if (!n || !verbs[v])
        return ds_cli_wrong("grammar", "what to do comes first: match, mask, compile or sample");
    if ((o.json_schema != NULL) + (o.regex != NULL) + (o.ebnf != NULL) + (o.lark != NULL) + (o.choices != NULL) != 1)
        return ds_cli_wrong("grammar", "exactly one of --json-schema, --regex, --ebnf, --lark, --choices is needed");
    if (v == MASK && !o.tokenizer)
        return ds_cli_wrong("grammar", "mask needs --tokenizer");
    rc = work((verb)v, &o, &out, &err);
    if (rc == DS_OK && out.oom)
        rc = ds_fail(&err, DS_E_NOMEM, "out of memory");
    if (rc == DS_OK)
        rc = ds_file_write(1, ds_buf_str(&out), out.len, "standard output", &err);
    ds_buf_free(&out);
    return rc == DS_OK ? 0 : ds_cli_fail("grammar", &err);
}
