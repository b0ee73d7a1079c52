/* YAML files with the place of every value. */
#include "test.h"

#include "base/buf.h"
#include "fault.h"
#include "yaml/yaml.h"

static const char text[] = "# a comment\n"
                           "name: fox\n"
                           "list:\n"
                           "  - 1\n"
                           "  - {a: 'x y', b: }\n"
                           "  - [p, \"q\\n\"]\n"
                           "deep: {in: {there: yes}}\n";

static void values_know_their_place(void **state)
{
    ds_yaml_doc *d;
    const ds_yaml *root, *v;
    ds_err err = { 0 };

    (void)state;
    assert_ok(ds_yaml_parse(&d, text, sizeof text - 1, "f", &err));
    root = ds_yaml_root(d);
    assert_true(root->kind == DS_YAML_MAP && root->n == 3 && root->line == 2);
    v = ds_yaml_get(root, "name");
    assert_string_equal(v->text, "fox");
    assert_true(v->plain && v->line == 2 && v->column == 1);
    v = ds_yaml_get(root, "list");
    assert_true(v->kind == DS_YAML_LIST && v->n == 3 && v->line == 3);
    v = v->child;
    assert_true(v->line == 4 && v->column == 5 && !v->key);
    v = v->next;
    assert_string_equal(ds_yaml_get(v, "a")->text, "x y");
    assert_true(!ds_yaml_get(v, "a")->plain && ds_yaml_get(v, "a")->column == 6);
    assert_string_equal(ds_yaml_get(v, "b")->text, "");
    assert_string_equal(v->next->child->next->text, "q\n");
    assert_string_equal(ds_yaml_get(ds_yaml_get(ds_yaml_get(root, "deep"), "in"), "there")->text, "yes");
    assert_null(ds_yaml_get(root, "other"));
    assert_null(ds_yaml_get(NULL, "other"));
    ds_yaml_fail(d, v, &err, "no %s", "good");
    assert_string_equal(err.msg, "f:5:5: no good");
    assert_int_equal(err.rc, DS_E_FORMAT);
    ds_yaml_free(d);
}

static void refused_with_the_place(void **state)
{
    static const struct {
        const char *text, *message;
    } cases[] = {
        { "", "f: nothing is in it" },
        { "# only a comment\n", "f: nothing is in it" },
        { "a: 1\nb: 2\na: 3\n", "f:3:1: a stands twice, first in line 1" },
        { "a: &x 1\nb: *x\n", "f:2:4: an alias" },
        { "a: !!int 1\n", "f:1:4: a tag" },
        { "a: !mine [1]\n", "f:1:4: a tag" },
        { "? [1]\n: 2\n", "f:1:3: a list as a key" },
        { "a: 1\n---\nb: 2\n", "f:2:1: a second document" },
        { "a: \"x\\0y\"\n", "f:1:4: a NUL inside" },
        { "a: [1\nb: 2\n", "f:2:" },
        { "a: 'x\n", "f:2:1: " },
        { "\tx: 1\n", "f:1:1: " },
        { "a: \xff\n", "f: byte 3: " },
    };
    ds_yaml_doc *d;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ds_err err = { 0 };
        assert_refused(ds_yaml_parse(&d, cases[i].text, strlen(cases[i].text), "f", &err), DS_E_FORMAT, cases[i].message);
        assert_null(d);
    }
}

static void bounded(void **state)
{
    ds_buf b = { 0 };
    ds_yaml_doc *d;
    ds_err err = { 0 };

    (void)state;
    for (int i = 0; i <= DS_YAML_MAX_DEPTH; i++)
        ds_buf_putc(&b, '[');
    assert_refused(ds_yaml_parse(&d, b.p, b.len, "f", &err), DS_E_FORMAT, "more than 32 levels");
    ds_buf_clear(&b);
    ds_buf_puts(&b, "[0");
    for (int i = 2; i < DS_YAML_MAX_NODES; i++)
        ds_buf_puts(&b, ",0");
    size_t n = b.len;
    ds_buf_putc(&b, ']');
    assert_ok(ds_yaml_parse(&d, b.p, b.len, "f", &err));
    assert_int_equal(ds_yaml_root(d)->n, DS_YAML_MAX_NODES - 1);
    ds_yaml_free(d);
    b.len = n;
    ds_buf_puts(&b, ",0]");
    assert_refused(ds_yaml_parse(&d, b.p, b.len, "f", &err), DS_E_FORMAT, "more than 65536 values");
    ds_buf_clear(&b);
    for (int i = 0; i < 1025; i++)
        ds_buf_printf(&b, "k%d: 0\n", i);
    assert_refused(ds_yaml_parse(&d, b.p, b.len, "f", &err), DS_E_FORMAT, "f:1025:1: more than 1024 keys");
    ds_buf_clear(&b);
    ds_buf_puts(&b, "#");
    while (b.len <= DS_YAML_MAX_BYTES)
        ds_buf_putc(&b, '#');
    assert_refused(ds_yaml_parse(&d, b.p, b.len, "f", &err), DS_E_FORMAT, "at most 1048576");
    ds_buf_free(&b);
}

static void every_beginning_is_read_or_refused(void **state)
{
    (void)state;
    for (size_t n = 0; n < sizeof text; n++) {
        ds_yaml_doc *d;
        ds_err err = { 0 };
        ds_rc rc = ds_yaml_parse(&d, text, n, "f", &err);
        assert_true(rc == DS_OK ? d != NULL : rc == DS_E_FORMAT && d == NULL && strncmp(err.msg, "f:", 2) == 0);
        ds_yaml_free(d);
    }
}

static ds_rc parse_once(void *ctx, ds_err *err)
{
    ds_yaml_doc *d;
    ds_rc rc = ds_yaml_parse(&d, text, sizeof text - 1, "f", err);

    (void)ctx;
    assert_true(rc == DS_OK || !d);
    ds_yaml_free(d);
    return rc;
}

static void out_of_memory_at_every_allocation(void **state)
{
    (void)state;
    assert_true(fault_every_allocation(parse_once, NULL) > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_know_their_place),
        cmocka_unit_test(refused_with_the_place),
        cmocka_unit_test(bounded),
        cmocka_unit_test(every_beginning_is_read_or_refused),
        cmocka_unit_test(out_of_memory_at_every_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
