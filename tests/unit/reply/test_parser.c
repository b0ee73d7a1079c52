/* The stream parser rule by rule (recipe spec 3.2 - 3.5a) and the golden vectors of 7.4; each case also at every
 * split. */
#include "parse_help.h"

static unsigned flags_of(void *ctx, const char *name, size_t n)
{
    (void)ctx;
    if (n == 5 && memcmp(name, "patch", 5) == 0)
        return DS_PARSE_DECLARED | DS_PARSE_CUSTOM;
    return n == 1 && (*name == 'f' || *name == 'g') ? DS_PARSE_DECLARED : 0;
}

static int has_key(void *ctx, const char *name, size_t n, const char *key, size_t kn)
{
    if (!flags_of(ctx, name, n))
        return -1;
    return kn == 1 && (*key == 'a' || *key == 'b');
}

#define TOOLS .tools = DS_PARSER_TOOLS_ON
#define THINK .start = DS_PARSER_REASONING, TOOLS
#define PLAIN .start = DS_PARSER_CONTENT, TOOLS
#define CALL_F_1 OPEN "\n" INV("f") "\n" RAW("a", "1") "\n" INV_END "\n" CLOSE

static unsigned key_types(void *ctx, const char *name, size_t n, const char *key, size_t kn)
{
    if (!flags_of(ctx, name, n) || kn != 1)
        return 0;
    return *key == 'i' ? DS_TYPE_INTEGER : *key == 's' ? DS_TYPE_STRING : *key == 'o' ? DS_TYPE_OBJECT | DS_TYPE_NULL : 0;
}

typedef struct {
    const char *what;
    ds_parser_opts o;
    const char *stop; /* "|"-separated */
    ds_backend_end end;
    const char *in, *out;
} row;

