/* Safetensors headers and index files. The first byte chooses: 'I' = the rest is an index beside two small shards,
 * else the rest is a file.
 *
 * Whatever opens: each tensor is found under its name, lies inside its file, and its values can be read. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "format/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool ok)
{
    if (!ok)
        __builtin_trap();
}

static void put(const char *path, const void *bytes, size_t n)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    must(fd != -1 && write(fd, bytes, n) == (ssize_t)n);
    close(fd);
}

static char dir[64];

static void remove_dir(void)
{
    char path[128];
    static const char *const names[] = { "x.safetensors", "y.safetensors", DS_ST_INDEX_NAME };
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        unlink(path);
    }
    rmdir(dir);
}

static void make_dir(void)
{
    static const char head[] =
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}";
    char file[8 + sizeof head - 1 + 2] = { (char)(sizeof head - 1) }, path[128];

    memcpy(file + 8, head, sizeof head - 1);
    strcpy(dir, "/tmp/ds_fuzz_st_XXXXXX");
    must(mkdtemp(dir) != NULL);
    snprintf(path, sizeof path, "%s/x.safetensors", dir);
    put(path, file, sizeof file);
    snprintf(path, sizeof path, "%s/y.safetensors", dir);
    put(path, file, sizeof file);
    atexit(remove_dir);
}

static void look_at_all(const ds_st *st)
{
    size_t n;
    const ds_tensor *t = ds_st_tensors(st, &n);
    volatile uint8_t sink = 0;

    for (size_t i = 0; i < n; i++) {
        uint64_t width = ds_dtype_bytes((ds_dtype)t[i].dtype);
        must(t[i].shard < ds_st_shards(st));
        if (strlen(t[i].name) == t[i].name_len)
            must(ds_st_find(st, t[i].name) == &t[i]);
        if (t[i].bytes)
            sink = (uint8_t)(sink + *(const uint8_t *)t[i].data + *((const uint8_t *)t[i].data + t[i].bytes - 1));
        if (width)
            ds_st_first_bad((ds_dtype)t[i].dtype, t[i].data, t[i].bytes / width);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[128];
    ds_st *st;
    ds_err err;
    ds_rc rc;
    int fd = -1;

    if (!dir[0])
        make_dir();
    if (size == 0)
        return 0;
    if (data[0] == 'I') {
        snprintf(path, sizeof path, "%s/%s", dir, DS_ST_INDEX_NAME);
        put(path, data + 1, size - 1);
        strcpy(path, dir);
    } else {
        fd = memfd_create("st", 0);
        must(fd != -1 && write(fd, data + 1, size - 1) == (ssize_t)(size - 1));
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    rc = ds_st_open(&st, path, &err);
    must((rc == DS_OK) == (st != NULL));
    must(rc == DS_OK || rc == DS_E_FORMAT || rc == DS_E_IO);
    if (rc == DS_OK)
        look_at_all(st);
    else
        must(err.msg[0] && strlen(err.msg) < sizeof err.msg && !strchr(err.msg, '\n'));
    ds_st_close(st);
    if (fd != -1)
        close(fd);
    return 0;
}
