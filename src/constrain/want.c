/* What requests ask for, and what is compiled for that. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "constrain/constrain_internal.h"

/* ---- requests ---------------------------------------------------------------------------------------------------- */

/* A tool that promises something about its input. */
static bool promises(const ds_tool *t)
{
    return t->shown && (t->strict || t->grammar != DS_GRAMMAR_NONE);
}

ds_rc ds_constrain_want(ds_constrain_what *w, bool *any, const ds_request_info_data *i, ds_err *err)
{
    bool calls = i->parse_tools && (i->tool_choice == DS_CHOICE_REQUIRED || i->constraint.kind != DS_CONSTRAINT_NONE);

    for (uint32_t k = 0; k < i->n_tools && i->parse_tools && !calls; k++)
        calls = promises(&i->tools[k]);
    *w = (ds_constrain_what){ .kind = i->constraint.kind,
                              .text = i->constraint.text,
                              .calls = calls ? i : NULL,
                              .after_thought = i->start == DS_START_REASONING,
                              .param = i->constraint.kind != DS_CONSTRAINT_NONE ? i->constraint.param : "tools" };
    *any = calls || w->kind != DS_CONSTRAINT_NONE;
    if (!*any)
        return DS_OK;
    if (i->start == DS_START_CONTENT_KEEP || i->start == DS_START_REASONING_KEEP)
        return ds_fail(err, DS_E_ARG, "a message that is continued can't be constrained");
    if (!calls)
        return DS_OK;
    if (i->tool_choice == DS_CHOICE_REQUIRED)
        w->kind = DS_CONSTRAINT_NONE; /* there is a call and no content */
    if (w->kind == DS_CONSTRAINT_NONE)
        w->param = "tools";
    else if (w->kind != DS_CONSTRAINT_JSON_SCHEMA && w->kind != DS_CONSTRAINT_JSON_OBJECT)
        return ds_fail(err, DS_E_ARG, "together with tools the content can be constrained by a JSON Schema only");
    return DS_OK;
}

/* ---- descriptions ------------------------------------------------------------------------------------------------ */

static void put(ds_buf *b, ds_str s)
{
    uint64_t n = s.n;

    ds_buf_put(b, &n, sizeof n);
    ds_buf_put(b, s.p, s.n);
}

static ds_calls_start start_of(const ds_constrain_what *w)
{
    const ds_request_info_data *i = w->calls;

    return i->start == DS_START_BLOCK ? DS_CALLS_OPEN : i->tool_choice == DS_CHOICE_REQUIRED ? DS_CALLS_MUST : DS_CALLS_MAY;
}

void constrain_describe(ds_buf *b, const ds_constrain_what *w)
{
    const ds_request_info_data *i = w->calls;
    uint8_t head[] = { (uint8_t)w->kind, i != NULL, i ? (uint8_t)start_of(w) : 0, i && !i->parallel_tool_calls,
                       i ? (uint8_t)i->opts.encoding : 0 };

    ds_buf_put(b, head, sizeof head);
    put(b, w->text);
    for (uint32_t k = 0; i && k < i->n_tools; k++) {
        const ds_tool *t = &i->tools[k];
        uint8_t how[] = { (uint8_t)t->kind, t->strict, (uint8_t)t->grammar };
        if (!t->shown)
            continue;
        ds_buf_put(b, how, sizeof how);
        put(b, t->name);
        put(b, t->parameters);
        put(b, t->definition);
    }
}

/* Reads back what was put; what is missing is bad. */
typedef struct {
    const char *at, *end;
    bool bad;
} pieces;

static const uint8_t *bytes_of(pieces *p, size_t n)
{
    const char *at = p->at;

    p->bad = p->bad || n > (size_t)(p->end - p->at);
    if (p->bad)
        return NULL;
    p->at += n;
    return (const uint8_t *)at;
}

static ds_str str_of(pieces *p)
{
    const uint8_t *at = bytes_of(p, sizeof(uint64_t));
    uint64_t n = 0;

    if (at)
        memcpy(&n, at, sizeof n);
    return (ds_str){ (const char *)bytes_of(p, (size_t)n), (size_t)n };
}

