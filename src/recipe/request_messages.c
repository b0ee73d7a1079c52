/* Anthropic Messages, count_tokens too. (recipe spec 4.6, 4.8) */
#include <string.h>

#include "recipe/request_internal.h"

enum {
    F_MODEL,
    F_MESSAGES,
    F_MAX_TOKENS,
    F_SYSTEM,
    F_TEMPERATURE,
    F_TOP_P,
    F_TOP_K,
    F_STOP,
    F_STREAM,
    F_TOOLS,
    F_TOOL_CHOICE,
    F_THINKING,
    F_OUTPUT_CONFIG,
    F_OUTPUT_FORMAT,
    F_METADATA,
    F_SEED,
    F_MIN_P,
    F_FREQUENCY,
    F_PRESENCE,
    F_REPETITION,
    F_LOGIT_BIAS,
    F_IGNORE_EOS,
    F_MIN_TOKENS,
    N_FIELDS
};
const char *const ds_messages_members[N_FIELDS + 1] = {
    "model",       "messages",   "max_tokens",        "system",           "temperature",
    "top_p",       "top_k",      "stop_sequences",    "stream",           "tools",
    "tool_choice", "thinking",   "output_config",     "output_format",    "metadata",
    "seed",        "min_p",      "frequency_penalty", "presence_penalty", "repetition_penalty",
    "logit_bias",  "ignore_eos", "min_tokens"
};

static const char unsupported_document[] = "[Unsupported Document]";

/* ---- options ---- */

static void thinking(ds_rp *p, const ds_json **f)
{
    static const char *const names[] = { "type", "budget_tokens", "display" };
    static const char *const config_names[] = { "effort", "format" };
    ds_path at = { NULL, "thinking", 0 }, config = { NULL, "output_config", 0 };
    const ds_json *t[3] = { NULL }, *c[2] = { NULL };
    ds_effort effort = DS_EFFORT_HIGH;
    uint32_t number = 0;
    bool has_effort;
    int on = -1;

    if (ds_rp_object(p, f[F_THINKING], NULL, "thinking")) {
        ds_fields(f[F_THINKING], names, 3, t);
        if (!t[0])
            ds_rp_missing(p, &at, "type");
        on = ds_rp_enum(p, t[0], &at, "type", "disabled|enabled|adaptive");
        ds_rp_i64(p, t[1], &at, "budget_tokens", &p->r->info.thinking_budget);
        p->r->info.hide_thinking = ds_rp_enum(p, t[2], &at, "display", "summarized|omitted") == 1;
        on = on < 0 ? -1 : on > 0;
    }
    if (ds_rp_object(p, f[F_OUTPUT_CONFIG], NULL, "output_config"))
        ds_fields(f[F_OUTPUT_CONFIG], config_names, 2, c);
    has_effort = ds_rp_effort(p, c[0], &config, "effort", false, false, &effort, &number);
    ds_rp_thinking(p, on, has_effort, effort, number);
}

static void output_format(ds_rp *p, const ds_json **f)
{
    static const char *const names[] = { "type" };
    ds_path config = { NULL, "output_config", 0 }, nested = { &config, "format", 0 }, top = { NULL, "output_format", 0 };
    const ds_json *v = ds_json_get(f[F_OUTPUT_CONFIG], "format"), *t[1];
    const ds_path *at = &nested;

    if (!v || v->type == DS_JSON_NULL) {
        v = f[F_OUTPUT_FORMAT];
        at = &top;
    }
    if (!ds_rp_object(p, v, at, NULL))
        return;
    ds_fields(v, names, 1, t);
    if (!t[0])
        ds_rp_missing(p, at, "type");
    if (ds_rp_enum(p, t[0], at, "type", "json_schema") == 0)
        ds_rp_json_schema(p, v, at);
}

/* ---- tools ---- */

static bool ignored_tool_type(const ds_rp *p, ds_str type)
{
    return p->o->ignore_server_tools || (p->o->ignore_web_search && ds_str_starts(type, "web_search"));
}

