/* The coord's table and its journal, on a disk that stops at every step, forgets what wasn't synced, and tears
 * writes. */
#include "test.h"

#include "coord/journal.h"
#include "coord/state.h"
#include "fault.h"

/* ---- a disk in memory ---- */

enum { FILES = 8, BYTES = 1 << 16 };

typedef struct {
    bool used;
    uint8_t now[BYTES], safe[BYTES];
    size_t n_now, n_safe;
} file;

typedef struct {
    char name[40];
    int file; /* -1: none */
} entry;

typedef struct {
    file files[FILES];
    entry now[FILES], safe[FILES];
    unsigned steps, stop_at; /* 0: never */
    bool stopped;
} disk;

static disk the_disk;

static entry *entry_of(entry *e, const char *name)
{
    for (int i = 0; i < FILES; i++)
        if (e[i].name[0] && strcmp(e[i].name, name) == 0)
            return &e[i];
    return NULL;
}

static file *file_of(disk *d, const char *name, bool make)
{
    entry *e = entry_of(d->now, name);

    if (!e && make)
        for (int i = 0; i < FILES && !e; i++)
            if (!d->now[i].name[0]) {
                e = &d->now[i];
                snprintf(e->name, sizeof e->name, "%s", name);
                for (e->file = 0; d->files[e->file].used; e->file++)
                    assert_true(e->file + 1 < FILES);
                d->files[e->file] = (file){ .used = true };
            }
    return e ? &d->files[e->file] : NULL;
}

/* True: the disk is off from here on. */
static bool stops(disk *d)
{
    d->stopped = d->stopped || ++d->steps == d->stop_at;
    return d->stopped;
}

static ds_rc off(ds_err *err)
{
    return ds_fail(err, DS_E_IO, "the disk is off");
}

static ds_rc mem_read(void *ctx, const char *name, char **out, size_t *n, ds_err *err)
{
    file *f = file_of(ctx, name, false);

    *out = NULL;
    if (stops(ctx))
        return off(err);
    if (!f)
        return DS_OK;
    *out = malloc(f->n_now + 1);
    if (!*out)
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    memcpy(*out, f->now, f->n_now);
    *n = f->n_now;
    return DS_OK;
}

static ds_rc mem_write(void *ctx, const char *name, uint64_t at, const void *p, size_t n, ds_err *err)
{
    disk *d = ctx;
    bool stop = stops(d), torn = stop && d->steps == d->stop_at;
    file *f;

    if (stop && !torn)
        return off(err);
    f = file_of(d, name, true);
    if (torn) { /* half of it comes to the file */
        n /= 2;
        d->steps++;
    }
    assert_true(at <= f->n_now && at + n <= BYTES);
    memcpy(f->now + at, p, n);
    f->n_now = at + n > f->n_now ? at + n : f->n_now;
    return torn ? off(err) : DS_OK;
}

static ds_rc mem_truncate(void *ctx, const char *name, uint64_t n, ds_err *err)
{
    if (stops(ctx))
        return off(err);
    file_of(ctx, name, false)->n_now = n;
    return DS_OK;
}

static ds_rc mem_sync(void *ctx, const char *name, ds_err *err)
{
    file *f = file_of(ctx, name, false);

    if (stops(ctx))
        return off(err);
    memcpy(f->safe, f->now, f->n_now);
    f->n_safe = f->n_now;
    return DS_OK;
}

static ds_rc mem_rename(void *ctx, const char *from, const char *to, ds_err *err)
{
    disk *d = ctx;
    entry *e, *old;

    if (stops(ctx))
        return off(err);
    old = entry_of(d->now, to);
    if (old)
        old->name[0] = '\0';
    e = entry_of(d->now, from);
    snprintf(e->name, sizeof e->name, "%s", to);
    return DS_OK;
}

static ds_rc mem_sync_names(void *ctx, ds_err *err)
{
    disk *d = ctx;

    if (stops(ctx))
        return off(err);
    memcpy(d->safe, d->now, sizeof d->safe);
    return DS_OK;
}

static const ds_disk mem = { mem_read, mem_write, mem_truncate, mem_sync, mem_rename, mem_sync_names, &the_disk };

/* What is there after the machine came up again. names, content: whether what wasn't synced is there; of content half
 * of it may be. */
