/* HTTP answers, as the load generator reads them: however the bytes are cut, the same comes out. */
#include <string.h>

#include "loadgen/answer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct {
    ds_answer a;
    ds_buf text;
    unsigned outputs;
} reader;

static void on_output(void *ctx, const char *text, size_t n)
{
    reader *r = ctx;

    r->outputs++;
    ds_buf_put(&r->text, text, n);
}

static ds_answer_state feed(reader *r, const char *bytes, size_t n, size_t step)
{
    ds_answer_state state = DS_ANSWER_MORE;
    size_t used;

    *r = (reader){ .a = { .output = on_output, .ctx = r } };
    for (size_t at = 0; at < n && state == DS_ANSWER_MORE; at += used) {
        state = ds_answer_feed(&r->a, bytes + at, n - at < step ? n - at : step, &used);
        if (state == DS_ANSWER_MORE && used == 0)
            __builtin_trap();
    }
    return state == DS_ANSWER_MORE ? ds_answer_eof(&r->a) : state;
}

static void fini(reader *r)
{
    ds_answer_fini(&r->a);
    ds_buf_free(&r->text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    reader whole, cut;
    ds_answer_state state = feed(&whole, (const char *)data, size, size + 1);

    for (size_t step = 1; step < 8; step += 3) {
        if (feed(&cut, (const char *)data, size, step) != state)
            __builtin_trap();
        if (state == DS_ANSWER_DONE &&
            (cut.a.status != whole.a.status || cut.outputs != whole.outputs || cut.a.ended != whole.a.ended ||
             cut.a.failed != whole.a.failed || cut.a.completion != whole.a.completion || cut.text.len != whole.text.len ||
             (cut.text.len && memcmp(cut.text.p, whole.text.p, cut.text.len) != 0)))
            __builtin_trap();
        fini(&cut);
    }
    fini(&whole);
    return 0;
}