static void one_tool(ds_rp *p, const ds_json *e, const ds_path *at, ds_idmap *ignored)
{
    static const char *const names[] = { "type", "name", "description", "input_schema", "strict" };
    const ds_json *f[5];
    ds_str type = { 0 }, name = { 0 }, description = { 0 };
    bool strict = false;
    char word[96];

    if (!ds_rp_object(p, e, at, NULL)) {
        ds_rp_type(p, at, NULL, "expected an object, got null");
        return;
    }
    ds_fields(e, names, 5, f);
    ds_rp_str(p, f[0], at, "type", &type);
    if (type.p && !ds_str_is(type, "custom")) {
        if (!ignored_tool_type(p, type)) {
            ds_rp_refuse(p, DS_STAGE_TOOLS, at, "type", "server tool '%s' is not supported", ds_str_word(word, sizeof word, type));
            return;
        }
        if (ds_rp_str(p, f[1], at, "name", &name))
            ds_idmap_put(ignored, name, 0);
        return;
    }
    if (!f[1])
        ds_rp_missing(p, at, "name");
    ds_rp_str(p, f[1], at, "name", &name);
    ds_rp_str(p, f[2], at, "description", &description);
    if (!f[3])
        ds_rp_missing(p, at, "input_schema");
    ds_rp_object(p, f[3], at, "input_schema");
    ds_rp_bool(p, f[4], at, "strict", &strict);
    if (ds_rp_stop(p))
        return;
    if (!ds_rp_name_ok(name))
        ds_rp_refuse(p, DS_STAGE_TOOLS, at, "name", "'%s' must be 1 to 128 of A-Z a-z 0-9 _ -", ds_str_word(word, sizeof word, name));
    ds_rp_add_tool(p, name, description, f[3], strict, e, at);
}

static void tools(ds_rp *p, const ds_json **f)
{
    static const char *const names[] = { "type", "name", "disable_parallel_tool_use" };
    ds_path list = { NULL, "tools", 0 }, item = { &list, NULL, 0 }, choice = { NULL, "tool_choice", 0 };
    ds_request_info_data *i = &p->r->info;
    ds_idmap ignored = { 0 };
    const ds_json *c[3];
    bool single = false;
    ds_str name;

    i->parallel_tool_calls = true;
    if (ds_rp_array(p, f[F_TOOLS], NULL, "tools") && f[F_TOOLS]->n) {
        ds_rp_tools_begin(p, f[F_TOOLS]->n);
        if (!ds_idmap_reset(&ignored, p->mem, f[F_TOOLS]->n))
            return;
        for (const ds_json *e = f[F_TOOLS]->child; e && !ds_rp_stop(p); e = e->next, item.index++)
            one_tool(p, e, &item, &ignored);
    }
    if (!ds_rp_object(p, f[F_TOOL_CHOICE], NULL, "tool_choice"))
        return;
    ds_fields(f[F_TOOL_CHOICE], names, 3, c);
    if (!c[0])
        ds_rp_missing(p, &choice, "type");
    if (ds_rp_bool(p, c[2], &choice, "disable_parallel_tool_use", &single))
        i->parallel_tool_calls = !single;
    switch (ds_rp_enum(p, c[0], &choice, "type", "auto|any|tool|none")) {
    case 1: /* with thinking it is only a wish: a call can't be demanded before the reasoning has ended */
        i->tool_choice = i->thinking && (p->thinking_asked || p->o->thinking == DS_THINKING_ON) ? DS_CHOICE_AUTO : DS_CHOICE_REQUIRED;
        break;
    case 2:
        if (!c[1])
            ds_rp_missing(p, &choice, "name");
        if (!ds_rp_str(p, c[1], &choice, "name", &name) || ds_idmap_find(&ignored, name))
            break;
        ds_rp_choose_named(p, name, &choice, "name");
        break;
    case 3:
        i->tool_choice = DS_CHOICE_NONE;
        break;
    default:
        break;
    }
}

/* ---- blocks ---- */

