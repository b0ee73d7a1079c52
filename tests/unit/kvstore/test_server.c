/* A store used by other processes: the same answers as one of our own; who goes gives everything back; what makes no
 * sense ends one connection and nothing else. */
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/rng.h"
#include "kvstore/server.h"
#include "kvstore/wire_internal.h"
#include "store_rig.h"
#include "test.h"

typedef struct {
    rig r;
    ds_kvstore *store;
    ds_kvserver *server;
    pthread_t thread;
    uint64_t windows; /* bytes of memory for window states */
    char path[96], address[104];
} host;

static void *serve(void *arg)
{
    ds_kvserver_run(((host *)arg)->server);
    return NULL;
}

static void begin(host *h)
{
    ds_err err;
    ds_kvstore_opts o = h->r.o;

    o.user = NULL;
    assert_ok(ds_kvstore_open(&h->store, &o, &err));
    assert_ok(ds_kvserver_open(&h->server, &(ds_kvserver_opts){ .store = h->store, .path = h->path, .window_bytes = h->windows }, &err));
    assert_int_equal(pthread_create(&h->thread, NULL, serve, h), 0);
}

static void end(host *h)
{
    ds_kvserver_stop(h->server);
    pthread_join(h->thread, NULL);
    ds_kvserver_close(h->server);
    ds_kvstore_close(h->store);
}

static void host_init(host *h)
{
    h->windows = 0;
    rig_init(&h->r, 2, 1);
    snprintf(h->path, sizeof h->path, "%s/socket", h->r.root);
    snprintf(h->address, sizeof h->address, "unix:%s", h->path);
    begin(h);
}

static void host_fini(host *h)
{
    end(h);
    rig_fini(&h->r);
}

static bool count(void *ctx, const ds_kvstore_item *item)
{
    (void)item;
    ++*(uint32_t *)ctx;
    return true;
}

static void like_ones_own(void **state)
{
    host h;
    ds_kvstore *a, *b, *keeper;
    ds_kvstore_stats st;
    ds_kvstore_check c;
    ds_kvstore_fetched f;
    uint64_t forgotten;
    uint32_t n = 0;
    ds_err err;

    (void)state;
    host_init(&h);
    assert_ok(ds_kvstore_connect(&a, h.address, &h.r.user, &err));
    assert_ok(ds_kvstore_connect(&b, h.address, &h.r.user, &err));
    assert_ok(ds_kvstore_connect(&keeper, h.address, NULL, &err));
    assert_int_equal(rig_save(a, (rig_blocks){ 1, 0, 700, 650, DS_KVSTORE_AGENT, NULL, false }),
                     DS_KVSTORE_SAVED); /* more than there are slots */
    assert_int_equal(rig_save(b, (rig_blocks){ 2, 0, 40, 40, DS_KVSTORE_CHAT, "somebody", false }), DS_KVSTORE_SAVED);
    assert_int_equal(rig_save(b, (rig_blocks){ 3, 5, 4, 4, DS_KVSTORE_CHAT, NULL, false }), DS_KVSTORE_ORPHAN);
    assert_int_equal(rig_match(b, 1, 800), 700); /* what one saved another finds */
    f = rig_fetch(b, 1, 0, 800, 0);
    assert_int_equal(f.n, 700);
    assert_int_equal(f.exact, 650);
    assert_int_equal(f.cause, DS_KVSTORE_ABSENT);
    assert_int_equal(rig_fetch(a, 2, 0, 40, 0).n, 40);
    assert_int_equal(rig_fetch(a, 9, 0, 40, 0).n, 0);
    assert_int_equal(rig_fetch(a, 1, 0, 700, 1).cause, DS_KVSTORE_LATE);
    ds_key keys[10];
    rig_keys(keys, 1, 0, 10);
    ds_kvstore_touch(a, keys, 10);
    assert_ok(ds_kvstore_stat(keeper, &st, &err));
    assert_int_equal(st.blocks, 740);
    assert_ok(ds_kvstore_list(keeper, count, &n, &err));
    assert_int_equal(n, 740);
    assert_ok(ds_kvstore_verify(keeper, DS_KVSTORE_REPAIR, NULL, &c, &err));
    assert_true(c.checked == 740 && c.bad == 0);
    assert_ok(ds_kvstore_forget(keeper, "somebody", &forgotten, &err));
    assert_int_equal(forgotten, 40);
    assert_refused(ds_kvstore_forget(keeper, NULL, &forgotten, &err), DS_E_ARG, "tenant");
    assert_int_equal(rig_match(a, 2, 40), 0);
    assert_int_equal(rig_fetch(a, 1, 0, 700, 0).n, 700);
    ds_kvstore_close(a);
    ds_kvstore_close(b);
    ds_kvstore_close(keeper);
    host_fini(&h);
}

