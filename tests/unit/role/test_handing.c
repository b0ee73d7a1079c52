/* Sequences that go from one engine process to another: tickets, messages, and every one of them lost, repeated,
 * reordered or late. Engines without a model that check every read, in this process. */
#include "test.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "cluster/again.h"
#include "cluster/apart.h"
#include "cluster/handoff.h"
#include "cluster/host.h"
#include "cluster/remote.h"
#include "cluster/taker.h"
#include "engine/engine.h"
#include "net/addr.h"
#include "role/handing.h"

enum { VOCAB = 1000, MAX_TOKENS = 100, REQUESTS = 16, PROMPT = 1000 };

static const ds_cw_model model = { { 1 }, { 2 } };
static ds_token prompt[PROMPT];
static char folder[] = "/tmp/ds_handoff_XXXXXX";

/* ---- tickets ---- */

static uint32_t n_freed;

static void freed(void *ctx, void *held)
{
    assert_ptr_equal(ctx, &n_freed);
    assert_non_null(held);
    n_freed++;
}

static void tickets(void **state)
{
    ds_handed h = { .free = freed, .ctx = &n_freed, .held = prompt };
    const ds_handed *pinned;
    uint64_t a, b, c, d;
    ds_tickets *t;
    ds_err err;

    (void)state;
    n_freed = 0;
    assert_ok(ds_tickets_create(&t, 3, &err));
    assert_ok(ds_tickets_put(t, &a, &h, &a, &err));
    assert_ok(ds_tickets_put(t, &b, &h, &b, &err));
    assert_ok(ds_tickets_put(t, &b, &h, &c, &err));
    assert_int_equal(ds_tickets_put(t, &b, &h, &d, &err), DS_E_AGAIN);
    assert_true(a && b && c && a != b && b != c);
    assert_null(ds_tickets_pin(t, 0));
    assert_null(ds_tickets_pin(t, a ^ 2));
    ds_tickets_forget(t, a ^ 2);
    assert_int_equal(ds_tickets_n(t), 3);
    ds_tickets_forget(t, a);
    ds_tickets_forget(t, a);
    assert_null(ds_tickets_pin(t, a));
    assert_int_equal(n_freed, 1);
    pinned = ds_tickets_pin(t, b);
    assert_ptr_equal(ds_tickets_pin(t, b), pinned);
    ds_tickets_forget_of(t, &b); /* its bytes stay where somebody reads them */
    assert_int_equal(n_freed, 2);
    assert_null(ds_tickets_pin(t, b));
    ds_tickets_unpin(t, pinned);
    assert_int_equal(n_freed, 2);
    assert_int_equal(ds_tickets_n(t), 1);
    ds_tickets_unpin(t, pinned);
    assert_int_equal(n_freed, 3);
    assert_ok(ds_tickets_put(t, &a, &h, &a, &err));
    ds_tickets_destroy(t);
    assert_int_equal(n_freed, 4);
}

/* ---- messages ---- */

