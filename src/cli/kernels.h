/* The choice of an instruction set, for every command that runs kernels: the words of the option and what
 * ds_kern_init takes for each. */
#ifndef DS_CLI_KERNELS_H
#define DS_CLI_KERNELS_H

#define DS_CLI_KERNELS "best|ref|avx2|avx512|amx"

/* choice: the index of the word in DS_CLI_KERNELS. NULL means the best that this machine has. */
static inline const char *ds_cli_kernels(int choice)
{
    static const char *const names[] = { NULL, "ref", "avx2", "avx512", "amx" };
    return names[choice];
}

#endif