static void refused(void **state)
{
    host h;
    ds_kvstore *a, *b;
    ds_kvserver *second;
    ds_err err;

    (void)state;
    host_init(&h);
    assert_refused(ds_kvserver_open(&second, &(ds_kvserver_opts){ .store = h.store, .path = h.path }, &err), DS_E_AGAIN, "another process");
    assert_ok(ds_kvstore_connect(&a, h.address, &h.r.user, &err));
    rig_layout(&h.r, RIG_BLOCK, 1);
    assert_refused(ds_kvstore_connect(&b, h.address, &h.r.user, &err), DS_E_ARG,
                   "another layout than that of the engines that are connected: activations: 0 and 1");
    ds_kvstore_close(a);
    for (uint64_t until = ds_now_ns() + 5000000000u;
         ds_kvstore_connect(&b, h.address, &h.r.user, &err) != DS_OK;) /* nobody is in the way now */
        assert_true(ds_now_ns() < until);
    ds_kvstore_close(b);
    memset(h.r.user.dialect, 0, 32);
    assert_refused(ds_kvstore_connect(&b, h.address, &h.r.user, &err), DS_E_ARG, "template is unknown");
    assert_refused(ds_kvstore_connect(&b, "tcp:1", NULL, &err), DS_E_ARG, "expected unix:PATH");
    host_fini(&h);
    assert_refused(ds_kvstore_connect(&b, h.address, NULL, &err), DS_E_IO, "No such file");
}

static void ignore_fetch(void *ctx, const ds_kvstore_fetched *f)
{
    (void)ctx;
    (void)f;
}

static void ignore_save(void *ctx, ds_kvstore_saved r)
{
    (void)ctx;
    (void)r;
}

static void wait_for_no_pins(ds_kvstore *s)
{
    ds_kvstore_stats st;
    ds_err err;
    uint64_t until = ds_now_ns() + 2000000000u;

    do {
        assert_true(ds_now_ns() < until);
        assert_ok(ds_kvstore_stat(s, &st, &err));
    } while (st.pins);
}

/* An engine that is killed with everything under way. */
static void killed_engines(void **state)
{
    enum { N = 64 };
    host h;
    ds_kvstore *a;
    ds_err err;
    int ready[2];

    (void)state;
    host_init(&h);
    assert_ok(ds_kvstore_connect(&a, h.address, &h.r.user, &err));
    assert_int_equal(rig_save(a, (rig_blocks){ 1, 0, N, N, DS_KVSTORE_AGENT, NULL, false }), DS_KVSTORE_SAVED);
    for (uint32_t round = 0; round < 10; round++) {
        assert_int_equal(pipe(ready), 0);
        pid_t child = fork();
        if (child == 0) {
            static uint8_t bytes[N][RIG_BLOCK];
            ds_kvstore *s;
            ds_key keys[N];
            uint8_t *blocks[N];
            if (ds_kvstore_connect(&s, h.address, &h.r.user, &err) != DS_OK)
                _exit(1);
            for (uint32_t i = 0; i < N; i++)
                blocks[i] = bytes[i];
            for (uint32_t i = 0;; i++) {
                rig_keys(keys, 1, 0, N);
                ds_kvstore_fetch(s, &(ds_kvstore_fetch_req){ .keys = keys, .blocks = blocks, .n = N, .done = ignore_fetch }, NULL, &err);
                rig_keys(keys, 100 + i % 4, 0, N);
                ds_kvstore_save(s,
                                &(ds_kvstore_save_req){ .keys = keys,
                                                        .blocks = (const uint8_t *const *)blocks,
                                                        .n = N,
                                                        .exact = N,
                                                        .parent = rig_ns(100 + i % 4),
                                                        .done = ignore_save },
                                &err);
                if (i == round && write(ready[1], "", 1) != 1)
                    _exit(1);
            }
        }
        char c;
        assert_int_equal(read(ready[0], &c, 1), 1);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        close(ready[0]);
        close(ready[1]);
        wait_for_no_pins(h.store);
        assert_int_equal(rig_fetch(a, 1, 0, N, 0).n, N);
    }
    ds_kvstore_close(a);
    host_fini(&h);
}

