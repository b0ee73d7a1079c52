/* Messages, row by row of the recipe's table 4.6, and count_tokens. */
#include "request_test.h"

#define U "'messages':[{'role':'user','content':'q'}]"
#define M "'model':'m'," U
#define OFF "'thinking':{'type':'disabled'}"
#define ON "<｜User｜>q<｜Assistant｜><think>"
#define BODY(x) "{'model':'m'," OFF ",'messages':[" x "]}"
#define USER(x) BODY("{'role':'user','content':[" x "]}")
#define TURN(a, b) BODY("{'role':'user','content':'q'},{'role':'assistant','content':[" a "]},{'role':'user','content':[" b "]}")
#define TOOL "{'name':'f','description':'d','input_schema':{'type':'object'}}"
#define USE(id) "{'type':'tool_use','id':'" id "','name':'f','input':{}}"
#define RESULT(id) "{'type':'tool_result','tool_use_id':'" id "','content':'r" id "'}"
#define END "<｜Assistant｜></think>"

/* clang-format off */
static const request_case field_cases[] = {
    { NULL, "{" M "}", ON },
    { "model", "{" U "}", ON },
    { "messages", "{'model':'m'}", NULL, "messages" },
    { "empty messages", "{'model':'m','messages':[]}", NULL, "messages", "empty" },
    { NULL, "{" M ",'max_tokens':0}", NULL, "max_tokens", "positive" },
    { NULL, "{" M ",'max_tokens':'1'}", NULL, "max_tokens", "integer" },
    { "system", "{" M "," OFF ",'system':'s'}", "<｜begin▁of▁sentence｜><｜System｜>s<｜User｜>q" END },
    { "system blocks", "{" M "," OFF ",'system':[{'type':'text','text':'a','cache_control':{'type':'ephemeral'}},{'type':'text','text':'b'}]}",
      "<｜System｜>a\n\nb<｜User｜>q" END },
    { "empty system", "{" M "," OFF ",'system':''}", "<｜begin▁of▁sentence｜><｜User｜>q" END },
    { "system of an empty block", "{" M "," OFF ",'system':[{'type':'text','text':''}]}", "<｜begin▁of▁sentence｜><｜System｜><｜User｜>q" END },
    { "system image", "{" M ",'system':[{'type':'image'}]}", NULL, "system[0].type", "text" },
    { "system type", "{" M ",'system':5}", NULL, "system" },
    { NULL, "{" M ",'temperature':2.5}", NULL, "temperature" },
    { NULL, "{" M ",'top_p':0}", NULL, "top_p" },
    { NULL, "{" M ",'top_k':5}", ON },
    { NULL, "{" M ",'top_k':'x'}", NULL, "top_k" },
    { NULL, "{" M ",'stop_sequences':['a','b']}", ON },
    { NULL, "{" M ",'stop_sequences':['a','']}", NULL, "stop_sequences[1]", "empty" },
    { NULL, "{" M ",'stop_sequences':'a'}", NULL, "stop_sequences", "list" },
    { NULL, "{" M ",'stop_sequences':['1','2','3','4','5','6','7','8','9','0','1','2','3','4','5','6','7']}", NULL, "stop_sequences", "16" },
    { NULL, "{" M ",'stream':1}", NULL, "stream" },
    { "ignored", "{" M ",'metadata':{'user_id':'u'},'service_tier':'auto','mcp_servers':[],'context_management':{},'betas':['x'],'inference_geo':'x'}", ON },
};

static const request_case thinking_cases[] = {
    { NULL, "{" M ",'thinking':{'type':'enabled','budget_tokens':1024}}", ON },
    { NULL, "{" M ",'thinking':{'type':'adaptive','display':'summarized'}}", ON },
    { NULL, "{" M "," OFF "}", "<｜begin▁of▁sentence｜><｜User｜>q" END },
    { NULL, "{" M "," OFF ",'output_config':{'effort':'max'}}", END },
    { NULL, "{" M ",'thinking':{'type':'x'}}", NULL, "thinking.type", "disabled, enabled, adaptive" },
    { NULL, "{" M ",'output_config':{'effort':'low'}}", "Effort: 50 (range 1-100, the higher the value, the more thorough the reasoning)\n\n" ON },
    { NULL, "{" M ",'output_config':{'effort':'medium'}}", "Effort: 75 (range 1-100, the higher the value, the more thorough the reasoning)\n\n" ON },
    { NULL, "{" M ",'output_config':{'effort':'xhigh'}}", "Effort: 75 (range 1-100, the higher the value, the more thorough the reasoning)\n\n" ON },
    { NULL, "{" M ",'output_config':{'effort':'ultra'}}", "Effort: 100 (range 1-100, the higher the value, the more thorough the reasoning)\n\n" ON },
    { NULL, "{" M ",'output_config':{'effort':'none'}}", NULL, "output_config.effort", "low, medium, high, xhigh, ultra, max" },
    { NULL, "{" M ",'output_config':{'format':{'type':'json_schema','schema':{'type':'object'}}}}", "reply:\n{\"type\": \"object\"}" ON },
    { NULL, "{" M ",'output_format':{'type':'json_schema','schema':{'type':'object'}}}", "reply:\n{\"type\": \"object\"}" ON },
    { NULL, "{" M ",'output_format':{'type':'xml'}}", NULL, "output_format.type", "json_schema" },
    { NULL, "{" M ",'output_config':{'format':{'type':'json_schema'}}}", NULL, "output_config.format.schema", "missing" },
};

