/* Options from a file and back: `name = value` lines. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/opt.h"

enum { MAX_LINES = 4096 };

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* Cuts white space off both ends of [*p, *p + n); returns the new length. */
static size_t trim(const char **p, size_t n)
{
    while (n && is_space(**p)) {
        ++*p;
        n--;
    }
    while (n && is_space((*p)[n - 1]))
        n--;
    return n;
}

static const ds_opt *find(const ds_opt_cmd *cmd, const char *name, size_t n)
{
    for (const ds_opt *o = cmd->opts; o->name; o++)
        if (strlen(o->name) == n && memcmp(o->name, name, n) == 0)
            return o;
    return NULL;
}

/* Name and value -> the word that says the same on a command line. */
static ds_rc make_word(const ds_opt_cmd *cmd, const char *name, size_t name_n, const char *value, size_t value_n, char **word, ds_err *err)
{
    const ds_opt *o = find(cmd, name, name_n);
    char q[112];

    if (o && o->type == DS_OPT_FLAG) {
        bool on = value_n == 4 && memcmp(value, "true", 4) == 0;
        if (!on && !(value_n == 5 && memcmp(value, "false", 5) == 0))
            return ds_fail(err, DS_E_FORMAT, "%s '%s': expected true or false", o->name,
                           ds_quote(q, sizeof q, value, value_n < 40 ? value_n : 40));
        name_n = (size_t)snprintf(NULL, 0, on ? "--%s" : "--no-%s", o->name);
        if ((*word = malloc(name_n + 1)))
            snprintf(*word, name_n + 1, on ? "--%s" : "--no-%s", o->name);
    } else if ((*word = malloc(name_n + value_n + 4))) {
        memcpy(*word, "--", 2);
        memcpy(*word + 2, name, name_n);
        (*word)[2 + name_n] = '=';
        memcpy(*word + 3 + name_n, value, value_n);
        (*word)[3 + name_n + value_n] = '\0';
    }
    return *word ? DS_OK : ds_fail(err, DS_E_NOMEM, "out of memory");
}

/* *word is NULL for an empty line. */
static ds_rc line_word(const ds_opt_cmd *cmd, const char *line, size_t n, char **word, ds_err *err)
{
    const char *name = line, *value, *equals;
    size_t name_n, value_n;
    char q[112];

    *word = NULL;
    if (memchr(line, '\0', n))
        return ds_fail(err, DS_E_FORMAT, "a NUL byte");
    n = trim(&name, n);
    if (n == 0 || *name == '#')
        return DS_OK;
    equals = memchr(name, '=', n);
    if (!equals)
        return ds_fail(err, DS_E_FORMAT, "'%s': expected name = value", ds_quote(q, sizeof q, name, n < 40 ? n : 40));
    value = equals + 1;
    value_n = trim(&value, n - (size_t)(value - name));
    name_n = trim(&name, (size_t)(equals - name));
    return make_word(cmd, name, name_n, value, value_n, word, err);
}

/* The same command with nothing required. */
static ds_opt_cmd relax(const ds_opt_cmd *cmd, ds_opt relaxed[DS_OPT_MAX + 1])
{
    ds_opt_cmd lax = *cmd;
    size_t n = 0;

    do {
        relaxed[n] = cmd->opts[n];
        relaxed[n].required = false;
    } while (cmd->opts[n++].name);
    lax.opts = relaxed;
    return lax;
}

/* A word alone, so that what is wrong with it is said of its place. */
static ds_rc check_word(const ds_opt_cmd *lax, void *scratch, char *word, ds_err *err)
{
    char *argv[2] = { "", word };
    const char *pos;
    size_t n_pos;
    bool help;
    ds_rc rc = ds_opt_parse(lax, scratch, 2, argv, &pos, 0, &n_pos, NULL, &help, err);

    return rc == DS_OK && help ? ds_fail(err, DS_E_FORMAT, "help is no setting") : rc;
}

ds_rc ds_opt_setting(const ds_opt_cmd *cmd, const char *name, const char *value, char **word, ds_err *err)
{
    ds_opt relaxed[DS_OPT_MAX + 1];
    ds_opt_cmd lax = relax(cmd, relaxed);
    size_t bytes = 0;
    void *scratch;
    ds_rc rc;

    *word = NULL;
    for (const ds_opt *o = cmd->opts; o->name; o++)
        bytes = o->offset + sizeof(ds_opt_list) > bytes ? o->offset + sizeof(ds_opt_list) : bytes;
    scratch = calloc(1, bytes);
    if (!scratch)
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    rc = make_word(cmd, name, strlen(name), value, strlen(value), word, err);
    if (rc == DS_OK)
        rc = check_word(&lax, scratch, *word, err);
    free(scratch);
    if (rc != DS_OK) {
        free(*word);
        *word = NULL;
    }
    return rc;
}

