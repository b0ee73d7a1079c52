/* Pictures: the first byte chooses what is put in front of the rest (nothing, or the signature of a format, so that
 * no decoder has to be found by luck) and what is done with it. Whatever comes, it is refused in one line or gives
 * all its rows; a picture is never larger than the limits, and what was prepared has the announced shape. */
#include <stdlib.h>
#include <string.h>

#include <ds/image.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool ok)
{
    if (!ok)
        __builtin_trap();
}

static void check_refusal(ds_rc rc, const ds_err *err)
{
    must(rc == DS_E_FORMAT || rc == DS_E_NOMEM);
    must(err->msg[0] && !strchr(err->msg, '\n'));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct {
        const char *p;
        size_t n;
    } heads[] = { { "", 0 }, { "\xff\xd8\xff", 3 }, { "\x89PNG\r\n\x1a\n", 8 }, { "GIF89a", 6 }, { "RIFF\xff\0\0\0WEBPVP8", 15 } };
    ds_prepare_opts o;
    ds_picture pic;
    ds_pixels p;
    uint8_t *bytes, how;
    size_t head, n;
    ds_err err;
    ds_rc rc;

    if (size == 0)
        return 0;
    how = data[0];
    head = how % 5;
    n = heads[head].n + size - 1;
    bytes = malloc(n ? n : 1);
    if (!bytes)
        return 0;
    memcpy(bytes, heads[head].p, heads[head].n);
    memcpy(bytes + heads[head].n, data + 1, size - 1);
    ds_prepare_opts_init(&o);
    o.limits.max_pixels = 1 << 18;
    o.limits.max_memory = 4 << 20;
    o.limits.max_ms = 2000;
    memset(&err, 0, sizeof err);
    if (how & 0x80) {
        rc = ds_image_decode(&p, bytes, n, &o.limits, &err);
        if (rc == DS_OK)
            must(p.rgb && (uint64_t)p.width * p.height <= o.limits.max_pixels);
        else
            check_refusal(rc, &err);
        ds_pixels_free(&p);
    } else {
        o.rule.max_tokens = 64;
        o.rule.min_pixels = 1764;
        o.rule.max_wh_ratio = how & 0x40 ? 3 : 0;
        o.size_only = how & 0x20;
        rc = ds_image_prepare(&pic, bytes, n, &o, &err);
        if (rc == DS_OK) {
            must(pic.layout.tokens <= 64 && pic.n_w * pic.patch == pic.layout.fitted_w && pic.n_h * pic.patch == pic.layout.fitted_h);
            must(o.size_only == !pic.pixels);
            must((uint64_t)pic.layout.width * pic.layout.height <= o.limits.max_pixels);
        } else {
            check_refusal(rc, &err);
        }
        ds_picture_free(&pic);
    }
    free(bytes);
    return 0;
}
