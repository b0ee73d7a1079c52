/* Messages responses, row by row of recipe spec 4.7. */
#include "respond_help.h"

#define ON "'max_tokens':99,'messages':[{'role':'user','content':'hi'}]"
#define OFF ON ",'thinking':{'type':'disabled'}"
#define TOOLS ",'tools':[{'name':'f','input_schema':{'type':'object','properties':{}}}]"

static const respond_case cases[] = {
    { "start", ON, NULL, "", DS_END_STOP,
      "message_start "
      "{'type':'message_start','message':{'id':'R','type':'message','role':'assistant','model':'m','content':[],'stop_reason':null,'stop_"
      "sequence':null,'usage':{'input_tokens':8,"
      "'cache_creation_input_tokens':0,'cache_read_input_tokens':12,'output_tokens':0,'service_tier':'standard'}}}\n"
      "content_block_start {'type':'content_block_start','index':0,'content_block':{'type':'thinking','thinking':'','signature':''}}\nping "
      "{'type':'ping'}\n"
      "signature_delta\ncontent_block_stop {'type':'content_block_stop','index':0}\nmessage_delta\nmessage_stop "
      "{'type':'message_stop'}\n" },
    { "4.10", ON TOOLS, NULL, "think\x1f</think>\x1f\n\nOk\x1f" CALLS(CALL("f", STR("a", "x"))), DS_END_STOP,
      "'index':0,'delta':{'type':'thinking_delta','thinking':'think'}}\n'index':0,'delta':{'type':'signature_delta','signature':'R'}}\n{'"
      "type':'content_block_stop','index':0}\n"
      "'index':1,'content_block':{'type':'text','text':''}}\n'index':1,'delta':{'type':'text_delta','text':'Ok'}}\n{'type':'content_block_"
      "stop','index':1}\n"
      "'index':2,'content_block':{'type':'tool_use','id':'toolu_R_0','name':'f','input':{}}}\n'index':2,'delta':{'type':'input_json_delta',"
      "'partial_json':'{\\'a\\': \\'x\\'}'}}\n"
      "{'type':'content_block_stop','index':2}\nmessage_delta "
      "{'type':'message_delta','delta':{'stop_reason':'tool_use','stop_sequence':null},'usage':{'input_tokens':8,"
      "'cache_creation_input_tokens':0,'cache_read_input_tokens':12,'output_tokens':4,'output_tokens_details':{'thinking_tokens':2},"
      "'service_tier':'standard'}}\nmessage_stop",
      "{'id':'R','type':'message','role':'assistant','model':'m','content':[{'type':'thinking','thinking':'think','signature':'R'},{'type':"
      "'text','text':'Ok'},"
      "{'type':'tool_use','id':'toolu_R_0','name':'f','input':{'a':'x'}}],'stop_reason':'tool_use','stop_sequence':null,'usage':{'input_"
      "tokens':8" },
    { "one ping", ON TOOLS, NULL, "a</think>b" CALLS(CALL("f", "")), DS_END_STOP, "ping\n" },
    { "off: no thinking block, ping after the first block", OFF, NULL, "x", DS_END_STOP,
      "message_start\n'index':0,'content_block':{'type':'text','text':''}}\nping\ntext_delta\n!thinking" },
    { "empty thinking", ON, NULL, "</think>x", DS_END_STOP, NULL,
      "[{'type':'thinking','thinking':'','signature':'R'},{'type':'text','text':'x'}]" },
    { "thinking omitted", "'model':'m','messages':[{'role':'user','content':'q'}],'thinking':{'type':'enabled','display':'omitted'}", NULL,
      "think</think>x", DS_END_STOP,
      "'content_block':{'type':'thinking','thinking':'','signature':''}\n'type':'signature_delta','signature':'R'\n'text_delta','text':'x'"
      "\n"
      "!thinking_delta",
      "[{'type':'thinking','thinking':'','signature':'R'},{'type':'text','text':'x'}]" },
    { "end_turn", OFF, NULL, "x", DS_END_STOP, "'stop_reason':'end_turn'" },
    { "end_turn without a reason", OFF, NULL, "x", DS_END_NONE, "'stop_reason':'end_turn'" },
    { "max_tokens", OFF, NULL, "x", DS_END_LENGTH, "'stop_reason':'max_tokens'" },
    { "refusal", OFF, NULL, "x", DS_END_CONTENT_FILTER, "'stop_reason':'refusal'" },
    { "stop_sequence", OFF ",'stop_sequences':['A','END']", NULL, "x END", DS_END_STOP,
      "'text':'x '\n'stop_reason':'stop_sequence','stop_sequence':'END'", "'stop_reason':'stop_sequence','stop_sequence':'END'" },
    { "cut call", OFF TOOLS, NULL, "\n<" D " calls><" D " invoke name=\"f\"><" D " parameter name=\"a\" string=\"true\">x", DS_END_LENGTH,
      "'partial_json':'{\\'a\\': \\'x'\ncontent_block_stop", "'input':{}" },
    { "numbers in input keep their digits", OFF TOOLS, NULL, CALLS(CALL("f", RAW("a", "12345678901234567890"))), DS_END_STOP, NULL,
      "'input':{'a':12345678901234567890}" },
    { "call without arguments", OFF TOOLS, NULL, CALLS(CALL("f", "")), DS_END_STOP, "'partial_json':'{}'", "'input':{}" },
    { "two calls", OFF TOOLS, NULL, CALLS(CALL("f", "") CALL("f", "")), DS_END_STOP,
      "toolu_R_0\n'content_block_stop','index':0\n'index':1\ntoolu_R_1\n'content_block_stop','index':1" },
    { "one call", OFF TOOLS ",'tool_choice':{'type':'auto','disable_parallel_tool_use':true}", NULL, CALLS(CALL("f", "") CALL("f", "")),
      DS_END_STOP, "toolu_R_0\ntool_use\n!toolu_R_1" },
    { "text after a bad call", OFF TOOLS, NULL, "\n<" D " calls>" CALL("f<", "") CALL("f", ""), DS_END_STOP,
      "'index':0,'content_block':{'type':'text'\n'index':1,'content_block':{'type':'tool_use'" },
};

static void messages(void **state)
{
    (void)state;
    RUN_RESPOND(DS_PROTO_MESSAGES, cases);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(messages) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