static void parts(void **state)
{
    uint8_t record[7] = "record", blocks[9] = "theblock", all[16];
    const ds_handed h = { .record = record, .n_record = 7, .blocks = blocks, .n_blocks = 9 };
    ds_cw_part p;
    uint64_t from;
    uint32_t n;
    ds_err err;

    (void)state;
    memcpy(all, record, 7);
    memcpy(all + 7, blocks, 9);
    for (uint64_t at = 0; at < 20; at++)
        for (uint32_t want = 1; want < 20; want++) {
            ds_buf b = { 0 };
            uint64_t have = at > 16 ? 0 : want < 16 - at ? want : 16 - at;
            ds_cw_put_take(&b, at, want);
            assert_ok(ds_cw_read_take(&from, &n, (const uint8_t *)b.p, b.len, &err));
            assert_true(from == at && n == want);
            for (size_t cut = 0; cut < b.len; cut++)
                assert_int_equal(ds_cw_read_take(&from, &n, (const uint8_t *)b.p, cut, &err), DS_E_FORMAT);
            ds_buf_clear(&b);
            ds_cw_put_part(&b, &h, at, want);
            if (at > 16) {
                assert_int_equal(ds_cw_read_part(&p, (const uint8_t *)b.p, b.len, &err), DS_E_FORMAT);
            } else {
                assert_ok(ds_cw_read_part(&p, (const uint8_t *)b.p, b.len, &err));
                assert_true(p.n_record == 7 && p.n_blocks == 9 && p.from == at && p.n == have);
                assert_memory_equal(p.p, all + at, have);
                ds_buf_put(&b, all, 16 - have - at + 1); /* more than there is */
                assert_int_equal(ds_cw_read_part(&p, (const uint8_t *)b.p, b.len, &err), DS_E_FORMAT);
            }
            ds_buf_free(&b);
        }
    ds_buf b = { 0 };
    ds_cw_put_take(&b, 0, 0);
    assert_int_equal(ds_cw_read_take(&from, &n, (const uint8_t *)b.p, b.len, &err), DS_E_FORMAT);
    ds_buf_clear(&b);
    ds_cw_put_take(&b, 0, DS_CW_MAX_PART + 1);
    assert_int_equal(ds_cw_read_take(&from, &n, (const uint8_t *)b.p, b.len, &err), DS_E_FORMAT);
    ds_buf_free(&b);
}

/* ---- an engine process that says what a script wants ---- */

enum { RECORD = 1000, BLOCKS = 5 << 20 };

typedef enum { RIGHT, NO_WELCOME, OTHER_EPOCH, LOST, TWICE, LATE, SWAPPED, OTHER_TICKET, RESIZED, NOTHING, TORN, GARBAGE, TOO_MUCH } fault;

typedef struct {
    fault f;
    uint32_t at; /* which part it happens to */
    uint8_t *bytes;
    ds_handed h;
    int listener;
    char address[DS_ADDR_TEXT];
    ds_conn *conn;
    uint32_t n_parts, n_forgotten;
    uint64_t kept_from;
    uint32_t kept_n;
} actor;

static ds_rc say_part(actor *a, uint64_t ticket, uint64_t from, uint32_t n, ds_err *err)
{
    ds_frame f = { .type = DS_CW_PART, .request = ticket, .epoch = 77 };
    ds_buf b = { 0 };
    ds_rc rc;

    ds_cw_put_part(&b, &a->h, from, n);
    rc = ds_conn_send(a->conn, &f, b.p, b.len, err);
    ds_buf_free(&b);
    return rc;
}

static ds_rc on_take(actor *a, const ds_frame *f, const uint8_t *p, size_t n, ds_err *err)
{
    ds_frame answer = { .type = DS_CW_NOTHING, .request = f->request, .epoch = 77 };
    uint64_t from;
    uint32_t want;
    ds_rc rc = ds_cw_read_take(&from, &want, p, n, err);

    assert_int_equal(rc, DS_OK);
    if (a->n_parts++ != a->at) {
        rc = say_part(a, f->request, from, want, err);
        if (a->f == SWAPPED && a->n_parts == a->at + 2)
            rc = say_part(a, f->request, a->kept_from, a->kept_n, err);
        return rc;
    }
    switch (a->f) {
    case LOST:
        return DS_OK;
    case TWICE:
        rc = say_part(a, f->request, from, want, err);
        return rc == DS_OK ? say_part(a, f->request, from, want, err) : rc;
    case LATE:
        poll(NULL, 0, 60);
        break;
    case SWAPPED: /* the next comes first */
        a->kept_from = from;
        a->kept_n = want;
        return DS_OK;
    case OTHER_TICKET:
        return say_part(a, f->request ^ 2, from, want, err);
    case RESIZED:
        a->h.n_blocks--;
        break;
    case NOTHING:
        return ds_conn_send(a->conn, &answer, NULL, 0, err);
    case TORN:
        return ds_fail(err, DS_E_IO, "torn");
    case GARBAGE:
        answer.type = DS_CW_PART;
        return ds_conn_send(a->conn, &answer, "?", 1, err);
    default:
        break;
    }
    return say_part(a, f->request, from, want, err);
}

