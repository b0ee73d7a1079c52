/* The option table: parsing, help, suggestions. */
#include "base/opt.h"

#include <assert.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"

enum {
    WORD_MAX = 64,     /* longer words get no suggestion */
    HELP_COLUMN = 30,  /* where the help text begins, at most */
    HELP_WIDTH = 100,  /* columns of the page */
    CHOICES_MAX = 160, /* bytes of a printed list of choices */
};

/* A decimal number at the start of s in the C locale; *end behind it. No hexadecimal, no "inf", no spaces. */
static bool read_real(const char *s, const char **end, double *out)
{
    size_t n = strspn(s, "+-.0123456789eE");
    char *stop, t[64];
    locale_t c;

    if (n == 0 || n >= sizeof t)
        return false;
    memcpy(t, s, n);
    t[n] = '\0';
    c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    *out = c ? strtod_l(t, &stop, c) : strtod(t, &stop);
    if (c)
        freelocale(c);
    *end = s + (stop - t);
    return stop != t && isfinite(*out);
}

static bool read_int(const char *s, int64_t *out)
{
    bool negative = *s == '-';
    int64_t x = 0;

    s += negative;
    if (*s == '\0')
        return false;
    for (; *s; s++)
        if (*s < '0' || *s > '9' || __builtin_mul_overflow(x, 10, &x) || __builtin_sub_overflow(x, *s - '0', &x)) /* downwards: INT64_MIN */
            return false;
    if (!negative && x == INT64_MIN)
        return false;
    *out = negative ? x : -x;
    return true;
}

static bool read_bytes(const char *s, uint64_t *out)
{
    static const struct {
        const char *unit;
        unsigned shift;
    } units[] = { { "", 0 }, { "B", 0 }, { "KiB", 10 }, { "MiB", 20 }, { "GiB", 30 }, { "TiB", 40 } };
    size_t n = strspn(s, "0123456789");
    uint64_t x = 0;

    if (n == 0)
        return false;
    for (size_t i = 0; i < n; i++)
        if (__builtin_mul_overflow(x, 10u, &x) || __builtin_add_overflow(x, (uint64_t)(s[i] - '0'), &x))
            return false;
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        if (strcmp(s + n, units[i].unit) == 0) {
            *out = x << units[i].shift;
            return *out >> units[i].shift == x;
        }
    return false;
}

static bool read_ms(const char *s, uint64_t *out)
{
    static const struct {
        const char *unit;
        double ms;
    } units[] = { { "", 1e3 }, { "ms", 1 }, { "s", 1e3 }, { "m", 6e4 }, { "h", 3.6e6 } };
    const char *end;
    double x;

    if (!read_real(s, &end, &x) || x < 0)
        return false;
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        if (strcmp(end, units[i].unit) == 0) {
            x = nearbyint(x * units[i].ms);
            if (x > 0x1p53)
                return false;
            *out = (uint64_t)x;
            return true;
        }
    return false;
}

/* Index of `s` in "a|b|c", or -1. */
static int find_choice(const char *choices, const char *s)
{
    size_t len = strlen(s);
    int i = 0;

    for (const char *c = choices;; i++) {
        size_t n = strcspn(c, "|");
        if (n == len && memcmp(c, s, n) == 0)
            return i;
        if (c[n] == '\0')
            return -1;
        c += n + 1;
    }
}

static const char *bound_text(const ds_opt *o, char *buf, size_t cap, double x)
{
    static const struct {
        const char *unit;
        double size;
    } times[] = { { "h", 3.6e6 }, { "m", 6e4 }, { "s", 1e3 }, { "ms", 1 } },
      sizes[] = { { "TiB", 0x1p40 }, { "GiB", 0x1p30 }, { "MiB", 0x1p20 }, { "KiB", 0x1p10 }, { "", 1 } };
    size_t i = 0;

    if (o->type != DS_OPT_MS && o->type != DS_OPT_BYTES) {
        snprintf(buf, cap, o->type == DS_OPT_REAL ? "%g" : "%.0f", x);
        return buf;
    }
    if (o->type == DS_OPT_MS) {
        while (times[i].size > 1 && fmod(x, times[i].size) != 0)
            i++;
        snprintf(buf, cap, "%g%s", x / times[i].size, x == 0 ? "" : times[i].unit);
    } else {
        while (sizes[i].size > 1 && fmod(x, sizes[i].size) != 0)
            i++;
        snprintf(buf, cap, "%.0f%s", x / sizes[i].size, x == 0 ? "" : sizes[i].unit);
    }
    return buf;
}

