/* Responses, row by row of the recipe's table 4.4; stored responses and sealed reasoning. */
#include "recipe/seal.h"
#include "request_test.h"

#define M "'model':'m','input':'q'"
#define OFF "'reasoning':{'effort':'none'}"
#define ON "<｜User｜>q<｜Assistant｜><think>"
#define IN(x) "{'model':'m'," OFF ",'input':[" x "]}"
#define U "{'role':'user','content':'q'}"
#define TOOL "{'type':'function','name':'f','description':'d','parameters':{'type':'object'}}"
#define CALL(id) "{'type':'function_call','call_id':'" id "','name':'f" id "','arguments':''}"
#define OUT(id) "{'type':'function_call_output','call_id':'" id "','output':'r" id "'}"
#define WHY(t) "{'type':'reasoning','summary':[],'content':[{'type':'reasoning_text','text':'" t "'}]}"
#define ASK "<｜User｜>q"
#define END "<｜Assistant｜></think>"
#define DONE "<｜end▁of▁sentence｜>"
#define BLOCK(x) "\n\n<｜DSML｜ calls>\n" x "</｜DSML｜ calls>" DONE
#define INVOKE(n) "<｜DSML｜ invoke name=\"" n "\">\n\n</｜DSML｜ invoke>\n"

/* clang-format off */
static const request_case field_cases[] = {
    { NULL, "{" M "}", ON },
    { "model", "{'input':'q'}", ON },
    { "nothing to say", "{'model':'m'}", NULL, "input", "missing" },
    { "instructions only", "{'model':'m'," OFF ",'instructions':'i'}", "<｜begin▁of▁sentence｜><｜System｜>i" END },
    { "instructions", "{" M "," OFF ",'instructions':'i'}", "<｜begin▁of▁sentence｜><｜System｜>i" ASK END },
    { "empty instructions count as none", "{'model':'m','instructions':''}", NULL, "input", "missing" },
    { "empty instructions", "{" M "," OFF ",'instructions':''}", "<｜begin▁of▁sentence｜>" ASK END },
    { "input list", IN(U), ASK END },
    { "empty list", IN(""), NULL, "input", "empty" },
    { "input type", "{'model':'m','input':5}", NULL, "input", "list" },
    { NULL, "{" M ",'stream':1}", NULL, "stream" },
    { NULL, "{" M ",'max_output_tokens':0}", NULL, "max_output_tokens", "positive" },
    { NULL, "{" M ",'temperature':3}", NULL, "temperature" },
    { NULL, "{" M ",'top_p':0}", NULL, "top_p" },
    { NULL, "{" M ",'top_logprobs':21}", NULL, "top_logprobs" },
    { NULL, "{" M ",'top_logprobs':20,'include':['message.output_text.logprobs','other']}", ON },
    { NULL, "{" M ",'include':[1]}", NULL, "include[0]" },
    { NULL, "{" M ",'stop':['x']}", ON },
    { "effort", "{" M ",'reasoning':{'effort':'minimal','summary':'auto'}}", "Effort: 50 (range 1-100, the higher the value, the more thorough the reasoning)\n\n" ON },
    { "effort", "{" M ",'reasoning':{'effort':'none'}}", ASK END },
    { "effort", "{" M ",'reasoning':{'effort':'x'}}", NULL, "reasoning.effort", "low" },
    { "effort", "{" M ",'reasoning':'high'}", NULL, "reasoning", "object" },
    { "text", "{" M ",'text':{'format':{'type':'text'},'verbosity':'low'}}", ON },
    { "json_object", "{" M ",'text':{'format':{'type':'json_object'}}}", NULL, "text.format.type", "json" },
    { "json_object", "{'model':'m','input':'json','text':{'format':{'type':'json_object'}}}", "reply:\n{\"type\": \"json_object\"}<｜User｜>json<｜Assistant｜><think>" },
    { "json_schema", "{" M ",'text':{'format':{'type':'json_schema','name':'x','strict':true,'schema':{'type':'object'}}}}", "reply:\n{\"type\": \"object\"}<｜User｜>q<｜Assistant｜></think>" },
    { "json_schema", "{" M ",'text':{'format':{'type':'json_schema','name':'x','strict':false,'schema':{'type':'object'}}}}", "reply:\n{\"type\": \"object\"}" ON },
    { "json_schema", "{" M ",'text':{'format':{'type':'json_schema','name':'x'}}}", NULL, "text.format.schema", "missing" },
    { "background", "{" M ",'background':true}", NULL, "background", "not supported" },
    { "background", "{" M ",'background':false}", ON },
    { "prompt", "{" M ",'prompt':{'id':'x'}}", NULL, "prompt", "not supported" },
    { "truncation", "{" M ",'truncation':'auto'}", ON },
    { "truncation", "{" M ",'truncation':'x'}", NULL, "truncation", "disabled, auto" },
    { "previous", "{" M ",'previous_response_id':'nope'}", NULL, "previous_response_id", "nope" },
    { "conversation", "{" M ",'conversation':{'id':'c'}}", NULL, "conversation" },
    { "ignored", "{" M ",'metadata':{'a':'b'},'user':'u','safety_identifier':'s','prompt_cache_key':'k','service_tier':'auto','max_tool_calls':3,'client_metadata':1}", ON },
};

