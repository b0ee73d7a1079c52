#include "sim/quantity.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    ds_sim_kind kind;
    char unit[12];
    double is;
} units[] = {
    { DS_SIM_COUNT, "", 1 },
    { DS_SIM_TIME, "ps", 1e-12 },
    { DS_SIM_TIME, "ns", 1e-9 },
    { DS_SIM_TIME, "us", 1e-6 },
    { DS_SIM_TIME, "ms", 1e-3 },
    { DS_SIM_TIME, "s", 1 },
    { DS_SIM_TIME, "min", 60 },
    { DS_SIM_TIME, "h", 3600 },
    { DS_SIM_TIME, "d", 86400 },
    { DS_SIM_BYTES, "B", 1 },
    { DS_SIM_BYTES, "KB", 1e3 },
    { DS_SIM_BYTES, "MB", 1e6 },
    { DS_SIM_BYTES, "GB", 1e9 },
    { DS_SIM_BYTES, "TB", 1e12 },
    { DS_SIM_BYTES, "PB", 1e15 },
    { DS_SIM_BYTES, "KiB", 1024.0 },
    { DS_SIM_BYTES, "MiB", 1048576.0 },
    { DS_SIM_BYTES, "GiB", 1073741824.0 },
    { DS_SIM_BYTES, "TiB", 1099511627776.0 },
    { DS_SIM_TOKENS, "tokens", 1 },
    { DS_SIM_TOKENS, "ktokens", 1e3 },
    { DS_SIM_TOKENS, "Mtokens", 1e6 },
    { DS_SIM_TOKENS, "Gtokens", 1e9 },
    { DS_SIM_SHARE, "%", 0.01 },
    { DS_SIM_RATE, "/s", 1 },
    { DS_SIM_RATE, "/min", 1.0 / 60 },
    { DS_SIM_RATE, "/h", 1.0 / 3600 },
    { DS_SIM_BYTE_RATE, "MB/s", 1e6 },
    { DS_SIM_BYTE_RATE, "GB/s", 1e9 },
    { DS_SIM_BYTE_RATE, "TB/s", 1e12 },
    { DS_SIM_FLOP_RATE, "GFLOP/s", 1e9 },
    { DS_SIM_FLOP_RATE, "TFLOP/s", 1e12 },
    { DS_SIM_FLOP_RATE, "PFLOP/s", 1e15 },
    { DS_SIM_FLOP, "FLOP", 1 },
    { DS_SIM_FLOP, "kFLOP", 1e3 },
    { DS_SIM_FLOP, "MFLOP", 1e6 },
    { DS_SIM_FLOP, "GFLOP", 1e9 },
    { DS_SIM_FLOP, "TFLOP", 1e12 },
    { DS_SIM_PRICE, "/h", 1 },
};

bool ds_sim_quantity(const char *text, ds_sim_kind kind, double *out)
{
    size_t n = strspn(text, "0123456789.");
    char number[40], *end;
    double x;

    /* An exponent only where digits follow: strtod alone takes "inf", "0x10" and signs too. */
    if (n > 0 && (text[n] == 'e' || text[n] == 'E')) {
        size_t sign = text[n + 1] == '-' || text[n + 1] == '+', digits = strspn(text + n + 1 + sign, "0123456789");
        n += digits ? 1 + sign + digits : 0;
    }
    if (n == 0 || n >= sizeof number)
        return false;
    memcpy(number, text, n);
    number[n] = '\0';
    x = strtod(number, &end);
    if (*end || !isfinite(x))
        return false;
    text += n;
    text += strspn(text, " ");
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (units[i].kind == kind && strcmp(units[i].unit, text) == 0) {
            x *= units[i].is;
            if (!isfinite(x))
                return false;
            *out = x;
            return true;
        }
    return false;
}

const char *ds_sim_units(char *buf, size_t cap, ds_sim_kind kind)
{
    size_t at = 0;

    buf[0] = '\0';
    for (size_t i = 0; i < sizeof units / sizeof *units && at < cap; i++)
        if (units[i].kind == kind)
            at += (size_t)snprintf(buf + at, cap - at, "%s%s", at ? ", " : "", units[i].unit);
    return buf;
}
