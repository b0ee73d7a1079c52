/* Whole prompts: golden ones, runs of control and text, completions, images; and requests under failing allocations. */
#include "base/hash.h"
#include "fault.h"
#include "request_test.h"

static const char weather[] =
    "{'model':'m','messages':[{'role':'user','content':'Paris?'}],'thinking':{'type':'disabled'},'tools':[{'type':'function','function':{'"
    "name':"
    "'get_weather','description':'Weather','parameters':{'type':'object','properties':{'city':{'type':'string'}},'required':['city']}}}]}";

static ds_request *parse(ds_proto proto, ds_encoding enc, const char *set, const char *body)
{
    ds_recipe_opts o;
    ds_request_parse_args args = { .proto = proto, .opts = &o };
    char *text = quoted(body);
    ds_api_error why;
    ds_request *r;
    ds_err err = { 0 };

    ds_recipe_opts_init(&o);
    o.encoding = enc;
    if (set)
        assert_ok(ds_recipe_opts_set(&o, set, &err));
    assert_ok(ds_request_parse(&r, &args, text, strlen(text), &why, &err));
    free(text);
    return r;
}

static void put_prompt(ds_request *r, uint32_t i, ds_buf *b)
{
    const ds_run *runs;
    ds_err err = { 0 };
    size_t n;

    assert_ok(ds_request_render(r, i, &runs, &n, &err));
    for (size_t k = 0; k < n; k++)
        ds_buf_put(b, runs[k].p, runs[k].n);
}

static void golden_tools_prompt(void **state)
{
    static const struct {
        ds_encoding enc;
        size_t bytes;
        const char *sha256;
    } cases[] = {
        { DS_ENC_V41, 1220, "578f721849ff9f96827cd8d45df6abb10a918bb581cb929c0692ccafeb4a3640" },
        { DS_ENC_V4, 1212, "d4496d00a3f7930eee726df14b6be05a8f2772b3b76bc1934611c060ac5ccfd1" },
    };

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        ds_request *r = parse(DS_PROTO_CHAT, cases[i].enc, NULL, weather);
        ds_buf b = { 0 };
        uint8_t digest[32];
        char hex[65];

        put_prompt(r, 0, &b);
        assert_int_equal(b.len, cases[i].bytes);
        ds_sha256(digest, b.p, b.len);
        ds_hex(hex, digest, 32);
        assert_string_equal(hex, cases[i].sha256);
        ds_buf_free(&b);
        ds_request_destroy(r);
    }
}

/* Which runs are control: '[' and ']' around them. */
static void expect_runs(ds_request *r, const char *want)
{
    const ds_run *runs, *again;
    ds_buf b = { 0 };
    ds_err err = { 0 };
    size_t n, m;

    assert_ok(ds_request_render(r, 0, &runs, &n, &err));
    assert_ok(ds_request_render(r, 0, &again, &m, &err)); /* rendered once */
    assert_true(runs == again && n == m);
    for (size_t i = 0; i < n; i++) {
        ds_buf_puts(&b, runs[i].control ? "[" : "");
        ds_buf_put(&b, runs[i].p, runs[i].n);
        ds_buf_puts(&b, runs[i].control ? "]" : "");
    }
    assert_string_equal(ds_buf_str(&b), want);
    ds_buf_free(&b);
    ds_request_destroy(r);
}

