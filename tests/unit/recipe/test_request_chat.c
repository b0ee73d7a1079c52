/* Chat Completions, row by row of the recipe's table 4.2, with the common rules of 4.1. */
#include "request_test.h"

#define U "'messages':[{'role':'user','content':'q'}]"
#define M "'model':'m'," U
#define ALONE "<｜User｜>q<｜Assistant｜><think>"
#define TOOL "{'type':'function','function':{'name':'f','description':'d','parameters':{'type':'object'}}}"
#define OFF "'thinking':{'type':'disabled'}"
#define MSGS(x) "{'model':'m','messages':[" x "]}"
#define EFFORT_LINE(n) \
    "<｜begin▁of▁sentence｜><｜System｜>Reasoning Effort: " n " (range 1-100, the higher the value, the more thorough the reasoning)\n\n"

/* clang-format off */
static const request_case body_cases[] = {
    { "empty body", "", NULL, "", "empty" },
    { "syntax", "{bad", NULL, "", "line 1, column 2" },
    { "array", "[]", NULL, "", "object" },
    { "surrogate", "{'model':'\\ud83d'}", NULL, "", "surrogate" },
    { "NUL is text", "{'model':'m','messages':[{'role':'user','content':'a\\u0000'}]}", "", NULL, NULL },
    { "unknown field", "{" M ",'foo':[1]}", ALONE, NULL, NULL },
    { "null is absent", "{" M ",'temperature':null,'stop':null,'tools':null,'n':null}", ALONE, NULL, NULL },
    { "duplicate: last wins", "{" M ",'temperature':9,'temperature':1}", ALONE, NULL, NULL },
    { "model missing: the served one", "{" U "}", ALONE, NULL, NULL },
    { "model type", "{'model':1," U "}", NULL, "model", "string" },
    { "model empty", "{'model':''," U "}", NULL, "model", "empty" },
    { "messages missing", "{'model':'m'}", NULL, "messages", "missing" },
    { "messages type", "{'model':'m','messages':{}}", NULL, "messages", "array" },
    { "messages empty", "{'model':'m','messages':[]}", NULL, "messages", "empty" },
    { "message type", MSGS("1"), NULL, "messages[0]", "object" },
};

static const request_case sampling_cases[] = {
    { NULL, "{" M ",'temperature':0}", ALONE, NULL, NULL },
    { NULL, "{" M ",'temperature':2}", ALONE, NULL, NULL },
    { NULL, "{" M ",'temperature':2.1}", NULL, "temperature", "[0, 2]" },
    { NULL, "{" M ",'temperature':-0.1}", NULL, "temperature", NULL },
    { NULL, "{" M ",'temperature':'x'}", NULL, "temperature", "number" },
    { NULL, "{" M ",'temperature':1e400}", NULL, "temperature", "1e400 is too large" },
    { NULL, "{" M ",'max_tokens':1.0}", NULL, "max_tokens", "expected an integer, got 1.0" },
    { NULL, "{" M ",'max_tokens':'1'}", NULL, "max_tokens", "expected an integer, got string" },
    { NULL, "{" M ",'seed':9223372036854775808}", NULL, "seed", "9223372036854775808 does not fit" },
    { "types before the model", "{'temperature':'x','messages':[{'role':'user','content':'q'}]}", NULL, "temperature", "number" },
    { "the model before ranges", "{'model':'','temperature':9,'messages':[{'role':'user','content':'q'}]}", NULL, "model", "empty" },
    { NULL, "{" M ",'top_p':1}", ALONE, NULL, NULL },
    { NULL, "{" M ",'top_p':0}", NULL, "top_p", "(0, 1]" },
    { NULL, "{" M ",'top_p':1.1}", NULL, "top_p", NULL },
    { NULL, "{" M ",'max_tokens':0}", NULL, "max_tokens", "positive" },
    { NULL, "{" M ",'max_tokens':-5}", NULL, "max_tokens", NULL },
    { NULL, "{" M ",'max_tokens':1.5}", NULL, "max_tokens", "integer" },
    { NULL, "{" M ",'max_completion_tokens':0}", NULL, "max_completion_tokens", NULL },
    { NULL, "{" M ",'frequency_penalty':2.5}", NULL, "frequency_penalty", "[-2, 2]" },
    { NULL, "{" M ",'presence_penalty':-3}", NULL, "presence_penalty", NULL },
    { NULL, "{" M ",'presence_penalty':-2,'frequency_penalty':2}", ALONE, NULL, NULL },
    { NULL, "{" M ",'seed':-1}", ALONE, NULL, NULL },
    { NULL, "{" M ",'seed':9223372036854775808}", NULL, "seed", NULL },
    { NULL, "{" M ",'seed':'1'}", NULL, "seed", NULL },
    { NULL, "{" M ",'n':128}", ALONE, NULL, NULL },
    { NULL, "{" M ",'n':0}", NULL, "n", "[1, 128]" },
    { NULL, "{" M ",'n':129}", NULL, "n", NULL },
    { NULL, "{" M ",'stop':'a'}", ALONE, NULL, NULL },
    { NULL, "{" M ",'stop':['a','']}", ALONE, NULL, NULL },
    { NULL, "{" M ",'stop':['1','2','3','4','5','6','7','8','9','0','1','2','3','4','5','6','7']}", NULL, "stop", "16" },
    { NULL, "{" M ",'stop':[1]}", NULL, "stop[0]", "string" },
    { NULL, "{" M ",'stop':1}", NULL, "stop", NULL },
    { NULL, "{" M ",'logprobs':true,'top_logprobs':20}", ALONE, NULL, NULL },
    { NULL, "{" M ",'logprobs':true,'top_logprobs':21}", NULL, "top_logprobs", "20" },
    { NULL, "{" M ",'top_logprobs':2}", NULL, "top_logprobs", "logprobs" },
    { NULL, "{" M ",'logprobs':1}", NULL, "logprobs", "true or false" },
    { NULL, "{" M ",'logit_bias':{'12':-100,'7':5.5}}", ALONE, NULL, NULL },
    { NULL, "{" M ",'logit_bias':{'12':101}}", NULL, "logit_bias.12", "100" },
    { NULL, "{" M ",'logit_bias':{'x':1}}", NULL, "logit_bias", "token id" },
    { NULL, "{" M ",'stream':true,'stream_options':{'include_usage':true}}", ALONE, NULL, NULL },
    { NULL, "{" M ",'stream_options':{'include_usage':true}}", NULL, "stream_options", "stream" },
    { NULL, "{" M ",'stream':'yes'}", NULL, "stream", NULL },
    { NULL, "{" M ",'parallel_tool_calls':1}", NULL, "parallel_tool_calls", NULL },
    /* ignored */
    { NULL, "{" M ",'user':'u','user_id':'x y','metadata':{'a':1},'store':true,'service_tier':'x','prompt_cache_key':'k','verbosity':'low'}", ALONE, NULL, NULL },
    { NULL, "{" M ",'modalities':['text'],'prediction':{},'prompt_cache_retention':'24h','safety_identifier':'s'}", ALONE, NULL, NULL },
    { NULL, "{" M ",'modalities':['text','audio']}", NULL, "modalities[1]", NULL },
    { NULL, "{" M ",'audio':{'voice':'x'}}", NULL, "audio", "not supported" },
    /* order of checks: types, model, sampling, tools, choice, messages, format */
    { "type before range", "{'model':'m','temperature':9,'messages':5}", NULL, "messages", NULL },
    { "model before range", "{'model':'','temperature':9," U "}", NULL, "model", NULL },
    { "range before tools", "{" M ",'tools':[{'type':'function','function':{'name':'a b'}}],'temperature':9}", NULL, "temperature", NULL },
    { "tools before choice", "{" M ",'tool_choice':{'type':'function','function':{'name':'z'}},'tools':[{'type':'function','function':{'name':'a b'}}]}", NULL,
      "tools[0].function.name", NULL },
    { "choice before messages", "{'model':'m','messages':[],'tool_choice':{'type':'function','function':{'name':'z'}}}", NULL, "tool_choice.function.name", NULL },
    { "messages before format", "{'model':'m','messages':[],'response_format':{'type':'json_object'}}", NULL, "messages", NULL },
};