/* "1..1024", "above 0", "above 0, at most 1", … into buf; empty when there is no bound. */
static const char *range_text(const ds_opt *o, char *buf, size_t cap)
{
    char lo[32], hi[32];
    bool has_min = isfinite(o->min), has_max = isfinite(o->max);

    buf[0] = '\0';
    if ((o->min == 0 && o->max == 0) || o->type == DS_OPT_FLAG || o->type == DS_OPT_STR || o->type == DS_OPT_ENUM || o->type == DS_OPT_LIST)
        return buf;
    bound_text(o, lo, sizeof lo, o->min);
    bound_text(o, hi, sizeof hi, o->max);
    if (has_min && has_max && !o->open_min && !o->open_max)
        snprintf(buf, cap, "%s..%s", lo, hi);
    else
        snprintf(buf, cap, "%s%s%s%s%s", has_min ? (o->open_min ? "above " : "at least ") : "", has_min ? lo : "",
                 has_min && has_max ? ", " : "", has_max ? (o->open_max ? "below " : "at most ") : "", has_max ? hi : "");
    return buf;
}

static bool in_range(const ds_opt *o, double x)
{
    if (o->min == 0 && o->max == 0)
        return true;
    return !(x < o->min || x > o->max || (o->open_min && x == o->min) || (o->open_max && x == o->max));
}

static ds_rc bad_value(const ds_opt *o, const char *value, ds_err *err, const char *expected)
{
    char q[220];

    return ds_fail(err, DS_E_ARG, "--%s '%s': expected %s", o->name, ds_quote(q, sizeof q, value, strlen(value)), expected);
}

/* Stores a value that the type allows; *number is what the bounds apply to. False: not of the type. */
static bool store(const ds_opt *o, void *dst, const char *value, double *number)
{
    char *at = (char *)dst + o->offset;
    const char *end;
    int64_t i = 0;
    uint64_t u = 0;

    switch (o->type) {
    case DS_OPT_INT:
        if (!read_int(value, &i))
            return false;
        *(int64_t *)at = i;
        *number = (double)i;
        return true;
    case DS_OPT_REAL:
        if (!read_real(value, &end, number) || *end)
            return false;
        *(double *)at = *number;
        return true;
    case DS_OPT_BYTES:
    case DS_OPT_MS:
        if (!(o->type == DS_OPT_MS ? read_ms(value, &u) : read_bytes(value, &u)))
            return false;
        *(uint64_t *)at = u;
        *number = (double)u;
        return true;
    case DS_OPT_ENUM:
        *(int *)at = find_choice(o->choices, value);
        return *(int *)at >= 0;
    case DS_OPT_STR:
        *(const char **)at = value;
        return true;
    case DS_OPT_LIST:
    case DS_OPT_FLAG:
        break;
    }
    return false;
}

