/* The option table: flags, --help and the reference page of a command come from one list.
 *
 * Each command has one static table. Parsing writes into the command's own options struct at `offset`. `--name
 * value`, `--name=value`, `-h`, `--help`; a flag takes no value, `--no-name` turns a DS_OPT_FLAG off; `--` ends
 * options; of an option given twice the last one wins. A value that is itself an option of the command needs the
 * form with "=". An unknown option answers with the nearest name. Threads: none of this has state. */
#ifndef DS_BASE_OPT_H
#define DS_BASE_OPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"

typedef enum {
    DS_OPT_FLAG,  /* bool */
    DS_OPT_INT,   /* int64_t, within [min, max] */
    DS_OPT_REAL,  /* double, finite, within [min, max] */
    DS_OPT_STR,   /* const char *, borrowed from argv */
    DS_OPT_ENUM,  /* int: index into `choices`, a "|"-separated list */
    DS_OPT_LIST,  /* ds_opt_list: may be given several times */
    DS_OPT_BYTES, /* uint64_t: 4096, 32KiB, 48MiB, 2GiB, 1TiB */
    DS_OPT_MS,    /* uint64_t milliseconds: 250ms, 10s, 2m, 1h; a bare number is seconds */
} ds_opt_type;

#define DS_OPT_MAX 255 /* entries of a table */
#define DS_OPT_LIST_MAX 64
typedef struct {
    const char *v[DS_OPT_LIST_MAX]; /* borrowed from argv */
    size_t n;
} ds_opt_list;

typedef struct {
    const char *name; /* without dashes; NULL ends the table */
    ds_opt_type type;
    size_t offset;       /* into the options struct */
    const char *def;     /* default as a user would write it; NULL: none (pointer NULL, number 0, flag false) */
    const char *arg;     /* placeholder and unit for --help: "N", "DIR", "SECONDS"; NULL for a flag */
    const char *help;    /* one line */
    double min, max;     /* INT, REAL, BYTES, MS (milliseconds); both 0 = no bound; INFINITY = none on that side */
    const char *choices; /* ENUM */
    bool required;
    bool open_min, open_max; /* REAL: the bound itself is not allowed */
} ds_opt;

typedef struct {
    const char *command; /* "deepserve tokenize" */
    const char *summary; /* what it does, one or two lines */
    const char *usage;   /* after the command name: "--tokenizer F.json < text" */
    const char *example; /* one real command line, may be NULL */
    const ds_opt *opts;
} ds_opt_cmd;

/* Fills defaults, then parses. *n_pos positional words are left in pos (borrowed; capacity max_pos; more is an
 * error). DS_E_ARG: the command line alone is wrong (exit 2). On --help it stops at once and sets *help: the caller
 * prints the page. `given` (may be NULL) receives one bool for each table entry: set by the user. */
ds_rc ds_opt_parse(const ds_opt_cmd *cmd, void *dst, int argc, char **argv, const char **pos, size_t max_pos, size_t *n_pos, bool *given,
                   bool *help, ds_err *err);

/* ---- options from a file ---- */

/* Words of a command line that say what a file says. */
typedef struct {
    char **v;
    size_t n;
} ds_opt_words;

/* Lines `name = value` (a flag: true or false), empty lines, and lines that begin with '#'. What is wrong is said
 * with label and line. scratch: an options struct of the command, left in no particular state. DS_E_FORMAT,
 * DS_E_NOMEM; then *out is empty. */
ds_rc ds_opt_config(const ds_opt_cmd *cmd, void *scratch, const char *text, size_t n, const char *label, ds_opt_words *out, ds_err *err);
void ds_opt_words_free(ds_opt_words *w);
/* One setting, checked alone, as the word that says the same on a command line; free() it. DS_E_ARG, DS_E_FORMAT,
 * DS_E_NOMEM; then *word is NULL. */
ds_rc ds_opt_setting(const ds_opt_cmd *cmd, const char *name, const char *value, char **word, ds_err *err);
/* All options as they are in `src`, in the form that ds_opt_config reads; what has no value is a comment. */
void ds_opt_dump(const ds_opt_cmd *cmd, const void *src, FILE *f);

void ds_opt_print_help(const ds_opt_cmd *cmd, FILE *f);
/* The edit-distance-nearest word of a NULL-terminated list, or NULL if none is near. */
const char *ds_opt_nearest(const char *word, const char *const *words);

#endif
