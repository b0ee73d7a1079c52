/* Which request is what: the table of endpoints, keys, and the small endpoints. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/clock.h"
#include "server/server_internal.h"

#define JSON "application/json"

static void reply_text(ds_exchange *x, int status, const char *type, const char *text)
{
    ds_reply_static(x, status, type, text, strlen(text));
}

static void fail(ds_exchange *x, ds_refused why, int status, const char *type, const char *code, const char *message)
{
    ds_api_error e;
    ds_api_fail(&e, status, type, code, NULL, "%s", message);
    ds_reply_error(x, &e, why);
}

static void fail_field(ds_exchange *x, const char *field, const char *message)
{
    ds_api_error e;
    ds_api_fail(&e, 400, NULL, NULL, field, "%s", message);
    ds_reply_error(x, &e, DS_REFUSED_INVALID);
}

/* ---- state ---- */

/* An engine's device has failed: only a new process has it back. Engines elsewhere come back by themselves; without
 * any of them nothing can be answered. */
static bool lost(const ds_server *s)
{
    uint32_t n = s->up ? ds_gen_n_engines(s->model.gen) : 0, gone = 0;
    ds_gen_stats st;

    for (uint32_t i = 0; i < n; i++)
        gone += ds_gen_stats_get(s->model.gen, i, &st) ? st.lost : 0;
    return s->model.engines_elsewhere ? s->up && gone >= n : gone > 0;
}

static void get_health(ds_exchange *x, const char *rest, size_t n)
{
    (void)rest;
    (void)n;
    if (!x->s->model.engines_elsewhere && lost(x->s))
        reply_text(x, 503, JSON, "{\"status\":\"failed\"}");
    else
        reply_text(x, 200, JSON, "{\"status\":\"ok\"}");
}

static void get_ready(ds_exchange *x, const char *rest, size_t n)
{
    (void)rest;
    (void)n;
    if (lost(x->s)) {
        reply_text(x, 503, JSON, "{\"status\":\"failed\"}");
        return;
    }
    if (x->s->up && !x->s->draining) {
        reply_text(x, 200, JSON, "{\"status\":\"ready\"}");
        return;
    }
    x->retry_s = x->s->draining ? 5 : 1;
    reply_text(x, 503, JSON, x->s->draining ? "{\"status\":\"draining\"}" : "{\"status\":\"starting\"}");
}

static void get_version(ds_exchange *x, const char *rest, size_t n)
{
    (void)rest;
    (void)n;
    reply_text(x, 200, JSON, "{\"version\":\"" DS_VERSION "\"}");
}

static void get_metrics(ds_exchange *x, const char *rest, size_t n)
{
    ds_server *s = x->s;
    uint32_t n_engines = s->up ? ds_gen_n_engines(s->model.gen) : 0;
    ds_metrics_engine *engines = n_engines ? calloc(n_engines, sizeof *engines) : NULL;
    ds_metrics_beside beside = { 0 };
    ds_buf b = { 0 };

    (void)rest;
    (void)n;
    if (n_engines && !engines) {
        x->retry_s = 1;
        fail(x, DS_REFUSED_UNAVAILABLE, 503, NULL, NULL, "the server is out of memory");
        return;
    }
    for (uint32_t i = 0; i < n_engines; i++) {
        engines[i].has_stats = ds_gen_stats_get(s->model.gen, i, &engines[i].stats);
        engines[i].has_plan = ds_gen_plan_get(s->model.gen, i, &engines[i].plan);
    }
    ds_store_usage(s->store, &beside.stored_records, &beside.stored_bytes);
    if (s->up && s->constrain)
        beside.grammars = ds_constrain_stat(s->constrain);
    ds_metrics_write(&b, &s->m, s->prefix, s->o.names[0], engines, n_engines, &beside);
    free(engines);
    ds_reply(x, 200, "text/plain; version=0.0.4; charset=utf-8", &b);
}

static void get_page(ds_exchange *x, const char *rest, size_t n)
{
    (void)rest;
    (void)n;
    ds_reply_static(x, 200, "text/html; charset=utf-8", ds_page_html, ds_page_html_bytes);
}

static void get_openapi(ds_exchange *x, const char *rest, size_t n)
{
    (void)rest;
    (void)n;
    ds_reply_static(x, 200, JSON, ds_server_openapi, ds_server_openapi_bytes);
}

/* ---- models ---- */

