#include "recipe/responses_items.h"

#include <string.h>

static const char no_output[] = "[No output]";
static const char unsupported_document[] = "[Unsupported Document]";

enum { I_TYPE, I_ROLE, I_CONTENT, I_ID, I_CALL_ID, I_NAME, I_ARGUMENTS, I_NAMESPACE, I_INPUT, I_OUTPUT, I_ENCRYPTED, I_ACTION, N_ITEM };
static const char *const item_fields[N_ITEM] = { "type",      "role",      "content", "id",     "call_id",           "name",
                                                 "arguments", "namespace", "input",   "output", "encrypted_content", "action" };

/* A call of the run that waits for its outputs, in order of arrival. */
typedef struct pending pending;
struct pending {
    pending *next;
    ds_call call; /* linked into its message when the run ends */
    ds_parts output;
    bool answered;
    ds_path at;
};

typedef struct late late; /* lenient: an output that stands behind its turn */
struct late {
    const ds_json *item;
    bool used;
};

typedef struct {
    ds_rp *p;
    ds_idmap seen;   /* call ids so far -> index into calls */
    pending **calls; /* every call so far */
    uint32_t n_calls;
    ds_idmap outputs; /* lenient: call id -> index into lates */
    late *lates;
    pending *first, *last;
    uint32_t n_open;
} items;

/* ---- content ---- */

static void text_part(ds_rp *p, ds_parts *to, ds_str s, const ds_path *at, const char *key)
{
    ds_rp_check_text(p, DS_STAGE_MESSAGES, s, at, key);
    ds_rp_note_json(p, s);
    ds_parts_text(to, p->mem, s, "\n\n");
}

static void image_block(ds_rp *p, ds_parts *to, const ds_json *block, const ds_path *at)
{
    static const char *const names[] = { "image_url", "file_id", "detail", "url" };
    ds_path in = { at, "image_url", 0 };
    const ds_json *f[4], *o[4];
    ds_str s;

    ds_fields(block, names, 4, f);
    if (!f[0] == !f[1]) {
        ds_rp_refuse(p, DS_STAGE_MESSAGES, at, NULL, "input_image needs exactly one of image_url and file_id");
        return;
    }
    if (f[1]) {
        if (ds_rp_str(p, f[1], at, "file_id", &s))
            ds_rp_image_file(p, to, s, f[2], at, "file_id");
    } else if (f[0]->type == DS_JSON_OBJECT) { /* the shape of Chat */
        ds_fields(f[0], names, 4, o);
        if (!o[3])
            ds_rp_missing(p, &in, "url");
        ds_rp_image_url(p, to, o[3], o[2] ? o[2] : f[2], &in, "url", "detail");
    } else {
        ds_rp_image_url(p, to, f[0], f[2], at, "image_url", "detail");
    }
}

static void file_block(ds_rp *p, ds_parts *to, const ds_json *block, const ds_path *at)
{
    static const char *const names[] = { "file_data", "file_id", "file_url" };
    const ds_json *f[3];
    ds_str s;

    ds_fields(block, names, 3, f);
    if (f[0] && ds_rp_str(p, f[0], at, "file_data", &s) && ds_rp_data_url_content(p, to, s, at, "file_data"))
        return;
    ds_parts_text(to, p->mem, ds_lit(unsupported_document), "\n\n");
}

