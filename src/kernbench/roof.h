/* What one core does at most: bytes read, and products of each instruction set with all operands in registers.
 * The functions of a set must run only where the CPU has it. */
#ifndef DS_KERNBENCH_ROOF_H
#define DS_KERNBENCH_ROOF_H

#include <stddef.h>
#include <stdint.h>

/* Each runs for `rounds` rounds and returns the floating-point (or byte) operations of that many, a product and a
 * sum being two. */
typedef double ds_roof_fn(size_t rounds);

ds_roof_fn ds_roof_scalar, ds_roof_fma_avx2, ds_roof_bytes_avx2, ds_roof_fma_avx512, ds_roof_bytes_avx512, ds_roof_dpbf16, ds_roof_amx;
/* Reads n bytes at p (both multiples of 64 KB and 64), by as many streams at a time and with such prefetching as the
 * pattern has: which is best differs between CPUs. The result is there so that they are read. */
enum { DS_ROOF_READ_ALIGN = 65536, DS_ROOF_READ_PATTERNS = 7 };
typedef uint64_t ds_roof_read_fn(const void *p, size_t n, uint32_t pattern);

ds_roof_read_fn ds_roof_read_base, ds_roof_read_avx2, ds_roof_read_avx512;

#endif