static ds_rc heard(void *ctx, const ds_frame *f, const uint8_t *p, size_t n, ds_err *err)
{
    actor *a = ctx;
    ds_frame answer = { .type = DS_CW_WELCOME, .epoch = a->f == OTHER_EPOCH ? 78 : 77 };
    const ds_gen_plan plan = { .max_context = 100 };
    ds_buf b = { 0 };
    ds_rc rc;

    if (f->type == DS_CW_TAKE)
        return on_take(a, f, p, n, err);
    if (f->type == DS_CW_FORGET) {
        a->n_forgotten++;
        return DS_OK;
    }
    assert_int_equal(f->type, DS_CW_HELLO);
    if (a->f == NO_WELCOME)
        return ds_fail(err, DS_E_IO, "no");
    ds_cw_put_welcome(&b, &(ds_cw_engine){ .model = model }, &plan, 1);
    rc = ds_conn_send(a->conn, &answer, b.p, b.len, err);
    ds_buf_free(&b);
    return rc;
}

static void left(void *ctx, const ds_err *why)
{
    (void)ctx;
    (void)why;
}

static void *act(void *arg)
{
    actor *a = arg;
    const ds_conn_fn fn = { heard, left, a };
    struct pollfd p = { .fd = a->listener, .events = POLLIN };
    ds_err err;
    int fd;

    assert_int_equal(poll(&p, 1, 10000), 1);
    assert_ok(ds_addr_accept(a->listener, &fd, &err));
    assert_ok(ds_conn_start(&a->conn, fd, &fn, NULL, &err));
    return NULL;
}

static const struct {
    fault f;
    ds_rc rc;
} faults[] = { { RIGHT, DS_OK },  { NO_WELCOME, DS_E_IO },  { OTHER_EPOCH, DS_E_IO },      { LOST, DS_E_FORMAT },    { TWICE, DS_E_FORMAT },
               { LATE, DS_OK },   { SWAPPED, DS_E_FORMAT }, { OTHER_TICKET, DS_E_FORMAT }, { RESIZED, DS_E_FORMAT }, { NOTHING, DS_E_ARG },
               { TORN, DS_E_IO }, { GARBAGE, DS_E_FORMAT }, { TOO_MUCH, DS_E_NOMEM } };

static void one_fault(uint32_t i, uint32_t at)
{
    const uint32_t last = (RECORD + BLOCKS - 1) >> 20;
    actor a = { .f = faults[i].f, .at = at };
    ds_gen_from from = { .epoch = 77, .ticket = 5 };
    ds_take_opts o = { .model = &model, .from = &from, .most = RECORD + BLOCKS - (a.f == TOO_MUCH), .silence_ms = 200 };
    pthread_t thread;
    ds_taken t;
    ds_addr addr;
    ds_err err = { 0 };
    ds_rc rc, want = faults[i].rc;

    if ((a.f == LOST || a.f == SWAPPED) && at == last) /* nothing comes behind it */
        want = DS_E_IO;
    if (a.f == LOST && at == 0)
        want = DS_E_IO;
    if (a.f == SWAPPED && at == 0)
        want = DS_E_IO; /* the first is asked for alone */
    if (a.f == TWICE && at == last)
        want = DS_OK; /* it was over */
    if (a.f == RESIZED && at == 0)
        want = DS_OK; /* nobody knew another size */
    a.bytes = malloc(RECORD + BLOCKS);
    for (uint32_t k = 0; k < RECORD + BLOCKS; k++)
        a.bytes[k] = (uint8_t)(k * 7 + k / 1000);
    a.h = (ds_handed){ .record = a.bytes, .n_record = RECORD, .blocks = a.bytes + RECORD, .n_blocks = BLOCKS };
    snprintf(a.address, sizeof a.address, "unix:%s/actor", folder);
    assert_ok(ds_addr_parse(&addr, a.address, &err));
    assert_ok(ds_addr_listen(&addr, &a.listener, &err));
    from.address = a.address;
    pthread_create(&thread, NULL, act, &a);
    rc = ds_take(&t, &o, &err);
    if (rc != want)
        fail_msg("fault %d at part %u: %d (%s), wanted %d", a.f, at, rc, err.msg, want);
    pthread_join(thread, NULL);
    if (rc == DS_OK) {
        assert_int_equal(t.n_record, RECORD);
        assert_int_equal(t.n_blocks, a.h.n_blocks);
        assert_memory_equal(t.p, a.bytes, t.n_record + t.n_blocks);
        ds_take_end(&t, true);
        ds_taken_free(t.p, t.n_record + t.n_blocks);
    }
    ds_conn_destroy(a.conn);
    close(a.listener);
    unlink(a.address + 5);
    free(a.bytes);
}