/* rich: images and files are allowed */
static void content(ds_rp *p, ds_parts *to, const ds_json *v, const ds_path *at, const char *key, bool rich)
{
    static const char *const names[] = { "type", "text", "refusal" };
    ds_path list = { at, key, 0 }, item = { &list, NULL, 0 };
    const ds_json *f[3];
    ds_str s;

    if (!v || p->rc != DS_OK)
        return;
    if (v->type == DS_JSON_STRING) {
        text_part(p, to, ds_json_str_of(v), at, key);
        return;
    }
    if (v->type != DS_JSON_ARRAY) {
        ds_rp_type(p, at, key, "expected a string or a list of content blocks, got %s", ds_json_type_name(v));
        return;
    }
    for (const ds_json *e = v->child; e && !ds_rp_stop(p); e = e->next, item.index++) {
        int kind;

        if (!ds_rp_object(p, e, &item, NULL))
            return;
        ds_fields(e, names, 3, f);
        if (!f[0])
            ds_rp_missing(p, &item, "type");
        kind = ds_rp_enum(p, f[0], &item, "type",
                          rich ? "input_text|output_text|text|refusal|input_image|input_file" : "input_text|output_text|text|refusal");
        if (kind >= 0 && kind < 3) {
            if (!f[1])
                ds_rp_missing(p, &item, "text");
            if (ds_rp_str(p, f[1], &item, "text", &s))
                text_part(p, to, s, &item, "text");
        } else if (kind == 3) {
            if (!f[2])
                ds_rp_missing(p, &item, "refusal");
            if (ds_rp_str(p, f[2], &item, "refusal", &s))
                text_part(p, to, s, &item, "refusal");
        } else if (kind == 4) {
            image_block(p, to, e, &item);
        } else if (kind == 5) {
            file_block(p, to, e, &item);
        }
    }
}

/* ---- the run of calls ---- */

/* Every call has its output: the calls join the assistant message before them. */
static void end_run(items *s)
{
    ds_rp *p = s->p;
    ds_conv *c = &p->r->conv;
    ds_msg *m = c->last;

    if (!s->first)
        return;
    if (!m || m->role != DS_ROLE_ASSISTANT || m->calls)
        m = ds_conv_add(c, p->mem, DS_ROLE_ASSISTANT);
    if (!m)
        return;
    for (pending *q = s->first; q; q = q->next) {
        ds_call *call = ds_msg_call(m, p->mem, q->call.id, q->call.name);

        if (!call)
            return;
        call->args = q->call.args;
        call->raw = q->call.raw;
        call->input_text = q->call.input_text;
    }
    for (pending *q = s->first; q; q = q->next) {
        ds_msg *t = ds_conv_add(c, p->mem, DS_ROLE_TOOL);

        if (!t)
            return;
        t->call_id = q->call.id;
        t->content = q->output;
    }
    s->first = s->last = NULL;
    s->n_open = 0;
}

static void take_output(items *s, const ds_json *item, pending *q, const ds_path *at);

/* Something else comes while calls wait. */
static void interrupt(items *s, const ds_path *at)
{
    if (!s->n_open)
        return;
    if (!s->p->o->lenient_history) {
        const pending *q = s->first;
        char word[96];

        while (q->next && q->answered)
            q = q->next;
        ds_str_word(word, sizeof word, q->call.id);
        if (at)
            ds_rp_refuse(s->p, DS_STAGE_MESSAGES, at, NULL, "the output of call '%s' must stand before this item", word);
        else
            ds_rp_refuse(s->p, DS_STAGE_MESSAGES, &q->at, NULL, "the input ends without the output of call '%s'", word);
    }
    for (pending *q = s->first; q; q = q->next) {
        struct ds_idmap_slot *slot = ds_idmap_find(&s->outputs, q->call.id);

        if (q->answered)
            continue;
        if (slot && !s->lates[slot->value].used) {
            s->lates[slot->value].used = true;
            take_output(s, s->lates[slot->value].item, q, &q->at);
        } else {
            ds_parts_text(&q->output, s->p->mem, ds_lit(no_output), "\n\n");
        }
        q->answered = true;
    }
    end_run(s);
}

