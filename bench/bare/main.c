/* `deepserve bench` with kernels alone, for machines where only a compiler is at hand. */
#include <stdio.h>

#include "cli/cli.h"

static int without(const char *what)
{
    fprintf(stderr, "bench %s isn't part of this program: it has the kernels alone\n", what);
    return 2;
}

int ds_cmd_bench_serve(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    return without("serve");
}

int ds_cmd_bench_http(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    return without("http");
}

int main(int argc, char **argv)
{
    return ds_cmd_bench(argc, argv);
}
