/* deepserve keys: API keys for serve. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "server/auth.h"
#include "server/server.h"

typedef struct {
    const char *file;
} options;

static const ds_opt table[] = {
    { .name = "api-keys",
      .type = DS_OPT_STR,
      .offset = offsetof(options, file),
      .def = "keys.txt",
      .arg = "FILE",
      .help = "keys file; made if it isn't there" },
    { 0 },
};

static const ds_opt_cmd command = {
    .command = "deepserve keys",
    .summary = "Makes a new API key: appends its hash to the keys file and prints the key, once. Limits can be added to its line by hand:\n"
               "tenant=T rps=N concurrent=N tokens_per_minute=N. A running server reads the file again on SIGHUP.",
    .usage = "add NAME [--api-keys FILE]",
    .example = "deepserve keys add alice --api-keys keys.txt",
    .opts = table,
};

/* Appends in one write, to a file that only its owner reads; a last line without an end gets one. */
static ds_rc append_line(const char *path, const char *line, ds_err *err)
{
    char q[220], last = '\n', both[512];
    int fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    off_t size = fd >= 0 ? lseek(fd, 0, SEEK_END) : -1;
    ds_rc rc = DS_OK;

    if (size > 0 && pread(fd, &last, 1, size - 1) != 1)
        size = -1;
    int n = snprintf(both, sizeof both, "%s%s", last == '\n' ? "" : "\n", line);
    if (size < 0 || write(fd, both, (size_t)n) != n || fsync(fd) != 0)
        rc = ds_fail(err, DS_E_IO, "%s: %s", ds_quote(q, sizeof q, path, strlen(path)), strerror(errno));
    if (fd >= 0)
        close(fd);
    return rc;
}

static ds_rc add(const char *path, const char *name, ds_err *err)
{
    char *key, *line;
    ds_auth *auth = NULL;
    ds_rc rc = ds_server_new_key(&key, &line, name, err);

    if (rc != DS_OK)
        return rc;
    if (access(path, F_OK) == 0) /* a file that serve would refuse isn't made longer */
        rc = ds_auth_open(&auth, path, err);
    if (rc == DS_OK && auth && ds_auth_has(auth, name))
        rc = ds_fail(err, DS_E_ARG, "%s: the name stands in the file already", name);
    if (rc == DS_OK)
        rc = append_line(path, line, err);
    if (rc == DS_OK)
        printf("%s\n", key);
    ds_auth_close(auth);
    free(key);
    free(line);
    return rc;
}

int ds_cmd_keys(int argc, char **argv)
{
    options o = { 0 };
    const char *words[2];
    size_t n;
    bool help;
    ds_err err = { 0 };

    if (ds_opt_parse(&command, &o, argc, argv, words, 2, &n, NULL, &help, &err) != DS_OK)
        return ds_cli_wrong("keys", "%s", err.msg);
    if (help) {
        ds_opt_print_help(&command, stdout);
        return 0;
    }
    if (n != 2 || strcmp(words[0], "add") != 0)
        return ds_cli_wrong("keys", "expected: add NAME");
    return add(o.file, words[1], &err) == DS_OK ? 0 : ds_cli_fail("keys", &err);
}