static void add_call(items *s, const ds_json **f, ds_str name, const ds_path *at, int kind)
{
    ds_rp *p = s->p;
    pending *q = ds_region_alloc(p->mem, sizeof *q);
    const char *id_key = f[I_CALL_ID] || kind != 2 ? "call_id" : "id";
    const ds_json *id = f[I_CALL_ID] || kind != 2 ? f[I_CALL_ID] : f[I_ID];
    ds_str ns, input;
    char word[96];

    if (!q)
        return;
    if (!id)
        ds_rp_missing(p, at, id_key);
    if (!ds_rp_str(p, id, at, id_key, &q->call.id))
        return;
    q->at = *at;
    q->call.name = name;
    if (ds_rp_str(p, f[I_NAMESPACE], at, "namespace", &ns) && ns.n)
        q->call.name = ds_region_join(p->mem, ds_region_join(p->mem, ns, ds_lit("::")), name);
    if (ds_rp_stop(p))
        return;
    ds_rp_call_name(p, &q->call, at, "name");
    if (kind == 0) {
        if (!f[I_ARGUMENTS])
            ds_rp_missing(p, at, "arguments");
        else
            ds_rp_call_text(p, &q->call, f[I_ARGUMENTS], at, "arguments");
    } else if (kind == 1) {
        if (!f[I_INPUT])
            ds_rp_missing(p, at, "input");
        else if (ds_rp_str(p, f[I_INPUT], at, "input", &input))
            ds_rp_call_input(p, &q->call, input, at, "input");
    } else if (ds_rp_object(p, f[I_ACTION], at, "action")) {
        ds_rp_call_object(p, &q->call, f[I_ACTION], at, "action");
    }
    if (ds_rp_stop(p))
        return;
    if (!q->call.id.n) {
        ds_rp_refuse(p, DS_STAGE_MESSAGES, at, id_key, "must not be empty");
        return;
    }
    if (!ds_idmap_put(&s->seen, q->call.id, s->n_calls)) {
        ds_rp_refuse(p, DS_STAGE_MESSAGES, at, id_key, "'%s' is called twice", ds_str_word(word, sizeof word, q->call.id));
        return;
    }
    s->calls[s->n_calls++] = q;
    if (s->last)
        s->last->next = q;
    else
        s->first = q;
    s->last = q;
    s->n_open++;
}

static void take_output(items *s, const ds_json *item, pending *q, const ds_path *at)
{
    const ds_json *f[N_ITEM];

    ds_fields(item, item_fields, N_ITEM, f);
    content(s->p, &q->output, f[I_OUTPUT], at, "output", true);
    q->answered = true;
}

static void add_output(items *s, const ds_json *item, const ds_json **f, const ds_path *at)
{
    ds_rp *p = s->p;
    const ds_json *id = f[I_CALL_ID] ? f[I_CALL_ID] : f[I_ID];
    struct ds_idmap_slot *slot, *late_slot;
    ds_str key;
    char word[96];
    pending *q;

    if (!id)
        ds_rp_missing(p, at, "call_id");
    if (!ds_rp_str(p, id, at, "call_id", &key))
        return;
    late_slot = ds_idmap_find(&s->outputs, key);
    if (late_slot && s->lates[late_slot->value].item == item && s->lates[late_slot->value].used)
        return;
    slot = ds_idmap_find(&s->seen, key);
    if (!slot) {
        ds_rp_refuse(p, DS_STAGE_MESSAGES, at, "call_id", "no call '%s' stands before this output", ds_str_word(word, sizeof word, key));
        return;
    }
    q = s->calls[slot->value];
    if (q->answered) {
        ds_rp_refuse(p, DS_STAGE_MESSAGES, at, "call_id", "'%s' has its output already", ds_str_word(word, sizeof word, key));
        return;
    }
    if (late_slot && s->lates[late_slot->value].item == item)
        s->lates[late_slot->value].used = true;
    take_output(s, item, q, at);
    if (--s->n_open == 0)
        end_run(s);
}

/* ---- other items ---- */

