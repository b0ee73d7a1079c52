/* The notation of Lark: languages, refusals, and inside calls of tools. */
#include "oracle.h"

static ds_rc open_lark(ds_grammar **g, const char *text, ds_err *err)
{
    return ds_grammar_lark(g, text, strlen(text), NULL, err);
}

/* A patch as agents' tools want it. */
static const char patch[] = "start: begin hunk+ end\n"
                            "begin: \"*** Begin Patch\" LF\n"
                            "end: \"*** End Patch\" LF?\n"
                            "\n"
                            "hunk: add_hunk | delete_hunk | update_hunk\n"
                            "add_hunk: \"*** Add File: \" filename LF add_line+\n"
                            "delete_hunk: \"*** Delete File: \" filename LF\n"
                            "update_hunk: \"*** Update File: \" filename LF change_move? change?\n"
                            "filename: /(.+)/\n"
                            "add_line: \"+\" /(.*)/ LF -> line\n"
                            "change_move: \"*** Move to: \" filename LF\n"
                            "change: (change_context | change_line)+ eof_line?\n"
                            "change_context: (\"@@\" | \"@@ \" /(.+)/) LF\n"
                            "change_line: (\"+\" | \"-\" | \" \") /(.*)/ LF\n"
                            "eof_line: \"*** End of File\" LF\n"
                            "%import common.LF\n";

static const char sums[] = "// sums\n"
                           "?start: sum\n"
                           "?sum: product\n"
                           "    | sum \"+\" product   -> add\n"
                           "    | sum \"-\" product   -> sub # left recursion\n"
                           "?product: atom | product (\"*\"|\"/\") atom\n"
                           "?atom: NUMBER | \"-\" atom | NAME | \"(\" sum \")\" | [\"abs\"i] \"|\" sum \"|\"\n"
                           "NAME: \"a\"..\"c\" DIGIT~1..2\n"
                           "%import common (NUMBER, DIGIT)\n"
                           "%import common.WS_INLINE -> SPACE\n"
                           "%ignore SPACE\n";

static void language(void **state)
{
    static const struct {
        const char *grammar, *text;
        bool match;
    } cases[] = {
        { patch, "*** Begin Patch\n*** Add File: a.txt\n+x\n+\n*** End Patch", true },
        { patch, "*** Begin Patch\n*** Update File: a\n*** Move to: b\n@@ f()\n-x\n+y\n z\n*** End of File\n*** End Patch\n", true },
        { patch, "*** Begin Patch\n*** Delete File: a\n*** Delete File: b\n*** End Patch", true },
        { patch, "*** Begin Patch\n*** End Patch", false },
        { patch, "*** Begin Patch\n*** Add File: a.txt\nx\n*** End Patch", false },
        { sums, "1+2.5*-(a1 - c22)", true },
        { sums, " 1 + aBs |b3| ", true },
        { sums, "d1", false },
        { sums, "1+", false },
        { sums, "a123", false },
        { "start: \"a\"~3 /b?/is", "aaaB", true },
        { "start: \"a\"~3", "aa", false },
        { "start: (\"a\" | ) [\"b\"]\n\n", "", true },
        { "start: /./s /./", "\nx", true },
        { "start: /./s /./", "\n\n", false },
        { "start: ESCAPED_STRING\n%import common.ESCAPED_STRING", "\"a\\\"\"", true },
        { "start: C\n%import common.C_COMMENT -> C", "/* a * / **/", true },
        { "start: C\n%import common.C_COMMENT -> C", "/* */ */", false },
        { "start: a b\na: \"x\"\n?b: \"y\"?\n!c: \"z\"\n", "xy", true },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ds_grammar *g;
        ds_err err = { 0 };
        verdict v;
        assert_ok(open_lark(&g, cases[i].grammar, &err));
        v = judge(g, cases[i].text, strlen(cases[i].text));
        if (v.match != cases[i].match)
            fail_msg("%s\nat %zu of: %s", cases[i].grammar, v.at, cases[i].text);
        ds_grammar_destroy(g);
    }
}