/* The store goes away and comes back: what is under way is lost, later calls find it again. */
static void the_store_goes(void **state)
{
    host h;
    ds_kvstore *a;
    ds_err err;

    (void)state;
    host_init(&h);
    assert_ok(ds_kvstore_connect(&a, h.address, &h.r.user, &err));
    for (uint32_t round = 0; round < 2; round++) {
        assert_int_equal(rig_save(a, (rig_blocks){ round, 0, 30, 30, DS_KVSTORE_AGENT, NULL, false }), DS_KVSTORE_SAVED);
        end(&h);
        assert_int_equal(rig_fetch(a, round, 0, 30, 0).cause, DS_KVSTORE_LOST);
        assert_int_equal(rig_match(a, round, 30), 0);
        begin(&h);
        for (uint64_t until = ds_now_ns() + 10000000000u; rig_match(a, round, 30) != 30;) {
            assert_true(ds_now_ns() < until);
            usleep(1000);
        }
        assert_int_equal(rig_fetch(a, round, 0, 30, 0).n, 30);
    }
    ds_kvstore_close(a);
    host_fini(&h);
}

/* A store that answers nothing: fetches end at their deadline, cancelled ones at once. */
static void the_store_stops(void **state)
{
    enum { N = 40 };
    static uint8_t bytes[N][RIG_BLOCK];
    host h;
    ds_kvstore *a;
    ds_key keys[N];
    uint8_t *blocks[N];
    uint64_t ticket;
    ds_err err;

    (void)state;
    h.windows = 0;
    rig_init(&h.r, 1, 0);
    snprintf(h.path, sizeof h.path, "%s/socket", h.r.root);
    snprintf(h.address, sizeof h.address, "unix:%s", h.path);
    pid_t child = fork();
    if (child == 0) {
        begin(&h);
        pthread_join(h.thread, NULL);
        _exit(0);
    }
    for (uint64_t until = ds_now_ns() + 10000000000u; ds_kvstore_connect(&a, h.address, &h.r.user, &err) != DS_OK;)
        assert_true(ds_now_ns() < until);
    assert_int_equal(rig_save(a, (rig_blocks){ 1, 0, N, N, DS_KVSTORE_AGENT, NULL, false }), DS_KVSTORE_SAVED);
    kill(child, SIGSTOP);
    rig_keys(keys, 1, 0, N);
    for (uint32_t i = 0; i < N; i++)
        blocks[i] = bytes[i];
    assert_int_equal(rig_match(a, 1, N), N); /* the index is there without it */
    assert_int_equal(rig_fetch(a, 1, 0, N, ds_now_ns() + 30000000).cause, DS_KVSTORE_LATE);
    assert_ok(ds_kvstore_fetch(a, &(ds_kvstore_fetch_req){ .keys = keys, .blocks = blocks, .n = N, .done = ignore_fetch }, &ticket, &err));
    assert_true(ds_kvstore_cancel(a, ticket));
    assert_false(ds_kvstore_cancel(a, ticket));
    kill(child, SIGCONT);
    assert_int_equal(rig_fetch(a, 1, 0, N, 0).n, N);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    assert_int_equal(rig_fetch(a, 1, 0, N, 0).cause, DS_KVSTORE_LOST);
    ds_kvstore_close(a);
    unlink(h.path);
    rig_fini(&h.r);
}

static ds_kvstore_saved put_state(ds_kvstore *s, uint32_t which, bool exact, bool brief)
{
    return rig_save(s, (rig_blocks){ which, 0, 1, exact, DS_KVSTORE_AGENT, NULL, brief });
}

