/* The coord's bytes: a journal as a file, a table and an operation as messages have them. What is read is written back
 * the same; what isn't is an answer that is documented. A journal that was read takes one more record, and is there
 * again with it. */
#include <stdlib.h>
#include <string.h>

#include "coord/journal.h"
#include "coord/state.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int ok)
{
    if (!ok)
        __builtin_trap();
}

/* A disk of one file. */
typedef struct {
    uint8_t *p;
    size_t n;
} file;

static ds_rc f_read(void *ctx, const char *name, char **out, size_t *n, ds_err *err)
{
    file *f = ctx;

    (void)name;
    (void)err;
    *out = malloc(f->n + 1);
    must(*out != NULL);
    if (f->n)
        memcpy(*out, f->p, f->n);
    *n = f->n;
    return DS_OK;
}

static ds_rc f_write(void *ctx, const char *name, uint64_t at, const void *p, size_t n, ds_err *err)
{
    file *f = ctx;

    (void)name;
    (void)err;
    must(at <= f->n);
    if (at + n > f->n) {
        f->p = realloc(f->p, at + n);
        must(f->p != NULL);
        f->n = at + n;
    }
    memcpy(f->p + at, p, n);
    return DS_OK;
}

static ds_rc f_truncate(void *ctx, const char *name, uint64_t n, ds_err *err)
{
    (void)name;
    (void)err;
    must(n <= ((file *)ctx)->n);
    ((file *)ctx)->n = n;
    return DS_OK;
}

static ds_rc f_sync(void *ctx, const char *name, ds_err *err)
{
    (void)ctx;
    (void)name;
    (void)err;
    return DS_OK;
}

static ds_rc f_rename(void *ctx, const char *from, const char *to, ds_err *err)
{
    (void)to;
    return f_sync(ctx, from, err);
}

static ds_rc f_sync_names(void *ctx, ds_err *err)
{
    return f_sync(ctx, "", err);
}

static ds_rc reader(void *ctx, bool first, const uint8_t *p, size_t n, ds_err *err)
{
    return first ? ds_coord_read_state(ctx, p, n, err) : ds_coord_read_op(ctx, p, n, err);
}

static void check_table(const ds_coord_state *s)
{
    ds_coord_state again = { 0 };
    ds_buf b = { 0 }, c = { 0 };

    ds_coord_put_state(&b, s);
    must(ds_coord_read_state(&again, (const uint8_t *)b.p, b.len, NULL) == DS_OK);
    ds_coord_put_state(&c, &again);
    must(b.len == c.len && memcmp(b.p, c.p, b.len) == 0);
    ds_buf_free(&b);
    ds_buf_free(&c);
    ds_coord_state_fini(&again);
}

static void try_journal(const uint8_t *data, size_t size)
{
    file f = { malloc(size + 1), size };
    const ds_disk disk = { f_read, f_write, f_truncate, f_sync, f_rename, f_sync_names, &f };
    ds_coord_op op = { .kind = DS_COORD_ANNOUNCE, .m = { .name = "late", .role = "entry", .instance = 77 } };
    ds_coord_state s = { 0 }, again = { 0 };
    ds_journal *j;
    uint64_t cut;
    ds_err err = { 0 };
    ds_buf b = { 0 };
    ds_rc rc;

    must(f.p != NULL);
    memcpy(f.p, data, size);
    rc = ds_journal_open(&j, &disk, "j", "", 0, reader, &s, &cut, &err);
    must(rc == DS_OK || (rc == DS_E_FORMAT && err.msg[0]));
    if (rc == DS_OK) {
        check_table(&s);
        if (ds_coord_state_may(&s, &op, NULL) == DS_OK && s.revision < UINT64_MAX) {
            ds_coord_put_op(&b, s.revision + 1, &op);
            must(ds_journal_append(j, b.p, b.len, NULL) == DS_OK && ds_coord_state_apply(&s, &op, NULL) == DS_OK);
        }
        ds_journal_close(j);
        must(ds_journal_open(&j, &disk, "j", "", 0, reader, &again, &cut, NULL) == DS_OK && cut == 0);
        must(again.revision == s.revision && again.n == s.n && again.epoch == s.epoch);
        ds_journal_close(j);
    }
    ds_buf_free(&b);
    ds_coord_state_fini(&s);
    ds_coord_state_fini(&again);
    free(f.p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ds_coord_state s = { 0 };
    ds_rc rc;

    if (size == 0)
        return 0;
    switch (data[0] % 3) {
    case 0:
        rc = ds_coord_read_state(&s, data + 1, size - 1, NULL);
        must(rc == DS_OK || rc == DS_E_FORMAT);
        check_table(&s);
        break;
    case 1:
        rc = ds_coord_read_op(&s, data + 1, size - 1, NULL);
        must((rc == DS_OK || rc == DS_E_FORMAT) && s.n <= 1);
        check_table(&s);
        break;
    default:
        try_journal(data + 1, size - 1);
    }
    ds_coord_state_fini(&s);
    return 0;
}
