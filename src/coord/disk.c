/* A directory as a disk (coord/journal.h). */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "coord/journal.h"

static ds_rc failed(const ds_disk_dir *d, const char *name, ds_err *err)
{
    return ds_fail(err, DS_E_IO, "%s/%s: %s", d->path, name, strerror(errno));
}

static ds_rc dir_read(void *ctx, const char *name, char **out, size_t *n, ds_err *err)
{
    const ds_disk_dir *d = ctx;
    int fd = openat(d->fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    struct stat st;
    ds_rc rc;

    *out = NULL;
    *n = 0;
    if (fd == -1)
        return errno == ENOENT ? DS_OK : failed(d, name, err);
    if (fstat(fd, &st) == -1)
        rc = failed(d, name, err);
    else if (!S_ISREG(st.st_mode) || st.st_size > DS_JOURNAL_MAX_FILE)
        rc = ds_fail(err, DS_E_FORMAT, "%s/%s: no file of at most %d bytes", d->path, name, DS_JOURNAL_MAX_FILE);
    else if (!(*out = malloc((size_t)st.st_size + 1)))
        rc = ds_fail(err, DS_E_NOMEM, "%s/%s: out of memory", d->path, name);
    else
        rc = ds_file_pread(fd, *out, (size_t)st.st_size, 0, name, err);
    close(fd);
    if (rc == DS_OK) {
        *n = (size_t)st.st_size;
        return DS_OK;
    }
    free(*out);
    *out = NULL;
    return rc;
}

static ds_rc dir_write(void *ctx, const char *name, uint64_t at, const void *p, size_t n, ds_err *err)
{
    const ds_disk_dir *d = ctx;
    int fd = openat(d->fd, name, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    ds_rc rc = DS_OK;

    if (fd == -1 || lseek(fd, (off_t)at, SEEK_SET) == -1)
        rc = failed(d, name, err);
    else
        rc = ds_file_write(fd, p, n, name, err);
    if (fd != -1)
        close(fd);
    return rc;
}

static ds_rc dir_truncate(void *ctx, const char *name, uint64_t n, ds_err *err)
{
    const ds_disk_dir *d = ctx;
    int fd = openat(d->fd, name, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
    ds_rc rc = fd == -1 || ftruncate(fd, (off_t)n) == -1 ? failed(d, name, err) : DS_OK;

    if (fd != -1)
        close(fd);
    return rc;
}

static ds_rc dir_sync(void *ctx, const char *name, ds_err *err)
{
    const ds_disk_dir *d = ctx;
    int fd = openat(d->fd, name, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
    ds_rc rc = fd == -1 || fsync(fd) == -1 ? failed(d, name, err) : DS_OK;

    if (fd != -1)
        close(fd);
    return rc;
}

static ds_rc dir_rename(void *ctx, const char *from, const char *to, ds_err *err)
{
    const ds_disk_dir *d = ctx;

    return renameat(d->fd, from, d->fd, to) == -1 ? failed(d, to, err) : DS_OK;
}

static ds_rc dir_sync_names(void *ctx, ds_err *err)
{
    const ds_disk_dir *d = ctx;

    return fsync(d->fd) == -1 ? failed(d, ".", err) : DS_OK;
}

ds_rc ds_disk_dir_open(ds_disk *out, ds_disk_dir *d, const char *path, ds_err *err)
{
    snprintf(d->path, sizeof d->path, "%s", path);
    if (mkdir(path, 0700) == -1 && errno != EEXIST)
        d->fd = -1;
    else
        d->fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    *out = (ds_disk){ .read = dir_read,
                      .write = dir_write,
                      .truncate = dir_truncate,
                      .sync = dir_sync,
                      .rename = dir_rename,
                      .sync_names = dir_sync_names,
                      .ctx = d };
    return d->fd == -1 ? ds_fail(err, DS_E_IO, "%.200s: %s", path, strerror(errno)) : DS_OK;
}

void ds_disk_dir_close(ds_disk_dir *d)
{
    if (d->fd != -1)
        close(d->fd);
    d->fd = -1;
}