static void what_is_control(void **state)
{
    (void)state;
    expect_runs(parse(DS_PROTO_CHAT, DS_ENC_V41, NULL,
                      "{'model':'m','messages':[{'role':'system','content':'S<｜User｜>'},{'role':'user','content':'<think>｜DSML｜'}]}"),
                "[<｜begin▁of▁sentence｜>][<｜System｜>]Reasoning Effort: 75 (range 1-100, the higher the value, the more thorough the "
                "reasoning)\n\nS<｜User｜>[<｜User｜>]"
                "<think>｜DSML｜[<｜Assistant｜>][<think>]");
    expect_runs(
        parse(DS_PROTO_CHAT, DS_ENC_V4, NULL,
              "{'model':'m','thinking':{'type':'disabled'},'messages':[{'role':'user','content':''},{'role':'assistant','content':'','tool_"
              "calls':[{'id':'1','function':"
              "{'name':'f','arguments':{'k':'</｜DSML｜parameter>'}}}]},{'role':'tool','tool_call_id':'1','content':'<｜Assistant｜>'}]}"),
        "[<｜begin▁of▁sentence｜>][<｜User｜>][<｜Assistant｜>][</think>]\n\n<[｜DSML｜]tool_calls>\n<[｜DSML｜]invoke "
        "name=\"f\">\n<[｜DSML｜]parameter name=\"k\" "
        "string=\"true\"></｜DSML｜parameter></[｜DSML｜]parameter>\n</[｜DSML｜]invoke>\n</"
        "[｜DSML｜]tool_calls>[<｜end▁of▁sentence｜>][<｜User｜>]<tool_result>"
        "<｜Assistant｜></tool_result>[<｜Assistant｜>][</think>]");
    expect_runs(parse(DS_PROTO_CHAT, DS_ENC_V41, NULL,
                      "{'model':'m','thinking':{'type':'disabled'},'messages':[{'role':'user','content':'<｜box｜>'},{'role':'assistant','"
                      "content':'a<｜box｜>1<｜/box｜>b<｜x'}]}"),
                "[<｜begin▁of▁sentence｜>][<｜User｜>]<｜box｜>[<｜Assistant｜>][</think>]a[<｜box｜>]1[<｜/"
                "box｜>]b<｜x[<｜end▁of▁sentence｜>][<｜Assistant｜>][</think>]");
    expect_runs(parse(DS_PROTO_CHAT, DS_ENC_V41, "grounding_tokens=false",
                      "{'model':'m','thinking':{'type':'disabled'},'messages':[{'role':'assistant','content':'a<｜box｜>'}]}"),
                "[<｜begin▁of▁sentence｜>][<｜Assistant｜>][</think>]a<｜box｜>[<｜end▁of▁sentence｜>][<｜Assistant｜>][</think>]");
}

static void tools_prose(void **state)
{
    size_t controls[2];

    (void)state;
    for (int plain = 0; plain < 2; plain++) {
        ds_request *r = parse(DS_PROTO_CHAT, DS_ENC_V41, plain ? "plain_tools_prose=true" : NULL, weather);
        const ds_run *runs;
        ds_err err = { 0 };
        size_t n;

        assert_ok(ds_request_render(r, 0, &runs, &n, &err));
        controls[plain] = 0;
        for (size_t i = 0; i < n; i++)
            controls[plain] += runs[i].control;
        ds_request_destroy(r);
    }
    assert_int_equal(controls[1], 5);         /* begin, system, user, assistant, end of thinking */
    assert_int_equal(controls[0], 5 + 9 + 4); /* nine tags and four think words in the prose */
}

static void completions(void **state)
{
    static const request_case cases[] = {
        { "text", "{'model':'m','prompt':'abc'}", "<｜begin▁of▁sentence｜>abc" },
        { "empty text", "{'model':'m','prompt':''}", "<｜begin▁of▁sentence｜>" },
        { "list", "{'model':'m','prompt':['abc','d']}", "<｜begin▁of▁sentence｜>abc" },
        { "fim", "{'model':'m','prompt':'a','suffix':'b'}", "<｜begin▁of▁sentence｜><｜fim▁begin｜>a<｜fim▁hole｜>b<｜fim▁end｜>" },
        { "no prompt", "{'model':'m'}", NULL, "prompt", "missing" },
        { "prompt type", "{'model':'m','prompt':{}}", NULL, "prompt" },
        { "prompt element", "{'model':'m','prompt':['a',1]}", NULL, "prompt[1]" },
        { "empty list", "{'model':'m','prompt':[]}", NULL, "prompt", "empty" },
        { "too many", "{'model':'m','prompt':['1','2','3','4','5','6','7','8','9','0','1','2','3','4','5','6','7','8','9','0','1']}", NULL,
          "prompt", "20" },
        { "id range", "{'model':'m','prompt':[-1]}", NULL, "prompt[0]", "token id" },
        { "empty ids", "{'model':'m','prompt':[[1],[]]}", NULL, "prompt[1]", "empty" },
        { "logprobs", "{'model':'m','prompt':'a','logprobs':21}", NULL, "logprobs", "20" },
        { "echo and suffix", "{'model':'m','prompt':'a','suffix':'b','echo':true}", NULL, "echo" },
        { "suffix and ids", "{'model':'m','prompt':[1],'suffix':'b'}", NULL, "suffix" },
        { "best_of", "{'model':'m','prompt':'a','best_of':2}", NULL, "best_of" },
        { "stream options", "{'model':'m','prompt':'a','stream_options':{}}", NULL, "stream_options" },
        { "sampling", "{'model':'m','prompt':'a','top_p':2}", NULL, "top_p" },
    };
    const ds_token *ids;
    ds_request *r;
    size_t n;

    (void)state;
    RUN_CASES(DS_PROTO_COMPLETIONS, DS_ENC_V41, cases);
    r = parse(DS_PROTO_COMPLETIONS, DS_ENC_V41, NULL, "{'model':'m','prompt':[[5,6],[7]],'logprobs':3,'max_tokens':9,'echo':true}");
    assert_int_equal(ds_request_info(r)->n_prompts, 2);
    assert_int_equal(ds_request_info(r)->start, DS_START_RAW);
    assert_int_equal(ds_request_info(r)->top_logprobs, 3);
    assert_true(ds_request_info(r)->echo_prompt);
    ds_request_prompt_ids(r, 1, &ids, &n);
    assert_int_equal(n, 1);
    assert_int_equal(ids[0], 7);
    ds_request_destroy(r);
}

