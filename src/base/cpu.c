/* Which CPUs this process may use: its affinity mask, and the quota of its control groups (version 2, or version 1's
 * cpu controller). */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/pool.h"
#include "base/pool_internal.h"

enum { CPUS_MAX = 1 << 16, PATH_BYTES = 1024 };

/* *set: the affinity mask, of *bytes; CPU_FREE() it. */
static ds_rc read_mask(cpu_set_t **set, size_t *bytes, ds_err *err)
{
    for (size_t most = 1024; most <= CPUS_MAX; most *= 2) { /* the kernel refuses a mask that is shorter than its own */
        int e;

        *bytes = CPU_ALLOC_SIZE(most);
        *set = CPU_ALLOC(most);
        if (!*set)
            return ds_fail(err, DS_E_NOMEM, "CPU mask: out of memory");
        CPU_ZERO_S(*bytes, *set);
        if (sched_getaffinity(0, *bytes, *set) == 0)
            return DS_OK;
        e = errno;
        CPU_FREE(*set);
        if (e != EINVAL)
            return ds_fail(err, DS_E_IO, "CPU mask: %s", strerror(e));
    }
    return ds_fail(err, DS_E_IO, "CPU mask: more than %d CPUs", CPUS_MAX);
}

ds_rc ds_cpus_allowed(uint32_t **cpus, uint32_t *n, ds_err *err)
{
    cpu_set_t *set;
    size_t bytes;
    ds_rc rc;

    *n = 0;
    *cpus = NULL;
    rc = read_mask(&set, &bytes, err);
    if (rc != DS_OK)
        return rc;
    *cpus = calloc((size_t)CPU_COUNT_S(bytes, set) + 1, sizeof **cpus);
    if (*cpus)
        for (size_t i = 0; i < bytes * 8; i++)
            if (CPU_ISSET_S(i, bytes, set))
                (*cpus)[(*n)++] = (uint32_t)i;
    CPU_FREE(set);
    return *cpus ? DS_OK : ds_fail(err, DS_E_NOMEM, "CPU mask: out of memory");
}

uint32_t ds_cpu_quota(const char *text)
{
    long long quota, period = 100000;

    if (sscanf(text, "%lld %lld", &quota, &period) < 1 || quota <= 0 || period <= 0) /* "max", "-1" */
        return 0;
    quota = (quota - 1) / period + 1;
    return quota > CPUS_MAX ? 0 : (uint32_t)quota;
}

/* The start of a small file as text; false when it can't be read. */
static bool read_text(const char *path, char *buf, size_t cap)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n;

    if (fd == -1)
        return false;
    n = read(fd, buf, cap - 1);
    close(fd);
    if (n < 0)
        return false;
    buf[n] = '\0';
    return true;
}

static void lower(uint32_t *count, uint32_t quota)
{
    if (quota > 0 && quota < *count)
        *count = quota;
}

/* The group's own quota and those of all above it. */
static void apply_cgroup2(uint32_t *count)
{
    char groups[PATH_BYTES], path[PATH_BYTES + 64], text[64], *own, *slash;

    if (!read_text("/proc/self/cgroup", groups, sizeof groups))
        return;
    own = strncmp(groups, "0::", 3) == 0 ? groups : strstr(groups, "\n0::");
    if (!own)
        return;
    own = strchr(own, '/');
    if (!own)
        return;
    own[strcspn(own, "\n")] = '\0';
    for (;;) {
        snprintf(path, sizeof path, "/sys/fs/cgroup%s/cpu.max", own);
        if (read_text(path, text, sizeof text))
            lower(count, ds_cpu_quota(text));
        slash = strrchr(own, '/');
        if (!slash)
            return;
        *slash = '\0';
    }
}

static void apply_cgroup1(uint32_t *count)
{
    char quota[32], period[32], text[72];

    if (!read_text("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", quota, sizeof quota) ||
        !read_text("/sys/fs/cgroup/cpu/cpu.cfs_period_us", period, sizeof period))
        return;
    snprintf(text, sizeof text, "%s %s", quota, period);
    lower(count, ds_cpu_quota(text));
}

uint32_t ds_cpu_count(void)
{
    uint32_t count;
    cpu_set_t *set;
    size_t bytes;

    if (read_mask(&set, &bytes, NULL) != DS_OK)
        return 1;
    count = (uint32_t)CPU_COUNT_S(bytes, set);
    CPU_FREE(set);
    if (count == 0)
        count = 1;
    apply_cgroup2(&count);
    apply_cgroup1(&count);
    return count;
}
