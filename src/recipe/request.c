/* Making, reading and dropping a request. */
#include "recipe/members.h"
#include "recipe/request_internal.h"

#include <stdlib.h>
#include <string.h>

/* A request refers to its parsed body and adds nodes to it; no adapter needs more than a small multiple of the body. */
#define REGION_PER_BYTE 64
#define REGION_BASE ((size_t)16 << 20)

static ds_rc parse_body(ds_rp *p, ds_proto proto, const char *body, size_t n)
{
    ds_err err = { 0 };
    ds_doc *d = ds_region_alloc(p->mem, sizeof *d);
    const ds_json *root;
    ds_rc rc;

    if (!d) {
        ds_rp_oom(p);
        return p->rc;
    }
    rc = ds_json_parse(&d->doc, body, n, NULL, &err);
    if (rc == DS_E_NOMEM) {
        ds_rp_oom(p);
        return p->rc;
    }
    if (rc != DS_OK) {
        p->rc = ds_api_fail(p->why, 400, NULL, NULL, NULL, "the body is not valid JSON: %s", n ? err.msg : "it is empty");
        return p->rc;
    }
    d->next = p->r->docs;
    p->r->docs = d;
    root = ds_json_root(d->doc);
    if (root->type != DS_JSON_OBJECT) {
        p->rc = ds_api_fail(p->why, 400, NULL, NULL, NULL, "the body must be a JSON object, got %s", ds_json_type_name(root));
        return p->rc;
    }
    ds_rp_members(p, root);
    switch (proto) {
    case DS_PROTO_CHAT:
        ds_request_chat(p, root);
        break;
    case DS_PROTO_RESPONSES:
        ds_request_responses(p, root);
        break;
    case DS_PROTO_MESSAGES:
        ds_request_messages(p, root);
        break;
    case DS_PROTO_COMPLETIONS:
        ds_request_completions(p, root);
        break;
    }
    if (ds_rp_stop(p))
        return p->rc;
    if (p->held_stage != DS_STAGE_TYPE) {
        *p->why = p->held;
        p->rc = DS_E_FORMAT;
    }
    return p->rc;
}

static void forget_prompts(ds_request *r)
{
    if (r->rendered)
        for (uint32_t i = 0; i < r->info.n_prompts; i++) {
            free(r->rendered[i].text);
            free(r->rendered[i].runs);
        }
    r->rendered = NULL;
}

/* Images in the order of the prompt, which results may have left; those of messages that are gone fall away. */
static void number_images(ds_request *r)
{
    ds_image *list = ds_region_array(&r->mem, r->info.n_images ? r->info.n_images : 1, sizeof *list);
    uint32_t n = 0;

    if (!list)
        return;
    for (ds_msg *m = r->conv.first; m; m = m->next)
        for (ds_part *p = m->content.first; p; p = p->next)
            if (p->image >= 0) {
                list[n] = r->images[p->image];
                p->image = (int32_t)n++;
            }
    r->images = list;
    r->info.images = list;
    r->info.n_images = n;
}

static size_t message_bytes(const ds_msg *m)
{
    size_t n = m->content.bytes + m->reasoning.bytes;

    for (const ds_call *c = m->calls; c; c = c->next)
        n += c->name.n + c->raw.n;
    return n;
}

ds_rc ds_request_drop_oldest(ds_request *r, size_t min_bytes, uint32_t *turns, ds_err *err)
{
    ds_msg *head = NULL, *last = NULL, *m = r->conv.first; /* last: of what goes */
    size_t bytes = 0;

    *turns = 0;
    while (m && m->role == DS_ROLE_SYSTEM) {
        head = m;
        m = m->next;
    }
    for (; m && m->next && (bytes < min_bytes || !last); m = m->next) {
        bytes += message_bytes(m);
        if (m->role == DS_ROLE_ASSISTANT && m->next->role != DS_ROLE_TOOL && m->next->role != DS_ROLE_ASSISTANT) {
            last = m;
            ++*turns;
        }
    }
    if (!last)
        return DS_OK;
    *(head ? &head->next : &r->conv.first) = last->next;
    number_images(r);
    forget_prompts(r);
    return r->mem.failed ? ds_fail(err, DS_E_NOMEM, "request: out of memory") : DS_OK;
}