static void put_model(ds_buf *b, const ds_exchange *x, const char *name)
{
    ds_buf_puts(b, "{\"id\":");
    ds_json_write_str(b, name, strlen(name), DS_JSON_SSE);
    ds_buf_printf(b, ",\"object\":\"model\",\"created\":0,\"owned_by\":\"deepserve\"");
    if (x->s->up)
        ds_buf_printf(b, ",\"max_model_len\":%u", x->s->model.max_context);
    if (x->versioned) { /* Anthropic's clients read these members */
        ds_buf_puts(b, ",\"type\":\"model\",\"display_name\":");
        ds_json_write_str(b, name, strlen(name), DS_JSON_SSE);
        ds_buf_puts(b, ",\"created_at\":\"1970-01-01T00:00:00Z\"");
    }
    ds_buf_putc(b, '}');
}

static void get_models(ds_exchange *x, const char *rest, size_t n)
{
    const ds_server_opts *o = &x->s->o;
    ds_buf b = { 0 };

    (void)rest;
    (void)n;
    ds_buf_puts(&b, "{\"object\":\"list\",\"data\":[");
    for (size_t i = 0; i < o->n_names; i++) {
        if (i)
            ds_buf_putc(&b, ',');
        put_model(&b, x, o->names[i]);
    }
    ds_buf_putc(&b, ']');
    if (x->versioned) {
        ds_buf_puts(&b, ",\"has_more\":false,\"first_id\":");
        ds_json_write_str(&b, o->names[0], strlen(o->names[0]), DS_JSON_SSE);
        ds_buf_puts(&b, ",\"last_id\":");
        ds_json_write_str(&b, o->names[o->n_names - 1], strlen(o->names[o->n_names - 1]), DS_JSON_SSE);
    }
    ds_buf_putc(&b, '}');
    ds_reply(x, 200, JSON, &b);
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Undoes percent-encoding; false: malformed, NUL, or too long. */
static bool unescape(char *out, size_t cap, const char *s, size_t n)
{
    size_t k = 0;

    for (size_t i = 0; i < n; i++) {
        char c = s[i];
        if (c == '%') {
            int hi = i + 2 < n ? hex_digit(s[i + 1]) : -1, lo = i + 2 < n ? hex_digit(s[i + 2]) : -1;
            if (hi < 0 || lo < 0)
                return false;
            c = (char)(hi << 4 | lo);
            i += 2;
        }
        if (c == '\0' || k + 1 >= cap)
            return false;
        out[k++] = c;
    }
    out[k] = '\0';
    return true;
}

static void get_model(ds_exchange *x, const char *rest, size_t n)
{
    const ds_server_opts *o = &x->s->o;
    char name[300], q[120];
    ds_buf b = { 0 };
    ds_api_error e;

    if (unescape(name, sizeof name, rest, n))
        for (size_t i = 0; i < o->n_names; i++)
            if (strcmp(o->names[i], name) == 0) {
                put_model(&b, x, name);
                ds_reply(x, 200, JSON, &b);
                return;
            }
    ds_api_fail(&e, 404, "not_found_error", "model_not_found", "model", "the model %s does not exist here; /v1/models lists those that do",
                ds_quote(q, sizeof q, rest, n));
    ds_reply_error(x, &e, DS_REFUSED_NOT_FOUND);
}

/* ---- stored responses ---- */

static const char NOT_STORED[] = "no response of that id is stored";

/* The stored text, which the caller frees; NULL after a reply. */
static char *stored(ds_exchange *x, const char *id, ds_store_part part, size_t *n)
{
    char *text = NULL;
    ds_err err = { 0 };

    if (ds_store_get(x->s->store, x->tenant, id, part, ds_server_wall(x->s), &text, n, &err) != DS_OK) {
        ds_logf(x->s->o.log, DS_LOG_ERROR, "store %s", err.msg);
        fail(x, DS_REFUSED_INTERNAL, 500, NULL, NULL, "the store of responses failed");
        return NULL;
    }
    if (!text)
        fail(x, DS_REFUSED_NOT_FOUND, 404, NULL, NULL, NOT_STORED);
    return text;
}

static void get_or_delete_response(ds_exchange *x, const char *rest, size_t n)
{
    char id[128], *text;
    size_t text_n;
    ds_buf b = { 0 };

    if (!unescape(id, sizeof id, rest, n)) {
        fail(x, DS_REFUSED_NOT_FOUND, 404, NULL, NULL, NOT_STORED);
        return;
    }
    if (strcmp(x->method, "DELETE") != 0) {
        text = stored(x, id, DS_STORE_BODY, &text_n);
        if (text) {
            ds_buf_put(&b, text, text_n);
            free(text);
            ds_reply(x, 200, JSON, &b);
        }
        return;
    }
    if (!ds_store_remove(x->s->store, x->tenant, id, ds_server_wall(x->s))) {
        fail(x, DS_REFUSED_NOT_FOUND, 404, NULL, NULL, NOT_STORED);
        return;
    }
    ds_buf_puts(&b, "{\"id\":");
    ds_json_write_str(&b, id, strlen(id), DS_JSON_SSE);
    ds_buf_puts(&b, ",\"object\":\"response.deleted\",\"deleted\":true}");
    ds_reply(x, 200, JSON, &b);
}

static void get_input_items(ds_exchange *x, const char *rest, size_t n)
{
    const char *order = ds_query(x, "order"), *limit = ds_query(x, "limit");
    ds_items_page page = { .ascending = order && strcmp(order, "asc") == 0, .limit = 20, .after = ds_query(x, "after") };
    char id[128], *text, *end = NULL;
    size_t text_n;
    ds_err err = { 0 };
    ds_buf b = { 0 };
    ds_rc rc;

    if (limit) {
        page.limit = strtoul(limit, &end, 10);
        if (*limit < '0' || *limit > '9' || *end || page.limit < 1 || page.limit > 100) {
            fail_field(x, "limit", "limit: expected a number from 1 to 100");
            return;
        }
    }
    if (order && !page.ascending && strcmp(order, "desc") != 0) {
        fail_field(x, "order", "order: expected asc or desc");
        return;
    }
    if (!unescape(id, sizeof id, rest, n)) {
        fail(x, DS_REFUSED_NOT_FOUND, 404, NULL, NULL, NOT_STORED);
        return;
    }
    text = stored(x, id, DS_STORE_INPUT, &text_n);
    if (!text)
        return;
    rc = ds_items_write(&b, text, text_n, id, &page, &err);
    free(text);
    if (rc == DS_E_ARG) {
        ds_buf_free(&b);
        fail_field(x, "after", err.msg);
        return;
    }
    b.oom |= rc != DS_OK; /* what is stored was valid */
    ds_reply(x, 200, JSON, &b);
}

/* ---- generation, tokens ---- */

static void generate(ds_exchange *x, const char *rest, size_t n)
{
    (void)rest;
    (void)n;
    ds_call_start(x, DS_CALL_GENERATE);
}

static void count(ds_exchange *x, const char *rest, size_t n)
{
    (void)rest;
    (void)n;
    ds_call_start(x, DS_CALL_COUNT);
}

static void tokenize(ds_exchange *x, const char *rest, size_t n)
{
    (void)rest;
    (void)n;
    ds_call_start(x, DS_CALL_TOKENIZE);
}

static void detokenize(ds_exchange *x, const char *rest, size_t n)
{
    const ds_tokenizer *t = x->s->model.tokenizer;
    ds_json_doc *doc = NULL;
    ds_err err;
    ds_buf text = { 0 }, b = { 0 };
    const ds_json *ids;
    char *room = NULL;
    ds_decoder d;
    char bad[100] = "";
    size_t i = 0;

    (void)rest;
    (void)n;
    if (ds_json_parse(&doc, ds_buf_str(&x->body), x->body.len, &(ds_json_opts){ .max_values = 4u << 20 }, &err) != DS_OK) {
        fail(x, DS_REFUSED_INVALID, 400, NULL, NULL, err.msg);
        return;
    }
    ids = ds_json_get(ds_json_root(doc), "tokens");
    if (!ds_json_is(ids, DS_JSON_ARRAY))
        strcpy(bad, "tokens: expected a list of token ids");
    ds_decoder_init(&d, t, true);
    room = malloc(ds_decoder_room(t));
    for (const ds_json *v = !*bad && room ? ids->child : NULL; v && !*bad; v = v->next, i++) {
        uint64_t id;
        if (!ds_json_u64(v, &id) || id >= ds_tokenizer_size(t))
            snprintf(bad, sizeof bad, "tokens[%zu]: expected a token id of this model, 0 to %u", i, ds_tokenizer_size(t) - 1);
        else
            ds_buf_put(&text, room, ds_decoder_push(&d, (ds_token)id, room, NULL));
    }
    if (*bad) {
        fail(x, DS_REFUSED_INVALID, 400, NULL, NULL, bad);
    } else {
        if (room)
            ds_buf_put(&text, room, ds_decoder_finish(&d, true, room, NULL));
        ds_buf_puts(&b, "{\"prompt\":");
        ds_json_write_str(&b, ds_buf_str(&text), text.len, DS_JSON_SSE);
        ds_buf_putc(&b, '}');
        b.oom |= text.oom || !room;
        ds_reply(x, 200, JSON, &b);
    }
    free(room);
    ds_buf_free(&text);
    ds_json_free(doc);
}

/* ---- admin socket ---- */

static void admin_status(ds_exchange *x, const char *rest, size_t n)
{
    ds_server *s = x->s;
    ds_buf b = { 0 };

    (void)rest;
    (void)n;
    ds_buf_printf(&b, "{\"ready\":%s,\"draining\":%s,\"connections\":%u,\"requests\":%u,\"streams\":%u}",
                  s->up && !s->draining ? "true" : "false", s->draining ? "true" : "false", s->m.connections, s->n_calls, s->m.streams);
    ds_reply(x, 200, JSON, &b);
}

static void admin_drain(ds_exchange *x, const char *rest, size_t n)
{
    (void)rest;
    (void)n;
    ds_server_ask(x->s, DS_SERVER_DRAIN);
    reply_text(x, 202, JSON, "{\"status\":\"draining\"}");
}

static void admin_reload(ds_exchange *x, const char *rest, size_t n)
{
    ds_err err;

    (void)rest;
    (void)n;
    if (x->s->auth && ds_auth_reload(x->s->auth, &err) != DS_OK)
        fail(x, DS_REFUSED_INVALID, 500, NULL, NULL, err.msg);
    else
        reply_text(x, 200, JSON, "{\"status\":\"reloaded\"}");
}

/* ---- the table ---- */

static const ds_route not_found_route = { .name = "none", .methods = "GET", .proto = DS_PROTO_CHAT };
static const ds_route preflight_route = { .name = "preflight", .methods = "OPTIONS", .open = true };

static const ds_route chat = { .name = "chat", .methods = "POST", .proto = DS_PROTO_CHAT, .model = true, .run = generate };
static const ds_route responses = { .name = "responses", .methods = "POST", .proto = DS_PROTO_RESPONSES, .model = true, .run = generate };
static const ds_route response_tokens = {
    .name = "responses_count", .methods = "POST", .proto = DS_PROTO_RESPONSES, .model = true, .run = count
};
static const ds_route response = {
    .name = "response", .methods = "GET, HEAD, DELETE", .proto = DS_PROTO_RESPONSES, .run = get_or_delete_response
};
static const ds_route input_items = { .name = "input_items", .methods = "GET, HEAD", .proto = DS_PROTO_RESPONSES, .run = get_input_items };
static const ds_route messages = { .name = "messages", .methods = "POST", .proto = DS_PROTO_MESSAGES, .model = true, .run = generate };
static const ds_route count_tokens = { .name = "count_tokens", .methods = "POST", .proto = DS_PROTO_MESSAGES, .model = true, .run = count };
static const ds_route completions = {
    .name = "completions", .methods = "POST", .proto = DS_PROTO_COMPLETIONS, .model = true, .run = generate
};
static const ds_route models = { .name = "models", .methods = "GET, HEAD", .run = get_models };
static const ds_route model = { .name = "model", .methods = "GET, HEAD", .run = get_model };
static const ds_route tokenize_route = { .name = "tokenize", .methods = "POST", .model = true, .run = tokenize };
static const ds_route detokenize_route = { .name = "detokenize", .methods = "POST", .model = true, .run = detokenize };
static const ds_route health = { .name = "health", .methods = "GET, HEAD", .open = true, .run = get_health };
static const ds_route ready = { .name = "ready", .methods = "GET, HEAD", .open = true, .run = get_ready };
static const ds_route version = { .name = "version", .methods = "GET, HEAD", .open = true, .run = get_version };
static const ds_route metrics = { .name = "metrics", .methods = "GET, HEAD", .open = true, .run = get_metrics };
static const ds_route page = { .name = "page", .methods = "GET, HEAD", .open = true, .run = get_page };
static const ds_route openapi = { .name = "openapi", .methods = "GET, HEAD", .open = true, .run = get_openapi };
static const ds_route status_route = { .name = "admin_status", .methods = "GET, HEAD", .open = true, .run = admin_status };
static const ds_route drain_route = { .name = "admin_drain", .methods = "POST", .open = true, .run = admin_drain };
static const ds_route reload_route = { .name = "admin_reload", .methods = "POST", .open = true, .run = admin_reload };

typedef struct {
    const char *path; /* one * stands for a name without slashes; for models with them */
    const ds_route *route;
} entry;

static const entry public_paths[] = {
    { "/v1/chat/completions", &chat },
    { "/chat/completions", &chat },
    { "/beta/chat/completions", &chat },
    { "/beta/v1/chat/completions", &chat },
    { "/v1/responses", &responses },
    { "/responses", &responses },
    { "/v1/responses/input_tokens", &response_tokens },
    { "/v1/responses/*/input_items", &input_items },
    { "/v1/responses/*", &response },
    { "/responses/*", &response },
    { "/v1/messages", &messages },
    { "/messages", &messages },
    { "/anthropic/v1/messages", &messages },
    { "/v1/messages/count_tokens", &count_tokens },
    { "/anthropic/v1/messages/count_tokens", &count_tokens },
    { "/v1/completions", &completions },
    { "/completions", &completions },
    { "/beta/completions", &completions },
    { "/beta/v1/completions", &completions },
    { "/v1/models", &models },
    { "/models", &models },
    { "/anthropic/v1/models", &models },
    { "/v1/models/**", &model },
    { "/models/**", &model },
    { "/anthropic/v1/models/**", &model },
    { "/tokenize", &tokenize_route },
    { "/v1/tokenize", &tokenize_route },
    { "/detokenize", &detokenize_route },
    { "/v1/detokenize", &detokenize_route },
    { "/health", &health },
    { "/ready", &ready },
    { "/version", &version },
    { "/metrics", &metrics },
    { "/openapi.json", &openapi },
    { "/", &page },
};
static const entry admin_paths[] = {
    { "/status", &status_route }, { "/drain", &drain_route }, { "/reload", &reload_route },
    { "/metrics", &metrics },     { "/health", &health },     { "/ready", &ready },
};

/* Does path fit the pattern? Then rest is what the star stands for. */
static bool fits(const char *pattern, const char *path, size_t n, const char **rest, size_t *rest_n)
{
    const char *star = strchr(pattern, '*');
    size_t head = star ? (size_t)(star - pattern) : strlen(pattern), tail, middle;

    if (!star)
        return head == n && memcmp(pattern, path, n) == 0;
    bool deep = star[1] == '*';
    star += deep ? 2 : 1;
    tail = strlen(star);
    if (n <= head + tail || memcmp(pattern, path, head) != 0 || memcmp(path + n - tail, star, tail) != 0)
        return false;
    middle = n - head - tail;
    if (!deep && memchr(path + head, '/', middle))
        return false;
    *rest = path + head;
    *rest_n = middle;
    return true;
}

static const ds_route *find_route(const ds_exchange *x, const char **rest, size_t *rest_n)
{
    const entry *list = x->c->l->admin ? admin_paths : public_paths;
    size_t n = x->c->l->admin ? sizeof admin_paths / sizeof *admin_paths : sizeof public_paths / sizeof *public_paths, len = x->path_n;
    const char *path = x->target;

    if (len > 8 && (strncasecmp(path, "http://", 7) == 0 || strncasecmp(path, "https://", 8) == 0)) { /* absolute form */
        const char *slash = memchr(path + 8, '/', len - 8);
        if (!slash)
            return NULL;
        len -= (size_t)(slash - path);
        path = slash;
    }
    if (len > 1 && path[len - 1] == '/')
        len--;
    *rest = NULL;
    *rest_n = 0;
    for (size_t i = 0; i < n; i++)
        if (fits(list[i].path, path, len, rest, rest_n))
            return list[i].route;
    return NULL;
}

static bool method_fits(const ds_exchange *x)
{
    size_t n = strlen(x->method);

    for (const char *m = x->route->methods; m; m = strchr(m, ',') ? strchr(m, ',') + 2 : NULL)
        if (strncmp(m, x->method, n) == 0 && (m[n] == ',' || m[n] == '\0'))
            return true;
    return false;
}

/* The key that a request presents is known; without a keys file nobody is asked. */
static bool authenticate(ds_exchange *x)
{
    const char *bearer = ds_header(x, "authorization"), *own = ds_header(x, "x-api-key");
    ds_auth_key *k = NULL;

    if (bearer && strncasecmp(bearer, "bearer ", 7) == 0) {
        bearer += 7 + strspn(bearer + 7, " ");
        k = ds_auth_find(x->s->auth, bearer, strlen(bearer));
    }
    if (!k && own)
        k = ds_auth_find(x->s->auth, own, strlen(own));
    if (!k)
        return false;
    x->key = k;
    x->keyed = true;
    strcpy(x->tenant, k->tenant);
    strcpy(x->key_name, k->name);
    return true;
}

/* Is an unknown path one of Anthropic's? Its clients expect their own form of errors there. */
static bool under_messages(const ds_exchange *x)
{
    static const char *const heads[] = { "/v1/messages/", "/messages/", "/anthropic/" };

    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++)
        if (x->path_n > strlen(heads[i]) && strncmp(x->target, heads[i], strlen(heads[i])) == 0)
            return true;
    return false;
}

