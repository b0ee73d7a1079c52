#include "cli/term.h"

#include <errno.h>
#include <fcntl.h>
#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/utf8.h"
#include "cli/gen.h"

enum { HISTORY_LINES = 1000 };

struct ds_term {
    EditLine *el;
    History *history;
    char *file;
    bool more, signalled;
    sigset_t outside; /* the signals that are blocked when nothing waits */
};

static volatile sig_atomic_t resized, continued;

static void note(int sig)
{
    if (sig == SIGWINCH)
        resized = 1;
    else
        continued = 1;
}

/* The next key, as libedit wants it: 1, 0 at the end, -1 on an error and when a signal came. */
static int next_key(EditLine *el, wchar_t *out)
{
    struct pollfd p = { .fd = STDIN_FILENO, .events = POLLIN };
    ds_term *t = NULL;
    char part[4];
    unsigned n = 0;
    uint32_t cp = 0;

    el_get(el, EL_CLIENTDATA, &t);
    while (n < sizeof part) {
        ssize_t got = -1;
        if (ds_cli_signal()) {
            t->signalled = true;
            return -1;
        }
        if (continued) { /* after Ctrl-Z the shell has its own settings of the terminal */
            continued = 0;
            el_set(el, EL_PREP_TERM, 1);
            el_set(el, EL_REFRESH);
        }
        if (resized) {
            resized = 0;
            el_resize(el);
            el_set(el, EL_REFRESH);
        }
        if (ppoll(&p, 1, NULL, &t->outside) == 1)
            got = read(STDIN_FILENO, part + n, 1);
        if (got == 0)
            return 0;
        if (got < 0 && errno != EINTR && errno != EAGAIN)
            return -1;
        if (got < 0)
            continue;
        n++;
        if (ds_utf8_decode(part, n, &cp) == n) {
            *out = (wchar_t)cp;
            return 1;
        }
    }
    *out = 0xfffd; /* no text in any spelling */
    return 1;
}

static char *prompt(EditLine *el)
{
    static char first[] = "\1\033[1m\1> \1\033[0m\1", more[] = "\1\033[2m\1… \1\033[0m\1";
    ds_term *t = NULL;

    el_get(el, EL_CLIENTDATA, &t);
    return t->more ? more : first;
}

static ds_rc load(ds_term *t, ds_err *err)
{
    char q[112];
    HistEvent e;

    if (access(t->file, F_OK) == -1 && errno == ENOENT)
        return DS_OK;
    if (history(t->history, &e, H_LOAD, t->file) == -1)
        return ds_fail(err, DS_E_IO, "%s: can't be read as a history of libedit", ds_file_label(q, sizeof q, t->file));
    return DS_OK;
}

ds_rc ds_term_open(ds_term **out, const char *file, ds_err *err)
{
    struct sigaction a = { .sa_handler = note };
    ds_term *t = calloc(1, sizeof *t);
    HistEvent e;
    ds_rc rc = DS_OK;

    *out = NULL;
    setlocale(LC_CTYPE, "");
    if (strcmp(nl_langinfo(CODESET), "UTF-8") != 0)
        setlocale(LC_CTYPE, "C.UTF-8");
    sigemptyset(&a.sa_mask);
    sigaction(SIGWINCH, &a, NULL);
    sigaction(SIGCONT, &a, NULL);
    if (t) {
        t->el = el_init("deepserve", stdin, stdout, stderr);
        t->history = history_init();
        t->file = file ? strdup(file) : NULL;
    }
    if (!t || !t->el || !t->history || (file && !t->file)) {
        ds_term_close(t, NULL);
        return ds_fail(err, DS_E_NOMEM, "out of memory for the terminal");
    }
    history(t->history, &e, H_SETSIZE, HISTORY_LINES);
    history(t->history, &e, H_SETUNIQUE, 1);
    el_set(t->el, EL_CLIENTDATA, t);
    el_set(t->el, EL_EDITOR, "emacs");
    el_set(t->el, EL_PROMPT_ESC, prompt, '\1');
    el_set(t->el, EL_HIST, history, t->history);
    el_set(t->el, EL_GETCFN, next_key);
    el_set(t->el, EL_BIND, "^R", "em-inc-search-prev", NULL);
    el_source(t->el, NULL);
    if (file)
        rc = load(t, err);
    if (rc != DS_OK) {
        free(t->file);
        t->file = NULL; /* what isn't ours isn't overwritten */
        ds_term_close(t, NULL);
        return rc;
    }
    *out = t;
    return DS_OK;
}

static ds_rc save(ds_term *t, ds_err *err)
{
    char q[112];
    HistEvent e;
    int fd = open(t->file, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

    if (fd != -1)
        close(fd);
    if (fd == -1 || history(t->history, &e, H_SAVE, t->file) == -1)
        return ds_fail(err, DS_E_IO, "%s: %s", ds_file_label(q, sizeof q, t->file), strerror(errno));
    return DS_OK;
}

ds_rc ds_term_close(ds_term *t, ds_err *err)
{
    ds_rc rc = DS_OK;

    if (!t)
        return DS_OK;
    if (t->file)
        rc = save(t, err);
    if (t->el)
        el_end(t->el);
    if (t->history)
        history_end(t->history);
    free(t->file);
    free(t);
    return rc;
}

ds_term_got ds_term_line(ds_term *t, bool more, ds_buf *line, bool *typed)
{
    sigset_t both;
    const char *text;
    int n = 0;

    t->more = more;
    t->signalled = false;
    *typed = false;
    sigemptyset(&both);
    sigaddset(&both, SIGINT);
    sigaddset(&both, SIGTERM);
    sigprocmask(SIG_BLOCK, &both, &t->outside);
    el_set(t->el, EL_PREP_TERM, 1); /* before the prompt: what is typed at once is edited, too */
    text = el_gets(t->el, &n);
    if (t->signalled) {
        const LineInfo *l = el_line(t->el);
        *typed = l->lastchar > l->buffer;
        el_reset(t->el);
    }
    sigprocmask(SIG_SETMASK, &t->outside, NULL);
    if (t->signalled)
        return DS_TERM_SIGNAL;
    if (!text || n <= 0)
        return DS_TERM_END;
    ds_buf_clear(line);
    ds_buf_put(line, text, (size_t)n - (text[n - 1] == '\n'));
    return DS_TERM_LINE;
}

void ds_term_remember(ds_term *t, const char *line)
{
    HistEvent e;

    history(t->history, &e, H_ENTER, line);
}

unsigned ds_term_columns(void *unused)
{
    struct winsize w;

    (void)unused;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0 ? w.ws_col : 0;
}