/* What follows from all fields together. */
static void finish(ds_rp *p)
{
    ds_request *r = p->r;
    ds_request_info_data *i = &r->info;

    if (!i->has_max_tokens)
        i->max_tokens = i->thinking ? p->o->default_max_tokens_thinking : p->o->default_max_tokens;
    if (i->proto == DS_PROTO_COMPLETIONS) {
        i->start = DS_START_RAW;
        return;
    }
    i->n_prompts = 1;
    if (i->opts.encoding == DS_ENC_V4)
        ds_conv_later_systems_to_user(&r->conv);
    if (i->opts.recipe_call_order && (i->proto == DS_PROTO_RESPONSES || i->opts.encoding == DS_ENC_V4))
        ds_conv_sort_calls(&r->conv, p->mem);
    ds_conv_order_results(&r->conv, p->mem);
    if (i->n_images)
        number_images(r);
    if (r->conv.no_header) {
        i->start = DS_START_CONTENT_KEEP;
    } else if (r->conv.last && r->conv.last->prefix) {
        const ds_msg *m = r->conv.last;

        if (m->content.bytes)
            i->start = DS_START_CONTENT_KEEP;
        else if (i->thinking)
            i->start = m->reasoning.bytes ? DS_START_REASONING_KEEP : DS_START_REASONING;
        else /* nothing to continue: an answer from its beginning */
            i->start = DS_START_CONTENT;
    } else if (i->thinking) {
        i->start = DS_START_REASONING;
    } else {
        i->start = i->tool_choice == DS_CHOICE_REQUIRED ? DS_START_BLOCK : DS_START_CONTENT;
    }
    if (r->conv.last && r->conv.last->role == DS_ROLE_USER && r->conv.last->task != DS_TASK_NONE) /* answered without think tags */
        i->start = DS_START_CONTENT_KEEP;
}

ds_rc ds_request_parse(ds_request **out, const ds_request_parse_args *args, const char *body, size_t n, ds_api_error *refusal, ds_err *err)
{
    ds_recipe_opts defaults;
    ds_rp p = { 0 };
    ds_request *r;

    *out = NULL;
    *refusal = (ds_api_error){ 0 };
    ds_recipe_opts_init(&defaults);
    r = calloc(1, sizeof *r);
    if (!r)
        return ds_fail(err, DS_E_NOMEM, "request: out of memory");
    r->mem.limit_bytes = n < (SIZE_MAX - REGION_BASE) / REGION_PER_BYTE ? REGION_BASE + n * REGION_PER_BYTE : SIZE_MAX;
    r->info.proto = args->proto;
    r->info.thinking_budget = -1;
    r->info.opts = args->opts ? *args->opts : defaults;
    p.r = r;
    p.mem = &r->mem;
    p.o = &r->info.opts;
    p.io = args->io;
    p.count = args->count_tokens;
    p.why = refusal;
    p.err = err;
    if (parse_body(&p, args->proto, body, n) == DS_OK) {
        finish(&p);
        if (!ds_rp_stop(&p)) {
            *out = r;
            return DS_OK;
        }
    }
    ds_request_destroy(r);
    if (p.rc == DS_E_FORMAT)
        ds_fail(err, DS_E_FORMAT, "%s", refusal->message);
    return p.rc;
}

void ds_request_destroy(ds_request *r)
{
    if (!r)
        return;
    forget_prompts(r);
    for (ds_doc *d = r->docs; d; d = d->next)
        ds_json_free(d->doc);
    ds_region_free(&r->mem);
    free(r);
}

const ds_request_info_data *ds_request_info(const ds_request *r)
{
    return &r->info;
}

const ds_tool *ds_request_tool(const ds_request *r, const char *name, size_t n)
{
    const struct ds_idmap_slot *s = ds_idmap_find(&r->tool_map, (ds_str){ name, n });

    return s ? &r->info.tools[s->value] : NULL;
}

