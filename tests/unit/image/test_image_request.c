/* All pictures of a request: data, addresses and file ids are prepared and laid out; what is wrong names its field. */
#include "http_stub.h"

#include "base/buf.h"
#include "fault.h"

static void put_base64(ds_buf *b, const unsigned char *p, size_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

    for (size_t i = 0; i < n; i += 3) {
        uint32_t v = (uint32_t)p[i] << 16 | (i + 1 < n ? (uint32_t)p[i + 1] << 8 : 0) | (i + 2 < n ? p[i + 2] : 0);

        ds_buf_putc(b, digits[v >> 18]);
        ds_buf_putc(b, digits[v >> 12 & 63]);
        ds_buf_putc(b, i + 1 < n ? digits[v >> 6 & 63] : '=');
        ds_buf_putc(b, i + 2 < n ? digits[v & 63] : '=');
    }
}

/* "data:TYPE;base64,…" of a sample. */
static void put_data_url(ds_buf *b, const char *type, const char *name)
{
    size_t n;
    unsigned char *bytes = read_file(SAMPLES, name, &n);

    ds_buf_printf(b, "data:%s;base64,", type);
    put_base64(b, bytes, n);
    free(bytes);
}

static void put_image(ds_buf *b, const char *url)
{
    ds_buf_printf(b, ",{\"type\":\"image_url\",\"image_url\":{\"url\":\"%s\"}}", url);
}

static void begin_body(ds_buf *b)
{
    ds_buf_puts(b, "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"What?\"}");
}

static ds_request *parse(ds_buf *b, ds_proto proto, const ds_request_io *io)
{
    ds_request_parse_args args = { .proto = proto, .io = io };
    ds_api_error why;
    ds_request *r;
    ds_err err;

    if (proto == DS_PROTO_CHAT)
        ds_buf_puts(b, "]}]}");
    assert_false(b->oom);
    if (ds_request_parse(&r, &args, ds_buf_str(b), b->len, &why, &err) != DS_OK)
        fail_msg("%s", err.msg);
    ds_buf_free(b);
    return r;
}

static void local_opts(ds_images_opts *o)
{
    ds_images_opts_init(o);
    o->fetch.allow_private = true;
    o->fetch.total_ms = 500;
}

