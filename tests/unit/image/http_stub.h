/* A web server on a free loopback port, for tests: one thread, one request a connection, answers by path. */
#ifndef DS_TEST_IMAGE_HTTP_STUB_H
#define DS_TEST_IMAGE_HTTP_STUB_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

#include "samples.h"

typedef struct {
    int fd, quit[2];
    unsigned port;
    pthread_t thread;
    atomic_int requests;
    atomic_int slow_now, most_slow; /* between a request for /slow and its answer */
    char last[2048];                /* head of the latest request; read it when nothing is in flight */
} http_stub;

typedef struct {
    http_stub *s;
    int fd;
} http_connection;

static inline void http_put(int fd, const void *p, size_t n)
{
    while (n > 0) {
        ssize_t k = send(fd, p, n, MSG_NOSIGNAL);

        if (k <= 0)
            return;
        p = (const char *)p + k;
        n -= (size_t)k;
    }
}

static inline void http_text(int fd, const char *text)
{
    http_put(fd, text, strlen(text));
}

/* Until the client goes, or the test ends. */
static inline void http_hang(http_stub *s, int fd)
{
    struct pollfd p[2] = { { .fd = fd, .events = POLLIN | POLLRDHUP }, { .fd = s->quit[0], .events = POLLIN } };

    poll(p, 2, 10000);
}

static inline void http_answer(http_stub *s, int fd, const char *path)
{
    char text[256];
    size_t n;

    if (strncmp(path, "/picture/", 9) == 0) {
        unsigned char *bytes = read_file(SAMPLES, path + 9, &n);

        snprintf(text, sizeof text, "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\nConnection: close\r\nSet-Cookie: a=b\r\n\r\n", n);
        http_text(fd, text);
        http_put(fd, bytes, n);
        free(bytes);
    } else if (strncmp(path, "/status/", 8) == 0) {
        snprintf(text, sizeof text, "HTTP/1.1 %.3s Said\r\nContent-Length: 4\r\nConnection: close\r\n\r\nno\r\n", path + 8);
        http_text(fd, text);
    } else if (strncmp(path, "/to/", 4) == 0) {
        snprintf(text, sizeof text, "HTTP/1.1 302 There\r\nLocation: %.150s\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", path + 4);
        http_text(fd, text);
    } else if (strcmp(path, "/loop") == 0) {
        http_text(fd, "HTTP/1.1 307 Here\r\nLocation: /loop\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    } else if (strcmp(path, "/announced") == 0) {
        http_text(fd, "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\nConnection: close\r\n\r\nabc");
        http_hang(s, fd);
    } else if (strcmp(path, "/endless") == 0) {
        static const char chunk[] = "10000\r\n";
        static char zeros[65536];

        http_text(fd, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n");
        for (int i = 0; i < 64; i++) {
            http_text(fd, chunk);
            http_put(fd, zeros, sizeof zeros);
            http_text(fd, "\r\n");
        }
    } else if (strcmp(path, "/short") == 0) {
        http_text(fd, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\nConnection: close\r\n\r\nabc");
    } else if (strcmp(path, "/empty") == 0) {
        http_text(fd, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    } else if (strcmp(path, "/noise") == 0) {
        http_text(fd, "\x01\x02 not http\r\n\r\n");
    } else if (strcmp(path, "/hang") == 0) {
        http_hang(s, fd);
    } else if (strcmp(path, "/slow") == 0) {
        int now = atomic_fetch_add(&s->slow_now, 1) + 1, most = atomic_load(&s->most_slow);

        while (now > most && !atomic_compare_exchange_weak(&s->most_slow, &most, now))
            ;
        usleep(30000);
        atomic_fetch_sub(&s->slow_now, 1);
        http_text(fd, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc");
    }
}

static inline void *http_connection_main(void *arg)
{
    http_connection *c = arg;
    char head[2048], path[512] = "";
    size_t n = 0;

    while (n < sizeof head - 1) {
        ssize_t k = recv(c->fd, head + n, sizeof head - 1 - n, 0);

        if (k <= 0)
            break;
        n += (size_t)k;
        head[n] = 0;
        if (strstr(head, "\r\n\r\n"))
            break;
    }
    head[n] = 0;
    if (sscanf(head, "GET %511s", path) == 1) {
        if (atomic_fetch_add(&c->s->requests, 1) == 0)
            memcpy(c->s->last, head, n + 1);
        http_answer(c->s, c->fd, path);
    }
    shutdown(c->fd, SHUT_WR);
    recv(c->fd, head, sizeof head, MSG_DONTWAIT);
    close(c->fd);
    free(c);
    return NULL;
}

static inline void *http_main(void *arg)
{
    http_stub *s = arg;
    pthread_t threads[512];
    size_t n = 0;

    for (;;) {
        struct pollfd p[2] = { { .fd = s->fd, .events = POLLIN }, { .fd = s->quit[0], .events = POLLIN } };
        http_connection *c;

        poll(p, 2, -1);
        if (p[1].revents)
            break;
        c = malloc(sizeof *c);
        c->s = s;
        c->fd = accept(s->fd, NULL, NULL);
        if (n == 512 || c->fd < 0 || pthread_create(&threads[n], NULL, http_connection_main, c) != 0)
            break;
        n++;
    }
    while (n > 0)
        pthread_join(threads[--n], NULL);
    return NULL;
}

static inline void http_start(http_stub *s)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t n = sizeof a;

    memset(s, 0, sizeof *s);
    s->fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(s->fd >= 0 && bind(s->fd, (struct sockaddr *)&a, sizeof a) == 0 && listen(s->fd, 64) == 0);
    assert_int_equal(getsockname(s->fd, (struct sockaddr *)&a, &n), 0);
    s->port = ntohs(a.sin_port);
    assert_int_equal(pipe(s->quit), 0);
    assert_int_equal(pthread_create(&s->thread, NULL, http_main, s), 0);
}

static inline void http_stop(http_stub *s)
{
    assert_int_equal(write(s->quit[1], "x", 1), 1);
    pthread_join(s->thread, NULL);
    close(s->fd);
    close(s->quit[0]);
    close(s->quit[1]);
}

#endif