static const row rows[] = {
    /* golden vectors, 7.4 */
    { "7.4 reasoning and content", { THINK }, NULL, 0, "plan\n\n</think>\n\nHi ", "R|planC|Hi |stop" },
    { "7.4 raw list",
      { THINK },
      NULL,
      0,
      "plan</think>\n\n" OPEN "\n" INV("f") "\n" RAW("a", "[1, 2]") "\n" INV_END "\n" CLOSE,
      "R|plancall0|f|{\"a\": [1, 2]}||tool_calls" },
    { "7.4 two parameters",
      { THINK },
      NULL,
      0,
      "plan</think>\n\n" OPEN "\n" INV("f") "\n" STR("a", "x\"y") "\n" RAW("b", "true") "\n" INV_END "\n" CLOSE,
      "R|plancall0|f|{\"a\": \"x\\\"y\", \"b\": true}||tool_calls" },
    { "7.4 no parameters",
      { THINK },
      NULL,
      0,
      "plan</think>\n\n" OPEN "\n" INV("f") "\n\n" INV_END "\n" CLOSE,
      "R|plancall0|f|{}||tool_calls" },
    { "7.4 thinking off", { PLAIN }, NULL, 0, "2 <", "C|2 <|stop" },
    { "7.4 stray close", { PLAIN }, NULL, 0, "a</think>b", "C|ab|stop" },
    { "7.4 never closed", { THINK }, NULL, DS_BACKEND_LENGTH, "still thinking", "R|still thinking|length" },
    { "7.4 stop", { PLAIN }, "END", 0, "one END two", "C|one |stop_sequence" },
    /* V4 spelling, V3.2 spelling, required */
    { "V4 tags",
      { PLAIN },
      NULL,
      0,
      "<" D "tool_calls>\n<" D "invoke name=\"f\">\n<" D "parameter name=\"a\" string=\"true\">x</" D "parameter>\n</" D "invoke>\n</" D
      "tool_calls>",
      "call0|f|{\"a\": \"x\"}||tool_calls" },
    { "function_calls", { PLAIN }, NULL, 0, "<" D "function_calls>" INV("f") INV_END "</" D "function_calls>x", "call0|f|{}||tool_calls" },
    { "7 mixed spelling",
      { PLAIN },
      NULL,
      0,
      "<" D " tool_calls><" D "invoke name=\"f\">" STR("a", "x") "</" D " invoke></" D "calls>",
      "call0|f|{\"a\": \"x\"}||tool_calls" },
    { "required", { .start = DS_PARSER_BLOCK, TOOLS }, NULL, 0, "\n" INV("f") "\n" INV_END "\n" CLOSE, "call0|f|{}||tool_calls" },
    /* rule 2 */
    { "2 ordinary <", { PLAIN }, NULL, 0, "a<b </div> <" D " x> <\n\n<", "C|a<b </div> <" D " x> <\n\n<|stop" },
    { "2 newlines pass", { PLAIN }, NULL, 0, "a\n\n\nb\n", "C|a\n\n\nb\n|stop" },
    /* rule 4 */
    { "4 escapes",
      { PLAIN },
      NULL,
      0,
      OPEN INV("f") STR("k\\\n", "a\"b\\c\nd\te\x01\x1f\b\f\r/\x7f\xc3\xa9") INV_END CLOSE,
      "call0|f|{\"k\\\\\\n\": \"a\\\"b\\\\c\\nd\\te\\u0001\\u001f\\b\\f\\r/\x7f\xc3\xa9\"}||tool_calls" },
    /* rule 5 */
    { "5 True",
      { PLAIN },
      NULL,
      0,
      OPEN INV("f") RAW("a", "True") RAW("b", " None") RAW("c", "NaN") RAW("d", "1e999") RAW("e", "") RAW("f", "[1") RAW("g", "-Infinity")
          INV_END CLOSE,
      "call0|f|{\"a\": \"True\", \"b\": \" None\", \"c\": \"NaN\", \"d\": \"1e999\", \"e\": \"\", \"f\": \"[1\", \"g\": "
      "\"-Infinity\"}||tool_calls" },
    { "5 big integer",
      { PLAIN },
      NULL,
      0,
      OPEN INV("f") RAW("a", "123456789012345678901234567890") RAW("b", "1.7976931348623157e308") RAW("c", "1.7976931348623159e308")
          INV_END CLOSE,
      "call0|f|{\"a\": 123456789012345678901234567890, \"b\": 1.7976931348623157e308, \"c\": \"1.7976931348623159e308\"}||tool_calls" },
    { "5 number in a string",
      { PLAIN },
      NULL,
      0,
      OPEN INV("f") STR("a", "42") RAW("b", "\"x\"") INV_END CLOSE,
      "call0|f|{\"a\": \"42\", \"b\": \"x\"}||tool_calls" },
    { "5 no flag",
      { PLAIN },
      NULL,
      0,
      OPEN INV("f") "<" D " parameter name=\"a\">42</" D " parameter><" D " parameter name=\"b\">x y</" D " parameter>" INV_END CLOSE,
      "call0|f|{\"a\": 42, \"b\": \"x y\"}||tool_calls" },
    { "5 bad flag",
      { PLAIN },
      NULL,
      0,
      OPEN INV("f") "<" D " parameter name=\"a\" string=\"yes\">[]</" D " parameter>" INV_END CLOSE,
      "call0|f|{\"a\": []}||tool_calls" },
    { "5 order and spaces",
      { PLAIN },
      NULL,
      0,
      OPEN "<" D " invoke  id=\"7\"  name = \"f\" >\n<" D " parameter\n string=\"true\"   name=\"a\"  >1</" D " parameter>" INV_END CLOSE,
      "call0|f|{\"a\": \"1\"}||tool_calls" },
    { "5 lone surrogate",
      { PLAIN },
      NULL,
      0,
      OPEN INV("f") RAW("a", "\"\\ud83d\"") RAW("b", "\"\\ud83d\\ude00\"") INV_END CLOSE,
      "call0|f|{\"a\": \"\\\"\\\\ud83d\\\"\", \"b\": \"\\ud83d\\ude00\"}||tool_calls" },
    { "5 streamed raw",
      { PLAIN, .stream_raw = true },
      NULL,
      0,
      OPEN INV("f") RAW("a", "nope") INV_END CLOSE,
      "call0|f|{\"a\": nope}||tool_calls" },
    { "5 no coercion",
      { PLAIN, .tool_flags = flags_of, .tool_key_types = key_types },
      NULL,
      0,
      OPEN INV("f") STR("i", "1") RAW("s", "2") INV_END CLOSE,
      "call0|f|{\"i\": \"1\", \"s\": 2}||tool_calls" },
    { "5 coercion",
      { PLAIN, .tool_flags = flags_of, .tool_key_types = key_types, .coerce = true },
      NULL,
      0,
      OPEN INV("f") STR("i", "1") RAW("s", "2") STR("o", "{}") STR("x", "1") INV_END INV("f") STR("i", "1.5") RAW("s", "\"x\"")
          STR("o", "[]") RAW("i", "7") INV_END CLOSE,
      "call0|f|{\"i\": 1, \"s\": \"2\", \"o\": {}, \"x\": \"1\"}|call1|f|{\"i\": \"1.5\", \"s\": \"x\", \"o\": \"[]\"}||tool_calls" },
    /* rule 6 */
    { "6 duplicate",
      { PLAIN },
      NULL,
      0,
      OPEN INV("f") STR("a", "1") STR("a", "2") STR("b", "3") INV_END INV("f") STR("a", "4") INV_END CLOSE,
      "call0|f|{\"a\": \"1\", \"b\": \"3\"}|call1|f|{\"a\": \"4\"}||tool_calls" },
    /* rule 7 */
    { "7 invoke close",
      { PLAIN },
      NULL,
      0,
      OPEN INV("f") "<" D " parameter name=\"a\" string=\"true\">x\n" INV_END "\n" CLOSE,
      "call0|f|{\"a\": \"x\"}||tool_calls" },
    { "7 block close",
      { PLAIN },
      NULL,
      0,
      OPEN INV("f") "<" D " parameter name=\"a\" string=\"true\">x\n\n" CLOSE,
      "call0|f|{\"a\": \"x\\n\"}||tool_calls" },
    { "7 next parameter",
      { PLAIN },
      NULL,
      0,
      OPEN INV("f") "<" D " parameter name=\"a\" string=\"true\">x\n" STR("b", "y\n") INV_END CLOSE,
      "call0|f|{\"a\": \"x\", \"b\": \"y\\n\"}||tool_calls" },
    { "7 other tag is text",
      { PLAIN },
      NULL,
      0,
      OPEN INV("f") STR("a", "</" D " thing><" D " invoke name=\"x\"></" D) INV_END CLOSE,
      "call0|f|{\"a\": \"</" D " thing><" D " invoke name=\\\"x\\\"></" D "\"}||tool_calls" },
    { "7 block close ends call", { PLAIN }, NULL, 0, OPEN INV("f") STR("a", "x") CLOSE, "call0|f|{\"a\": \"x\"}||tool_calls" },
    { "7 invoke opens",
      { PLAIN },
      NULL,
      0,
      OPEN INV("f") STR("a", "x") INV("g") STR("b", "y") INV_END CLOSE,
      "call0|f|{\"a\": \"x\"}|call1|g|{\"b\": \"y\"}||tool_calls" },
    /* rule 8 */
    { "8 off",
      { PLAIN, .tool_flags = flags_of, .tool_has_key = has_key },
      NULL,
      0,
      OPEN INV("f") RAW("arguments", "{\"a\": 1}") INV_END CLOSE,
      "call0|f|{\"arguments\": {\"a\": 1}}||tool_calls" },
    { "8 object",
      { PLAIN, .tool_flags = flags_of, .tool_has_key = has_key, .repair_wrapper = true },
      NULL,
      0,
      OPEN INV("f") RAW("arguments", "{\"a\": 1}") INV_END CLOSE,
      "call0|f|{\"a\": 1}||tool_calls" },
    { "8 text of an object",
      { PLAIN, .tool_flags = flags_of, .tool_has_key = has_key, .repair_wrapper = true },
      NULL,
      0,
      OPEN INV("f") STR("input", " {\"a\": \"x\", \"\\u0062\": 2}\n") INV_END INV("g") RAW("input", "\"{\\\"a\\\": 1}\"") INV_END CLOSE,
      "call0|f|{\"a\": \"x\", \"\\u0062\": 2}|call1|g|{\"a\": 1}||tool_calls" },
    { "8 unknown key",
      { PLAIN, .tool_flags = flags_of, .tool_has_key = has_key, .repair_wrapper = true },
      NULL,
      0,
      OPEN INV("f") RAW("arguments", "{\"z\": 1}") INV_END CLOSE,
      "call0|f|{\"arguments\": {\"z\": 1}}||tool_calls" },
    { "8 no object",
      { PLAIN, .tool_flags = flags_of, .tool_has_key = has_key, .repair_wrapper = true },
      NULL,
      0,
      OPEN INV("f") STR("input", "{\"a\": NaN}") INV_END INV("f") RAW("input", "nope") INV_END CLOSE,
      "call0|f|{\"input\": \"{\\\"a\\\": NaN}\"}|call1|f|{\"input\": \"nope\"}||tool_calls" },
    { "8 not alone",
      { PLAIN, .tool_flags = flags_of, .tool_has_key = has_key, .repair_wrapper = true },
      NULL,
      0,
      OPEN INV("f") RAW("input", "{\"a\": 1}") STR("b", "x") INV_END CLOSE,
      "call0|f|{\"input\": {\"a\": 1}, \"b\": \"x\"}||tool_calls" },
    /* rule 9 */
    { "9 unknown block", { PLAIN }, NULL, 0, "a\n<" D " plan>b", "C|a\n<" D " plan>b|stop" },
    { "9 orphan is content",
      { PLAIN },
      NULL,
      0,
      "a\n" INV("f") STR("a", "x") INV_END "b",
      "C|a\n" INV("f") STR("a", "x") INV_END "b|stop" },
    { "9 orphan recovered",
      { PLAIN, .recover_orphan_invoke = true, .tool_flags = flags_of },
      NULL,
      0,
      "a\n" INV("f") STR("a", "x") INV_END "b",
      "C|acall0|f|{\"a\": \"x\"}|C|b|tool_calls" },
    { "9 newlines after an orphan",
      { PLAIN, .recover_orphan_invoke = true, .tool_flags = flags_of },
      NULL,
      0,
      "\n" INV("f") STR("a", "\nx") INV_END "\n\nb",
      "call0|f|{\"a\": \"\\nx\"}|C|b|tool_calls" },
    { "9 orphan undeclared",
      { PLAIN, .recover_orphan_invoke = true, .tool_flags = flags_of },
      NULL,
      0,
      "a\n" INV("h") "\n" INV("f") INV_END "b",
      "C|a\n" INV("h") "call0|f|{}|C|b|tool_calls" },
    { "9 orphan unclosed",
      { PLAIN, .recover_orphan_invoke = true, .tool_flags = flags_of },
      NULL,
      0,
      "a\n\n" INV("f") STR("a", "x") "b\n",
      "C|a\n\n" INV("f") STR("a", "x") "b\n|stop" },
    /* rule 10 */
    { "10 tools off", { .start = DS_PARSER_CONTENT }, NULL, 0, "a\n\n" CALL_F_1, "C|a\n\n" CALL_F_1 "|stop" },
    { "10 suppressed", { .start = DS_PARSER_CONTENT, .tools = DS_PARSER_TOOLS_SUPPRESS }, NULL, 0, "a\n\n" CALL_F_1 "b", "C|a|stop" },
    { "10 reasoning stays",
      { .start = DS_PARSER_REASONING, .tools = DS_PARSER_TOOLS_SUPPRESS },
      NULL,
      0,
      OPEN "</think>a" OPEN "b",
      "R|" OPEN "C|a|stop" },
    /* rule 11 */
    { "11 implicit end", { THINK }, NULL, 0, "plan\n\n" CALL_F_1, "R|plancall0|f|{\"a\": 1}||tool_calls" },
    { "11 a mention", { THINK }, NULL, 0, "use <" D " or " D " calls>", "R|use <" D " or " D " calls>|stop" },
    { "11 strict", { THINK, .strict_thinking = true }, NULL, 0, "plan\n\n" CALL_F_1 "</think>\nx", "R|plan\n\n" CALL_F_1 "C|x|stop" },
    { "11 duplicate think", { THINK }, NULL, 0, "\n<think>\n\nplan <think></think>x<think>", "R|plan <think>C|x<think>|stop" },
    { "11 nothing", { THINK }, NULL, 0, "\n\n</think>\n\n", "|stop" },
    /* rule 12 */
    { "12 spaces stay", { THINK }, NULL, 0, "\n  plan \n \n</think>\n   x\n  ", "R|  plan \n C|   x\n  |stop" },
    { "12 stray at the start", { PLAIN }, NULL, 0, "\n</think>\n\nx</think>\ny", "C|x\ny|stop" },
    { "12 not in values",
      { PLAIN },
      NULL,
      0,
      "\n" OPEN "\n" INV("f") "\n" STR("a", "\n\nx\n") RAW("b", "\n1") "\n" INV_END,
      "call0|f|{\"a\": \"\\n\\nx\\n\", \"b\": \n1}||tool_calls" },
    { "12 preserved",
      { THINK, .preserve_newlines = true },
      NULL,
      0,
      "\nplan\n</think>\n\nx\n" CALL_F_1,
      "R|\nplan\nC|\n\nx\ncall0|f|{\"a\": 1}||tool_calls" },
    { "12 prefix", { .start = DS_PARSER_CONTENT_PREFIX, TOOLS }, NULL, 0, "\n\nx", "C|\n\nx|stop" },
    { "12 prefix reasoning", { .start = DS_PARSER_REASONING_PREFIX, TOOLS }, NULL, 0, "\n<think>x\n</think>\ny", "R|\n<think>xC|y|stop" },
    /* rule 13 */
    { "13 after the block", { PLAIN }, NULL, 0, CALL_F_1 "\nmore " CALL_F_1, "call0|f|{\"a\": 1}||tool_calls" },
    { "13 end of sentence", { PLAIN }, NULL, 0, "x\n" EOS, "C|x\n|stop" },
    { "13 in the middle", { PLAIN }, NULL, 0, "x" EOS "y", "C|x" EOS "y|stop" },
    { "13 part of it",
      { PLAIN },
      NULL,
      0,
      "x<｜"
      "end",
      "C|x<｜"
      "end|stop" },
    /* rule 14 */
    { "14 cut value",
      { PLAIN },
      NULL,
      DS_BACKEND_LENGTH,
      OPEN INV("f") "<" D " parameter name=\"a\" string=\"true\">xy\n</" D,
      "call0|f|{\"a\": \"xy\\n</" D "|cut||length" },
    { "14 cut raw value",
      { PLAIN },
      NULL,
      0,
      OPEN INV("f") "<" D " parameter name=\"a\" string=\"false\">[1, ",
      "call0|f|{\"a\": |cut||tool_calls" },
    { "14 bad name",
      { PLAIN },
      NULL,
      0,
      "a\n" OPEN "\n" INV("f<b") STR("a", "x") INV_END "\n" INV("f") INV_END "\n" CLOSE,
      "C|a" INV("f<b") STR("a", "x") INV_END "call0|f|{}||tool_calls" },
    { "14 empty name", { PLAIN }, NULL, 0, OPEN INV(" \n ") "x" INV_END CLOSE, "C|" INV(" \n ") "x" INV_END "|stop" },
    { "14 newline in the name", { PLAIN }, NULL, 0, OPEN INV("a\nb") INV_END CLOSE, "C|" INV("a\nb") INV_END "|stop" },
    { "14 no name", { PLAIN }, NULL, 0, OPEN "<" D " invoke id=\"f\">x" INV_END CLOSE, "C|<" D " invoke id=\"f\">x" INV_END "|stop" },
    { "14 no end", { PLAIN }, NULL, 0, "a" OPEN "\n<" D " invoke name=\"fo", "C|a<" D " invoke name=\"fo|stop" },
    { "14 name complete", { PLAIN }, NULL, DS_BACKEND_LENGTH, OPEN "\n<" D " invoke name=\"f\"", "call0|f||cut||length" },
    /* rule 15 */
    { "15 trimmed", { PLAIN }, NULL, 0, OPEN INV(" \tf\n") INV_END CLOSE, "call0|f|{}||tool_calls" },
    { "15 unknown passes", { PLAIN, .tool_flags = flags_of }, NULL, 0, OPEN INV("zz") INV_END CLOSE, "call0|zz|{}||tool_calls" },
    { "15 unknown as content",
      { PLAIN, .tool_flags = flags_of, .unknown_tool_as_content = true },
      NULL,
      0,
      OPEN INV("zz") "x" INV_END INV("f") INV_END CLOSE,
      "C|" INV("zz") "x" INV_END "call0|f|{}||tool_calls" },
    /* rule 16 */
    { "16 JSON body",
      { PLAIN },
      NULL,
      0,
      OPEN INV("f") "\n {\"a\": [1, {\"b\": null}]}\n" INV_END CLOSE,
      "call0|f|{\"a\": [1, {\"b\": null}]}||tool_calls" },
    { "16 no object",
      { PLAIN },
      NULL,
      0,
      OPEN INV("f") "[1]" INV_END INV("f") "{\"a\": NaN}" INV_END CLOSE,
      "call0|f|{}|call1|f|{}||tool_calls" },
    /* rule 17 */
    { "17 look-alike", { PLAIN }, NULL, 0, "<|DSML| calls>", "C|<|DSML| calls>|stop" },
    { "17 normalised",
      { PLAIN, .normalize_lookalikes = true },
      NULL,
      0,
      "<|DSML| calls><||DSML||invoke name=\"f\"><‖DSML‖ parameter name=\"a\" string=\"true\">x</|DSML|parameter></|DSML| invoke></|DSML| "
      "calls>",
      "call0|f|{\"a\": \"x\"}||tool_calls" },
    /* 3.4 */
    { "stop in newlines before a block", { PLAIN }, "\n\n", 0, "text\n\n" CALL_F_1, "C|text|stop_sequence" },
    { "stop never in leading newlines", { PLAIN }, "\n\n", 0, "\n\ntext", "C|text|stop" },
    { "stop not in reasoning", { THINK }, "END", 0, "a END b</think>c END d", "R|a END bC|c |stop_sequence" },
    { "stop not in markup", { PLAIN }, "calls|x", 0, OPEN INV("f") STR("a", "x") INV_END CLOSE, "call0|f|{\"a\": \"x\"}||tool_calls" },
    { "first to complete", { PLAIN }, "bcd|ab", 0, "xabcd", "C|x|stop_sequence" },
    { "listed first on a tie", { PLAIN }, "b|ab", 0, "xab", "C|xa|stop_sequence" },
    { "overlapping", { PLAIN }, "aab", 0, "aaaab", "C|aa|stop_sequence" },
    { "stop not in a dropped tag", { PLAIN }, "</th", 0, "a</think>b</thx", "C|ab|stop_sequence" },
    { "stop begins a tag", { PLAIN }, "<", 0, "a\n<b", "C|a\n|stop_sequence" },
    { "stop is half a tag at the end", { PLAIN }, "x\n<", 0, "2 x\n<", "C|2 |stop_sequence" },
    { "stop before and in half a tag",
      { PLAIN },
      "x<｜"
      "D",
      0,
      "2 x"
      "<｜"
      "DSM",
      "C|2 |stop_sequence" },
    { "kept", { PLAIN, .keep_stop = true }, "END", 0, "one END two", "C|one END|stop_sequence" },
    { "kept newlines", { PLAIN, .keep_stop = true }, "\n\n", 0, "text\n\n" CALL_F_1, "C|text\n\n|stop_sequence" },
    { "kept in half a tag", { PLAIN, .keep_stop = true }, "x\n<", 0, "2 x\n<", "C|2 x\n<|stop_sequence" },
    { "kept in JSON", { PLAIN, .json_mode = true, .keep_stop = true }, "x", 0, "x{\"x\": 1}x", "C|{\"x|stop_sequence" },
    { "held and let go", { PLAIN }, "abcabd", 0, "abcabcab", "C|abcabcab|stop" },
    /* JSON mode */
    { "JSON fence",
      { PLAIN, .json_mode = true },
      NULL,
      0,
      "Sure:\n```json\n{\"a\": \"}\", \"b\": [1]}\n```\nbye",
      "C|{\"a\": \"}\", \"b\": [1]}|stop" },
    { "JSON bare", { PLAIN, .json_mode = true }, NULL, 0, "x ````\n[1, \"]\\\"]\"] x", "C|[1, \"]\\\"]\"]|stop" },
    { "JSON after reasoning", { THINK, .json_mode = true }, NULL, 0, "{r}</think>``json\n{\"a\": 1}{", "R|{r}C|{\"a\": 1}|stop" },
    { "JSON and a call", { PLAIN, .json_mode = true }, NULL, 0, "a\n" CALL_F_1, "call0|f|{\"a\": 1}||tool_calls" },
    { "JSON then a call", { PLAIN, .json_mode = true }, NULL, 0, "{}\n\n" CALL_F_1, "C|{}call0|f|{\"a\": 1}||tool_calls" },
    { "JSON stop outside", { PLAIN, .json_mode = true }, "x", 0, "x{\"y\": 1}x", "C|{\"y\": 1}|stop" },
    { "JSON stop inside", { PLAIN, .json_mode = true }, "x", 0, "x{\"x\": 1}x", "C|{\"|stop_sequence" },
    /* custom calls, 4.5 */
    { "custom input",
      { PLAIN, .tool_flags = flags_of },
      NULL,
      0,
      OPEN INV("patch") STR("input", "a\"\n") STR("more", "b") INV_END CLOSE,
      "call0|patch|a\"\n||tool_calls" },
    { "custom other",
      { PLAIN, .tool_flags = flags_of },
      NULL,
      0,
      OPEN INV("patch") STR("text", "a\n") STR("input", "b") INV_END CLOSE,
      "call0|patch|{\"text\": \"a\\n\", \"input\": \"b\"}||tool_calls" },
    { "custom raw",
      { PLAIN, .tool_flags = flags_of },
      NULL,
      0,
      OPEN INV("patch") RAW("input", "1") INV_END CLOSE,
      "call0|patch|{\"input\": 1}||tool_calls" },
    { "one call",
      { PLAIN, .max_calls = 1 },
      NULL,
      DS_BACKEND_LENGTH,
      OPEN INV("f") INV_END INV("g") INV_END CLOSE,
      "call0|f|{}||tool_calls" },
    /* endings, 3.5 */
    { "filter", { PLAIN }, NULL, DS_BACKEND_CONTENT_FILTER, "x", "C|x|content_filter" },
    { "no reason", { PLAIN }, NULL, DS_BACKEND_NONE, "x", "C|x|end_of_stream" },
    { "no reason after calls, Recipe",
      { PLAIN, .eof_is_stop = true },
      NULL,
      DS_BACKEND_NONE,
      CALL_F_1,
      "call0|f|{\"a\": 1}||end_of_stream" },
    { "raw", { .start = DS_PARSER_RAW, .tools = DS_PARSER_TOOLS_OFF }, "END", 0, "\n</think>" OPEN "EN", "C|\n</think>" OPEN "EN|stop" },
    { "no reason after calls", { PLAIN }, NULL, DS_BACKEND_NONE, CALL_F_1, "call0|f|{\"a\": 1}||tool_calls" },
    { "length after calls", { PLAIN }, NULL, DS_BACKEND_LENGTH, CALL_F_1, "call0|f|{\"a\": 1}||length" },
    /* 3.5a: invalid UTF-8 */
    { "bad bytes", { PLAIN }, NULL, 0, "a\xff\xe2\x82x\xf0\x9f\x98", "C|a\xef\xbf\xbd\xef\xbf\xbdx|stop" },
    { "overlong",
      { PLAIN },
      NULL,
      0,
      "\xc0\xaf\xed\xa0\x80\xf4\x90\x80\x80",
      "C|\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd|stop" },
    { "tail kept", { PLAIN, .flush_tail = true }, NULL, 0, "a\xe2\x82", "C|a\xef\xbf\xbd|stop" },
};

