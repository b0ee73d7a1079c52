/* `deepserve bench` alone, for machines where only a compiler is at hand. */
#include "cli/cli.h"

int main(int argc, char **argv)
{
    return ds_cmd_bench(argc, argv);
}