static void text_part(ds_rp *p, ds_parts *to, ds_str s, const ds_path *at, const char *key)
{
    ds_rp_check_text(p, DS_STAGE_MESSAGES, s, at, key);
    ds_rp_note_json(p, s);
    ds_parts_text(to, p->mem, s, "\n\n");
}

static void text_block(ds_rp *p, ds_parts *to, const ds_json *text, const ds_path *at)
{
    ds_str s;

    if (!text)
        ds_rp_missing(p, at, "text");
    if (ds_rp_str(p, text, at, "text", &s))
        text_part(p, to, s, at, "text");
}

enum { S_TYPE, S_MEDIA_TYPE, S_DATA, S_URL, S_FILE_ID, S_CONTENT, N_SOURCE };
static const char *const source_fields[N_SOURCE] = { "type", "media_type", "data", "url", "file_id", "content" };

static void image_block(ds_rp *p, ds_parts *to, const ds_json *source, const ds_path *at)
{
    ds_path in = { at, "source", 0 };
    const ds_json *f[N_SOURCE];
    ds_str type = { 0 }, data = { 0 };

    if (!source)
        ds_rp_missing(p, at, "source");
    if (!ds_rp_object(p, source, at, "source"))
        return;
    ds_fields(source, source_fields, N_SOURCE, f);
    if (!f[S_TYPE])
        ds_rp_missing(p, &in, "type");
    switch (ds_rp_enum(p, f[S_TYPE], &in, "type", "base64|url|file")) {
    case 0:
        if (!f[S_MEDIA_TYPE])
            ds_rp_missing(p, &in, "media_type");
        if (!f[S_DATA])
            ds_rp_missing(p, &in, "data");
        ds_rp_str(p, f[S_MEDIA_TYPE], &in, "media_type", &type);
        if (ds_rp_str(p, f[S_DATA], &in, "data", &data))
            ds_rp_image_base64(p, to, type, data, &in);
        break;
    case 1:
        if (!f[S_URL])
            ds_rp_missing(p, &in, "url");
        ds_rp_image_url(p, to, f[S_URL], NULL, &in, "url", "detail");
        break;
    case 2:
        if (!f[S_FILE_ID])
            ds_rp_missing(p, &in, "file_id");
        if (ds_rp_str(p, f[S_FILE_ID], &in, "file_id", &data))
            ds_rp_image_file(p, to, data, NULL, &in, "file_id");
        break;
    default:
        break;
    }
}

static void document_content(ds_rp *p, ds_parts *to, const ds_json *v, ds_str before, const ds_path *at)
{
    static const char *const names[] = { "type", "text", "source" };
    ds_path list = { at, "content", 0 }, item = { &list, NULL, 0 };
    const ds_json *f[3];
    ds_str s;

    if (v && v->type == DS_JSON_STRING) {
        s = ds_json_str_of(v);
        text_part(p, to, before.n ? ds_region_join(p->mem, before, s) : s, at, "content");
        return;
    }
    if (!v)
        ds_rp_missing(p, at, "content");
    if (!ds_rp_array(p, v, at, "content"))
        return;
    if (before.n)
        text_part(p, to, before, at, "content");
    for (const ds_json *e = v->child; e && !ds_rp_stop(p); e = e->next, item.index++) {
        int kind;

        ds_fields(e, names, 3, f);
        if (!f[0])
            ds_rp_missing(p, &item, "type");
        kind = ds_rp_enum(p, f[0], &item, "type", "text|image");
        if (kind == 0 && before.n && e == v->child &&
            ds_rp_str(p, f[1], &item, "text", &s)) { /* the title stands directly before the text */
            to->last->text = ds_region_join(p->mem, before, s);
            ds_rp_check_text(p, DS_STAGE_MESSAGES, s, &item, "text");
        } else if (kind == 0) {
            text_block(p, to, f[1], &item);
        } else if (kind == 1) {
            image_block(p, to, f[2], &item);
        }
    }
}