static void every_rule(void **state)
{
    ds_buf log = { 0 };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const row *r = &rows[i];
        ds_parser_opts o = r->o;
        const char *stops[8];
        size_t lens[8], n = 0;
        for (const char *s = r->stop; s && *s; n++) {
            stops[n] = s;
            lens[n] = strcspn(s, "|");
            s += lens[n] + (s[lens[n]] == '|');
        }
        o.stops = stops;
        o.stop_bytes = lens;
        o.n_stops = n;
        parse_every_way(&o, r->in, strlen(r->in), r->end, 100, &log, NULL);
        if (strcmp(ds_buf_str(&log), r->out) != 0)
            fail_msg("%s:\n  %s\nexpected\n  %s", r->what, ds_buf_str(&log), r->out);
    }
    ds_buf_free(&log);
}

/* Parses in pieces of 7 bytes. */
static void in_sevens(const ds_parser_opts *o, const ds_buf *text, ds_buf *log, ds_parser_stats *stats)
{
    size_t n = text->len / 7, *cuts = malloc((n + 1) * sizeof *cuts);
    parse_run r;

    for (size_t i = 0; i < n; i++)
        cuts[i] = (i + 1) * 7;
    parse_cut(&r, o, text->p, text->len, cuts, n, DS_BACKEND_STOP, stats);
    free(cuts);
    ds_buf_free(log);
    *log = r.log;
}