static void data_and_addresses(void **state)
{
    http_stub *s = *state;
    ds_picture pictures[5];
    ds_images_opts o;
    const ds_request_info_data *info;
    ds_buf b = { 0 };
    ds_api_error why;
    ds_request *r;
    char url[96];
    ds_err err;

    begin_body(&b);
    ds_buf_puts(&b, ",{\"type\":\"image_url\",\"image_url\":{\"url\":\"");
    put_data_url(&b, "image/png", "rgb8.png");
    ds_buf_puts(&b, "\"}}");
    snprintf(url, sizeof url, "http://127.0.0.1:%u/picture/offset.gif", s->port);
    put_image(&b, url);
    ds_buf_puts(&b, ",{\"type\":\"image_url\",\"image_url\":{\"url\":\"");
    put_data_url(&b, "image/webp", "rgba8.png"); /* another type than declared */
    ds_buf_puts(&b, "\"}}");
    snprintf(url, sizeof url, "http://127.0.0.1:%u/to//picture/ycc420.jpg", s->port);
    put_image(&b, url);
    put_image(&b, "data:image/gif,GIF89a%01%00%01%00%80%00%00%00%00%00%ff%ff%ff,%00%00%00%00%01%00%01%00%00%02%02D%01%00;");
    r = parse(&b, DS_PROTO_CHAT, NULL);
    info = ds_request_info(r);
    assert_int_equal(info->n_images, 5);
    local_opts(&o);
    if (ds_request_images(r, pictures, &o, &why, &err) != DS_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(pictures[0].format, DS_FORMAT_PNG);
    assert_int_equal(pictures[1].format, DS_FORMAT_GIF);
    assert_int_equal(pictures[2].format, DS_FORMAT_PNG);
    assert_int_equal(pictures[3].format, DS_FORMAT_JPEG);
    assert_int_equal(pictures[4].format, DS_FORMAT_GIF);
    assert_memory_equal(pictures[0].digest, pictures[2].digest, 32);
    for (int i = 0; i < 5; i++) {
        assert_non_null(pictures[i].pixels);
        assert_int_equal(info->images[i].tokens, pictures[i].layout.tokens);
        assert_int_equal(info->images[i].width, i == 1 ? 9 : i == 4 ? 1 : 11);
        ds_picture_free(&pictures[i]);
    }
    assert_true(ds_request_image_extra_tokens(r) > 5 * 100);
    o.skip_urls = true;
    assert_ok(ds_request_images(r, pictures, &o, &why, &err));
    for (int i = 0; i < 5; i++) {
        assert_true((pictures[i].pixels != NULL) == (info->images[i].kind == DS_IMAGE_DATA));
        ds_picture_free(&pictures[i]);
    }
    ds_request_destroy(r);
}

static void refused(ds_buf *b, const ds_images_opts *o, int status, const char *param, const char *text)
{
    ds_request *r = parse(b, DS_PROTO_CHAT, NULL);
    ds_picture pictures[4];
    ds_api_error why;
    ds_err err;

    assert_int_equal(ds_request_images(r, pictures, o, &why, &err), DS_E_FORMAT);
    assert_int_equal(why.status, status);
    assert_string_equal(why.param, param);
    if (!strstr(why.message, text) || strncmp(why.message, param, strlen(param)) != 0)
        fail_msg("message '%s' lacks '%s'", why.message, text);
    assert_string_equal(why.code, status == 400 ? "invalid_request_error" : "internal_error");
    for (uint32_t i = 0; i < ds_request_info(r)->n_images; i++)
        assert_null(pictures[i].pixels);
    ds_request_destroy(r);
}

static void refusals(void **state)
{
    static const char at1[] = "messages[0].content[1].image_url.url", at2[] = "messages[0].content[2].image_url.url";
    http_stub *s = *state;
    ds_images_opts o;
    ds_buf b = { 0 };
    char url[96], bad[96];

    local_opts(&o);
    begin_body(&b);
    put_image(&b, "data:image/png;base64,iVBORw0KGgo=");
    refused(&b, &o, 400, at1, "PNG image is cut off");
    begin_body(&b);
    put_image(&b, "data:image/png;base64,####");
    refused(&b, &o, 400, at1, "not base64");
    begin_body(&b);
    put_image(&b, "data:image/png;base64,aGVsbG8gd29ybGQ=");
    refused(&b, &o, 400, at1, "not a JPEG, PNG, GIF or WebP image");

    snprintf(url, sizeof url, "http://127.0.0.1:%u/picture/rgb8.png", s->port);
    snprintf(bad, sizeof bad, "http://127.0.0.1:%u/status/404", s->port);
    begin_body(&b);
    put_image(&b, url);
    put_image(&b, bad);
    refused(&b, &o, 400, at2, "status 404");
    snprintf(bad, sizeof bad, "http://127.0.0.1:%u/status/502", s->port);
    begin_body(&b);
    put_image(&b, url);
    put_image(&b, bad);
    refused(&b, &o, 500, at2, "status 502");
    snprintf(url, sizeof url, "http://127.0.0.1:%u/slow", s->port); /* arrives last and is no picture: still the first at fault */
    begin_body(&b);
    put_image(&b, url);
    put_image(&b, bad);
    refused(&b, &o, 400, at1, "not a JPEG");

    o.fetch.allow_private = false;
    begin_body(&b);
    put_image(&b, url);
    refused(&b, &o, 400, at1, "isn't public");
    o.no_fetch = true;
    begin_body(&b);
    put_image(&b, url);
    refused(&b, &o, 400, at1, "not fetched here");

    o.max_inline_bytes = 30;
    begin_body(&b);
    ds_buf_puts(&b, ",{\"type\":\"image_url\",\"image_url\":{\"url\":\"");
    put_data_url(&b, "image/png", "rgb8.png");
    ds_buf_puts(&b, "\"}}");
    refused(&b, &o, 400, at1, "too many bytes together");
    local_opts(&o);
    o.max_pixel_bytes = 602 * 504 * 3;
    begin_body(&b);
    for (int i = 0; i < 2; i++) {
        ds_buf_puts(&b, ",{\"type\":\"image_url\",\"image_url\":{\"url\":\"");
        put_data_url(&b, "image/gif", "plain.gif");
        ds_buf_puts(&b, "\"}}");
    }
    refused(&b, &o, 400, at2, "too large together");
    local_opts(&o);
    o.prepare.limits.max_side = 10;
    begin_body(&b);
    ds_buf_puts(&b, ",{\"type\":\"image_url\",\"image_url\":{\"url\":\"");
    put_data_url(&b, "image/png", "rgb8.png");
    ds_buf_puts(&b, "\"}}");
    refused(&b, &o, 400, at1, "a side has at most 10");
}

static ds_rc give_file(void *ctx, const char *id, const char **type, const unsigned char **data, size_t *n, ds_api_error *why, ds_err *err)
{
    (void)err;
    if (strcmp(id, "file-1") != 0)
        return ds_api_fail(why, 404, NULL, NULL, "", "no file '%s'", id);
    *type = "image/jpeg";
    *data = read_file(SAMPLES, "gray.jpg", n);
    *(void **)ctx = (void *)(uintptr_t)*data;
    return DS_OK;
}

static void file_ids(void **state)
{
    void *held = NULL;
    ds_request_io io = { .ctx = &held, .file = give_file };
    ds_images_opts o;
    ds_picture picture;
    ds_api_error why;
    ds_err err;

    (void)state;
    local_opts(&o);
    o.io = &io;
    for (int known = 1; known >= 0; known--) {
        ds_buf b = { 0 };
        ds_request *r;

        ds_buf_printf(&b,
                      "{\"model\":\"m\",\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_image\",\"file_id\":\"file-%d\"}]}]}",
                      known);
        r = parse(&b, DS_PROTO_RESPONSES, &io);
        if (known) {
            assert_ok(ds_request_images(r, &picture, &o, &why, &err));
            assert_int_equal(picture.format, DS_FORMAT_JPEG);
            ds_picture_free(&picture);
            free(held);
            o.io = NULL;
            assert_int_equal(ds_request_images(r, &picture, &o, &why, &err), DS_E_FORMAT);
            assert_non_null(strstr(why.message, "file ids are not supported"));
            o.io = &io;
        } else {
            assert_int_equal(ds_request_images(r, &picture, &o, &why, &err), DS_E_FORMAT);
            assert_int_equal(why.status, 404);
            assert_string_equal(why.param, "input[0].content[0].file_id");
        }
        ds_request_destroy(r);
    }
}

static ds_rc attempt(void *ctx, ds_err *err)
{
    ds_picture picture;
    ds_api_error why;
    ds_rc rc = ds_request_images(ctx, &picture, NULL, &why, err);

    ds_picture_free(&picture);
    return rc;
}

static void failing_allocations(void **state)
{
    ds_buf b = { 0 };
    ds_request *r;

    (void)state;
    begin_body(&b);
    ds_buf_puts(&b, ",{\"type\":\"image_url\",\"image_url\":{\"url\":\"");
    put_data_url(&b, "image/png", "interlaced.png");
    ds_buf_puts(&b, "\"}}");
    r = parse(&b, DS_PROTO_CHAT, NULL);
    assert_true(fault_every_allocation(attempt, r) >= 5);
    ds_request_destroy(r);
}

static int start_stub(void **state)
{
    static http_stub s;

    http_start(&s);
    *state = &s;
    return 0;
}

static int stop_stub(void **state)
{
    http_stop(*state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(data_and_addresses),
        cmocka_unit_test(refusals),
        cmocka_unit_test(file_ids),
        cmocka_unit_test(failing_allocations),
    };

    return cmocka_run_group_tests(tests, start_stub, stop_stub);
}
