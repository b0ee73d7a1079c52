#include "cluster/family.h"

#include <stdio.h>
#include <string.h>

void ds_family_init(ds_family *f)
{
    *f = (ds_family){ .known = false };
    pthread_mutex_init(&f->mu, NULL);
}

void ds_family_fini(ds_family *f)
{
    pthread_mutex_destroy(&f->mu);
}

ds_rc ds_family_join(ds_family *f, const ds_cw_engine *e, const char *name, char note[DS_FAMILY_NOTE], ds_err *err)
{
    ds_rc rc = DS_OK;

    note[0] = 0;
    pthread_mutex_lock(&f->mu);
    if (!f->known) {
        f->known = true;
        f->first = *e;
        snprintf(f->name, sizeof f->name, "%s", name);
    } else if (memcmp(f->first.weights, e->weights, sizeof e->weights) != 0) {
        rc = ds_fail(err, DS_E_ARG, "its weights are %08x, those of engine %s %08x: an entry serves one model",
                     ds_cw_first_bytes(e->weights), f->name, ds_cw_first_bytes(f->first.weights));
    } else if (strcmp(f->first.how, e->how) != 0) {
        snprintf(note, DS_FAMILY_NOTE, "computes as %s, engine %.60s as %s: a text that goes on there may differ in its last bits", e->how,
                 f->name, f->first.how);
    }
    pthread_mutex_unlock(&f->mu);
    return rc;
}