static const request_case item_cases[] = {
    { "type-less message", IN("{'role':'user','content':[{'type':'input_text','text':'a'},{'type':'text','text':'b'}]}"), "<｜User｜>a\n\nb" END },
    { "roles", IN("{'type':'message','role':'developer','content':'d'},{'role':'system','content':'s'}," U ",{'role':'assistant','content':'a'}"),
      "d<｜System｜>s" ASK END "a" DONE END },
    { "picture in developer", IN("{'role':'developer','content':[{'type':'input_image','image_url':'https://x/'}]}," U), NULL, "input[0].content[0].type" },
    { "role", IN("{'role':'tool','content':'d'}"), NULL, "input[0].role", "user, developer, system, assistant" },
    { "no content", IN("{'role':'user'}"), NULL, "input[0].content", "missing" },
    { "content", IN("{'role':'user','content':1}"), NULL, "input[0].content" },
    { "block", IN("{'role':'user','content':[{'type':'x'}]}"), NULL, "input[0].content[0].type", "input_text" },
    { "image", IN("{'role':'user','content':[{'type':'input_image','image_url':'https://x/','detail':'high'}]}"), "<｜User｜><｜deepseek_image｜>" END },
    { "image without source", IN("{'role':'user','content':[{'type':'input_image'}]}"), NULL, "input[0].content[0]", "exactly one" },
    { "image with two", IN("{'role':'user','content':[{'type':'input_image','image_url':'https://x/','file_id':'f'}]}"), NULL, "input[0].content[0]", "exactly one" },
    { "image id", IN("{'role':'user','content':[{'type':'input_image','file_id':'f'}]}"), NULL, "input[0].content[0].file_id", "file ids" },
    { "image of an assistant", IN("{'role':'assistant','content':[{'type':'input_image','image_url':'https://x/'}]}"), NULL, "input[0].content[0].type" },
    { "file", IN("{'role':'user','content':[{'type':'input_file','file_id':'f'},{'type':'input_text','text':'t'}]}"), "<｜User｜>[Unsupported Document]\n\nt" END },
    { "text file", IN("{'role':'user','content':[{'type':'input_file','filename':'a','file_data':'data:text/plain;base64,aGk='}]}"), "<｜User｜>hi" END },
    { "refusal", IN("{'role':'assistant','content':[{'type':'refusal','refusal':'no'},{'type':'output_text','text':'t'}]}"), "</think>no\n\nt" DONE END },
    { "other items are dropped", IN(U ",{'type':'web_search_call','id':'x'},{'type':'foo'}"), ASK END },
    { "item type", IN("5"), NULL, "input[0]", "object" },
    { "item type", IN("{'type':5}"), NULL, "input[0].type", "string" },
    { "assistants merge", IN(U ",{'role':'assistant','content':'a'},{'role':'assistant','content':''},{'role':'assistant','content':'b'}"), "</think>a\n\nb" DONE END },
    { "call", IN(U "," CALL("1") "," OUT("1")), END BLOCK(INVOKE("f1")) "<｜User｜><tool_result>r1</tool_result>" END },
    { "call of an assistant", IN(U ",{'role':'assistant','content':'a'}," CALL("1") "," OUT("1")), "</think>a" BLOCK(INVOKE("f1")) "<｜User｜><tool_result>r1</tool_result>" END },
    { "arrival order", IN(U "," CALL("9") "," CALL("10") "," OUT("10") "," OUT("9")),
      BLOCK(INVOKE("f9") INVOKE("f10")) "<｜User｜><tool_result>r9</tool_result>\n\n<tool_result>r10</tool_result>" END },
    { "recipe's order", IN(U "," CALL("9") "," CALL("10") "," OUT("10") "," OUT("9")),
      BLOCK(INVOKE("f10") INVOKE("f9")) "<｜User｜><tool_result>r10</tool_result>\n\n<tool_result>r9</tool_result>" END, NULL, NULL, "recipe_call_order=true" },
    { "one by one", IN(U "," CALL("1") "," OUT("1") "," CALL("2") "," OUT("2")),
      BLOCK(INVOKE("f1")) "<｜User｜><tool_result>r1</tool_result>" END BLOCK(INVOKE("f2")) "<｜User｜><tool_result>r2</tool_result>" END },
    { "output blocks", IN(U "," CALL("1") ",{'type':'function_call_output','call_id':'1','output':[{'type':'input_text','text':'a'},{'type':'input_image','image_url':'https://x/'},"
                          "{'type':'input_file'}]}"), "<tool_result>a\n\n<｜deepseek_image｜>\n\n[Unsupported Document]</tool_result>" END },
    { "namespace", IN(U ",{'type':'function_call','call_id':'1','namespace':'n','name':'f','arguments':'{}'}," OUT("1")), BLOCK(INVOKE("n::f")) "<｜User｜><tool_result>r1</tool_result>" END },
    { "custom", IN(U ",{'type':'custom_tool_call','call_id':'1','name':'c','input':'I'},{'type':'custom_tool_call_output','call_id':'1','output':'o'}"),
      BLOCK("<｜DSML｜ invoke name=\"c\">\n<｜DSML｜ parameter name=\"input\" string=\"true\">I</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n") "<｜User｜><tool_result>o</tool_result>" END },
    { "shell", IN(U ",{'type':'local_shell_call','call_id':'1','action':{'command':['ls']}},{'type':'local_shell_call_output','call_id':'1','output':'o'}"),
      BLOCK("<｜DSML｜ invoke name=\"local_shell\">\n<｜DSML｜ parameter name=\"command\" string=\"false\">[\"ls\"]</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n")
      "<｜User｜><tool_result>o</tool_result>" END },
    { "empty id", IN(U ",{'type':'function_call','call_id':'','name':'f','arguments':''}"), NULL, "input[1].call_id", "empty" },
    { "no id", IN(U ",{'type':'function_call','name':'f','arguments':''}"), NULL, "input[1].call_id", "missing" },
    { "no name", IN(U ",{'type':'function_call','call_id':'1','arguments':''}"), NULL, "input[1].name", "missing" },
    { "no arguments", IN(U ",{'type':'function_call','call_id':'1','name':'f'}"), NULL, "input[1].arguments", "missing" },
    { "no input", IN(U ",{'type':'custom_tool_call','call_id':'1','name':'f'}"), NULL, "input[1].input", "missing" },
    { "no output", IN(U "," CALL("1") ",{'type':'function_call_output','call_id':'1'}"), "<tool_result></tool_result>" END },
    { "called twice", IN(U "," CALL("1") "," CALL("1") "," OUT("1")), NULL, "input[2].call_id", "twice" },
    { "called again later", IN(U "," CALL("1") "," OUT("1") "," CALL("1") "," OUT("1")), NULL, "input[3].call_id", "twice" },
    { "output without call", IN(U "," OUT("1")), NULL, "input[1].call_id", "'1'" },
    { "second output", IN(U "," CALL("1") "," OUT("1") "," OUT("1")), NULL, "input[3].call_id", "already" },
    { "message while a call waits", IN(U "," CALL("1") "," U "," OUT("1")), NULL, "input[2]", "call '1'" },
    { "reasoning while a call waits", IN(U "," CALL("1") "," WHY("r") "," OUT("1")), NULL, "input[2]", "call '1'" },
    { "reasoning is demanded", "{'model':'m','tools':[" TOOL "],'input':[" U "," WHY("r") "," CALL("1") "," OUT("1") ",{'role':'assistant','content':'a'}]}",
      NULL, "input", "assistant turn 2", "require_reasoning=true" },
    { "reasoning is there", "{'model':'m','tools':[" TOOL "],'input':[" U "," WHY("r") "," CALL("1") "," OUT("1") "]}", "<tool_result>r1</tool_result><｜Assistant｜><think>", NULL, NULL, "require_reasoning=true" },
    { "reasoning without tools", "{'model':'m','input':[" U ",{'role':'assistant','content':'a'}]}", "<think></think>a" DONE "<｜Assistant｜><think>", NULL, NULL, "require_reasoning=true" },
    { "open end", IN(U "," CALL("1")), NULL, "input[1]", "without the output of call '1'" },
    { "lenient: missing", IN(U "," CALL("1") "," U), BLOCK(INVOKE("f1")) "<｜User｜><tool_result>[No output]</tool_result>\n\nq" END, NULL, NULL, "lenient_history=true" },
    { "lenient: late", IN(U "," CALL("1") "," U "," OUT("1")), BLOCK(INVOKE("f1")) "<｜User｜><tool_result>r1</tool_result>\n\nq" END, NULL, NULL, "lenient_history=true" },
    { "lenient: open end", IN(U "," CALL("1")), BLOCK(INVOKE("f1")) "<｜User｜><tool_result>[No output]</tool_result>" END, NULL, NULL, "lenient_history=true" },
    { "lenient: second output", IN(U "," CALL("1") "," OUT("1") "," OUT("1")), NULL, "input[3].call_id", "already", "lenient_history=true" },
    { "reference", IN("{'type':'item_reference','id':'msg_r_0'}"), NULL, "input[0].id", "msg_r_0" },
    { "placeholder", IN("{'role':'user','content':'<｜deepseek_image｜>'}"), NULL, "input[0].content", "placeholder" },
};

