#include "test.h"

#include "base/json.h"
#include "server/server_internal.h"

static void form(void **state)
{
    static const struct {
        const char *items, *list;
    } cases[] = {
        { "", "{\"object\":\"list\",\"data\":[],\"has_more\":false,\"first_id\":null,\"last_id\":null}" },
        { "{\"role\":\"user\",\"content\":\"a\\\"b\"}",
          "{\"object\":\"list\",\"data\":[{\"id\":\"msg_r_in0\",\"type\":\"message\",\"status\":\"completed\",\"role\":\"user\","
          "\"content\":[{"
          "\"type\":\"input_text\",\"text\":\"a\\\"b\"}]}],\"has_more\":false,\"first_id\":\"msg_r_in0\",\"last_id\":\"msg_r_in0\"}" },
        { "{\"type\":\"message\",\"id\":\"m\",\"role\":\"assistant\",\"content\":\"x\"},{\"type\":\"function_call_output\",\"call_id\":"
          "\"c\",\"output\":\"y\"}",
          "{\"object\":\"list\",\"data\":[{\"id\":\"m\",\"status\":\"completed\",\"type\":\"message\",\"role\":\"assistant\",\"content\":[{"
          "\"type\":\"output_text\",\"annotations\":[],\"text\":\"x\"}]},{\"id\":\"item_r_in1\",\"type\":\"function_call_output\",\"call_"
          "id\":\"c\","
          "\"output\":\"y\"}],\"has_more\":false,\"first_id\":\"m\",\"last_id\":\"item_r_in1\"}" },
        { "{\"type\":\"message\",\"id\":\"\",\"status\":\"incomplete\",\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":"
          "\"x\"}]}",
          "{\"object\":\"list\",\"data\":[{\"id\":\"msg_r_in0\",\"type\":\"message\",\"status\":\"incomplete\",\"role\":\"user\","
          "\"content\":[{"
          "\"type\":\"input_text\",\"text\":\"x\"}]}],\"has_more\":false,\"first_id\":\"msg_r_in0\",\"last_id\":\"msg_r_in0\"}" },
    };
    ds_err err = { 0 };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ds_buf b = { 0 };
        assert_ok(
            ds_items_write(&b, cases[i].items, strlen(cases[i].items), "r", &(ds_items_page){ .ascending = true, .limit = 20 }, &err));
        assert_string_equal(ds_buf_str(&b), cases[i].list);
        ds_buf_free(&b);
    }
}

/* Pages of five items, both ways: following `after` sees each item once. */
static void pages(void **state)
{
    static const char items[] = "{\"id\":\"a\"},{\"id\":\"b\"},{\"role\":\"user\",\"content\":\"x\"},{\"id\":\"d\"},{\"id\":\"e\"}";
    static const struct {
        bool ascending;
        size_t limit;
        const char *after, *seen; /* first letters of the ids; + = there are more */
    } cases[] = {
        { true, 20, NULL, "abmde" }, { false, 20, NULL, "edmba" }, { true, 2, NULL, "ab+" },       { true, 2, "b", "md+" },
        { true, 2, "d", "e" },       { false, 2, NULL, "ed+" },    { false, 2, "d", "mb+" },       { false, 1, "b", "a" },
        { true, 5, "e", "" },        { false, 5, "a", "" },        { true, 5, "msg_r_in2", "de" },
    };
    ds_err err = { 0 };
    ds_buf none = { 0 };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const ds_items_page page = { cases[i].ascending, cases[i].limit, cases[i].after };
        char seen[16] = "";
        ds_buf b = { 0 };
        ds_json_doc *doc = NULL;
        assert_ok(ds_items_write(&b, items, sizeof items - 1, "r", &page, &err));
        assert_ok(ds_json_parse(&doc, ds_buf_str(&b), b.len, NULL, &err));
        for (const ds_json *v = ds_json_get(ds_json_root(doc), "data")->child; v; v = v->next)
            strncat(seen, ds_json_get(v, "id")->text, 1);
        if (ds_json_get(ds_json_root(doc), "has_more")->type == DS_JSON_TRUE)
            strcat(seen, "+");
        assert_string_equal(seen, cases[i].seen);
        ds_json_free(doc);
        ds_buf_free(&b);
    }
    assert_int_equal(ds_items_write(&none, items, sizeof items - 1, "r", &(ds_items_page){ true, 5, "z" }, &err), DS_E_ARG);
    ds_buf_free(&none);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(form), cmocka_unit_test(pages) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
