/* Files in local directories: io_uring reads around the page cache and syncs all devices side by side. */
#include "kvstore/files_internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <liburing.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/file.h"
#include "kvstore/format.h"

enum { STORE_FILE_MAX_BYTES = 4096 };

typedef struct {
    ds_files base; /* first */
    uint32_t n;
    char *place[DS_SEG_MAX_DEVICES]; /* as given */
    char *name[DS_SEG_MAX_DEVICES];  /* of a device; borrowed from place */
    int dir[DS_SEG_MAX_DEVICES];     /* -1: missing */
    int lock[DS_SEG_MAX_DEVICES];    /* of its store.json */
    struct io_uring ring;            /* [writer] */
    bool has_ring;
} dirs;

static dirs *of(ds_files *f)
{
    return (dirs *)f;
}

static void file_name(char out[24], uint64_t segment)
{
    snprintf(out, 24, "%016" PRIx64 ".seg", segment);
}

/* ---- devices ---- */

static void close_dirs(ds_files *f)
{
    dirs *x = of(f);

    for (uint32_t d = 0; d < DS_SEG_MAX_DEVICES; d++) {
        if (x->lock[d] >= 0)
            close(x->lock[d]);
        if (x->dir[d] >= 0)
            close(x->dir[d]);
        free(x->place[d]);
    }
    if (x->has_ring)
        io_uring_queue_exit(&x->ring);
    free(x);
}

static uint64_t mute(ds_files *f) /* a disk answers or fails */
{
    (void)f;
    return 0;
}

static ds_rc store_path(char path[4096], const char *dir, ds_err *err)
{
    char label[120];

    if ((size_t)snprintf(path, 4096, "%s/store.json", dir) >= 4096)
        return ds_fail(err, DS_E_ARG, "%s: the path is too long", ds_file_label(label, sizeof label, dir));
    return DS_OK;
}

static ds_rc read_store(ds_files *f, uint32_t place, char **text, ds_err *err)
{
    char path[4096], label[120];
    struct stat st;
    size_t n;
    ds_rc rc = store_path(path, of(f)->place[place], err);

    *text = NULL;
    if (rc != DS_OK)
        return rc;
    if (lstat(path, &st) != 0)
        return errno == ENOENT ? DS_OK : ds_fail(err, DS_E_IO, "%s: %s", ds_file_label(label, sizeof label, path), strerror(errno));
    return ds_file_read(text, &n, path, STORE_FILE_MAX_BYTES, err);
}

static bool is_empty(ds_files *f, uint32_t place)
{
    DIR *d = opendir(of(f)->place[place]);
    bool empty = d != NULL;

    for (struct dirent *e; empty && (e = readdir(d));)
        empty = strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0 || strcmp(e->d_name, "lost+found") == 0;
    if (d)
        closedir(d);
    return empty;
}

static ds_rc write_store(const char *dir, const char *text, ds_err *err)
{
    char path[4096], label[120];
    int fd;
    ds_rc rc = store_path(path, dir, err);

    if (rc != DS_OK)
        return rc;
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return ds_fail(err, DS_E_IO, "%s: %s", ds_file_label(label, sizeof label, path), strerror(errno));
    rc = ds_file_write(fd, text, strlen(text), path, err);
    if (rc == DS_OK && fsync(fd) != 0)
        rc = ds_fail(err, DS_E_IO, "%s: %s", ds_file_label(label, sizeof label, path), strerror(errno));
    close(fd);
    if (rc != DS_OK)
        unlink(path);
    return rc;
}

static void detach(ds_files *f, uint32_t d)
{
    if (of(f)->dir[d] >= 0)
        unlinkat(of(f)->dir[d], "store.json", 0);
}