static void every_fault_at_every_part(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < sizeof faults / sizeof *faults; i++)
        for (uint32_t at = 0; at <= (RECORD + BLOCKS - 1) >> 20; at++)
            one_fault(i, at);
}

static void nobody_is_there(void **state)
{
    const ds_gen_from from = { .address = "unix:/nowhere/at/all", .epoch = 1, .ticket = 1 };
    ds_taken t;

    (void)state;
    assert_int_equal(ds_take(&t, &(ds_take_opts){ .model = &model, .from = &from }, NULL), DS_E_IO);
}

/* ---- engines ---- */

typedef struct {
    ds_engine *e;
    ds_host *h;
    ds_handing *x;
    char address[64];
} server;

static const ds_engine_opts engine_opts = { .max_context = 2048, .kv_blocks = 512, .max_running = 32, .max_requests = 64, .handoff = 3 };

static void serve(server *s, int number, ds_cw_role role, uint64_t step_us)
{
    const ds_engine_stub stub = { .vocab = VOCAB, .step_ns = step_us * 1000, .verify = true, .drafts = 3, .seed = 4 };
    ds_host_opts ho = { .self = { .model = model, .role = role }, .hidden = 1, .stats_ms = 20, .conn = { .ping_ms = 20 } };
    ds_engine_opts o = engine_opts;
    ds_err err;

    o.drafts = DS_ENGINE_DRAFTS_AUTO;
    snprintf(s->address, sizeof s->address, "unix:%s/%d", folder, number);
    assert_ok(ds_engine_create_stub(&s->e, &stub, &o, &err));
    assert_ok(ds_engine_start(s->e, &err));
    assert_ok(ds_handing_create(&s->x, s->e, &err));
    ho.handoff = ds_handing_fns(s->x);
    assert_ok(ds_host_start(&s->h, s->address, ds_engine_gen(s->e), &ho, &err));
}

static void stop(server *s)
{
    ds_host_stop(s->h);
    ds_engine_destroy(s->e);
    ds_handing_destroy(s->x);
}

static ds_remote *ask(const server *s)
{
    const ds_remote_opts o = { .model = model, .hidden = 1, .retry_ms = 5, .conn = { .ping_ms = 20 } };
    ds_remote *r;
    ds_err err;

    assert_ok(ds_remote_open(&r, s->address, &o, &err));
    return r;
}

/* Nothing is left of anything. */
static void wait_idle(const server *s)
{
    ds_gen_stats st;
    ds_host_stats h;
    uint64_t until = ds_now_us() + 20000000;

    do {
        poll(NULL, 0, 1);
        ds_engine_stats_get(s->e, &st);
        h = ds_host_stat(s->h);
        assert_true(ds_now_us() < until);
    } while (h.requests || h.tickets || st.kv_used || st.slots_used || st.running || st.waiting || st.parked);
}

typedef struct {
    uint32_t n;
    ds_token out[MAX_TOKENS];
    bool ended;
    ds_end_reason reason;
    uint64_t ticket;
} answer;

static answer answers[REQUESTS], wanted[REQUESTS];