static void where_parsing_starts(void **state)
{
    static const struct {
        const char *body;
        ds_parse_start start;
        const char *set;
    } cases[] = {
        { "{'model':'m','messages':[{'role':'user','content':'q'}]}", DS_START_REASONING },
        { "{'model':'m','thinking':{'type':'disabled'},'messages':[{'role':'user','content':'q'}]}", DS_START_CONTENT },
        { "{'model':'m','messages':[{'role':'assistant','content':'x','prefix':true}]}", DS_START_CONTENT_KEEP },
        { "{'model':'m','messages':[{'role':'assistant','content':'','reasoning_content':'R','prefix':true}]}", DS_START_REASONING_KEEP },
        { "{'model':'m','messages':[{'role':'assistant','content':'x','reasoning_content':'R','prefix':true}]}", DS_START_CONTENT_KEEP },
        /* nothing to continue yet: with thinking on the prompt ends with <think> */
        { "{'model':'m','messages':[{'role':'assistant','content':'','prefix':true}]}", DS_START_REASONING },
        { "{'model':'m','messages':[{'role':'assistant','content':'','reasoning_content':'','prefix':true}]}", DS_START_REASONING },
        { "{'model':'m','thinking':{'type':'disabled'},'messages':[{'role':'assistant','content':'','prefix':true}]}", DS_START_CONTENT },
        /* <think><｜action｜> too is answered without a </think> */
        { "{'model':'m','messages':[{'role':'user','content':'q','task':'action'}]}", DS_START_CONTENT_KEEP, "tasks=true" },
        { "{'model':'m','messages':[{'role':'user','content':'q','task':'title'}]}", DS_START_CONTENT_KEEP, "tasks=true" },
        { "{'model':'m','thinking':{'type':'disabled'},'tools':[{'type':'function','function':{'name':'f'}}],'tool_choice':'required','"
          "messages':[{'role':'user','content':'q'}]}",
          DS_START_BLOCK },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ds_request *r = parse(DS_PROTO_CHAT, DS_ENC_V41, cases[i].set, cases[i].body);

        assert_int_equal(ds_request_info(r)->start, cases[i].start);
        ds_request_destroy(r);
    }
}

