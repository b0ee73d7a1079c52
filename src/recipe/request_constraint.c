/* What the answer must be: response formats of the protocols, and vLLM's members for the same. */
#include <string.h>

#include "recipe/request_internal.h"
#include "schema/schema.h"

/* Notes the constraint that stands at a place. One answer has one. */
static void set(ds_rp *p, ds_constraint_kind kind, ds_str text, const ds_path *at, const char *key)
{
    ds_constraint *c = &p->r->info.constraint;
    char where[160];

    if (p->rc != DS_OK)
        return;
    if (c->kind != DS_CONSTRAINT_NONE) {
        ds_rp_refuse(p, DS_STAGE_FORMAT, at, key, "the answer is constrained by %s already", c->param ? c->param : "another member");
        return;
    }
    ds_path_text(where, sizeof where, at, key);
    c->kind = kind;
    c->text = text;
    c->param = ds_region_str(p->mem, where, strlen(where)).p;
}

/* A schema: checked for being one, and where no decoder follows that does better, for what can be enforced at all. */
static void schema(ds_rp *p, const ds_json *s, const ds_path *at, const char *key)
{
    const ds_json *type = ds_json_get(s, "type");
    char what[160];

    if (!ds_schema_valid(s, what, sizeof what))
        ds_rp_refuse(p, DS_STAGE_FORMAT, at, key, "not a JSON Schema: %s", what);
    else if (p->r->info.constraint.strict && !p->o->own_decoder && !ds_schema_enforceable(s, what, sizeof what))
        ds_rp_refuse(p, DS_STAGE_FORMAT, at, key, "strict is not possible: %s is not supported", what);
    ds_rp_check_json(p, DS_STAGE_FORMAT, s, at, key);
    set(p, DS_CONSTRAINT_JSON_SCHEMA, ds_rp_json_text(p, s, DS_JSON_COMPACT), at, key);
    p->r->info.json_mode = ds_json_str_eq(type, "object") || ds_json_str_eq(type, "array");
}

/* ---- response format ---- */

void ds_rp_json_schema(ds_rp *p, const ds_json *obj, const ds_path *at)
{
    static const char *const names[] = { "schema", "strict", "name" };
    ds_constraint *c = &p->r->info.constraint;
    const ds_json *f[3];

    ds_fields(obj, names, 3, f);
    ds_rp_str(p, f[2], at, "name", &c->name);
    ds_rp_bool(p, f[1], at, "strict", &c->strict);
    if (!f[0]) {
        ds_rp_missing(p, at, "schema");
        return;
    }
    if (!ds_rp_object(p, f[0], at, "schema"))
        return;
    if (p->o->no_constraints && c->strict)
        ds_rp_refuse(p, DS_STAGE_FORMAT, at, "strict", "this server can't constrain the output");
    schema(p, f[0], at, "schema");
    p->r->conv.response_schema = f[0];
}

void ds_rp_response_format(ds_rp *p, const ds_json *v, const ds_path *at, bool nested, bool allow_regex, bool needs_mention)
{
    static const char *const names[] = { "type", "json_schema", "regex" };
    ds_path in = { at, "json_schema", 0 };
    const ds_json *f[3];
    ds_str pattern;

    if (!ds_rp_object(p, v, at, NULL))
        return;
    ds_fields(v, names, 3, f);
    if (!f[0]) {
        ds_rp_missing(p, at, "type");
        return;
    }
    switch (ds_rp_enum(p, f[0], at, "type", allow_regex ? "text|json_object|json_schema|regex" : "text|json_object|json_schema")) {
    case 1:
        if (needs_mention && !p->mentions_json)
            ds_rp_refuse(p, DS_STAGE_FORMAT, at, "type", "json_object needs the word \"json\" in some message");
        set(p, DS_CONSTRAINT_JSON_OBJECT, (ds_str){ 0 }, at, "type");
        p->r->info.json_mode = true;
        p->r->conv.json_object = true;
        break;
    case 2:
        if (!nested) {
            ds_rp_json_schema(p, v, at);
        } else if (!f[1]) {
            ds_rp_missing(p, at, "json_schema");
        } else if (ds_rp_object(p, f[1], at, "json_schema")) {
            ds_rp_json_schema(p, f[1], &in);
        }
        break;
    case 3:
        if (!p->o->allow_regex || p->o->no_constraints)
            ds_rp_refuse(p, DS_STAGE_FORMAT, at, "type", "regex is not supported");
        else if (!f[2])
            ds_rp_missing(p, at, "regex");
        else if (ds_rp_str(p, f[2], at, "regex", &pattern))
            set(p, DS_CONSTRAINT_REGEX, pattern, at, "regex");
        break;
    default:
        break;
    }
}

