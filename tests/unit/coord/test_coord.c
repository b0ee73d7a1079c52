/* The coord and those who are tied to it, in one process over sockets. */
#include "test.h"

#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "coord/coord.h"
#include "coord/proto.h"
#include "coord/server.h"
#include "net/addr.h"

enum { PATIENCE_MS = 30000 };

typedef struct {
    char dir[64], address[96];
    ds_disk disk;
    ds_disk_dir d;
    ds_coord_server *s;
} coord;

static void begin(coord *c, uint32_t ttl_ms)
{
    ds_err err = { 0 };

    if (!c->dir[0]) {
        snprintf(c->dir, sizeof c->dir, "/tmp/ds-coord-XXXXXX");
        assert_non_null(mkdtemp(c->dir));
        snprintf(c->address, sizeof c->address, "unix:%s/s", c->dir);
    }
    assert_ok(ds_disk_dir_open(&c->disk, &c->d, c->dir, &err));
    assert_ok(ds_coord_server_start(&c->s, c->address, &c->disk, &(ds_coord_server_opts){ .ttl_ms = ttl_ms }, &err));
}

static void stop(coord *c)
{
    ds_coord_server_stop(c->s);
    ds_disk_dir_close(&c->d);
    c->s = NULL;
}

static void forget(const coord *c)
{
    char path[96];

    snprintf(path, sizeof path, "%s/coord.journal", c->dir);
    unlink(path);
}

static void end(coord *c)
{
    stop(c);
    forget(c);
    rmdir(c->dir);
}

static ds_coord *tie(const coord *c, const char *name, bool watch)
{
    ds_coord_opts o = { .watch = watch, .retry_ms = 20 };
    ds_coord_member m = { .role = "mixed", .address = "unix:/e", .version = "1" };
    ds_err err = { 0 };
    ds_coord *t;

    assert_ok(ds_coord_open(&t, c->address, &o, &err));
    if (name) {
        snprintf(m.name, sizeof m.name, "%s", name);
        assert_ok(ds_coord_say(t, &m, &err));
    }
    return t;
}

