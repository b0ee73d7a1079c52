/* Text for a terminal as it comes: words go to the next line whole, and nothing in it commands the terminal.
 *
 * A word is held back until its end is known; ds_wrap_end() shows what is left. Wide characters (CJK) are words of
 * their own. Fenced code and tables are not wrapped: what is copied from the screen is what the model wrote. Control
 * characters but line feed and tab become U+FFFD, so that an answer can't move the cursor or set a title. Needs a
 * UTF-8 LC_CTYPE for the width of characters.   Threads: one.   Memory: a word, at most 4 KiB. */
#ifndef DS_CLI_WRAP_H
#define DS_CLI_WRAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum { DS_WRAP_WORD_MAX = 4096 }; /* bytes; what is longer is shown as it comes */

typedef struct {
    FILE *out;
    unsigned (*columns)(void *ctx); /* width of the terminal now; 0: unknown, nothing is wrapped */
    void *ctx;
    /* the rest is zero at the start of an answer */
    unsigned column, word_columns, spaces; /* where the cursor is; of the word; pending in front of it */
    size_t n;
    char word[DS_WRAP_WORD_MAX];
    char part[4]; /* a character that isn't complete */
    unsigned n_part;
    char start[4]; /* of the line, to know a fence or a table */
    unsigned n_start;
    bool fenced;
} ds_wrap;

void ds_wrap_put(ds_wrap *w, const char *text, size_t n);
void ds_wrap_end(ds_wrap *w);

#endif