static bool tool_of(ds_tool *t, pieces *p)
{
    const uint8_t *how = bytes_of(p, 3);

    if (!how || how[0] > DS_TOOL_CUSTOM || how[1] > 1 || how[2] > DS_GRAMMAR_REGEX)
        return false;
    *t = (ds_tool){ .kind = how[0], .strict = how[1], .grammar = how[2], .shown = true };
    t->name = str_of(p);
    t->parameters = str_of(p);
    t->definition = str_of(p);
    return !p->bad;
}

ds_rc constrain_read(constrain_read_room *room, ds_str d, ds_err *err)
{
    static const ds_parse_start starts[] = {
        [DS_CALLS_MAY] = DS_START_CONTENT, [DS_CALLS_MUST] = DS_START_CONTENT, [DS_CALLS_OPEN] = DS_START_BLOCK
    };
    pieces p = { d.p, d.p + d.n, false };
    const uint8_t *head = bytes_of(&p, 5);
    bool calls;

    *room = (constrain_read_room){ 0 };
    if (!head || head[0] > DS_CONSTRAINT_CHOICE || head[1] > 1 || head[2] > DS_CALLS_MAY || head[3] > 1 || head[4] > DS_ENC_V4)
        return ds_fail(err, DS_E_FORMAT, "constraint: not a description");
    calls = head[1];
    room->what = (ds_constrain_what){ .kind = head[0], .text = str_of(&p), .calls = calls ? &room->info : NULL, .param = "constraint" };
    room->info = (ds_request_info_data){ .start = starts[head[2]],
                                         .tool_choice = head[2] == DS_CALLS_MUST ? DS_CHOICE_REQUIRED : DS_CHOICE_AUTO,
                                         .parallel_tool_calls = !head[3] };
    room->info.opts.encoding = head[4];
    while (!p.bad && p.at < p.end) {
        ds_tool *more =
            calls && room->info.n_tools < CONSTRAIN_MAX_TOOLS ? realloc(room->tools, (room->info.n_tools + 1) * sizeof *more) : NULL;
        if (!more)
            break;
        room->tools = more;
        if (!tool_of(&more[room->info.n_tools], &p))
            break;
        room->info.n_tools++;
    }
    room->info.tools = room->tools;
    if (!p.bad && p.at == p.end)
        return DS_OK;
    free(room->tools);
    *room = (constrain_read_room){ 0 };
    return ds_fail(err, DS_E_FORMAT, "constraint: a description that is cut off or has more than there is");
}

/* ---- compiling --------------------------------------------------------------------------------------------------- */

typedef struct {
    ds_grammar_tool *tools;
    ds_json_doc **docs; /* of their parameters */
    uint32_t n;
    ds_json_doc *content;
} call_docs;

static void free_calls(call_docs *d)
{
    for (uint32_t k = 0; d->docs && k < d->n; k++)
        ds_json_free(d->docs[k]);
    ds_json_free(d->content);
    free(d->docs);
    free(d->tools);
}

static ds_tool_input input_of(const ds_tool *t)
{
    static const ds_tool_input custom[] = {
        [DS_GRAMMAR_NONE] = DS_TOOL_TEXT, [DS_GRAMMAR_LARK] = DS_TOOL_LARK, [DS_GRAMMAR_REGEX] = DS_TOOL_REGEX
    };

    return t->kind == DS_TOOL_CUSTOM ? custom[t->grammar] : DS_TOOL_JSON;
}

