#include "role/up.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"

/* Times in microseconds. */
#define SECOND UINT64_C(1000000)
#define FIRST_PAUSE SECOND
#define LONGEST_PAUSE (60 * SECOND)
#define STEADY (60 * SECOND)      /* ready for so long: the next death is the first again */
#define KILL_AFTER (10 * SECOND)  /* beyond what it may take to end by itself */
#define HURRY_KILL (5 * SECOND)   /* after a second signal */
#define HURRY_AGAIN (SECOND / 10) /* who lets work end needs two */

typedef struct {
    ds_up_status s;
    char *log;
    int out; /* its standard output; -1: none */
    char line[256];
    size_t n_line;
    off_t log_from; /* where this start's part of the log begins */
    uint64_t started_us, pause_us, again_us, told_us, end_by_us;
} process;

struct ds_up {
    const ds_up_plan *plan;
    ds_up_opts o;
    process *p;
    int lock, signals;
    sigset_t old;
    ds_up_kind starting; /* kinds before it are ready; DS_UP_KINDS: all */
    bool was_ready, ending, hurry, failed;
};

const char *ds_up_state_name(ds_up_state s)
{
    static const char *const names[] = { "waiting", "starting", "ready", "away", "ending", "ended" };

    return names[s];
}

static void become(ds_up *u, uint32_t i, ds_up_state s)
{
    u->p[i].s.state = s;
    if (u->o.changed)
        u->o.changed(u->o.ctx, u, i);
}

/* ---- open ---- */

/* In a folder where everybody may make names, as /tmp, a name that isn't ours is somebody's trap. */
static ds_rc check_part(const char *part, const char *up, ds_err *err)
{
    struct stat st, above;

    if (lstat(part, &st) == -1 || stat(up, &above) == -1)
        return ds_fail(err, DS_E_IO, "%s: %s", part, strerror(errno));
    if ((above.st_mode & S_ISVTX) && (!S_ISDIR(st.st_mode) || st.st_uid != geteuid()))
        return ds_fail(err, DS_E_IO, "%s: it is another user's, or no directory", part);
    return DS_OK;
}

static ds_rc own_folder(const char *path, ds_err *err)
{
    char part[PATH_MAX], up[PATH_MAX] = "/";
    struct stat st;
    size_t n = strlen(path);
    ds_rc rc;

    if (n >= sizeof part)
        return ds_fail(err, DS_E_IO, "%.80s…: the path is too long", path);
    for (size_t i = 1; i <= n; i++) {
        if (i < n && path[i] != '/')
            continue;
        memcpy(part, path, i);
        part[i] = '\0';
        if (mkdir(part, 0700) == -1 && errno != EEXIST)
            return ds_fail(err, DS_E_IO, "%s: %s", part, strerror(errno));
        rc = check_part(part, up, err);
        if (rc != DS_OK)
            return rc;
        memcpy(up, part, i + 1);
    }
    if (lstat(path, &st) == -1)
        return ds_fail(err, DS_E_IO, "%s: %s", path, strerror(errno));
    if (!S_ISDIR(st.st_mode) || st.st_uid != geteuid())
        return ds_fail(err, DS_E_IO, "%s: it is no directory of this user's", path);
    return DS_OK;
}

static ds_rc take_folder(ds_up *u, ds_err *err)
{
    char path[PATH_MAX], pid[24] = "";
    ds_rc rc = own_folder(u->plan->dir, err);

    if (rc != DS_OK)
        return rc;
    snprintf(path, sizeof path, "%s/logs", u->plan->dir);
    rc = own_folder(path, err);
    if (rc != DS_OK)
        return rc;
    snprintf(path, sizeof path, "%s/lock", u->plan->dir);
    u->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (u->lock == -1)
        return ds_fail(err, DS_E_IO, "%s: %s", path, strerror(errno));
    if (flock(u->lock, LOCK_EX | LOCK_NB) == -1) {
        ssize_t n = pread(u->lock, pid, sizeof pid - 1, 0);
        pid[n > 0 ? strcspn(pid, "\n") : 0] = '\0';
        return ds_fail(err, DS_E_AGAIN, "cluster %s is up already: process %s has %s", u->plan->name, pid, u->plan->dir);
    }
    return ftruncate(u->lock, 0) == -1 ? ds_fail(err, DS_E_IO, "%s: %s", path, strerror(errno))
                                       : ds_file_write(u->lock, pid, (size_t)snprintf(pid, sizeof pid, "%d\n", (int)getpid()), path, err);
}