static void restart(disk *d, bool names, int content)
{
    if (!names)
        memcpy(d->now, d->safe, sizeof d->now);
    for (int i = 0; i < FILES; i++) {
        file *f = &d->files[i];
        size_t n = content == 2 ? f->n_now : content == 1 ? f->n_safe + (f->n_now > f->n_safe ? (f->n_now - f->n_safe) / 2 : 0) : f->n_safe;
        if (content == 0)
            memcpy(f->now, f->safe, f->n_safe);
        f->n_now = n;
        memcpy(f->safe, f->now, n);
        f->n_safe = n;
    }
    memcpy(d->safe, d->now, sizeof d->safe);
    d->steps = d->stop_at = 0;
    d->stopped = false;
}

/* ---- a table on it ---- */

static ds_coord_member member(const char *name, uint64_t instance, ds_instance_state state)
{
    ds_coord_member m = { .role = "mixed", .address = "unix:/e", .version = "1", .instance = instance, .state = state };

    snprintf(m.name, sizeof m.name, "%s", name);
    return m;
}

static const struct {
    ds_coord_op_kind kind;
    const char *name;
    uint64_t instance;
    ds_instance_state state;
    bool compact; /* first */
} script[] = {
    { DS_COORD_ANNOUNCE, "e1", 11, DS_INSTANCE_READY, false },
    { DS_COORD_ANNOUNCE, "e0", 10, DS_INSTANCE_READY, false },
    { DS_COORD_DRAIN, "e0", 10, 0, false },
    { DS_COORD_ANNOUNCE, "e0", 10, DS_INSTANCE_GRACE, true },
    { DS_COORD_REMOVE, "e1", 11, 0, false },
    { DS_COORD_ANNOUNCE, "e1", 12, DS_INSTANCE_READY, true },
    { DS_COORD_REMOVE, "e0", 10, 0, false },
    { DS_COORD_ANNOUNCE, "e2", 13, DS_INSTANCE_READY, false },
};
enum { SCRIPT = sizeof script / sizeof script[0] };

static ds_coord_op op_of(unsigned i)
{
    return (ds_coord_op){ .kind = script[i].kind, .m = member(script[i].name, script[i].instance, script[i].state) };
}

static ds_rc reader(void *ctx, bool first, const uint8_t *p, size_t n, ds_err *err)
{
    return first ? ds_coord_read_state(ctx, p, n, err) : ds_coord_read_op(ctx, p, n, err);
}

static ds_rc open_table(ds_journal **j, ds_coord_state *s, ds_err *err)
{
    ds_coord_state empty = { 0 };
    uint64_t cut;
    ds_buf b = { 0 };
    ds_rc rc;

    ds_coord_put_state(&b, &empty);
    rc = b.oom ? DS_E_NOMEM : ds_journal_open(j, &mem, "j", b.p, b.len, reader, s, &cut, err);
    ds_buf_free(&b);
    return rc;
}

/* Runs the script; how many of it were taken. */
static unsigned run(ds_journal *j, ds_coord_state *s)
{
    unsigned done = 0;

    for (; done < SCRIPT; done++) {
        ds_coord_op op = op_of(done);
        ds_buf b = { 0 };
        ds_rc rc = DS_OK;
        if (script[done].compact) {
            ds_coord_put_state(&b, s);
            rc = ds_journal_compact(j, b.p, b.len, NULL);
            ds_buf_clear(&b);
        }
        ds_coord_put_op(&b, s->revision + 1, &op);
        if (rc == DS_OK)
            rc = ds_journal_append(j, b.p, b.len, NULL);
        ds_buf_free(&b);
        if (rc != DS_OK)
            break;
        assert_int_equal(ds_coord_state_apply(s, &op, NULL), DS_OK);
    }
    return done;
}

/* The table after the first n of the script. */
static void assert_is_prefix(const ds_coord_state *s, unsigned n)
{
    ds_coord_state want = { 0 };
    ds_buf a = { 0 }, b = { 0 };

    for (unsigned i = 0; i < n; i++) {
        ds_coord_op op = op_of(i);
        assert_int_equal(ds_coord_state_apply(&want, &op, NULL), DS_OK);
    }
    ds_coord_put_state(&a, s);
    ds_coord_put_state(&b, &want);
    assert_int_equal(a.len, b.len);
    assert_memory_equal(a.p, b.p, a.len);
    ds_buf_free(&a);
    ds_buf_free(&b);
    ds_coord_state_fini(&want);
}

