/* Responses: items, events and the response object, row by row of recipe spec 4.5. */
#include "respond_help.h"

#define ON "'input':'hi'"
#define OFF ON ",'reasoning':{'effort':'none'}"
#define TOOLS ",'tools':[{'type':'function','name':'f','parameters':{'type':'object','properties':{}}}]"

static const respond_case cases[] = {
    { "frame", OFF, NULL, "", DS_END_STOP,
      "response.created "
      "{'type':'response.created','sequence_number':0,'response':{'id':'R','object':'response','created_at':7,'model':'m','status':'in_"
      "progress','completed_at':null,'error':null,"
      "'incomplete_details':null,'output':[],'usage':null\nresponse.in_progress "
      "{'type':'response.in_progress','sequence_number':1\nresponse.completed {'type':'response.completed','sequence_number':2\n"
      "'status':'completed','completed_at':7\n'output':[],'usage':{'input_tokens':20,'input_tokens_details':{'cached_tokens':12},'output_"
      "tokens':0,'output_tokens_details':{'reasoning_tokens':0},"
      "'total_tokens':20}",
      "'status':'completed','completed_at':7" },
    { "echo", ON ",'instructions':'be','metadata':{'k':'v'},'temperature':0.5,'max_output_tokens':9,'store':false,'user':'u\\u2028'", NULL,
      "", DS_END_STOP,
      "'instructions':'be'\n'max_output_tokens':9\n'metadata':{'k':'v'}\n'parallel_tool_calls':true\n'previous_response_id':null\n'"
      "reasoning':{\n'store':false\n'temperature':0.5\n'text':{\n"
      "'tool_choice':'auto'\n'tools':[]\n'top_p':\n'truncation':'disabled'\n'user':'u\\u2028'" },
    { "4.10", ON TOOLS, NULL, "think\x1f</think>\x1f\n\nOk\x1f" CALLS(CALL("f", STR("a", "x"))), DS_END_STOP,
      "response.output_item.added "
      "{'type':'response.output_item.added','sequence_number':2,'output_index':0,'item':{'type':'reasoning','id':'rs_R_0','status':'in_"
      "progress','summary':[],'content':[]}}\n"
      "response.content_part.added "
      "{'type':'response.content_part.added','sequence_number':3,'item_id':'rs_R_0','output_index':0,'content_index':0,'part':{'type':'"
      "reasoning_text','text':''}}\n"
      "'response.reasoning_text.delta','sequence_number':4,'item_id':'rs_R_0','output_index':0,'content_index':0,'delta':'think'}\n"
      "'response.reasoning_text.done','sequence_number':5,'item_id':'rs_R_0','output_index':0,'content_index':0,'text':'think'}\n"
      "'response.content_part.done','sequence_number':6\n'part':{'type':'reasoning_text','text':'think'}\n"
      "'response.output_item.done','sequence_number':7,'output_index':0,'item':{'type':'reasoning','id':'rs_R_0','status':'completed','"
      "summary':[],'content':[{'type':'reasoning_text','text':'think'}]}}\n"
      "'response.output_item.added','sequence_number':8,'output_index':1,'item':{'type':'message','id':'msg_R_1','status':'in_progress','"
      "role':'assistant','content':[]}}\n"
      "'response.content_part.added'\n'part':{'type':'output_text','annotations':[],'logprobs':[],'text':''}}\n'response.output_text.delta'"
      "\n'delta':'Ok','logprobs':[]}\n'response.output_text.done'\n"
      "'text':'Ok','logprobs':[]}\n'response.content_part.done'\n'response.output_item.done'\n'status':'completed','role':'assistant','"
      "phase':'commentary','content':[{'type':'output_text','annotations':[],"
      "'logprobs':[],'text':'Ok'}]}}\n'response.output_item.added'\n'item':{'type':'function_call','id':'fc_R_2','status':'in_progress','"
      "call_id':'call_R_0','name':'f','arguments':''}}\n"
      "'response.function_call_arguments.delta'\n'item_id':'fc_R_2','output_index':2,'delta':'{\\'a\\': "
      "\\'x\\'}'}\n'response.function_call_arguments.done'\n'arguments':'{\\'a\\': \\'x\\'}','name':'f'}\n"
      "'response.output_item.done'\n'status':'completed','call_id':'call_R_0','name':'f','arguments':'{\\'a\\': "
      "\\'x\\'}'}}\nresponse.completed\n'output':[{'type':'reasoning'\n{'type':'message'\n"
      "{'type':'function_call'\n'output_tokens':4,'output_tokens_details':{'reasoning_tokens':2}",
      "'output':[{'type':'reasoning','id':'rs_R_0'\n'phase':'commentary'\n{'type':'function_call','id':'fc_R_2'" },
    { "final answer", OFF, NULL, "x", DS_END_STOP, "'phase':'final_answer'\n!'phase':'commentary'" },
    { "no empty items", ON, NULL, "\n</think>\n\n", DS_END_STOP, "!output_item", "'output':[]" },
    { "length", OFF, NULL, "x", DS_END_LENGTH,
      "'status':'incomplete','role'\nresponse.incomplete "
      "{\n'status':'incomplete'\n'incomplete_details':{'reason':'max_output_tokens'}\n!response.completed",
      "'status':'incomplete'\n'incomplete_details':{'reason':'max_output_tokens'}" },
    { "filter", OFF, NULL, "x", DS_END_CONTENT_FILTER, "response.incomplete\n'incomplete_details':{'reason':'content_filter'}" },
    { "cut call", OFF TOOLS, NULL, "\n<" D " calls><" D " invoke name=\"f\"><" D " parameter name=\"a\" string=\"true\">x", DS_END_LENGTH,
      "'response.function_call_arguments.done'\n'arguments':'{\\'a\\': "
      "\\'x'\n'response.output_item.done'\n'status':'incomplete'\nresponse.incomplete" },
    { "cut call that the backend calls stop", OFF TOOLS, NULL, "\n<" D " calls><" D " invoke name=\"f\">", DS_END_STOP,
      "'response.output_item.done'\n'status':'incomplete'\nresponse.completed" },
    { "closed call, then length", OFF TOOLS, NULL, CALLS(CALL("f", "")), DS_END_LENGTH,
      "'response.output_item.done'\n'status':'completed'\nresponse.incomplete" },
    { "namespace",
      ON ",'tools':[{'type':'namespace','name':'ns','description':'d','tools':[{'type':'function','name':'g','parameters':{'type':'object',"
         "'properties':{}}}]}]",
      NULL, "</think>" CALLS(CALL("ns::g", "") CALL("ns__g", "") CALL("other::h", "") CALL("plain", "")), DS_END_STOP,
      "'name':'g','namespace':'ns','arguments':''\n'name':'g','namespace':'ns'\n'name':'h','namespace':'other'\n'name':'plain','"
      "arguments'" },
    { "custom tool", ON ",'tools':[{'type':'custom','name':'apply_patch','description':'d'}]", NULL,
      "</think>" CALLS(CALL("apply_patch", STR("input", "*** Begin\n\"x\""))), DS_END_STOP,
      "'item':{'type':'custom_tool_call','id':'ctc_R_0','status':'in_progress','call_id':'call_R_0','name':'apply_patch','input':''}}\n'"
      "response.custom_tool_call_input.delta'\n"
      "'delta':'*** Begin\\n\\'x\\''\n'response.custom_tool_call_input.done'\n'input':'*** "
      "Begin\\n\\'x\\''\n'response.output_item.done'\n'input':'*** Begin\\n\\'x\\''}}" },
    { "custom tool without input", ON ",'tools':[{'type':'custom','name':'p'}]", NULL, "</think>" CALLS(CALL("p", STR("text", "x"))),
      DS_END_STOP, NULL, "'name':'p','input':'{\\'text\\': \\'x\\'}'" },
    { "one call", OFF TOOLS ",'parallel_tool_calls':false", NULL, CALLS(CALL("f", "") CALL("f", "")), DS_END_STOP, "call_R_0\n!call_R_1" },
    { "unknown tool kinds are no error", ON ",'tools':[{'type':'web_search'},{'type':'local_shell'}]", NULL, "</think>x", DS_END_STOP,
      "response.completed" },
};

static void responses(void **state)
{
    (void)state;
    RUN_RESPOND(DS_PROTO_RESPONSES, cases);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(responses) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