ds_rc ds_request_render(ds_request *r, uint32_t i, const ds_run **runs, size_t *n_runs, ds_err *err)
{
    struct ds_rendered *d;
    ds_rc rc;

    *runs = NULL;
    *n_runs = 0;
    if (i >= r->info.n_prompts)
        return ds_fail(err, DS_E_ARG, "prompt %u: the request has %u", i, r->info.n_prompts);
    if (!r->rendered) {
        r->rendered = ds_region_array(&r->mem, r->info.n_prompts, sizeof *r->rendered);
        if (!r->rendered)
            return ds_fail(err, DS_E_NOMEM, "prompt: out of memory");
    }
    d = &r->rendered[i];
    if (!d->runs) {
        rc = r->info.proto == DS_PROTO_COMPLETIONS ? ds_render_completion(r, i, d, err) : ds_render_conversation(r, d, err);
        if (rc != DS_OK)
            return rc;
    }
    *runs = d->runs;
    *n_runs = d->n_runs;
    return DS_OK;
}

void ds_request_prompt_ids(const ds_request *r, uint32_t i, const ds_token **ids, size_t *n_ids)
{
    *ids = NULL;
    *n_ids = 0;
    if (r->prompts && i < r->info.n_prompts) {
        *ids = r->prompts[i].ids;
        *n_ids = r->prompts[i].n_ids;
    }
}

ds_rc ds_request_set_prompt_ids(ds_request *r, uint32_t i, const ds_token *ids, size_t n, ds_err *err)
{
    ds_token *copy;

    if (i >= r->info.n_prompts)
        return ds_fail(err, DS_E_ARG, "prompt %u: the request has %u", i, r->info.n_prompts);
    if (!r->prompts)
        r->prompts = ds_region_array(&r->mem, r->info.n_prompts, sizeof *r->prompts);
    copy = ds_region_array(&r->mem, n ? n : 1, sizeof *copy);
    if (!r->prompts || !copy)
        return ds_fail(err, DS_E_NOMEM, "prompt ids: out of memory");
    memcpy(copy, ids, n * sizeof *ids);
    r->prompts[i].ids = copy;
    r->prompts[i].n_ids = n;
    return DS_OK;
}

ds_rc ds_request_check_length(const ds_request *r, size_t prompt_tokens, uint32_t *max_tokens, ds_api_error *refusal)
{
    const ds_request_info_data *i = &r->info;
    uint32_t limit = i->max_tokens, context = i->opts.max_context_tokens;
    const char *param = i->proto == DS_PROTO_RESPONSES ? "input" : i->proto == DS_PROTO_COMPLETIONS ? "prompt" : "messages";

    if (context && prompt_tokens >= context)
        return ds_api_fail(refusal, 400, NULL, "context_length_exceeded", param,
                           "prompt is too long: its %zu tokens leave no room for an answer in the context of %u tokens", prompt_tokens,
                           context);
    if (context && limit > context - prompt_tokens)
        limit = context - (uint32_t)prompt_tokens;
    if (max_tokens)
        *max_tokens = limit;
    return DS_OK;
}

static void put_items(ds_buf *b, const ds_json *list, const ds_resolved *known)
{
    for (const ds_json *v = list->child; v; v = v->next) {
        const ds_json *item = v;

        if (known && known->reference == v) {
            item = known->item;
            known = known->next;
        }
        if (b->len)
            ds_buf_putc(b, ',');
        ds_json_write(b, item, DS_JSON_COMPACT);
    }
}

ds_rc ds_request_items(ds_request *r, ds_str *items, ds_err *err)
{
    ds_buf b = { 0 };

    *items = (ds_str){ "", 0 };
    if (r->info.proto != DS_PROTO_RESPONSES)
        return DS_OK;
    if (!r->items.p) {
        if (r->stored_items)
            put_items(&b, r->stored_items, NULL);
        if (ds_json_is(r->input, DS_JSON_STRING)) {
            ds_buf_puts(&b, b.len ? ",{\"type\":\"message\",\"role\":\"user\",\"content\":"
                                  : "{\"type\":\"message\",\"role\":\"user\",\"content\":");
            ds_json_write(&b, r->input, DS_JSON_COMPACT);
            ds_buf_putc(&b, '}');
        } else if (r->input) {
            put_items(&b, r->input, r->resolved);
        }
        if (!b.oom)
            r->items = ds_region_str(&r->mem, b.p, b.len);
        ds_buf_free(&b);
        if (!r->items.p)
            return ds_fail(err, DS_E_NOMEM, "input items: out of memory");
    }
    *items = r->items;
    return DS_OK;
}
