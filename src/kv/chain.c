#include "kv/chain.h"

#include <assert.h>
#include <string.h>

#include "base/hash.h"
#include "kv/bytes_internal.h"
#include "kv/layout.h"

enum {
    BLOCK = DS_KV_BLOCK_TOKENS,
    SPAN_FIELD = 40,
    BUF_BYTES = 8 + 4 * BLOCK + BLOCK * (8 + SPAN_FIELD), /* a span has a position of the block at least */
};

typedef struct {
    uint8_t b[BUF_BYTES];
    size_t n;
} fields;

static void add(fields *f, const void *bytes, size_t n)
{
    assert(f->n + 8 + n <= sizeof f->b);
    put_le(f->b + f->n, n, 8);
    memcpy(f->b + f->n + 8, bytes, n);
    f->n += 8 + n;
}

/* Text of any length: by its hash; absent text by a field of no bytes. */
static void add_text(fields *f, const char *text)
{
    uint8_t h[32];

    if (!text) {
        add(f, "", 0);
        return;
    }
    ds_sha256(h, text, strlen(text));
    add(f, h, sizeof h);
}

void ds_chain_ns(ds_key *out, const ds_kv_identity *id, const char *domain, const char *salt)
{
    fields f;

    f.n = 0;
    add(&f, "deepserve block key 1", 21);
    add(&f, id->model, sizeof id->model);
    add(&f, id->tokenizer, sizeof id->tokenizer);
    add(&f, id->dialect, sizeof id->dialect);
    add(&f, id->layout, sizeof id->layout);
    add_text(&f, domain);
    add_text(&f, salt);
    ds_sha256(out->b, f.b, f.n);
}

void ds_chain_next(ds_key *out, const ds_key *before, const ds_token *tokens, uint32_t pos, const ds_kv_span *spans, size_t n_spans)
{
    fields f;
    uint8_t h[32];

    assert(pos % BLOCK == 0);
    f.n = 8 + 4 * BLOCK;
    put_le(f.b, 4 * BLOCK, 8);
    for (uint32_t i = 0; i < BLOCK; i++)
        put_le(f.b + 8 + 4 * i, (uint32_t)tokens[i], 4);
    for (size_t i = 0; i < n_spans; i++) {
        const ds_kv_span *m = &spans[i];
        uint8_t span[SPAN_FIELD];
        uint32_t from = m->pos > pos ? m->pos : pos;
        if (m->n == 0 || from - pos >= BLOCK || from - m->pos >= m->n)
            continue;
        memcpy(span, m->digest, 32);
        put_le(span + 32, from - pos, 4);
        put_le(span + 36, from - m->pos, 4);
        add(&f, span, sizeof span);
    }
    ds_sha256(h, f.b, f.n);
    f.n = 0;
    add(&f, before->b, sizeof before->b);
    add(&f, h, sizeof h);
    ds_sha256(out->b, f.b, f.n);
}

void ds_chain_state(ds_key *out, const ds_key *block)
{
    fields f;

    f.n = 0;
    add(&f, "deepserve state key 1", 21);
    add(&f, block->b, sizeof block->b);
    ds_sha256(out->b, f.b, f.n);
}