#define T(x) "{'model':'m','tools':[" TOOL "],'input':[" U "," x "]}"
#define RE(x) "<｜Assistant｜><think>" x "</think>"
static const request_case reasoning_cases[] = {
    { "before a message", T(WHY("R") ",{'role':'assistant','content':'a'}"), ASK RE("R") "a" DONE "<｜Assistant｜><think>" },
    { "two items", T(WHY("R") "," WHY("S") ",{'role':'assistant','content':'a'}"), ASK RE("R\nS") "a" DONE "<｜Assistant｜><think>" },
    { "two parts", T("{'type':'reasoning','content':[{'type':'reasoning_text','text':'R'},{'type':'reasoning_text','text':'S'}]},{'role':'assistant','content':'a'}"),
      ASK RE("R\nS") "a" DONE "<｜Assistant｜><think>" },
    { "after content: a new turn", T("{'role':'assistant','content':'a'}," WHY("R") ",{'role':'assistant','content':'b'}"), ASK RE("") "a" DONE RE("R") "b" DONE "<｜Assistant｜><think>" },
    { "before a call", T(WHY("R") "," CALL("1") "," OUT("1")), ASK RE("R") BLOCK(INVOKE("f1")) "<｜User｜><tool_result>r1</tool_result><｜Assistant｜><think>" },
    { "without text", T("{'type':'reasoning','summary':[],'encrypted_content':'xyz'}," U), ASK "\n\nq<｜Assistant｜><think>" },
    { "foreign blob", T("{'type':'reasoning','encrypted_content':'xyz'}," U), NULL, "input[1].encrypted_content", NULL, "refuse_bad_sealed=true" },
    { "other parts", T("{'type':'reasoning','content':[{'type':'x'},{'type':'reasoning_text','text':'R'}]},{'role':'assistant','content':'a'}"), RE("R") "a" DONE "<｜Assistant｜><think>" },
};