static void image_layout(void **state)
{
    static const struct {
        uint32_t w, h, tokens, fw, fh, rows, cols;
    } cases[] = {
        { 1, 1, 184, 546, 546, 13, 13 },           { 640, 480, 206, 644, 490, 12, 16 },      { 978, 479, 302, 980, 490, 12, 24 },
        { 1920, 1080, 968, 1708, 966, 23, 41 },    { 3024, 4032, 1010, 1134, 1512, 36, 27 }, { 158, 10000, 762, 126, 7966, 190, 3 },
        { 16809, 11841, 990, 1540, 1092, 26, 37 },
    };
    ds_err err = { 0 };
    ds_image im = { 0 };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        im.width = cases[i].w;
        im.height = cases[i].h;
        assert_ok(ds_image_layout(&im, &err));
        assert_int_equal(im.tokens, cases[i].tokens);
        assert_int_equal(im.fitted_w, cases[i].fw);
        assert_int_equal(im.fitted_h, cases[i].fh);
        assert_int_equal(im.rows, cases[i].rows);
        assert_int_equal(im.cols, cases[i].cols);
    }
    im.height = 0;
    assert_refused(ds_image_layout(&im, &err), DS_E_ARG, "pixels");
    for (uint32_t w = 1; w < 70000; w = w * 3 / 2 + 1) /* every shape settles within the budget */
        for (uint32_t h = 1; h < 70000; h = h * 3 / 2 + 1) {
            im.width = w;
            im.height = h;
            assert_ok(ds_image_layout(&im, &err));
            assert_true(im.tokens <= 1024 && im.fitted_w % 14 == 0 && im.fitted_h % 14 == 0 && im.tokens == im.rows * (im.cols + 1) + 2);
        }
}

static void image_ids(void **state)
{
    ds_token ids[800] = { 1, 99, 2, 99, 3 };
    ds_request *r =
        parse(DS_PROTO_CHAT, DS_ENC_V41, NULL,
              "{'model':'m','messages':[{'role':'user','content':[{'type':'image_url','image_url':'http://ab/'},{'type':'text','text':'t'},"
              "{'type':'image_url','image_url':{'url':'data:image/gif;base64,AA','detail':'low'}}]}]}");
    const ds_request_info_data *i = ds_request_info(r);
    ds_err err = { 0 };

    (void)state;
    assert_int_equal(i->n_images, 2);
    assert_int_equal(i->images[0].kind, DS_IMAGE_URL);
    assert_int_equal(i->images[1].kind, DS_IMAGE_DATA);
    assert_int_equal(i->images[1].detail, DS_DETAIL_LOW);
    assert_string_equal(i->images[1].media_type.p, "image/gif");
    assert_string_equal(i->images[1].source.p, "AA");
    assert_string_equal(i->images[1].param, "messages[0].content[2].image_url.url");
    assert_ok(ds_request_layout_image(r, 0, 640, 480, &err));
    assert_ok(ds_request_layout_image(r, 1, 1, 1, &err));
    assert_refused(ds_request_layout_image(r, 2, 1, 1, &err), DS_E_ARG, "image 2");
    assert_int_equal(ds_request_image_extra_tokens(r), 206 + 184 - 2);
    assert_int_equal(ds_request_expand_images(r, 99, ids, 5, 300), 0);
    assert_int_equal(ds_request_expand_images(r, 98, ids, 5, 800), 0);
    assert_int_equal(ds_request_expand_images(r, 99, ids, 5, 800), 3 + 206 + 184);
    assert_int_equal(ids[0], 1);
    assert_int_equal(ids[1], 99);
    assert_int_equal(ids[206], 99);
    assert_int_equal(ids[207], 2);
    assert_int_equal(ids[208], 99);
    assert_int_equal(ids[3 + 206 + 184 - 1], 3);
    ds_request_destroy(r);
}

/* The list of images follows the prompt, also where results were put in order. */
static void image_order(void **state)
{
    ds_request *r =
        parse(DS_PROTO_MESSAGES, DS_ENC_V41, NULL,
              "{'model':'m','messages':[{'role':'user','content':'q'},{'role':'assistant','content':[{'type':'tool_use','id':'1','name':'f'"
              ",'input':{}},"
              "{'type':'tool_use','id':'2','name':'f','input':{}}]},{'role':'user','content':[{'type':'image','source':{'type':'url','url':"
              "'http://c/'}},"
              "{'type':'tool_result','tool_use_id':'2','content':[{'type':'image','source':{'type':'url','url':'http://b/'}}]},"
              "{'type':'tool_result','tool_use_id':'1','content':[{'type':'image','source':{'type':'url','url':'http://a/'}}]}]}]}");
    const ds_request_info_data *i = ds_request_info(r);

    (void)state;
    assert_int_equal(i->n_images, 3);
    assert_string_equal(i->images[0].source.p, "http://a/");
    assert_string_equal(i->images[1].source.p, "http://b/");
    assert_string_equal(i->images[2].source.p, "http://c/");
    ds_request_destroy(r);
}

