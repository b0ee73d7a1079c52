/* Refusals and the error bodies of the protocols. (recipe spec 4.1) */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <ds/request.h>

#include "base/buf.h"
#include "base/json.h"

static const struct {
    int status;
    const char *openai, *code, *anthropic;
} kinds[] = {
    { 400, "invalid_request_error", "invalid_request_error", "invalid_request_error" },
    { 401, "authentication_error", "authentication_error", "authentication_error" },
    { 402, "billing_error", "insufficient_balance", "billing_error" },
    { 403, "permission_error", "permission_error", "permission_error" },
    { 404, "not_found_error", "not_found", "not_found_error" },
    { 413, "request_too_large", "request_too_large", "request_too_large" },
    { 415, "invalid_request_error", "unsupported_media_type", "invalid_request_error" },
    { 422, "invalid_request_error", "invalid_request_error", "invalid_request_error" },
    { 429, "rate_limit_error", "rate_limit_exceeded", "rate_limit_error" },
    { 500, "internal_error", "internal_error", "api_error" },
    { 503, "overloaded", "overloaded", "overloaded_error" },
    { 529, "overloaded", "overloaded", "overloaded_error" },
};

static size_t kind_of(int status)
{
    size_t n = sizeof kinds / sizeof *kinds;

    for (size_t i = 0; i < n; i++)
        if (kinds[i].status == status)
            return i;
    return status >= 500 ? 9 : 0;
}

/* Cuts at a UTF-8 border and replaces control characters, so that the message is one printable line. */
static void tidy(char *s, size_t cap)
{
    size_t n = strnlen(s, cap);

    if (n == cap - 1) {
        while (n && ((unsigned char)s[n - 1] & 0xC0) == 0x80)
            n--;
        if (n && (unsigned char)s[n - 1] >= 0xC0)
            n--;
        else
            n = strnlen(s, cap);
        s[n] = 0;
    }
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)s[i] < 0x20 || s[i] == 0x7F)
            s[i] = ' ';
}

ds_rc ds_api_fail(ds_api_error *e, int status, const char *type, const char *code, const char *param, const char *fmt, ...)
{
    va_list ap;
    size_t k = kind_of(status);

    e->status = status;
    e->type = type ? type : kinds[k].openai;
    e->code = code ? code : kinds[k].code;
    snprintf(e->param, sizeof e->param, "%s", param ? param : "");
    tidy(e->param, sizeof e->param);
    va_start(ap, fmt);
    vsnprintf(e->message, sizeof e->message, fmt, ap);
    va_end(ap);
    tidy(e->message, sizeof e->message);
    return DS_E_FORMAT;
}

size_t ds_api_error_body(char *out, size_t cap, const ds_api_error *e, ds_proto proto, bool openai_shape, const char *request_id)
{
    ds_buf b = { 0 };
    size_t n;

    if (proto == DS_PROTO_MESSAGES && !openai_shape) {
        ds_buf_puts(&b, "{\"type\":\"error\",\"error\":{\"type\":");
        ds_json_write_str(&b, kinds[kind_of(e->status)].anthropic, strlen(kinds[kind_of(e->status)].anthropic), DS_JSON_SSE);
        ds_buf_puts(&b, ",\"message\":");
        ds_json_write_str(&b, e->message, strlen(e->message), DS_JSON_SSE);
        if (e->code && strcmp(e->code, "thread_unsupported_request") == 0) /* what makes the SDK go on without a thread */
            ds_buf_puts(&b, ",\"details\":{\"error_code\":\"thread_unsupported_request\",\"unsupported\":[\"thread\"]}");
        ds_buf_putc(&b, '}');
        if (request_id) {
            ds_buf_puts(&b, ",\"request_id\":");
            ds_json_write_str(&b, request_id, strlen(request_id), DS_JSON_SSE);
        }
        ds_buf_putc(&b, '}');
    } else {
        const char *type = e->type ? e->type : kinds[kind_of(e->status)].openai;

        ds_buf_puts(&b, "{\"error\":{\"message\":");
        ds_json_write_str(&b, e->message, strlen(e->message), DS_JSON_SSE);
        ds_buf_puts(&b, ",\"type\":");
        ds_json_write_str(&b, type, strlen(type), DS_JSON_SSE);
        ds_buf_puts(&b, ",\"param\":");
        if (e->param[0])
            ds_json_write_str(&b, e->param, strlen(e->param), DS_JSON_SSE);
        else
            ds_buf_puts(&b, "null");
        ds_buf_puts(&b, ",\"code\":");
        if (e->code)
            ds_json_write_str(&b, e->code, strlen(e->code), DS_JSON_SSE);
        else
            ds_buf_puts(&b, "null");
        ds_buf_puts(&b, "}}");
    }
    if (b.oom) { /* a body that needs no memory */
        ds_buf_free(&b);
        n = (size_t)snprintf(
            out, cap, "%s",
            "{\"error\":{\"message\":\"out of memory\",\"type\":\"internal_error\",\"param\":null,\"code\":\"internal_error\"}}");
        return n;
    }
    n = b.len;
    if (cap) {
        size_t take = n < cap ? n : cap - 1;

        if (take)
            memcpy(out, b.p, take);
        out[take] = 0;
    }
    ds_buf_free(&b);
    return n;
}