static void masks(void **state)
{
    static const char *const grammars[] = { patch, sums };

    (void)state;
    for (size_t i = 0; i < sizeof grammars / sizeof *grammars; i++) {
        ds_grammar *g;
        ds_err err = { 0 };
        assert_ok(open_lark(&g, grammars[i], &err));
        masks_are_exact(g, grammars[i]);
        ds_grammar_destroy(g);
    }
}

static void refusals(void **state)
{
    static const char *const cases[][2] = {
        { "", "no rule start" },
        { "start: a", "no rule a" },
        { "start: A\nA.2: \"x\"", "line 2, column 1: priorities" },
        { "start: a\na: b \"x\"\nb: a", "left recursion" },
        { "start: x{\"a\"}", "templates" },
        { "start: \"a\"\n%declare X", "line 2, column 1: only the directives" },
        { "start: X\n%import python.X", "only terminals of `common`" },
        { "start: X\n%import common.X", "no terminal of `common`" },
        { "start: A\nA: b\nb: \"x\"", "a rule inside a terminal" },
        { "start: /(?=a)/", "look-ahead" },
        { "start: /a", "expression has no end" },
        { "start: /a/m", "flags" },
        { "start: \"a\"..\"bc\"", "no range" },
        { "start: \"b\"..\"a\"", "no range" },
        { "start: \"a\"~3..2", "no repeat" },
        { "start: (\"a\"", "parenthesis" },
        { "start: \"a\")", "nothing that can stand here" },
        { "start: \"a\"\nstart: \"b\"", "line 2, column 1: this rule was there already" },
        { "x", "a definition" },
        { "start: (\"a\"~1000)~1000", "more nodes" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ds_grammar *g;
        ds_err err = { 0 };
        assert_refused(open_lark(&g, cases[i][0], &err), DS_E_ARG, cases[i][1]);
        assert_null(g);
    }
}

/* As the input of a custom tool, twice, so that rules of the same name are apart. */
static void in_calls(void **state)
{
    static const char open[] = "<\xff｜DSML｜\xfe invoke name=\"b\">\n<\xff｜DSML｜\xfe parameter name=\"input\" string=\"true\">",
                      close[] = "</\xff｜DSML｜\xfe parameter>\n</\xff｜DSML｜\xfe invoke>\n</\xff｜DSML｜\xfe calls>";
    ds_grammar_tool tools[] = {
        { .name = "a", .name_bytes = 1, .input = DS_TOOL_LARK, .definition = sums, .definition_bytes = sizeof sums - 1 },
        { .name = "b", .name_bytes = 1, .input = DS_TOOL_LARK, .definition = patch, .definition_bytes = sizeof patch - 1 },
    };
    ds_grammar_calls k = {
        .tools = tools, .n_tools = 2, .dsml = "｜DSML｜", .block = " calls", .call = " invoke", .parameter = " parameter"
    };
    ds_grammar *g;
    ds_buf b = { 0 };
    ds_err err = { 0 };

    (void)state;
    assert_ok(ds_grammar_tools(&g, &k, NULL, &err));
    ds_buf_puts(&b, open);
    ds_buf_puts(&b, "*** Begin Patch\n*** Add File: a\n+x </b>\n*** End Patch");
    ds_buf_puts(&b, close);
    assert_true(judge(g, b.p, b.len).match);
    ds_buf_clear(&b);
    ds_buf_puts(&b, open);
    ds_buf_puts(&b, "1+2");
    assert_false(judge(g, b.p, b.len).at == b.len);
    masks_are_exact(g, "calls with grammars");
    ds_grammar_destroy(g);
    ds_buf_free(&b);
    tools[1].definition = "start: ";
    tools[1].definition_bytes = 3;
    assert_refused(ds_grammar_tools(&g, &k, NULL, &err), DS_E_ARG, "tool b: Lark: line 1, column 1");
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(language), cmocka_unit_test(masks), cmocka_unit_test(refusals),
                                        cmocka_unit_test(in_calls) };

    return oracle_main(tests, sizeof tests / sizeof *tests);
}