static const request_case thinking_cases[] = {
    { NULL, "{" M "}", EFFORT_LINE("75") ALONE, NULL, NULL },
    { NULL, "{" M ",'thinking':{'type':'enabled','budget_tokens':5}}", ALONE, NULL, NULL },
    { NULL, "{" M ",'thinking':{'type':'adaptive'}}", ALONE, NULL, NULL },
    { NULL, "{" M "," OFF "}", "<｜begin▁of▁sentence｜><｜User｜>q<｜Assistant｜></think>", NULL, NULL },
    { NULL, "{" M "," OFF ",'reasoning_effort':'max'}", "<｜User｜>q<｜Assistant｜></think>", NULL, NULL },
    { NULL, "{" M ",'thinking':{'type':'enabled'},'reasoning_effort':'none'}", EFFORT_LINE("75") ALONE, NULL, NULL },
    { NULL, "{" M ",'thinking':{'type':'on'}}", NULL, "thinking.type", "disabled, enabled, adaptive" },
    { NULL, "{" M ",'thinking':{}}", NULL, "thinking.type", NULL },
    { NULL, "{" M ",'thinking':true}", NULL, "thinking", NULL },
    { NULL, "{" M ",'reasoning_effort':'none'}", "<｜User｜>q<｜Assistant｜></think>", NULL, NULL },
    { NULL, "{" M ",'reasoning_effort':'minimal'}", EFFORT_LINE("50") ALONE, NULL, NULL },
    { NULL, "{" M ",'reasoning_effort':'low'}", EFFORT_LINE("50") ALONE, NULL, NULL },
    { NULL, "{" M ",'reasoning_effort':'medium'}", EFFORT_LINE("75") ALONE, NULL, NULL },
    { NULL, "{" M ",'reasoning_effort':'high'}", EFFORT_LINE("75") ALONE, NULL, NULL },
    { NULL, "{" M ",'reasoning_effort':'xhigh'}", EFFORT_LINE("75") ALONE, NULL, NULL },
    { NULL, "{" M ",'reasoning_effort':'ultra'}", EFFORT_LINE("100") ALONE, NULL, NULL },
    { NULL, "{" M ",'reasoning_effort':'max'}", EFFORT_LINE("100") ALONE, NULL, NULL },
    { NULL, "{" M ",'reasoning_effort':33}", EFFORT_LINE("33") ALONE, NULL, NULL },
    { NULL, "{" M ",'reasoning_effort':101}", NULL, "reasoning_effort", "[1, 100]" },
    { NULL, "{" M ",'reasoning_effort':'hard'}", NULL, "reasoning_effort", "low, medium, high, xhigh, ultra, max, minimal, none" },
    { NULL, "{" M ",'reasoning_effort':'low'}", EFFORT_LINE("25") ALONE, NULL, NULL, "effort_table=25/50/75/100" },
    { NULL, "{" M ",'chat_template_kwargs':{'thinking':false}}", "<｜Assistant｜></think>", NULL, NULL },
    { NULL, "{" M ",'chat_template_kwargs':{'enable_thinking':false,'reasoning_effort':'max'}}", "<｜Assistant｜></think>", NULL, NULL },
    { NULL, "{" M ",'chat_template_kwargs':{'reasoning_effort':'max'}}", EFFORT_LINE("100") ALONE, NULL, NULL },
    { NULL, "{" M ",'extra_body':{'thinking':{'type':'disabled'}}}", "<｜Assistant｜></think>", NULL, NULL },
};