static void reasoning(items *s, const ds_json **f, const ds_path *at)
{
    static const char *const names[] = { "type", "text" };
    ds_rp *p = s->p;
    ds_path list = { at, "content", 0 }, item = { &list, NULL, 0 };
    ds_parts parts = { 0 };
    const ds_json *b[2];
    ds_msg *m = p->r->conv.last;
    ds_str blob, text;

    if (ds_rp_array(p, f[I_CONTENT], at, "content")) {
        for (const ds_json *e = f[I_CONTENT]->child; e && !ds_rp_stop(p); e = e->next, item.index++) {
            if (!ds_rp_object(p, e, &item, NULL))
                return;
            ds_fields(e, names, 2, b);
            if (!ds_json_str_eq(b[0], "reasoning_text") && !ds_json_str_eq(b[0], "text"))
                continue; /* other parts carry no reasoning of ours */
            if (!b[1])
                ds_rp_missing(p, &item, "text");
            if (ds_rp_str(p, b[1], &item, "text", &text)) {
                ds_rp_check_text(p, DS_STAGE_MESSAGES, text, &item, "text");
                ds_parts_text(&parts, p->mem, text, "\n");
            }
        }
    }
    if (!parts.bytes && ds_rp_str(p, f[I_ENCRYPTED], at, "encrypted_content", &blob) &&
        ds_rp_unseal(p, blob, at, "encrypted_content", &text)) {
        ds_rp_check_text(p, DS_STAGE_MESSAGES, text, at, "encrypted_content");
        ds_parts_text(&parts, p->mem, text, "\n");
    }
    if (ds_rp_stop(p) || !parts.bytes)
        return;
    if (!m || m->role != DS_ROLE_ASSISTANT || m->calls || m->content.bytes)
        m = ds_conv_add(&p->r->conv, p->mem, DS_ROLE_ASSISTANT);
    if (!m)
        return;
    for (const ds_part *e = parts.first; e; e = e->next)
        ds_parts_text(&m->reasoning, p->mem, e->text, "\n");
}

static void message(items *s, const ds_json **f, const ds_path *at)
{
    ds_rp *p = s->p;
    ds_conv *c = &p->r->conv;
    ds_parts parts = { 0 };
    int role;
    ds_msg *m;

    if (!f[I_ROLE])
        ds_rp_missing(p, at, "role");
    role = ds_rp_enum(p, f[I_ROLE], at, "role", "user|developer|system|assistant");
    if (role < 0)
        return;
    if (!f[I_CONTENT])
        ds_rp_missing(p, at, "content");
    content(p, &parts, f[I_CONTENT], at, "content", role == 0);
    if (ds_rp_stop(p))
        return;
    if (role == 3 && c->last && c->last->role == DS_ROLE_ASSISTANT && !c->last->calls) {
        m = c->last; /* one turn: no blank line where one side is empty */
        for (ds_part *e = parts.first; e; e = e->next)
            ds_parts_text(&m->content, p->mem, e->text, e == parts.first ? (m->content.bytes && parts.bytes ? "\n\n" : "") : "\n\n");
        return;
    }
    m = ds_conv_add(c, p->mem, role == 0 ? DS_ROLE_USER : role == 3 ? DS_ROLE_ASSISTANT : DS_ROLE_SYSTEM);
    if (m)
        m->content = parts;
}

static void one_item(items *s, const ds_json *e, const ds_path *at, bool may_refer);

