#include "engine/chain.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

enum { BLOCK = 128, SPAN_FIELD = 40, BUF_BYTES = 8 + 4 * BLOCK + BLOCK * (8 + SPAN_FIELD) };

typedef struct {
    uint8_t b[BUF_BYTES];
    size_t n;
} fields;

static void put_le(uint8_t *at, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++)
        at[i] = (uint8_t)(v >> (8 * i));
}

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

void ds_chain_ns(ds_key *out, const ds_engine_opts *o, const char *layout, const char *domain, const char *salt)
{
    fields f;

    f.n = 0;
    add(&f, "deepserve prefix 1", 18);
    add_text(&f, o->model_revision);
    add_text(&f, o->tokenizer_id);
    add_text(&f, o->template_id);
    add_text(&f, layout);
    add_text(&f, domain);
    add_text(&f, salt);
    ds_sha256(out->b, f.b, f.n);
}

void ds_chain_next(ds_key *out, const ds_key *before, const int32_t *tokens, uint32_t pos, const ds_gen_image *images, size_t n_images)
{
    fields f;
    uint8_t h[32];

    f.n = 8 + 4 * BLOCK;
    put_le(f.b, 4 * BLOCK, 8);
    for (uint32_t i = 0; i < BLOCK; i++)
        put_le(f.b + 8 + 4 * i, (uint32_t)tokens[i], 4);
    for (size_t i = 0; i < n_images; i++) {
        const ds_gen_image *m = &images[i];
        uint8_t span[SPAN_FIELD];
        uint32_t from = m->pos > pos ? m->pos : pos;
        if (m->pos >= pos + BLOCK || m->pos + m->n <= pos)
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