static ds_gen_request asked(uint32_t i)
{
    ds_gen_request q = {
        .prompt = prompt, .n_prompt = 1 + 61 * i, .max_tokens = 1 + 6 * i, .n = 1, .sampling = DS_SAMPLING_DEFAULT, .cookie = i
    };

    q.sampling.seed = 100 + i;
    q.cache_domain = i % 2 ? "a" : "b";
    return q;
}

static void take_some(ds_gen g)
{
    ds_event ev[16];
    size_t n;

    ds_gen_wait(g, 20);
    n = ds_gen_poll(g, ev, 16);
    for (size_t i = 0; i < n; i++) {
        answer *a = &answers[ev[i].cookie];
        assert_false(a->ended);
        if (ev[i].kind == DS_EV_TOKEN) {
            assert_int_equal(ev[i].token.index, a->n);
            a->out[a->n++] = ev[i].token.id;
        } else if (ev[i].kind == DS_EV_END) {
            a->ended = true;
            a->reason = ev[i].end.reason;
            a->ticket = ev[i].end.ticket;
            assert_true(ev[i].end.last);
        }
    }
}

static void until_ended(ds_gen g, uint32_t first, uint32_t n)
{
    uint64_t until = ds_now_us() + 60000000;

    for (uint32_t i = first; i < first + n; i++)
        while (!answers[i].ended) {
            take_some(g);
            assert_true(ds_now_us() < until);
        }
}

/* From one engine. */
static int make_wanted(void **state)
{
    server s;
    ds_err err;
    uint64_t id;

    (void)state;
    for (int i = 0; i < PROMPT; i++)
        prompt[i] = i * 37 % VOCAB;
    assert_non_null(mkdtemp(folder));
    serve(&s, 9, DS_CW_MIXED, 0);
    ds_remote *r = ask(&s);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        ds_gen_request q = asked(i);
        assert_ok(ds_gen_add(ds_remote_gen(r), &q, &id, &err));
    }
    until_ended(ds_remote_gen(r), 0, REQUESTS);
    memcpy(wanted, answers, sizeof wanted);
    ds_remote_close(r);
    wait_idle(&s);
    stop(&s);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    return rmdir(folder);
}

/* Asks the first for a request whose sequence then waits under a ticket, or is over. */
static void leave(ds_remote *from, uint32_t i)
{
    ds_gen_request q = asked(i);
    uint64_t id;
    ds_err err;

    q.hand_over = true;
    answers[i] = (answer){ 0 };
    assert_ok(ds_gen_add(ds_remote_gen(from), &q, &id, &err));
}

static uint64_t come(ds_remote *to, const ds_gen_from *from, uint32_t i)
{
    ds_gen_request q = asked(i);
    uint64_t id;
    ds_err err;

    q.from = from;
    q.output = answers[i].out;
    q.n_output = answers[i].n;
    answers[i].ended = false;
    answers[i].ticket = 0;
    assert_ok(ds_gen_add(ds_remote_gen(to), &q, &id, &err));
    return id;
}

static void assert_wanted(uint32_t i)
{
    assert_int_equal(answers[i].reason, wanted[i].reason);
    assert_int_equal(answers[i].n, wanted[i].n);
    assert_memory_equal(answers[i].out, wanted[i].out, wanted[i].n * sizeof *wanted[i].out);
}

static void goes_on_elsewhere(void **state)
{
    server a, b;
    ds_gen_stats st;
    uint32_t n_left = 0;

    (void)state;
    serve(&a, 0, DS_CW_PREFILL, 0);
    serve(&b, 1, DS_CW_DECODE, 0);
    ds_remote *ra = ask(&a), *rb = ask(&b);
    assert_int_equal(ds_remote_role(ra), DS_CW_PREFILL);
    assert_int_equal(ds_remote_role(rb), DS_CW_DECODE);
    for (uint32_t i = 0; i < REQUESTS; i++)
        leave(ra, i);
    until_ended(ds_remote_gen(ra), 0, REQUESTS);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        if (!answers[i].ticket) { /* over with its first tokens */
            assert_wanted(i);
            continue;
        }
        ds_gen_from from = ds_remote_from(ra, answers[i].ticket);
        assert_true(answers[i].n > 0);
        n_left++;
        come(rb, &from, i);
    }
    assert_true(n_left > REQUESTS / 2);
    until_ended(ds_remote_gen(rb), 0, REQUESTS);
    for (uint32_t i = 0; i < REQUESTS; i++)
        assert_wanted(i);
    wait_idle(&a);
    wait_idle(&b);
    ds_engine_stats_get(b.e, &st);
    assert_int_equal(st.computed_tokens, 0); /* their blocks came with them */
    ds_remote_close(ra);
    ds_remote_close(rb);
    stop(&a);
    stop(&b);
}

