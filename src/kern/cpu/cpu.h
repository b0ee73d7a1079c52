/* The sets of x86-64 bodies, each on top of the one below it: avx2, avx512, amx. */
#ifndef DS_KERN_CPU_CPU_H
#define DS_KERN_CPU_CPU_H

#include "kern/kern.h"

/* Whether this CPU (and the kernel, for AMX tiles) has what the set needs; *lacks names what is missing. */
bool ds_cpu_has_avx2(const char **lacks);
bool ds_cpu_has_avx512(const char **lacks);
bool ds_cpu_has_amx(const char **lacks);

/* Put the set's bodies over those that k has. */
void ds_cpu_use_avx2(ds_kern *k);
void ds_cpu_use_avx512(ds_kern *k);
void ds_cpu_use_amx(ds_kern *k);

#endif
