/* The sample pictures of tests/golden/image and small files that are made here. */
#ifndef DS_TEST_IMAGE_SAMPLES_H
#define DS_TEST_IMAGE_SAMPLES_H

#include "test.h"

#include <dirent.h>

#include <ds/image.h>

#define SAMPLES DS_TEST_ROOT "/tests/golden/image/"

/* The whole file; freed by the caller. The test fails if there is none. */
static inline unsigned char *read_file(const char *dir, const char *name, size_t *n)
{
    char path[1024];
    unsigned char *bytes;
    FILE *f;
    long size;

    snprintf(path, sizeof path, "%s%s", dir, name);
    f = fopen(path, "rb");
    if (!f)
        fail_msg("%s can't be opened", path);
    fseek(f, 0, SEEK_END);
    size = ftell(f);
    rewind(f);
    bytes = malloc(size > 0 ? (size_t)size : 1);
    assert_non_null(bytes);
    *n = fread(bytes, 1, (size_t)size, f);
    assert_int_equal(*n, size);
    fclose(f);
    return bytes;
}

/* Calls each(name, bytes, n, rgb) for all samples; rgb: width and height (u16), pixels. Returns their number. */
static inline int every_sample(void (*each)(const char *name, const unsigned char *bytes, size_t n, const unsigned char *rgb))
{
    DIR *d = opendir(SAMPLES);
    struct dirent *e;
    int count = 0;

    assert_non_null(d);
    while ((e = readdir(d)) != NULL) {
        const char *dot = strrchr(e->d_name, '.');
        unsigned char *bytes, *rgb;
        char name[300];
        size_t n, m;

        if (!dot || strcmp(dot, ".rgb") != 0)
            continue;
        snprintf(name, sizeof name, "%.*s", (int)(dot - e->d_name), e->d_name);
        bytes = read_file(SAMPLES, name, &n);
        rgb = read_file(SAMPLES, e->d_name, &m);
        each(name, bytes, n, rgb);
        free(bytes);
        free(rgb);
        count++;
    }
    closedir(d);
    return count;
}

static inline uint32_t le16(const unsigned char *p)
{
    return (uint32_t)p[1] << 8 | p[0];
}

#endif