static void repeat(ds_buf *b, const char *s, size_t n)
{
    while (n--)
        ds_buf_puts(b, s);
}

static bool ends_with(const ds_buf *b, const char *s)
{
    size_t n = strlen(s);
    return b->len >= n && memcmp(b->p + b->len - n, s, n) == 0;
}

static void limits(void **state)
{
    const ds_parser_opts o = { PLAIN, .max_value_bytes = 1000 };
    ds_parser_stats st;
    ds_buf b = { 0 }, log = { 0 };

    (void)state;
    for (size_t n = 256; n <= 257; n++) { /* name */
        ds_buf_clear(&b);
        ds_buf_puts(&b, OPEN "<" D " invoke name=\" ");
        repeat(&b, "n", n);
        ds_buf_puts(&b, " \">" INV_END CLOSE);
        in_sevens(&o, &b, &log, &st);
        assert_int_equal(st.calls, n == 256);
        assert_int_equal(st.bad_calls, n == 257);
    }
    ds_buf_clear(&b); /* a tag that goes on and on */
    ds_buf_puts(&b, OPEN "<" D " invoke ");
    repeat(&b, "x ", 5000);
    ds_buf_puts(&b, " name=\"f\">" INV_END CLOSE);
    in_sevens(&o, &b, &log, &st);
    assert_int_equal(st.bad_calls, 1);
    assert_int_equal(log.len, strlen("C|<" D " invoke  name=\"f\">" INV_END "|stop") + 10000);
    for (size_t n = 4096; n <= 4097; n++) { /* key */
        ds_buf_clear(&b);
        ds_buf_puts(&b, OPEN INV("f") "<" D " parameter name=\"");
        repeat(&b, "k", n);
        ds_buf_puts(&b, "\" string=\"true\">x" INV_END CLOSE);
        in_sevens(&o, &b, &log, &st);
        assert_int_equal(st.dropped_params, n == 4097);
        assert_true(n == 4096 ? ends_with(&log, "kk\": \"x\"}||tool_calls") : ends_with(&log, "|f|{}||tool_calls"));
    }
    ds_buf_clear(&b); /* calls */
    ds_buf_puts(&b, OPEN);
    repeat(&b, INV("f") INV_END, 1030);
    in_sevens(&o, &b, &log, &st);
    assert_int_equal(st.calls, 1024);
    assert_int_equal(st.dropped_calls, 1);
    assert_true(ends_with(&log, "call1023|f|{}||tool_calls"));
    ds_buf_clear(&b); /* parameters, every key twice */
    ds_buf_puts(&b, OPEN INV("f"));
    for (int i = 0; i < 4100; i++)
        for (int k = 0; k < 2; k++)
            ds_buf_printf(&b, "<" D " parameter name=\"k%d\" string=\"false\">%d</" D " parameter>", i, k);
    ds_buf_puts(&b, INV_END);
    in_sevens(&o, &b, &log, &st);
    assert_int_equal(st.dropped_params, 2 * 4100 - 4096);
    assert_non_null(strstr(ds_buf_str(&log), ", \"k4095\": 0}"));
    assert_null(strstr(ds_buf_str(&log), ": 1"));
    for (size_t n = 128; n <= 129; n++) { /* nesting */
        ds_buf_clear(&b);
        ds_buf_puts(&b, OPEN INV("f") "<" D " parameter name=\"a\" string=\"false\">");
        repeat(&b, "[", n);
        repeat(&b, "]", n);
        ds_buf_puts(&b, INV_END);
        in_sevens(&o, &b, &log, &st);
        assert_int_equal(st.repaired_values, n == 129);
        assert_true(ends_with(&log, n == 128 ? "]]}||tool_calls" : "]]\"}||tool_calls"));
    }
    for (size_t n = 1000; n <= 1001; n++) { /* a held value */
        ds_buf_clear(&b);
        ds_buf_puts(&b, OPEN INV("f") "<" D " parameter name=\"a\" string=\"false\">");
        repeat(&b, "1", n);
        ds_buf_puts(&b, INV_END);
        in_sevens(&o, &b, &log, &st);
        assert_int_equal(st.repaired_values, n == 1001);
        assert_true(ends_with(&log, n == 1000 ? "11}||tool_calls" : "11\"}||tool_calls"));
    }
    ds_buf_free(&b);
    ds_buf_free(&log);
}

