/* Declared tools and the choice among them. (recipe spec 4.1, 4.2, 4.4, 4.6) */
#include <stdio.h>
#include <string.h>

#include "recipe/request_internal.h"
#include "schema/schema.h"

void ds_rp_tools_begin(ds_rp *p, size_t max_new)
{
    ds_request *r = p->r;
    size_t cap = max_new;

    if (cap > p->o->max_tools) {
        ds_rp_refuse(p, DS_STAGE_TOOLS, NULL, "tools", "%zu tools, at most %u are taken", cap, p->o->max_tools);
        cap = p->o->max_tools;
    }
    r->info.tools = ds_region_array(p->mem, cap ? cap : 1, sizeof *r->info.tools);
    r->tool_source = ds_region_array(p->mem, cap ? cap : 1, sizeof *r->tool_source);
    if (!ds_idmap_reset(&r->tool_map, p->mem, (uint32_t)(cap ? cap : 1)) || !r->info.tools || !r->tool_source)
        ds_rp_oom(p);
}

bool ds_rp_name_ok(ds_str name)
{
    if (name.n < 1 || name.n > 128)
        return false;
    for (size_t i = 0; i < name.n; i++) {
        char c = name.p[i];

        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-'))
            return false;
    }
    return true;
}

ds_tool *ds_rp_find_tool(ds_rp *p, ds_str name)
{
    const struct ds_idmap_slot *s = name.p ? ds_idmap_find(&p->r->tool_map, name) : NULL;

    return s ? (ds_tool *)&p->r->info.tools[s->value] : NULL;
}

ds_tool *ds_rp_add_tool(ds_rp *p, ds_str name, ds_str description, const ds_json *parameters, bool strict, const ds_json *source,
                        const ds_path *at)
{
    ds_request *r = p->r;
    const char *key = r->info.proto == DS_PROTO_MESSAGES ? "input_schema" : "parameters";
    ds_tool *t;
    char word[96], what[160];

    if (ds_rp_stop(p) || r->info.n_tools >= r->tool_map.cap || r->info.n_tools >= p->o->max_tools)
        return NULL;
    if (!ds_idmap_put(&r->tool_map, name, r->info.n_tools)) {
        ds_rp_refuse(p, DS_STAGE_TOOLS, at, "name", "'%s' is declared twice", ds_str_word(word, sizeof word, name));
        return NULL;
    }
    ds_rp_check_text(p, DS_STAGE_TOOLS, name, at, "name");
    ds_rp_check_text(p, DS_STAGE_TOOLS, description, at, "description");
    if (parameters) {
        const ds_json *type = ds_json_get(parameters, "type");

        if (!ds_schema_valid(parameters, what, sizeof what))
            ds_rp_refuse(p, DS_STAGE_TOOLS, at, key, "the parameters of '%s' are no JSON Schema: %s", ds_str_word(word, sizeof word, name),
                         what);
        else if (type && !ds_json_str_eq(type, "object"))
            ds_rp_refuse(p, DS_STAGE_TOOLS, at, key, "the parameters of '%s' must be of type \"object\"",
                         ds_str_word(word, sizeof word, name));
        else if (strict && !p->o->own_decoder && !ds_schema_enforceable(parameters, what, sizeof what))
            ds_rp_refuse(p, DS_STAGE_TOOLS, at, key, "strict is not possible for '%s': %s is not supported",
                         ds_str_word(word, sizeof word, name), what);
        ds_rp_check_json(p, DS_STAGE_TOOLS, parameters, at, key);
    }
    r->tool_source[r->info.n_tools] = source;
    t = (ds_tool *)&r->info.tools[r->info.n_tools++];
    t->name = t->fn = name;
    t->description = description.p ? description : ds_lit("");
    t->parameters = parameters ? ds_rp_json_text(p, parameters, DS_JSON_PYTHON) : ds_lit("{}");
    t->strict = strict;
    t->shown = true;
    return t;
}

static const char patch_help[] = "Edits files. The input is one patch: a first line `*** Begin Patch`, one section a file, a last line "
                                 "`*** End Patch`. A section starts with "
                                 "`*** Add File: PATH` (then every line of the new file with `+` before it), `*** Delete File: PATH` "
                                 "(nothing more), or `*** Update File: PATH`, "
                                 "which may be followed by `*** Move to: NEWPATH` and has hunks: a line `@@`, optionally with the "
                                 "surrounding function or class, then lines that "
                                 "begin with a space (unchanged), `-` (removed) or `+` (added). Paths are relative.";