/* A port that is taken is said before anything was started for it. What can't be tried here is tried by the entry. */
static ds_rc try_port(const ds_up_plan *plan, const ds_up_process *p, ds_err *err)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(p->port) };
    const char *host = strcmp(p->host, "localhost") == 0 ? "127.0.0.1" : p->host;
    int fd, yes = 1;
    ds_rc rc = DS_OK;

    if (inet_pton(AF_INET, host, &a.sin_addr) != 1)
        return DS_OK;
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd == -1)
        return ds_fail(err, DS_E_IO, "socket: %s", strerror(errno));
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(fd, (struct sockaddr *)&a, sizeof a) == -1 || listen(fd, 1) == -1)
        rc = ds_fail(err, DS_E_ARG, "%s:%u:%u: %s can't have %s:%u: %s", plan->label, p->line, p->column, p->name, p->host, p->port,
                     strerror(errno));
    close(fd);
    return rc;
}

/* The log of the run before stays until the next one. */
static ds_rc name_log(ds_up *u, uint32_t i, ds_err *err)
{
    char old[PATH_MAX];

    if (asprintf(&u->p[i].log, "%s/logs/%s.log", u->plan->dir, u->plan->p[i].name) < 0) {
        u->p[i].log = NULL;
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    }
    snprintf(old, sizeof old, "%s.old", u->p[i].log);
    if (rename(u->p[i].log, old) == -1 && errno != ENOENT)
        return ds_fail(err, DS_E_IO, "%s: %s", u->p[i].log, strerror(errno));
    return DS_OK;
}

ds_rc ds_up_open(ds_up **out, const ds_up_plan *plan, const ds_up_opts *o, ds_err *err)
{
    ds_up *u = calloc(1, sizeof *u);
    ds_rc rc = DS_OK;

    *out = NULL;
    if (!u || !(u->p = calloc(plan->n, sizeof *u->p))) {
        free(u);
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    }
    u->plan = plan;
    u->o = *o;
    u->lock = u->signals = -1;
    for (uint32_t i = 0; i < plan->n; i++)
        u->p[i].out = -1;
    rc = take_folder(u, err);
    for (uint32_t i = 0; i < plan->n && rc == DS_OK; i++) {
        if (plan->p[i].port)
            rc = try_port(plan, &plan->p[i], err);
        if (rc == DS_OK && plan->p[i].dir)
            rc = own_folder(plan->p[i].dir, err);
        if (rc == DS_OK)
            rc = name_log(u, i, err);
    }
    if (rc == DS_OK) {
        struct sigaction hup;
        sigset_t set;
        sigemptyset(&set);
        sigaddset(&set, SIGINT);
        sigaddset(&set, SIGTERM);
        sigaddset(&set, SIGCHLD);
        if (sigaction(SIGHUP, NULL, &hup) == 0 && hup.sa_handler != SIG_IGN) /* ignored: it outlives its terminal */
            sigaddset(&set, SIGHUP);
        sigprocmask(SIG_BLOCK, &set, &u->old);
        u->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
        if (u->signals == -1)
            rc = ds_fail(err, DS_E_IO, "signalfd: %s", strerror(errno));
    }
    if (rc == DS_OK)
        *out = u;
    else
        ds_up_close(u);
    return rc;
}

void ds_up_close(ds_up *u)
{
    if (!u)
        return;
    for (uint32_t i = 0; i < u->plan->n; i++) {
        if (u->p[i].out != -1)
            close(u->p[i].out);
        free(u->p[i].log);
    }
    if (u->lock != -1)
        close(u->lock);
    if (u->signals != -1)
        close(u->signals);
    free(u->p);
    free(u);
}

/* ---- one process ---- */

