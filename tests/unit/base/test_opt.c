#include <locale.h>

#include "base/opt.h"
#include "test.h"

typedef struct {
    bool json, color;
    int64_t threads, offset;
    double temperature, top_p;
    const char *model, *prompt;
    int mode;
    ds_opt_list stop;
    uint64_t memory, timeout;
} options;

static const ds_opt table[] = {
    { "json", DS_OPT_FLAG, offsetof(options, json), .help = "print one JSON object" },
    { "color", DS_OPT_FLAG, offsetof(options, color), .def = "true", .help = "colors on a terminal" },
    { "threads", DS_OPT_INT, offsetof(options, threads), .def = "4", .arg = "N", .help = "threads to use", .min = 1, .max = 1024 },
    { "offset", DS_OPT_INT, offsetof(options, offset), .arg = "N", .help = "any integer" },
    { "temperature", DS_OPT_REAL, offsetof(options, temperature), .def = "1", .arg = "T", .help = "0 is greedy", .min = 0, .max = 2 },
    { "top-p", DS_OPT_REAL, offsetof(options, top_p), .def = "1", .arg = "P", .help = "smallest set that reaches P", .min = 0, .max = 1,
      .open_min = true },
    { "model", DS_OPT_STR, offsetof(options, model), .arg = "DIR", .help = "model directory", .required = true },
    { "prompt", DS_OPT_STR, offsetof(options, prompt), .arg = "TEXT", .help = "text to continue" },
    { "mode", DS_OPT_ENUM, offsetof(options, mode), .def = "ced", .help = "how prefill runs", .choices = "exact|ced" },
    { "stop", DS_OPT_LIST, offsetof(options, stop), .arg = "TEXT", .help = "ends the answer" },
    { "memory", DS_OPT_BYTES, offsetof(options, memory), .def = "64MiB", .arg = "BYTES", .help = "cache size", .min = 4096,
      .max = INFINITY },
    { "timeout", DS_OPT_MS, offsetof(options, timeout), .def = "10s", .arg = "TIME", .help = "time to wait", .min = 0, .max = 5400000 },
    { .name = NULL },
};
enum { N_OPTS = sizeof table / sizeof table[0] - 1 };
static const ds_opt_cmd command = { "deepserve test", "tests option tables", "--model DIR", "deepserve test --model m", table };

/* Parses the words of a line. */
static ds_rc parse(options *o, const char **pos, size_t *n_pos, bool *given, bool *help, ds_err *err, char *line)
{
    char *argv[80] = { line };
    int argc = 0;

    for (char *save, *w = strtok_r(line, " ", &save); w; w = strtok_r(NULL, " ", &save))
        argv[argc++] = w;
    return ds_opt_parse(&command, o, argc, argv, pos, 2, n_pos, given, help, err);
}

static void defaults(void **state)
{
    char line[] = "test --model m";
    bool given[N_OPTS], help;
    const char *pos[2];
    size_t n;
    options o;
    ds_err err;

    (void)state;
    memset(&o, 0xff, sizeof o);
    assert_ok(parse(&o, pos, &n, given, &help, &err, line));
    assert_true(!o.json && o.color && o.threads == 4 && o.offset == 0 && o.temperature == 1 && !o.prompt && o.mode == 1 && o.stop.n == 0);
    assert_true(o.memory == 64 << 20 && o.timeout == 10000 && strcmp(o.model, "m") == 0);
    assert_false(help);
    assert_int_equal(n, 0);
    for (size_t i = 0; i < N_OPTS; i++)
        assert_int_equal(given[i], i == 6);
}