/* Description, blank line, syntax, grammar. */
static ds_str with_grammar(ds_rp *p, ds_str description, ds_grammar_syntax syntax, ds_str definition)
{
    ds_str note = ds_lit(syntax == DS_GRAMMAR_LARK ? "The input must follow this grammar (syntax: lark):\n"
                                                   : "The input must match this regular expression (syntax: regex):\n");

    if (description.n)
        description = ds_region_join(p->mem, description, ds_lit("\n\n"));
    return ds_region_join(p->mem, ds_region_join(p->mem, description, note), definition);
}

void ds_rp_add_custom(ds_rp *p, const ds_json *obj, const ds_path *at, bool nested_grammar)
{
    static const char *const names[] = { "name", "description", "format" };
    static const char *const format_names[] = { "type", "syntax", "definition", "grammar" };
    static const char input_schema[] = "{\"type\":\"object\",\"properties\":{\"input\":{\"type\":\"string\"}},\"required\":[\"input\"],"
                                       "\"additionalProperties\":false}";
    const ds_json *f[3], *g[4] = { NULL }, *schema;
    ds_path fmt = { at, "format", 0 }, gram = { &fmt, "grammar", 0 };
    const ds_path *where = &fmt;
    ds_str name = { 0 }, description = { 0 }, definition = { 0 };
    ds_grammar_syntax syntax = DS_GRAMMAR_NONE;
    ds_tool *t;
    char word[96];

    ds_fields(obj, names, 3, f);
    if (!f[0])
        ds_rp_missing(p, at, "name");
    ds_rp_str(p, f[0], at, "name", &name);
    ds_rp_str(p, f[1], at, "description", &description);
    if (ds_rp_object(p, f[2], at, "format")) {
        ds_fields(f[2], format_names, 4, g);
        if (!g[0])
            ds_rp_missing(p, &fmt, "type");
        if (ds_rp_enum(p, g[0], &fmt, "type", "text|grammar") == 1) {
            if (nested_grammar && ds_rp_object(p, g[3], &fmt, "grammar")) {
                const ds_json *inner = g[3];

                ds_fields(inner, format_names, 4, g);
                where = &gram;
            }
            if (!g[1])
                ds_rp_missing(p, where, "syntax");
            if (!g[2])
                ds_rp_missing(p, where, "definition");
            syntax = ds_rp_enum(p, g[1], where, "syntax", "lark|regex") == 1 ? DS_GRAMMAR_REGEX : DS_GRAMMAR_LARK;
            ds_rp_str(p, g[2], where, "definition", &definition);
        }
    }
    if (ds_rp_stop(p))
        return;
    if (!ds_rp_name_ok(name))
        ds_rp_refuse(p, DS_STAGE_TOOLS, at, "name", "'%s' must be 1 to 128 of A-Z a-z 0-9 _ -", ds_str_word(word, sizeof word, name));
    if (!description.n && ds_str_is(name, "apply_patch"))
        description = ds_lit(patch_help);
    ds_rp_check_text(p, DS_STAGE_TOOLS, definition, where, "definition");
    if (syntax != DS_GRAMMAR_NONE)
        description = with_grammar(p, description, syntax, definition);
    schema = ds_rp_parse(p, input_schema, sizeof input_schema - 1);
    if (ds_rp_stop(p) || !schema)
        return;
    t = ds_rp_add_tool(p, name, description, schema, false, obj, at);
    if (t) {
        t->kind = DS_TOOL_CUSTOM;
        t->grammar = syntax;
        t->definition = definition;
    }
}

void ds_rp_choose_named(ds_rp *p, ds_str name, const ds_path *at, const char *key)
{
    ds_request_info_data *i = &p->r->info;
    ds_tool *chosen = ds_rp_find_tool(p, name);
    char word[96];

    if (!chosen) {
        ds_rp_refuse(p, DS_STAGE_CHOICE, at, key, "no tool named '%s' is declared", ds_str_word(word, sizeof word, name));
        return;
    }
    for (uint32_t k = 0; k < i->n_tools; k++)
        ((ds_tool *)i->tools)[k].shown = &i->tools[k] == chosen;
    i->tool_choice = DS_CHOICE_REQUIRED;
    p->choice_named = true;
}