#define SCHEMAS(x) "Schemas\n\n" x "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n"
static const request_case tool_cases[] = {
    { "function", "{" M ",'tools':[" TOOL "]}", SCHEMAS("{\"name\": \"f\", \"description\": \"d\", \"parameters\": {\"type\": \"object\"}}") ON },
    { "namespace", "{" M ",'tools':[{'type':'namespace','name':'n','description':'D','tools':[" TOOL "]}]}",
      SCHEMAS("{\"name\": \"n::f\", \"description\": \"D\\nd\", \"parameters\": {\"type\": \"object\"}}") ON },
    { "namespace twice", "{" M ",'tools':[{'type':'namespace','name':'n','tools':[" TOOL "]},{'type':'namespace','name':'n','tools':[]}]}", NULL, "tools[1].name", "twice" },
    { "inner name twice", "{" M ",'tools':[{'type':'namespace','name':'n','tools':[" TOOL "," TOOL "]}]}", NULL, "tools[0].tools[1].name", "twice" },
    { "inner custom", "{" M ",'tools':[{'type':'namespace','name':'n','tools':[{'type':'custom','name':'c'}]}]}", NULL, "tools[0].tools[0].type", "functions" },
    { "same name in and outside", "{" M ",'tools':[" TOOL ",{'type':'namespace','name':'n','tools':[" TOOL "]}]}", ON },
    { "custom", "{" M ",'tools':[{'type':'custom','name':'c','description':'D'}]}",
      SCHEMAS("{\"name\": \"c\", \"description\": \"D\", \"parameters\": {\"type\": \"object\", \"properties\": {\"input\": {\"type\": \"string\"}}, \"required\": [\"input\"], "
              "\"additionalProperties\": false}}") ON },
    { "apply_patch explains itself", "{" M ",'tools':[{'type':'custom','name':'apply_patch','format':{'type':'grammar','syntax':'lark','definition':'start: A'}}]}", ON },
    { "hosted kinds", "{" M ",'tools':[{'type':'web_search'},{'type':'tool_search'},{'type':'local_shell'},{'type':'mcp','server_label':'x'},{'type':'image_generation'}]}",
      "reasoning)\n\n" ON },
    { "web search refused", "{" M ",'tools':[{'type':'web_search_preview'}]}", NULL, "tools[0].type", "web_search_preview", "refuse_web_search=true" },
    { "no type", "{" M ",'tools':[{'name':'f'}]}", NULL, "tools[0].type", "missing" },
    { "twice", "{" M ",'tools':[" TOOL "," TOOL "]}", NULL, "tools[1].name", "twice" },
    { "choice", "{" M "," OFF ",'tools':[" TOOL "],'tool_choice':{'type':'function','name':'f'}}", ASK END "\n\n<｜DSML｜ calls>\n" },
    { "choice in a namespace", "{" M "," OFF ",'tools':[{'type':'namespace','name':'n','tools':[" TOOL "]}],'tool_choice':{'type':'function','namespace':'n','name':'f'}}",
      END "\n\n<｜DSML｜ calls>\n" },
    { "choice by full name", "{" M "," OFF ",'tools':[{'type':'namespace','name':'n','tools':[" TOOL "]}],'tool_choice':{'type':'function','name':'n::f'}}",
      END "\n\n<｜DSML｜ calls>\n" },
    { "choice unknown", "{" M ",'tools':[" TOOL "],'tool_choice':{'type':'function','name':'g'}}", NULL, "tool_choice.name", "'g'" },
    { "choice hosted", "{" M "," OFF ",'tools':[" TOOL "],'tool_choice':{'type':'web_search'}}", ASK END },
    { "choice custom", "{" M "," OFF ",'tools':[{'type':'custom','name':'c'}],'tool_choice':{'type':'custom','name':'c'}}", END "\n\n<｜DSML｜ calls>\n" },
    { "allowed", "{" M "," OFF ",'tools':[" TOOL ",{'type':'custom','name':'c'}],'tool_choice':{'type':'allowed_tools','mode':'required','tools':[{'type':'function','name':'f'}]}}",
      SCHEMAS("{\"name\": \"f\", \"description\": \"d\", \"parameters\": {\"type\": \"object\"}}") ASK END "\n\n<｜DSML｜ calls>\n" },
    { "choice word", "{" M ",'tool_choice':'x'}", NULL, "tool_choice", "none, auto, required" },
};

