/* Types of the messages between the coord and those who ask it (docs/formats/coord.md), over net/conn.h. >: to the
 * coord. The header's request number comes back in an answer. */
#ifndef DS_COORD_PROTO_H
#define DS_COORD_PROTO_H

enum { DS_COORD_VERSION = 1 };

enum {
    DS_COORD_HELLO = 0x101, /* > u32 version */
    DS_COORD_WELCOME,       /* < u32 version, u32 ttl_ms */
    DS_COORD_SAY,           /* > a member: this process. DS_COORD_SAID or DS_COORD_REFUSED */
    DS_COORD_SAID,          /* < u64 epoch */
    DS_COORD_STATUS,        /* > u32 live, u64 kv_used, u64 kv_total; keeps the lease */
    DS_COORD_WITHDRAW,      /* > this process goes. DS_COORD_DONE */
    DS_COORD_WATCH,         /* > u32 0: all members, 1: this one. DS_COORD_VIEW now and when they are others */
    DS_COORD_VIEW,          /* < the table, or that of one */
    DS_COORD_ORDER = 0x10a, /* > text: that process should drain. DS_COORD_DONE or DS_COORD_REFUSED */
    DS_COORD_DONE,          /* < */
    DS_COORD_REFUSED,       /* < u32 -rc, text: why */
};

#endif