void ds_rp_choose_allowed(ds_rp *p, const ds_json *obj, const ds_path *at, bool nested)
{
    static const char *const names[] = { "mode", "tools" };
    static const char *const tool_names[] = { "name", "function", "custom", "type", "namespace" };
    ds_request_info_data *i = &p->r->info;
    ds_path list = { at, "tools", 0 }, item = { &list, NULL, 0 };
    const ds_json *f[2], *t[5];
    int mode;

    ds_fields(obj, names, 2, f);
    if (!f[0])
        ds_rp_missing(p, at, "mode");
    if (!f[1])
        ds_rp_missing(p, at, "tools");
    mode = ds_rp_enum(p, f[0], at, "mode", "auto|required");
    if (!ds_rp_array(p, f[1], at, "tools"))
        return;
    for (uint32_t k = 0; k < i->n_tools; k++)
        ((ds_tool *)i->tools)[k].shown = false;
    for (const ds_json *e = f[1]->child; e && !ds_rp_stop(p); e = e->next, item.index++) {
        ds_str name = { 0 }, ns = { 0 };
        ds_tool *tool;
        char word[96];

        if (!ds_rp_object(p, e, &item, NULL))
            return;
        ds_fields(e, tool_names, 5, t);
        if (nested && !t[0] && (t[1] || t[2])) {
            const ds_json *inner = t[1] ? t[1] : t[2];

            ds_fields(inner, tool_names, 5, t);
        }
        if (!t[0]) /* a hosted tool: not shown to the model anyway */
            continue;
        if (!ds_rp_str(p, t[0], &item, "name", &name))
            return;
        if (ds_rp_str(p, t[4], &item, "namespace", &ns) && ns.n)
            name = ds_region_join(p->mem, ds_region_join(p->mem, ns, ds_lit("::")), name);
        tool = ds_rp_find_tool(p, name);
        if (tool)
            tool->shown = true;
        else
            ds_rp_refuse(p, DS_STAGE_CHOICE, &item, "name", "no tool named '%s' is declared", ds_str_word(word, sizeof word, name));
    }
    if (mode == 1)
        i->tool_choice = DS_CHOICE_REQUIRED;
}

/* What a request that doesn't mention thinking gets: who forces a call or a schema mostly doesn't know of it. */
static void default_thinking(ds_rp *p, const ds_json *format)
{
    ds_request_info_data *i = &p->r->info;
    bool forced = i->tool_choice == DS_CHOICE_REQUIRED || ds_json_is(ds_json_get(format, "strict"), DS_JSON_TRUE) ||
                  i->constraint.kind != DS_CONSTRAINT_NONE;

    if (p->thinking_asked || p->o->thinking == DS_THINKING_ON || (p->o->thinking == DS_THINKING_AUTO && !forced))
        return;
    i->thinking = false;
    i->effort = DS_EFFORT_NONE;
}

/* A strict tool that is shown: its promise is kept or the request refused. */
static void check_strict(ds_rp *p)
{
    const ds_request_info_data *i = &p->r->info;
    char word[96];

    for (uint32_t k = 0; k < i->n_tools && p->o->no_constraints; k++)
        if (i->tools[k].shown && i->tools[k].strict)
            ds_rp_refuse(p, DS_STAGE_TOOLS, NULL, "tools", "'%s' asks for strict, and this server can't constrain the output",
                         ds_str_word(word, sizeof word, i->tools[k].name));
}

void ds_rp_tools_end(ds_rp *p, const ds_json *format)
{
    ds_request_info_data *i = &p->r->info;
    bool none = i->tool_choice == DS_CHOICE_NONE, any = false;

    p->r->conv.has_tools_field = i->n_tools > 0;
    for (uint32_t k = 0; k < i->n_tools; k++) {
        if (none)
            ((ds_tool *)i->tools)[k].shown = false;
        any = any || i->tools[k].shown;
    }
    if (!any && i->tool_choice == DS_CHOICE_REQUIRED)
        i->tool_choice = DS_CHOICE_AUTO;
    default_thinking(p, format);
    check_strict(p);
    if (i->tool_choice == DS_CHOICE_REQUIRED && i->thinking && p->o->no_constraints)
        ds_rp_refuse(p, DS_STAGE_CHOICE, NULL, "tool_choice", "a required or named tool isn't possible with thinking on");
    i->parse_tools = any && !none;
    i->suppress_markup = !i->parse_tools && (p->o->suppress_markup > 0 || (p->o->suppress_markup < 0 && none));
    if (!any)
        i->tool_choice = DS_CHOICE_NONE;
}