/* clang-format on */
static void responses_fields(void **state)
{
    (void)state;
    RUN_CASES(DS_PROTO_RESPONSES, DS_ENC_V41, field_cases);
}

static void responses_items(void **state)
{
    (void)state;
    RUN_CASES(DS_PROTO_RESPONSES, DS_ENC_V41, item_cases);
}

static void responses_reasoning(void **state)
{
    (void)state;
    RUN_CASES(DS_PROTO_RESPONSES, DS_ENC_V41, reasoning_cases);
}

static void responses_tools(void **state)
{
    (void)state;
    RUN_CASES(DS_PROTO_RESPONSES, DS_ENC_V41, tool_cases);
}

static ds_request *parse(const ds_request_io *io, const char *body, ds_api_error *why)
{
    ds_request_parse_args args = { .proto = DS_PROTO_RESPONSES, .io = io };
    char *text = quoted(body);
    ds_request *r;
    ds_err err = { 0 };
    ds_rc rc = ds_request_parse(&r, &args, text, strlen(text), why, &err);

    if (rc != DS_OK && rc != DS_E_FORMAT)
        fail_msg("%s", err.msg);
    free(text);
    return r;
}

static void responses_info(void **state)
{
    static const char *const want[][2] = { { "instructions", "\"i\"" },
                                           { "max_output_tokens", "5" },
                                           { "metadata", "{\"k\":\"v\"}" },
                                           { "parallel_tool_calls", "true" },
                                           { "previous_response_id", "null" },
                                           { "reasoning", "{\"effort\":\"low\",\"summary\":null}" },
                                           { "store", "false" },
                                           { "temperature", "1.0" },
                                           { "text", "{\"format\":{\"type\":\"text\"},\"verbosity\":\"low\"}" },
                                           { "tool_choice", "\"auto\"" },
                                           { "tools", "[]" },
                                           { "top_p", "0.5" },
                                           { "truncation", "\"disabled\"" },
                                           { "user", "null" } };
    const ds_request_info_data *i;
    ds_api_error why;
    ds_request *r =
        parse(NULL,
              "{" M ",'instructions':'i','max_output_tokens':5,'metadata':{'k':'v'},'reasoning':{'effort':'low'},'store':false,"
              "'top_p':0.5,'stream':true,"
              "'include':['reasoning.encrypted_content'],'tools':[],'truncation':'disabled','text':{'verbosity':'low','format':null}}",
              &why);
    size_t found = 0;

    (void)state;
    assert_non_null(r);
    i = ds_request_info(r);
    assert_true(i->stream && i->include_encrypted_reasoning && !i->store && !i->truncation_auto);
    for (size_t k = 0; k < sizeof want / sizeof *want; k++)
        for (uint32_t e = 0; e < i->n_echo; e++)
            if (strcmp(i->echo[e].name.p, want[k][0]) == 0) {
                assert_string_equal(i->echo[e].json.p, want[k][1]);
                found++;
            }
    assert_int_equal(found, sizeof want / sizeof *want);
    ds_request_destroy(r);
    r = parse(NULL,
              "{" M ",'tools':[{'type':'namespace','name':'n','tools':[" TOOL
              "]},{'type':'custom','name':'c','format':{'type':'grammar','syntax':'regex','definition':'a+'}}]}",
              &why);
    assert_non_null(r);
    assert_true(ds_request_info(r)->store);
    assert_string_equal(ds_request_tool(r, "n::f", 4)->ns.p, "n");
    assert_string_equal(ds_request_tool(r, "n::f", 4)->fn.p, "f");
    assert_int_equal(ds_request_tool(r, "c", 1)->kind, DS_TOOL_CUSTOM);
    assert_int_equal(ds_request_tool(r, "c", 1)->grammar, DS_GRAMMAR_REGEX);
    assert_string_equal(ds_request_tool(r, "c", 1)->definition.p, "a+");
    ds_request_destroy(r);
}

