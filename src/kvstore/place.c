#include "kvstore/place.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <ds/kvstore.h>

#include "base/err.h"
#include "base/file.h"

static const char scheme[] = "rados://";

bool ds_kvstore_in_pool(const char *place)
{
    return strncmp(place, scheme, sizeof scheme - 1) == 0;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The n characters of one part, decoded. False: too long, or a % that isn't one. */
static bool take_part(char *out, size_t cap, const char *from, size_t n)
{
    size_t len = 0;

    for (size_t i = 0; i < n; i++) {
        char c = from[i];
        if (c == '%') {
            int high = i + 2 < n ? hex_digit(from[i + 1]) : -1, low = high < 0 ? -1 : hex_digit(from[i + 2]);
            if (low < 0 || (high == 0 && low == 0))
                return false;
            c = (char)(high << 4 | low);
            i += 2;
        }
        if (len + 1 >= cap)
            return false;
        out[len++] = c;
    }
    out[len] = 0;
    return true;
}

ds_rc ds_place_parse(ds_place *out, const char *place, ds_err *err)
{
    const char *p = place + sizeof scheme - 1, *words = p + strcspn(p, "?"), *slash = memchr(p, '/', (size_t)(words - p));
    const char *pool_end = slash ? slash : words;
    char label[120];
    bool ok;

    memset(out, 0, sizeof *out);
    snprintf(out->id, sizeof out->id, "admin");
    ds_file_label(label, sizeof label, place);
    ok = take_part(out->pool, sizeof out->pool, p, (size_t)(pool_end - p)) && out->pool[0] &&
         (!slash || take_part(out->name_space, sizeof out->name_space, slash + 1, (size_t)(words - slash - 1)));
    while (ok && *words) {
        const char *word = words + 1;
        size_t n = strcspn(word, "&");
        words = word + n;
        if (strncmp(word, "conf=", 5) == 0)
            ok = n > 5 && take_part(out->conf, sizeof out->conf, word + 5, n - 5);
        else if (strncmp(word, "id=", 3) == 0)
            ok = n > 3 && take_part(out->id, sizeof out->id, word + 3, n - 3);
        else
            ok = false;
    }
    return ok ? DS_OK : ds_fail(err, DS_E_ARG, "%s: expected rados://POOL[/NAMESPACE][?conf=FILE][&id=NAME]", label);
}

ds_rc ds_kvstore_check_places(const char *const *places, uint32_t n, ds_err *err)
{
    char label[120];
    ds_place parts;
    ds_rc rc = DS_OK;

    for (uint32_t i = 0; i < n && rc == DS_OK; i++) {
        if (!ds_kvstore_in_pool(places[i]))
            continue;
        rc = ds_place_parse(&parts, places[i], err);
        if (rc == DS_OK && n > 1)
            rc = ds_fail(err, DS_E_ARG, "%s: a pool is all of a store's devices: what is lost of it its own code gives back",
                         ds_file_label(label, sizeof label, places[i]));
    }
    return rc;
}

ds_rc ds_kvstore_place_below(char **out, const char *place, const char *name, ds_err *err)
{
    const char *words = ds_kvstore_in_pool(place) ? place + strcspn(place, "?") : place + strlen(place);
    const char *between =
        ds_kvstore_in_pool(place) && !memchr(place + sizeof scheme - 1, '/', (size_t)(words - place) - (sizeof scheme - 1)) ? "/"
        : ds_kvstore_in_pool(place)                                                                                         ? "."
                                                                                                                            : "/";
    char label[120];

    if (asprintf(out, "%.*s%s%s%s", (int)(words - place), place, between, name, words) < 0) {
        *out = NULL;
        return ds_fail(err, DS_E_NOMEM, "out of memory");
    }
    if (ds_kvstore_in_pool(place) || mkdir(*out, 0777) == 0 || errno == EEXIST)
        return DS_OK;
    ds_rc rc = ds_fail(err, DS_E_IO, "%s: %s", ds_file_label(label, sizeof label, *out), strerror(errno));
    free(*out);
    *out = NULL;
    return rc;
}