static ds_rc set_value(const ds_opt *o, void *dst, const char *value, ds_err *err)
{
    static const char *const kinds[] = {
        [DS_OPT_INT] = "a whole number",
        [DS_OPT_REAL] = "a number",
        [DS_OPT_BYTES] = "bytes, such as 4096, 32KiB, 48MiB, 2GiB",
        [DS_OPT_MS] = "a time, such as 250ms, 10s, 2m, 1h",
        [DS_OPT_ENUM] = "one of ",
    };
    ds_opt_list *list = (ds_opt_list *)((char *)dst + o->offset);
    char expected[CHOICES_MAX + 96], range[96];
    double number = o->min;

    if (o->type == DS_OPT_LIST) {
        if (list->n == DS_OPT_LIST_MAX)
            return ds_fail(err, DS_E_ARG, "--%s: given more than %d times", o->name, DS_OPT_LIST_MAX);
        list->v[list->n++] = value;
        return DS_OK;
    }
    if (store(o, dst, value, &number) && (o->type == DS_OPT_STR || o->type == DS_OPT_ENUM || in_range(o, number)))
        return DS_OK;
    range_text(o, range, sizeof range);
    snprintf(expected, sizeof expected, "%s%s%s", kinds[o->type], o->type == DS_OPT_ENUM ? o->choices : range[0] ? ", " : "", range);
    return bad_value(o, value, err, expected);
}

/* Default values; a default that its own type refuses is a bug in the table. */
static void set_defaults(const ds_opt_cmd *cmd, void *dst)
{
    for (const ds_opt *o = cmd->opts; o->name; o++) {
        char *at = (char *)dst + o->offset;
        ds_rc rc = DS_OK;

        switch (o->type) {
        case DS_OPT_FLAG:
            *(bool *)at = o->def && strcmp(o->def, "true") == 0;
            continue;
        case DS_OPT_INT:
            *(int64_t *)at = 0;
            break;
        case DS_OPT_REAL:
            *(double *)at = 0;
            break;
        case DS_OPT_STR:
            *(const char **)at = NULL;
            break;
        case DS_OPT_ENUM:
            *(int *)at = 0;
            break;
        case DS_OPT_LIST:
            *(ds_opt_list *)at = (ds_opt_list){ .n = 0 };
            break;
        case DS_OPT_BYTES:
        case DS_OPT_MS:
            *(uint64_t *)at = 0;
            break;
        }
        if (o->def)
            rc = set_value(o, dst, o->def, NULL);
        assert(rc == DS_OK);
        (void)rc;
    }
}

/* The entry for a word without its dashes, up to n bytes. */
static const ds_opt *find(const ds_opt_cmd *cmd, const char *name, size_t n)
{
    for (const ds_opt *o = cmd->opts; o->name; o++)
        if (strlen(o->name) == n && memcmp(o->name, name, n) == 0)
            return o;
    return NULL;
}

static int edit_distance(const char *a, const char *b)
{
    int d[3][WORD_MAX + 1]; /* the last three rows: a swap of neighbours looks two back */
    int la = (int)strlen(a), lb = (int)strlen(b);

    for (int j = 0; j <= lb; j++)
        d[0][j] = j;
    for (int i = 1; i <= la; i++) {
        int *row = d[i % 3], *up = d[(i + 2) % 3], *up2 = d[(i + 1) % 3];
        row[0] = i;
        for (int j = 1; j <= lb; j++) {
            int best = up[j - 1] + (a[i - 1] != b[j - 1]);
            if (up[j] + 1 < best)
                best = up[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && up2[j - 2] + 1 < best)
                best = up2[j - 2] + 1;
            row[j] = best;
        }
    }
    return d[la % 3][lb];
}

/* Distance for a suggestion: a beginning of the word counts as near. -1 = not near. */
static int nearness(const char *word, const char *candidate)
{
    size_t n = strlen(word), limit = n < 4 ? 1 : n < 8 ? 2 : 3;
    int d;

    if (n == 0 || n > WORD_MAX || strlen(candidate) > WORD_MAX)
        return -1;
    if (n >= 2 && strncmp(word, candidate, n) == 0)
        return 1;
    d = edit_distance(word, candidate);
    return d <= (int)limit && (size_t)d < n ? d : -1;
}

const char *ds_opt_nearest(const char *word, const char *const *words)
{
    const char *best = NULL;
    int least = -1;

    for (; *words; words++) {
        int d = nearness(word, *words);
        if (d >= 0 && (least < 0 || d < least)) {
            least = d;
            best = *words;
        }
    }
    return best;
}