static const request_case tool_cases[] = {
    { NULL, "{" M ",'tools':[]}", ALONE, NULL, NULL },
    { NULL, "{" M ",'tools':{}}", NULL, "tools", "array" },
    { NULL, "{" M ",'tools':[" TOOL "]}",
      "\n{\"name\": \"f\", \"description\": \"d\", \"parameters\": {\"type\": \"object\"}}\n\nYou MUST strictly follow the above defined tool name and "
      "parameter schemas to invoke tool calls.\n" ALONE, NULL, NULL },
    { "bare tool", "{" M ",'tools':[{'type':'function','function':{'name':'f'}}]}",
      "\n{\"name\": \"f\", \"description\": \"\", \"parameters\": {}}\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool "
      "calls.\n" ALONE, NULL, NULL },
    { "no type in the schema", "{" M ",'tools':[{'type':'function','function':{'name':'f','parameters':{}}}]}", ALONE, NULL, NULL },
    { "official schema line", "{" M ",'tools':[{'type':'function','function':{'strict':false,'name':'f'}}]}",
      "\n{\"strict\": false, \"name\": \"f\"}\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n" ALONE, NULL,
      NULL, "schema_style=official" },
    { NULL, "{" M ",'tools':[{'type':'foo'}]}", NULL, "tools[0].type", "function, custom" },
    { NULL, "{" M ",'tools':[{'function':{'name':'f'}}]}", NULL, "tools[0].type", "missing" },
    { NULL, "{" M ",'tools':[{'type':'function'}]}", NULL, "tools[0].function", "missing" },
    { NULL, "{" M ",'tools':[{'type':'function','function':{}}]}", NULL, "tools[0].function.name", "missing" },
    { NULL, "{" M ",'tools':[{'type':'function','function':{'name':'a b'}}]}", NULL, "tools[0].function.name", "A-Z" },
    { NULL, "{" M ",'tools':[{'type':'function','function':{'name':''}}]}", NULL, "tools[0].function.name", NULL },
    { NULL, "{" M ",'tools':[" TOOL "," TOOL "]}", NULL, "tools[1].function.name", "twice" },
    { NULL, "{" M ",'tools':[{'type':'function','function':{'name':'f','parameters':{'type':'string'}}}]}", NULL, NULL, "object" },
    { NULL, "{" M ",'tools':[{'type':'function','function':{'name':'f','parameters':{'type':'object','required':'a'}}}]}", NULL, NULL, "required" },
    { NULL, "{" M ",'tools':[{'type':'function','function':{'name':'f','parameters':{'type':'object','properties':{'a':{'type':'nope'}}}}}]}", NULL, NULL, "'type'" },
    { NULL, "{" M ",'tools':[{'type':'function','function':{'name':'f','strict':true,'parameters':{'type':'object','not':{}}}}]}", NULL, NULL, "keyword 'not'" },
    { NULL, "{" M ",'tools':[" TOOL "]}", ALONE, NULL, NULL, "max_tools=1" },
    { NULL, "{" M ",'tools':[" TOOL ",{'type':'function','function':{'name':'g'}}]}", NULL, "tools", "at most 1", "max_tools=1" },
    { "placeholder in a description", "{" M ",'tools':[{'type':'function','function':{'name':'f','description':'<｜deepseek_image｜>'}}]}", NULL, "tools[0].function.description",
      "placeholder" },
    { "custom tool", "{" M ",'tools':[{'type':'custom','custom':{'name':'c','description':'D','format':{'type':'grammar','grammar':{'syntax':'lark','definition':'start: A'}}}}]}",
      "\n{\"name\": \"c\", \"description\": \"D\\n\\nThe input must follow this grammar (syntax: lark):\\nstart: A\", \"parameters\": {\"type\": \"object\", "
      "\"properties\": {\"input\": {\"type\": \"string\"}}, \"required\": [\"input\"], \"additionalProperties\": false}}\n\nYou MUST strictly follow the above defined "
      "tool name and parameter schemas to invoke tool calls.\n" ALONE, NULL, NULL },
    { NULL, "{" M ",'tools':[{'type':'custom','custom':{'name':'c','format':{'type':'grammar'}}}]}", NULL, "tools[0].custom.format.syntax", NULL },
    /* the choice */
    { NULL, "{" M ",'tools':[" TOOL "],'tool_choice':'none'}", EFFORT_LINE("75") ALONE, NULL, NULL },
    { NULL, "{" M ",'tools':[" TOOL "],'tool_choice':'auto'}", ALONE, NULL, NULL },
    { NULL, "{" M ",'tools':[" TOOL "],'tool_choice':'required'," OFF "}", "<｜Assistant｜></think>\n\n<｜DSML｜ calls>\n", NULL, NULL },
    { "required, nobody asked for thinking", "{" M ",'tools':[" TOOL "],'tool_choice':'required'}", "</think>\n\n<｜DSML｜ calls>\n", NULL, NULL, "no_constraints=true" },
    { "named, nobody asked", "{" M ",'tools':[" TOOL "],'tool_choice':{'type':'function','function':{'name':'f'}}}", "</think>\n\n<｜DSML｜ calls>\n", NULL, NULL },
    { "required with thinking", "{" M ",'tools':[" TOOL "],'tool_choice':'required','thinking':{'type':'enabled'}}", ALONE, NULL, NULL },
    { "required with an effort", "{" M ",'tools':[" TOOL "],'tool_choice':'required','reasoning_effort':'low'}", ALONE, NULL, NULL },
    { "required, thinking is the default", "{" M ",'tools':[" TOOL "],'tool_choice':'required'}", ALONE, NULL, NULL, "thinking=on" },
    { "no decoder", "{" M ",'tools':[" TOOL "],'tool_choice':'required','thinking':{'type':'enabled'}}", NULL, "tool_choice", "thinking", "no_constraints=true" },
    { "thinking off by default", "{" M "}", "<｜User｜>q<｜Assistant｜></think>", NULL, NULL, "thinking=off" },
    { "asked for all the same", "{" M ",'reasoning_effort':'high'}", ALONE, NULL, NULL, "thinking=off" },
    { "strict schema, nobody asked", "{" M ",'response_format':{'type':'json_schema','json_schema':{'name':'n','strict':true,'schema':{'type':'object','properties':{},'required':[],'additionalProperties':false}}}}",
      "<｜Assistant｜></think>", NULL, NULL },
    { "strict tool", "{" M ",'tools':[{'type':'function','function':{'name':'f','strict':true,'parameters':{'type':'object','properties':{},'required':[],'additionalProperties':false}}}]}",
      NULL, "tools", "'f' asks for strict", "no_constraints=true" },
    { "strict tool that isn't shown", "{" M ",'tool_choice':'none','tools':[{'type':'function','function':{'name':'f','strict':true,'parameters':{'type':'object','properties':{},'required':[],'additionalProperties':false}}}]}",
      "<｜User｜>q<｜Assistant｜><think>", NULL, NULL, "no_constraints=true" },
    { "required without tools", "{" M ",'tool_choice':'required'," OFF "}", "<｜begin▁of▁sentence｜><｜User｜>q<｜Assistant｜></think>", NULL, NULL },
    { NULL, "{" M ",'tools':[" TOOL "],'tool_choice':'foo'}", NULL, "tool_choice", "none, auto, required" },
    { NULL, "{" M ",'tools':[" TOOL "],'tool_choice':1}", NULL, "tool_choice", NULL },
    { NULL, "{" M ",'tools':[" TOOL "],'tool_choice':{'type':'function','function':{'name':'g'}}}", NULL, "tool_choice.function.name", "'g'" },
    { "named keeps that tool", "{" M "," OFF ",'tools':[{'type':'function','function':{'name':'g'}}," TOOL "],'tool_choice':{'type':'function','function':{'name':'f'}}}",
      "Schemas\n\n{\"name\": \"f\", \"description\": \"d\", \"parameters\": {\"type\": \"object\"}}\n\nYou MUST strictly follow the above defined tool name and "
      "parameter schemas to invoke tool calls.\n<｜User｜>q<｜Assistant｜></think>\n\n<｜DSML｜ calls>\n", NULL, NULL },
    { "allowed tools",
      "{" M "," OFF ",'tools':[{'type':'function','function':{'name':'g'}}," TOOL
      "],'tool_choice':{'type':'allowed_tools','allowed_tools':{'mode':'auto','tools':[{'type':'function','function':{'name':'f'}}]}}}",
      "Schemas\n\n{\"name\": \"f\", \"description\": \"d\", \"parameters\": {\"type\": \"object\"}}\n\nYou MUST strictly follow the above defined tool name and "
      "parameter schemas to invoke tool calls.\n<｜User｜>q<｜Assistant｜></think>", NULL, NULL },
    /* legacy functions */
    { NULL, "{" M ",'functions':[{'name':'f'}],'function_call':'none'}", EFFORT_LINE("75") ALONE, NULL, NULL },
    { NULL, "{" M "," OFF ",'functions':[{'name':'f'}],'function_call':{'name':'f'}}", "</think>\n\n<｜DSML｜ calls>\n", NULL, NULL },
    { NULL, "{'model':'m'," OFF ",'messages':[{'role':'user','content':'q'},{'role':'assistant','content':null,'function_call':{'name':'f','arguments':'{}'}},"
            "{'role':'function','name':'f','content':'r'}]}",
      "<｜Assistant｜></think>\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n\n</｜DSML｜ invoke>\n</｜DSML｜ calls><｜end▁of▁sentence｜><｜User｜>"
      "<tool_result>r</tool_result><｜Assistant｜></think>", NULL, NULL },
};

