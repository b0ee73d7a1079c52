/* Chat Completions responses, row by row of recipe spec 4.3, and legacy completions (4.8). */
#include "respond_help.h"

#define ON "'messages':[{'role':'user','content':'json'}]"
#define OFF ON ",'thinking':{'type':'disabled'}"
#define TOOLS ",'tools':[{'type':'function','function':{'name':'f','parameters':{'type':'object','properties':{'a':{'type':'integer'}}}}}]"
#define STREAM ",'stream':true"
#define HEAD "{'id':'R','object':'chat.completion.chunk','created':7,'model':'m','system_fingerprint':null,'choices':[{'index':0,'delta':"

static const respond_case cases[] = {
    { "first chunk, thinking", ON STREAM, NULL, "", DS_END_STOP,
      HEAD "{'role':'assistant','content':null,'reasoning_content':''},'logprobs':null,'finish_reason':null}]}\n" },
    { "first chunk, off", OFF STREAM, NULL, "", DS_END_STOP,
      HEAD "{'role':'assistant','content':''},'logprobs':null,'finish_reason':null}]}\n!reasoning_content" },
    { "reasoning and content", ON STREAM, NULL, "th\x1fink</think>\x1f\n\nO\x1fk", DS_END_STOP,
      "{'content':null,'reasoning_content':'th'}\n{'content':null,'reasoning_content':'ink'}\n{'content':'O','reasoning_content':null}\n{'"
      "content':'k','reasoning_content':null}\n"
      "{'content':'','reasoning_content':null},'logprobs':null,'finish_reason':'stop'}]",
      "'object':'chat.completion','created':7\n'message':{'role':'assistant','content':'Ok','reasoning_content':'think'},'logprobs':null,'"
      "finish_reason':'stop'}]" },
    { "content, off", OFF STREAM, NULL, "O\x1fk", DS_END_STOP,
      "{'content':'O'}\n{'content':'k'}\n{'content':''},'logprobs':null,'finish_reason':'stop'}]", "{'role':'assistant','content':'Ok'}" },
    { "nothing", OFF STREAM, NULL, "", DS_END_STOP, "{'content':''},'logprobs':null,'finish_reason':'stop'", "'content':''" },
    { "calls", ON STREAM TOOLS, NULL, "t</think>" CALLS(CALL("f", STR("a", "x")) CALL("g", RAW("b", "1"))), DS_END_STOP,
      "{'tool_calls':[{'index':0,'id':'call_R_0','type':'function','function':{'name':'f','arguments':''}}]}\n{'tool_calls':[{'index':0,'"
      "function':{'arguments':'{\\'a\\': \\'x\\'}'}}]}\n"
      "{'tool_calls':[{'index':1,'id':'call_R_1'\n{'tool_calls':[{'index':1,'function':{'arguments':'{\\'b\\': "
      "1}'}}]}\n'finish_reason':'tool_calls'",
      "'content':'','reasoning_content':'t','tool_calls':[{'id':'call_R_0','type':'function','function':{'name':'f','arguments':'{\\'a\\': "
      "\\'x\\'}'}},{'id':'call_R_1'\n'finish_reason':'tool_calls'" },
    { "no calls, no list", ON STREAM TOOLS, NULL, "t</think>x", DS_END_STOP, "!tool_calls", "!tool_calls" },
    { "cut call", ON TOOLS, NULL,
      "</think>"
      "\n<" D " calls><" D " invoke name=\"f\"><" D " parameter name=\"a\" string=\"true\">x",
      DS_END_LENGTH, NULL, "'arguments':'{\\'a\\': \\'x'\n'finish_reason':'length'" },
    { "usage on the last chunk", ON STREAM, NULL, "t</think>\x1fx", DS_END_STOP,
      "'finish_reason':'stop'}],'usage':{'prompt_tokens':20,'completion_tokens':2,'total_tokens':22,'prompt_tokens_details':{'cached_"
      "tokens':12},'completion_tokens_details':{'reasoning_tokens':1},"
      "'prompt_cache_hit_tokens':12,'prompt_cache_miss_tokens':8}}\n!'usage':null" },
    { "usage null elsewhere", ON STREAM ",'stream_options':{'include_usage':true}", NULL, "t</think>\x1fx", DS_END_STOP,
      "'finish_reason':null}],'usage':null}\n'finish_reason':'stop'}],'usage':{'prompt\n!'choices':[]" },
    { "usage, OpenAI's shape", ON STREAM ",'stream_options':{'include_usage':true}", "usage_shape=openai", "x", DS_END_STOP,
      "'finish_reason':'stop'}],'usage':null}\n'choices':[],'usage':{'prompt_tokens':20" },
    { "usage, OpenAI's shape, not asked", ON STREAM, "usage_shape=openai", "x", DS_END_STOP, "!usage", "'usage':{'prompt_tokens':20" },
    { "no reasoning tokens when off", OFF, NULL, "x", DS_END_STOP, NULL, "!completion_tokens_details" },
    { "length", OFF STREAM, NULL, "x", DS_END_LENGTH, "'finish_reason':'length'", "'finish_reason':'length'" },
    { "filter", OFF STREAM, NULL, "x", DS_END_CONTENT_FILTER, "'finish_reason':'content_filter'" },
    { "no reason", OFF STREAM, NULL, "x", DS_END_NONE, "'finish_reason':'stop'" },
    { "stop sequence", OFF STREAM ",'stop':['END']", NULL, "a E\x1fND b", DS_END_LENGTH,
      "{'content':'a '}\n'finish_reason':'stop'\n'completion_tokens':2\n!END" },
    { "json mode", OFF STREAM ",'response_format':{'type':'json_object'}", NULL, "So:\n```json\n{'a':1}\n```", DS_END_STOP, NULL,
      "'content':'" },
    { "n", OFF STREAM ",'n':2", NULL, "x" CALLS(CALL("f", "")), DS_END_STOP,
      "'index':0,'delta':{'role'\n'index':1,'delta':{'role'\n'index':0,'delta':{'content':'x\n'index':1,'delta':{'content':'x\n'index':0,'"
      "delta':{'content':''},'logprobs':null,'finish_reason':'stop'}]}\n"
      "'index':1,'delta':{'content':''},'logprobs':null,'finish_reason':'stop'}],'usage':{'prompt_tokens':20,'completion_tokens':2",
      "{'index':0,'message'\n{'index':1,'message'\n'completion_tokens':2" },
    { "n with calls", OFF STREAM TOOLS ",'n':2", NULL, CALLS(CALL("f", "")), DS_END_STOP, "'id':'call_R_0'\n'id':'call_R_1_0'" },
    { "one call only", OFF STREAM TOOLS ",'parallel_tool_calls':false", NULL, CALLS(CALL("f", "") CALL("f", "")), DS_END_LENGTH,
      "'id':'call_R_0'\n'finish_reason':'tool_calls'\n!call_R_1" },
    { "legacy functions", OFF STREAM ",'functions':[{'name':'f','parameters':{'type':'object','properties':{}}}]", NULL,
      CALLS(CALL("f", STR("a", "x"))), DS_END_STOP,
      "{'function_call':{'name':'f','arguments':''}}\n{'function_call':{'arguments':'{\\'a\\': "
      "\\'x\\'}'}}\n'finish_reason':'function_call'",
      "'function_call':{'name':'f','arguments':'{\\'a\\': \\'x\\'}'}\n!tool_calls" },
    { "custom tool", OFF STREAM ",'tools':[{'type':'custom','custom':{'name':'p','description':'d'}}]", NULL,
      CALLS(CALL("p", STR("input", "a\nb"))), DS_END_STOP,
      "{'tool_calls':[{'index':0,'id':'call_R_0','type':'custom','custom':{'name':'p','input':''}}]}\n{'tool_calls':[{'index':0,'custom':{'"
      "input':'a\\nb'}}]}",
      "{'id':'call_R_0','type':'custom','custom':{'name':'p','input':'a\\nb'}}" },
    { "choice none hides markup", OFF STREAM TOOLS ",'tool_choice':'none'", NULL, "x" CALLS(CALL("f", "")) "y", DS_END_STOP,
      "{'content':'x'}\n'finish_reason':'stop'\n!DSML", "'content':'x'" },
    { "separators are escaped", OFF STREAM, NULL,
      "a\xe2\x80\xa8"
      "b\xc2\x85",
      DS_END_STOP, "'content':'a\\u2028b\\u0085'", "'content':'a\\u2028b\\u0085'" },
    { "coercion", OFF TOOLS, "schema_coercion=true", CALLS(CALL("f", STR("a", "1"))), DS_END_STOP, NULL, "{\\'a\\': 1}" },
    { "wrapper", OFF TOOLS, "wrapper_repair=true", CALLS(CALL("f", RAW("arguments", "{\"a\": 1}"))), DS_END_STOP, NULL,
      "'arguments':'{\\'a\\': 1}'" },
};

