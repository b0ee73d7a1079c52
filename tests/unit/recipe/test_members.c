/* The table of request members: what is taken is what the adapters read, what matters and isn't taken is refused by
 * name, and the rest is as harmless as it says. */
#include "recipe/request_internal.h"
#include "request_test.h"

static const struct {
    const char *const *read;
    const char *name, *body;
} protos[] = {
    [DS_PROTO_CHAT] = { ds_chat_members, "chat", "'model':'m','messages':[{'role':'user','content':'q'}]" },
    [DS_PROTO_RESPONSES] = { ds_responses_members, "responses", "'model':'m','input':'q'" },
    [DS_PROTO_MESSAGES] = { ds_messages_members, "messages", "'model':'m','messages':[{'role':'user','content':'q'}]" },
    [DS_PROTO_COMPLETIONS] = { ds_completions_members, "completions", "'model':'m','prompt':'q'" },
};

static bool reads(int proto, const char *name)
{
    for (size_t i = 0; protos[proto].read[i]; i++)
        if (strcmp(protos[proto].read[i], name) == 0)
            return true;
    return false;
}

static void table_is_sorted_and_says_what_is_read(void **state)
{
    const ds_request_member *m, *before = NULL;

    (void)state;
    for (size_t i = 0; (m = ds_request_member_at(i)); i++) {
        assert_int_equal(strlen(m->on), 4);
        assert_non_null(m->note);
        if (before && strcmp(before->name, m->name) >= 0)
            fail_msg("%s stands behind %s", m->name, before->name);
        before = m;
        for (int p = 0; p < 4; p++)
            if ((m->on[p] == 'T') != reads(p, m->name))
                fail_msg("%s in %s: '%c' in the table, %s by the adapter", m->name, protos[p].name, m->on[p],
                         reads(p, m->name) ? "read" : "not read");
    }
    for (int p = 0; p < 4; p++)
        for (size_t i = 0; protos[p].read[i]; i++) {
            size_t k = 0;
            while ((m = ds_request_member_at(k)) && strcmp(m->name, protos[p].read[i]) != 0)
                k++;
            if (!m)
                fail_msg("%s of %s isn't in the table", protos[p].read[i], protos[p].name);
        }
}

static ds_rc parse(int proto, const char *set, const char *member, const char *value, ds_api_error *why, char *unknown, size_t cap)
{
    ds_recipe_opts o;
    ds_request_parse_args args = { .proto = (ds_proto)proto, .opts = &o };
    char body[1024], *q;
    ds_request *r;
    ds_err err = { 0 };
    ds_rc rc;

    ds_recipe_opts_init(&o);
    if (set)
        assert_ok(ds_recipe_opts_set(&o, set, &err));
    q = quoted(protos[proto].body);
    snprintf(body, sizeof body, "{%s,\"%s\":%s}", q, member, value);
    free(q);
    rc = ds_request_parse(&r, &args, body, strlen(body), why, &err);
    if (rc == DS_OK && unknown)
        snprintf(unknown, cap, "%.*s", (int)ds_request_info(r)->unknown_members.n,
                 ds_request_info(r)->unknown_members.p ? ds_request_info(r)->unknown_members.p : "");
    ds_request_destroy(r);
    return rc;
}

static void refused_by_name(void **state)
{
    const ds_request_member *m;
    ds_api_error why;

    (void)state;
    for (size_t i = 0; (m = ds_request_member_at(i)); i++)
        for (int p = 0; p < 4; p++) {
            if (m->on[p] == 'T')
                continue;
            assert_int_equal(parse(p, "unknown_members=refuse", m->name, "null", &why, NULL, 0), DS_OK);
            if (m->on[p] == 'I') {
                assert_int_equal(parse(p, "unknown_members=refuse", m->name, "{\"x\":[1]}", &why, NULL, 0), DS_OK);
                continue;
            }
            for (int k = 0; k < 3; k++) {
                static const char *const values[] = { "\"something\"", "{\"x\":[1]}", "[\"a\",\"b\"]" };
                assert_int_equal(parse(p, NULL, m->name, values[k], &why, NULL, 0), DS_E_FORMAT);
                assert_int_equal(why.status, 400);
                assert_string_equal(why.param, m->name);
                assert_non_null(strstr(why.message, m->name));
            }
            for (const char *w = m->neutral ? m->neutral : ""; *w;) {
                char value[64];
                size_t n = strcspn(w, " ");
                snprintf(value, sizeof value, "%.*s", (int)n, w);
                if (parse(p, NULL, m->name, value, &why, NULL, 0) != DS_OK)
                    fail_msg("%s %s in %s: %s", m->name, value, protos[p].name, why.message);
                w += n + (w[n] == ' ');
            }
        }
}

static void unknown(void **state)
{
    ds_api_error why;
    char names[256];

    (void)state;
    for (int p = 0; p < 4; p++) {
        assert_int_equal(parse(p, NULL, "foo", "1", &why, names, sizeof names), DS_OK);
        assert_string_equal(names, "foo");
        assert_int_equal(parse(p, NULL, "foo\":1,\"to\\np_p\":2,\"bar", "1", &why, names, sizeof names), DS_OK);
        assert_null(strchr(names, '\n'));
        assert_non_null(strstr(names, ", bar"));
        assert_int_equal(parse(p, "unknown_members=refuse", "foo", "1", &why, NULL, 0), DS_E_FORMAT);
        assert_string_equal(why.param, "foo");
    }
    assert_int_equal(
        parse(DS_PROTO_CHAT, NULL, "chat_template_kwargs", "{\"thinking\":false,\"tools_first\":1}", &why, names, sizeof names), DS_OK);
    assert_string_equal(names, "chat_template_kwargs.tools_first");
    assert_int_equal(parse(DS_PROTO_CHAT, NULL, "extra_body", "{\"top_k\":5}", &why, NULL, 0), DS_E_FORMAT);
    assert_string_equal(why.param, "extra_body.top_k");
    assert_int_equal(
        parse(DS_PROTO_CHAT, NULL, "extra_body", "{\"thinking\":{\"type\":\"disabled\"},\"cache_prompt\":true}", &why, NULL, 0), DS_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_is_sorted_and_says_what_is_read),
        cmocka_unit_test(refused_by_name),
        cmocka_unit_test(unknown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