static void oldest_turns_go(void **state)
{
    ds_request *r = parse(DS_PROTO_RESPONSES, DS_ENC_V41, NULL,
                          "{'model':'m','truncation':'auto','reasoning':{'effort':'none'},'instructions':'S','input':[{'role':'user','"
                          "content':[{'type':'input_image','image_url':"
                          "'http://a/"
                          "'}]},{'role':'assistant','content':'a1'},{'role':'user','content':'u2'},{'type':'function_call','call_id':'1','"
                          "name':'f','arguments':'{}'},"
                          "{'type':'function_call_output','call_id':'1','output':'o'},{'role':'assistant','content':'a2'},{'role':'user','"
                          "content':[{'type':'input_image','image_url':"
                          "'http://b/'}]}]}");
    const ds_request_info_data *i = ds_request_info(r);
    ds_buf b = { 0 };
    ds_err err = { 0 };
    uint32_t turns;

    (void)state;
    assert_true(i->truncation_auto);
    put_prompt(r, 0, &b);
    ds_buf_clear(&b);
    assert_ok(ds_request_drop_oldest(r, 1, &turns, &err));
    assert_int_equal(turns, 1);
    put_prompt(r, 0, &b);
    assert_non_null(strstr(ds_buf_str(&b), "<｜System｜>S<｜User｜>u2<｜Assistant｜>"));
    assert_int_equal(i->n_images, 1);
    assert_string_equal(i->images[0].source.p, "http://b/");
    assert_ok(ds_request_drop_oldest(r, 1000, &turns, &err));
    assert_int_equal(turns, 1);
    ds_buf_clear(&b);
    put_prompt(r, 0, &b);
    assert_string_equal(ds_buf_str(&b), "<｜begin▁of▁sentence｜><｜System｜>S<｜User｜><｜deepseek_image｜><｜Assistant｜></think>");
    assert_ok(ds_request_drop_oldest(r, 1000, &turns, &err));
    assert_int_equal(turns, 0);
    ds_buf_free(&b);
    ds_request_destroy(r);
}

static void options(void **state)
{
    ds_recipe_opts o;
    ds_err err = { 0 };
    size_t n = 0;

    (void)state;
    ds_recipe_opts_init(&o);
    while (ds_recipe_opts_help(n))
        n++;
    assert_true(n > 25);
    assert_ok(ds_recipe_opts_set(&o, "keep_all=true", &err));
    assert_int_equal(o.old_reasoning, DS_REASONING_KEEP_ALL);
    assert_ok(ds_recipe_opts_set(&o, "drop_all=false", &err)); /* says nothing about keep_all */
    assert_int_equal(o.old_reasoning, DS_REASONING_KEEP_ALL);
    assert_ok(ds_recipe_opts_set(&o, "keep_all=false", &err));
    assert_int_equal(o.old_reasoning, DS_REASONING_OFFICIAL);
    assert_ok(ds_recipe_opts_set(&o, "effort_table=1/2/3/100", &err));
    assert_int_equal(o.effort_v41[3], 100);
    assert_refused(ds_recipe_opts_set(&o, "effort_table=1/2/3", &err), DS_E_ARG, "LOW/HIGH");
    assert_refused(ds_recipe_opts_set(&o, "effort_table=1/2/3/101", &err), DS_E_ARG, "1-100");
    assert_refused(ds_recipe_opts_set(&o, "usage_shape=x", &err), DS_E_ARG, "deepseek|openai");
    assert_refused(ds_recipe_opts_set(&o, "strict_thinking=1", &err), DS_E_ARG, "true|false");
    assert_refused(ds_recipe_opts_set(&o, "max_tools=0", &err), DS_E_ARG, "max_tools");
    assert_refused(ds_recipe_opts_set(&o, "nope=1", &err), DS_E_ARG, "no option named 'nope'");
    assert_ok(ds_recipe_opts_set(&o, "strict_thinking", &err));
    assert_true(o.strict_thinking);
    assert_ok(ds_recipe_opts_set(&o, "usage_shape=openai", &err));
    assert_int_equal(o.usage_shape, DS_USAGE_OPENAI);
    assert_ok(ds_recipe_opts_set(&o, "suppress_markup=true", &err));
    assert_int_equal(o.suppress_markup, 1);
}