static bool has_state(ds_kvstore *s, uint32_t which)
{
    ds_kvstore_fetched f = { 0 };

    if (rig_match(s, which, 1))
        f = rig_fetch(s, which, 0, 1, 0);
    return f.n == 1;
}

/* What one engine puts another one has at once; who needs it longer has it on the devices as well. */
static void window_states(void **state)
{
    host h;
    ds_kvstore *a, *b, *keeper, *blocks;
    ds_kvstore_stats st;
    ds_key k = rig_key(1, 0);
    ds_err err;

    (void)state;
    host_init(&h);
    end(&h);
    h.windows = 3 * 4096; /* three states */
    begin(&h);
    assert_ok(ds_kvstore_connect(&blocks, h.address, &h.r.user, &err));
    rig_states(&h.r, RIG_BLOCK);
    assert_ok(ds_kvstore_connect(&a, h.address, &h.r.user, &err));
    assert_ok(ds_kvstore_connect(&b, h.address, &h.r.user, &err));
    assert_ok(ds_kvstore_connect(&keeper, h.address, NULL, &err));
    assert_false(has_state(b, 1));
    assert_int_equal(put_state(a, 1, false, true), DS_KVSTORE_SAVED);
    assert_true(has_state(b, 1) && has_state(a, 1));
    assert_int_equal(rig_fetch(b, 1, 0, 1, 0).exact, 0);
    assert_int_equal(ds_kvstore_match(b, &k, 1, true), 0);
    assert_int_equal(put_state(b, 1, true, true), DS_KVSTORE_SAVED);
    assert_int_equal(ds_kvstore_match(a, &k, 1, true), 1);
    assert_int_equal(rig_fetch(a, 1, 0, 1, 0).exact, 1);
    assert_int_equal(put_state(a, 2, true, false), DS_KVSTORE_SAVED);
    assert_ok(ds_kvstore_stat(keeper, &st, &err));
    assert_true(st.blocks == 1 && st.windows == 2 && st.max_windows == 3 && st.window_bytes == RIG_BLOCK && st.window_puts == 3);
    for (uint32_t i = 3; i < 6; i++) /* they need the room */
        assert_int_equal(put_state(a, i, true, true), DS_KVSTORE_SAVED);
    assert_ok(ds_kvstore_stat(keeper, &st, &err));
    assert_true(st.windows == 3 && st.window_displaced == 2 && st.window_expired == 0 && st.pins == 0);
    assert_true(!has_state(b, 1) && has_state(b, 2) && has_state(b, 5)); /* 2 is on the devices */
    assert_int_equal(put_state(blocks, 9, true, true), DS_KVSTORE_FULL); /* blocks are no states */
    ds_kvstore_close(a);
    assert_true(has_state(b, 5)); /* it doesn't go with who made it */
    assert_ok(ds_kvstore_connect(&a, h.address, &h.r.user, &err));
    assert_true(has_state(a, 5));
    end(&h); /* but with the store's process */
    begin(&h);
    for (uint64_t until = ds_now_ns() + 10000000000u; !has_state(b, 2);) {
        assert_true(ds_now_ns() < until);
        usleep(1000);
    }
    assert_false(has_state(b, 5));
    assert_int_equal(put_state(b, 5, true, true), DS_KVSTORE_SAVED);
    assert_true(has_state(b, 5));
    ds_kvstore_close(a);
    ds_kvstore_close(b);
    ds_kvstore_close(keeper);
    ds_kvstore_close(blocks);
    host_fini(&h);
}

static void keep(void *ctx, ds_kvstore_saved r)
{
    (void)ctx;
    (void)r;
}

static void ones_own_store_has_no_memory_for_states(void **state)
{
    uint8_t bytes[RIG_BLOCK] = { 0 };
    const uint8_t *block = bytes;
    ds_key k = rig_key(1, 0);
    ds_kvstore *s;
    rig r;
    ds_err err;

    (void)state;
    rig_init(&r, 1, 0);
    assert_ok(ds_kvstore_open(&s, &r.o, &err));
    assert_refused(
        ds_kvstore_save(s, &(ds_kvstore_save_req){ .keys = &k, .blocks = &block, .n = 1, .exact = 1, .brief = true, .done = keep }, &err),
        DS_E_ARG, "another process");
    ds_kvstore_close(s);
    rig_fini(&r);
}

