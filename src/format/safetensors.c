/* Opening: list of files -> for each: map, read the header, enter its tensors, check that their spans tile the data
 * -> hash table of names.
 *
 * Tensors are kept in one growing array while headers are read. The table holds indices into it; with an index a
 * name may stand in several shards and the index says which one counts, so entries are keyed by name and then by
 * shard. */
#include "base/none.h"
#include "format/safetensors.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/mem.h"
#include "base/file.h"
#include "format/scan_internal.h"

#define BLOCK_BYTES (256u * 1024)
#define OTHER_KEYS 64  /* of an index, besides weight_map */
#define NAME_BYTES 220 /* of a tensor's name in a message, so that the rule behind it fits too */

typedef struct block {
    struct block *next;
    char bytes[];
} block;

typedef struct {
    char *path;
    char label[104]; /* what messages call it: short and printable */
    char *map;
    size_t map_bytes, data_start;
} shard_file;

struct ds_st {
    shard_file *shard;
    uint32_t n_shards;
    ds_tensor *tensor;
    uint32_t n, cap;
    uint32_t *slot;   /* hash table of indices into tensor; DS_NONE = empty */
    uint32_t n_slots; /* power of two, at least twice the entries */
    uint64_t seed;
    block *blocks; /* names and shapes */
    size_t block_used, block_cap;
    uint64_t data_bytes;
};

/* One line of weight_map. */
typedef struct {
    const char *name;
    uint32_t len;
    uint32_t shard;
} mapped;

/* ---- dtypes ---- */

static const struct {
    const char *name;
    uint8_t bytes;
} dtypes[] = {
    [DS_DT_OTHER] = { "?", 0 },         [DS_DT_BOOL] = { "BOOL", 1 },       [DS_DT_U8] = { "U8", 1 },           [DS_DT_I8] = { "I8", 1 },
    [DS_DT_F8_E5M2] = { "F8_E5M2", 1 }, [DS_DT_F8_E4M3] = { "F8_E4M3", 1 }, [DS_DT_F8_E8M0] = { "F8_E8M0", 1 }, [DS_DT_U16] = { "U16", 2 },
    [DS_DT_I16] = { "I16", 2 },         [DS_DT_F16] = { "F16", 2 },         [DS_DT_BF16] = { "BF16", 2 },       [DS_DT_U32] = { "U32", 4 },
    [DS_DT_I32] = { "I32", 4 },         [DS_DT_F32] = { "F32", 4 },         [DS_DT_U64] = { "U64", 8 },         [DS_DT_I64] = { "I64", 8 },
    [DS_DT_F64] = { "F64", 8 },
};
#define N_DTYPES (sizeof dtypes / sizeof *dtypes)

size_t ds_dtype_bytes(ds_dtype t)
{
    return (size_t)t < N_DTYPES ? dtypes[t].bytes : 0;
}

const char *ds_dtype_name(ds_dtype t)
{
    return (size_t)t < N_DTYPES ? dtypes[t].name : "?";
}

static ds_dtype dtype_of(scan_str s)
{
    for (size_t t = 1; t < N_DTYPES; t++)
        if (scan_is(s, dtypes[t].name, strlen(dtypes[t].name)))
            return (ds_dtype)t;
    return DS_DT_OTHER;
}

/* ---- storage ---- */

/* 8-byte aligned memory that lives as long as st; NULL = out of memory. */
static void *keep(ds_st *st, size_t bytes)
{
    bytes = (bytes + 7) & ~(size_t)7;
    if (bytes > st->block_cap - st->block_used) {
        size_t cap = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES;
        block *b = malloc(sizeof *b + cap);
        if (!b)
            return NULL;
        b->next = st->blocks;
        st->blocks = b;
        st->block_used = 0;
        st->block_cap = cap;
    }
    void *p = st->blocks->bytes + st->block_used;
    st->block_used += bytes;
    return p;
}

static ds_rc out_of_memory(const char *what, ds_err *err)
{
    return ds_fail(err, DS_E_NOMEM, "%s: out of memory", what);
}

static uint32_t probe_start(const ds_st *st, const char *name, size_t n)
{
    return (uint32_t)ds_hash64(name, n, st->seed) & (st->n_slots - 1);
}

static bool same_name(const ds_tensor *t, const char *name, size_t n)
{
    return t->name_len == n && memcmp(t->name, name, n) == 0;
}

