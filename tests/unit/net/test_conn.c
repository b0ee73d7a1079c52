/* Connections: messages of any size at any split, everything that a peer can do wrong, a peer that is silent or
 * doesn't read. */
#include "test.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "net/addr.h"
#include "net/conn.h"

enum { MAX_SEEN = 64 };

typedef struct {
    pthread_mutex_t mu;
    pthread_cond_t news;
    uint32_t n;
    struct {
        uint16_t type;
        uint64_t request;
        size_t bytes;
        uint32_t crc;
    } seen[MAX_SEEN];
    bool gone;
    ds_err why;
} side;

static void side_init(side *s)
{
    memset(s, 0, sizeof *s);
    pthread_mutex_init(&s->mu, NULL);
    pthread_cond_init(&s->news, NULL);
}

static ds_rc message(void *ctx, const ds_frame *f, const uint8_t *p, size_t n, ds_err *err)
{
    side *s = ctx;

    pthread_mutex_lock(&s->mu);
    assert_true(s->n < MAX_SEEN && !s->gone);
    s->seen[s->n].type = f->type;
    s->seen[s->n].request = f->request;
    s->seen[s->n].bytes = n;
    s->seen[s->n++].crc = ds_frame_crc(p, n);
    pthread_cond_broadcast(&s->news);
    pthread_mutex_unlock(&s->mu);
    return f->type == 99 ? ds_fail(err, DS_E_FORMAT, "not this one") : DS_OK;
}

static void gone(void *ctx, const ds_err *why)
{
    side *s = ctx;

    pthread_mutex_lock(&s->mu);
    assert_false(s->gone);
    s->gone = true;
    s->why = *why;
    pthread_cond_broadcast(&s->news);
    pthread_mutex_unlock(&s->mu);
}

static void wait_seen(side *s, uint32_t n)
{
    pthread_mutex_lock(&s->mu);
    while (s->n < n && !s->gone)
        pthread_cond_wait(&s->news, &s->mu);
    assert_true(s->n >= n);
    pthread_mutex_unlock(&s->mu);
}

static void wait_gone(side *s, const char *part)
{
    pthread_mutex_lock(&s->mu);
    while (!s->gone)
        pthread_cond_wait(&s->news, &s->mu);
    if (!strstr(s->why.msg, part))
        fail_msg("gone: %s, expected %s", s->why.msg, part);
    pthread_mutex_unlock(&s->mu);
}

static void pair(int fd[2])
{
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fd), 0);
}

static ds_conn *start(int fd, side *s, const ds_conn_opts *o)
{
    const ds_conn_fn fn = { message, gone, s };
    ds_conn *c;
    ds_err err;

    assert_ok(ds_conn_start(&c, fd, &fn, o, &err));
    return c;
}

static void messages_of_any_size(void **state)
{
    static const size_t sizes[] = { 0, 1, 63, 64, 65, 4096, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 5 << 20 };
    enum { N = sizeof sizes / sizeof *sizes };
    uint8_t *bytes = malloc(5 << 20);
    ds_conn *a, *b;
    side sa, sb;
    int fd[2];
    ds_err err;

    (void)state;
    for (size_t i = 0; i < 5 << 20; i++)
        bytes[i] = (uint8_t)(i * 31 + i / 7919);
    side_init(&sa);
    side_init(&sb);
    pair(fd);
    a = start(fd[0], &sa, NULL);
    b = start(fd[1], &sb, NULL);
    for (uint32_t i = 0; i < N; i++) {
        assert_ok(ds_conn_send(a, &(ds_frame){ .type = (uint16_t)(i + 1), .request = i * 1000 }, bytes, sizes[i], &err));
        assert_ok(ds_conn_send(b, &(ds_frame){ .type = (uint16_t)(i + 1) }, bytes, sizes[N - 1 - i], &err));
    }
    wait_seen(&sb, N);
    wait_seen(&sa, N);
    for (uint32_t i = 0; i < N; i++) {
        assert_int_equal(sb.seen[i].type, i + 1);
        assert_int_equal(sb.seen[i].request, i * 1000);
        assert_int_equal(sb.seen[i].bytes, sizes[i]);
        assert_int_equal(sb.seen[i].crc, ds_frame_crc(bytes, sizes[i]));
        assert_int_equal(sa.seen[i].bytes, sizes[N - 1 - i]);
    }
    ds_conn_destroy(a);
    wait_gone(&sa, "ended by this side");
    wait_gone(&sb, "closed by the peer");
    assert_int_equal(ds_conn_send(b, &(ds_frame){ .type = 1 }, NULL, 0, &err), DS_E_IO);
    ds_conn_destroy(b);
    free(bytes);
}

static size_t frame_of(uint8_t *to, uint16_t type, uint32_t flags, const char *text)
{
    ds_frame f = { .type = type, .flags = flags, .bytes = (uint32_t)strlen(text), .payload_crc = ds_frame_crc(text, strlen(text)) };

    ds_frame_write(to, &f);
    memcpy(to + DS_FRAME_HEADER, text, strlen(text));
    return DS_FRAME_HEADER + strlen(text);
}