static const request_case tool_cases[] = {
    { NULL, "{" M ",'tools':[" TOOL "]}", "\n{\"name\": \"f\", \"description\": \"d\", \"parameters\": {\"type\": \"object\"}}\n\nYou MUST strictly follow the above defined tool "
      "name and parameter schemas to invoke tool calls.\n" ON },
    { "typed custom", "{" M ",'tools':[{'type':'custom','name':'f','input_schema':{'type':'object'},'cache_control':{},'strict':true,'defer_loading':true}]}", ON },
    { "no schema", "{" M ",'tools':[{'name':'f'}]}", NULL, "tools[0].input_schema", "missing" },
    { "no name", "{" M ",'tools':[{'input_schema':{}}]}", NULL, "tools[0].name", "missing" },
    { "bad name", "{" M ",'tools':[{'name':'a.b','input_schema':{}}]}", NULL, "tools[0].name" },
    { "twice", "{" M ",'tools':[" TOOL "," TOOL "]}", NULL, "tools[1].name", "twice" },
    { "web search", "{" M ",'tools':[{'type':'web_search_20250305','name':'web_search'}]}", NULL, "tools[0].type", "web_search_20250305" },
    { "web search, ignored", "{" M ",'tools':[{'type':'web_search_20250305','name':'web_search'}]}", ON, NULL, NULL, "ignore_web_search=true" },
    { "bash", "{" M ",'tools':[{'type':'bash_20250124','name':'bash'}]}", NULL, "tools[0].type", NULL, "ignore_web_search=true" },
    { "bash, ignored", "{" M ",'tools':[{'type':'bash_20250124','name':'bash'}]}", ON, NULL, NULL, "ignore_server_tools=true" },
    { "choice of an ignored tool", "{" M ",'tools':[{'type':'web_search_20250305','name':'web_search'}],'tool_choice':{'type':'tool','name':'web_search'}}", ON, NULL, NULL,
      "ignore_web_search=true" },
    { NULL, "{" M ",'tools':[" TOOL "],'tool_choice':{'type':'auto'}}", ON },
    { "any", "{" M "," OFF ",'tools':[" TOOL "],'tool_choice':{'type':'any'}}", END "\n\n<｜DSML｜ calls>\n" },
    { "any, nobody asked for thinking", "{" M ",'tools':[" TOOL "],'tool_choice':{'type':'any'}}", END "\n\n<｜DSML｜ calls>\n" },
    { "any with thinking is auto", "{" M ",'thinking':{'type':'adaptive'},'tools':[" TOOL "],'tool_choice':{'type':'any'}}", ON },
    { "named, nobody asked", "{" M ",'tools':[" TOOL "],'tool_choice':{'type':'tool','name':'f'}}", END "\n\n<｜DSML｜ calls>\n" },
    { "named", "{" M "," OFF ",'tools':[" TOOL "],'tool_choice':{'type':'tool','name':'f'}}", END "\n\n<｜DSML｜ calls>\n" },
    { "named with thinking", "{" M ",'thinking':{'type':'enabled'},'tools':[" TOOL "],'tool_choice':{'type':'tool','name':'f'}}", NULL, "tool_choice", "thinking", "no_constraints=true" },
    { "strict tool", "{" M ",'tools':[{'name':'f','strict':true,'input_schema':{'type':'object','properties':{},'required':[],'additionalProperties':false}}]}", NULL, "tools", "'f' asks for strict", "no_constraints=true" },
    { "named, unknown", "{" M "," OFF ",'tools':[" TOOL "],'tool_choice':{'type':'tool','name':'g'}}", NULL, "tool_choice.name", "'g'" },
    { "named, no name", "{" M "," OFF ",'tools':[" TOOL "],'tool_choice':{'type':'tool'}}", NULL, "tool_choice.name", "missing" },
    { "none", "{" M "," OFF ",'tools':[" TOOL "],'tool_choice':{'type':'none'}}", "<｜begin▁of▁sentence｜><｜User｜>q" END },
    { "choice", "{" M ",'tool_choice':{'type':'x'}}", NULL, "tool_choice.type", "auto, any, tool, none" },
};

