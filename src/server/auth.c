#include "server/auth.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/crypto.h>
#include <openssl/rand.h>

#include "base/hash.h"
#include "base/file.h"
#include "server/server.h"

#define FILE_MAX_BYTES (4u << 20)

struct ds_auth {
    char *path;
    ds_auth_key **keys;
    size_t n;
};

static void unref(ds_auth_key *k)
{
    if (k && --k->refs == 0)
        free(k);
}

static void free_list(ds_auth_key **keys, size_t n)
{
    for (size_t i = 0; i < n; i++)
        unref(keys[i]);
    free(keys);
}

/* ---- the file ---- */

static bool good_name(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!((s[i] >= 'a' && s[i] <= 'z') || (s[i] >= 'A' && s[i] <= 'Z') || (s[i] >= '0' && s[i] <= '9') || strchr("._-", s[i])))
            return false;
    return n >= 1 && n <= DS_AUTH_NAME_MAX;
}

static bool read_hash(uint8_t out[32], const char *s)
{
    for (int i = 0; i < 64; i++) {
        char c = s[i];
        int v = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (v < 0)
            return false;
        out[i / 2] = (uint8_t)(i % 2 ? out[i / 2] | v : v << 4);
    }
    return s[64] == '\0';
}

static bool read_limit(double *out, const char *s)
{
    char *end;
    *out = strtod(s, &end);
    return end != s && *end == '\0' && isfinite(*out) && *out > 0 && *out <= 1e12;
}

static ds_rc parse_setting(ds_auth_key *k, const char *word, ds_err *err)
{
    const char *eq = strchr(word, '=');
    size_t n = eq ? (size_t)(eq - word) : 0;
    char q[220];
    double v;

    if (eq && n == 6 && memcmp(word, "tenant", n) == 0) {
        if (!good_name(eq + 1, strlen(eq + 1)))
            return ds_fail(err, DS_E_FORMAT, "a tenant is 1-%d letters, digits, '.', '_' or '-'", DS_AUTH_NAME_MAX);
        strcpy(k->tenant, eq + 1);
        return DS_OK;
    }
    if (!eq || !read_limit(&v, eq + 1))
        return ds_fail(err, DS_E_FORMAT, "'%s': expected tenant=T, rps=N, concurrent=N or tokens_per_minute=N",
                       ds_quote(q, sizeof q, word, strlen(word)));
    if (n == 3 && memcmp(word, "rps", n) == 0)
        k->rps = v;
    else if (n == 10 && memcmp(word, "concurrent", n) == 0 && v >= 1 && v <= 1e9)
        k->concurrent = (uint32_t)v;
    else if (n == 17 && memcmp(word, "tokens_per_minute", n) == 0)
        k->tokens_per_minute = v;
    else
        return ds_fail(err, DS_E_FORMAT, "'%s' is no setting of a key", ds_quote(q, sizeof q, word, strlen(word)));
    return DS_OK;
}

/* The first word of the line was the name. */
static ds_rc parse_key(ds_auth_key *k, const char *name, char **rest, ds_err *err)
{
    char *word = strtok_r(NULL, " \t\r", rest);
    ds_rc rc = DS_OK;

    if (!good_name(name, strlen(name)))
        return ds_fail(err, DS_E_FORMAT, "a name is 1-%d letters, digits, '.', '_' or '-'", DS_AUTH_NAME_MAX);
    if (!word || strncmp(word, "sha256:", 7) != 0 || !read_hash(k->hash, word + 7))
        return ds_fail(err, DS_E_FORMAT, "expected sha256: and 64 hexadecimal digits after the name");
    strcpy(k->name, name);
    strcpy(k->tenant, name);
    while (rc == DS_OK && (word = strtok_r(NULL, " \t\r", rest)) != NULL)
        rc = parse_setting(k, word, err);
    k->requests = fmax(1, k->rps);
    k->tokens = k->tokens_per_minute;
    return rc;
}

static ds_rc parse_file(ds_auth_key ***out, size_t *out_n, char *text, ds_err *err)
{
    ds_auth_key **keys = calloc(DS_AUTH_MAX_KEYS, sizeof(ds_auth_key *));
    size_t n = 0, number = 0;
    ds_rc rc = keys ? DS_OK : ds_fail(err, DS_E_NOMEM, "out of memory");

    for (char *line = text; rc == DS_OK && line; number++) {
        char *next = strchr(line, '\n'), *hash = strchr(line, '#'), *rest, *name;
        if (next)
            *next++ = '\0';
        if (hash && (!next || hash < next))
            *hash = '\0';
        name = strtok_r(line, " \t\r", &rest);
        line = next;
        if (!name)
            continue;
        ds_auth_key *k = n < DS_AUTH_MAX_KEYS ? calloc(1, sizeof *k) : NULL;
        if (!k) {
            rc = ds_fail(err, n < DS_AUTH_MAX_KEYS ? DS_E_NOMEM : DS_E_FORMAT, n < DS_AUTH_MAX_KEYS ? "out of memory" : "too many keys");
            break;
        }
        k->refs = 1;
        keys[n++] = k;
        rc = parse_key(k, name, &rest, err);
        for (size_t i = 0; rc == DS_OK && i + 1 < n; i++)
            if (strcmp(keys[i]->name, k->name) == 0)
                rc = ds_fail(err, DS_E_FORMAT, "the name %s stands twice", k->name);
        if (rc == DS_E_FORMAT)
            ds_err_prefix(err, rc, "line %zu: ", number + 1);
    }
    if (rc != DS_OK) {
        if (keys)
            free_list(keys, n);
        return rc;
    }
    *out = keys;
    *out_n = n;
    return DS_OK;
}