static void document_block(ds_rp *p, ds_parts *to, const ds_json *block, const ds_path *at)
{
    static const char *const names[] = { "source", "title", "context" };
    ds_path in = { at, "source", 0 };
    const ds_json *b[3], *f[N_SOURCE];
    ds_str before = { 0 }, s, type = { 0 };

    ds_fields(block, names, 3, b);
    if (!b[0])
        ds_rp_missing(p, at, "source");
    if (!ds_rp_object(p, b[0], at, "source"))
        return;
    for (int i = 1; i < 3; i++)
        if (ds_rp_str(p, b[i], at, names[i], &s) && s.n) {
            ds_rp_check_text(p, DS_STAGE_MESSAGES, s, at, names[i]);
            before = ds_region_join(p->mem, ds_region_join(p->mem, before, s), ds_lit("\n"));
        }
    ds_fields(b[0], source_fields, N_SOURCE, f);
    if (!f[S_TYPE])
        ds_rp_missing(p, &in, "type");
    switch (ds_rp_enum(p, f[S_TYPE], &in, "type", "text|content|base64|url|file")) {
    case 0:
        if (!f[S_DATA])
            ds_rp_missing(p, &in, "data");
        if (ds_rp_str(p, f[S_DATA], &in, "data", &s))
            text_part(p, to, before.n ? ds_region_join(p->mem, before, s) : s, &in, "data");
        return;
    case 1:
        document_content(p, to, f[S_CONTENT], before, &in);
        return;
    case 2:
        ds_rp_str(p, f[S_MEDIA_TYPE], &in, "media_type", &type);
        if (!f[S_DATA])
            ds_rp_missing(p, &in, "data");
        if (!ds_rp_str(p, f[S_DATA], &in, "data", &s) || ds_rp_document(p, to, type.p ? type : ds_lit(""), s, before, &in))
            return;
        break;
    case -1:
        return;
    default:
        break;
    }
    ds_parts_text(to, p->mem, ds_lit(unsupported_document), "\n\n");
}

/* Blocks of tools that run at Anthropic: true when they are dropped. */
static bool server_block(ds_rp *p, ds_str type, const ds_json *block, const ds_path *at)
{
    bool result = type.n > 12 && memcmp(type.p + type.n - 12, "_tool_result", 12) == 0;
    bool web = ds_str_starts(type, "web_search") || ds_str_starts(ds_json_str_of(ds_json_get(block, "name")), "web_search");
    char word[96];

    if (!result && !ds_str_is(type, "server_tool_use"))
        return false;
    if (!p->o->ignore_server_tools && !(web && p->o->ignore_web_search))
        ds_rp_refuse(p, DS_STAGE_MESSAGES, at, "type", "server tool block '%s' is not supported", ds_str_word(word, sizeof word, type));
    return true;
}

static void bad_type(ds_rp *p, const ds_json *type, const ds_path *at, const char *allowed)
{
    ds_rp_enum(p, type, at, "type", allowed); /* writes the refusal */
}

/* ---- tool results ---- */