static void a_crash_at_every_step_loses_nothing_that_was_said_to_be_there(void **state)
{
    unsigned at = 1;

    (void)state;
    for (bool stopped = true; stopped; at++) {
        for (int how = 0; how < 6; how++) {
            ds_coord_state s = { 0 }, after = { 0 };
            ds_journal *j = NULL;
            ds_err err = { 0 };
            unsigned done = 0;
            memset(&the_disk, 0, sizeof the_disk);
            the_disk.stop_at = at;
            if (open_table(&j, &s, &err) == DS_OK)
                done = run(j, &s);
            stopped = the_disk.stopped;
            ds_journal_close(j);
            ds_coord_state_fini(&s);
            restart(&the_disk, how % 2, how / 2);
            assert_ok(open_table(&j, &after, &err));
            /* the one that was on its way may be there too */
            assert_true(after.revision == done || after.revision == done + 1);
            assert_is_prefix(&after, (unsigned)after.revision);
            /* and the rest of it can be had */
            ds_coord_member last = member("z", 99, DS_INSTANCE_READY);
            ds_coord_op op = { .kind = DS_COORD_ANNOUNCE, .m = last };
            ds_buf b = { 0 };
            ds_coord_put_op(&b, after.revision + 1, &op);
            assert_ok(ds_journal_append(j, b.p, b.len, &err));
            ds_buf_free(&b);
            ds_journal_close(j);
            ds_coord_state_fini(&after);
            restart(&the_disk, false, 0);
            assert_ok(open_table(&j, &after, &err));
            assert_true(ds_coord_state_find(&after, "z"));
            ds_journal_close(j);
            ds_coord_state_fini(&after);
        }
    }
    assert_true(at > 30);
}

/* A disk that fails once and goes on: what failed isn't there, what follows is. */
static void an_error_leaves_no_trace(void **state)
{
    (void)state;
    for (unsigned at = 6; at < 60; at++) {
        ds_coord_state s = { 0 }, after = { 0 };
        ds_journal *j;
        ds_err err = { 0 };
        unsigned done;
        memset(&the_disk, 0, sizeof the_disk);
        assert_ok(open_table(&j, &s, &err));
        the_disk.stop_at = at;
        done = run(j, &s);
        the_disk.stopped = false; /* it works again, but nothing could be undone: the journal takes no more */
        if (done < SCRIPT) {
            ds_coord_op op = op_of(done);
            ds_buf b = { 0 };
            ds_coord_put_op(&b, s.revision + 1, &op);
            ds_rc rc = ds_journal_append(j, b.p, b.len, &err);
            if (rc == DS_OK)
                ds_coord_state_apply(&s, &op, NULL);
            ds_buf_free(&b);
        }
        restart(&the_disk, true, 2);
        ds_journal_close(j);
        assert_ok(open_table(&j, &after, &err));
        assert_true(after.revision == s.revision || after.revision == s.revision + 1);
        assert_is_prefix(&after, (unsigned)after.revision);
        ds_journal_close(j);
        ds_coord_state_fini(&s);
        ds_coord_state_fini(&after);
    }
}

static void what_is_no_journal_is_refused(void **state)
{
    ds_coord_state s = { 0 };
    ds_journal *j;
    ds_err err = { 0 };
    file *f;

    (void)state;
    memset(&the_disk, 0, sizeof the_disk);
    assert_ok(mem_write(&the_disk, "j", 0, "something else", 14, &err));
    assert_refused(open_table(&j, &s, &err), DS_E_FORMAT, "no journal");
    memset(&the_disk, 0, sizeof the_disk);
    assert_ok(open_table(&j, &s, &err));
    ds_journal_close(j);
    f = file_of(&the_disk, "j", false);
    f->now[18] ^= 1; /* the snapshot */
    assert_refused(open_table(&j, &s, &err), DS_E_FORMAT, "snapshot is damaged");
    ds_coord_state_fini(&s);
}