/* Next entry of that name from slot *at on; *at then points behind it. */
static ds_tensor *probe(const ds_st *st, uint32_t *at, const char *name, size_t n)
{
    while (st->slot[*at] != DS_NONE) {
        ds_tensor *t = &st->tensor[st->slot[*at]];
        *at = (*at + 1) & (st->n_slots - 1);
        if (same_name(t, name, n))
            return t;
    }
    return NULL;
}

static ds_rc rebuild_table(ds_st *st, uint32_t n_slots, ds_err *err)
{
    uint32_t *slot = malloc((size_t)n_slots * sizeof *slot);
    if (!slot)
        return out_of_memory("tensor table", err);
    memset(slot, 0xff, (size_t)n_slots * sizeof *slot);
    free(st->slot);
    st->slot = slot;
    st->n_slots = n_slots;
    for (uint32_t i = 0; i < st->n; i++) {
        uint32_t at = probe_start(st, st->tensor[i].name, st->tensor[i].name_len);
        while (slot[at] != DS_NONE)
            at = (at + 1) & (n_slots - 1);
        slot[at] = i;
    }
    return DS_OK;
}

static ds_rc grow(ds_st *st, ds_err *err)
{
    uint32_t cap = st->cap ? st->cap * 2 : 1024;
    ds_tensor *t = realloc(st->tensor, (size_t)cap * sizeof *t);
    if (!t)
        return out_of_memory("tensor table", err);
    st->tensor = t;
    st->cap = cap;
    return rebuild_table(st, cap * 2, err);
}

/* ---- one header ---- */

/* Reads {"dtype":…, "shape":[…], "data_offsets":[a, b]}; *begin and *end are relative to the data. */
static bool read_entry(scan *x, ds_tensor *t, uint64_t shape[DS_ST_MAX_NDIM], uint64_t *begin, uint64_t *end)
{
    bool first = true, open, has_dtype = false, has_shape = false, has_span = false;
    scan_str key, s;

    if (!scan_object(x))
        return false;
    while (scan_member(x, &first, &open, &key) && open) {
        bool efirst = true, eopen;
        if (SCAN_IS(key, "dtype")) {
            if (has_dtype)
                return scan_fail(x, "dtype stands twice");
            has_dtype = true;
            if (!scan_string(x, &s))
                return false;
            t->dtype = (uint8_t)dtype_of(s);
        } else if (SCAN_IS(key, "shape")) {
            if (has_shape)
                return scan_fail(x, "shape stands twice");
            has_shape = true;
            t->ndim = 0;
            if (!scan_array(x))
                return false;
            while (scan_element(x, &efirst, &eopen) && eopen) {
                if (t->ndim == DS_ST_MAX_NDIM)
                    return scan_fail(x, "a shape of more than 32 dimensions");
                if (!scan_u64(x, &shape[t->ndim++]))
                    return false;
            }
        } else if (SCAN_IS(key, "data_offsets")) {
            if (has_span)
                return scan_fail(x, "data_offsets stands twice");
            has_span = true;
            if (!scan_array(x) || !scan_element(x, &efirst, &eopen) || !eopen || !scan_u64(x, begin) || !scan_element(x, &efirst, &eopen) ||
                !eopen || !scan_u64(x, end) || !scan_element(x, &efirst, &eopen))
                return scan_fail(x, "data_offsets must be two whole numbers");
            if (eopen)
                return scan_fail(x, "data_offsets must be two whole numbers");
        } else if (!scan_skip(x)) {
            return false;
        }
    }
    if (x->rc != DS_OK)
        return false;
    if (!has_dtype || !has_shape || !has_span)
        return scan_fail(x, "a tensor needs dtype, shape and data_offsets");
    return true;
}

