#include "cli/model_cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/file.h"
#include "kern/device.h"

enum { IDS_FILE_MAX_BYTES = 256 << 20, IDS_MAX = 64 << 20 };

void ds_cli_say_device(const char *asked, const char *name)
{
    if (strcmp(asked, "auto") != 0)
        return;
    fprintf(stderr, "device: %s", name);
    for (size_t i = 0; ds_device_kinds[i]; i++) {
        const char *why;
        if (ds_device_kinds[i]->probe(&why) > 0)
            break;
        fprintf(stderr, " (no %s: %s)", ds_device_kinds[i]->name, why);
    }
    fputc('\n', stderr);
}

ds_rc ds_cli_model_open(ds_cli_model *m, const char *dir, const ds_llm_place *place, ds_err *err)
{
    ds_rc rc = ds_llm_open_model(&m->pool, &m->model, dir, place, err);

    if (rc == DS_OK && place->device)
        ds_cli_say_device(place->device, ds_model_device(m->model)->name);
    return rc;
}

void ds_cli_model_close(ds_cli_model *m)
{
    ds_model_close(m->model);
    ds_pool_destroy(m->pool);
    *m = (ds_cli_model){ 0 };
}

static bool push(ds_cli_ids *ids, size_t *cap, ds_token v)
{
    if (ids->n == *cap) {
        size_t more = *cap ? 2 * *cap : 256;
        ds_token *p = realloc(ids->p, more * sizeof *p);
        if (!p)
            return false;
        ids->p = p;
        *cap = more;
    }
    ids->p[ids->n++] = v;
    return true;
}

/* A decimal number of any length. What no vocabulary has becomes -1, which ds_cli_ids_check refuses. */
static bool push_text(ds_cli_ids *ids, size_t *cap, const char *text, size_t n)
{
    ds_token v = 0;
    bool minus = text[0] == '-', odd = false;

    for (size_t i = minus; i < n && !odd; i++)
        odd = __builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, text[i] - '0', &v);
    odd = odd || (minus && v > 0);
    if (odd && !ids->odd_text[0]) {
        ids->odd_at = ids->n;
        snprintf(ids->odd_text, sizeof ids->odd_text, n < sizeof ids->odd_text ? "%.*s" : "%.*s...", n < sizeof ids->odd_text ? (int)n : 20,
                 text);
    }
    return push(ids, cap, odd ? -1 : v);
}

static ds_rc parse_list(ds_cli_ids *ids, const char *arg, bool *wrong_use, ds_err *err)
{
    size_t cap = 0;
    const char *p = arg;

    for (;; p++) {
        size_t sign = *p == '-', n = sign + strspn(p + sign, "0123456789");
        char q[220];

        if (n == sign || (p[n] != ',' && p[n] != '\0')) {
            *wrong_use = true;
            return ds_fail(err, DS_E_ARG, "--tokens: '%s': expected ids such as 1,2,3 or @FILE", ds_quote(q, sizeof q, arg, strlen(arg)));
        }
        if (!push_text(ids, &cap, p, n))
            return ds_fail(err, DS_E_NOMEM, "--tokens: out of memory");
        p += n;
        if (*p == '\0')
            return DS_OK;
    }
}

static ds_rc parse_array(ds_cli_ids *ids, const char *path, const char *text, size_t n, ds_err *err)
{
    ds_json_doc *doc;
    size_t cap = 0;
    ds_rc rc = ds_json_parse(&doc, text, n, &(ds_json_opts){ .max_depth = 2, .max_values = IDS_MAX }, err);

    if (rc != DS_OK)
        return ds_err_prefix(err, rc, "%s: ", path);
    if (ds_json_root(doc)->type != DS_JSON_ARRAY)
        rc = ds_fail(err, DS_E_FORMAT, "%s: expected a JSON array of token ids", path);
    for (const ds_json *v = ds_json_root(doc)->child; v && rc == DS_OK; v = v->next) {
        if (!ds_json_is(v, DS_JSON_NUMBER) || strspn(v->text, "-0123456789") != v->text_len)
            rc = ds_fail(err, DS_E_FORMAT, "%s: element %u is no token id", path, ids->n);
        else if (!push_text(ids, &cap, v->text, v->text_len))
            rc = ds_fail(err, DS_E_NOMEM, "%s: out of memory", path);
    }
    ds_json_free(doc);
    if (rc == DS_OK && ids->n == 0)
        rc = ds_fail(err, DS_E_FORMAT, "%s: no token ids", path);
    return rc;
}

ds_rc ds_cli_ids_parse(ds_cli_ids *ids, const char *arg, bool *wrong_use, ds_err *err)
{
    char *text, label[220];
    size_t n;
    ds_rc rc;

    *ids = (ds_cli_ids){ 0 };
    *wrong_use = false;
    if (arg[0] != '@') {
        rc = parse_list(ids, arg, wrong_use, err);
    } else {
        rc = ds_file_read(&text, &n, arg + 1, IDS_FILE_MAX_BYTES, err);
        if (rc != DS_OK)
            return rc;
        rc = parse_array(ids, ds_file_label(label, sizeof label, arg + 1), text, n, err);
        free(text);
    }
    if (rc != DS_OK) {
        free(ids->p);
        *ids = (ds_cli_ids){ 0 };
    }
    return rc;
}

ds_rc ds_cli_ids_check(const ds_cli_ids *ids, uint32_t vocab, ds_err *err)
{
    for (uint32_t i = 0; i < ids->n; i++) {
        char text[24];

        if (ids->p[i] >= 0 && (uint32_t)ids->p[i] < vocab)
            continue;
        snprintf(text, sizeof text, "%d", ids->p[i]);
        return ds_fail(err, DS_E_ARG, "token id %s at position %u is outside the vocabulary, 0..%u",
                       ids->odd_text[0] && ids->odd_at == i ? ids->odd_text : text, i, vocab - 1);
    }
    return DS_OK;
}

const char *ds_cli_user_cache(char *out, size_t cap)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int n = -1;

    if (cache && cache[0] == '/')
        n = snprintf(out, cap, "%s/deepserve", cache);
    else if (home && home[0] == '/')
        n = snprintf(out, cap, "%s/.cache/deepserve", home);
    return n > 0 && (size_t)n < cap ? out : NULL;
}
