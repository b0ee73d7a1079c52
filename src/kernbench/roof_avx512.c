#define DS_ROOF_BYTES 64

#define DS_ROOF_CHAINS ds_roof_fma_avx512
#define DS_ROOF_INSTRUCTION "vfmadd213ps %2, %1, %0"
#define DS_ROOF_OPS 32
#include "kernbench/roof_chains_body.h"

#define DS_ROOF_CHAINS ds_roof_bytes_avx512
#define DS_ROOF_INSTRUCTION "vpmaddubsw %1, %0, %0"
#define DS_ROOF_OPS 128
#include "kernbench/roof_chains_body.h"

#define DS_ROOF_READ ds_roof_read_avx512
#include "kernbench/roof_read_body.h"
