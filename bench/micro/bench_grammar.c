/* Grammars: time to compile and prepare, the first mask, every mask along a text, memory. One JSON object a case.
 *
 *   bench_grammar TOKENIZER CASES     a case a line: {"name":…, "schema": {…} | "lark": "…" | "regex": "…", "ids": […]}
 *
 * Each case is a fresh grammar; ids are legal, one after another. bench/grammar_peer.py makes cases and does the same
 * with peers. Without arguments: a few schemas on the demonstration model's vocabulary. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "grammar/grammar.h"

static const char demo[] =
    "{\"name\":\"person\",\"schema\":{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"age\":{\"type\":\"integer\","
    "\"minimum\":0}},\"required\":[\"name\",\"age\"]},\"text\":\"{\\\"name\\\":\\\"Ada Lovelace\\\",\\\"age\\\":36}\"}\n"
    "{\"name\":\"date\",\"regex\":\"\\\\d{4}-\\\\d{2}-\\\\d{2}\",\"text\":\"1815-12-10\"}\n";

/* Processor time of this thread: what else runs on the machine doesn't count. */
static uint64_t cpu_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static ds_rc make(ds_grammar **g, const ds_json *c, ds_err *err)
{
    const ds_json *schema = ds_json_get(c, "schema"), *lark = ds_json_get(c, "lark"), *regex = ds_json_get(c, "regex");

    if (schema)
        return ds_grammar_json_schema(g, schema, NULL, err);
    return lark ? ds_grammar_lark(g, lark->text, lark->text_len, NULL, err) : ds_grammar_regex(g, regex->text, regex->text_len, NULL, err);
}

static ds_rc ids_of(const ds_json *c, ds_encoder *e, ds_ids *ids, ds_err *err)
{
    const ds_json *list = ds_json_get(c, "ids"), *text = ds_json_get(c, "text");
    size_t n = list ? list->n : 0;

    ids->n = 0;
    if (text)
        return ds_encoder_text(e, text->text, text->text_len, ids, err);
    ids->p = realloc(ids->p, (n + 1) * sizeof *ids->p);
    ids->cap = n + 1;
    if (!ids->p)
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    for (const ds_json *v = list ? list->child : NULL; v; v = v->next) {
        uint64_t id = UINT32_MAX;
        ds_json_u64(v, &id);
        ids->p[ids->n++] = (ds_token)id;
    }
    return DS_OK;
}

static ds_rc one(const ds_json *c, const ds_token_trie *t, ds_encoder *e, ds_err *err)
{
    uint32_t *words = malloc(ds_token_trie_words(t) * sizeof *words + 4);
    const ds_json *name = ds_json_get(c, "name");
    ds_grammar *g = NULL;
    ds_ids ids = { 0 };
    ds_gstate s;
    uint64_t at = cpu_ns(), compiled = 0;
    ds_rc rc = make(&g, c, err);

    if (rc == DS_OK)
        rc = ds_grammar_prepare(g, t, err);
    compiled = cpu_ns() - at;
    if (rc == DS_E_ARG) {
        ds_buf b = { 0 };
        ds_json_write_str(&b, err->msg, strlen(err->msg), DS_JSON_COMPACT);
        printf("{\"name\":\"%s\",\"compile_ns\":%llu,\"refused\":%s}\n", name->text, (unsigned long long)compiled, ds_buf_str(&b));
        ds_buf_free(&b);
        free(words);
        return DS_OK;
    }
    if (rc == DS_OK)
        rc = ids_of(c, e, &ids, err);
    if (rc == DS_OK) {
        printf("{\"name\":\"%s\",\"compile_ns\":%llu,\"mask_ns\":[", name->text, (unsigned long long)compiled);
        s = ds_grammar_start(g);
        for (size_t i = 0; rc == DS_OK; i++) {
            uint32_t taken;
            at = cpu_ns();
            rc = ds_grammar_mask(g, t, s, words, err);
            printf("%s%llu", i ? "," : "", (unsigned long long)(cpu_ns() - at));
            if (rc != DS_OK || i == ids.n)
                break;
            rc = ds_grammar_accept(g, t, &s, ids.p + i, 1, &taken, err);
            if (rc == DS_OK && taken == 0)
                rc = ds_fail(err, DS_E_ARG, "case %s: token %zu isn't legal", name->text, i);
        }
        printf("],\"accepts\":%s,\"bytes\":%zu,\"states\":%u,\"nodes\":%u}\n", rc == DS_OK && ds_grammar_accepts(g, s) ? "true" : "false",
               ds_grammar_stat(g).bytes, ds_grammar_stat(g).states, ds_grammar_stat(g).nodes);
    }
    ds_ids_free(&ids);
    ds_grammar_destroy(g);
    free(words);
    return rc;
}

int main(int argc, char **argv)
{
    ds_tokenizer *tok = NULL;
    ds_token_trie *t = NULL;
    ds_encoder *e = NULL;
    char *text = NULL;
    size_t n = sizeof demo - 1;
    ds_err err = { 0 };
    uint64_t at;
    ds_rc rc = ds_tokenizer_open(&tok, argc > 2 ? argv[1] : DS_BENCH_TOKENIZER, &err);

    at = cpu_ns();
    if (rc == DS_OK)
        rc = ds_token_trie_create(&t, tok, &err);
    if (rc == DS_OK) {
        printf("{\"tokens\":%u,\"trie_ns\":%llu}\n", ds_tokenizer_size(tok), (unsigned long long)(cpu_ns() - at));
        rc = ds_encoder_create(&e, tok, NULL, &err);
    }
    if (rc == DS_OK && argc > 2)
        rc = ds_file_read(&text, &n, argv[2], 256 << 20, &err);
    for (const char *p = text ? text : demo, *end = p + n; rc == DS_OK && p < end;) {
        const char *line = memchr(p, '\n', (size_t)(end - p));
        ds_json_doc *doc;
        size_t len = line ? (size_t)(line - p) : (size_t)(end - p);
        rc = ds_json_parse(&doc, p, len, NULL, &err);
        if (rc == DS_OK)
            rc = one(ds_json_root(doc), t, e, &err);
        ds_json_free(doc);
        p += len + 1;
    }
    free(text);
    ds_encoder_destroy(e);
    ds_token_trie_destroy(t);
    ds_tokenizer_destroy(tok);
    if (rc != DS_OK)
        fprintf(stderr, "%s\n", err.msg);
    return rc != DS_OK;
}