static ds_rc unknown_option(const ds_opt_cmd *cmd, const char *arg, size_t name_len, ds_err *err)
{
    char word[WORD_MAX + 2] = "", q[220];
    const char *best = NULL;
    int least = -1;

    if (name_len <= WORD_MAX) {
        memcpy(word, arg + 2, name_len);
        word[name_len] = '\0';
    }
    for (const ds_opt *o = cmd->opts; o->name; o++) {
        int d = nearness(word, o->name);
        if (d >= 0 && (least < 0 || d < least)) {
            least = d;
            best = o->name;
        }
    }
    ds_quote(q, sizeof q, arg, name_len + 2);
    if (best)
        return ds_fail(err, DS_E_ARG, "unknown option %s; did you mean --%s?", q, best);
    return ds_fail(err, DS_E_ARG, "unknown option %s", q);
}

/* argv[*i] begins with "--" and is longer; moves *i on when the value is the next word. */
static ds_rc parse_long(const ds_opt_cmd *cmd, void *dst, int argc, char **argv, int *i, bool *given, ds_err *err)
{
    const char *arg = argv[*i], *name = arg + 2, *value = NULL;
    size_t n = strcspn(name, "=");
    const ds_opt *o = find(cmd, name, n);

    if (name[n] == '=')
        value = name + n + 1;
    if (!o && n > 3 && memcmp(name, "no-", 3) == 0) {
        o = find(cmd, name + 3, n - 3);
        if (o && o->type == DS_OPT_FLAG && !value) {
            *(bool *)((char *)dst + o->offset) = false;
            if (given)
                given[o - cmd->opts] = true;
            return DS_OK;
        }
        o = NULL;
    }
    if (!o)
        return unknown_option(cmd, arg, n, err);
    if (given)
        given[o - cmd->opts] = true;
    if (o->type == DS_OPT_FLAG) {
        if (value)
            return ds_fail(err, DS_E_ARG, "--%s takes no value; --no-%s turns it off", o->name, o->name);
        *(bool *)((char *)dst + o->offset) = true;
        return DS_OK;
    }
    if (!value) {
        value = *i + 1 < argc ? argv[*i + 1] : NULL;
        if (!value)
            return ds_fail(err, DS_E_ARG, "--%s needs a value (%s)", o->name, o->arg ? o->arg : "VALUE");
        if (value[0] == '-' && value[1] == '-' && value[2] && find(cmd, value + 2, strcspn(value + 2, "=")))
            return ds_fail(err, DS_E_ARG, "--%s needs a value (%s), but %s follows", o->name, o->arg ? o->arg : "VALUE", value);
        ++*i;
    }
    return set_value(o, dst, value, err);
}

ds_rc ds_opt_parse(const ds_opt_cmd *cmd, void *dst, int argc, char **argv, const char **pos, size_t max_pos, size_t *n_pos, bool *given,
                   bool *help, ds_err *err)
{
    bool seen[DS_OPT_MAX] = { false }, words_only = false;
    size_t n_opts = 0;
    char q[220];
    ds_rc rc;

    while (cmd->opts[n_opts].name)
        n_opts++;
    assert(n_opts <= sizeof seen / sizeof seen[0]);
    set_defaults(cmd, dst);
    *help = false;
    *n_pos = 0;
    if (given)
        memset(given, 0, n_opts * sizeof *given);
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];

        if (words_only || a[0] != '-' || a[1] == '\0') {
            if (*n_pos == max_pos)
                return ds_fail(err, DS_E_ARG, "unexpected argument '%s'", ds_quote(q, sizeof q, a, strlen(a)));
            pos[(*n_pos)++] = a;
        } else if (strcmp(a, "--") == 0) {
            words_only = true;
        } else if (strcmp(a, "--help") == 0 || strcmp(a, "-h") == 0) {
            *help = true;
            return DS_OK;
        } else if (a[1] != '-') {
            return ds_fail(err, DS_E_ARG, "unknown option %s", ds_quote(q, sizeof q, a, strlen(a)));
        } else {
            rc = parse_long(cmd, dst, argc, argv, &i, seen, err);
            if (rc != DS_OK)
                return rc;
        }
    }
    for (size_t i = 0; i < n_opts; i++)
        if (cmd->opts[i].required && !seen[i])
            return ds_fail(err, DS_E_ARG, "--%s %s is required", cmd->opts[i].name, cmd->opts[i].arg ? cmd->opts[i].arg : "");
    if (given)
        memcpy(given, seen, n_opts * sizeof *given);
    return DS_OK;
}