static void result(ds_rp *p, const ds_json *block, const ds_path *at)
{
    static const char *const names[] = { "tool_use_id", "content" };
    static const char *const inner_names[] = { "type", "text", "source", "tool_name" };
    ds_path list = { at, "content", 0 }, item = { &list, NULL, 0 };
    const ds_json *f[2], *b[4];
    struct ds_idmap_slot *slot;
    ds_msg *m;
    ds_str s;
    char word[96];

    ds_fields(block, names, 2, f);
    if (!f[0])
        ds_rp_missing(p, at, "tool_use_id");
    m = ds_conv_add(&p->r->conv, p->mem, DS_ROLE_TOOL);
    if (!m || !ds_rp_str(p, f[0], at, "tool_use_id", &m->call_id))
        return;
    slot = p->open_calls ? ds_idmap_find(&p->ids, m->call_id) : NULL;
    if (!slot) {
        ds_rp_refuse(p, DS_STAGE_MESSAGES, at, "tool_use_id", "'%s' is no unanswered tool_use of the preceding assistant message",
                     ds_str_word(word, sizeof word, m->call_id));
    } else if (slot->value) {
        ds_rp_refuse(p, DS_STAGE_MESSAGES, at, "tool_use_id", "'%s' is answered twice", ds_str_word(word, sizeof word, m->call_id));
    } else {
        slot->value = 1;
        p->answered++;
    }
    if (!f[1])
        return;
    if (f[1]->type == DS_JSON_STRING) {
        text_part(p, &m->content, ds_json_str_of(f[1]), at, "content");
        return;
    }
    if (f[1]->type != DS_JSON_ARRAY) {
        ds_rp_type(p, at, "content", "expected a string or a list of blocks, got %s", ds_json_type_name(f[1]));
        return;
    }
    for (const ds_json *e = f[1]->child; e && !ds_rp_stop(p); e = e->next, item.index++) {
        if (!ds_rp_object(p, e, &item, NULL))
            return;
        ds_fields(e, inner_names, 4, b);
        if (!b[0])
            ds_rp_missing(p, &item, "type");
        switch (ds_rp_enum(p, b[0], &item, "type", "text|image|document|tool_reference")) {
        case 0:
            text_block(p, &m->content, b[1], &item);
            break;
        case 1:
            image_block(p, &m->content, b[2], &item);
            break;
        case 2:
            document_block(p, &m->content, e, &item);
            break;
        case 3:
            if (!b[3])
                ds_rp_missing(p, &item, "tool_name");
            if (ds_rp_str(p, b[3], &item, "tool_name", &s))
                text_part(p, &m->content, s, &item, "tool_name");
            break;
        default:
            break;
        }
    }
}

/* ---- messages ---- */

static void user(ds_rp *p, const ds_json *content, const ds_path *at)
{
    static const char *const names[] = { "type", "text", "source" };
    static const char allowed[] = "text|image|document|tool_result";
    ds_path list = { at, "content", 0 }, item = { &list, NULL, 0 };
    ds_parts parts = { 0 };
    const ds_json *f[3];
    ds_msg *m;

    if (content->type == DS_JSON_STRING) {
        m = ds_conv_add(&p->r->conv, p->mem, DS_ROLE_USER);
        if (m)
            text_part(p, &m->content, ds_json_str_of(content), at, "content");
        return;
    }
    for (const ds_json *e = content->child; e && !ds_rp_stop(p); e = e->next, item.index++) {
        ds_str type;

        if (!ds_rp_object(p, e, &item, NULL))
            return;
        ds_fields(e, names, 3, f);
        if (!f[0])
            ds_rp_missing(p, &item, "type");
        if (!ds_rp_str(p, f[0], &item, "type", &type))
            return;
        if (ds_str_is(type, "text"))
            text_block(p, &parts, f[1], &item);
        else if (ds_str_is(type, "image"))
            image_block(p, &parts, f[2], &item);
        else if (ds_str_is(type, "document"))
            document_block(p, &parts, e, &item);
        else if (ds_str_is(type, "tool_result"))
            result(p, e, &item); /* results come first, wherever they stand */
        else if (ds_str_is(type, "tool_use") || ds_str_is(type, "thinking") || ds_str_is(type, "redacted_thinking"))
            ds_rp_refuse(p, DS_STAGE_MESSAGES, &item, "type", "this block belongs into an assistant message");
        else if (!server_block(p, type, e, &item))
            bad_type(p, f[0], &item, allowed);
    }
    if (parts.first && (m = ds_conv_add(&p->r->conv, p->mem, DS_ROLE_USER)))
        m->content = parts;
}