static void count_bytes(void *ctx, const ds_parse_event *ev)
{
    size_t *n = ctx;
    *n += ev->n;
}

/* Reasoning tokens: those whose last byte lies before the end of the reasoning, wherever the tokens were cut. */
static void tokens_are_counted(void **state)
{
    static const struct {
        const char *pieces[8];
        uint32_t n[8];
        uint64_t tokens, reasoning;
    } cases[] = {
        { { "pl", "an", "\n\n", "</think>", "\n\nHi", " " }, { 1, 1, 1, 1, 1, 1 }, 6, 4 },
        { { "plan</think>x" }, { 13 }, 13, 12 },
        { { "plan</th", "ink>x", "y" }, { 1, 1, 1 }, 3, 1 },
        { { "plan", "\n\n", "<", D, " calls", ">\n", "x" }, { 1, 1, 1, 1, 1, 1, 1 }, 7, 2 },
        { { "plan", "<", D, " cats", ">" }, { 1, 1, 1, 1, 1 }, 5, 5 },
        { { "\xe6\x97", "\xa5", "", "</think>" }, { 1, 1, 1, 1 }, 4, 4 },
    };
    ds_err err;
    ds_parser *p;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t bytes = 0;
        const ds_parser_opts o = { THINK, .sink = count_bytes, .ctx = &bytes };
        assert_ok(ds_parser_create(&p, &o, &err));
        for (size_t k = 0; k < 8 && cases[i].pieces[k]; k++)
            ds_parser_push(p, cases[i].pieces[k], strlen(cases[i].pieces[k]), cases[i].n[k]);
        ds_parser_finish(p, DS_BACKEND_STOP);
        assert_int_equal(ds_parser_get_stats(p)->tokens, cases[i].tokens);
        assert_int_equal(ds_parser_get_stats(p)->reasoning_tokens, cases[i].reasoning);
        ds_parser_destroy(p);
    }
}

