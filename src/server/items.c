/* The list of a stored response's input items, in the form in which OpenAI's API gives them: what a client may leave
 * out when it sends an item (type, id, status, a text instead of a list of parts) is there. The store keeps items as
 * they were sent. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "server/server_internal.h"

static void put_id(ds_buf *b, const char *id)
{
    if (id)
        ds_json_write_str(b, id, strlen(id), DS_JSON_SSE);
    else
        ds_buf_puts(b, "null");
}

/* "msg_RESPONSE_in0": apart from the ids of output items, and the same whenever it is asked for. */
static void make_id(char *out, size_t cap, const ds_json *type, const char *response, size_t i)
{
    const char *prefix = !type || ds_json_str_eq(type, "message")   ? "msg"
                         : ds_json_str_eq(type, "function_call")    ? "fc"
                         : ds_json_str_eq(type, "custom_tool_call") ? "ctc"
                         : ds_json_str_eq(type, "reasoning")        ? "rs"
                                                                    : "item";
    snprintf(out, cap, "%s_%s_in%zu", prefix, response, i);
}

static void put_content(ds_buf *b, const ds_json *content, bool assistant)
{
    if (!ds_json_is(content, DS_JSON_STRING)) {
        ds_json_write(b, content, DS_JSON_SSE);
        return;
    }
    ds_buf_puts(b, assistant ? "[{\"type\":\"output_text\",\"annotations\":[],\"text\":" : "[{\"type\":\"input_text\",\"text\":");
    ds_json_write(b, content, DS_JSON_SSE);
    ds_buf_puts(b, "}]");
}

static void put_item(ds_buf *b, const ds_json *item, const char *id)
{
    const ds_json *type = ds_json_get(item, "type");
    bool message = !type || ds_json_str_eq(type, "message"), assistant = ds_json_str_eq(ds_json_get(item, "role"), "assistant");

    ds_buf_puts(b, "{\"id\":");
    put_id(b, id);
    if (!type)
        ds_buf_puts(b, ",\"type\":\"message\"");
    if (message && !ds_json_get(item, "status"))
        ds_buf_puts(b, ",\"status\":\"completed\"");
    for (const ds_json *v = item->child; v; v = v->next) {
        if (v->key_len == 2 && memcmp(v->key, "id", 2) == 0)
            continue;
        ds_buf_putc(b, ',');
        ds_json_write_str(b, v->key, v->key_len, DS_JSON_SSE);
        ds_buf_putc(b, ':');
        if (message && v->key_len == 7 && memcmp(v->key, "content", 7) == 0)
            put_content(b, v, assistant);
        else
            ds_json_write(b, v, DS_JSON_SSE);
    }
    ds_buf_putc(b, '}');
}

/* The id an item has in the list: its own, or one made from its place. */
static void item_id(char *out, size_t cap, const ds_json *item, const char *response, size_t i)
{
    const ds_json *own = ds_json_get(item, "id");

    make_id(out, cap, ds_json_get(item, "type"), response, i);
    if (ds_json_is(own, DS_JSON_STRING) && own->text_len > 0 && own->text_len < cap && !memchr(own->text, '\0', own->text_len)) {
        memcpy(out, own->text, own->text_len);
        out[own->text_len] = '\0';
    }
}

/* The page as a list. items: all there are, oldest first. */
static ds_rc put_page(ds_buf *b, const ds_json *const *items, size_t n, const char *response, const ds_items_page *page, ds_err *err)
{
    char id[256], first[256] = "";
    size_t at = 0, put = 0; /* in the order of the list */

    for (bool found = !page->after; !found; at++) {
        size_t i = page->ascending ? at : n - 1 - at;
        if (at == n)
            return ds_fail(err, DS_E_ARG, "after: the response has no input item of that id");
        item_id(id, sizeof id, items[i], response, i);
        found = strcmp(id, page->after) == 0;
    }
    ds_buf_puts(b, "{\"object\":\"list\",\"data\":[");
    for (; at < n && put < page->limit; at++, put++) {
        size_t i = page->ascending ? at : n - 1 - at;
        item_id(id, sizeof id, items[i], response, i);
        if (put == 0)
            strcpy(first, id);
        else
            ds_buf_putc(b, ',');
        put_item(b, items[i], id);
    }
    ds_buf_puts(b, at < n ? "],\"has_more\":true,\"first_id\":" : "],\"has_more\":false,\"first_id\":");
    put_id(b, put ? first : NULL);
    ds_buf_puts(b, ",\"last_id\":");
    put_id(b, put ? id : NULL);
    ds_buf_putc(b, '}');
    return DS_OK;
}

ds_rc ds_items_write(ds_buf *b, const char *items, size_t n, const char *response, const ds_items_page *page, ds_err *err)
{
    ds_buf text = { 0 };
    ds_json_doc *doc = NULL;
    const ds_json **list = NULL;
    size_t n_list = 0;
    ds_rc rc;

    ds_buf_putc(&text, '[');
    ds_buf_put(&text, items, n);
    ds_buf_putc(&text, ']');
    rc = text.oom ? ds_fail(err, DS_E_NOMEM, "out of memory")
                  : ds_json_parse(&doc, text.p, text.len, &(ds_json_opts){ .max_values = 4u << 20 }, err);
    if (rc == DS_OK) {
        for (const ds_json *v = ds_json_root(doc)->child; v; v = v->next)
            n_list++;
        list = malloc((n_list + 1) * sizeof(const ds_json *));
        n_list = 0;
        if (!list)
            rc = ds_fail(err, DS_E_NOMEM, "out of memory");
        for (const ds_json *v = ds_json_root(doc)->child; v && list; v = v->next)
            list[n_list++] = v;
    }
    if (rc == DS_OK)
        rc = put_page(b, list, n_list, response, page, err);
    free(list);
    ds_json_free(doc);
    ds_buf_free(&text);
    return rc;
}