static void everything_given(void **state)
{
    char line[] = "test --json --no-color --threads=1024 --offset -9223372036854775808 --temperature 0 --top-p=1e-3 --model=a=b --prompt= "
                  "--mode exact --stop x --stop --y --memory 2GiB first --timeout 250ms --threads 1 -- --json";
    bool given[N_OPTS], help;
    const char *pos[2];
    size_t n;
    options o;
    ds_err err;

    (void)state;
    assert_ok(parse(&o, pos, &n, given, &help, &err, line));
    assert_true(o.json && !o.color && o.threads == 1 && o.offset == INT64_MIN && o.temperature == 0 && o.top_p == 1e-3 && o.mode == 0);
    assert_string_equal(o.model, "a=b");
    assert_string_equal(o.prompt, "");
    assert_int_equal(o.stop.n, 2);
    assert_string_equal(o.stop.v[1], "--y");
    assert_true(o.memory == 2ull << 30 && o.timeout == 250);
    assert_int_equal(n, 2);
    assert_string_equal(pos[0], "first");
    assert_string_equal(pos[1], "--json");
    for (size_t i = 0; i < N_OPTS; i++)
        assert_true(given[i]);
}

static void units(void **state)
{
    static const struct {
        const char *line;
        uint64_t memory, timeout;
    } cases[] = {
        { "t --model m --memory 4096 --timeout 3", 4096, 3000 },      { "t --model m --memory 5000B --timeout 1.5s", 5000, 1500 },
        { "t --model m --memory 32KiB --timeout 2m", 32768, 120000 }, { "t --model m --memory 1TiB --timeout 1h", 1ull << 40, 3600000 },
        { "t --model m --memory 48MiB --timeout 0", 48ull << 20, 0 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *line = strdup(cases[i].line);
        bool help;
        size_t n;
        options o;
        ds_err err;
        assert_ok(parse(&o, NULL, &n, NULL, &help, &err, line));
        assert_true(o.memory == cases[i].memory && o.timeout == cases[i].timeout);
        free(line);
    }
}

static void wrong_use(void **state)
{
    static const struct {
        const char *line, *message;
    } cases[] = {
        { "t", "--model DIR is required" },
        { "t --model", "--model needs a value (DIR)" },
        { "t --model --json", "--model needs a value (DIR), but --json follows" },
        { "t --model m --prompt --model=x", "but --model=x follows" },
        { "t --model m --modle x", "unknown option --modle; did you mean --model?" },
        { "t --model m --temp 1", "did you mean --temperature?" },
        { "t --model m --frobnicate", "unknown option --frobnicate" },
        { "t --model m -x", "unknown option -x" },
        { "t --model m --=5", "unknown option --" },
        { "t --model m --json=yes", "--json takes no value" },
        { "t --model m --no-threads", "unknown option --no-threads" },
        { "t --model m --no-json=1", "unknown option --no-json" },
        { "t --model m --threads 0", "--threads '0': expected a whole number, 1..1024" },
        { "t --model m --threads 1025", "1..1024" },
        { "t --model m --threads 4x", "expected a whole number" },
        { "t --model m --threads=", "expected a whole number" },
        { "t --model m --threads 1e3", "expected a whole number" },
        { "t --model m --threads +4", "expected a whole number" },
        { "t --model m --threads 99999999999999999999", "expected a whole number" },
        { "t --model m --offset 9223372036854775808", "expected a whole number" },
        { "t --model m --offset -9223372036854775809", "expected a whole number" },
        { "t --model m --offset -", "expected a whole number" },
        { "t --model m --temperature nan", "expected a number, 0..2" },
        { "t --model m --temperature inf", "expected a number" },
        { "t --model m --temperature 0x1", "expected a number" },
        { "t --model m --temperature 2.01", "0..2" },
        { "t --model m --temperature 1e999", "expected a number" },
        { "t --model m --top-p 0", "--top-p '0': expected a number, above 0, at most 1" },
        { "t --model m --mode fast", "--mode 'fast': expected one of exact|ced" },
        { "t --model m --mode exact|ced", "expected one of" },
        { "t --model m --mode=", "expected one of" },
        { "t --model m --memory 4095", "at least 4KiB" },
        { "t --model m --memory 1KB", "expected bytes, such as" },
        { "t --model m --memory -1", "expected bytes" },
        { "t --model m --memory 18446744073709551615KiB", "expected bytes" },
        { "t --model m --timeout -1s", "expected a time, such as" },
        { "t --model m --timeout 1d", "expected a time" },
        { "t --model m --timeout 1e300h", "expected a time" },
        { "t --model m one two three", "unexpected argument 'three'" },
        { "t --model m --prompt \x1b[31m\x01 a b c\n", "unexpected argument 'c\\n'" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *line = strdup(cases[i].line);
        const char *pos[2];
        bool help;
        size_t n;
        options o;
        ds_err err = { 0 };
        assert_refused(parse(&o, pos, &n, NULL, &help, &err, line), DS_E_ARG, cases[i].message);
        free(line);
    }
}

static void too_many_in_a_list(void **state)
{
    char name[] = "t", word[] = "--stop=x", *argv[66] = { name };
    bool help;
    size_t n;
    options o;
    ds_err err;

    (void)state;
    for (int i = 1; i < 66; i++)
        argv[i] = word;
    assert_refused(ds_opt_parse(&command, &o, 66, argv, NULL, 0, &n, NULL, &help, &err), DS_E_ARG, "--stop: given more than 64 times");
    assert_refused(ds_opt_parse(&command, &o, 65, argv, NULL, 0, &n, NULL, &help, &err), DS_E_ARG, "--model DIR is required");
    assert_int_equal(o.stop.n, 64);
}

static void help_stops_at_once(void **state)
{
    char one[] = "t --help --nonsense", two[] = "t -h", three[] = "t --prompt --help";
    bool help;
    size_t n;
    options o;
    ds_err err;

    (void)state;
    assert_ok(parse(&o, NULL, &n, NULL, &help, &err, one));
    assert_true(help);
    assert_ok(parse(&o, NULL, &n, NULL, &help, &err, two));
    assert_true(help);
    assert_refused(parse(&o, NULL, &n, NULL, &help, &err, three), DS_E_ARG, "--model DIR is required"); /* a value, odd as it is */
    assert_string_equal(o.prompt, "--help");
}

static void help_page(void **state)
{
    char *page = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&page, &n);

    (void)state;
    ds_opt_print_help(&command, f);
    fclose(f);
    assert_non_null(strstr(page, "deepserve test: tests option tables\n\nusage: deepserve test --model DIR\n\noptions:\n"));
    assert_non_null(strstr(page, "  --json            print one JSON object\n"));
    assert_non_null(strstr(page, "  --[no-]color      colors on a terminal [default on]\n"));
    assert_non_null(strstr(page, "  --threads N       threads to use [1..1024; default 4]\n"));
    assert_non_null(strstr(page, "  --offset N        any integer\n"));
    assert_non_null(strstr(page, "  --top-p P         smallest set that reaches P [above 0, at most 1; default 1]\n"));
    assert_non_null(strstr(page, "  --model DIR       model directory [required]\n"));
    assert_non_null(strstr(page, "  --mode exact|ced  how prefill runs [default ced]\n"));
    assert_non_null(strstr(page, "  --memory BYTES    cache size [at least 4KiB; default 64MiB]\n"));
    assert_non_null(strstr(page, "  --timeout TIME    time to wait [0..90m; default 10s]\n"));
    assert_non_null(strstr(page, "  -h, --help        this page\n"));
    assert_non_null(strstr(page, "\nexample:\n  deepserve test --model m\n"));
    free(page);
}

static void nearest_words(void **state)
{
    static const char *const words[] = { "chat",     "generate", "serve", "inspect", "logits", "synth",
                                         "tokenize", "render",   "parse", "bench",   NULL };
    static const struct {
        const char *word, *want;
    } cases[] = {
        { "genrate", "generate" }, { "tokenise", "tokenize" }, { "srve", "serve" },    { "server", "serve" }, { "tok", "tokenize" },
        { "inpsect", "inspect" },  { "logit", "logits" },      { "frobnicate", NULL }, { "x", NULL },         { "", NULL },
        { "cht", "chat" },         { "chta", "chat" },         { "bnech", "bench" },   { "zz", NULL },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *got = ds_opt_nearest(cases[i].word, words);
        if (!cases[i].want)
            assert_null(got);
        else
            assert_string_equal(got ? got : "nothing", cases[i].want);
    }
}

static ds_rc config(const char *text, options *o, ds_err *err)
{
    char *argv[80] = { "test" };
    const char *pos;
    ds_opt_words w;
    size_t n_pos;
    bool help;
    ds_rc rc = ds_opt_config(&command, o, text, strlen(text), "f", &w, err);

    if (rc != DS_OK) {
        assert_null(w.v);
        return rc;
    }
    memcpy(argv + 1, w.v, w.n * sizeof *w.v);
    rc = ds_opt_parse(&command, o, 1 + (int)w.n, argv, &pos, 0, &n_pos, NULL, &help, err);
    ds_opt_words_free(&w); /* strings of *o are gone now */
    return rc;
}

static void a_file_of_options(void **state)
{
    static const struct {
        const char *text, *why;
    } bad[] = {
        { "\nthreads = x", "f:2: --threads 'x': expected a whole number" },
        { "threads", "f:1: 'threads': expected name = value" },
        { "# c\n\nthread = 1\n", "f:3: unknown option --thread; did you mean --threads?" },
        { "json = yes", "f:1: json 'yes': expected true or false" },
        { "help = true", "f:1: unknown option --help" },
        { "= 3", "f:1: unknown option --" },
        { "temperature = 2.5\njson = true", "f:1: --temperature '2.5'" },
    };
    options o;
    ds_err err;

    (void)state;
    assert_ok(
        config("model=m\n\n# threads = 9\n  threads\t=  7 \r\ncolor = false\nmode=exact\ntimeout = 2m\nstop = a = b\nstop=c", &o, &err));
    assert_true(o.threads == 7 && !o.color && o.mode == 0 && o.timeout == 120000 && o.stop.n == 2 && o.memory == 64 << 20);
    assert_ok(config("threads = 1\nthreads = 3\nmodel = ", &o, &err));
    assert_int_equal(o.threads, 3);
    assert_refused(config("threads = 1", &o, &err), DS_E_ARG, "--model DIR is required"); /* the command line may have it */
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_refused(config(bad[i].text, &o, &err), DS_E_FORMAT, bad[i].why);
}

/* What is dumped says the same again. */
static void a_dump_is_a_file(void **state)
{
    static const char *const lines[] = { "model = m",
                                         "model = m\ncolor = false\ntemperature = 0.1\nmode = exact\nmemory = 1GiB\noffset = -5" };

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        options a, b;
        char *text[2];
        size_t n;
        ds_err err;

        memset(&a, 0, sizeof a);
        memset(&b, 0, sizeof b);
        for (int k = 0; k < 2; k++) {
            options *o = k ? &b : &a;
            FILE *f = open_memstream(&text[k], &n);
            assert_ok(config(k ? text[0] : lines[i], o, &err));
            o->model = "m";
            ds_opt_dump(&command, o, f);
            fclose(f);
        }
        assert_string_equal(text[0], text[1]);
        free(text[0]);
        free(text[1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults),         cmocka_unit_test(everything_given),   cmocka_unit_test(units),
        cmocka_unit_test(wrong_use),        cmocka_unit_test(too_many_in_a_list), cmocka_unit_test(help_stops_at_once),
        cmocka_unit_test(help_page),        cmocka_unit_test(nearest_words),      cmocka_unit_test(a_file_of_options),
        cmocka_unit_test(a_dump_is_a_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