/* A sequence has one owner: whoever takes it a second time, too late or from another process gets nothing. */
static void once_and_in_time(void **state)
{
    const uint32_t i = REQUESTS - 1;
    server a, b;
    ds_gen_from from;
    uint64_t ticket;

    (void)state;
    serve(&a, 0, DS_CW_PREFILL, 200);
    serve(&b, 1, DS_CW_DECODE, 200);
    ds_remote *ra = ask(&a), *rb = ask(&b);
    leave(ra, i);
    until_ended(ds_remote_gen(ra), i, 1);
    ticket = answers[i].ticket;
    assert_true(ticket);
    from = ds_remote_from(ra, ticket);
    answer was = answers[i];
    come(rb, &from, i);
    until_ended(ds_remote_gen(rb), i, 1);
    assert_wanted(i);
    answers[i] = was; /* again */
    come(rb, &from, i);
    until_ended(ds_remote_gen(rb), i, 1);
    assert_int_equal(answers[i].reason, DS_ENDED_LOST);
    assert_int_equal(answers[i].n, was.n);
    leave(ra, i);
    until_ended(ds_remote_gen(ra), i, 1);
    from = ds_remote_from(ra, answers[i].ticket);
    ds_remote_forget(ra, from.epoch + 2, from.ticket); /* of another process: nothing */
    poll(NULL, 0, 20);
    assert_int_equal(ds_host_stat(a.h).tickets, 1);
    from.epoch += 2;
    come(rb, &from, i);
    until_ended(ds_remote_gen(rb), i, 1);
    assert_int_equal(answers[i].reason, DS_ENDED_LOST);
    from.epoch -= 2;
    ds_remote_forget(ra, from.epoch, from.ticket);
    wait_idle(&a);
    come(rb, &from, i);
    until_ended(ds_remote_gen(rb), i, 1);
    assert_int_equal(answers[i].reason, DS_ENDED_LOST);
    wait_idle(&b);
    ds_remote_close(ra);
    ds_remote_close(rb);
    stop(&a);
    stop(&b);
}

/* Whoever goes, and whenever: nothing is left. */
static void nothing_outlives_its_owner(void **state)
{
    server a, b;
    uint64_t id;
    ds_err err;

    (void)state;
    serve(&a, 0, DS_CW_PREFILL, 100);
    serve(&b, 1, DS_CW_DECODE, 100);
    for (uint32_t round = 0; round < 12; round++) {
        const uint32_t i = REQUESTS - 1;
        ds_remote *ra = ask(&a), *rb = ask(&b);
        ds_gen_from from;
        ds_gen_request q = asked(i);
        answers[i] = (answer){ 0 };
        q.hand_over = true;
        assert_ok(ds_gen_add(ds_remote_gen(ra), &q, &id, &err));
        if (round % 4 == 1) /* while its prompt is computed, or a little later */
            ds_gen_cancel(ds_remote_gen(ra), id);
        if (round % 4 > 0)
            until_ended(ds_remote_gen(ra), i, 1);
        if (round % 4 == 2 && answers[i].ticket) { /* canceled while it comes, or a little later */
            from = ds_remote_from(ra, answers[i].ticket);
            id = come(rb, &from, i);
            ds_gen_cancel(ds_remote_gen(rb), id);
            until_ended(ds_remote_gen(rb), i, 1);
            assert_true(answers[i].reason == DS_ENDED_CANCELED || answers[i].reason == wanted[i].reason);
        }
        if (round % 4 == 3 && answers[i].ticket) { /* the entry goes while it comes */
            from = ds_remote_from(ra, answers[i].ticket);
            come(rb, &from, i);
            ds_remote_close(rb);
            rb = NULL;
        }
        ds_remote_close(ra); /* with it its tickets */
        ds_remote_close(rb);
        wait_idle(&a);
        wait_idle(&b);
    }
    stop(&a);
    stop(&b);
}

