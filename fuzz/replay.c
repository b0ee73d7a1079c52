/* Feeds stored inputs to a fuzz target without libFuzzer: every file of the folders named, and of short files also
 * every beginning. Exits 77 when there is no input. A target reports a broken promise by __builtin_trap(). */
#include <dirent.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { PREFIX_BYTES = 1024 };

/* An exact copy, so that a sanitizer sees the first byte read behind it. */
static void feed(const uint8_t *data, size_t n)
{
    uint8_t *copy = malloc(n ? n : 1);

    if (!copy) {
        perror("malloc");
        exit(1);
    }
    if (n)
        memcpy(copy, data, n);
    LLVMFuzzerTestOneInput(copy, n);
    free(copy);
}

static void feed_file(const char *path, size_t size)
{
    FILE *f = fopen(path, "rb");
    uint8_t *data = malloc(size ? size : 1);

    if (!f || !data || fread(data, 1, size, f) != size) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        exit(1);
    }
    fclose(f);
    fprintf(stderr, "%s\n", path); /* the last line names the input that crashed */
    feed(data, size);
    for (size_t n = 0; size <= PREFIX_BYTES && n < size; n++)
        feed(data, n);
    free(data);
}

int main(int argc, char **argv)
{
    size_t count = 0;

    for (int i = 1; i < argc; i++) {
        DIR *d = opendir(argv[i]);
        struct dirent *e;

        if (!d) {
            printf("%s: %s\n", argv[i], strerror(errno));
            return errno == ENOENT ? 77 : 1;
        }
        while ((e = readdir(d))) {
            char path[4096];
            struct stat st;

            snprintf(path, sizeof path, "%s/%s", argv[i], e->d_name);
            if (stat(path, &st) == 0 && S_ISREG(st.st_mode)) {
                feed_file(path, (size_t)st.st_size);
                count++;
            }
        }
        closedir(d);
    }
    printf("%zu inputs\n", count);
    return count ? 0 : 77;
}
