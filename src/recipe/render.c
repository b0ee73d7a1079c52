/* The conversation as a prompt: runs of control tokens and text, in both dialects. (recipe spec 2) */
#include <stdlib.h>
#include <string.h>

#include "recipe/request_internal.h"

#define BOS "<｜begin▁of▁sentence｜>"
#define EOS "<｜end▁of▁sentence｜>"
#define SYSTEM "<｜System｜>"
#define USER "<｜User｜>"
#define ASSISTANT "<｜Assistant｜>"
#define REMINDER "<｜latest_reminder｜>"
#define THINK "<think>"
#define END_THINK "</think>"
#define DSML "｜DSML｜"

/* What the dialects write differently. */
typedef struct {
    ds_call_markup m;
    bool system_token;
} dialect;

static const dialect dialects[] = {
    [DS_ENC_V41] = { { DSML, " calls", " invoke", " parameter" }, true },
    [DS_ENC_V4] = { { DSML, "tool_calls", "invoke", "parameter" }, false },
};

const ds_call_markup *ds_call_markup_of(ds_encoding e)
{
    return &dialects[e].m;
}

/* Everything is appended to one text; runs are ranges of it until the text stops moving. */
typedef struct {
    ds_buf text;
    ds_buf runs;       /* of range */
    size_t text_start; /* of the open text run; = text.len when none is open */
    const dialect *d;
    const ds_request *r;
} out;

typedef struct {
    size_t at, n;
    bool control;
} range;

static void end_text(out *o)
{
    range g = { o->text_start, o->text.len - o->text_start, false };

    if (g.n)
        ds_buf_put(&o->runs, &g, sizeof g);
    o->text_start = o->text.len;
}

static void control(out *o, const char *token)
{
    range g;

    end_text(o);
    g = (range){ o->text.len, strlen(token), true };
    ds_buf_put(&o->text, token, g.n);
    ds_buf_put(&o->runs, &g, sizeof g);
    o->text_start = o->text.len;
}

static void text(out *o, const char *s)
{
    ds_buf_puts(&o->text, s);
}

static void str(out *o, ds_str s)
{
    ds_buf_put(&o->text, s.p, s.n);
}

/* "<｜DSML｜NAME" or "</｜DSML｜NAME" */
static void tag(out *o, const char *open, const char *name)
{
    text(o, open);
    control(o, DSML);
    text(o, name);
}

/* ---- head: effort, tools, response format ---- */

static const char effort_a[] = "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
                               "You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root "
                               "cause, rigorously stress-testing your "
                               "logic against all potential paths, edge cases, and adversarial scenarios.\n"
                               "Explicitly write out your entire deliberation process, documenting every intermediate step, considered "
                               "alternative, and rejected hypothesis to "
                               "ensure absolutely no assumption is left unchecked.\n\n";
static const char effort_b[] =
    "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\n"
    "You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: exhaustively decompose the problem into its "
    "most "
    "fundamental components, trace every causal chain to its root, and resolve the underlying cause rather than any surface symptom.\n"
    "Do not stop reasoning until you have independently verified the solution from multiple angles and are certain that no assumption "
    "remains "
    "unchecked and no error remains undiscovered.\n\n";

/* The V4 paragraph of an effort; "" for none. */
static const char *v4_effort(const ds_request_info_data *i)
{
    if (i->effort == DS_EFFORT_LOW)
        return "";
    if (i->opts.v4_preview)
        return i->effort == DS_EFFORT_MAX ? effort_a : "";
    return i->effort == DS_EFFORT_MAX ? effort_b : effort_a;
}

static void effort(out *o)
{
    const ds_request_info_data *i = &o->r->info;

    if (!i->thinking)
        return;
    if (o->d->system_token)
        ds_buf_printf(&o->text, "Reasoning Effort: %u (range 1-100, the higher the value, the more thorough the reasoning)\n\n",
                      i->effort_number);
    else
        text(o, v4_effort(i));
}

/* A word of the tools prose that is an added token. */
static void prose_token(out *o, const char *token)
{
    if (o->r->info.opts.plain_tools_prose)
        text(o, token);
    else
        control(o, token);
}