/* Between fork and exec: only what is safe there. Comes back where the process can't become what it should. */
static void be_child(const ds_up *u, uint32_t i, int out, int log, pid_t parent)
{
    int null = open("/dev/null", O_RDONLY);

    if (prctl(PR_SET_PDEATHSIG, SIGKILL) == -1 || getppid() != parent) /* it died before that was known */
        return;
    setsid();
    sigprocmask(SIG_SETMASK, &u->old, NULL);
    if (null == -1 || dup2(null, 0) == -1 || dup2(out, 1) == -1 || dup2(log, 2) == -1 || chdir(u->plan->folder) == -1)
        return;
    execv(u->o.program, u->plan->p[i].argv);
}

static ds_rc start(ds_up *u, uint32_t i, ds_err *err)
{
    process *p = &u->p[i];
    const char *name = u->plan->p[i].name;
    int out[2] = { -1, -1 }, log = open(p->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    pid_t parent = getpid();
    struct stat st;
    ds_rc rc = DS_OK;

    if (log == -1 || fstat(log, &st) == -1)
        rc = ds_fail(err, DS_E_IO, "%s: %s", p->log, strerror(errno));
    else if (pipe2(out, O_CLOEXEC | O_NONBLOCK) == -1 || fcntl(out[1], F_SETFL, 0) == -1)
        rc = ds_fail(err, DS_E_IO, "%s: pipe: %s", name, strerror(errno));
    if (rc == DS_OK) {
        p->log_from = st.st_size;
        p->n_line = 0;
        p->s.address[0] = p->s.why[0] = '\0';
        p->s.pid = fork();
        if (p->s.pid == 0) {
            be_child(u, i, out[1], log, parent);
            dprintf(log, "%s can't be run: %s\n", u->o.program, strerror(errno));
            for (;;)
                kill(getpid(), SIGKILL);
        }
        if (p->s.pid == -1) {
            p->s.pid = 0;
            rc = ds_fail(err, DS_E_IO, "%s: fork: %s", name, strerror(errno));
        }
    }
    if (log != -1)
        close(log);
    if (out[1] != -1)
        close(out[1]);
    if (rc != DS_OK) {
        if (out[0] != -1)
            close(out[0]);
        return rc;
    }
    p->out = out[0];
    p->started_us = ds_now_us();
    p->s.starts++;
    become(u, i, DS_UP_STARTING);
    return DS_OK;
}

/* A line of its standard output. */
static void heard(ds_up *u, uint32_t i)
{
    static const char ready[] = "listening on ";
    process *p = &u->p[i];

    p->line[p->n_line] = '\0';
    p->n_line = 0;
    if (p->s.state != DS_UP_STARTING || strncmp(p->line, ready, sizeof ready - 1) != 0)
        return;
    ds_quote(p->s.address, sizeof p->s.address, p->line + sizeof ready - 1, strlen(p->line + sizeof ready - 1));
    p->s.ready_us = ds_now_us() - p->started_us;
    become(u, i, DS_UP_READY);
}

static void listen_to(ds_up *u, uint32_t i)
{
    process *p = &u->p[i];
    char buf[1024];
    ssize_t n;

    while ((n = read(p->out, buf, sizeof buf)) > 0)
        for (ssize_t k = 0; k < n; k++) {
            if (buf[k] == '\n')
                heard(u, i);
            else if (p->n_line + 1 < sizeof p->line)
                p->line[p->n_line++] = buf[k];
        }
    if (n == 0 || (n == -1 && errno != EAGAIN && errno != EINTR)) {
        close(p->out);
        p->out = -1;
    }
}

/* The last line that this start wrote to its log, as one printable line. */
static void last_words(const process *p, char *out, size_t cap)
{
    char buf[2048];
    int fd = open(p->log, O_RDONLY | O_CLOEXEC);
    off_t end = fd == -1 ? -1 : lseek(fd, 0, SEEK_END), from = p->log_from;
    ssize_t n = 0, begin;

    *out = '\0';
    if (end > from) {
        if (end - from > (off_t)sizeof buf)
            from = end - (off_t)sizeof buf;
        n = pread(fd, buf, sizeof buf, from);
    }
    if (fd != -1)
        close(fd);
    while (n > 0 && buf[n - 1] == '\n')
        n--;
    for (begin = n; begin > 0 && buf[begin - 1] != '\n'; begin--)
        ;
    if (n > 0)
        ds_quote(out, cap, buf + begin, (size_t)(n - begin));
}

static void describe_end(process *p, int status)
{
    char words[112];
    size_t n = 0;

    if (WIFSIGNALED(status))
        snprintf(p->s.why, sizeof p->s.why, "killed by signal %d, %s", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        snprintf(p->s.why, sizeof p->s.why, "exit status %d", WEXITSTATUS(status));
    if (status == 0 || (WIFSIGNALED(status) && (WTERMSIG(status) == SIGKILL || WTERMSIG(status) == SIGTERM)))
        return; /* it had nothing to say, or no time to say it */
    last_words(p, words, sizeof words);
    n = strlen(p->s.why);
    if (*words)
        snprintf(p->s.why + n, sizeof p->s.why - n, ": %s", words);
}

/* Whether the end of a process is the end of the run: it never was ready, nor were all. */
static void ended(ds_up *u, uint32_t i, int status, ds_err *err)
{
    process *p = &u->p[i];
    uint64_t now = ds_now_us();

    listen_to(u, i);
    p->s.pid = 0;
    if (p->out != -1) {
        close(p->out); /* what it left running may hold the other end */
        p->out = -1;
    }
    describe_end(p, status);
    if (u->ending) {
        become(u, i, DS_UP_ENDED);
        return;
    }
    if (!u->was_ready) {
        if (!u->failed)
            ds_fail(err, DS_E_IO, "%s failed at its start: %s", u->plan->p[i].name, p->s.why);
        u->failed = true;
        become(u, i, DS_UP_ENDED);
        return;
    }
    if (status == 0 || (p->s.state == DS_UP_READY && now - p->started_us - p->s.ready_us >= STEADY))
        p->pause_us = 0; /* it was asked to end, or was well for long */
    p->pause_us = p->pause_us == 0 ? FIRST_PAUSE : 2 * p->pause_us > LONGEST_PAUSE ? LONGEST_PAUSE : 2 * p->pause_us;
    p->again_us = u->o.no_restart ? UINT64_MAX : now + p->pause_us;
    p->s.again_in_us = u->o.no_restart ? 0 : p->pause_us;
    become(u, i, DS_UP_AWAY);
}

static void reap(ds_up *u, ds_err *err)
{
    for (uint32_t i = 0; i < u->plan->n; i++) {
        int status;
        if (u->p[i].s.pid && waitpid(u->p[i].s.pid, &status, WNOHANG) == u->p[i].s.pid)
            ended(u, i, status, err);
    }
}

/* ---- all of them ---- */

static bool all_are(const ds_up *u, ds_up_kind k, ds_up_state s)
{
    for (uint32_t i = 0; i < u->plan->n; i++)
        if (u->plan->p[i].kind == k && u->p[i].s.state != s)
            return false;
    return true;
}

/* The first kind that isn't there yet, when those before it are. */
static void go_on(ds_up *u, ds_err *err)
{
    while (u->starting < DS_UP_KINDS && all_are(u, u->starting, DS_UP_READY)) {
        u->starting++;
        for (uint32_t i = 0; i < u->plan->n && !u->failed; i++)
            if (u->plan->p[i].kind == u->starting && start(u, i, err) != DS_OK)
                u->failed = true;
    }
    if (u->starting == DS_UP_KINDS && !u->was_ready) {
        u->was_ready = true;
        if (u->o.ready)
            u->o.ready(u->o.ctx, u);
    }
}

static void start_again(ds_up *u)
{
    uint64_t now = ds_now_us();

    for (uint32_t i = 0; i < u->plan->n; i++) {
        process *p = &u->p[i];
        ds_err err;
        if (p->s.state != DS_UP_AWAY || p->again_us > now)
            continue;
        if (start(u, i, &err) == DS_OK)
            continue;
        p->again_us = now + LONGEST_PAUSE;
        p->s.again_in_us = LONGEST_PAUSE;
        snprintf(p->s.why, sizeof p->s.why, "%.150s", err.msg);
        become(u, i, DS_UP_AWAY);
    }
}

/* The last kind that still runs is asked to end; those after it are gone. */
static bool end_on(ds_up *u)
{
    uint64_t now = ds_now_us();
    uint32_t last = DS_UP_KINDS;

    for (uint32_t i = 0; i < u->plan->n; i++)
        if (u->p[i].s.pid && (last == DS_UP_KINDS || u->plan->p[i].kind > last))
            last = u->plan->p[i].kind;
    if (last == DS_UP_KINDS)
        return true;
    for (uint32_t i = 0; i < u->plan->n; i++) {
        process *p = &u->p[i];
        if (!p->s.pid || u->plan->p[i].kind != last)
            continue;
        if (p->s.state != DS_UP_ENDING) {
            p->end_by_us = now + (u->plan->p[i].drain_ms * 1000) + KILL_AFTER;
            kill(p->s.pid, SIGTERM);
            p->told_us = now;
            become(u, i, DS_UP_ENDING);
        }
        if (u->hurry) {
            if (p->end_by_us > now + HURRY_KILL)
                p->end_by_us = now + HURRY_KILL;
            if (now - p->told_us >= HURRY_AGAIN) {
                kill(p->s.pid, SIGTERM);
                p->told_us = now;
            }
        }
        if (now >= p->end_by_us)
            kill(p->s.pid, SIGKILL);
    }
    return false;
}

static void on_signals(ds_up *u, ds_err *err)
{
    struct signalfd_siginfo s;

    while (read(u->signals, &s, sizeof s) == sizeof s) {
        if (s.ssi_signo == SIGCHLD)
            continue;
        u->hurry = u->ending;
        u->ending = true;
        if (u->o.ending)
            u->o.ending(u->o.ctx, u, u->hurry);
    }
    reap(u, err);
}

/* Until something happened, or a time has come. */
static void look(ds_up *u, ds_err *err)
{
    struct pollfd f[DS_UP_MAX + 1] = { { .fd = u->signals, .events = POLLIN } };
    uint64_t now = ds_now_us(), until = now + SECOND;

    for (uint32_t i = 0; i < u->plan->n; i++) {
        f[i + 1] = (struct pollfd){ .fd = u->p[i].out, .events = POLLIN };
        if (u->p[i].s.state == DS_UP_AWAY && u->p[i].again_us < until)
            until = u->p[i].again_us > now ? u->p[i].again_us : now;
    }
    if (u->hurry)
        until = now + HURRY_AGAIN;
    if (poll(f, u->plan->n + 1, (int)((until - now + 999) / 1000)) <= 0)
        return;
    for (uint32_t i = 0; i < u->plan->n; i++)
        if (f[i + 1].revents)
            listen_to(u, i);
    if (f[0].revents)
        on_signals(u, err);
}

ds_rc ds_up_run(ds_up *u, ds_err *err)
{
    ds_err why = { 0 };

    for (uint32_t i = 0; i < u->plan->n && !u->failed; i++)
        if (u->plan->p[i].kind == u->starting && start(u, i, &why) != DS_OK)
            u->failed = true;
    while (!u->ending && !u->failed) {
        go_on(u, &why);
        if (u->failed)
            break;
        start_again(u);
        if (!u->was_ready && u->o.waiting)
            u->o.waiting(u->o.ctx, u);
        look(u, &why);
    }
    u->ending = true;
    u->hurry = u->hurry || u->failed;
    while (!end_on(u))
        look(u, NULL);
    return u->failed ? ds_fail(err, why.rc, "%s", why.msg) : DS_OK;
}

/* ---- what is ---- */

const ds_up_plan *ds_up_plan_of(const ds_up *u)
{
    return u->plan;
}

ds_up_status ds_up_status_of(const ds_up *u, uint32_t i)
{
    return u->p[i].s;
}

const char *ds_up_log_of(const ds_up *u, uint32_t i)
{
    return u->p[i].log;
}
