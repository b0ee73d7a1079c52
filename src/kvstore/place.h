/* What is given for a device: a directory's path, or `rados://POOL[/NAMESPACE][?conf=FILE][&id=NAME]`. In the parts of
 * the latter %XX stands for a byte. */
#ifndef DS_KVSTORE_PLACE_H
#define DS_KVSTORE_PLACE_H

#include <ds/err.h>

enum { DS_PLACE_NAME = 256, DS_PLACE_PATH = 1024 };

typedef struct {
    char pool[DS_PLACE_NAME], name_space[DS_PLACE_NAME]; /* name_space: may be empty, that is the pool's own */
    char conf[DS_PLACE_PATH];                            /* configuration file; empty: where Ceph looks for it */
    char id[DS_PLACE_NAME];                              /* of the user, without `client.` */
} ds_place;

/* DS_E_ARG: what is wrong with a place that begins with rados://. */
ds_rc ds_place_parse(ds_place *out, const char *place, ds_err *err);

#endif