static void chat(void **state)
{
    (void)state;
    RUN_RESPOND(DS_PROTO_CHAT, cases);
}

static const respond_case legacy[] = {
    { "text is not parsed", "'prompt':'p','stream':true", NULL, "\n</think>" CALLS("x") "\x1fy", DS_END_STOP,
      "{'id':'R','object':'text_completion','created':7,'model':'m','system_fingerprint':null,'choices':[{'text':'\\n</"
      "think>\n,'index':0,'logprobs':null,'finish_reason':null}]}\n"
      "{'text':'y'\n{'text':'','index':0,'logprobs':null,'finish_reason':'stop'}],'usage':{'prompt_tokens':20",
      "'object':'text_completion'\n{'text':'\\n</think>\n'finish_reason':'stop'}],'usage'" },
    { "stop", "'prompt':'p','stop':'END'", NULL, "one END two", DS_END_STOP, NULL, "{'text':'one ','index':0" },
    { "echo", "'prompt':'say: ','echo':true,'stream':true", NULL, "x", DS_END_STOP, "{'text':'say: '\n{'text':'x'", "{'text':'say: x'" },
    { "prompts and n", "'prompt':['p','q'],'n':2,'stream':true", NULL, "x", DS_END_LENGTH, "'index':3\n'usage':{",
      "'index':0\n'index':1\n'index':2\n'index':3,'logprobs':null,'finish_reason':'length'\n'completion_tokens':4" },
    { "usage asked", "'prompt':'p','stream':true,'stream_options':{'include_usage':true}", NULL, "x", DS_END_STOP,
      "'usage':null\n'usage':{" },
};

static void completions(void **state)
{
    (void)state;
    RUN_RESPOND(DS_PROTO_COMPLETIONS, legacy);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(chat), cmocka_unit_test(completions) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