static void tool_use(ds_rp *p, ds_msg *m, const ds_json *block, const ds_path *at)
{
    static const char *const names[] = { "id", "name", "input" };
    const ds_json *f[3];
    ds_str id = { 0 }, name = { 0 };
    ds_call *c;

    ds_fields(block, names, 3, f);
    if (!f[0])
        ds_rp_missing(p, at, "id");
    if (!f[1])
        ds_rp_missing(p, at, "name");
    if (!f[2] && !ds_json_get(block, "input"))
        ds_rp_missing(p, at, "input");
    if (!ds_rp_str(p, f[0], at, "id", &id) || !ds_rp_str(p, f[1], at, "name", &name))
        return;
    if (!id.n)
        ds_rp_refuse(p, DS_STAGE_MESSAGES, at, "id", "must not be empty");
    c = ds_msg_call(m, p->mem, id, name);
    if (!c)
        return;
    ds_rp_call_name(p, c, at, "name");
    if (!f[2]) /* null: no arguments */
        c->args = ds_rp_parse(p, "{}", 2);
    else if (f[2]->type == DS_JSON_OBJECT || f[2]->type == DS_JSON_STRING) {
        ds_rp_call_text(p, c, f[2], at, "input");
    } else { /* any other value is written as the text that it is */
        c->raw = ds_rp_json_text(p, f[2], DS_JSON_PYTHON);
        ds_rp_check_text(p, DS_STAGE_MESSAGES, c->raw, at, "input");
    }
}

static void thinking_block(ds_rp *p, ds_msg *m, const ds_json *block, const ds_path *at)
{
    static const char *const names[] = { "thinking", "signature" };
    const ds_json *f[2];
    ds_str s = { 0 }, sealed = { 0 }, opened;

    ds_fields(block, names, 2, f);
    if (!f[0])
        ds_rp_missing(p, at, "thinking");
    ds_rp_str(p, f[0], at, "thinking", &s);
    ds_rp_str(p, f[1], at, "signature", &sealed);
    if (!s.n && sealed.n && p->io && p->io->seal && ds_rp_unseal(p, sealed, at, "signature", &opened))
        s = opened;
    ds_rp_check_text(p, DS_STAGE_MESSAGES, s, at, "thinking");
    ds_parts_text(&m->reasoning, p->mem, s.p ? s : ds_lit(""), "\n\n");
}

static void redacted_block(ds_rp *p, ds_msg *m, const ds_json *block, const ds_path *at)
{
    static const char *const names[] = { "data" };
    const ds_json *f[1];
    ds_str s, opened;

    ds_fields(block, names, 1, f);
    if (!f[0])
        ds_rp_missing(p, at, "data");
    if (ds_rp_str(p, f[0], at, "data", &s) && ds_rp_unseal(p, s, at, "data", &opened)) {
        ds_rp_check_text(p, DS_STAGE_MESSAGES, opened, at, "data");
        ds_parts_text(&m->reasoning, p->mem, opened, "\n\n");
    }
}

static void open_calls(ds_rp *p, const ds_msg *m, const ds_path *at)
{
    char word[96];

    p->caller = m;
    p->open_calls = m->n_calls;
    p->answered = 0;
    if (!m->n_calls || !ds_idmap_reset(&p->ids, p->mem, m->n_calls))
        return;
    for (const ds_call *c = m->calls; c; c = c->next)
        if (!ds_idmap_put(&p->ids, c->id, 0)) {
            ds_rp_refuse(p, DS_STAGE_MESSAGES, at, "content", "tool_use id '%s' stands twice", ds_str_word(word, sizeof word, c->id));
            return;
        }
}