static const request_case format_cases[] = {
    { NULL, "{" M ",'response_format':{'type':'text'}}", EFFORT_LINE("75") ALONE, NULL, NULL },
    { NULL, "{" M ",'response_format':{'type':'json_object'}}", NULL, "response_format.type", "json" },
    { NULL, "{'model':'m','messages':[{'role':'user','content':'as JSoN'}],'response_format':{'type':'json_object'}}",
      "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n{\"type\": \"json_object\"}<｜User｜>as JSoN<｜Assistant｜><think>", NULL, NULL },
    { NULL, "{" M ",'response_format':{'type':'json_schema','json_schema':{'name':'x','schema':{'type':'object','a':[1.50,1e-7]}}}}",
      "reply:\n{\"type\": \"object\", \"a\": [1.5, 1e-07]}" ALONE, NULL, NULL },
    { NULL, "{" M ",'response_format':{'type':'json_schema'}}", NULL, "response_format.json_schema", "missing" },
    { NULL, "{" M ",'response_format':{'type':'json_schema','json_schema':{'name':'x'}}}", NULL, "response_format.json_schema.schema", NULL },
    { NULL, "{" M ",'response_format':{'type':'json_schema','json_schema':{'strict':true,'schema':{'type':'object','patternProperties':{}}}}}", NULL,
      "response_format.json_schema.schema", "patternProperties" },
    { NULL, "{" M ",'response_format':{'type':'json_schema','json_schema':{'strict':true,'schema':{'type':'string','format':'uri'}}}}", NULL, NULL, "format 'uri'" },
    { NULL, "{" M ",'response_format':{'type':'json_schema','json_schema':{'schema':{'type':'object','minProperties':1}}}}", ALONE, NULL, NULL },
    { NULL, "{" M ",'response_format':{'type':'regex','regex':'a'}}", NULL, "response_format.type", "regex" },
    { NULL, "{" M ",'response_format':{'type':'regex','regex':'a'}}", EFFORT_LINE("75") ALONE, NULL, NULL, "allow_regex=true" },
    { NULL, "{" M ",'response_format':{'type':'xml'}}", NULL, "response_format.type", "text, json_object, json_schema" },
    { NULL, "{" M ",'response_format':'json'}", NULL, "response_format", "object" },
};

#define A(x) "{'role':'user','content':'q'},{'role':'assistant'," x "}"
#define CALL(id, args) "{'id':'" id "','type':'function','function':{'name':'f','arguments':" args "}}"
#define RESULT(id) "{'role':'tool','tool_call_id':'" id "','content':'r" id "'}"

