/* Numbers with units as people write them: `3 ms`, `4.8 TB/s`, `85 %`. A number without its unit is refused, so that
 * nobody has to guess.   Threads: any; pure functions. */
#ifndef DS_SIM_QUANTITY_H
#define DS_SIM_QUANTITY_H

#include <stdbool.h>
#include <stddef.h>

typedef enum {
    DS_SIM_COUNT,     /* no unit */
    DS_SIM_TIME,      /* seconds */
    DS_SIM_BYTES,     /* bytes */
    DS_SIM_TOKENS,    /* tokens */
    DS_SIM_SHARE,     /* 1 = 100 % */
    DS_SIM_RATE,      /* of requests or sessions, in a second */
    DS_SIM_BYTE_RATE, /* bytes in a second */
    DS_SIM_FLOP_RATE, /* operations in a second */
    DS_SIM_FLOP,      /* operations */
    DS_SIM_PRICE,     /* money for an hour, in whatever currency */
    DS_SIM_KINDS,
} ds_sim_kind;

/* "3 ms" or "3ms": *out in the unit above. False: not a finite number >= 0 with one of the kind's units. */
bool ds_sim_quantity(const char *text, ds_sim_kind kind, double *out);
/* "us, ms, s, min, h, d"; of a count "". Returns buf. */
const char *ds_sim_units(char *buf, size_t cap, ds_sim_kind kind);

#endif