/* Checks a span by itself; the tiling is checked when all are known. */
static ds_rc check_span(const ds_tensor *t, const uint64_t *shape, uint64_t begin, uint64_t end, uint64_t data_bytes, const char *file,
                        ds_err *err)
{
    char q[NAME_BYTES];
    uint64_t want = ds_dtype_bytes((ds_dtype)t->dtype);
    bool empty = false, over = false;

    ds_quote(q, sizeof q, t->name, t->name_len);
    if (begin > end || end > data_bytes)
        return ds_fail(err, DS_E_FORMAT, "%s: tensor %s: span %llu..%llu lies outside the %llu bytes of data", file, q,
                       (unsigned long long)begin, (unsigned long long)end, (unsigned long long)data_bytes);
    if (want == 0)
        return DS_OK;
    for (unsigned i = 0; i < t->ndim; i++)
        empty = empty || shape[i] == 0;
    for (unsigned i = 0; i < t->ndim && !empty; i++)
        over = over || __builtin_mul_overflow(want, shape[i], &want);
    if (empty)
        want = 0;
    if (over)
        return ds_fail(err, DS_E_FORMAT, "%s: tensor %s: shape x %s is too large", file, q, ds_dtype_name((ds_dtype)t->dtype));
    if (want != end - begin)
        return ds_fail(err, DS_E_FORMAT, "%s: tensor %s: a span of %llu bytes; shape x %s is %llu", file, q,
                       (unsigned long long)(end - begin), ds_dtype_name((ds_dtype)t->dtype), (unsigned long long)want);
    return DS_OK;
}

static ds_rc enter(ds_st *st, ds_tensor t, const uint64_t *shape, bool indexed, const char *file, ds_err *err)
{
    char q[NAME_BYTES];
    char *name;
    uint64_t *kept;
    uint32_t at;
    ds_rc rc;

    if (st->n == DS_ST_MAX_TENSORS)
        return ds_fail(err, DS_E_FORMAT, "%s: more than %u tensors", file, DS_ST_MAX_TENSORS);
    if (st->n == st->cap) {
        rc = grow(st, err);
        if (rc != DS_OK)
            return rc;
    }
    at = probe_start(st, t.name, t.name_len);
    for (ds_tensor *old; (old = probe(st, &at, t.name, t.name_len)) != NULL;) {
        if (old->shard == t.shard)
            return ds_fail(err, DS_E_FORMAT, "%s: tensor %s stands twice", file, ds_quote(q, sizeof q, t.name, t.name_len));
        if (!indexed)
            return ds_fail(err, DS_E_FORMAT, "%s: tensor %s is also in %s", file, ds_quote(q, sizeof q, t.name, t.name_len),
                           st->shard[old->shard].label);
    }
    name = keep(st, (size_t)t.name_len + 1);
    kept = keep(st, t.ndim * sizeof *kept);
    if (!name || !kept)
        return out_of_memory(file, err);
    memcpy(name, t.name, t.name_len);
    name[t.name_len] = '\0';
    memcpy(kept, shape, t.ndim * sizeof *kept);
    t.name = name;
    t.shape = kept;
    st->slot[at] = st->n; /* probe stopped at the first empty slot */
    st->tensor[st->n++] = t;
    return DS_OK;
}

