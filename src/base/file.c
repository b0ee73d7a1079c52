#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *ds_file_label(char *buf, size_t cap, const char *path)
{
    size_t n = strlen(path);
    const char *slash = n < 90 ? NULL : strrchr(path, '/');

    return slash && slash[1] ? ds_quote(buf, cap, slash + 1, strlen(slash + 1)) : ds_quote(buf, cap, path, n);
}

ds_rc ds_file_open(int *fd, uint64_t *bytes, const char *path, ds_err *err)
{
    struct stat st;
    char q[112];

    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe without a writer would block */
    if (*fd == -1)
        return ds_fail(err, DS_E_IO, "%s: %s", ds_file_label(q, sizeof q, path), strerror(errno));
    if (fstat(*fd, &st) == 0 && S_ISREG(st.st_mode)) {
        *bytes = (uint64_t)st.st_size;
        return DS_OK;
    }
    close(*fd);
    *fd = -1;
    return ds_fail(err, DS_E_IO, "%s: is not a regular file", ds_file_label(q, sizeof q, path));
}

ds_rc ds_file_pread(int fd, void *dst, size_t n, uint64_t offset, const char *path, ds_err *err)
{
    char q[112];
    char *p = dst;
    while (n) {
        ssize_t got = pread(fd, p, n, (off_t)offset);
        if (got == -1 && errno == EINTR)
            continue;
        if (got == -1)
            return ds_fail(err, DS_E_IO, "%s: %s", ds_file_label(q, sizeof q, path), strerror(errno));
        if (got == 0)
            return ds_fail(err, DS_E_FORMAT, "%s: ends %zu bytes too early", ds_file_label(q, sizeof q, path), n);
        p += got;
        n -= (size_t)got;
        offset += (uint64_t)got;
    }
    return DS_OK;
}

ds_rc ds_file_write(int fd, const void *src, size_t n, const char *path, ds_err *err)
{
    char q[112];
    const char *p = src;
    while (n) {
        ssize_t put = write(fd, p, n);
        if (put == -1 && errno == EINTR)
            continue;
        if (put == -1)
            return ds_fail(err, DS_E_IO, "%s: %s", ds_file_label(q, sizeof q, path), strerror(errno));
        p += put;
        n -= (size_t)put;
    }
    return DS_OK;
}

ds_rc ds_file_read(char **out, size_t *n, const char *path, size_t max_bytes, ds_err *err)
{
    int fd;
    uint64_t bytes;
    char q[112], *text;
    ds_rc rc;

    *out = NULL;
    *n = 0;
    rc = ds_file_open(&fd, &bytes, path, err);
    if (rc != DS_OK)
        return rc;
    if (bytes > max_bytes) {
        close(fd);
        return ds_fail(err, DS_E_FORMAT, "%s: is %llu bytes long; at most %zu are allowed", ds_file_label(q, sizeof q, path),
                       (unsigned long long)bytes, max_bytes);
    }
    text = malloc((size_t)bytes + 1);
    if (!text) {
        close(fd);
        return ds_fail(err, DS_E_NOMEM, "%s: out of memory", ds_file_label(q, sizeof q, path));
    }
    rc = ds_file_pread(fd, text, (size_t)bytes, 0, path, err);
    close(fd);
    if (rc != DS_OK) {
        free(text);
        return rc;
    }
    text[bytes] = '\0';
    *out = text;
    *n = (size_t)bytes;
    return DS_OK;
}