ds_rc ds_opt_config(const ds_opt_cmd *cmd, void *scratch, const char *text, size_t n, const char *label, ds_opt_words *out, ds_err *err)
{
    ds_opt relaxed[DS_OPT_MAX + 1];
    ds_opt_cmd lax = relax(cmd, relaxed);
    size_t line_no = 0;
    ds_rc rc = DS_OK;

    *out = (ds_opt_words){ 0 };
    out->v = calloc(MAX_LINES, sizeof *out->v);
    if (!out->v)
        return ds_fail(err, DS_E_NOMEM, "%s: out of memory", label);
    for (const char *p = text, *end = text + n; rc == DS_OK && p < end; p++) {
        const char *stop = memchr(p, '\n', (size_t)(end - p));
        char *word;

        stop = stop ? stop : end;
        line_no++;
        rc = line_word(cmd, p, (size_t)(stop - p), &word, err);
        if (rc == DS_OK && word) {
            rc = check_word(&lax, scratch, word, err);
            if (rc == DS_OK && out->n == MAX_LINES)
                rc = ds_fail(err, DS_E_FORMAT, "more than %d settings", MAX_LINES);
            if (rc == DS_OK)
                out->v[out->n++] = word;
            else
                free(word);
        }
        p = stop;
    }
    if (rc == DS_OK)
        return DS_OK;
    ds_opt_words_free(out);
    if (rc == DS_E_ARG) /* of a command line it would be wrong use; these are outside bytes */
        rc = DS_E_FORMAT;
    if (err)
        err->rc = rc;
    return ds_err_prefix(err, rc, "%s:%zu: ", label, line_no);
}

void ds_opt_words_free(ds_opt_words *w)
{
    for (size_t i = 0; i < w->n; i++)
        free(w->v[i]);
    free(w->v);
    *w = (ds_opt_words){ 0 };
}

static void print_choice(const char *choices, int i, FILE *f)
{
    for (; i > 0; i--)
        choices += strcspn(choices, "|") + 1;
    fprintf(f, "%.*s", (int)strcspn(choices, "|"), choices);
}

void ds_opt_dump(const ds_opt_cmd *cmd, const void *src, FILE *f)
{
    fprintf(f, "# %s --config FILE reads this; words of the command line win\n", cmd->command);
    for (const ds_opt *o = cmd->opts; o->name; o++) {
        const char *at = (const char *)src + o->offset;
        const ds_opt_list *list = (const ds_opt_list *)at;
        const char *text = NULL;
        uint64_t bits = 1;

        if (strcmp(o->name, "config") == 0 || strcmp(o->name, "dump-config") == 0)
            continue;
        if (o->type == DS_OPT_LIST) {
            for (size_t i = 0; i < list->n; i++)
                fprintf(f, "%s = %s\n", o->name, list->v[i]);
            if (list->n == 0)
                fprintf(f, "# %s =\n", o->name);
            continue;
        }
        if (o->type == DS_OPT_STR)
            memcpy(&text, at, sizeof text);
        if (!o->def && (o->type == DS_OPT_INT || o->type == DS_OPT_REAL || o->type == DS_OPT_BYTES || o->type == DS_OPT_MS))
            memcpy(&bits, at, sizeof bits);
        if ((o->type == DS_OPT_STR && !text) || bits == 0) { /* nothing was given: 0 may be out of its range */
            fprintf(f, "# %s =\n", o->name);
            continue;
        }
        fprintf(f, "%s = ", o->name);
        switch (o->type) {
        case DS_OPT_FLAG:
            fputs(*(const bool *)at ? "true" : "false", f);
            break;
        case DS_OPT_INT:
            fprintf(f, "%" PRId64, *(const int64_t *)at);
            break;
        case DS_OPT_REAL:
            fprintf(f, "%.17g", *(const double *)at);
            break;
        case DS_OPT_ENUM:
            print_choice(o->choices, *(const int *)at, f);
            break;
        case DS_OPT_BYTES:
            fprintf(f, "%" PRIu64, *(const uint64_t *)at);
            break;
        case DS_OPT_MS:
            fprintf(f, "%" PRIu64 "ms", *(const uint64_t *)at);
            break;
        case DS_OPT_STR:
            fputs(text, f);
            break;
        case DS_OPT_LIST:
            break;
        }
        fputc('\n', f);
    }
}
