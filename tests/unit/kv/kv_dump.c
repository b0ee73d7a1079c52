/* What the program computes, for tests that derive or read the same independently (tests/e2e/test_kv_formats.py): a
 * line for each thing, words and bytes in hexadecimal.
 *
 *   kv_dump keys FILE.json              {"identity": {…}, "domain", "salt", "tokens": [], "spans": []}: the
 *                                       namespace, keys of all whole blocks
 *   kv_dump bytes MODEL MODE FILE.json  [ids]: layout, blocks, slot and single records after that prompt; MODE:
 *                                       exact, ced
 *   kv_dump digest MODEL FILE TENSOR    with files below FILE bytes read whole, and of the others tensors below
 *                                       TENSOR bytes
 *   kv_dump handoff MODEL MODE FILE.json N
 *                                       [ids]: record of a sequence that leaves behind N tokens or a few more
 *   kv_dump state BITS P TOKEN START SIZE
 *                                       header of a saved state */
#include <stdio.h>

#include "../model/golden.h"
#include "engine/backend.h"
#include "kv/chain.h"
#include "kv/state.h"

enum { MAX_SPANS = 64 };

static ds_json_doc *read_json(const char *path)
{
    ds_err err;
    ds_json_doc *doc;
    char *text;
    size_t n;

    assert_ok(ds_file_read(&text, &n, path, 1 << 24, &err));
    assert_ok(ds_json_parse(&doc, text, n, NULL, &err));
    free(text);
    return doc;
}

static void unhex(uint8_t out[32], const ds_json *v)
{
    assert_true(ds_json_is(v, DS_JSON_STRING) && v->text_len == 64);
    for (size_t i = 0; i < 32; i++)
        assert_int_equal(sscanf(v->text + 2 * i, "%2hhx", &out[i]), 1);
}

static void put_hex(const void *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        printf("%02x", ((const uint8_t *)bytes)[i]);
    printf("\n");
}

static const char *text_or_null(const ds_json *v)
{
    return ds_json_is(v, DS_JSON_STRING) ? v->text : NULL;
}

static void dump_keys(const char *path)
{
    ds_json_doc *doc = read_json(path);
    const ds_json *root = ds_json_root(doc), *id = ds_json_get(root, "identity");
    ds_kv_identity identity;
    ds_kv_span span[MAX_SPANS];
    size_t n_spans = 0;
    uint32_t n;
    int32_t *tokens = json_ids(ds_json_get(root, "tokens"), &n);
    ds_key key, ns;

    unhex(identity.model, ds_json_get(id, "model"));
    unhex(identity.tokenizer, ds_json_get(id, "tokenizer"));
    unhex(identity.dialect, ds_json_get(id, "dialect"));
    unhex(identity.layout, ds_json_get(id, "layout"));
    for (const ds_json *v = ds_json_get(root, "spans")->child; v; v = v->next, n_spans++) {
        assert_true(n_spans < MAX_SPANS);
        span[n_spans].pos = json_uint(ds_json_get(v, "pos"));
        span[n_spans].n = json_uint(ds_json_get(v, "n"));
        unhex(span[n_spans].digest, ds_json_get(v, "digest"));
    }
    ds_chain_ns(&ns, &identity, text_or_null(ds_json_get(root, "domain")), text_or_null(ds_json_get(root, "salt")));
    printf("ns ");
    put_hex(ns.b, sizeof ns.b);
    key = ns;
    for (uint32_t pos = 0; pos + DS_KV_BLOCK_TOKENS <= n; pos += DS_KV_BLOCK_TOKENS) {
        ds_key before = key;
        ds_chain_next(&key, &before, tokens + pos, pos, span, n_spans);
        printf("key ");
        put_hex(key.b, sizeof key.b);
    }
    free(tokens);
    ds_json_free(doc);
}