static void bounded(void **state)
{
    static uint8_t big[DS_JOURNAL_MAX_RECORD + 1];
    ds_coord_state s = { 0 };
    ds_journal *j;
    ds_err err = { 0 };
    ds_coord_op op = { .kind = DS_COORD_ANNOUNCE };

    (void)state;
    memset(&the_disk, 0, sizeof the_disk);
    assert_ok(open_table(&j, &s, &err));
    assert_refused(ds_journal_append(j, big, sizeof big, &err), DS_E_ARG, "at most");
    ds_journal_close(j);
    for (unsigned i = 0; i <= DS_COORD_MAX_MEMBERS; i++) {
        char name[16];
        snprintf(name, sizeof name, "m%u", i);
        op.m = member(name, i + 1, DS_INSTANCE_READY);
        if (i < DS_COORD_MAX_MEMBERS)
            assert_ok(ds_coord_state_apply(&s, &op, &err));
        else
            assert_refused(ds_coord_state_apply(&s, &op, &err), DS_E_AGAIN, "no room");
    }
    ds_coord_state_fini(&s);
}

static void the_table(void **state)
{
    ds_coord_state s = { 0 };
    ds_err err = { 0 };
    ds_coord_op op = { .kind = DS_COORD_ANNOUNCE, .m = member("e", 5, DS_INSTANCE_READY) };

    (void)state;
    assert_ok(ds_coord_state_apply(&s, &op, &err));
    assert_int_equal(ds_coord_state_find(&s, "e")->epoch, 1);
    assert_int_equal(ds_coord_state_apply(&s, &op, &err), DS_E_CANCELED); /* nothing new */
    op.m.state = DS_INSTANCE_GRACE;
    assert_ok(ds_coord_state_apply(&s, &op, &err));
    assert_int_equal(ds_coord_state_find(&s, "e")->epoch, 1); /* the same process */
    ds_coord_op drain = { .kind = DS_COORD_DRAIN, .m = op.m };
    assert_ok(ds_coord_state_apply(&s, &drain, &err));
    assert_int_equal(ds_coord_state_apply(&s, &drain, &err), DS_E_CANCELED);
    assert_true(ds_coord_state_find(&s, "e")->drain);
    op.m = member("e", 6, DS_INSTANCE_READY);
    assert_ok(ds_coord_state_apply(&s, &op, &err)); /* another process of that name: later, and not wanted away */
    assert_true(ds_coord_state_find(&s, "e")->epoch == 2 && !ds_coord_state_find(&s, "e")->drain);
    assert_int_equal(ds_coord_state_apply(&s, &drain, &err), DS_E_CANCELED); /* that was the other one */
    op.m = member("f", 7, DS_INSTANCE_READY);
    op.m.model[0] = 1;
    assert_ok(ds_coord_state_apply(&s, &op, &err));
    op.m = member("g", 8, DS_INSTANCE_READY);
    op.m.model[0] = 2;
    assert_refused(ds_coord_state_apply(&s, &op, &err), DS_E_ARG, "g has another model (02000000…) than f (01000000…)");
    op.m = member("bad name", 9, DS_INSTANCE_READY);
    assert_refused(ds_coord_state_apply(&s, &op, &err), DS_E_ARG, "letters, digits");
    assert_int_equal(s.revision, 5);
    ds_coord_state_fini(&s);
}

static ds_rc a_life(void *ctx, ds_err *err)
{
    ds_coord_state s = { 0 };
    ds_journal *j = NULL;
    ds_rc rc;

    (void)ctx;
    memset(&the_disk, 0, sizeof the_disk);
    rc = open_table(&j, &s, err);
    for (unsigned i = 0; i < SCRIPT && rc == DS_OK; i++) {
        ds_coord_op op = op_of(i);
        ds_buf b = { 0 };
        ds_coord_put_op(&b, s.revision + 1, &op);
        rc = b.oom ? ds_fail(err, DS_E_NOMEM, "out of memory") : ds_journal_append(j, b.p, b.len, err);
        ds_buf_free(&b);
        if (rc == DS_OK)
            rc = ds_coord_state_apply(&s, &op, err);
    }
    ds_journal_close(j);
    ds_coord_state_fini(&s);
    return rc == DS_E_NOMEM && err && !err->msg[0] ? ds_fail(err, DS_E_NOMEM, "out of memory") : rc;
}

static void out_of_memory_at_every_allocation(void **state)
{
    (void)state;
    assert_true(fault_every_allocation(a_life, NULL) > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_crash_at_every_step_loses_nothing_that_was_said_to_be_there),
        cmocka_unit_test(an_error_leaves_no_trace),
        cmocka_unit_test(what_is_no_journal_is_refused),
        cmocka_unit_test(bounded),
        cmocka_unit_test(the_table),
        cmocka_unit_test(out_of_memory_at_every_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