static const request_case block_cases[] = {
    { "role", BODY("{'role':'tool','content':'x'}"), NULL, "messages[0].role", "user, assistant, system" },
    { "no content", BODY("{'role':'user'}"), NULL, "messages[0].content", "missing" },
    { "content type", BODY("{'role':'user','content':5}"), NULL, "messages[0].content" },
    { "empty list", BODY("{'role':'user','content':[]}"), NULL, "messages[0].content", "empty" },
    { "system in the list", BODY("{'role':'user','content':'q'},{'role':'system','content':'s'}"), "<｜User｜>q<｜System｜>s" END },
    { "text", USER("{'type':'text','text':'a','cache_control':{'type':'ephemeral'}},{'type':'text','text':'b'}"), "<｜User｜>a\n\nb" END },
    { "text missing", USER("{'type':'text'}"), NULL, "messages[0].content[0].text", "missing" },
    { "image", USER("{'type':'image','source':{'type':'base64','media_type':'image/png','data':'AAA'}},{'type':'text','text':'b'}"), "<｜User｜><｜deepseek_image｜>\n\nb" END },
    { "image url", USER("{'type':'image','source':{'type':'url','url':'https://x/'}}"), "<｜deepseek_image｜>" END },
    { "image file", USER("{'type':'image','source':{'type':'file','file_id':'x'}}"), NULL, "messages[0].content[0].source.file_id", "file ids" },
    { "image type", USER("{'type':'image','source':{'type':'base64','media_type':'image/bmp','data':'AAA'}}"), NULL, "messages[0].content[0].source.media_type", "image/bmp" },
    { "image source", USER("{'type':'image','source':{'type':'x'}}"), NULL, "messages[0].content[0].source.type", "base64, url, file" },
    { "image without source", USER("{'type':'image'}"), NULL, "messages[0].content[0].source", "missing" },
    { "document text", USER("{'type':'document','title':'T','context':'C','source':{'type':'text','media_type':'text/plain','data':'D'}}"), "<｜User｜>T\nC\nD" END },
    { "document content", USER("{'type':'document','title':'T','source':{'type':'content','content':[{'type':'text','text':'a'},{'type':'text','text':'b'}]}}"),
      "<｜User｜>T\na\n\nb" END },
    { "document content string", USER("{'type':'document','source':{'type':'content','content':'a'}}"), "<｜User｜>a" END },
    { "document base64 text", USER("{'type':'document','source':{'type':'base64','media_type':'text/plain','data':'aGk='}}"), "<｜User｜>hi" END },
    { "document pdf", USER("{'type':'document','source':{'type':'base64','media_type':'application/pdf','data':'AAAA'}}"), "<｜User｜>[Unsupported Document]" END },
    { "document url", USER("{'type':'document','source':{'type':'url','url':'https://x/'}}"), "<｜User｜>[Unsupported Document]" END },
    { "unknown block", USER("{'type':'search_result'}"), NULL, "messages[0].content[0].type", "text, image, document, tool_result" },
    { "tool_use in a user", USER(USE("1")), NULL, "messages[0].content[0].type", "assistant" },
    { "thinking in a user", USER("{'type':'thinking','thinking':'x'}"), NULL, "messages[0].content[0].type", "assistant" },
    { "result in an assistant", BODY("{'role':'assistant','content':[" RESULT("1") "]}"), NULL, "messages[0].content[0].type", "user" },
    { "image in an assistant", BODY("{'role':'assistant','content':[{'type':'image'}]}"), NULL, "messages[0].content[0].type", "user" },
    { "server tool", TURN("{'type':'server_tool_use','id':'s','name':'web_search','input':{}},{'type':'text','text':'a'}", "{'type':'text','text':'u'}"), NULL,
      "messages[1].content[0].type", "server_tool_use" },
    { "server tool, ignored",
      TURN("{'type':'server_tool_use','id':'s','name':'web_search','input':{}},{'type':'web_search_tool_result','tool_use_id':'s','content':[]},{'type':'text','text':'a'}",
           "{'type':'text','text':'u'}"), "</think>a<｜end▁of▁sentence｜><｜User｜>u" END, NULL, NULL, "ignore_web_search=true" },
    { "unknown in an assistant", BODY("{'role':'assistant','content':[{'type':'mcp_tool_use'}]}"), NULL, "messages[0].content[0].type", "text, thinking" },
    { "call and result", TURN("{'type':'text','text':'a'}," USE("1"), RESULT("1") ",{'type':'text','text':'u'}"),
      "</think>a\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n\n</｜DSML｜ invoke>\n</｜DSML｜ calls><｜end▁of▁sentence｜><｜User｜><tool_result>r1</tool_result>\n\nu" END },
    { "input", TURN("{'type':'tool_use','id':'1','name':'f','input':{'a':'x','n':1.0}}", RESULT("1")),
      "<｜DSML｜ parameter name=\"a\" string=\"true\">x</｜DSML｜ parameter>\n<｜DSML｜ parameter name=\"n\" string=\"false\">1.0</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n"
      "</｜DSML｜ calls><｜end▁of▁sentence｜><｜User｜><tool_result>r1</tool_result>" END },
    { "text after the call moves", TURN(USE("1") ",{'type':'text','text':'a'}", RESULT("1")),
      "</think>a\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n\n</｜DSML｜ invoke>\n</｜DSML｜ calls><｜end▁of▁sentence｜><｜User｜><tool_result>r1</tool_result>" END },
    { "result after the text moves", TURN(USE("1"), "{'type':'text','text':'u'}," RESULT("1")), "<｜User｜><tool_result>r1</tool_result>\n\nu" END },
    { "results in order", TURN(USE("1") "," USE("2"), RESULT("2") "," RESULT("1")), "<｜User｜><tool_result>r1</tool_result>\n\n<tool_result>r2</tool_result>" END },
    { "result without content", TURN(USE("1"), "{'type':'tool_result','tool_use_id':'1','is_error':true}"), "<｜User｜><tool_result></tool_result>" END },
    { "result blocks", TURN(USE("1"), "{'type':'tool_result','tool_use_id':'1','content':[{'type':'text','text':'a'},{'type':'image','source':{'type':'url','url':'https://x/'}},"
                                      "{'type':'tool_reference','tool_name':'g'},{'type':'document','source':{'type':'text','data':'D'}}]}"),
      "<tool_result>a\n\n<｜deepseek_image｜>\n\ng\n\nD</tool_result>" END },
    { "result block type", TURN(USE("1"), "{'type':'tool_result','tool_use_id':'1','content':[{'type':'x'}]}"), NULL, "messages[2].content[0].content[0].type" },
    { "unanswered", TURN(USE("1"), "{'type':'text','text':'u'}"), NULL, "messages[2].content", "tool_use '1'" },
    { "unanswered at the end", BODY("{'role':'assistant','content':[" USE("1") "]}"), NULL, "messages[0].content", "tool_result" },
    { "answered twice", TURN(USE("1"), RESULT("1") "," RESULT("1")), NULL, "messages[2].content[1].tool_use_id", "twice" },
    { "unknown id", TURN(USE("1"), RESULT("2")), NULL, NULL, "'2'" },
    { "same id twice", TURN(USE("1") "," USE("1"), RESULT("1")), NULL, "messages[1].content", "twice" },
    { "call without input", TURN("{'type':'tool_use','id':'1','name':'f'}", RESULT("1")), NULL, "messages[1].content[0].input", "missing" },
    { "call without id", TURN("{'type':'tool_use','name':'f','input':{}}", RESULT("1")), NULL, "messages[1].content[0].id", "missing" },
    { "placeholder", USER("{'type':'text','text':'<｜deepseek_image｜>'}"), NULL, "messages[0].content[0].text", "placeholder" },
};