static int by_start(const void *a, const void *b, void *tensors)
{
    const ds_tensor *t = tensors, *x = &t[*(const uint32_t *)a], *y = &t[*(const uint32_t *)b];
    const char *p = x->data, *q = y->data;
    if (p != q)
        return p < q ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

/* The spans of tensors first..n-1 cover the data without overlap, hole or rest. */
static ds_rc check_tiling(ds_st *st, uint32_t first, const char *data, uint64_t data_bytes, const char *file, ds_err *err)
{
    uint32_t n = st->n - first;
    uint64_t at = 0;
    char q[NAME_BYTES];
    ds_rc rc = DS_OK;
    uint32_t *order = malloc(((size_t)n + 1) * sizeof *order);
    bool sorted = true;

    if (!order)
        return out_of_memory(file, err);
    for (uint32_t i = 0; i < n; i++) {
        order[i] = first + i;
        sorted = sorted && (i == 0 || by_start(&order[i - 1], &order[i], st->tensor) <= 0);
    }
    if (!sorted)
        qsort_r(order, n, sizeof *order, by_start, st->tensor);
    for (uint32_t i = 0; i < n && rc == DS_OK; i++) {
        const ds_tensor *t = &st->tensor[order[i]];
        uint64_t begin = (uint64_t)((const char *)t->data - data);
        if (begin != at)
            rc = ds_fail(err, DS_E_FORMAT, "%s: tensor %s: span starts at %llu, %s %llu", file, ds_quote(q, sizeof q, t->name, t->name_len),
                         (unsigned long long)begin, begin < at ? "inside the one before, which ends at" : "behind a hole that starts at",
                         (unsigned long long)at);
        at = begin + t->bytes;
    }
    if (rc == DS_OK && at != data_bytes)
        rc = ds_fail(err, DS_E_FORMAT, "%s: %llu bytes after the last tensor", file, (unsigned long long)(data_bytes - at));
    free(order);
    return rc;
}

/* Puts the tensor's name behind the file's in the message that read_entry left. */
static ds_rc name_tensor(const char *file, const ds_tensor *t, ds_rc rc, ds_err *err)
{
    char q[NAME_BYTES];
    ds_err old;

    if (!err)
        return rc;
    old = *err;
    return ds_fail(err, rc, "%s: tensor %s: %s", file, ds_quote(q, sizeof q, t->name, t->name_len), old.msg + strlen(file) + 2);
}

static ds_rc read_header(ds_st *st, uint16_t shard, char *text, size_t n, bool indexed, ds_err *err)
{
    const char *file = st->shard[shard].label, *data = st->shard[shard].map + 8 + n;
    uint64_t data_bytes = st->shard[shard].map_bytes - 8 - n, begin = 0, end = 0, shape[DS_ST_MAX_NDIM];
    uint32_t first_tensor = st->n;
    bool first = true, open = false, has_metadata = false;
    scan x;
    scan_str key;
    ds_rc rc;

    if (!scan_init(&x, text, n, file, err) || !scan_object(&x))
        return x.rc;
    while (scan_member(&x, &first, &open, &key) && open) {
        if (SCAN_IS(key, "__metadata__")) {
            if (has_metadata)
                return scan_fail(&x, "__metadata__ stands twice"), x.rc;
            has_metadata = true;
            scan_skip(&x);
            continue;
        }
        ds_tensor t = { .name = key.s, .name_len = (uint32_t)key.n, .shard = shard };
        if (!read_entry(&x, &t, shape, &begin, &end))
            return name_tensor(file, &t, x.rc, err);
        rc = check_span(&t, shape, begin, end, data_bytes, file, err);
        if (rc != DS_OK)
            return rc;
        t.data = data + begin;
        t.bytes = end - begin;
        rc = enter(st, t, shape, indexed, file, err);
        if (rc != DS_OK)
            return rc;
    }
    if (!scan_end(&x))
        return x.rc;
    return check_tiling(st, first_tensor, data, data_bytes, file, err);
}

static ds_rc open_shard(ds_st *st, uint16_t shard, bool indexed, ds_err *err)
{
    shard_file *f = &st->shard[shard];
    unsigned char head[8];
    uint64_t bytes, n = 0;
    char *text;
    int fd;
    ds_rc rc = ds_file_open(&fd, &bytes, f->path, err);

    ds_file_label(f->label, sizeof f->label, f->path);
    if (rc != DS_OK)
        return rc;
    if (bytes < 8) {
        rc = ds_fail(err, DS_E_FORMAT, "%s: is %llu bytes long; a safetensors file has at least 8", f->label, (unsigned long long)bytes);
        goto out;
    }
    rc = ds_file_pread(fd, head, 8, 0, f->path, err);
    if (rc != DS_OK)
        goto out;
    for (int i = 7; i >= 0; i--)
        n = n << 8 | head[i];
    if (n > DS_ST_HEADER_MAX_BYTES) {
        rc = ds_fail(err, DS_E_FORMAT, "%s: a header of %llu bytes; at most %u are allowed", f->label, (unsigned long long)n,
                     DS_ST_HEADER_MAX_BYTES);
        goto out;
    }
    if (n > bytes - 8) {
        rc = ds_fail(err, DS_E_FORMAT, "%s: a header of %llu bytes in a file of %llu", f->label, (unsigned long long)n,
                     (unsigned long long)bytes);
        goto out;
    }
    if (bytes > SIZE_MAX / 2) {
        rc = ds_fail(err, DS_E_FORMAT, "%s: is too large to be mapped", f->label);
        goto out;
    }
    f->map = mmap(NULL, (size_t)bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (f->map == MAP_FAILED) {
        f->map = NULL;
        rc = ds_fail(err, DS_E_IO, "%s: cannot map: %s", f->label, strerror(errno));
        goto out;
    }
    f->map_bytes = (size_t)bytes;
    f->data_start = 8 + (size_t)n;
    text = malloc((size_t)n + 1);
    if (!text) {
        rc = out_of_memory(f->label, err);
        goto out;
    }
    rc = ds_file_pread(fd, text, (size_t)n, 8, f->path, err);
    if (rc == DS_OK)
        rc = read_header(st, shard, text, (size_t)n, indexed, err);
    free(text);
out:
    close(fd);
    return rc;
}

/* ---- the list of files ---- */

/* The shard of that path, entered if new; `name` is a file in `dir`. */
static ds_rc add_shard(ds_st *st, const char *dir, const char *name, size_t n, ds_err *err)
{
    shard_file *s;
    char *path, q[112];

    if (st->n_shards == DS_ST_MAX_SHARDS)
        return ds_fail(err, DS_E_FORMAT, "%s: more than %u files", ds_file_label(q, sizeof q, dir), DS_ST_MAX_SHARDS);
    s = realloc(st->shard, (st->n_shards + 1) * sizeof *s);
    if (!s)
        return out_of_memory(dir, err);
    st->shard = s;
    if (asprintf(&path, "%s/%.*s", dir, (int)n, name) < 0)
        return out_of_memory(dir, err);
    s[st->n_shards++] = (shard_file){ .path = path };
    return DS_OK;
}

static bool plain_name(scan_str s)
{
    return s.n > 0 && s.n <= 255 && !memchr(s.s, '/', s.n) && !memchr(s.s, '\0', s.n) && !SCAN_IS(s, ".") && !SCAN_IS(s, "..");
}

/* Shard of a file name, entered when it is new. *last is the previous answer: neighbours are mostly in one file. */
static ds_rc shard_of(ds_st *st, const char *dir, scan_str file, uint32_t *last, ds_err *err)
{
    size_t prefix = strlen(dir) + 1;
    for (uint32_t i = 0, k = *last; i < st->n_shards; i++, k = k + 1 < st->n_shards ? k + 1 : 0) {
        const char *have = st->shard[k].path + prefix;
        if (strncmp(have, file.s, file.n) == 0 && have[file.n] == '\0') {
            *last = k;
            return DS_OK;
        }
    }
    *last = st->n_shards;
    return add_shard(st, dir, file.s, file.n, err);
}

static ds_rc read_weight_map(ds_st *st, scan *x, const char *dir, mapped **list, uint32_t *n)
{
    bool first = true, open = false;
    uint32_t cap = 0, last = 0;
    scan_str key, file;
    char q[NAME_BYTES];
    ds_rc rc;

    if (!scan_object(x))
        return x->rc;
    while (scan_member(x, &first, &open, &key) && open) {
        if (!scan_string(x, &file))
            return x->rc;
        if (!plain_name(file))
            return ds_fail(x->err, DS_E_FORMAT, "%s: weight_map: %s is not the name of a file in the same directory", x->what,
                           ds_quote(q, sizeof q, file.s, file.n));
        rc = shard_of(st, dir, file, &last, x->err);
        if (rc != DS_OK)
            return rc;
        if (*n == DS_ST_MAX_TENSORS)
            return ds_fail(x->err, DS_E_FORMAT, "%s: more than %u tensors", x->what, DS_ST_MAX_TENSORS);
        if (*n == cap) {
            cap = cap ? cap * 2 : 4096;
            mapped *more = realloc(*list, (size_t)cap * sizeof *more);
            if (!more)
                return out_of_memory(x->what, x->err);
            *list = more;
        }
        (*list)[(*n)++] = (mapped){ .name = key.s, .len = (uint32_t)key.n, .shard = last };
    }
    return x->rc;
}

/* Keeps the tensors that the index lists, each from the shard that it names. */
static ds_rc select_mapped(ds_st *st, const char *index, const mapped *list, uint32_t n, ds_err *err)
{
    uint32_t kept = 0;
    char q[NAME_BYTES];
    bool *used = calloc((size_t)st->n + 1, sizeof *used);
    ds_rc rc = DS_OK;

    if (!used)
        return out_of_memory(index, err);
    for (uint32_t i = 0; i < n && rc == DS_OK; i++) {
        ds_tensor *found = NULL;
        bool twice = false;
        uint32_t at = st->n_slots ? probe_start(st, list[i].name, list[i].len) : 0;
        for (ds_tensor *t; st->n_slots && (t = probe(st, &at, list[i].name, list[i].len)) != NULL;) {
            twice = twice || used[t - st->tensor];
            if (t->shard == list[i].shard)
                found = t;
        }
        if (twice)
            rc = ds_fail(err, DS_E_FORMAT, "%s: weight_map: tensor %s stands twice", index,
                         ds_quote(q, sizeof q, list[i].name, list[i].len));
        else if (!found)
            rc = ds_fail(err, DS_E_FORMAT, "%s: weight_map: tensor %s is not in %s", index,
                         ds_quote(q, sizeof q, list[i].name, list[i].len), st->shard[list[i].shard].label);
        else
            used[found - st->tensor] = true;
    }
    for (uint32_t i = 0; i < st->n && rc == DS_OK; i++)
        if (used[i])
            st->tensor[kept++] = st->tensor[i];
    free(used);
    if (rc != DS_OK || kept == st->n)
        return rc;
    st->n = kept;
    return rebuild_table(st, st->n_slots, err);
}

static ds_rc open_indexed(ds_st *st, const char *dir, const char *path, ds_err *err)
{
    char *text, index[104];
    size_t n;
    mapped *list = NULL;
    uint32_t n_list = 0, n_others = 0;
    bool first = true, open = false, has_map = false;
    scan x;
    scan_str key, others[OTHER_KEYS];
    ds_rc rc = ds_file_read(&text, &n, path, DS_ST_HEADER_MAX_BYTES, err);

    if (rc != DS_OK)
        return rc;
    ds_file_label(index, sizeof index, path);
    if (!scan_init(&x, text, n, index, err) || !scan_object(&x)) {
        rc = x.rc;
        goto out;
    }
    while (scan_member(&x, &first, &open, &key) && open) {
        if (!SCAN_IS(key, "weight_map")) {
            for (uint32_t i = 0; i < n_others; i++)
                if (scan_is(others[i], key.s, key.n))
                    scan_fail(&x, "a key that stands twice");
            if (n_others == OTHER_KEYS)
                scan_fail(&x, "too many keys besides weight_map");
            else
                others[n_others++] = key;
            scan_skip(&x);
            continue;
        }
        if (has_map) {
            rc = ds_fail(err, DS_E_FORMAT, "%s: weight_map stands twice", index);
            goto out;
        }
        has_map = true;
        rc = read_weight_map(st, &x, dir, &list, &n_list);
        if (rc != DS_OK)
            goto out;
    }
    if (!scan_end(&x)) {
        rc = x.rc;
        goto out;
    }
    if (!has_map) {
        rc = ds_fail(err, DS_E_FORMAT, "%s: weight_map is missing", index);
        goto out;
    }
    for (uint32_t i = 0; i < st->n_shards && rc == DS_OK; i++)
        rc = open_shard(st, (uint16_t)i, true, err);
    if (rc == DS_OK)
        rc = select_mapped(st, index, list, n_list, err);
out:
    free(list);
    free(text);
    return rc;
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const shard_file *)a)->path, ((const shard_file *)b)->path);
}