/* The process that has it is gone: the other one says so, and doesn't wait. */
static void the_first_engine_goes(void **state)
{
    const uint32_t i = REQUESTS - 1;
    server a, b;
    ds_gen_from from;
    char address[64];

    (void)state;
    serve(&a, 0, DS_CW_PREFILL, 0);
    serve(&b, 1, DS_CW_DECODE, 0);
    ds_remote *ra = ask(&a), *rb = ask(&b);
    leave(ra, i);
    until_ended(ds_remote_gen(ra), i, 1);
    snprintf(address, sizeof address, "%s", a.address);
    from = ds_remote_from(ra, answers[i].ticket);
    from.address = address;
    stop(&a);
    assert_false(ds_remote_ready(ra));
    come(rb, &from, i);
    until_ended(ds_remote_gen(rb), i, 1);
    assert_int_equal(answers[i].reason, DS_ENDED_LOST);
    wait_idle(&b);
    ds_remote_close(ra);
    ds_remote_close(rb);
    stop(&b);
}

/* ---- apart ---- */

enum { SERVERS = 4 };

typedef struct {
    server s[SERVERS];
    ds_remote *r[SERVERS];
    ds_apart *apart;
    ds_again *again;
    ds_gen g;
} cluster;

static const ds_cw_role two_of_each[SERVERS] = { DS_CW_PREFILL, DS_CW_DECODE, DS_CW_PREFILL, DS_CW_DECODE };
static const ds_cw_role with_mixed[SERVERS] = { DS_CW_PREFILL, DS_CW_MIXED, DS_CW_DECODE, DS_CW_MIXED };

static void begin(cluster *c, const ds_cw_role *roles, uint64_t step_us)
{
    bool apart;
    ds_err err;

    for (int i = 0; i < SERVERS; i++) {
        serve(&c->s[i], i, roles[i], step_us);
        c->r[i] = ask(&c->s[i]);
    }
    assert_ok(ds_apart_check(c->r, SERVERS, &apart, &err));
    assert_true(apart);
    assert_ok(ds_apart_create(&c->apart, c->r, SERVERS, 1, NULL, &err));
    assert_ok(ds_again_create(&c->again, ds_apart_gen(c->apart), 1, 0, &err));
    c->g = ds_again_gen(c->again);
}

/* Nothing is left anywhere. */
static void finish(cluster *c)
{
    for (int i = 0; i < SERVERS; i++)
        if (c->s[i].h)
            wait_idle(&c->s[i]);
    assert_int_equal(ds_apart_stat(c->apart).requests, 0);
    for (int i = 0; i < SERVERS; i++)
        ds_remote_close(c->r[i]);
    ds_again_destroy(c->again);
    ds_apart_destroy(c->apart);
    for (int i = 0; i < SERVERS; i++)
        if (c->s[i].h)
            stop(&c->s[i]);
}

static void lose(cluster *c, int i)
{
    stop(&c->s[i]);
    c->s[i].h = NULL;
}

static void ask_all(cluster *c, uint64_t id[REQUESTS])
{
    ds_err err;

    memset(answers, 0, sizeof answers);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        ds_gen_request q = asked(i);
        assert_ok(ds_gen_add(c->g, &q, &id[i], &err));
    }
}

