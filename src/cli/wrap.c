#include "cli/wrap.h"

#include <string.h>
#include <wchar.h>

#include "base/utf8.h"

static bool verbatim(const ds_wrap *w)
{
    return w->fenced || (w->n_start && w->start[0] == '|') || (w->n_start == 3 && memcmp(w->start, "```", 3) == 0);
}

/* Shows the pending spaces and the word; on the next line, without the spaces, where it doesn't fit. */
static void flush(ds_wrap *w)
{
    unsigned width = w->columns ? w->columns(w->ctx) : 0;

    if (width && !verbatim(w) && w->column && w->n && w->column + w->spaces + w->word_columns > width) {
        fputc('\n', w->out);
        w->column = w->spaces = 0;
    }
    for (; w->spaces; w->spaces--) {
        fputc(' ', w->out);
        w->column++;
    }
    fwrite(w->word, 1, w->n, w->out);
    w->column += w->word_columns;
    w->n = w->word_columns = 0;
}

/* Spaces at the end of a line show nothing. */
static void end_line(ds_wrap *w)
{
    if (!w->n)
        w->spaces = 0;
    flush(w);
}

static void put_char(ds_wrap *w, uint32_t cp, const char *bytes, unsigned n)
{
    int columns;

    if (cp == '\n') {
        if (w->n_start == 3 && memcmp(w->start, "```", 3) == 0)
            w->fenced = !w->fenced;
        end_line(w);
        fputc('\n', w->out);
        w->column = w->n_start = 0;
        return;
    }
    if (w->n_start < 3 && (w->n_start || cp != ' '))
        w->start[w->n_start++] = cp < 128 ? (char)cp : 'x';
    if (cp == ' ' || cp == '\t') {
        if (w->n)
            flush(w);
        w->spaces += cp == ' ' ? 1 : 8 - (w->column + w->spaces) % 8;
        return;
    }
    if (cp < 0x20 || (cp >= 0x7f && cp < 0xa0)) {
        bytes = "\xef\xbf\xbd";
        n = 3;
        columns = 1;
    } else {
        columns = wcwidth((wchar_t)cp);
        columns = columns < 0 ? 1 : columns;
    }
    if ((columns == 2 && w->n) || w->n + n > sizeof w->word)
        flush(w);
    memcpy(w->word + w->n, bytes, n);
    w->n += n;
    w->word_columns += (unsigned)columns;
    if (columns == 2)
        flush(w);
}

void ds_wrap_put(ds_wrap *w, const char *text, size_t n)
{
    static const char bad[] = "\xef\xbf\xbd";
    uint32_t cp = 0;

    for (size_t i = 0; i < n; i++) {
        w->part[w->n_part++] = text[i];
        size_t got = ds_utf8_decode(w->part, w->n_part, &cp);
        if (got == w->n_part) {
            put_char(w, cp, w->part, w->n_part);
            w->n_part = 0;
        } else if (w->n_part == 4) {
            put_char(w, 0xfffd, bad, 3);
            w->n_part = 0;
        }
    }
    if (verbatim(w))
        flush(w);
    fflush(w->out);
}

void ds_wrap_end(ds_wrap *w)
{
    end_line(w);
    fflush(w->out);
    w->column = w->n_start = w->n_part = 0;
    w->fenced = false;
}