static const request_case message_cases[] = {
    { NULL, MSGS("{'role':'foo','content':'x'}"), NULL, "messages[0].role", "system, developer, user, assistant, tool, latest_reminder, function" },
    { NULL, MSGS("{'content':'x'}"), NULL, "messages[0].role", "missing" },
    { "system", MSGS("{'role':'system','content':'s'},{'role':'user','content':'q'}"), EFFORT_LINE("75") "s" ALONE, NULL, NULL },
    { "system blocks", MSGS("{'role':'system','content':[{'type':'text','text':'a'},{'type':'text','text':'b'}]},{'role':'user','content':'q'}"),
      "\n\na\n\nb" ALONE, NULL, NULL },
    { "system empty", "{'model':'m'," OFF ",'messages':[{'role':'system','content':''},{'role':'user','content':'q'}]}",
      "<｜begin▁of▁sentence｜><｜User｜>q<｜Assistant｜></think>", NULL, NULL },
    { "two systems", MSGS("{'role':'system','content':'a'},{'role':'system','content':'b'},{'role':'user','content':'q'}"), "\n\na<｜System｜>b" ALONE, NULL, NULL },
    { "later system", MSGS("{'role':'user','content':'q'},{'role':'system','content':'b'}"), "<｜User｜>q<｜System｜>b<｜Assistant｜><think>", NULL, NULL },
    { "developer is system", MSGS("{'role':'developer','content':'d'},{'role':'user','content':'q'}"), "\n\nd" ALONE, NULL, NULL },
    { "system image", MSGS("{'role':'system','content':[{'type':'image_url','image_url':{'url':'http://x/'}}]}"), NULL, "messages[0].content[0].type", "text" },
    { "user missing content", MSGS("{'role':'user'}"), NULL, "messages[0].content", "missing" },
    { "user null content", MSGS("{'role':'user','content':null}"), NULL, "messages[0].content", NULL },
    { "user number", MSGS("{'role':'user','content':5}"), NULL, "messages[0].content", "string" },
    { "user empty list", MSGS("{'role':'user','content':[]}"), "<｜User｜><｜Assistant｜><think>", NULL, NULL },
    { "user blocks", MSGS("{'role':'user','content':[{'type':'text','text':'a'},{'type':'text','text':'b'}]}"), "<｜User｜>a\n\nb<｜Assistant｜><think>", NULL, NULL },
    { "users merge", MSGS("{'role':'user','content':'a'},{'role':'user','content':'b'}"), "<｜User｜>a\n\nb<｜Assistant｜><think>", NULL, NULL },
    { "block without type", MSGS("{'role':'user','content':[{'text':'a'}]}"), NULL, "messages[0].content[0].type", "missing" },
    { "block without text", MSGS("{'role':'user','content':[{'type':'text'}]}"), NULL, "messages[0].content[0].text", "missing" },
    { "audio", MSGS("{'role':'user','content':[{'type':'input_audio'}]}"), NULL, "messages[0].content[0].type", "text, image_url, file" },
    { "video", MSGS("{'role':'user','content':[{'type':'video_url'}]}"), NULL, "messages[0].content[0].type", NULL },
    { "image", MSGS("{'role':'user','content':[{'type':'image_url','image_url':{'url':'https://x/a.png','detail':'low'}},{'type':'text','text':'q'}]}"),
      "<｜User｜><｜deepseek_image｜>\n\nq<｜Assistant｜><think>", NULL, NULL },
    { "image as string", MSGS("{'role':'user','content':[{'type':'image_url','image_url':'HTTP://x/a.png'}]}"), "<｜deepseek_image｜><｜Assistant｜><think>", NULL, NULL },
    { "image detail", MSGS("{'role':'user','content':[{'type':'image_url','image_url':{'url':'https://x/','detail':'huge'}}]}"), NULL,
      "messages[0].content[0].image_url.detail", "low, high, original, auto" },
    { "image scheme", MSGS("{'role':'user','content':[{'type':'image_url','image_url':{'url':'ftp://x/'}}]}"), NULL, "messages[0].content[0].image_url.url", NULL },
    { "image type", MSGS("{'role':'user','content':[{'type':'image_url','image_url':{'url':'data:image/tiff;base64,AA=='}}]}"), NULL,
      "messages[0].content[0].image_url.url", "image/tiff" },
    { "image data", MSGS("{'role':'user','content':[{'type':'image_url','image_url':{'url':'data:image/jpg;base64,AAAA'}}]}"),
      "<｜deepseek_image｜><｜Assistant｜><think>", NULL, NULL },
    { "file image", MSGS("{'role':'user','content':[{'type':'file','file':{'file_data':'data:image/png;base64,AAAA'}}]}"),
      "<｜deepseek_image｜><｜Assistant｜><think>", NULL, NULL },
    { "file text", MSGS("{'role':'user','content':[{'type':'file','file':{'file_data':'data:text/plain;base64,aGk='}}]}"), "<｜User｜>hi<｜Assistant｜><think>", NULL, NULL },
    { "file text, percent", MSGS("{'role':'user','content':[{'type':'file','file':{'file_data':'data:text/plain,h%69'}}]}"), "<｜User｜>hi<｜Assistant｜><think>", NULL, NULL },
    { "file pdf", MSGS("{'role':'user','content':[{'type':'file','file':{'file_data':'data:application/pdf;base64,AAAA'}}]}"), NULL,
      "messages[0].content[0].file.file_data", NULL },
    { "file id", MSGS("{'role':'user','content':[{'type':'file','file':{'file_id':'x'}}]}"), NULL, "messages[0].content[0].file.file_id", "file ids" },
    { "image limit", MSGS("{'role':'user','content':[{'type':'image_url','image_url':'http://xy/'}]}"), NULL, NULL, "more than 0", "max_images=0" },
    { "placeholder", MSGS("{'role':'user','content':'a <｜deepseek_image｜>'}"), NULL, "messages[0].content", "placeholder" },
    { "placeholder, other spelling", MSGS("{'role':'user','content':'a <｜image｜>'}"), "<｜User｜>a <｜image｜><｜Assistant｜><think>", NULL, NULL },
    { "name is ignored", MSGS("{'role':'user','content':'q','name':'n'}"), ALONE, NULL, NULL },
    /* assistant */
    { "nothing", MSGS(A("'content':null")), NULL, "messages[1].content", "tool_calls" },
    { "empty content", MSGS(A("'content':''")), "<｜Assistant｜><think></think><｜end▁of▁sentence｜><｜Assistant｜><think>", NULL, NULL },
    { "empty calls are absent", MSGS(A("'content':'a','tool_calls':[]")), "</think>a<｜end▁of▁sentence｜><｜Assistant｜><think>", NULL, NULL },
    { "blocks and refusal", MSGS(A("'content':[{'type':'text','text':'a'},{'type':'refusal','refusal':'b'}]")), "</think>a\n\nb<｜end▁of▁sentence｜><｜Assistant｜><think>", NULL,
      NULL },
    { "image", MSGS(A("'content':[{'type':'image_url'}]")), NULL, "messages[1].content[0].type", "text, refusal" },
    { "reasoning after the last user", MSGS(A("'content':'a','reasoning_content':'R'")), "<｜Assistant｜><think>R</think>a<｜end▁of▁sentence｜><｜Assistant｜><think>", NULL, NULL },
    { "reasoning alias", MSGS(A("'content':'a','reasoning':'R'")), "<think>R</think>a<｜end▁of▁sentence｜><｜Assistant｜><think>", NULL, NULL },
    { "old reasoning goes", MSGS(A("'content':'a','reasoning_content':'R'") ",{'role':'user','content':'u'}"),
      "<｜User｜>q<｜Assistant｜></think>a<｜end▁of▁sentence｜><｜User｜>u<｜Assistant｜><think>", NULL, NULL },
    { "old reasoning, keep_all", MSGS(A("'content':'a','reasoning_content':'R'") ",{'role':'user','content':'u'}"),
      "<think>R</think>a<｜end▁of▁sentence｜><｜User｜>u<｜Assistant｜><think>", NULL, NULL, "keep_all=true" },
    { "old reasoning with tools", "{'model':'m','tools':[" TOOL "],'messages':[" A("'content':'a','reasoning_content':'R'") ",{'role':'user','content':'u'}]}",
      "<think>R</think>a<｜end▁of▁sentence｜><｜User｜>u<｜Assistant｜><think>", NULL, NULL },
    { "old reasoning with hidden tools",
      "{'model':'m','tools':[" TOOL "],'tool_choice':'none','messages':[" A("'content':'a','reasoning_content':'R'") ",{'role':'user','content':'u'}]}",
      "<think>R</think>a<｜end▁of▁sentence｜><｜User｜>u<｜Assistant｜><think>", NULL, NULL },
    { "old reasoning with tools, drop_all", "{'model':'m','tools':[" TOOL "],'messages':[" A("'content':'a','reasoning_content':'R'") ",{'role':'user','content':'u'}]}",
      "<｜Assistant｜></think>a<｜end▁of▁sentence｜><｜User｜>u<｜Assistant｜><think>", NULL, NULL, "drop_all=true" },
    { "reasoning required", "{'model':'m','tools':[" TOOL "],'messages':[" A("'content':'a'") "]}", NULL, "messages[1].reasoning_content", NULL, "require_reasoning=true" },
    { "thinking off ignores it", "{'model':'m'," OFF ",'messages':[" A("'content':'a','reasoning_content':'R'") "]}",
      "<｜Assistant｜></think>a<｜end▁of▁sentence｜><｜Assistant｜></think>", NULL, NULL },
    /* prefix */
    { "prefix", MSGS(A("'content':'x','prefix':true")), "<｜User｜>q<｜Assistant｜><think></think>x", NULL, NULL },
    { "prefix with reasoning", MSGS(A("'content':'x','prefix':true,'reasoning_content':'R'")), "<｜Assistant｜><think>R</think>x", NULL, NULL },
    { "prefix of reasoning", MSGS(A("'content':'','prefix':true,'reasoning_content':'R'")), "<｜Assistant｜><think>R", NULL, NULL },
    { "prefix, thinking off", "{'model':'m'," OFF ",'messages':[" A("'content':'x','prefix':true") "]}", "<｜User｜>q<｜Assistant｜></think>x", NULL, NULL },
    { "prefix not last", MSGS(A("'content':'x','prefix':true") ",{'role':'user','content':'u'}"), NULL, "messages[1].prefix", "last" },
    { "prefix of a user", MSGS("{'role':'user','content':'u','prefix':true}"), NULL, "messages[0].prefix", NULL },
    { "prefix and required", "{'model':'m'," OFF ",'tools':[" TOOL "],'tool_choice':'required','messages':[" A("'content':'x','prefix':true") "]}", NULL,
      "messages[1].prefix", "tool_choice" },
    /* calls and results */
    { "call arguments as object", MSGS(A("'tool_calls':[" CALL("1", "{'a':'x','b':[1]}") "]") "," RESULT("1")),
      "<think></think>\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"a\" string=\"true\">x</｜DSML｜ parameter>\n"
      "<｜DSML｜ parameter name=\"b\" string=\"false\">[1]</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls><｜end▁of▁sentence｜><｜User｜>"
      "<tool_result>r1</tool_result><｜Assistant｜><think>", NULL, NULL },
    { "arguments that are no object", MSGS(A("'tool_calls':[" CALL("1", "'no'") "]") "," RESULT("1")),
      "<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"arguments\" string=\"true\">no</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>"
      "<｜end▁of▁sentence｜><｜User｜><tool_result>r1</tool_result><｜Assistant｜><think>", NULL, NULL },
    { "blank arguments", MSGS(A("'tool_calls':[" CALL("1", "' '") "]") "," RESULT("1")),
      "<｜DSML｜ invoke name=\"f\">\n\n</｜DSML｜ invoke>\n</｜DSML｜ calls><｜end▁of▁sentence｜><｜User｜><tool_result>r1</tool_result><｜Assistant｜><think>", NULL, NULL },
    { "results in the order of the calls", MSGS(A("'tool_calls':[" CALL("1", "''") "," CALL("2", "''") "]") "," RESULT("2") "," RESULT("1") ",{'role':'user','content':'u'}"),
      "<｜User｜><tool_result>r1</tool_result>\n\n<tool_result>r2</tool_result>\n\nu<｜Assistant｜><think>", NULL, NULL },
    { "result image", MSGS(A("'tool_calls':[" CALL("1", "''") "]") ",{'role':'tool','tool_call_id':'1','content':[{'type':'text','text':'t'},{'type':'image_url','image_url':'http://xy/'}]}"),
      "<tool_result>t\n\n<｜deepseek_image｜></tool_result><｜Assistant｜><think>", NULL, NULL },
    { "custom call", MSGS(A("'tool_calls':[{'id':'1','type':'custom','custom':{'name':'c','input':'x\\ny'}}]") "," RESULT("1")),
      "<｜DSML｜ invoke name=\"c\">\n<｜DSML｜ parameter name=\"input\" string=\"true\">x\ny</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>"
      "<｜end▁of▁sentence｜><｜User｜><tool_result>r1</tool_result><｜Assistant｜><think>", NULL, NULL },
    { "index is ignored", MSGS(A("'tool_calls':[{'index':0,'id':'1','function':{'name':'f','arguments':''}}]") "," RESULT("1")), "", NULL, NULL },
    { "unanswered", MSGS(A("'tool_calls':[" CALL("1", "''") "]")), NULL, "messages[1].tool_calls", "answers '1'" },
    { "interrupted", MSGS(A("'tool_calls':[" CALL("1", "''") "]") ",{'role':'user','content':'u'}," RESULT("1")), NULL, "messages[1].tool_calls", NULL },
    { "answered twice", MSGS(A("'tool_calls':[" CALL("1", "''") "]") "," RESULT("1") "," RESULT("1")), NULL, "messages[3].tool_call_id", "twice" },
    { "unknown id", MSGS(A("'tool_calls':[" CALL("1", "''") "]") "," RESULT("2")), NULL, "messages[2].tool_call_id", "'2'" },
    { "same id twice", MSGS(A("'tool_calls':[" CALL("1", "''") "," CALL("1", "''") "]") "," RESULT("1")), NULL, "messages[1].tool_calls[1].id", "twice" },
    { "tool elsewhere", MSGS("{'role':'user','content':'q'}," RESULT("1")), NULL, "messages[1].role", "follow" },
    { "tool without id", MSGS(A("'tool_calls':[" CALL("1", "''") "]") ",{'role':'tool','content':'r'}"), NULL, "messages[2].tool_call_id", "missing" },
    { "call without id", MSGS(A("'tool_calls':[{'type':'function','function':{'name':'f','arguments':''}}]")), NULL, "messages[1].tool_calls[0].id", "missing" },
    { "call without name", MSGS(A("'tool_calls':[{'id':'1','function':{'arguments':''}}]")), NULL, "messages[1].tool_calls[0].function.name", "missing" },
    { "call without arguments", MSGS(A("'tool_calls':[{'id':'1','function':{'name':'f'}}]")), NULL, "messages[1].tool_calls[0].function.arguments", "missing" },
    { "call type", MSGS(A("'tool_calls':[{'id':'1','type':'x','function':{'name':'f'}}]")), NULL, "messages[1].tool_calls[0].type", "function, custom" },
    { "placeholder in arguments", MSGS(A("'tool_calls':[" CALL("1", "{'a':'<\\uff5cdeepseek_image\\uff5c>'}") "]") "," RESULT("1")), NULL,
      "messages[1].tool_calls[0].function.arguments", "placeholder" },
    /* others */
    { "reminder", MSGS("{'role':'latest_reminder','content':'R'},{'role':'user','content':'q'}"), EFFORT_LINE("75") "<｜latest_reminder｜>R" ALONE, NULL, NULL },
    { "reminder between", MSGS("{'role':'user','content':'a'},{'role':'latest_reminder','content':'R'},{'role':'user','content':'q'}"),
      "<｜User｜>a<｜latest_reminder｜>R" ALONE, NULL, NULL },
    { "task is ignored", MSGS("{'role':'user','content':'q','task':'query'}"), ALONE, NULL, NULL },
    { "task", MSGS("{'role':'user','content':'q','task':'query'}"), "<｜User｜>q<｜query｜>", NULL, NULL, "tasks=true" },
    { "task action", MSGS("{'role':'user','content':'q','task':'action'}"), "<｜User｜>q<｜Assistant｜><think><｜action｜>", NULL, NULL, "tasks=true" },
    { "task answered", MSGS("{'role':'user','content':'q','task':'title'},{'role':'assistant','content':'T'},{'role':'user','content':'u'}"),
      "<｜User｜>q<｜title｜>T<｜end▁of▁sentence｜><｜User｜>u<｜Assistant｜><think>", NULL, NULL, "tasks=true" },
    { "task unknown", MSGS("{'role':'user','content':'q','task':'x'}"), NULL, "messages[0].task", "action, query, authority, domain, title, read_url", "tasks=true" },
};