/* msg_{response}_{i}: the store is asked for the response, which holds the item. */
static void reference(items *s, const ds_json *item, const ds_json **f, const ds_path *at)
{
    ds_rp *p = s->p;
    const ds_response_store *store = p->io ? p->io->store : NULL;
    const char *from, *to, *json;
    const ds_json *root, *found = NULL;
    ds_str id, response;
    void *hold = NULL;
    size_t n;
    char word[96];

    if (!f[I_ID])
        ds_rp_missing(p, at, "id");
    if (!ds_rp_str(p, f[I_ID], at, "id", &id))
        return;
    from = memchr(id.p, '_', id.n);
    to = memrchr(id.p, '_', id.n);
    if (store && from && to > from) {
        response = ds_region_str(p->mem, from + 1, (size_t)(to - from - 1));
        if (!response.p)
            return;
        p->rc = store->load(store->ctx, response.p, &json, &n, &hold, p->err);
        if (p->rc != DS_OK)
            return;
        root = json ? ds_rp_parse(p, json, n) : NULL;
        if (json)
            store->release(store->ctx, hold);
        root = ds_json_get(root, "items");
        for (const ds_json *e = root ? root->child : NULL; e && !found; e = e->next) {
            ds_str have = ds_json_str_of(ds_json_get(e, "id"));

            if (have.p && have.n == id.n && memcmp(have.p, id.p, id.n) == 0)
                found = e;
        }
    }
    if (found) {
        ds_resolved *r = ds_region_alloc(p->mem, sizeof *r);

        if (!r)
            return;
        r->reference = item;
        r->item = found;
        *(p->r->last_resolved ? &p->r->last_resolved->next : &p->r->resolved) = r;
        p->r->last_resolved = r;
        one_item(s, found, at, false);
    } else {
        ds_rp_refuse_status(p, DS_STAGE_MESSAGES, 404, NULL, "item_not_found", at, "id", "no stored item '%s'",
                            ds_str_word(word, sizeof word, id));
    }
}

static void one_item(items *s, const ds_json *e, const ds_path *at, bool may_refer)
{
    ds_rp *p = s->p;
    const ds_json *f[N_ITEM];
    ds_str type = { 0 }, name = { 0 };

    if (e->type != DS_JSON_OBJECT) {
        ds_rp_type(p, at, NULL, "expected an object, got %s", ds_json_type_name(e));
        return;
    }
    ds_fields(e, item_fields, N_ITEM, f);
    ds_rp_str(p, f[I_TYPE], at, "type", &type);
    if (ds_rp_stop(p))
        return;
    if (!type.p || ds_str_is(type, "message")) {
        interrupt(s, at);
        message(s, f, at);
    } else if (ds_str_is(type, "reasoning")) {
        interrupt(s, at);
        reasoning(s, f, at);
    } else if (ds_str_is(type, "function_call") || ds_str_is(type, "custom_tool_call")) {
        if (!f[I_NAME])
            ds_rp_missing(p, at, "name");
        if (ds_rp_str(p, f[I_NAME], at, "name", &name))
            add_call(s, f, name, at, ds_str_is(type, "custom_tool_call"));
    } else if (ds_str_is(type, "local_shell_call")) {
        if (!f[I_ACTION])
            ds_rp_missing(p, at, "action");
        add_call(s, f, ds_lit("local_shell"), at, 2);
    } else if (ds_str_is(type, "function_call_output") || ds_str_is(type, "custom_tool_call_output") ||
               ds_str_is(type, "local_shell_call_output")) {
        add_output(s, e, f, at);
    } else if (ds_str_is(type, "item_reference") && may_refer) {
        reference(s, e, f, at);
    }
    /* items of hosted tools say nothing to the model */
}

/* Lenient: where the first output of each id stands. */
static void index_outputs(items *s, const ds_json *list, uint32_t *n)
{
    for (const ds_json *e = list ? list->child : NULL; e; e = e->next) {
        ds_str type = ds_json_str_of(ds_json_get(e, "type")), id = ds_json_str_of(ds_json_get(e, "call_id"));

        if (!type.p || !id.p || type.n < 12 || memcmp(type.p + type.n - 12, "_call_output", 12) != 0)
            continue;
        s->lates[*n].item = e;
        if (ds_idmap_put(&s->outputs, id, *n))
            ++*n;
    }
}

static void stored(ds_rp *p)
{
    ds_request_info_data *i = &p->r->info;
    const ds_response_store *store = p->io ? p->io->store : NULL;
    bool chain = i->previous_response_id.p;
    ds_str id = chain ? i->previous_response_id : i->conversation_id;
    const char *json = NULL, *field = chain ? "previous_response_id" : "conversation";
    const ds_json *root = NULL;
    void *hold = NULL;
    size_t n = 0;
    char word[96];

    if (!id.p)
        return;
    if (store) {
        p->rc = store->load(store->ctx, id.p, &json, &n, &hold, p->err);
        if (p->rc != DS_OK)
            return;
        if (json) {
            root = ds_rp_parse(p, json, n);
            store->release(store->ctx, hold);
        }
    }
    p->r->stored_items = ds_json_get(root, "items");
    if (!p->r->stored_items)
        ds_rp_refuse_status(p, DS_STAGE_MESSAGES, 404, NULL, chain ? "previous_response_not_found" : "conversation_not_found", NULL, field,
                            "%s '%s' is not stored", chain ? "response" : "conversation", ds_str_word(word, sizeof word, id));
}

