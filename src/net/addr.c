#include "net/addr.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { BACKLOG = 64, TABLE_NAME = 48, TABLE_LINE = 512 /* of the kernel's table of connections */ };

static ds_rc parse_path(ds_addr *a, const char *path, ds_err *err)
{
    struct sockaddr_un *u = (struct sockaddr_un *)&a->sa;

    if (!*path || strlen(path) >= sizeof u->sun_path)
        return ds_fail(err, DS_E_ARG, "%.200s: expected unix:PATH with a path of 1..%zu bytes", a->text, sizeof u->sun_path - 1);
    u->sun_family = AF_UNIX;
    memcpy(u->sun_path, path, strlen(path) + 1);
    a->local = true;
    a->n = sizeof *u;
    return DS_OK;
}

static bool parse_host(ds_addr *a, const char *host)
{
    struct sockaddr_in *v4 = (struct sockaddr_in *)&a->sa;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&a->sa;

    if (inet_pton(AF_INET, strcmp(host, "localhost") == 0 ? "127.0.0.1" : host, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        a->n = sizeof *v4;
        return true;
    }
    if (inet_pton(AF_INET6, host, &v6->sin6_addr) == 1) {
        v6->sin6_family = AF_INET6;
        a->n = sizeof *v6;
        return true;
    }
    return false;
}

static bool is_loopback(const ds_addr *a)
{
    if (a->sa.ss_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)&a->sa)->sin_addr.s_addr) >> 24 == 127;
    return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)&a->sa)->sin6_addr);
}

static void set_port(ds_addr *a, uint16_t port)
{
    if (a->sa.ss_family == AF_INET)
        ((struct sockaddr_in *)&a->sa)->sin_port = htons(port);
    else
        ((struct sockaddr_in6 *)&a->sa)->sin6_port = htons(port);
}

static ds_rc parse_port(ds_addr *a, ds_err *err)
{
    const char *colon = strrchr(a->text, ':');
    char host[DS_ADDR_TEXT], *end;
    size_t n = colon ? (size_t)(colon - a->text) : 0;
    bool brackets = n > 2 && a->text[0] == '[' && a->text[n - 1] == ']';
    long port;

    if (!n || colon[1] < '0' || colon[1] > '9')
        return ds_fail(err, DS_E_ARG, "%s: expected unix:PATH or HOST:PORT", a->text);
    port = strtol(colon + 1, &end, 10);
    if (*end || port > 65535)
        return ds_fail(err, DS_E_ARG, "%s: the port isn't within 0..65535", a->text);
    snprintf(host, sizeof host, "%.*s", (int)(n - 2 * brackets), a->text + brackets);
    if (!parse_host(a, host))
        return ds_fail(err, DS_E_ARG, "%s: the host is neither a numeric address nor localhost", a->text);
    if (!is_loopback(a))
        return ds_fail(err, DS_E_ARG, "%s: not an address of this machine alone; connections between machines would need TLS", a->text);
    set_port(a, (uint16_t)port);
    return DS_OK;
}

ds_rc ds_addr_parse(ds_addr *a, const char *text, ds_err *err)
{
    *a = (ds_addr){ 0 };
    if (strlen(text) >= sizeof a->text)
        return ds_fail(err, DS_E_ARG, "%.40s...: an address of more than %zu bytes", text, sizeof a->text - 1);
    memcpy(a->text, text, strlen(text) + 1);
    return strncmp(text, "unix:", 5) == 0 ? parse_path(a, text + 5, err) : parse_port(a, err);
}

static int new_socket(const ds_addr *a)
{
    int fd = socket(a->sa.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), on = 1;

    if (fd >= 0 && !a->local)
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

/* A socket file that nobody listens on any more goes. Only a refusal says so: a listener that is stopped, or has no
 * time to accept, says EAGAIN. */
static ds_rc clear_path(const ds_addr *a, ds_err *err)
{
    const char *path = a->text + 5;
    struct stat st;
    int fd, e;

    if (lstat(path, &st) != 0)
        return DS_OK;
    if (!S_ISSOCK(st.st_mode))
        return ds_fail(err, DS_E_IO, "%s: is there and no socket", a->text);
    fd = new_socket(a);
    if (fd < 0)
        return ds_fail(err, DS_E_IO, "%s: %s", a->text, strerror(errno));
    e = connect(fd, (const struct sockaddr *)&a->sa, a->n) == 0 ? 0 : errno;
    close(fd);
    if (e == 0 || e == EAGAIN)
        return ds_fail(err, DS_E_AGAIN, "%s: another process listens there", a->text);
    if (e != ECONNREFUSED)
        return ds_fail(err, DS_E_IO, "%s: %s", a->text, strerror(e));
    unlink(path);
    return DS_OK;
}

ds_rc ds_addr_listen(ds_addr *a, int *fd, ds_err *err)
{
    ds_rc rc = a->local ? clear_path(a, err) : DS_OK;
    int on = 1, e = 0;

    *fd = -1;
    if (rc != DS_OK)
        return rc;
    *fd = new_socket(a);
    if (*fd < 0)
        return ds_fail(err, DS_E_IO, "%s: %s", a->text, strerror(errno));
    setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (a->local && fchmod(*fd, 0600) != 0) /* its file gets this mode; a umask would be that of all threads */
        e = errno;
    else if (bind(*fd, (struct sockaddr *)&a->sa, a->n) != 0 || listen(*fd, BACKLOG) != 0)
        e = errno;
    if (!e && !a->local && getsockname(*fd, (struct sockaddr *)&a->sa, &a->n) == 0) {
        uint16_t port = a->sa.ss_family == AF_INET ? ((struct sockaddr_in *)&a->sa)->sin_port : ((struct sockaddr_in6 *)&a->sa)->sin6_port;
        char *colon = strrchr(a->text, ':');
        snprintf(colon, sizeof a->text - (size_t)(colon - a->text), ":%u", ntohs(port));
    }
    if (!e)
        return DS_OK;
    close(*fd);
    *fd = -1;
    return ds_fail(err, e == EADDRINUSE ? DS_E_AGAIN : DS_E_IO, "%s: %s", a->text, strerror(e));
}

/* An address as the kernel's table of connections shows it: words in hexadecimal as they lie in memory, and the
 * port. */
static void table_name(char out[TABLE_NAME], const struct sockaddr_storage *sa)
{
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)sa;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)sa;
    uint32_t w[4];

    if (sa->ss_family == AF_INET) {
        snprintf(out, TABLE_NAME, "%08X:%04X", v4->sin_addr.s_addr, ntohs(v4->sin_port));
        return;
    }
    memcpy(w, &v6->sin6_addr, sizeof w);
    snprintf(out, TABLE_NAME, "%08X%08X%08X%08X:%04X", w[0], w[1], w[2], w[3], ntohs(v6->sin6_port));
}

