#define DS_ROOF_BYTES 64
#define DS_ROOF_CHAINS ds_roof_dpbf16
#define DS_ROOF_INSTRUCTION "vdpbf16ps %1, %1, %0"
#define DS_ROOF_OPS 64
#include "kernbench/roof_chains_body.h"