static const request_case v4_cases[] = {
    { "image", MSGS("{'role':'user','content':[{'type':'image_url','image_url':'http://xy/'}]}"), NULL, "messages[0].content[0].image_url", "no images" },
    { "number as effort", "{" M ",'reasoning_effort':50}", NULL, "reasoning_effort", "V4.1" },
    { "systems join", "{'model':'m'," OFF ",'messages':[{'role':'system','content':'a'},{'role':'system','content':'b'},{'role':'user','content':'q'}]}",
      "<｜begin▁of▁sentence｜>a\n\nb<｜User｜>q<｜Assistant｜></think>", NULL, NULL },
    { "later system", "{'model':'m'," OFF ",'messages':[{'role':'user','content':'q'},{'role':'assistant','content':'a'},{'role':'system','content':'s'}]}",
      "<｜Assistant｜></think>a<｜end▁of▁sentence｜><｜User｜>s<｜Assistant｜></think>", NULL, NULL },
    { "low", "{" M ",'reasoning_effort':'low'}", "<｜begin▁of▁sentence｜><｜User｜>q<｜Assistant｜><think>", NULL, NULL },
    { "high", "{" M "}", "to ensure absolutely no assumption is left unchecked.\n\n" ALONE, NULL, NULL },
    { "max", "{" M ",'reasoning_effort':'max'}", "remains unchecked and no error remains undiscovered.\n\n" ALONE, NULL, NULL },
    { "high, preview", "{" M "}", "<｜begin▁of▁sentence｜>" ALONE, NULL, NULL, "v4_checkpoint=preview" },
    { "max, preview", "{" M ",'reasoning_effort':'max'}", "to ensure absolutely no assumption is left unchecked.\n\n" ALONE, NULL, NULL, "v4_checkpoint=preview" },
    { "required", "{" M "," OFF ",'tools':[" TOOL "],'tool_choice':'required'}", "</think>\n\n<｜DSML｜tool_calls>\n", NULL, NULL },
};

