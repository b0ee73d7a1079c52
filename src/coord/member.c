#include "coord/member.h"

#include <string.h>

void ds_coord_put_u32(ds_buf *b, uint32_t v)
{
    uint8_t le[4] = { (uint8_t)v, (uint8_t)(v >> 8), (uint8_t)(v >> 16), (uint8_t)(v >> 24) };

    ds_buf_put(b, le, sizeof le);
}

void ds_coord_put_u64(ds_buf *b, uint64_t v)
{
    ds_coord_put_u32(b, (uint32_t)v);
    ds_coord_put_u32(b, (uint32_t)(v >> 32));
}

void ds_coord_put_text(ds_buf *b, const char *s)
{
    ds_coord_put_u32(b, (uint32_t)strlen(s));
    ds_buf_put(b, s, strlen(s));
}

void ds_coord_read_text(char *out, size_t cap, ds_frame_in *in)
{
    uint32_t n = ds_frame_u32(in);
    const uint8_t *p = n < cap ? ds_frame_bytes(in, n) : NULL;

    out[0] = '\0';
    if (!p || memchr(p, 0, n)) {
        in->bad = true;
        return;
    }
    memcpy(out, p, n);
    out[n] = '\0';
}

static bool is_word(const char *s)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";

    return *s && *s != '-' && *s != '.' && strspn(s, letters) == strlen(s);
}

static bool is_printable(const char *s)
{
    for (; *s; s++)
        if (*s <= ' ' || *s > '~')
            return false;
    return true;
}

ds_rc ds_coord_member_check(const ds_coord_member *m, ds_err *err)
{
    char q[112];

    if (!is_word(m->name))
        return ds_fail(err, DS_E_ARG, "name '%s': expected 1 to %d letters, digits, -, _ and .",
                       ds_quote(q, sizeof q, m->name, strnlen(m->name, 40)), DS_COORD_NAME - 1);
    if (!is_word(m->role) || !is_printable(m->address) || !is_printable(m->version) || !m->instance ||
        (unsigned)m->state >= DS_INSTANCE_STATES)
        return ds_fail(err, DS_E_ARG, "%s: what it says of itself is malformed", m->name);
    return DS_OK;
}

void ds_coord_put_member(ds_buf *b, const ds_coord_member *m)
{
    ds_coord_put_text(b, m->name);
    ds_coord_put_text(b, m->role);
    ds_coord_put_text(b, m->address);
    ds_coord_put_text(b, m->version);
    ds_coord_put_u64(b, m->instance);
    ds_buf_put(b, m->model, sizeof m->model);
    ds_coord_put_u32(b, (uint32_t)m->state);
    ds_coord_put_u64(b, m->epoch);
    ds_coord_put_u32(b, m->drain);
    ds_coord_put_u32(b, m->live);
    ds_coord_put_u64(b, m->kv_used);
    ds_coord_put_u64(b, m->kv_total);
}

bool ds_coord_read_member(ds_coord_member *m, ds_frame_in *in)
{
    const uint8_t *model;
    uint32_t state, drain;

    memset(m, 0, sizeof *m);
    ds_coord_read_text(m->name, sizeof m->name, in);
    ds_coord_read_text(m->role, sizeof m->role, in);
    ds_coord_read_text(m->address, sizeof m->address, in);
    ds_coord_read_text(m->version, sizeof m->version, in);
    m->instance = ds_frame_u64(in);
    model = ds_frame_bytes(in, sizeof m->model);
    if (model)
        memcpy(m->model, model, sizeof m->model);
    state = ds_frame_u32(in);
    m->epoch = ds_frame_u64(in);
    drain = ds_frame_u32(in);
    m->live = ds_frame_u32(in);
    m->kv_used = ds_frame_u64(in);
    m->kv_total = ds_frame_u64(in);
    if (state >= DS_INSTANCE_STATES || drain > 1)
        in->bad = true;
    m->state = in->bad ? DS_INSTANCE_GONE : (ds_instance_state)state;
    m->drain = drain == 1;
    if (!in->bad && ds_coord_member_check(m, NULL) != DS_OK)
        in->bad = true;
    return !in->bad;
}