/* A turn is made of several items, so it is looked at when all have come. */
static void all_have_reasoning(ds_rp *p)
{
    uint32_t turn = 0;

    for (const ds_msg *m = p->r->conv.first; m; m = m->next) {
        if (m->role != DS_ROLE_ASSISTANT)
            continue;
        turn++;
        if (!m->reasoning.first)
            ds_rp_refuse(p, DS_STAGE_MESSAGES, NULL, "input",
                         "assistant turn %u has no reasoning item; it must be passed back when tools are declared", turn);
    }
}

void ds_responses_input(ds_rp *p, const ds_json *input, const ds_json *instructions)
{
    items s = { .p = p };
    ds_path old_list = { NULL, "stored_items", 0 }, list = { NULL, "input", 0 }, item = { &old_list, NULL, 0 };
    const ds_json *old;
    uint32_t n, lates = 0;
    bool instructed;
    ds_msg *m;
    ds_str text;

    stored(p);
    if (ds_rp_stop(p))
        return;
    old = p->r->stored_items;
    instructed = ds_rp_str(p, instructions, NULL, "instructions", &text) && text.n;
    if (instructed) {
        m = ds_conv_add(&p->r->conv, p->mem, DS_ROLE_SYSTEM);
        if (m)
            text_part(p, &m->content, text, NULL, "instructions");
    }
    if (!input && !instructed && !old)
        ds_rp_missing(p, NULL, "input");
    if (input && input->type != DS_JSON_STRING && input->type != DS_JSON_ARRAY)
        ds_rp_type(p, NULL, "input", "expected a string or a list of items, got %s", ds_json_type_name(input));
    if (ds_json_is(input, DS_JSON_ARRAY) && input->n == 0)
        ds_rp_refuse(p, DS_STAGE_MESSAGES, NULL, "input", "must not be empty");
    p->r->input = input;
    n = (old ? old->n : 0) + (ds_json_is(input, DS_JSON_ARRAY) ? input->n : 0);
    s.calls = ds_region_array(p->mem, n + 1, sizeof *s.calls);
    if (ds_rp_stop(p) || !ds_idmap_reset(&s.seen, p->mem, n + 1))
        return;
    if (p->o->lenient_history) {
        s.lates = ds_region_array(p->mem, n + 1, sizeof *s.lates);
        if (!s.lates || !ds_idmap_reset(&s.outputs, p->mem, n + 1))
            return;
        index_outputs(&s, old, &lates);
        index_outputs(&s, ds_json_is(input, DS_JSON_ARRAY) ? input : NULL, &lates);
    }
    for (const ds_json *e = old ? old->child : NULL; e && !ds_rp_stop(p); e = e->next, item.index++)
        one_item(&s, e, &item, false);
    item = (ds_path){ &list, NULL, 0 };
    if (ds_json_is(input, DS_JSON_STRING)) {
        interrupt(&s, &item);
        m = ds_conv_add(&p->r->conv, p->mem, DS_ROLE_USER);
        if (m)
            text_part(p, &m->content, ds_json_str_of(input), NULL, "input");
    } else {
        for (const ds_json *e = input ? input->child : NULL; e && !ds_rp_stop(p); e = e->next, item.index++)
            one_item(&s, e, &item, true);
    }
    interrupt(&s, NULL);
    if (p->o->require_reasoning && p->r->info.thinking && p->r->info.n_tools)
        all_have_reasoning(p);
}