static void bad_options(void **state)
{
    ds_err err;
    ds_parser *p;
    ds_parser_opts o = { THINK, .sink = count_bytes, .n_stops = 65 };

    (void)state;
    assert_refused(ds_parser_create(&p, &o, &err), DS_E_ARG, "65 sequences");
    assert_null(p);
    ds_parser_destroy(NULL);
}

/* A stop sequence that is complete within min_tokens is text, also where its bytes were held as half a tag. */
static void stops_are_held_back(void **state)
{
    static const struct {
        const char *text, *stop, *out;
        uint64_t min;
    } cases[] = {
        { "abXcdXe", "X", "C|ab|stop_sequence", 0 },    { "abXcdXe", "X", "C|ab|stop_sequence", 2 },
        { "abXcdXe", "X", "C|abXcd|stop_sequence", 3 }, { "abXcdXe", "X", "C|abXcd|stop_sequence", 5 },
        { "abXcdXe", "X", "C|abXcdXe|stop", 6 },        { "ababab", "abab", "|stop_sequence", 3 },
        { "ababab", "abab", "C|ab|stop_sequence", 4 },  { "a<b<b", "<b", "C|a<b|stop_sequence", 3 },
        { "a<b<b", "<", "C|a<b|stop_sequence", 2 },     { "a<b<b", "<", "C|a|stop_sequence", 1 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t step = 1; step < 4; step++) { /* tokens of a push: a byte each */
            size_t n = strlen(cases[i].text), len = strlen(cases[i].stop);
            ds_parser_opts o = {
                .tools = DS_PARSER_TOOLS_ON, .stops = &cases[i].stop, .stop_bytes = &len, .n_stops = 1, .min_tokens = cases[i].min
            };
            parse_run r = { .last = DS_PARSE_CALL_END };
            ds_parser *p;
            ds_err err;
            o.sink = parse_record;
            o.ctx = &r;
            assert_ok(ds_parser_create(&p, &o, &err));
            for (size_t at = 0; at < n; at += step) {
                size_t some = step < n - at ? step : n - at;
                ds_parser_push(p, cases[i].text + at, some, (uint32_t)some);
            }
            ds_buf_puts(&r.log, ds_parser_finish(p, DS_BACKEND_STOP) == DS_FINISH_STOP ? "|stop" : "|stop_sequence");
            assert_string_equal(ds_buf_str(&r.log), cases[i].out);
            ds_parser_destroy(p);
            ds_buf_free(&r.log);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stops_are_held_back), cmocka_unit_test(every_rule),  cmocka_unit_test(limits),
        cmocka_unit_test(tokens_are_counted),  cmocka_unit_test(bad_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