static void expect_prompt(ds_request *r, const char *tail)
{
    const ds_run *runs;
    ds_buf b = { 0 };
    ds_err err = { 0 };
    size_t n;

    assert_ok(ds_request_render(r, 0, &runs, &n, &err));
    for (size_t i = 0; i < n; i++)
        ds_buf_put(&b, runs[i].p, runs[i].n);
    if (b.len < strlen(tail) || strcmp(ds_buf_str(&b) + b.len - strlen(tail), tail) != 0)
        fail_msg("%s lacks %s", ds_buf_str(&b), tail);
    ds_buf_free(&b);
}

/* A store of one record. */
typedef struct {
    const char *id, *json;
    int held;
} one_record;

static ds_rc one_load(void *ctx, const char *id, const char **json, size_t *n, void **hold, ds_err *err)
{
    one_record *r = ctx;

    (void)err;
    *json = strcmp(id, r->id) == 0 ? r->json : NULL;
    *n = *json ? strlen(*json) : 0;
    *hold = *json ? r : NULL;
    r->held += *json != NULL;
    return DS_OK;
}

static void one_release(void *ctx, void *hold)
{
    assert_ptr_equal(ctx, hold);
    ((one_record *)ctx)->held--;
}

static void stored_responses(void **state)
{
    static const char record[] = "{\"items\":[{\"role\":\"user\",\"content\":\"old\"},{\"type\":\"message\",\"id\":\"msg_r1_0\",\"role\":"
                                 "\"assistant\",\"content\":[{\"type\":"
                                 "\"output_text\",\"text\":\"answer\"}]}]}";
    ds_request_io io = { 0 };
    one_record one = { "r1", record, 0 };
    const ds_response_store store = { &one, one_load, one_release };
    ds_api_error why;
    ds_request *r;
    ds_err err = { 0 };
    ds_str items;

    (void)state;
    io.store = &store;
    r = parse(&io, "{" M "," OFF ",'previous_response_id':'r1'}", &why);
    assert_non_null(r);
    expect_prompt(r, "<｜User｜>old<｜Assistant｜></think>answer<｜end▁of▁sentence｜><｜User｜>q<｜Assistant｜></think>");
    assert_ok(ds_request_items(r, &items, &err));
    assert_string_equal(items.p, "{\"role\":\"user\",\"content\":\"old\"},{\"type\":\"message\",\"id\":\"msg_r1_0\",\"role\":\"assistant\","
                                 "\"content\":[{\"type\":\"output_text\","
                                 "\"text\":\"answer\"}]},{\"type\":\"message\",\"role\":\"user\",\"content\":\"q\"}");
    ds_request_destroy(r);
    assert_null(parse(&io, "{" M ",'previous_response_id':'r2'}", &why));
    assert_int_equal(why.status, 404);
    assert_string_equal(why.code, "previous_response_not_found");
    r = parse(&io, "{'model':'m'," OFF ",'input':[" U ",{'type':'item_reference','id':'msg_r1_0'}," U "]}", &why);
    assert_non_null(r);
    expect_prompt(r, "<｜User｜>q<｜Assistant｜></think>answer<｜end▁of▁sentence｜><｜User｜>q<｜Assistant｜></think>");
    ds_request_destroy(r);
    assert_null(parse(&io, "{" M ",'previous_response_id':'r1','conversation':'c'}", &why));
    assert_string_equal(why.param, "conversation");
    assert_int_equal(one.held, 0);
}