static void prose_tag(out *o, const char *open, const char *name)
{
    text(o, open);
    prose_token(o, DSML);
    text(o, name);
}

static void tools_block(out *o)
{
    const ds_request *r = o->r;
    const dialect *d = o->d;
    bool first = true;

    text(o, "\n\n## Tools\n\nYou have access to a set of tools to help answer the user's question. You can invoke tools by writing a \"");
    prose_tag(o, "<", d->m.block);
    text(o, ">\" block like the following:\n\n");
    prose_tag(o, "<", d->m.block);
    text(o, ">\n");
    prose_tag(o, "<", d->m.call);
    text(o, " name=\"$TOOL_NAME\">\n");
    prose_tag(o, "<", d->m.parameter);
    text(o, " name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE");
    prose_tag(o, "</", d->m.parameter);
    text(o, ">\n...\n");
    prose_tag(o, "</", d->m.call);
    text(o, ">\n");
    prose_tag(o, "<", d->m.call);
    text(o, " name=\"$TOOL_NAME2\">\n...\n");
    prose_tag(o, "</", d->m.call);
    text(o, ">\n");
    prose_tag(o, "</", d->m.block);
    text(o, ">\n\nString parameters should be specified as is and set `string=\"true\"`. For all other types (numbers, booleans, arrays, "
            "objects), pass the "
            "value in JSON format and set `string=\"false\"`.\n\nIf thinking_mode is enabled (triggered by ");
    prose_token(o, THINK);
    text(o, "), you MUST output your complete reasoning inside ");
    prose_token(o, THINK);
    text(o, "...");
    prose_token(o, END_THINK);
    text(o, " BEFORE any tool calls or final response.\n\nOtherwise, output directly after ");
    prose_token(o, END_THINK);
    text(o, " with tool calls or final response.\n\n### Available Tool Schemas\n\n");
    for (uint32_t k = 0; k < r->info.n_tools; k++) {
        const ds_tool *t = &r->info.tools[k];

        if (!t->shown)
            continue;
        if (!first)
            text(o, "\n");
        first = false;
        if (r->info.opts.official_schemas && r->tool_source[k]) {
            ds_json_write(&o->text, r->tool_source[k], DS_JSON_PYTHON);
            continue;
        }
        text(o, "{\"name\": ");
        ds_json_write_str(&o->text, t->name.p, t->name.n, DS_JSON_PYTHON);
        text(o, ", \"description\": ");
        ds_json_write_str(&o->text, t->description.p, t->description.n, DS_JSON_PYTHON);
        text(o, ", \"parameters\": ");
        str(o, t->parameters);
        text(o, "}");
    }
    text(o, "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n");
}

static void response_format(out *o)
{
    const ds_conv *c = &o->r->conv;

    text(o, "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n");
    if (c->json_object)
        text(o, "{\"type\": \"json_object\"}");
    else
        ds_json_write(&o->text, c->response_schema, DS_JSON_PYTHON);
}

/* ---- messages ---- */

static void parts(out *o, const ds_parts *list)
{
    for (const ds_part *p = list->first; p; p = p->next) {
        if (p != list->first)
            text(o, p->joiner);
        if (p->image >= 0)
            control(o, o->r->info.opts.image_token);
        else
            str(o, p->text);
    }
}

/* Text that the model wrote itself: its grounding marks are tokens again. */
static void own_text(out *o, ds_str s)
{
    static const char *const marks[] = { "<｜/polygon｜>", "<｜polygon｜>", "<｜/point｜>", "<｜point｜>",
                                         "<｜/box｜>",     "<｜box｜>",     "<｜/ref｜>",   "<｜ref｜>" };
    static const char head[] = "<｜";
    const char *from = s.p, *end, *at = from;

    if (!s.n)
        return;
    end = s.p + s.n;
    while (o->r->info.opts.grounding_tokens && (at = memmem(at, (size_t)(end - at), head, sizeof head - 1))) {
        size_t n = 0;

        for (size_t i = 0; i < sizeof marks / sizeof *marks && !n; i++) {
            size_t len = strlen(marks[i]);

            if ((size_t)(end - at) >= len && memcmp(at, marks[i], len) == 0) {
                str(o, (ds_str){ from, (size_t)(at - from) });
                control(o, marks[i]);
                n = len;
            }
        }
        at += n ? n : sizeof head - 1;
        if (n)
            from = at;
    }
    str(o, (ds_str){ from, (size_t)(end - from) });
}