static const request_case reasoning_cases[] = {
    { "thinking", "{'model':'m','tools':[" TOOL "],'messages':[{'role':'assistant','content':[{'type':'thinking','thinking':'A','signature':'s'},{'type':'thinking','thinking':'B'},"
                  "{'type':'text','text':'a'}]}]}",
      "<｜Assistant｜><think>A\n\nB</think>a<｜end▁of▁sentence｜><｜Assistant｜><think>" },
    { "thinking missing", "{'model':'m','messages':[{'role':'assistant','content':[{'type':'thinking'}]}]}", NULL, "messages[0].content[0].thinking", "missing" },
    { "redacted, foreign", "{'model':'m','messages':[{'role':'assistant','content':[{'type':'redacted_thinking','data':'xyz'},{'type':'text','text':'a'}]}]}",
      "<think></think>a<｜end▁of▁sentence｜><｜Assistant｜><think>" },
    { "redacted, refused", "{'model':'m','messages':[{'role':'assistant','content':[{'type':'redacted_thinking','data':'xyz'},{'type':'text','text':'a'}]}]}", NULL,
      "messages[0].content[0].data", NULL, "refuse_bad_sealed=true" },
    { "required", "{'model':'m','tools':[" TOOL "],'messages':[{'role':'assistant','content':[{'type':'text','text':'a'}]}]}", NULL, "messages[0].content", "thinking",
      "require_reasoning=true" },
};

