/* A finished answer against the schema that was asked for. JSON is written with ' for ". */
#include "respond_help.h"
#include "schema/schema.h"

static void values_and_schemas(void **state)
{
    static const struct {
        const char *schema, *value, *why; /* NULL: it fits */
    } cases[] = {
        { "true", "1", NULL },
        { "false", "1", "$: nothing is allowed" },
        { "{}", "[null]", NULL },
        { "{'type':'object'}", "[]", "$: expected object, got array" },
        { "{'type':['string','null']}", "null", NULL },
        { "{'type':['string','null']}", "1", "number is none of the types" },
        { "{'type':'integer'}", "12345678901234567890123", NULL },
        { "{'type':'integer'}", "1.0", NULL },
        { "{'type':'integer'}", "1.5", "expected integer" },
        { "{'type':'number'}", "1", NULL },
        { "{'type':'boolean'}", "false", NULL },
        { "{'required':['a','b']}", "{'a':1}", "$: 'b' is missing" },
        { "{'properties':{'a':{'type':'string'}}}", "{'a':1,'b':2}", "$.a: expected string" },
        { "{'properties':{'a':{}},'additionalProperties':false}", "{'a':1,'x y':2}", "$.x y: is not in the schema" },
        { "{'additionalProperties':{'type':'null'}}", "{'a':null,'b':1}", "$.b: expected null" },
        { "{'patternProperties':{'^x':{}},'additionalProperties':false}", "{'xa':1}", NULL }, /* can't be told */
        { "{'properties':{'a':{'items':{'properties':{'b':{'type':'null'}}}}}}", "{'a':[{},{'b':0}]}", "$.a[1].b: expected null" },
        { "{'items':{'type':'null'}}", "[null,1]", "$[1]" },
        { "{'prefixItems':[{'type':'null'},{}],'items':{'type':'string'}}", "[null,1,'x']", NULL },
        { "{'prefixItems':[{'type':'null'},{}],'items':{'type':'string'}}", "[null,1,2]", "$[2]: expected string" },
        { "{'items':[{'type':'null'}]}", "[null,1]", NULL },
        { "{'minItems':2}", "[1]", "has 1 elements, at least 2" },
        { "{'maxItems':1}", "[1,2]", "at most 1" },
        { "{'enum':['a',1,{'x':[1,2]}]}", "{'x':[1.0,2]}", NULL },
        { "{'enum':['a',1,{'x':[1,2]}]}", "{'x':[2,1]}", "none of the values" },
        { "{'const':{'a':1,'b':'c'}}", "{'b':'c','a':1}", NULL },
        { "{'const':9007199254740993}", "9007199254740992", "not the one value" },
        { "{'anyOf':[{'type':'string'},{'minimum':5}]}", "7", NULL },
        { "{'anyOf':[{'type':'string'},{'minimum':5}]}", "4", "anyOf" },
        { "{'oneOf':[{'minimum':1},{'minimum':5}]}", "7", "oneOf" },
        { "{'oneOf':[{'minimum':1},{'minimum':5}]}", "3", NULL },
        { "{'allOf':[{'minimum':1},{'maximum':5}]}", "7", "more than allowed" },
        { "{'not':{'type':'null'}}", "null", "`not`" },
        { "{'$ref':'#/$defs/n','$defs':{'n':{'properties':{'next':{'$ref':'#/$defs/n'},'v':{'type':'integer'}}}}}",
          "{'next':{'next':{'v':'x'}}}", "$.next.next.v: expected integer" },
        { "{'$defs':{'a~b/c':{'type':'null'}},'$ref':'#/$defs/a~0b~1c'}", "1", "expected null" },
        { "{'$ref':'#'}", "1", NULL }, /* for ever: bounded */
        { "{'$ref':'#/nowhere'}", "1", NULL },
        { "{'$ref':'http://x/y'}", "1", NULL },
        { "{'anyOf':[{'$ref':'#'},{'$ref':'#'}],'type':'string'}", "1", "expected string" },
        { "{'minLength':2,'maxLength':3}", "'\xc3\xa9'", "shorter than 2" },
        { "{'minLength':2,'maxLength':3}", "'\xc3\xa9\xc3\xa9\xc3\xa9'", NULL },
        { "{'maxLength':3}", "'abcd'", "longer than 3" },
        { "{'pattern':'^a+$'}", "'aab'", "doesn't match" },
        { "{'pattern':'b'}", "'aab'", NULL },
        { "{'pattern':'('}", "'aab'", NULL },
        { "{'pattern':'^(a+)+$'}", "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab'", NULL }, /* beyond the limit */
        { "{'minimum':1,'exclusiveMinimum':true}", "1", "less than" },
        { "{'exclusiveMinimum':1}", "1", "outside of the bounds" },
        { "{'exclusiveMaximum':1}", "0.5", NULL },
        { "{'multipleOf':0.1}", "0.3", NULL },
        { "{'multipleOf':3}", "10", "no multiple of 3" },
        { "{'multipleOf':0}", "10", NULL },
        { "{'format':'uuid'}", "'123e4567-e89b-12d3-a456-426614174000'", NULL },
        { "{'format':'uuid'}", "'123e4567'", "is no uuid" },
        { "{'format':'date'}", "'2026-02-30'", NULL }, /* by its form */
        { "{'format':'date'}", "'2026-13-01'", "is no date" },
        { "{'format':'date-time'}", "'2026-01-01T23:59:60.5Z'", NULL },
        { "{'format':'time'}", "'25:00:00Z'", "is no time" },
        { "{'format':'email'}", "'a@b'", NULL },
        { "{'format':'email'}", "'a b'", "is no email" },
        { "{'format':'hostname'}", "'-a.b'", "is no hostname" },
        { "{'format':'ipv4'}", "'1.2.3.4'", NULL },
        { "{'format':'ipv4'}", "'1.2.3'", "is no ipv4" },
        { "{'format':'ipv6'}", "'::1'", NULL },
        { "{'format':'ipv6'}", "'1.2.3.4'", "is no ipv6" },
        { "{'format':'unheard'}", "'x'", NULL },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *schema = unquote(cases[i].schema), *value = unquote(cases[i].value), why[200];
        ds_json_doc *s, *v;
        ds_err err;
        assert_ok(ds_json_parse(&s, schema, strlen(schema), NULL, &err));
        assert_ok(ds_json_parse(&v, value, strlen(value), NULL, &err));
        bool fits = ds_schema_matches(ds_json_root(s), ds_json_root(v), why, sizeof why);
        if (fits != !cases[i].why || (cases[i].why && !strstr(why, cases[i].why)))
            fail_msg("%s with %s: '%s'", value, schema, why);
        ds_json_free(s);
        ds_json_free(v);
        free(schema);
        free(value);
    }
}