void ds_route_proto(ds_exchange *x)
{
    const char *rest;
    size_t rest_n;

    x->route = find_route(x, &rest, &rest_n);
    if (x->route && x->route != &models && x->route != &model)
        x->proto = x->route->proto;
    else if (x->versioned || (!x->route && under_messages(x)))
        x->proto = DS_PROTO_MESSAGES;
}

void ds_route_begin(ds_exchange *x, const ds_framing *f)
{
    ds_server *s = x->s;
    const char *type = ds_header(x, "content-type"), *coding = ds_header(x, "content-encoding");
    ds_api_error e;

    x->versioned = ds_header(x, "anthropic-version") != NULL;
    ds_route_proto(x);
    if (f->has_length && f->length > s->o.max_body) {
        ds_api_fail(&e, 413, NULL, NULL, NULL, "the body of %" PRIu64 " bytes is above the limit of %zu", f->length, s->o.max_body);
        x->close = true;
        ds_reply_error(x, &e, DS_REFUSED_TOO_LARGE);
        return;
    }
    if (s->cors && strcmp(x->method, "OPTIONS") == 0 && ds_header(x, "access-control-request-method")) {
        x->route = &preflight_route;
        x->preflight = true;
        ds_reply_static(x, 204, "text/plain", "", 0);
        return;
    }
    bool open = x->c->l->admin || (x->route && x->route->open && !(x->route == &metrics && s->o.metrics_auth));
    if (s->auth && !open && !authenticate(x)) {
        fail(x, DS_REFUSED_AUTH, 401, NULL, "invalid_api_key", "a valid API key is needed: Authorization: Bearer …, or x-api-key");
        return;
    }
    if (!x->route) {
        x->route = &not_found_route;
        fail(x, DS_REFUSED_NOT_FOUND, 404, NULL, NULL,
             x->c->l->admin ? "there is no such endpoint; docs/server.md lists them"
                            : "there is no such endpoint; /openapi.json lists them");
        return;
    }
    if (!method_fits(x)) {
        ds_api_fail(&e, 405, "invalid_request_error", "method_not_allowed", NULL, "this endpoint takes %s, not %s", x->route->methods,
                    x->method);
        ds_reply_error(x, &e, DS_REFUSED_NOT_FOUND);
        return;
    }
    if (type && strncasecmp(type, "multipart/", 10) == 0)
        fail(x, DS_REFUSED_INVALID, 415, NULL, NULL, "the body must be JSON, not multipart");
    else if (coding && *coding && strcasecmp(coding, "identity") != 0)
        fail(x, DS_REFUSED_INVALID, 415, NULL, NULL, "a compressed body is not taken");
}

void ds_route_run(ds_exchange *x)
{
    ds_server *s = x->s;
    const char *rest;
    size_t rest_n;

    find_route(x, &rest, &rest_n);
    if (x->route->model && (!s->up || s->draining)) {
        x->retry_s = s->draining ? 5 : 1;
        x->close = true;
        fail(x, DS_REFUSED_UNAVAILABLE, 503, NULL, NULL, s->draining ? "the server is shutting down" : "the server is starting");
        return;
    }
    if (x->route->model && x->body.len == 0) {
        fail(x, DS_REFUSED_INVALID, 400, NULL, NULL, "the request has no body; JSON is expected");
        return;
    }
    x->route->run(x, rest, rest_n);
}
