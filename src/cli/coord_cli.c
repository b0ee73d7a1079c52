#include "cli/coord_cli.h"

#include "cli/cli.h"
#include "role/service.h"

int ds_cli_coord_check(const ds_cli_coord_opts *c, const char *command)
{
    if (c->address && !c->name)
        return ds_cli_wrong(command, "--coord needs --name, which says what this process is called there");
    if (c->name && !c->address)
        return ds_cli_wrong(command, "--name is for --coord");
    return -1;
}

ds_rc ds_cli_coord_open(ds_member **out, const ds_cli_coord_opts *c, const char *dir, const ds_member_opts *o, ds_err *err)
{
    ds_member_opts mine = *o;
    uint8_t model[32];
    ds_rc rc = DS_OK;

    *out = NULL;
    if (!c->address)
        return DS_OK;
    if (dir)
        rc = ds_service_wire_digest(model, dir, err);
    mine.coord = c->address;
    mine.name = c->name;
    mine.model = dir ? model : NULL;
    return rc == DS_OK ? ds_member_open(out, &mine, err) : rc;
}