/* All *.safetensors files of a directory, in the order of their names. */
static ds_rc open_directory(ds_st *st, const char *dir, ds_err *err)
{
    static const char suffix[] = ".safetensors";
    char q[112];
    DIR *d = opendir(dir);
    ds_rc rc = DS_OK;

    if (!d)
        return ds_fail(err, DS_E_IO, "%s: %s", ds_file_label(q, sizeof q, dir), strerror(errno));
    for (struct dirent *e; rc == DS_OK && (e = readdir(d)) != NULL;) {
        size_t n = strlen(e->d_name);
        if (n >= sizeof suffix && strcmp(e->d_name + n - (sizeof suffix - 1), suffix) == 0)
            rc = add_shard(st, dir, e->d_name, n, err);
    }
    closedir(d);
    if (rc != DS_OK)
        return rc;
    if (st->n_shards == 0)
        return ds_fail(err, DS_E_IO, "%s: holds no .safetensors file", ds_file_label(q, sizeof q, dir));
    qsort(st->shard, st->n_shards, sizeof *st->shard, by_path);
    for (uint32_t i = 0; i < st->n_shards && rc == DS_OK; i++)
        rc = open_shard(st, (uint16_t)i, false, err);
    return rc;
}

ds_rc ds_st_open(ds_st **out, const char *path, ds_err *err)
{
    char q[NAME_BYTES], *index = NULL;
    struct stat info;
    ds_st *st;
    ds_rc rc;

    *out = NULL;
    st = calloc(1, sizeof *st);
    if (!st)
        return out_of_memory(path, err);
    if (getrandom(&st->seed, sizeof st->seed, GRND_NONBLOCK) != sizeof st->seed)
        st->seed = (uint64_t)(uintptr_t)st; /* early boot: the address of a heap block is the next best */
    if (stat(path, &info) == -1) {
        rc = ds_fail(err, DS_E_IO, "%s: %s", ds_file_label(q, sizeof q, path), strerror(errno));
    } else if (!S_ISDIR(info.st_mode)) {
        st->shard = calloc(1, sizeof *st->shard);
        if (st->shard)
            st->shard[0].path = strdup(path);
        st->n_shards = st->shard != NULL;
        rc = st->shard && st->shard[0].path ? open_shard(st, 0, false, err) : out_of_memory(path, err);
    } else if (asprintf(&index, "%s/%s", path, DS_ST_INDEX_NAME) < 0) {
        index = NULL;
        rc = out_of_memory(path, err);
    } else if (lstat(index, &info) == 0) {
        rc = open_indexed(st, path, index, err);
    } else {
        rc = open_directory(st, path, err);
    }
    free(index);
    if (rc != DS_OK) {
        ds_st_close(st);
        return rc;
    }
    for (uint32_t i = 0; i < st->n; i++)
        st->data_bytes += st->tensor[i].bytes;
    *out = st;
    return DS_OK;
}