/* The left column: "--[no-]name", "--mode exact|ced", "--threads N". */
static int left_text(const ds_opt *o, char *buf, size_t cap)
{
    bool on = o->type == DS_OPT_FLAG && o->def && strcmp(o->def, "true") == 0;
    const char *arg = o->arg ? o->arg : o->type == DS_OPT_ENUM ? o->choices : NULL;

    return snprintf(buf, cap, "  --%s%s%s%s", on ? "[no-]" : "", o->name, arg ? " " : "", arg ? arg : "");
}

/* Words of `text` from column `at` on, later lines indented to `column`. Returns the column reached. */
static int put_wrapped(FILE *f, const char *text, int at, int column)
{
    while (*text) {
        int n = (int)strcspn(text, " ");
        if (at > column && at + 1 + n > HELP_WIDTH) {
            fprintf(f, "\n%*s", column, "");
            at = column;
        } else if (at > column) {
            fputc(' ', f);
            at++;
        }
        fprintf(f, "%.*s", n, text);
        at += n;
        text += n;
        text += strspn(text, " ");
    }
    return at;
}

/* "[1..1024; default 4]" */
static void notes_text(const ds_opt *o, ds_buf *b)
{
    char range[96];

    ds_buf_clear(b);
    if (o->type == DS_OPT_ENUM && o->arg)
        ds_buf_printf(b, "; %s", o->choices);
    if (*range_text(o, range, sizeof range))
        ds_buf_printf(b, "; %s", range);
    if (o->required)
        ds_buf_puts(b, "; required");
    else if (o->type == DS_OPT_FLAG && o->def && strcmp(o->def, "true") == 0)
        ds_buf_puts(b, "; default on");
    else if (o->type != DS_OPT_FLAG && o->def)
        ds_buf_printf(b, "; default %s", *o->def ? o->def : "empty");
    if (b->len > 0) {
        ds_buf_putc(b, ']');
        b->p[1] = '[';
    }
}

void ds_opt_print_help(const ds_opt_cmd *cmd, FILE *f)
{
    char left[256];
    int column = 14;
    ds_buf notes = { 0 };

    for (const ds_opt *o = cmd->opts; o->name; o++) {
        int n = left_text(o, left, sizeof left) + 2;
        if (n > column && n <= HELP_COLUMN)
            column = n;
    }
    fprintf(f, "%s: %s\n\n", cmd->command, cmd->summary);
    fprintf(f, "usage: %s %s\n\noptions:\n", cmd->command, cmd->usage ? cmd->usage : "");
    for (const ds_opt *o = cmd->opts; o->name; o++) {
        int at = left_text(o, left, sizeof left);

        fputs(left, f);
        if (at + 2 > column)
            fprintf(f, "\n%*s", column, "");
        else
            fprintf(f, "%*s", column - at, "");
        at = put_wrapped(f, o->help, column, column);
        notes_text(o, &notes);
        if (notes.len > 0)
            put_wrapped(f, notes.p + 1, at, column);
        fputc('\n', f);
    }
    fprintf(f, "  -h, --help%*s\n", column - 12 + (int)sizeof "this page" - 1, "this page");
    if (cmd->example)
        fprintf(f, "\nexample:\n  %s\n", cmd->example);
    ds_buf_free(&notes);
}
