/* The number that stands for none of numbered things: blocks, slots, tails, records, buffers, parts. */
#ifndef DS_BASE_NONE_H
#define DS_BASE_NONE_H

#include <stdint.h>

#define DS_NONE UINT32_MAX

#endif