void ds_st_close(ds_st *st)
{
    if (!st)
        return;
    for (uint32_t i = 0; i < st->n_shards; i++) {
        if (st->shard[i].map)
            munmap(st->shard[i].map, st->shard[i].map_bytes);
        free(st->shard[i].path);
    }
    for (block *b = st->blocks, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    free(st->shard);
    free(st->tensor);
    free(st->slot);
    free(st);
}

const ds_tensor *ds_st_find(const ds_st *st, const char *name)
{
    size_t n = strlen(name);
    uint32_t at;

    if (st->n == 0)
        return NULL;
    at = probe_start(st, name, n);
    return probe(st, &at, name, n);
}

const ds_tensor *ds_st_tensors(const ds_st *st, size_t *n)
{
    *n = st->n;
    return st->tensor;
}

size_t ds_st_shards(const ds_st *st)
{
    return st->n_shards;
}

const char *ds_st_shard_path(const ds_st *st, size_t shard)
{
    return shard < st->n_shards ? st->shard[shard].path : "?";
}

uint64_t ds_st_data_bytes(const ds_st *st)
{
    return st->data_bytes;
}

uint64_t ds_st_data_start(const ds_st *st, size_t shard)
{
    return st->shard[shard].data_start;
}

uint64_t ds_st_offset(const ds_st *st, const ds_tensor *t)
{
    return (uint64_t)((const char *)t->data - st->shard[t->shard].map);
}

/* ---- values ---- */

typedef uint16_t __attribute__((aligned(1), may_alias)) any_u16;
typedef uint32_t __attribute__((aligned(1), may_alias)) any_u32;
typedef uint64_t __attribute__((aligned(1), may_alias)) any_u64;

/* Index of the first element whose `mask` bits are all set. Blocks are tested as a whole, which the compiler turns
 * into vector code. */
#define FIRST_WITH(type, mask)                              \
    for (uint64_t at = 0; at < n; at += 4096) {             \
        const type *p = (const type *)data + at;            \
        size_t m = n - at < 4096 ? (size_t)(n - at) : 4096; \
        unsigned any = 0;                                   \
        for (size_t i = 0; i < m; i++)                      \
            any |= (p[i] & (mask)) == (mask);               \
        for (size_t i = 0; any && i < m; i++)               \
            if ((p[i] & (mask)) == (mask))                  \
                return at + i;                              \
    }                                                       \
    return UINT64_MAX

uint64_t ds_st_first_bad(ds_dtype t, const void *data, uint64_t n)
{
    switch (t) {
    case DS_DT_F8_E4M3:
        FIRST_WITH(uint8_t, 0x7f);
    case DS_DT_F8_E8M0:
        FIRST_WITH(uint8_t, 0xff);
    case DS_DT_F8_E5M2:
        FIRST_WITH(uint8_t, 0x7c);
    case DS_DT_F16:
        FIRST_WITH(any_u16, 0x7c00);
    case DS_DT_BF16:
        FIRST_WITH(any_u16, 0x7f80);
    case DS_DT_F32:
        FIRST_WITH(any_u32, 0x7f800000u);
    case DS_DT_F64:
        FIRST_WITH(any_u64, 0x7ff0000000000000ull);
    default:
        return UINT64_MAX;
    }
}