static ds_model *open_dir(const char *dir)
{
    ds_err err;
    ds_model *m;

    assert_ok(ds_model_open(&m, dir, &(ds_model_opts){ .token_map = test_token_map }, &err));
    return m;
}

/* The records that ds_runner_record gives, one by one. */
static void dump_records(ds_solo *s, const ds_kv_layout *l)
{
    for (uint32_t i = 0; i < l->n_parts; i++) {
        const ds_kv_part *p = &l->part[i];
        if (p->record != DS_KV_MAIN && p->record != DS_KV_INDEX)
            continue;
        for (uint32_t j = 0; j < s->n / p->ratio; j++) {
            uint8_t rec[DS_RECORD_MAX_BYTES];
            size_t bytes;
            ds_err err;
            assert_ok(ds_runner_record(s->run, p->record == DS_KV_MAIN ? DS_RECORD_MAIN : DS_RECORD_INDEX, p->of, s->blocks, j, rec, &bytes,
                                       &err));
            printf("record %d %u %u ", (int)p->record, p->of, j);
            put_hex(rec, bytes);
        }
    }
}

/* Window records as they were computed, before they went into the rings; the rows of a layer end at the prompt's
 * last position. */
static void dump_windows(const collector *seen, uint32_t n)
{
    for (size_t i = 0; i < seen->n; i++)
        for (size_t r = 0; strcmp(seen->s[i].what, "win") == 0 && r < seen->s[i].rows; r++) {
            printf("window %d %zu ", seen->s[i].layer, n - seen->s[i].rows + r);
            put_hex(seen->s[i].data + r * seen->s[i].row_bytes, seen->s[i].row_bytes);
        }
}

static void dump_bytes(const char *dir, bool ced, const char *path)
{
    static collector seen;
    static uint8_t bytes[DS_KV_LAYOUT_MAX_BYTES];
    ds_json_doc *doc = read_json(path);
    ds_model *m = open_dir(dir);
    ds_model_layout lay;
    ds_kv_layout l;
    ds_runner *run;
    ds_solo solo;
    uint8_t id[32], *whole;
    uint32_t n;
    int32_t *tokens = json_ids(ds_json_root(doc), &n);
    logit_rows logits = { 0 };
    ds_err err;

    assert_ok(ds_runner_create(
        &run, m, &(ds_runner_opts){ .max_rows = n, .max_context = n, .n_tails = 1, .observe = collect, .observe_ctx = &seen }, &err));
    assert_ok(ds_solo_init(&solo, run, n, ced, &err));
    assert_ok(ds_solo_prefill(&solo, tokens, n, 1, keep_logits, &logits, &err));
    ds_model_layout_get(m, &lay);
    whole = malloc(lay.block_bytes > lay.slot_bytes ? lay.block_bytes : lay.slot_bytes);
    assert_non_null(whole);
    ds_model_kv_layout(m, &l);
    l.mode = ced ? DS_KV_CED_STRICT : DS_KV_EXACT;
    printf("layout ");
    put_hex(bytes, ds_kv_layout_write(bytes, &l));
    ds_kv_layout_id(id, &l);
    printf("id ");
    put_hex(id, sizeof id);
    for (uint32_t b = 0; b < (n + DS_KV_BLOCK_TOKENS - 1) / DS_KV_BLOCK_TOKENS; b++) {
        printf("block ");
        assert_ok(ds_runner_read_block(run, solo.blocks[b], whole, &err));
        put_hex(whole, lay.block_bytes);
    }
    printf("slot ");
    assert_ok(ds_runner_read_slot(run, 0, whole, &err));
    put_hex(whole, lay.slot_bytes);
    free(whole);
    dump_records(&solo, &l);
    dump_windows(&seen, n);
    free(logits.data);
    collector_clear(&seen);
    ds_solo_fini(&solo);
    ds_runner_destroy(run);
    ds_model_close(m);
    free(tokens);
    ds_json_free(doc);
}