/* ---- vLLM's members ---- */

static void choices(ds_rp *p, const ds_json *v, const ds_path *at, const char *key)
{
    ds_path list = { at, key, 0 }, item = { &list, NULL, 0 };
    ds_str s;

    if (!ds_rp_array(p, v, at, key))
        return;
    if (v->n == 0)
        ds_rp_refuse(p, DS_STAGE_FORMAT, at, key, "must not be empty");
    for (const ds_json *e = v->child; e && p->rc == DS_OK; e = e->next, item.index++)
        if (e->type == DS_JSON_NULL)
            ds_rp_type(p, &item, NULL, "expected a string, got null");
        else
            ds_rp_str(p, e, &item, NULL, &s);
    set(p, DS_CONSTRAINT_CHOICE, ds_rp_json_text(p, v, DS_JSON_COMPACT), at, key);
}

/* A schema, or its text. */
static void json(ds_rp *p, const ds_json *v, const ds_path *at, const char *key)
{
    if (v->type == DS_JSON_STRING) {
        v = ds_rp_parse(p, v->text, v->text_len);
        if (!v) {
            ds_rp_refuse(p, DS_STAGE_FORMAT, at, key, "not a JSON Schema: the text is no JSON");
            return;
        }
    }
    if (ds_rp_object(p, v, at, key))
        schema(p, v, at, key);
}

/* One of the two notations; vLLM's clients write either. */
static ds_constraint_kind notation(ds_str rules)
{
    return memmem(rules.p, rules.n, "::=", 3) ? DS_CONSTRAINT_EBNF : DS_CONSTRAINT_LARK;
}

static void text(ds_rp *p, const ds_json *v, const ds_path *at, const char *key, bool rules)
{
    ds_str s;

    if (ds_rp_str(p, v, at, key, &s))
        set(p, rules ? notation(s) : DS_CONSTRAINT_REGEX, s, at, key);
}

static void structured(ds_rp *p, const ds_json *v)
{
    static const char *const names[] = { "json", "regex", "choice", "grammar", "json_object", "structural_tag", "whitespace_pattern" };
    ds_path at = { NULL, "structured_outputs", 0 };
    const ds_json *f[7];
    bool object = false, asked = false;

    if (!ds_rp_object(p, v, NULL, "structured_outputs"))
        return;
    ds_fields(v, names, 7, f);
    if (f[0])
        json(p, f[0], &at, "json");
    text(p, f[1], &at, "regex", false);
    if (f[2])
        choices(p, f[2], &at, "choice");
    text(p, f[3], &at, "grammar", true);
    if (ds_rp_bool(p, f[4], &at, "json_object", &object) && object) {
        set(p, DS_CONSTRAINT_JSON_OBJECT, (ds_str){ 0 }, &at, "json_object");
        p->r->info.json_mode = true;
    }
    for (int i = 5; i < 7; i++)
        if (f[i])
            ds_rp_refuse(p, DS_STAGE_FORMAT, &at, names[i], "not supported");
    for (const ds_json *m = v->child; m; m = m->next)
        asked = asked || m->type != DS_JSON_NULL;
    if (p->r->info.constraint.kind == DS_CONSTRAINT_NONE && asked)
        ds_rp_refuse(p, DS_STAGE_FORMAT, NULL, "structured_outputs", "needs one of json, regex, choice, grammar, json_object");
}

void ds_rp_guided(ds_rp *p, const ds_guided_fields *f)
{
    if (f->json)
        json(p, f->json, NULL, "guided_json");
    text(p, f->regex, NULL, "guided_regex", false);
    if (f->choice)
        choices(p, f->choice, NULL, "guided_choice");
    text(p, f->grammar, NULL, "guided_grammar", true);
    structured(p, f->structured);
    if (p->r->info.constraint.kind != DS_CONSTRAINT_NONE && p->o->no_constraints)
        ds_rp_refuse(p, DS_STAGE_FORMAT, NULL, p->r->info.constraint.param, "this server can't constrain the output");
}
