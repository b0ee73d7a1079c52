#include "test.h"

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
        assert_ok(ds_items_write(&b, cases[i].items, strlen(cases[i].items), "r", &err));
        assert_string_equal(ds_buf_str(&b), cases[i].list);
        ds_buf_free(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(form) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
