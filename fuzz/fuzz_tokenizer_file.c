/* tokenizer.json: any bytes are refused with a message, or give a tokenizer that encodes and decodes. */
#include <stdlib.h>
#include <string.h>

#include <ds/tokenizer.h>

#define CHECK(x)              \
    do {                      \
        if (!(x))             \
            __builtin_trap(); \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(const ds_tokenizer *t)
{
    static const char text[] = "the quick 123 \xe6\xbc\xa2\xe5\xad\x97\n\xff  abababababab <think>";
    ds_ids ids = { 0 };
    ds_encoder *e;
    ds_err err;
    size_t at = 0;

    CHECK(ds_encoder_create(&e, t, &(ds_encoder_opts){ .cache_entries = 1024 }, &err) == DS_OK);
    ds_rc rc = ds_encoder_text(e, text, sizeof text - 1, &ids, &err);
    CHECK(rc == DS_OK || rc == DS_E_ARG);
    for (size_t i = 0; i < ids.n; i++) {
        size_t n;
        const char *p = ds_tokenizer_bytes(t, ids.p[i], &n);
        CHECK(n > 0 && n <= sizeof text - 1 - at && memcmp(p, text + at, n) == 0);
        at += n;
    }
    CHECK(rc != DS_OK || at == sizeof text - 1);
    uint32_t *map = malloc(ds_tokenizer_size(t) * sizeof *map), n;
    CHECK(map && ds_tokenizer_engram_map(t, map, &n, &err) == DS_OK && n > 0 && n <= ds_tokenizer_size(t));
    free(map);
    ds_ids_free(&ids);
    ds_encoder_destroy(e);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ds_tokenizer *t;
    ds_err err = { 0 };
    ds_rc rc = ds_tokenizer_parse(&t, (const char *)data, size, &err);

    CHECK(rc == DS_OK || rc == DS_E_FORMAT);
    CHECK((rc == DS_OK) == (t != NULL));
    if (t)
        use(t);
    else
        CHECK(err.msg[0] != '\0' && strchr(err.msg, '\n') == NULL);
    ds_tokenizer_destroy(t);
    return 0;
}