static void own_parts(out *o, const ds_parts *list)
{
    for (const ds_part *p = list->first; p; p = p->next) {
        if (p != list->first)
            text(o, p->joiner);
        own_text(o, p->text);
    }
}

static void parameter(out *o, ds_str key, bool string)
{
    tag(o, "<", o->d->m.parameter);
    text(o, " name=\"");
    str(o, key);
    text(o, string ? "\" string=\"true\">" : "\" string=\"false\">");
}

static void end_parameter(out *o)
{
    tag(o, "</", o->d->m.parameter);
    text(o, ">");
}

static void calls(out *o, const ds_msg *m)
{
    text(o, "\n\n");
    tag(o, "<", o->d->m.block);
    text(o, ">\n");
    for (const ds_call *c = m->calls; c; c = c->next) {
        tag(o, "<", o->d->m.call);
        text(o, " name=\"");
        str(o, c->name);
        text(o, "\">\n");
        if (c->args) {
            for (const ds_json *v = c->args->child; v; v = v->next) {
                parameter(o, (ds_str){ v->key, v->key_len }, v->type == DS_JSON_STRING);
                if (v->type == DS_JSON_STRING)
                    str(o, ds_json_str_of(v));
                else
                    ds_json_write(&o->text, v, DS_JSON_PYTHON);
                end_parameter(o);
                if (v->next)
                    text(o, "\n");
            }
        } else {
            parameter(o, ds_lit(c->input_text ? "input" : "arguments"), true);
            str(o, c->raw);
            end_parameter(o);
        }
        text(o, "\n");
        tag(o, "</", o->d->m.call);
        text(o, ">\n");
    }
    tag(o, "</", o->d->m.block);
    text(o, ">");
}

static const char *task_token(ds_task t)
{
    static const char *const tokens[] = {
        [DS_TASK_ACTION] = "<｜action｜>", [DS_TASK_QUERY] = "<｜query｜>", [DS_TASK_AUTHORITY] = "<｜authority｜>",
        [DS_TASK_DOMAIN] = "<｜domain｜>", [DS_TASK_TITLE] = "<｜title｜>", [DS_TASK_READ_URL] = "<｜read_url｜>"
    };

    return tokens[t];
}

static void generation_header(out *o)
{
    control(o, ASSISTANT);
    control(o, o->r->info.thinking ? THINK : END_THINK);
}

/* task: of the user message that it answers */
static void assistant(out *o, const ds_msg *m, bool keep_reasoning, ds_task task)
{
    bool thinking = o->r->info.thinking;

    if (task != DS_TASK_NONE) {
        own_parts(o, &m->content);
        if (m->calls)
            calls(o, m);
        control(o, EOS);
        return;
    }
    control(o, ASSISTANT);
    if (!thinking || !keep_reasoning) {
        control(o, END_THINK);
    } else {
        control(o, THINK);
        own_parts(o, &m->reasoning);
        if (!m->prefix || m->content.bytes)
            control(o, END_THINK);
    }
    own_parts(o, &m->content);
    if (m->calls)
        calls(o, m);
    if (!m->prefix)
        control(o, EOS);
}

static void turn_start(out *o, const ds_msg *before)
{
    if (before && (before->role == DS_ROLE_USER || before->role == DS_ROLE_TOOL))
        text(o, "\n\n");
    else
        control(o, USER);
}

/* The last message after which earlier reasoning counts as old; NULL = none. */
static const ds_msg *last_user_like(const ds_request *r, const dialect *d)
{
    const ds_msg *last = NULL;

    for (const ds_msg *m = r->conv.first; m; m = m->next)
        if (m->role == DS_ROLE_USER || (d->system_token && m->role == DS_ROLE_SYSTEM && m != r->conv.first))
            last = m;
    return last;
}