static void any_split(void **state)
{
    uint8_t bytes[512];
    size_t n = frame_of(bytes, 7, DS_CONN_MORE, "one ");

    (void)state;
    n += frame_of(bytes + n, 7, 0, "message");
    n += frame_of(bytes + n, DS_CONN_PING, 0, "");
    n += frame_of(bytes + n, 8, 0, "");
    for (size_t cut = 1; cut < n; cut++) {
        ds_conn *c;
        side s;
        int fd[2];
        side_init(&s);
        pair(fd);
        c = start(fd[0], &s, NULL);
        assert_int_equal(send(fd[1], bytes, cut, 0), cut);
        if (cut % 16 == 0)
            poll(NULL, 0, 1);
        assert_int_equal(send(fd[1], bytes + cut, n - cut, 0), n - cut);
        wait_seen(&s, 2);
        assert_int_equal(s.seen[0].bytes, 11);
        assert_int_equal(s.seen[0].crc, ds_frame_crc("one message", 11));
        assert_int_equal(s.seen[1].type, 8);
        ds_conn_destroy(c);
        close(fd[1]);
    }
}

/* Each of these ends the connection, with its reason, and nothing behind is looked at. */
static void what_is_wrong(void **state)
{
    uint8_t frame[256];
    static const struct {
        const char *part;
        int how;
    } wrong[] = { { "no frame", 0 },
                  { "checksum of its header", 1 },
                  { "checksum of its payload", 2 },
                  { "another one within", 3 },
                  { "says something", 4 },
                  { "more than 16 bytes", 5 },
                  { "not this one", 6 },
                  { "closed", 7 } };

    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const ds_conn_opts o = { .max_message = 16 };
        size_t n = frame_of(frame, 5, 0, "payload");
        ds_conn *c;
        side s;
        int fd[2];
        switch (wrong[i].how) {
        case 0:
            frame[0] ^= 1;
            break;
        case 1:
            frame[20] ^= 1;
            break;
        case 2:
            frame[DS_FRAME_HEADER] ^= 1;
            break;
        case 3:
            n = frame_of(frame, 5, DS_CONN_MORE, "a");
            n += frame_of(frame + n, 6, 0, "b");
            break;
        case 4:
            n = frame_of(frame, DS_CONN_PING, 0, "x");
            break;
        case 5:
            n = frame_of(frame, 5, DS_CONN_MORE, "twelve bytes");
            n += frame_of(frame + n, 5, 0, "and five");
            break;
        case 6:
            n = frame_of(frame, 99, 0, "");
            break;
        default:
            n -= 1;
        }
        n += wrong[i].how < 7 ? frame_of(frame + n, 1, 0, "") : 0;
        side_init(&s);
        pair(fd);
        c = start(fd[0], &s, &o);
        assert_int_equal(send(fd[1], frame, n, MSG_NOSIGNAL), n);
        if (wrong[i].how == 7)
            shutdown(fd[1], SHUT_WR);
        wait_gone(&s, wrong[i].part);
        assert_int_equal(s.n, wrong[i].how == 6);
        ds_conn_destroy(c);
        close(fd[1]);
    }
}

static void a_silent_peer_is_gone(void **state)
{
    ds_conn *c;
    side s;
    int fd[2];
    ds_err err;

    (void)state;
    side_init(&s);
    pair(fd);
    c = start(fd[0], &s, &(ds_conn_opts){ .ping_ms = 5, .silence_ms = 50 });
    wait_gone(&s, "said nothing for 50 ms");
    assert_int_equal(ds_conn_send(c, &(ds_frame){ .type = 1 }, NULL, 0, &err), DS_E_IO);
    ds_conn_destroy(c);
    close(fd[1]);
}

static void a_queue_has_a_bound(void **state)
{
    static uint8_t bytes[100000];
    uint32_t sent = 0;
    ds_conn *c;
    side s;
    int fd[2];
    ds_err err;
    ds_rc rc;

    (void)state;
    side_init(&s);
    pair(fd); /* nobody reads */
    c = start(fd[0], &s, &(ds_conn_opts){ .max_queue = 1 << 20, .silence_ms = 1000000 });
    while ((rc = ds_conn_send(c, &(ds_frame){ .type = 1 }, bytes, sizeof bytes, &err)) == DS_OK)
        assert_true(++sent < 1000);
    assert_int_equal(rc, DS_E_AGAIN);
    ds_conn_destroy(c);
    close(fd[1]);
}

