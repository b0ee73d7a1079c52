/* Files with pictures. */
#include "cli/sim_cli.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "sim/pages.h"

/* Whole or not at all. */
static ds_rc write_file(const char *path, const ds_buf *b, ds_err *err)
{
    char temporary[4096];
    ds_rc rc;
    int fd;

    if (b->oom)
        return ds_fail(err, DS_E_NOMEM, "%s: out of memory", path);
    if (snprintf(temporary, sizeof temporary, "%s.%ld.new", path, (long)getpid()) >= (int)sizeof temporary)
        return ds_fail(err, DS_E_ARG, "%.60s...: the name is too long", path);
    fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd == -1)
        return ds_fail(err, DS_E_IO, "%s: %s", path, strerror(errno));
    rc = ds_file_write(fd, b->p, b->len, path, err);
    if (close(fd) == -1 && rc == DS_OK)
        rc = ds_fail(err, DS_E_IO, "%s: %s", path, strerror(errno));
    if (rc == DS_OK && rename(temporary, path) == -1)
        rc = ds_fail(err, DS_E_IO, "%s: %s", path, strerror(errno));
    if (rc != DS_OK)
        unlink(temporary);
    return rc;
}

static ds_rc write_svgs(const char *dir, const ds_sim_picture *pictures, uint32_t n, ds_err *err)
{
    ds_rc rc = DS_OK;

    if (mkdir(dir, 0777) == -1 && errno != EEXIST)
        return ds_fail(err, DS_E_IO, "%s: %s", dir, strerror(errno));
    for (uint32_t i = 0; i < n && rc == DS_OK; i++) {
        char path[4000];
        if (snprintf(path, sizeof path, "%s/%s.svg", dir, pictures[i].name) >= (int)sizeof path)
            return ds_fail(err, DS_E_ARG, "%.60s...: the name is too long", dir);
        rc = write_file(path, &pictures[i].svg, err);
    }
    return rc;
}

ds_rc ds_cli_sim_draw(const char *svg, const char *html, const char *path, const ds_sim_plan *plan, const ds_sim_result *result,
                      const char *report, ds_err *err)
{
    const char *slash = strrchr(path, '/');
    ds_sim_picture pictures[DS_SIM_PICTURES];
    ds_sim_sweeps *sweeps = malloc(sizeof *sweeps);
    ds_buf page = { 0 };
    uint32_t n = 0;
    ds_rc rc = sweeps ? ds_sim_sweep(plan, sweeps, err) : ds_fail(err, DS_E_NOMEM, "out of memory");

    if (rc == DS_OK)
        n = ds_sim_pictures(pictures, plan, result, sweeps);
    for (uint32_t i = 0; i < n && rc == DS_OK; i++)
        if (pictures[i].svg.oom)
            rc = ds_fail(err, DS_E_NOMEM, "out of memory");
    if (rc == DS_OK && html) {
        ds_sim_page(&page, slash ? slash + 1 : path, report, pictures, n);
        rc = write_file(html, &page, err);
    }
    if (rc == DS_OK && svg)
        rc = write_svgs(svg, pictures, n, err);
    for (uint32_t i = 0; i < n; i++)
        ds_buf_free(&pictures[i].svg);
    ds_buf_free(&page);
    free(sweeps);
    return rc;
}