static ds_rc attach(ds_files *f, uint32_t place, uint32_t d, const char *text, ds_err *err)
{
    dirs *x = of(f);
    char label[120];
    int fd;
    ds_rc rc = DS_OK;

    x->name[d] = x->place[place];
    x->dir[d] = open(x->name[d], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (text && (rc = write_store(x->name[d], text, err)) != DS_OK)
        return rc;
    x->lock[d] = x->dir[d] < 0 ? -1 : openat(x->dir[d], "store.json", O_RDONLY | O_CLOEXEC);
    if (x->lock[d] < 0 || (text && fsync(x->dir[d]) != 0))
        rc = ds_fail(err, DS_E_IO, "%s: %s", ds_file_label(label, sizeof label, x->name[d]), strerror(errno));
    else if (flock(x->lock[d], LOCK_EX | LOCK_NB) != 0)
        rc = ds_fail(err, DS_E_AGAIN, "%s: another process has this store open", ds_file_label(label, sizeof label, x->name[d]));
    if (rc != DS_OK && text)
        detach(f, d);
    if (rc != DS_OK)
        return rc;
    fd = openat(x->dir[d], "store.json", O_RDONLY | O_CLOEXEC | O_DIRECT); /* some file systems can't */
    x->base.direct = x->base.direct && fd >= 0;
    if (fd >= 0)
        close(fd);
    return DS_OK;
}

static ds_rc list(ds_files *f, uint32_t d, bool (*each)(void *ctx, uint64_t segment), void *ctx, ds_err *err)
{
    int fd = openat(of(f)->dir[d], ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    char label[120];
    bool ok = true;

    if (!dir) {
        ds_rc rc = ds_fail(err, errno == ENOMEM ? DS_E_NOMEM : DS_E_IO, "%s: can't be read: %s",
                           ds_file_label(label, sizeof label, of(f)->name[d]), strerror(errno));
        if (fd >= 0)
            close(fd);
        return rc;
    }
    for (struct dirent *e; ok && (e = readdir(dir));)
        if (strlen(e->d_name) == 20 && strcmp(e->d_name + 16, ".seg") == 0 && strspn(e->d_name, "0123456789abcdef") == 16)
            ok = each(ctx, strtoull(e->d_name, NULL, 16));
    closedir(dir);
    return ok ? DS_OK : ds_fail(err, DS_E_NOMEM, "out of memory");
}

/* ---- writing ---- */

static int open_for(ds_files *f, uint32_t d, uint64_t segment, int flags)
{
    char name[24];

    file_name(name, segment);
    return openat(of(f)->dir[d], name, flags | O_CLOEXEC | O_NOFOLLOW, 0600);
}

static int create(ds_files *f, uint32_t d, uint64_t segment)
{
    return open_for(f, d, segment, O_WRONLY | O_CREAT | O_EXCL);
}

static int open_write(ds_files *f, uint32_t d, uint64_t segment)
{
    return open_for(f, d, segment, O_WRONLY);
}

static void unmake(ds_files *f, uint32_t d, int fd, uint64_t segment)
{
    char name[24];

    (void)fd;
    file_name(name, segment);
    unlinkat(of(f)->dir[d], name, 0);
}

static bool write_file(ds_files *f, uint32_t d, int fd, const uint8_t *p, size_t n, uint64_t at)
{
    (void)f;
    (void)d;
    while (n) {
        ssize_t w = pwrite(fd, p, n, (off_t)at);
        if (w < 0 && errno == EINTR)
            continue;
        if (w <= 0)
            return false;
        p += w;
        at += (uint64_t)w;
        n -= (size_t)w;
    }
    return true;
}

static bool named(ds_files *f, uint32_t d, int fd)
{
    (void)fd;
    return fsync(of(f)->dir[d]) == 0;
}

static bool cut(ds_files *f, uint32_t d, int fd, uint64_t size)
{
    (void)f;
    (void)d;
    return ftruncate(fd, (off_t)size) == 0;
}

static uint32_t sync_files(ds_files *f, const int *h, uint32_t n)
{
    dirs *x = of(f);
    uint32_t left = 0, bad = 0;

    for (uint32_t d = 0; d < n; d++)
        if (h[d] >= 0) {
            struct io_uring_sqe *q = io_uring_get_sqe(&x->ring); /* the ring has room for one a device */
            io_uring_prep_fsync(q, h[d], IORING_FSYNC_DATASYNC);
            io_uring_sqe_set_data64(q, d);
            left |= 1u << d;
        }
    while (left) {
        struct io_uring_cqe *c;
        int e = io_uring_submit_and_wait(&x->ring, 1);
        if (e < 0 && e != -EINTR && e != -EAGAIN && e != -EBUSY)
            return bad | left; /* the ring itself failed: nothing is known of these */
        while (left && io_uring_peek_cqe(&x->ring, &c) == 0) {
            uint32_t bit = 1u << io_uring_cqe_get_data64(c);
            if (c->res < 0)
                bad |= bit;
            io_uring_cqe_seen(&x->ring, c);
            left &= ~bit;
        }
    }
    return bad;
}

static void close_file(ds_files *f, uint32_t d, int fd)
{
    (void)f;
    (void)d;
    close(fd);
}

static void remove_file(ds_files *f, uint32_t d, uint64_t segment)
{
    char name[24];

    file_name(name, segment);
    unlinkat(of(f)->dir[d], name, 0);
}

/* ---- reading ---- */

static int open_read(ds_files *f, uint32_t d, uint64_t segment)
{
    return open_for(f, d, segment, O_RDONLY | (f->direct ? O_DIRECT : 0));
}

static bool size_of(ds_files *f, uint32_t d, int fd, uint64_t segment, uint64_t *bytes)
{
    struct stat st;

    (void)f;
    (void)d;
    (void)segment;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        return false;
    *bytes = (uint64_t)st.st_size;
    return true;
}

static bool read_file(ds_files *f, uint32_t d, int fd, uint64_t segment, uint8_t *dst, size_t n, uint64_t at)
{
    (void)f;
    (void)d;
    (void)segment;
    while (n) {
        ssize_t r = pread(fd, dst, n, (off_t)at);
        if (r < 0 && errno == EINTR)
            continue;
        if (r <= 0)
            return false;
        dst += r;
        at += (uint64_t)r;
        n -= (size_t)r;
    }
    return true;
}

struct ds_files_queue {
    struct io_uring ring;
};

static ds_rc queue_create(ds_files_queue **out, ds_files *f, ds_err *err)
{
    ds_files_queue *q = malloc(sizeof *q);
    int e;

    (void)f;
    *out = NULL;
    if (!q)
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    e = io_uring_queue_init(2 * DS_SEG_MAX_DEVICES, &q->ring, 0);
    if (e) {
        free(q);
        return ds_fail(err, DS_E_IO, "io_uring: %s", strerror(-e));
    }
    *out = q;
    return DS_OK;
}

static void queue_destroy(ds_files_queue *q)
{
    io_uring_queue_exit(&q->ring);
    free(q);
}

static void ask(ds_files_queue *q, uint32_t d, int fd, uint64_t segment, uint8_t *dst, size_t n, uint64_t at, size_t ahead)
{
    struct io_uring_sqe *s = io_uring_get_sqe(&q->ring); /* room for two a device, and each has at most one in flight */

    (void)segment;
    (void)ahead;
    io_uring_prep_read(s, fd, dst, (unsigned)n, at);
    io_uring_sqe_set_data64(s, d);
}

static int answer(ds_files_queue *q, uint64_t until_ns, int *res)
{
    struct io_uring_cqe *c = NULL;
    int d;

    io_uring_submit(&q->ring);
    while (io_uring_peek_cqe(&q->ring, &c) != 0) {
        uint64_t now = ds_now_ns(), left = until_ns > now ? until_ns - now : 0;
        struct __kernel_timespec t = { .tv_sec = (long long)(left / 1000000000), .tv_nsec = (long long)(left % 1000000000) };
        if (left == 0)
            return -1;
        if (io_uring_wait_cqe_timeout(&q->ring, &c, &t) == 0)
            break;
    }
    d = (int)io_uring_cqe_get_data64(c);
    *res = c->res;
    io_uring_cqe_seen(&q->ring, c);
    return d;
}

static void hurry(ds_files_queue *q, uint32_t d) /* what a disk was asked for it does */
{
    (void)q;
    (void)d;
}

static const ds_files_ops ops = { .close = close_dirs,
                                  .mute = mute,
                                  .read_store = read_store,
                                  .is_empty = is_empty,
                                  .attach = attach,
                                  .detach = detach,
                                  .list = list,
                                  .create = create,
                                  .open_write = open_write,
                                  .unmake = unmake,
                                  .write = write_file,
                                  .named = named,
                                  .cut = cut,
                                  .sync = sync_files,
                                  .close_write = close_file,
                                  .remove = remove_file,
                                  .open_read = open_read,
                                  .close_read = close_file,
                                  .size = size_of,
                                  .read = read_file,
                                  .queue_create = queue_create,
                                  .queue_destroy = queue_destroy,
                                  .ask = ask,
                                  .answer = answer,
                                  .hurry = hurry };

ds_rc ds_files_dirs(ds_files **out, const char *const *places, uint32_t n, ds_err *err)
{
    dirs *x = calloc(1, sizeof *x);
    int e;

    *out = NULL;
    if (!x)
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    x->base = (ds_files){ .ops = &ops, .align = DS_SEG_ALIGN, .direct = true };
    x->n = n;
    for (uint32_t d = 0; d < DS_SEG_MAX_DEVICES; d++)
        x->dir[d] = x->lock[d] = -1;
    for (uint32_t i = 0; i < n; i++)
        if (!(x->place[i] = strdup(places[i]))) {
            close_dirs(&x->base);
            return ds_fail(err, DS_E_NOMEM, "out of memory");
        }
    e = io_uring_queue_init(2 * DS_SEG_MAX_DEVICES, &x->ring, 0);
    if (e) {
        close_dirs(&x->base);
        return ds_fail(err, DS_E_IO, "io_uring: %s", strerror(-e));
    }
    x->has_ring = true;
    *out = &x->base;
    return DS_OK;
}