static void addresses(void **state)
{
    static const char *const bad[] = {
        "", "unix:", "host", "host:", "1.2.3.4:80", "127.0.0.1:", "127.0.0.1:70000", "127.0.0.1:8x", "[::1]", "0.0.0.0:1", "example.org:80"
    };
    char path[] = "/tmp/ds_addr_XXXXXX", text[64];
    ds_addr a, again;
    int fd, other, peer, waiting[200], n_waiting = 0;
    struct stat st;
    ds_err err;

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(ds_addr_parse(&a, bad[i], &err), DS_E_ARG);
    assert_ok(ds_addr_parse(&a, "localhost:0", &err));
    assert_ok(ds_addr_listen(&a, &fd, &err));
    assert_string_not_equal(a.text, "localhost:0");
    assert_ok(ds_addr_parse(&again, a.text, &err));
    assert_ok(ds_addr_connect(&again, 1000, &peer, &err));
    while (ds_addr_accept(fd, &other, &err) == DS_E_AGAIN)
        poll(NULL, 0, 1);
    close(other);
    close(peer);
    assert_int_equal(ds_addr_listen(&again, &other, &err), DS_E_AGAIN);
    close(fd);
    assert_int_equal(ds_addr_connect(&again, 1000, &peer, &err), DS_E_IO);
    assert_non_null(mkdtemp(path));
    snprintf(text, sizeof text, "unix:%s/s", path);
    assert_ok(ds_addr_parse(&a, text, &err));
    assert_ok(ds_addr_listen(&a, &fd, &err));
    assert_int_equal(stat(text + 5, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_int_equal(ds_addr_listen(&a, &other, &err), DS_E_AGAIN);
    while (n_waiting < 200 && ds_addr_connect(&a, 1000, &waiting[n_waiting], &err) == DS_OK)
        n_waiting++;
    assert_true(n_waiting < 200); /* it has no time: that is another process all the same */
    assert_int_equal(ds_addr_listen(&a, &other, &err), DS_E_AGAIN);
    assert_int_equal(stat(text + 5, &st), 0);
    while (n_waiting)
        close(waiting[--n_waiting]);
    close(fd); /* its file stays, as after kill -9 */
    assert_ok(ds_addr_listen(&a, &fd, &err));
    close(fd);
    unlink(text + 5);
    rmdir(path);
}

/* Says something without a pause until it can't any more. */
/* Another user's connection to a port of this machine is sent away, and one that is over by then. */
static void strangers(void **state)
{
    static const char *const at[] = { "127.0.0.1:0", "[::1]:0" };

    (void)state;
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        int fd, mine, got, ready[2];
        ds_addr a;
        ds_err err;
        char byte;
        pid_t child;

        assert_ok(ds_addr_parse(&a, at[i], &err));
        if (ds_addr_listen(&a, &fd, &err) != DS_OK && i == 1)
            continue; /* a machine without IPv6 */
        assert_ok(ds_addr_connect(&a, 1000, &mine, &err));
        assert_ok(ds_addr_accept(fd, &got, &err));
        close(mine);
        close(got);
        assert_ok(ds_addr_connect(&a, 1000, &mine, &err));
        close(mine);
        assert_int_equal(ds_addr_accept(fd, &got, &err), DS_E_AGAIN);
        assert_int_equal(got, -1);
        if (geteuid() == 0) { /* who can be another user */
            assert_int_equal(pipe(ready), 0);
            child = fork();
            if (child == 0) {
                bool ok = setuid(65534) == 0 && ds_addr_connect(&a, 1000, &mine, &err) == DS_OK;
                (void)!write(ready[1], ok ? "y" : "n", 1);
                pause(); /* until the parent ends it */
                _exit(0);
            }
            assert_int_equal(read(ready[0], &byte, 1), 1);
            assert_int_equal(byte, 'y');
            assert_int_equal(ds_addr_accept(fd, &got, &err), DS_E_AGAIN);
            assert_non_null(strstr(err.msg, "of user 65534"));
            kill(child, SIGKILL);
            assert_int_equal(waitpid(child, NULL, 0), child);
            close(ready[0]);
            close(ready[1]);
        }
        close(fd);
    }
}

static void *talk(void *arg)
{
    uint8_t pings[64 * DS_FRAME_HEADER];

    for (size_t i = 0; i < 64; i++)
        ds_frame_write(pings + i * DS_FRAME_HEADER, &(ds_frame){ .type = DS_CONN_PING });
    while (send(*(int *)arg, pings, sizeof pings, MSG_NOSIGNAL) > 0)
        ;
    return NULL;
}

static void a_peer_that_never_pauses(void **state)
{
    pthread_t talker;
    side s;
    int fd[2];
    const ds_conn_fn fn = { message, gone, &s };
    ds_conn *c;
    ds_err err;

    (void)state;
    side_init(&s);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd), 0);
    assert_int_equal(fcntl(fd[0], F_SETFL, O_NONBLOCK), 0);
    assert_ok(ds_conn_start(&c, fd[0], &fn, NULL, &err));
    assert_int_equal(pthread_create(&talker, NULL, talk, &fd[1]), 0);
    poll(NULL, 0, 50);
    ds_conn_destroy(c);
    assert_true(s.gone);
    assert_int_equal(pthread_join(talker, NULL), 0);
    close(fd[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_of_any_size),
        cmocka_unit_test(any_split),
        cmocka_unit_test(what_is_wrong),
        cmocka_unit_test(a_peer_that_never_pauses),
        cmocka_unit_test(a_silent_peer_is_gone),
        cmocka_unit_test(a_queue_has_a_bound),
        cmocka_unit_test(addresses),
        cmocka_unit_test(strangers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