static void conversation(out *o)
{
    const ds_request *r = o->r;
    const ds_conv *c = &r->conv;
    const ds_request_info_data *i = &r->info;
    const ds_msg *m = c->first, *before = NULL, *user = last_user_like(r, o->d);
    bool system_first = m && m->role == DS_ROLE_SYSTEM, format = c->json_object || c->response_schema, behind = false;
    bool keep_all =
        i->opts.old_reasoning == DS_REASONING_KEEP_ALL || (i->opts.old_reasoning == DS_REASONING_OFFICIAL && c->has_tools_field);
    ds_task task = DS_TASK_NONE;

    control(o, BOS);
    if (o->d->system_token && (system_first || i->thinking || i->parse_tools || format))
        control(o, SYSTEM);
    effort(o);
    if (system_first) {
        size_t bytes = 0;

        do { /* V4 has one system text, V4.1 a turn for each */
            if (bytes && m->content.bytes)
                text(o, "\n\n");
            parts(o, &m->content);
            bytes += m->content.bytes;
            before = m;
            m = m->next;
        } while (!o->d->system_token && m && m->role == DS_ROLE_SYSTEM);
    }
    if (i->parse_tools)
        tools_block(o);
    if (format)
        response_format(o);
    for (; m; before = m, m = m->next) {
        switch (m->role) {
        case DS_ROLE_SYSTEM:
            control(o, SYSTEM);
            parts(o, &m->content);
            break;
        case DS_ROLE_USER:
            turn_start(o, before);
            parts(o, &m->content);
            task = m->task;
            if (task == DS_TASK_ACTION)
                generation_header(o);
            if (task != DS_TASK_NONE)
                control(o, task_token(task));
            break;
        case DS_ROLE_TOOL:
            turn_start(o, before);
            text(o, "<tool_result>");
            parts(o, &m->content);
            text(o, "</tool_result>");
            break;
        case DS_ROLE_REMINDER:
            control(o, REMINDER);
            parts(o, &m->content);
            break;
        case DS_ROLE_ASSISTANT:
            assistant(o, m, keep_all || behind || !user || m->prefix, task);
            task = DS_TASK_NONE;
            break;
        }
        behind = behind || m == user;
    }
    if ((before && before->prefix) || task != DS_TASK_NONE || c->no_header)
        return;
    generation_header(o);
    if (i->parse_tools && i->tool_choice == DS_CHOICE_REQUIRED && !i->thinking) {
        text(o, "\n\n");
        tag(o, "<", o->d->m.block);
        text(o, ">\n");
    }
}

/* ---- entry points ---- */

static ds_rc finish(out *o, struct ds_rendered *to, ds_err *err)
{
    size_t n;
    const range *g;
    ds_run *runs;

    end_text(o);
    n = o->runs.len / sizeof *g;
    runs = o->text.oom || o->runs.oom ? NULL : calloc(n ? n : 1, sizeof *runs);
    if (!runs) {
        ds_buf_free(&o->text);
        ds_buf_free(&o->runs);
        return ds_fail(err, DS_E_NOMEM, "prompt: out of memory");
    }
    g = (const range *)o->runs.p;
    for (size_t i = 0; i < n; i++)
        runs[i] = (ds_run){ o->text.p + g[i].at, g[i].n, g[i].control };
    to->text = o->text.p;
    to->text_bytes = o->text.len;
    to->runs = runs;
    to->n_runs = n;
    ds_buf_free(&o->runs);
    return DS_OK;
}

ds_rc ds_render_conversation(ds_request *r, struct ds_rendered *to, ds_err *err)
{
    out o = { .d = &dialects[r->info.opts.encoding], .r = r };

    conversation(&o);
    return finish(&o, to, err);
}

ds_rc ds_render_completion(ds_request *r, uint32_t i, struct ds_rendered *to, ds_err *err)
{
    out o = { .d = &dialects[r->info.opts.encoding], .r = r };

    control(&o, BOS);
    if (r->info.has_suffix) {
        control(&o, "<｜fim▁begin｜>");
        str(&o, r->prompts[i].text);
        control(&o, "<｜fim▁hole｜>");
        str(&o, r->suffix);
        control(&o, "<｜fim▁end｜>");
    } else {
        str(&o, r->prompts[i].text);
    }
    return finish(&o, to, err);
}