/* Waits until the condition is true, which comes at once or never. */
#define wait_for(condition)                                           \
    do {                                                              \
        uint64_t until_ = ds_now_us() + PATIENCE_MS * UINT64_C(1000); \
        while (!(condition)) {                                        \
            if (ds_now_us() > until_)                                 \
                fail_msg("%s didn't come true", #condition);          \
            poll(NULL, 0, 2);                                         \
        }                                                             \
    } while (0)

static bool has(ds_coord *t, const char *name, ds_coord_member *out)
{
    static ds_coord_member m[DS_COORD_MAX_MEMBERS];
    uint32_t n = ds_coord_members(t, m, DS_COORD_MAX_MEMBERS);

    for (uint32_t i = 0; i < n; i++)
        if (strcmp(m[i].name, name) == 0) {
            if (out)
                *out = m[i];
            return true;
        }
    return false;
}

static void members_come_and_go(void **state)
{
    coord c = { .s = NULL };
    ds_coord *w, *a, *b;
    ds_coord_member m;
    ds_err err = { 0 };

    (void)state;
    begin(&c, 60000);
    w = tie(&c, NULL, true);
    assert_ok(ds_coord_wait(w, PATIENCE_MS, &err));
    assert_int_equal(ds_coord_get(w).n, 0);
    a = tie(&c, "a", false);
    b = tie(&c, "b", false);
    wait_for(has(w, "a", NULL) && has(w, "b", NULL));
    wait_for(has(b, "b", NULL) && !has(b, "a", NULL)); /* which only wants to hear of itself */
    wait_for(ds_coord_get(a).epoch && ds_coord_get(b).epoch && ds_coord_get(a).epoch != ds_coord_get(b).epoch);
    /* what it says of itself is passed on */
    assert_true(has(w, "a", &m) && m.state == DS_INSTANCE_READY);
    m.state = DS_INSTANCE_GRACE;
    assert_ok(ds_coord_say(a, &m, &err));
    wait_for(has(w, "a", &m) && m.state == DS_INSTANCE_GRACE);
    /* an order reaches it */
    assert_refused(ds_coord_drain(w, "nobody", PATIENCE_MS, &err), DS_E_ARG, "there is no process 'nobody'");
    assert_ok(ds_coord_drain(w, "b", PATIENCE_MS, &err));
    wait_for(ds_coord_get(b).drain);
    wait_for(has(w, "b", &m) && m.drain);
    assert_false(ds_coord_get(a).drain);
    /* who closes is gone at once */
    ds_coord_close(b);
    wait_for(!has(w, "b", NULL));
    assert_true(has(w, "a", NULL));
    ds_coord_close(a);
    ds_coord_close(w);
    end(&c);
}

static void a_name_is_one_process(void **state)
{
    coord c = { .s = NULL };
    ds_coord *w, *a, *b;
    ds_coord_member m, n;

    (void)state;
    begin(&c, 60000);
    w = tie(&c, NULL, true);
    a = tie(&c, "a", false);
    wait_for(has(w, "a", &m));
    b = tie(&c, "a", false);
    wait_for(strstr(ds_coord_get(b).why, "is that of another process"));
    assert_true(has(w, "a", &n) && n.instance == m.instance);
    ds_coord_close(b);
    assert_true(has(w, "a", NULL)); /* who never had it doesn't take it along */
    ds_coord_close(a);
    wait_for(!has(w, "a", NULL));
    b = tie(&c, "a", false);
    wait_for(has(w, "a", &n) && n.epoch > m.epoch);
    ds_coord_close(b);
    ds_coord_close(w);
    end(&c);
}

static void the_coord_goes_and_comes_back(void **state)
{
    coord c = { .s = NULL };
    ds_coord *w, *a;
    ds_coord_member m, n;

    (void)state;
    for (int memory = 0; memory < 2; memory++) {
        begin(&c, 60000);
        w = tie(&c, NULL, true);
        a = tie(&c, "a", false);
        wait_for(has(w, "a", &m));
        wait_for(ds_coord_get(w).n == 1);
        uint64_t revision = ds_coord_get(w).revision;
        stop(&c);
        wait_for(!ds_coord_get(w).up && !ds_coord_get(a).up);
        assert_true(has(w, "a", NULL));
        if (!memory)
            forget(&c);
        begin(&c, 60000);
        wait_for(ds_coord_get(w).up && ds_coord_get(a).up && ds_coord_get(a).epoch);
        wait_for(has(w, "a", &n));
        assert_int_equal(m.instance, n.instance);
        if (memory) /* nothing was another one in between */
            assert_true(ds_coord_get(w).revision == revision && n.epoch == m.epoch);
        ds_coord_close(a);
        wait_for(!has(w, "a", NULL));
        ds_coord_close(w);
        end(&c);
        c = (coord){ .s = NULL };
    }
}

/* ---- a disk that gets full ---- */

typedef struct {
    ds_disk real;
    atomic_bool full;
} small_disk;

static ds_rc small_read(void *ctx, const char *name, char **out, size_t *n, ds_err *err)
{
    const small_disk *d = ctx;

    return d->real.read(d->real.ctx, name, out, n, err);
}

static ds_rc small_write(void *ctx, const char *name, uint64_t at, const void *p, size_t n, ds_err *err)
{
    const small_disk *d = ctx;
    bool full = atomic_load(&d->full);
    ds_rc rc = d->real.write(d->real.ctx, name, at, p, full ? n / 2 : n, err); /* what fits is there */

    return full ? ds_fail(err, DS_E_IO, "%s: No space left on device", name) : rc;
}

static ds_rc small_truncate(void *ctx, const char *name, uint64_t n, ds_err *err)
{
    const small_disk *d = ctx;

    return d->real.truncate(d->real.ctx, name, n, err);
}

static ds_rc small_sync(void *ctx, const char *name, ds_err *err)
{
    const small_disk *d = ctx;

    return d->real.sync(d->real.ctx, name, err);
}

static ds_rc small_rename(void *ctx, const char *from, const char *to, ds_err *err)
{
    const small_disk *d = ctx;

    return d->real.rename(d->real.ctx, from, to, err);
}

static ds_rc small_sync_names(void *ctx, ds_err *err)
{
    const small_disk *d = ctx;

    return d->real.sync_names(d->real.ctx, err);
}

/* Nobody can come while the journal can't be written, and nobody goes by it; when there is room again all is well. */
static void a_full_disk_keeps_who_is_there(void **state)
{
    coord c = { .s = NULL };
    small_disk d = { .full = false };
    ds_coord *w, *a, *b;
    ds_err err = { 0 };

    (void)state;
    begin(&c, 3000);
    stop(&c);
    assert_ok(ds_disk_dir_open(&d.real, &c.d, c.dir, &err));
    c.disk = (ds_disk){ small_read, small_write, small_truncate, small_sync, small_rename, small_sync_names, &d };
    assert_ok(ds_coord_server_start(&c.s, c.address, &c.disk, &(ds_coord_server_opts){ .ttl_ms = 3000 }, &err));
    w = tie(&c, NULL, true);
    a = tie(&c, "a", false);
    wait_for(has(w, "a", NULL));
    atomic_store(&d.full, true);
    b = tie(&c, "b", false);
    wait_for(strstr(ds_coord_get(b).why, "No space left on device"));
    assert_refused(ds_coord_drain(w, "a", PATIENCE_MS, &err), DS_E_IO, "No space left on device");
    assert_true(has(w, "a", NULL) && !has(w, "b", NULL) && ds_coord_get(w).up);
    atomic_store(&d.full, false);
    wait_for(has(w, "b", NULL) && ds_coord_get(b).epoch);
    ds_coord_close(b);
    wait_for(!has(w, "b", NULL));
    stop(&c);
    begin(&c, 60000); /* what was torn isn't there, what was said is */
    wait_for(ds_coord_get(w).up && has(w, "a", NULL) && !has(w, "b", NULL));
    ds_coord_close(a);
    ds_coord_close(w);
    end(&c);
}

/* An order that is given while nobody is tied is heard when the process is back. */
static void an_order_outlives_the_connection(void **state)
{
    coord c = { .s = NULL };
    ds_coord_member m = { .name = "a", .role = "mixed", .address = "unix:/e", .version = "1", .instance = 7 };
    ds_coord *w, *a;
    ds_err err = { 0 };

    (void)state;
    begin(&c, 60000);
    w = tie(&c, NULL, true);
    a = tie(&c, NULL, false);
    assert_ok(ds_coord_say(a, &m, &err));
    wait_for(has(w, "a", NULL));
    stop(&c);
    wait_for(!ds_coord_get(a).up && !ds_coord_get(w).up);
    assert_false(ds_coord_get(a).drain);
    begin(&c, 60000);
    wait_for(ds_coord_get(w).up);
    assert_ok(ds_coord_drain(w, "a", PATIENCE_MS, &err)); /* perhaps before it is back */
    wait_for(ds_coord_get(a).drain);
    ds_coord_close(a);
    ds_coord_close(w);
    end(&c);
}

/* Who is killed says nothing: here, one whose connection only says who it is. */
static void a_lease_ends(void **state)
{
    coord c = { .s = NULL };
    ds_coord *w;
    ds_coord_member m = { .name = "mute", .role = "mixed", .address = "unix:/e", .version = "1", .instance = 7 };
    ds_err err = { 0 };
    ds_addr at;
    ds_buf b = { 0 };
    ds_frame f = { .type = DS_COORD_HELLO };
    int fd;

    (void)state;
    begin(&c, 300);
    w = tie(&c, NULL, true);
    assert_ok(ds_addr_parse(&at, c.address, &err));
    assert_ok(ds_addr_connect(&at, 1000, &fd, &err));
    assert_int_equal(fcntl(fd, F_SETFL, 0), 0);
    ds_coord_put_u32(&b, DS_COORD_VERSION);
    assert_ok(ds_frame_send(fd, &f, b.p, b.len, NULL, 0, true, &err));
    ds_buf_clear(&b);
    ds_coord_put_member(&b, &m);
    f = (ds_frame){ .type = DS_COORD_SAY };
    assert_ok(ds_frame_send(fd, &f, b.p, b.len, NULL, 0, true, &err));
    ds_buf_free(&b);
    wait_for(has(w, "mute", NULL));
    wait_for(!has(w, "mute", NULL));
    close(fd);
    ds_coord_close(w);
    end(&c);
}

/* What is malformed, or comes before HELLO, ends the connection and changes nothing. */
static void strangers_get_nothing(void **state)
{
    static const struct {
        uint16_t type;
        const char *bytes;
        size_t n;
        bool hello;
    } cases[] = {
        { DS_COORD_WATCH, "\0\0\0\0", 4, false },
        { DS_COORD_SAY, "\1\0\0\0x", 5, false },
        { DS_COORD_HELLO, "\1\0\0", 3, false },
        { DS_COORD_SAY, "\1\0\0\0x", 5, true },
        { DS_COORD_STATUS, "\1", 1, true },
        { DS_COORD_WATCH, "x", 1, true },
        { DS_COORD_ORDER, "\377\377\377\377", 4, true },
        { DS_COORD_VIEW, "", 0, true },
        { 0x999, "", 0, true },
        { DS_COORD_STATUS, "\1\0\0\0\1\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0", 20, true },
    };
    coord c = { .s = NULL };
    ds_err err = { 0 };
    ds_addr at;

    (void)state;
    begin(&c, 60000);
    assert_ok(ds_addr_parse(&at, c.address, &err));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ds_frame f = { .type = DS_COORD_HELLO };
        uint8_t byte[256];
        ssize_t n;
        int fd;
        assert_ok(ds_addr_connect(&at, 1000, &fd, &err));
        assert_int_equal(fcntl(fd, F_SETFL, 0), 0);
        if (cases[i].hello)
            assert_ok(ds_frame_send(fd, &f, "\1\0\0\0", 4, NULL, 0, true, &err));
        f = (ds_frame){ .type = cases[i].type };
        assert_ok(ds_frame_send(fd, &f, cases[i].bytes, cases[i].n, NULL, 0, true, &err));
        do {
            struct pollfd p = { .fd = fd, .events = POLLIN };
            assert_int_equal(poll(&p, 1, PATIENCE_MS), 1);
            n = read(fd, byte, sizeof byte);
        } while (n > 0);
        close(fd);
    }
    ds_coord *w = tie(&c, NULL, true);
    assert_ok(ds_coord_wait(w, PATIENCE_MS, &err));
    assert_int_equal(ds_coord_get(w).n, 0);
    ds_coord_close(w);
    end(&c);
}