/* The user of an open connection's other end, which is on this machine. DS_E_AGAIN: the table has no such end. One that
 * is closed already isn't taken: the table shows those as root's. */
static ds_rc find_user(const struct sockaddr_storage *theirs, const struct sockaddr_storage *ours, uid_t *user, ds_err *err)
{
    const char *path = ours->ss_family == AF_INET ? "/proc/net/tcp" : "/proc/net/tcp6";
    FILE *f = fopen(path, "re");
    char from[TABLE_NAME], to[TABLE_NAME], line[TABLE_LINE], a[TABLE_NAME], b[TABLE_NAME];
    unsigned state, uid;
    bool found = false;

    if (!f)
        return ds_fail(err, DS_E_IO, "%s, which says whose a connection is: %s", path, strerror(errno));
    table_name(from, theirs);
    table_name(to, ours);
    while (!found && fgets(line, sizeof line, f))
        found = sscanf(line, " %*[0-9]: %47s %47s %x %*s %*s %*s %u", a, b, &state, &uid) == 4 && state == TCP_ESTABLISHED &&
                strcmp(a, from) == 0 && strcmp(b, to) == 0;
    fclose(f);
    if (!found)
        return ds_fail(err, DS_E_AGAIN, "a connection that is over already");
    *user = uid;
    return DS_OK;
}

static ds_rc peer_user(int fd, const struct sockaddr_storage *theirs, uid_t *user, ds_err *err)
{
    struct sockaddr_storage ours;
    struct ucred who;
    socklen_t n = sizeof who, n_ours = sizeof ours;
    ds_rc rc;

    if (theirs->ss_family == AF_UNIX) {
        if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n) != 0)
            return ds_fail(err, DS_E_AGAIN, "a connection of nobody: %s", strerror(errno));
        *user = who.uid;
        return DS_OK;
    }
    if (getsockname(fd, (struct sockaddr *)&ours, &n_ours) != 0)
        return ds_fail(err, DS_E_AGAIN, "a connection that is over already");
    rc = find_user(theirs, &ours, user, err);
    return rc == DS_E_AGAIN ? find_user(theirs, &ours, user, err) : rc; /* the table moves while it is read: an end can be passed over */
}

ds_rc ds_addr_accept(int listener, int *fd, ds_err *err)
{
    struct sockaddr_storage sa;
    socklen_t n = sizeof sa;
    uid_t user;
    int on = 1;
    ds_rc rc;

    *fd = accept4(listener, (struct sockaddr *)&sa, &n, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (*fd < 0)
        return ds_fail(err, errno == EAGAIN || errno == EINTR || errno == ECONNABORTED ? DS_E_AGAIN : DS_E_IO, "accept: %s",
                       strerror(errno));
    rc = peer_user(*fd, &sa, &user, err);
    if (rc == DS_OK && user != geteuid() && user != 0)
        rc = ds_fail(err, DS_E_AGAIN, "a connection of user %u, this process is user %u's", user, geteuid());
    if (rc != DS_OK) {
        close(*fd);
        *fd = -1;
    } else if (sa.ss_family != AF_UNIX) {
        setsockopt(*fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    }
    return rc;
}

ds_rc ds_addr_connect(const ds_addr *a, uint32_t timeout_ms, int *fd, ds_err *err)
{
    struct pollfd p = { .events = POLLOUT };
    socklen_t n = sizeof(int);
    int e = 0;

    *fd = new_socket(a);
    if (*fd < 0)
        return ds_fail(err, DS_E_IO, "%s: %s", a->text, strerror(errno));
    if (connect(*fd, (const struct sockaddr *)&a->sa, a->n) != 0)
        e = errno;
    if (e == EINPROGRESS) { /* a Unix socket whose queue is full says EAGAIN, and isn't on its way */
        p.fd = *fd;
        e = poll(&p, 1, (int)timeout_ms) == 1 ? 0 : ETIMEDOUT;
        if (!e)
            getsockopt(*fd, SOL_SOCKET, SO_ERROR, &e, &n);
    }
    if (!e)
        return DS_OK;
    close(*fd);
    *fd = -1;
    return ds_fail(err, DS_E_IO, "%s: %s", a->text, strerror(e));
}