/* Frames that are whole and mean nothing, and bytes that are no frames. */
static void nonsense(void **state)
{
    host h;
    ds_kvstore *a;
    ds_err err;

    (void)state;
    host_init(&h);
    assert_ok(ds_kvstore_connect(&a, h.address, &h.r.user, &err));
    assert_int_equal(rig_save(a, (rig_blocks){ 1, 0, 10, 10, DS_KVSTORE_AGENT, NULL, false }), DS_KVSTORE_SAVED);
    for (uint64_t round = 0; round < 300; round++) {
        struct sockaddr_un addr = { .sun_family = AF_UNIX };
        static uint8_t in[DS_FRAME_MAX_PAYLOAD];
        uint8_t payload[2048];
        int fds[DS_FRAME_MAX_FDS], fd = socket(AF_UNIX, SOCK_STREAM, 0);
        ds_frame f = { .type = DS_WIRE_HELLO }, got = { 0 };
        ds_frame_out out = { .buf = payload, .cap = sizeof payload };
        bool engine = round % 2;

        strcpy(addr.sun_path, h.path);
        assert_int_equal(connect(fd, (struct sockaddr *)&addr, sizeof addr), 0);
        ds_frame_put_u32(&out, engine);
        if (engine) {
            ds_frame_put(&out, h.r.user.model, 32);
            ds_frame_put(&out, h.r.user.tokenizer, 32);
            ds_frame_put(&out, h.r.user.dialect, 32);
            ds_frame_put_u32(&out, (uint32_t)h.r.user.layout_bytes);
            ds_frame_put(&out, h.r.user.layout, h.r.user.layout_bytes);
        }
        if (round % 7 == 0)
            payload[ds_rng_u64(3, round, 0) % out.n] ^= 1;
        assert_ok(ds_frame_send(fd, &f, payload, out.n, NULL, 0, true, &err));
        if (ds_frame_receive(fd, &got, in, sizeof in, fds, &err) == DS_OK && got.type == DS_WIRE_WELCOME) {
            for (int i = 0; i < DS_FRAME_MAX_FDS; i++)
                if (fds[i] >= 0)
                    close(fds[i]);
            static const uint16_t types[] = { DS_WIRE_FETCH,  DS_WIRE_SAVE,   DS_WIRE_TOUCH, DS_WIRE_CANCEL,
                                              DS_WIRE_VERIFY, DS_WIRE_FORGET, DS_WIRE_HELLO, 99 };
            size_t n = ds_rng_u64(3, round, 1) % 300;
            for (size_t i = 0; i < n; i++)
                payload[i] = (uint8_t)(ds_rng_u64(3, round, 2 + i) % (round % 3 ? 256 : 3));
            if (round % 5 == 0 && n > 4)
                memset(payload, 0xff, 4);
            f = (ds_frame){ .type = types[ds_rng_u64(3, round, 1000) % 8], .request = round, .epoch = got.epoch + (round % 11 == 0) };
            ds_frame_send(fd, &f, payload, n, NULL, 0, true, NULL);
            memset(payload, 'x', 64);
            if (round % 2 && write(fd, payload, 64) < 0) /* and no frame at all */
                continue;
        }
        close(fd);
        if (round % 50 == 0)
            assert_int_equal(rig_fetch(a, 1, 0, 10, 0).n, 10);
    }
    wait_for_no_pins(h.store);
    assert_int_equal(rig_fetch(a, 1, 0, 10, 0).n, 10);
    ds_kvstore_close(a);
    host_fini(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(like_ones_own),   cmocka_unit_test(refused),
        cmocka_unit_test(killed_engines),  cmocka_unit_test(the_store_goes),
        cmocka_unit_test(the_store_stops), cmocka_unit_test(nonsense),
        cmocka_unit_test(window_states),   cmocka_unit_test(ones_own_store_has_no_memory_for_states),
    };

    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