static void nobody_waits_for_a_coord_that_is_not_there(void **state)
{
    coord c = { .address = "unix:/nowhere/at/all" };
    ds_coord *t = tie(&c, "a", true);
    ds_err err = { 0 };

    (void)state;
    ds_coord_status(t, 1, 2, 3);
    assert_refused(ds_coord_wait(t, 20, &err), DS_E_IO, "/nowhere/at/all");
    assert_refused(ds_coord_drain(t, "x", 20, &err), DS_E_IO, "/nowhere/at/all");
    ds_coord_close(t);
    assert_refused(ds_coord_open(&t, "10.1.2.3:4", &(ds_coord_opts){ .retry_ms = 1 }, &err), DS_E_ARG, "TLS");
    assert_refused(ds_coord_open(&t, "etcd:localhost", &(ds_coord_opts){ .retry_ms = 1 }, &err), DS_E_ARG, "etcd:http://");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(members_come_and_go),
        cmocka_unit_test(a_name_is_one_process),
        cmocka_unit_test(the_coord_goes_and_comes_back),
        cmocka_unit_test(a_lease_ends),
        cmocka_unit_test(an_order_outlives_the_connection),
        cmocka_unit_test(a_full_disk_keeps_who_is_there),
        cmocka_unit_test(strangers_get_nothing),
        cmocka_unit_test(nobody_waits_for_a_coord_that_is_not_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