/* clang-format on */
static void chat_body(void **state)
{
    (void)state;
    RUN_CASES(DS_PROTO_CHAT, DS_ENC_V41, body_cases);
}

static void chat_sampling(void **state)
{
    (void)state;
    RUN_CASES(DS_PROTO_CHAT, DS_ENC_V41, sampling_cases);
}

static void chat_thinking(void **state)
{
    (void)state;
    RUN_CASES(DS_PROTO_CHAT, DS_ENC_V41, thinking_cases);
}

static void chat_tools(void **state)
{
    (void)state;
    RUN_CASES(DS_PROTO_CHAT, DS_ENC_V41, tool_cases);
}

static void chat_format(void **state)
{
    (void)state;
    RUN_CASES(DS_PROTO_CHAT, DS_ENC_V41, format_cases);
}

static void chat_messages(void **state)
{
    (void)state;
    RUN_CASES(DS_PROTO_CHAT, DS_ENC_V41, message_cases);
}

static void chat_v4(void **state)
{
    (void)state;
    RUN_CASES(DS_PROTO_CHAT, DS_ENC_V4, v4_cases);
}

static void chat_info(void **state)
{
    static const char body[] =
        "{'model':'M','messages':[{'role':'user','content':'json'}],'temperature':0.5,'top_p':0.9,'top_k':7,'min_p':0.1,'seed':-4,'n':3,"
        "'logprobs':true,'top_logprobs':4,'max_tokens':5,'max_completion_tokens':6,'stop':['','a','b'],'stream':true,'stream_options':{'"
        "include_usage':true},"
        "'logit_bias':{'12':-3},'user':'bob','parallel_tool_calls':false,'frequency_penalty':1,'response_format':{'type':'json_object'},"
        "'tools':[{'type':'function','function':{'name':'f','strict':true,'parameters':{'type':'object'}}}]}";
    ds_request_parse_args args = { .proto = DS_PROTO_CHAT };
    char *text = quoted(body);
    ds_api_error why;
    ds_request *r;
    ds_err err = { 0 };
    const ds_request_info_data *i;

    (void)state;
    assert_ok(ds_request_parse(&r, &args, text, strlen(text), &why, &err));
    i = ds_request_info(r);
    assert_string_equal(i->model.p, "M");
    assert_true(i->sampling.temperature == 0.5 && i->sampling.top_p == 0.9 && i->sampling.min_p == 0.1 &&
                i->sampling.frequency_penalty == 1);
    assert_true(isnan(i->sampling.presence_penalty));
    assert_int_equal(i->sampling.top_k, 7);
    assert_int_equal(i->sampling.seed, -4);
    assert_true(i->sampling.seeded && i->logprobs && i->stream && i->include_usage && i->thinking && i->json_mode && i->parse_tools);
    assert_int_equal(i->n, 3);
    assert_int_equal(i->top_logprobs, 4);
    assert_int_equal(i->max_tokens, 6);
    assert_int_equal(i->n_stop, 2);
    assert_string_equal(i->stop[1].p, "b");
    assert_int_equal(i->logit_bias[0].id, 12);
    assert_string_equal(i->user.p, "bob");
    assert_false(i->parallel_tool_calls);
    assert_false(i->store);
    assert_int_equal(i->start, DS_START_REASONING);
    assert_int_equal(i->constraint.kind, DS_CONSTRAINT_JSON_OBJECT);
    assert_ptr_equal(ds_request_tool(r, "f", 1), &i->tools[0]);
    assert_true(i->tools[0].strict);
    assert_null(ds_request_tool(r, "g", 1));
    ds_request_destroy(r);
    free(text);
}