static void take_settings(ds_auth_key *k, const ds_auth_key *from)
{
    memcpy(k->hash, from->hash, sizeof k->hash);
    strcpy(k->tenant, from->tenant);
    if (k->tokens_per_minute != from->tokens_per_minute)
        k->tokens = from->tokens;
    k->rps = from->rps;
    k->tokens_per_minute = from->tokens_per_minute;
    k->concurrent = from->concurrent;
}

static ds_rc load(ds_auth *a, ds_err *err)
{
    char *text, label[220];
    size_t n;
    ds_auth_key **keys = NULL;
    ds_rc rc = ds_file_read(&text, &n, a->path, FILE_MAX_BYTES, err);

    if (rc != DS_OK)
        return rc;
    rc = memchr(text, '\0', n) ? ds_fail(err, DS_E_FORMAT, "the file has NUL bytes") : parse_file(&keys, &n, text, err);
    free(text);
    if (rc != DS_OK)
        return ds_err_prefix(err, rc, "%s: ", ds_file_label(label, sizeof label, a->path));
    for (size_t i = 0; i < n; i++) /* a key that stays keeps its entry: what it has used and what it is running */
        for (size_t j = 0; j < a->n; j++)
            if (strcmp(keys[i]->name, a->keys[j]->name) == 0) {
                take_settings(a->keys[j], keys[i]);
                free(keys[i]);
                keys[i] = a->keys[j];
                keys[i]->refs++;
                break;
            }
    if (a->keys)
        free_list(a->keys, a->n);
    a->keys = keys;
    a->n = n;
    return DS_OK;
}

ds_rc ds_auth_open(ds_auth **out, const char *path, ds_err *err)
{
    ds_auth *a = calloc(1, sizeof *a);
    ds_rc rc;

    *out = NULL;
    if (a)
        a->path = strdup(path);
    rc = a && a->path ? load(a, err) : ds_fail(err, DS_E_NOMEM, "out of memory");
    if (rc != DS_OK) {
        ds_auth_close(a);
        return rc;
    }
    *out = a;
    return DS_OK;
}

ds_rc ds_auth_reload(ds_auth *a, ds_err *err)
{
    return load(a, err);
}

void ds_auth_close(ds_auth *a)
{
    if (!a)
        return;
    if (a->keys)
        free_list(a->keys, a->n);
    free(a->path);
    free(a);
}

bool ds_auth_has(const ds_auth *a, const char *name)
{
    for (size_t i = 0; i < a->n; i++)
        if (strcmp(a->keys[i]->name, name) == 0)
            return true;
    return false;
}

/* ---- use ---- */

ds_auth_key *ds_auth_find(ds_auth *a, const char *key, size_t n)
{
    uint8_t hash[32];
    ds_auth_key *found = NULL;

    ds_sha256(hash, key, n);
    for (size_t i = 0; i < a->n; i++) /* all of them, so that time says nothing about where a match is */
        if (CRYPTO_memcmp(hash, a->keys[i]->hash, sizeof hash) == 0)
            found = a->keys[i];
    return found;
}

static void refill(ds_auth_key *k, uint64_t now_us)
{
    double s = k->at_us && now_us > k->at_us ? (double)(now_us - k->at_us) / 1e6 : 0;

    k->at_us = now_us;
    k->requests = fmin(fmax(1, k->rps), k->requests + s * k->rps);
    k->tokens = fmin(k->tokens_per_minute, k->tokens + s * k->tokens_per_minute / 60);
}

static uint32_t seconds(double s)
{
    return s < 1 ? 1 : s > 3600 ? 3600 : (uint32_t)ceil(s);
}

ds_quota ds_auth_enter(ds_auth_key *k, uint64_t now_us, uint32_t *retry_s)
{
    refill(k, now_us);
    *retry_s = 1;
    if (k->concurrent && k->running >= k->concurrent)
        return DS_QUOTA_CONCURRENT;
    if (k->tokens_per_minute > 0 && k->tokens <= 0) {
        *retry_s = seconds((1 - k->tokens) * 60 / k->tokens_per_minute);
        return DS_QUOTA_TOKENS;
    }
    if (k->rps > 0 && k->requests < 1) {
        *retry_s = seconds((1 - k->requests) / k->rps);
        return DS_QUOTA_RATE;
    }
    if (k->rps > 0)
        k->requests -= 1;
    k->running++;
    k->refs++;
    return DS_QUOTA_OK;
}

void ds_auth_leave(ds_auth_key *k, uint64_t tokens_used, uint64_t now_us)
{
    refill(k, now_us);
    if (k->tokens_per_minute > 0) /* a debt of at most ten minutes */
        k->tokens = fmax(k->tokens - (double)tokens_used, -10 * k->tokens_per_minute);
    k->running--;
    unref(k);
}

ds_rc ds_server_new_key(char **key, char **line, const char *name, ds_err *err)
{
    uint8_t raw[24], hash[32];
    char hex[65], text[72];

    *key = *line = NULL;
    if (!good_name(name, strlen(name)))
        return ds_fail(err, DS_E_ARG, "a name is 1-%d letters, digits, '.', '_' or '-'", DS_AUTH_NAME_MAX);
    if (RAND_bytes(raw, sizeof raw) != 1)
        return ds_fail(err, DS_E_IO, "no random bytes");
    ds_hex(hex, raw, sizeof raw);
    snprintf(text, sizeof text, "dsk-%s", hex);
    ds_sha256(hash, text, strlen(text));
    ds_hex(hex, hash, sizeof hash);
    *key = strdup(text);
    if (asprintf(line, "%s sha256:%s\n", name, hex) < 0)
        *line = NULL;
    if (*key && *line)
        return DS_OK;
    free(*key);
    free(*line);
    *key = *line = NULL;
    return ds_fail(err, DS_E_NOMEM, "out of memory");
}