static void assistant(ds_rp *p, const ds_json *content, const ds_path *at)
{
    static const char *const names[] = { "type", "text" };
    static const char allowed[] = "text|thinking|redacted_thinking|tool_use";
    ds_path list = { at, "content", 0 }, item = { &list, NULL, 0 };
    ds_msg *m = ds_conv_add(&p->r->conv, p->mem, DS_ROLE_ASSISTANT);
    const ds_json *f[2];

    if (!m)
        return;
    if (content->type == DS_JSON_STRING) {
        text_part(p, &m->content, ds_json_str_of(content), at, "content");
        return;
    }
    for (const ds_json *e = content->child; e && !ds_rp_stop(p); e = e->next, item.index++) {
        ds_str type;

        if (!ds_rp_object(p, e, &item, NULL))
            return;
        ds_fields(e, names, 2, f);
        if (!f[0])
            ds_rp_missing(p, &item, "type");
        if (!ds_rp_str(p, f[0], &item, "type", &type))
            return;
        if (ds_str_is(type, "text"))
            text_block(p, &m->content, f[1], &item); /* text behind a tool_use moves before it */
        else if (ds_str_is(type, "thinking"))
            thinking_block(p, m, e, &item);
        else if (ds_str_is(type, "redacted_thinking"))
            redacted_block(p, m, e, &item);
        else if (ds_str_is(type, "tool_use"))
            tool_use(p, m, e, &item);
        else if (ds_str_is(type, "tool_result") || ds_str_is(type, "image") || ds_str_is(type, "document"))
            ds_rp_refuse(p, DS_STAGE_MESSAGES, &item, "type", "this block belongs into a user message");
        else if (!server_block(p, type, e, &item))
            bad_type(p, f[0], &item, allowed);
    }
    open_calls(p, m, at);
    if (p->o->require_reasoning && p->r->info.thinking && p->r->info.n_tools && !m->reasoning.first)
        ds_rp_refuse(p, DS_STAGE_MESSAGES, at, "content", "a thinking block must be passed back when tools are declared");
}

static void all_answered(ds_rp *p, const ds_path *at)
{
    char word[96];

    if (p->open_calls && p->answered < p->open_calls)
        ds_rp_refuse(p, DS_STAGE_MESSAGES, at, "content", "tool_use '%s' has no tool_result in the user message behind it",
                     ds_str_word(word, sizeof word, ds_rp_unanswered(p, p->caller)));
    p->open_calls = 0;
}

static void in_list_system(ds_rp *p, const ds_json *content, const ds_path *at)
{
    static const char *const names[] = { "type", "text" };
    ds_path list = { at, "content", 0 }, item = { &list, NULL, 0 };
    const ds_json *f[2];
    ds_parts inner = { 0 };
    bool turn = p->o->encoding == DS_ENC_V41; /* V4 knows system text at the head only */
    ds_msg *m = ds_conv_add(&p->r->conv, p->mem, turn ? DS_ROLE_SYSTEM : DS_ROLE_USER);

    if (!m)
        return;
    if (content->type == DS_JSON_STRING) {
        text_part(p, &inner, ds_json_str_of(content), at, "content");
    } else {
        for (const ds_json *e = content->child; e && !ds_rp_stop(p); e = e->next, item.index++) {
            ds_fields(e, names, 2, f);
            if (!f[0])
                ds_rp_missing(p, &item, "type");
            if (ds_rp_enum(p, f[0], &item, "type", "text") == 0)
                text_block(p, &inner, f[1], &item);
        }
    }
    if (turn) {
        m->content = inner;
        return;
    }
    ds_parts_text(&m->content, p->mem, ds_lit("<system-reminder>\n"), "");
    for (const ds_part *s = inner.first; s; s = s->next)
        ds_parts_text(&m->content, p->mem, s->text, s == inner.first ? "" : "\n\n");
    ds_parts_text(&m->content, p->mem, ds_lit("\n</system-reminder>"), "");
}

static void message(ds_rp *p, const ds_json *e, const ds_path *at)
{
    static const char *const names[] = { "role", "content" };
    const ds_json *f[2];
    int role;

    if (e->type != DS_JSON_OBJECT) {
        ds_rp_type(p, at, NULL, "expected an object, got %s", ds_json_type_name(e));
        return;
    }
    ds_fields(e, names, 2, f);
    if (!f[0])
        ds_rp_missing(p, at, "role");
    role = ds_rp_enum(p, f[0], at, "role", "user|assistant|system");
    if (!f[1])
        ds_rp_missing(p, at, "content");
    if (role < 0 || p->rc != DS_OK)
        return;
    if (f[1]->type != DS_JSON_STRING && f[1]->type != DS_JSON_ARRAY) {
        ds_rp_type(p, at, "content", "expected a string or a list of blocks, got %s", ds_json_type_name(f[1]));
        return;
    }
    if (f[1]->type == DS_JSON_ARRAY && f[1]->n == 0)
        ds_rp_refuse(p, DS_STAGE_MESSAGES, at, "content", "must not be empty");
    switch (role) {
    case 0:
        user(p, f[1], at);
        all_answered(p, at);
        break;
    case 1:
        all_answered(p, at);
        assistant(p, f[1], at);
        break;
    default: /* does not answer calls, nor end the wait for answers */
        in_list_system(p, f[1], at);
        break;
    }
}