typedef struct {
    ds_proto proto;
    const char *body;
} fault_case;

static ds_rc fault_once(void *ctx, ds_err *err)
{
    const fault_case *c = ctx;
    ds_request_parse_args args = { .proto = c->proto };
    ds_api_error why;
    const ds_run *runs;
    ds_request *r;
    ds_str items;
    size_t n;
    ds_rc rc = ds_request_parse(&r, &args, c->body, strlen(c->body), &why, err);

    if (rc == DS_OK)
        rc = ds_request_render(r, 0, &runs, &n, err);
    if (rc == DS_OK)
        rc = ds_request_items(r, &items, err);
    ds_request_destroy(r);
    return rc;
}

static void failing_allocations(void **state)
{
    static const fault_case cases[] = {
        { DS_PROTO_CHAT, weather },
        { DS_PROTO_CHAT,
          "{'model':'m','response_format':{'type':'json_schema','json_schema':{'name':'n','schema':{'type':'object'}}},'messages':[{'role':"
          "'user','content':[{'type':"
          "'image_url','image_url':'http://ab/"
          "'}]},{'role':'assistant','content':null,'tool_calls':[{'id':'1','function':{'name':'f','arguments':'{}'}},{'id':'2',"
          "'function':{'name':'f','arguments':'x'}}]},{'role':'tool','tool_call_id':'2','content':'b'},{'role':'tool','tool_call_id':'1','"
          "content':'a'}]}" },
        { DS_PROTO_RESPONSES, "{'model':'m','instructions':'i','tools':[{'type':'custom','name':'c'}],'input':[{'role':'user','content':'q'"
                              "},{'type':'function_call','call_id':'1',"
                              "'name':'f','arguments':'{}'},{'type':'function_call_output','call_id':'1','output':'o'}]}" },
        { DS_PROTO_MESSAGES, "{'model':'m','system':'s','messages':[{'role':'user','content':[{'type':'document','title':'t','source':{'"
                             "type':'base64','media_type':'text/plain','data':"
                             "'aGk='}}]}]}" },
        { DS_PROTO_COMPLETIONS, "{'model':'m','prompt':'a','suffix':'b'}" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fault_case c = cases[i];
        char *body = quoted(c.body);

        c.body = body;
        assert_true(fault_every_allocation(fault_once, &c) > 3);
        free(body);
    }
}

/* Many messages, calls and ids: time stays linear, so this ends at once. */
static void large_request(void **state)
{
    ds_request_parse_args args = { .proto = DS_PROTO_CHAT };
    ds_buf b = { 0 };
    ds_api_error why;
    const ds_run *runs;
    ds_request *r;
    ds_err err = { 0 };
    size_t n;

    (void)state;
    ds_buf_puts(&b, "{\"model\":\"m\",\"messages\":[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[");
    for (int i = 0; i < 20000; i++)
        ds_buf_printf(&b, "%s{\"id\":\"c%d\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}", i ? "," : "", i);
    ds_buf_puts(&b, "]}");
    for (int i = 20000; i-- > 0;)
        ds_buf_printf(&b, ",{\"role\":\"tool\",\"tool_call_id\":\"c%d\",\"content\":\"r\"}", i);
    ds_buf_puts(&b, "]}");
    assert_ok(ds_request_parse(&r, &args, b.p, b.len, &why, &err));
    assert_ok(ds_request_render(r, 0, &runs, &n, &err));
    assert_true(n > 60000);
    ds_request_destroy(r);
    ds_buf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_tools_prompt),
        cmocka_unit_test(what_is_control),
        cmocka_unit_test(tools_prose),
        cmocka_unit_test(completions),
        cmocka_unit_test(where_parsing_starts),
        cmocka_unit_test(image_layout),
        cmocka_unit_test(image_ids),
        cmocka_unit_test(options),
        cmocka_unit_test(image_order),
        cmocka_unit_test(oldest_turns_go),
        cmocka_unit_test(large_request),
        cmocka_unit_test(failing_allocations),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