static void dump_digest(const char *dir, const char *file, const char *tensor)
{
    ds_model *m = open_dir(dir);
    ds_model_digest_info info;
    uint8_t digest[32];
    ds_err err;

    assert_ok(ds_model_digest(
        digest, m, dir,
        &(ds_model_digest_opts){ .whole_file_bytes = strtoull(file, NULL, 10), .whole_tensor_bytes = strtoull(tensor, NULL, 10) }, &info,
        &err));
    printf("digest ");
    put_hex(digest, sizeof digest);
    ds_model_close(m);
}

/* A state's header from its members, in the order of the format. */
static void dump_state(char **argv)
{
    uint8_t header[DS_KV_STATE_HEADER];
    unsigned bits = (unsigned)atoi(argv[0]);
    ds_kv_state s = { .pos = (uint32_t)strtoul(argv[1], NULL, 10),
                      .next = atoi(argv[2]),
                      .decoding = bits & 1,
                      .ended = bits & 2,
                      .approx = bits & 4,
                      .dec_start = (uint32_t)strtoul(argv[3], NULL, 10),
                      .slot_bytes = strtoull(argv[4], NULL, 10) };

    ds_kv_state_write(header, &s);
    printf("state ");
    put_hex(header, sizeof header);
}

static void take_engine_tokens(ds_engine *e, uint32_t *n)
{
    ds_event ev[16];
    size_t got = ds_engine_poll(e, ev, 16);

    for (size_t i = 0; i < got; i++)
        *n += ev[i].kind == DS_EV_TOKEN;
}

/* A sequence that leaves an engine behind some tokens: its record. */
static void dump_handoff(const char *dir, bool ced, const char *path, uint32_t tokens)
{
    ds_json_doc *doc = read_json(path);
    ds_model *m = open_dir(dir);
    ds_engine *e;
    ds_engine_export *x = NULL;
    const uint8_t *record;
    size_t bytes;
    uint64_t id;
    uint32_t n, seen = 0;
    int32_t *prompt = json_ids(ds_json_root(doc), &n);
    ds_err err;

    assert_ok(ds_engine_create(
        &e, m, NULL, &(ds_engine_opts){ .mode = ced ? DS_ENGINE_CED : DS_ENGINE_EXACT, .max_context = n + tokens + 8, .handoff = 1 },
        &err));
    assert_ok(
        ds_engine_add(e,
                      &(ds_gen_request){
                          .prompt = prompt, .n_prompt = n, .max_tokens = tokens + 4, .sampling = DS_SAMPLING_DEFAULT, .cache_domain = "a" },
                      &id, &err));
    while (ds_engine_turn(e)) {
        take_engine_tokens(e, &seen);
        if (seen >= tokens && !x)
            assert_ok(ds_engine_export_begin(&x, e, id, (ds_engine_export_how){ 0 }, &err));
    }
    assert_ok(ds_engine_export_wait(x, 0, &record, &bytes, &err));
    printf("handoff ");
    put_hex(record, bytes);
    ds_engine_export_free(x);
    ds_engine_destroy(e);
    ds_model_close(m);
    free(prompt);
    ds_json_free(doc);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "keys") == 0)
        dump_keys(argv[2]);
    else if (argc == 5 && strcmp(argv[1], "bytes") == 0)
        dump_bytes(argv[2], strcmp(argv[3], "ced") == 0, argv[4]);
    else if (argc == 5 && strcmp(argv[1], "digest") == 0)
        dump_digest(argv[2], argv[3], argv[4]);
    else if (argc == 7 && strcmp(argv[1], "state") == 0)
        dump_state(argv + 2);
    else if (argc == 6 && strcmp(argv[1], "handoff") == 0)
        dump_handoff(argv[2], strcmp(argv[3], "ced") == 0, argv[4], (uint32_t)atoi(argv[5]));
    else
        return 2;
    return 0;
}