/* Work that grows without bound stops. */
static void hostile_schemas(void **state)
{
    static const char twice[] = "{\"anyOf\":[{\"$ref\":\"#\"},{\"$ref\":\"#\"},{\"$ref\":\"#\"}]}";
    ds_buf deep = { 0 };
    ds_json_doc *s, *v;
    char why[100];
    ds_err err;

    (void)state;
    assert_ok(ds_json_parse(&s, twice, sizeof twice - 1, NULL, &err));
    assert_ok(ds_json_parse(&v, "[1]", 3, NULL, &err));
    assert_true(ds_schema_matches(ds_json_root(s), ds_json_root(v), why, sizeof why));
    ds_json_free(v);
    ds_json_free(s);
    for (int i = 0; i < 120; i++)
        ds_buf_puts(&deep, "{\"a-key-that-is-long\":");
    ds_buf_puts(&deep, "1");
    for (int i = 0; i < 120; i++)
        ds_buf_puts(&deep, "}");
    static const char never[] = "{\"additionalProperties\":{\"$ref\":\"#\"},\"type\":\"object\"}";
    assert_ok(ds_json_parse(&s, never, sizeof never - 1, NULL, &err));
    assert_ok(ds_json_parse(&v, deep.p, deep.len, NULL, &err));
    assert_false(ds_schema_matches(ds_json_root(s), ds_json_root(v), why, sizeof why));
    assert_true(strstr(why, "expected object") || strlen(why) == sizeof why - 1);
    ds_json_free(v);
    ds_json_free(s);
    ds_buf_free(&deep);
}

static void answers(void **state)
{
#define SCHEMA                                                                                                                           \
    "'messages':[{'role':'user','content':'x'}],'thinking':{'type':'disabled'},'response_format':{'type':'json_schema','json_schema':{'" \
    "name':'n',"                                                                                                                         \
    "'schema':{'type':'object','properties':{'a':{'type':'integer'}},'required':['a']}}}"
#define OBJECT "'messages':[{'role':'user','content':'json'}],'thinking':{'type':'disabled'},'response_format':{'type':'json_object'}"
    static const struct {
        const char *request, *output;
        ds_stream_end end;
        const char *why;
    } cases[] = {
        { SCHEMA, "{\"a\": 1}", DS_END_STOP, NULL },
        { SCHEMA, "{\"a\": \"x\"}", DS_END_STOP, "$.a: expected integer, got string" },
        { SCHEMA, "{}", DS_END_NONE, "'a' is missing" },
        { SCHEMA, "{\"a\": ", DS_END_STOP, "the answer is no JSON" },
        { SCHEMA, "", DS_END_STOP, "the answer is no JSON" },
        { SCHEMA, "{\"a\": ", DS_END_LENGTH, NULL },
        { SCHEMA ",'stop':'x'", "{\"x", DS_END_STOP, NULL },
        { OBJECT, "sure: {\"b\":[]} !", DS_END_STOP, NULL },
        { OBJECT, "[1]", DS_END_STOP, "no JSON object, but array" },
        { "'messages':[{'role':'user','content':'x'}]", "nothing asked", DS_END_STOP, NULL },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ds_request *r = make_request(DS_PROTO_CHAT, cases[i].request, NULL);
        ds_stream_opts o = { .id = "id" };
        ds_stream *s;
        ds_err err = { 0 };
        assert_ok(ds_stream_create(&s, r, &o, &err));
        assert_int_equal(ds_stream_check(s, 0, &err), DS_E_ARG);
        assert_ok(ds_stream_text(s, 0, cases[i].output, strlen(cases[i].output), 1, &err));
        assert_ok(ds_stream_finish(s, 0, cases[i].end, &err));
        ds_rc rc = ds_stream_check(s, 0, &err);
        if (rc != (cases[i].why ? DS_E_FORMAT : DS_OK) || (cases[i].why && !strstr(err.msg, cases[i].why)))
            fail_msg("%s: %d '%s'", cases[i].output, rc, err.msg);
        assert_int_equal(ds_stream_check(s, 1, &err), DS_E_ARG);
        ds_stream_destroy(s);
        ds_request_destroy(r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_and_schemas),
        cmocka_unit_test(hostile_schemas),
        cmocka_unit_test(answers),
    };
    return cmocka_run_group_tests_name("schema match", tests, NULL, NULL);
}