static void answers_of_one_engine(void **state)
{
    const ds_cw_role *const all[] = { two_of_each, with_mixed };
    uint64_t id[REQUESTS];
    ds_gen_stats st;
    cluster c;

    (void)state;
    for (int k = 0; k < 2; k++) {
        begin(&c, all[k], 0);
        ask_all(&c, id);
        until_ended(c.g, 0, REQUESTS);
        for (uint32_t i = 0; i < REQUESTS; i++)
            assert_wanted(i);
        assert_true(ds_apart_stat(c.apart).moved > (k ? 0 : REQUESTS / 2));
        for (int i = 0; i < SERVERS && k == 0; i++) { /* each had its part, and no other */
            ds_engine_stats_get(c.s[i].e, &st);
            assert_true((st.computed_tokens > 0) == (two_of_each[i] == DS_CW_PREFILL));
            assert_true(st.output_tokens > 0);
        }
        finish(&c);
    }
}

/* Engines of either kind go while texts are at different places of their way, in the end all that decode. */
static void engines_go(void **state)
{
    static const int order[][3] = { { 1, 3, -1 }, { 0, 1, 3 }, { 3, 0, -1 }, { 2, 3, 1 } };
    uint64_t id[REQUESTS];
    cluster c;

    (void)state;
    for (uint32_t k = 0; k < sizeof order / sizeof *order; k++) {
        begin(&c, two_of_each, 100);
        ask_all(&c, id);
        for (int i = 0; i < 3 && order[k][i] >= 0; i++) {
            for (uint32_t turn = 0; turn < 2 * k + 1; turn++)
                take_some(c.g);
            lose(&c, order[k][i]);
        }
        until_ended(c.g, 0, REQUESTS);
        for (uint32_t i = 0; i < REQUESTS; i++)
            assert_wanted(i);
        finish(&c);
    }
}

static void what_is_canceled(void **state)
{
    uint64_t id[REQUESTS];
    cluster c;

    (void)state;
    begin(&c, two_of_each, 50);
    for (uint32_t round = 0; round < 6; round++) {
        ask_all(&c, id);
        for (uint32_t i = 0; i < REQUESTS; i++) {
            if (i % 3 == 0)
                ds_gen_finish_sample(c.g, id[i], 0);
            else
                ds_gen_cancel(c.g, id[i]);
            for (uint32_t turn = 0; turn < round; turn++)
                take_some(c.g);
        }
        until_ended(c.g, 0, REQUESTS);
        for (uint32_t i = 0; i < REQUESTS; i++) {
            assert_true(answers[i].reason == DS_ENDED_CANCELED || answers[i].reason == wanted[i].reason);
            assert_memory_equal(answers[i].out, wanted[i].out, answers[i].n * sizeof *wanted[i].out);
        }
    }
    finish(&c);
}

static void roles_that_are_missing(void **state)
{
    server s[2];
    ds_remote *r[2];
    bool apart;
    ds_err err;

    (void)state;
    for (int role = 0; role < DS_CW_ROLES; role++) {
        for (int i = 0; i < 2; i++) {
            serve(&s[i], i, (ds_cw_role)role, 0);
            r[i] = ask(&s[i]);
        }
        if (role == DS_CW_MIXED) {
            assert_ok(ds_apart_check(r, 2, &apart, &err));
            assert_false(apart);
        } else {
            assert_refused(ds_apart_check(r, 2, &apart, &err), DS_E_ARG, role == DS_CW_PREFILL ? "none for decoding" : "none for prompts");
        }
        for (int i = 0; i < 2; i++) {
            ds_remote_close(r[i]);
            stop(&s[i]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tickets),
        cmocka_unit_test(parts),
        cmocka_unit_test(every_fault_at_every_part),
        cmocka_unit_test(nobody_is_there),
        cmocka_unit_test(goes_on_elsewhere),
        cmocka_unit_test(once_and_in_time),
        cmocka_unit_test(nothing_outlives_its_owner),
        cmocka_unit_test(the_first_engine_goes),
        cmocka_unit_test(answers_of_one_engine),
        cmocka_unit_test(engines_go),
        cmocka_unit_test(what_is_canceled),
        cmocka_unit_test(roles_that_are_missing),
    };

    return cmocka_run_group_tests(tests, make_wanted, remove_folder);
}