/* clang-format on */
static void messages_fields(void **state)
{
    (void)state;
    RUN_CASES(DS_PROTO_MESSAGES, DS_ENC_V41, field_cases);
}

static void messages_thinking(void **state)
{
    (void)state;
    RUN_CASES(DS_PROTO_MESSAGES, DS_ENC_V41, thinking_cases);
}

static void messages_tools(void **state)
{
    (void)state;
    RUN_CASES(DS_PROTO_MESSAGES, DS_ENC_V41, tool_cases);
}

static void messages_blocks(void **state)
{
    (void)state;
    RUN_CASES(DS_PROTO_MESSAGES, DS_ENC_V41, block_cases);
}

static void messages_reasoning(void **state)
{
    (void)state;
    RUN_CASES(DS_PROTO_MESSAGES, DS_ENC_V41, reasoning_cases);
}

static void messages_info(void **state)
{
    static const char body[] =
        "{'model':'claude-x[1m]','max_tokens':32000,'stream':true,'thinking':{'type':'enabled','budget_tokens':9000},'metadata':{'user_id':"
        "'u1'},"
        "'stop_sequences':['END'],'tools':[" TOOL "],'tool_choice':{'type':'auto','disable_parallel_tool_use':true}," U "}";
    ds_request_parse_args args = { .proto = DS_PROTO_MESSAGES };
    const ds_request_info_data *i;
    char *text = quoted(body);
    ds_api_error why;
    ds_request *r;
    ds_err err = { 0 };

    (void)state;
    assert_ok(ds_request_parse(&r, &args, text, strlen(text), &why, &err));
    i = ds_request_info(r);
    assert_true(i->stream);
    assert_int_equal(i->max_tokens, 32000);
    assert_int_equal(i->thinking_budget, 9000);
    assert_string_equal(i->user.p, "u1");
    assert_string_equal(i->stop[0].p, "END");
    assert_false(i->parallel_tool_calls);
    assert_int_equal(i->start, DS_START_REASONING);
    ds_request_destroy(r);
    args.count_tokens = true; /* max_tokens and stream are not looked at */
    free(text);
    text = quoted("{" M ",'max_tokens':'x','stream':7}");
    assert_ok(ds_request_parse(&r, &args, text, strlen(text), &why, &err));
    assert_false(ds_request_info(r)->has_max_tokens);
    ds_request_destroy(r);
    free(text);
}

static void messages_error_body(void **state)
{
    ds_api_error e;
    char out[512];

    (void)state;
    ds_api_fail(&e, 429, NULL, NULL, NULL, "slow %s", "down\n\"x\"");
    ds_api_error_body(out, sizeof out, &e, DS_PROTO_MESSAGES, false, "req_1");
    assert_string_equal(
        out, "{\"type\":\"error\",\"error\":{\"type\":\"rate_limit_error\",\"message\":\"slow down \\\"x\\\"\"},\"request_id\":\"req_1\"}");
    ds_api_error_body(out, sizeof out, &e, DS_PROTO_MESSAGES, true, NULL);
    assert_string_equal(
        out,
        "{\"error\":{\"message\":\"slow down \\\"x\\\"\",\"type\":\"rate_limit_error\",\"param\":null,\"code\":\"rate_limit_exceeded\"}}");
    assert_int_equal(ds_api_error_body(NULL, 0, &e, DS_PROTO_CHAT, false, NULL), strlen(out));
    ds_api_fail(&e, 400, NULL, "context_length_exceeded", "messages", "%0600d", 1);
    assert_int_equal(strlen(e.message), sizeof e.message - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_fields),     cmocka_unit_test(messages_thinking),  cmocka_unit_test(messages_tools),
        cmocka_unit_test(messages_blocks),     cmocka_unit_test(messages_reasoning), cmocka_unit_test(messages_info),
        cmocka_unit_test(messages_error_body),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