/* Limits of context and output. */
static void chat_length(void **state)
{
    static const char body[] = "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"q\"}]}";
    static const char limited[] = "{\"model\":\"m\",\"max_tokens\":100,\"messages\":[{\"role\":\"user\",\"content\":\"q\"}]}";
    ds_request_parse_args args = { .proto = DS_PROTO_CHAT };
    ds_api_error why;
    ds_request *r;
    ds_err err = { 0 };
    uint32_t left;

    (void)state;
    assert_ok(ds_request_parse(&r, &args, body, strlen(body), &why, &err));
    assert_int_equal(ds_request_info(r)->max_tokens, 65536);
    assert_int_equal(ds_request_check_length(r, 1048576 - 10, &left, &why), DS_OK);
    assert_int_equal(left, 10);
    assert_int_equal(ds_request_check_length(r, 1048576, &left, &why), DS_E_FORMAT);
    assert_string_equal(why.code, "context_length_exceeded");
    assert_string_equal(why.param, "messages");
    ds_request_destroy(r);
    assert_ok(ds_request_parse(&r, &args, limited, strlen(limited), &why, &err));
    assert_int_equal(ds_request_check_length(r, 1048476, &left, &why), DS_OK);
    assert_int_equal(left, 100);
    assert_int_equal(ds_request_check_length(r, 1048477, &left, &why), DS_OK);
    assert_int_equal(left, 99); /* the answer is what the context leaves */
    assert_int_equal(ds_request_check_length(r, 1048576, &left, &why), DS_E_FORMAT);
    ds_request_destroy(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chat_body),  cmocka_unit_test(chat_sampling), cmocka_unit_test(chat_thinking),
        cmocka_unit_test(chat_tools), cmocka_unit_test(chat_format),   cmocka_unit_test(chat_messages),
        cmocka_unit_test(chat_v4),    cmocka_unit_test(chat_info),     cmocka_unit_test(chat_length),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