static void messages(ds_rp *p, const ds_json *v)
{
    ds_path list = { NULL, "messages", 0 }, item = { &list, NULL, 0 };

    if (!v)
        ds_rp_missing(p, NULL, "messages");
    if (!ds_rp_array(p, v, NULL, "messages"))
        return;
    if (v->n == 0)
        ds_rp_refuse(p, DS_STAGE_MESSAGES, NULL, "messages", "must not be empty");
    for (const ds_json *e = v->child; e && !ds_rp_stop(p); e = e->next, item.index++)
        message(p, e, &item);
    if (item.index)
        item.index--;
    all_answered(p, &item);
}

static void system_text(ds_rp *p, const ds_json *v)
{
    static const char *const names[] = { "type", "text" };
    ds_path list = { NULL, "system", 0 }, item = { &list, NULL, 0 };
    ds_parts parts = { 0 };
    const ds_json *f[2];
    ds_msg *m;

    if (!v || p->rc != DS_OK)
        return;
    if (v->type == DS_JSON_STRING) {
        text_part(p, &parts, ds_json_str_of(v), NULL, "system");
    } else if (v->type == DS_JSON_ARRAY) {
        for (const ds_json *e = v->child; e && !ds_rp_stop(p); e = e->next, item.index++) {
            if (!ds_rp_object(p, e, &item, NULL))
                return;
            ds_fields(e, names, 2, f);
            if (!f[0])
                ds_rp_missing(p, &item, "type");
            if (ds_rp_enum(p, f[0], &item, "type", "text") == 0)
                text_block(p, &parts, f[1], &item);
        }
    } else {
        ds_rp_type(p, NULL, "system", "expected a string or a list of text blocks, got %s", ds_json_type_name(v));
    }
    if (parts.first && (parts.bytes || v->type == DS_JSON_ARRAY) && (m = ds_conv_add(&p->r->conv, p->mem, DS_ROLE_SYSTEM)))
        m->content = parts;
}

void ds_request_messages(ds_rp *p, const ds_json *body)
{
    const ds_json *f[N_FIELDS];

    ds_fields(body, ds_messages_members, N_FIELDS, f);
    p->mentions_json = true; /* nobody asks here */
    ds_rp_model(p, f[F_MODEL]);
    ds_rp_sampling(p, &(ds_sampling_fields){ .temperature = f[F_TEMPERATURE],
                                             .top_p = f[F_TOP_P],
                                             .top_k = f[F_TOP_K],
                                             .seed = f[F_SEED],
                                             .min_p = f[F_MIN_P],
                                             .presence = f[F_PRESENCE],
                                             .frequency = f[F_FREQUENCY],
                                             .repetition = f[F_REPETITION],
                                             .logit_bias = f[F_LOGIT_BIAS],
                                             .ignore_eos = f[F_IGNORE_EOS],
                                             .min_tokens = f[F_MIN_TOKENS] });
    if (!p->count) {
        ds_rp_max_tokens(p, f[F_MAX_TOKENS], "max_tokens");
        ds_rp_bool(p, f[F_STREAM], NULL, "stream", &p->r->info.stream);
    }
    ds_rp_stop_list(p, f[F_STOP], "stop_sequences", true, true);
    thinking(p, f);
    p->r->info.user = ds_json_str_of(ds_json_get(f[F_METADATA], "user_id"));
    if (ds_rp_stop(p))
        return;
    tools(p, f);
    if (ds_rp_stop(p))
        return;
    ds_rp_tools_end(p, NULL);
    system_text(p, f[F_SYSTEM]);
    messages(p, f[F_MESSAGES]);
    if (!ds_rp_stop(p))
        output_format(p, f);
}