static void sealed_reasoning(void **state)
{
    static const uint8_t keys[2][DS_SEAL_KEY_BYTES] = { { 1 }, { 2 } };
    ds_seal *old, *now;
    ds_request_io io = { 0 };
    ds_api_error why;
    ds_request *r;
    ds_err err = { 0 };
    char blob[256], text[256];
    char body[1024];
    size_t n = ds_seal_blob_bytes(6), len;

    (void)state;
    assert_ok(ds_seal_create(&old, &keys[1], 1, &err));
    assert_ok(ds_seal_create(&now, keys, 2, &err));
    assert_ok(ds_seal_close(old, "sealed", 6, blob, &err));
    blob[n] = 0;
    assert_ok(ds_seal_open(now, blob, n, text, sizeof text, &len, &err)); /* an older key still opens */
    assert_int_equal(len, 6);
    assert_memory_equal(text, "sealed", 6);
    for (size_t i = 0; i < n; i++) { /* every changed character is noticed */
        char keep = blob[i];

        blob[i] = keep == 'A' ? 'B' : 'A';
        assert_int_equal(ds_seal_open(now, blob, n, text, sizeof text, &len, &err), DS_E_FORMAT);
        blob[i] = keep;
        assert_int_equal(ds_seal_open(now, blob, i, text, sizeof text, &len, &err), DS_E_FORMAT);
    }
    io.seal = now;
    snprintf(body, sizeof body,
             "{'model':'m','tools':[" TOOL "],'input':[" U
             ",{'type':'reasoning','summary':[],'encrypted_content':'%s'},{'role':'assistant','content':'a'}]}",
             blob);
    r = parse(&io, body, &why);
    assert_non_null(r);
    expect_prompt(r, "<｜User｜>q<｜Assistant｜><think>sealed</think>a<｜end▁of▁sentence｜><｜Assistant｜><think>");
    ds_request_destroy(r);
    assert_ok(ds_seal_close(now, "", 0, blob, &err)); /* sealed with the new key: the old ring can't open it */
    assert_refused(ds_seal_open(old, blob, ds_seal_blob_bytes(0), text, sizeof text, &len, &err), DS_E_FORMAT, "not ours");
    ds_seal_destroy(old);
    assert_refused(ds_seal_create(&old, keys, 0, &err), DS_E_ARG, "keys");
    ds_seal_destroy(now);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(responses_fields), cmocka_unit_test(responses_items), cmocka_unit_test(responses_reasoning),
        cmocka_unit_test(responses_tools),  cmocka_unit_test(responses_info),  cmocka_unit_test(stored_responses),
        cmocka_unit_test(sealed_reasoning),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