static ds_rc read_tool(call_docs *d, const ds_tool *t, ds_err *err)
{
    ds_grammar_tool *g = &d->tools[d->n];
    ds_rc rc = DS_OK;

    *g = (ds_grammar_tool){ .name = t->name.p,
                            .name_bytes = t->name.n,
                            .input = input_of(t),
                            .strict = t->strict,
                            .definition = t->definition.p,
                            .definition_bytes = t->definition.n };
    if (g->input == DS_TOOL_JSON && t->parameters.n) {
        rc = ds_json_parse(&d->docs[d->n], t->parameters.p, t->parameters.n, NULL, err);
        if (rc == DS_OK && ds_json_root(d->docs[d->n])->n > 0)
            g->parameters = ds_json_root(d->docs[d->n]);
    }
    d->n++;
    return rc;
}

static ds_rc compile_calls(ds_grammar **out, const ds_constrain_what *w, const ds_grammar_opts *o, ds_err *err)
{
    static const char *const never[] = { "<｜end▁of▁sentence｜>" };
    static const char any_object[] = "{\"type\":\"object\"}";
    const ds_request_info_data *i = w->calls;
    const ds_call_markup *m = ds_call_markup_of(i->opts.encoding);
    call_docs d = { .tools = calloc(i->n_tools + 1, sizeof *d.tools), .docs = calloc(i->n_tools + 1, sizeof *d.docs) };
    ds_str content = w->kind == DS_CONSTRAINT_JSON_OBJECT ? (ds_str){ any_object, sizeof any_object - 1 } : w->text;
    ds_grammar_calls c = { .start = start_of(w),
                           .single = !i->parallel_tool_calls,
                           .dsml = m->token,
                           .block = m->block,
                           .call = m->call,
                           .parameter = m->parameter,
                           .never = never,
                           .n_never = sizeof never / sizeof *never };
    ds_rc rc = d.tools && d.docs ? DS_OK : ds_fail(err, DS_E_NOMEM, "constraint: out of memory");

    for (uint32_t k = 0; k < i->n_tools && rc == DS_OK; k++)
        if (i->tools[k].shown)
            rc = read_tool(&d, &i->tools[k], err);
    if (rc == DS_OK && w->kind != DS_CONSTRAINT_NONE)
        rc = ds_json_parse(&d.content, content.p, content.n, NULL, err);
    if (rc == DS_OK) {
        c.tools = d.tools;
        c.n_tools = d.n;
        c.content = d.content ? ds_json_root(d.content) : NULL;
        rc = ds_grammar_tools(out, &c, o, err);
    }
    free_calls(&d);
    return rc;
}

static ds_rc compile_json(ds_grammar **out, const ds_constrain_what *w, const ds_grammar_opts *o, ds_err *err)
{
    ds_json_doc *doc;
    ds_rc rc = ds_json_parse(&doc, w->text.p, w->text.n, NULL, err);

    if (rc == DS_OK && w->kind == DS_CONSTRAINT_CHOICE)
        rc = ds_grammar_choices(out, ds_json_root(doc), o, err);
    else if (rc == DS_OK)
        rc = ds_grammar_json_schema(out, ds_json_root(doc), o, err);
    else if (rc == DS_E_FORMAT)
        rc = err->rc = DS_E_ARG;
    ds_json_free(doc);
    return rc;
}

ds_rc constrain_compile(ds_grammar **out, const ds_constrain_what *w, const ds_grammar_opts *o, ds_err *err)
{
    *out = NULL;
    if (w->calls)
        return compile_calls(out, w, o, err);
    switch (w->kind) {
    case DS_CONSTRAINT_JSON_OBJECT:
        return ds_grammar_json(out, true, o, err);
    case DS_CONSTRAINT_REGEX:
        return ds_grammar_regex(out, w->text.p, w->text.n, o, err);
    case DS_CONSTRAINT_EBNF:
        return ds_grammar_ebnf(out, w->text.p, w->text.n, o, err);
    case DS_CONSTRAINT_JSON_SCHEMA:
    case DS_CONSTRAINT_CHOICE:
        return compile_json(out, w, o, err);
    case DS_CONSTRAINT_LARK:
        return ds_grammar_lark(out, w->text.p, w->text.n, o, err);
    case DS_CONSTRAINT_NONE:
        break;
    }
    return ds_fail(err, DS_E_ARG, "nothing is asked for");
}
