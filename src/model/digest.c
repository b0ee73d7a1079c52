/* The digest of a checkpoint's content (docs/formats/block-key.md, "Model digest").
 *
 * The files are cut into pieces of at most PIECE bytes (a tensor of which only pages are read is one piece, whatever
 * its size); each piece is hashed by whoever of the team comes first; the digest is a hash over the pieces' hashes
 * in order, so it doesn't depend on the team.
 *
 * Reads go through descriptors, not through the model's mapping: a page fault there would fetch its neighbourhood
 * too, and a large checkpoint is read in single pages all over.
 *
 * What is remembered is keyed by facts that the system keeps about the files: whoever writes to one changes its
 * ctime, which can't be set back. A file changed so recently that another change could get the same time isn't
 * remembered. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/hash.h"
#include "model/model_internal.h"

enum {
    PIECE = 1 << 20,
    PAGE = 4096,
    PAGES = 16, /* of a large tensor */
    RECORD = 64 + 1 + 64 + 1,
    OWN_FILES = 3, /* in front of the shards */
};

static const char *const own_files[OWN_FILES] = { "config.json", "tokenizer.json", DS_ST_INDEX_NAME };

typedef struct {
    char *path;
    struct stat st;
    bool absent;
    const char *form; /* "whole", "sampled" */
    size_t first, n;  /* pieces */
    const ds_tensor **tensor;
    size_t n_tensors, shard;
} file;

typedef struct {
    uint32_t file;
    bool pages;
    uint64_t at, bytes;
    uint8_t hash[32];
} piece;

typedef struct {
    uint8_t *buf; /* [PIECE] */
    int fd;
    uint32_t file; /* that fd is of */
    size_t failed; /* piece */
    uint64_t read_bytes;
    ds_err err;
} member;

typedef struct {
    const ds_st *st;
    const ds_model_digest_opts *o;
    file *file;
    size_t n_files;
    const ds_tensor **tensor; /* by shard, then by place */
    piece *piece;
    size_t n_pieces, cap_pieces;
    member *member;
    uint32_t n_members;
    atomic_size_t next;
} job;

static ds_rc no_memory(ds_err *err)
{
    return ds_fail(err, DS_E_NOMEM, "model digest: out of memory");
}

static ds_rc cant(ds_err *err, const char *path)
{
    char q[112];

    return ds_fail(err, DS_E_IO, "%s: %s", ds_file_label(q, sizeof q, path), strerror(errno));
}

/* ---- the list of files and pieces -------------------------------------------------------------------------------- */

static int by_path(const void *a, const void *b)
{
    return strcmp(((const file *)a)->path, ((const file *)b)->path);
}

static int by_place(const void *a, const void *b, void *arg)
{
    const ds_tensor *x = *(const ds_tensor *const *)a, *y = *(const ds_tensor *const *)b;
    uint64_t at_x = ds_st_offset(arg, x), at_y = ds_st_offset(arg, y);

    if (x->shard != y->shard)
        return x->shard < y->shard ? -1 : 1;
    if (at_x != at_y)
        return at_x < at_y ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes); /* empty ones stand where the next begins */
}

static ds_rc list_files(job *j, const char *dir, ds_err *err)
{
    size_t shards = ds_st_shards(j->st), n;
    const ds_tensor *t = ds_st_tensors(j->st, &n);

    j->file = calloc(OWN_FILES + shards, sizeof *j->file);
    j->tensor = calloc(n ? n : 1, sizeof *j->tensor);
    if (!j->file || !j->tensor)
        return no_memory(err);
    for (size_t i = 0; i < n; i++)
        j->tensor[i] = &t[i];
    qsort_r(j->tensor, n, sizeof *j->tensor, by_place, (void *)j->st);
    for (j->n_files = 0; j->n_files < OWN_FILES + shards; j->n_files++) {
        file *f = &j->file[j->n_files];
        size_t shard = j->n_files - OWN_FILES;
        if (j->n_files < OWN_FILES ? asprintf(&f->path, "%s/%s", dir, own_files[j->n_files]) == -1
                                   : !(f->path = strdup(ds_st_shard_path(j->st, shard)))) {
            f->path = NULL;
            return no_memory(err);
        }
        if (stat(f->path, &f->st) == -1) {
            if (j->n_files >= OWN_FILES || errno != ENOENT)
                return cant(err, f->path);
            f->absent = true;
        }
    }
    for (size_t i = 0, k = 0; i < shards; i++) {
        file *f = &j->file[OWN_FILES + i];
        f->shard = i;
        f->tensor = j->tensor + k;
        while (k < n && j->tensor[k]->shard == i)
            k++;
        f->n_tensors = (size_t)(j->tensor + k - f->tensor);
    }
    qsort(j->file + OWN_FILES, shards, sizeof *j->file, by_path);
    return DS_OK;
}

static bool add(job *j, uint32_t of, bool pages, uint64_t at, uint64_t bytes)
{
    if (j->n_pieces == j->cap_pieces) {
        size_t cap = j->cap_pieces ? 2 * j->cap_pieces : 256;
        piece *grown = realloc(j->piece, cap * sizeof *grown);
        if (!grown)
            return false;
        j->piece = grown;
        j->cap_pieces = cap;
    }
    j->piece[j->n_pieces++] = (piece){ .file = of, .pages = pages, .at = at, .bytes = bytes };
    return true;
}

static bool add_run(job *j, uint32_t of, uint64_t at, uint64_t bytes)
{
    for (uint64_t done = 0; done < bytes; done += PIECE)
        if (!add(j, of, false, at + done, bytes - done < PIECE ? bytes - done : PIECE))
            return false;
    return true;
}

static bool list_pieces(job *j)
{
    uint64_t whole_file = j->o->whole_file_bytes ? j->o->whole_file_bytes : 1ull << 30;
    uint64_t whole_tensor = j->o->whole_tensor_bytes ? j->o->whole_tensor_bytes : PIECE;

    for (uint32_t i = 0; i < j->n_files; i++) {
        file *f = &j->file[i];
        uint64_t size = (uint64_t)f->st.st_size;
        bool ok = true;
        f->first = j->n_pieces;
        if (f->absent)
            continue;
        f->form = i < OWN_FILES || size < whole_file ? "whole" : "sampled";
        if (strcmp(f->form, "whole") == 0) {
            ok = add_run(j, i, 0, size);
        } else {
            ok = add_run(j, i, 0, ds_st_data_start(j->st, f->shard));
            for (size_t k = 0; ok && k < f->n_tensors; k++) {
                uint64_t bytes = f->tensor[k]->bytes;
                ok = add(j, i, bytes >= whole_tensor, ds_st_offset(j->st, f->tensor[k]), bytes);
            }
        }
        if (!ok)
            return false;
        f->n = j->n_pieces - f->first;
    }
    return true;
}

/* ---- hashing ----------------------------------------------------------------------------------------------------- */

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size && a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
           a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

/* The member's descriptor becomes one of this file. */
static ds_rc turn_to(const job *j, member *m, uint32_t to)
{
    const file *f = &j->file[to];
    struct stat now;
    uint64_t bytes;
    char q[112];
    ds_rc rc;

    if (m->fd != -1 && m->file == to)
        return DS_OK;
    if (m->fd != -1)
        close(m->fd);
    rc = ds_file_open(&m->fd, &bytes, f->path, &m->err);
    if (rc != DS_OK)
        return rc;
    m->file = to;
    if (fstat(m->fd, &now) == -1)
        return cant(&m->err, f->path);
    if (!same_file(&now, &f->st))
        return ds_fail(&m->err, DS_E_IO, "%s: changed while it was read", ds_file_label(q, sizeof q, f->path));
    if (strcmp(f->form, "sampled") == 0)
        posix_fadvise(m->fd, 0, 0, POSIX_FADV_RANDOM); /* no reading ahead */
    return DS_OK;
}

static ds_rc hash_piece(job *j, member *m, piece *p)
{
    const char *path = j->file[p->file].path;
    size_t n = 0;
    ds_rc rc = turn_to(j, m, p->file);

    if (rc == DS_OK && !p->pages) {
        n = (size_t)p->bytes;
        rc = ds_file_pread(m->fd, m->buf, n, p->at, path, &m->err);
    }
    for (uint64_t i = 0; rc == DS_OK && p->pages && i < PAGES; i++, n += PAGE)
        rc = ds_file_pread(m->fd, m->buf + n, PAGE, p->at + i * (p->bytes - PAGE) / (PAGES - 1), path, &m->err);
    if (rc == DS_OK)
        ds_sha256(p->hash, m->buf, n);
    m->read_bytes += n;
    return rc;
}

static void hash_some(void *arg, uint32_t who, uint32_t n_members)
{
    job *j = arg;
    member *m = &j->member[who];

    (void)n_members;
    for (;;) {
        size_t i = atomic_fetch_add_explicit(&j->next, 1, memory_order_relaxed); /* only hands out numbers */
        if (i >= j->n_pieces)
            return;
        if (hash_piece(j, m, &j->piece[i]) != DS_OK) {
            m->failed = i;
            return;
        }
    }
}

static ds_rc hash_all(job *j, ds_model_digest_info *info, ds_err *err)
{
    const member *bad = NULL;

    j->n_members = j->o->pool ? ds_pool_size(j->o->pool) : 1;
    j->member = calloc(j->n_members, sizeof *j->member);
    if (!j->member)
        return no_memory(err);
    for (uint32_t i = 0; i < j->n_members; i++)
        j->member[i] = (member){ .fd = -1, .failed = SIZE_MAX };
    for (uint32_t i = 0; i < j->n_members; i++)
        if (!(j->member[i].buf = malloc(PIECE)))
            return no_memory(err);
    atomic_init(&j->next, 0);
    if (j->o->pool)
        ds_pool_run(j->o->pool, hash_some, j);
    else
        hash_some(j, 0, 1);
    for (uint32_t i = 0; i < j->n_members; i++) {
        info->read_bytes += j->member[i].read_bytes;
        if (j->member[i].failed != SIZE_MAX && (!bad || j->member[i].failed < bad->failed))
            bad = &j->member[i];
    }
    return bad ? ds_fail(err, bad->err.rc, "%s", bad->err.msg) : DS_OK;
}

static void put_field(ds_buf *b, const void *bytes, size_t n)
{
    uint8_t len[8];

    for (int i = 0; i < 8; i++)
        len[i] = (uint8_t)((uint64_t)n >> (8 * i));
    ds_buf_put(b, len, sizeof len);
    ds_buf_put(b, bytes, n);
}

/* H over files of H over pieces. */
static ds_rc combine(uint8_t out[32], const job *j, ds_err *err)
{
    ds_buf all = { 0 }, one = { 0 };
    bool ok;

    put_field(&all, "deepserve model 1", 17);
    for (size_t i = 0; i < j->n_files; i++) {
        const file *f = &j->file[i];
        uint8_t size[8], h[32];
        if (f->absent) {
            put_field(&all, "", 0);
            continue;
        }
        for (int k = 0; k < 8; k++)
            size[k] = (uint8_t)((uint64_t)f->st.st_size >> (8 * k));
        ds_buf_clear(&one);
        put_field(&one, f->form, strlen(f->form));
        put_field(&one, size, sizeof size);
        for (size_t k = 0; k < f->n; k++)
            put_field(&one, j->piece[f->first + k].hash, 32);
        if (one.oom)
            break;
        ds_sha256(h, one.p, one.len);
        put_field(&all, h, sizeof h);
    }
    ok = !all.oom && !one.oom;
    if (ok)
        ds_sha256(out, all.p, all.len);
    ds_buf_free(&all);
    ds_buf_free(&one);
    return ok ? DS_OK : no_memory(err);
}

/* ---- remembering ------------------------------------------------------------------------------------------------- */

/* What the system says about the files, and the rule: equal facts, equal digest. *settled: none of them changed just
 * now. */
static ds_rc facts_of(char hex[65], bool *settled, const job *j, ds_err *err)
{
    uint64_t settle = (j->o->settle_ms ? j->o->settle_ms : 1000) * 1000000ull;
    struct timespec now;
    ds_buf b = { 0 };
    uint8_t h[32];
    bool ok;

    clock_gettime(CLOCK_REALTIME, &now);
    *settled = true;
    ds_buf_printf(&b, "facts 1 %llu %llu\n", (unsigned long long)j->o->whole_file_bytes, (unsigned long long)j->o->whole_tensor_bytes);
    for (size_t i = 0; i < j->n_files; i++) {
        const file *f = &j->file[i];
        const struct stat *s = &f->st;
        int64_t age = (now.tv_sec - s->st_ctim.tv_sec) * 1000000000ll + now.tv_nsec - s->st_ctim.tv_nsec;
        const char *name = strrchr(f->path, '/');
        ds_buf_printf(&b, "%s %d %lld %lld %ld %lld %ld %llu %llu\n", name ? name : f->path, f->absent, (long long)s->st_size,
                      (long long)s->st_mtim.tv_sec, s->st_mtim.tv_nsec, (long long)s->st_ctim.tv_sec, s->st_ctim.tv_nsec,
                      (unsigned long long)s->st_ino, (unsigned long long)s->st_dev);
        if (!f->absent && age < (int64_t)settle)
            *settled = false;
    }
    ok = !b.oom;
    if (ok) {
        ds_sha256(h, b.p, b.len);
        ds_hex(hex, h, sizeof h);
    }
    ds_buf_free(&b);
    return ok ? DS_OK : no_memory(err);
}

/* One file for each directory with a model, whatever path leads to it; free() it. */
static char *record_path(const char *cache_dir, const char *dir)
{
    char *real = realpath(dir, NULL), *path = NULL, hex[65];
    uint8_t h[32];

    if (!real)
        return NULL;
    ds_sha256(h, real, strlen(real));
    ds_hex(hex, h, sizeof h);
    if (asprintf(&path, "%s/model-%.16s", cache_dir, hex) == -1)
        path = NULL;
    free(real);
    return path;
}

static bool unhex(uint8_t out[32], const char *hex)
{
    static const char digits[] = "0123456789abcdef";

    for (int i = 0; i < 64; i++) {
        const char *d = hex[i] ? strchr(digits, hex[i]) : NULL;
        if (!d)
            return false;
        out[i / 2] = (uint8_t)(out[i / 2] << 4 | (d - digits));
    }
    return true;
}

/* Any doubt about the record: it isn't there. */
static bool recall(uint8_t out[32], const char *path, const char facts[65])
{
    char *text;
    size_t n;
    bool ok = false;

    if (ds_file_read(&text, &n, path, RECORD, NULL) == DS_OK) {
        ok = n == RECORD && memcmp(text, facts, 64) == 0 && text[64] == ' ' && text[129] == '\n' && unhex(out, text + 65);
        free(text);
    }
    return ok;
}

static void make_directory(const char *dir)
{
    char *copy = strdup(dir);

    for (char *slash = copy ? strchr(copy + 1, '/') : NULL; slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(copy, 0700);
        *slash = '/';
    }
    free(copy);
    mkdir(dir, 0700); /* what fails here fails again when the file is made, with a message */
}

static ds_rc keep(const uint8_t digest[32], const char *cache_dir, const char *path, const char facts[65], ds_err *err)
{
    char hex[65], text[RECORD + 1], *temporary;
    int fd;
    ds_rc rc;

    ds_hex(hex, digest, 32);
    snprintf(text, sizeof text, "%.64s %s\n", facts, hex);
    make_directory(cache_dir);
    if (asprintf(&temporary, "%s.XXXXXX", path) == -1)
        return no_memory(err);
    fd = mkostemp(temporary, O_CLOEXEC);
    if (fd == -1) {
        rc = cant(err, path);
        free(temporary);
        return rc;
    }
    rc = ds_file_write(fd, text, RECORD, path, err);
    if (close(fd) == -1 && rc == DS_OK)
        rc = cant(err, path);
    if (rc == DS_OK && rename(temporary, path) == -1)
        rc = cant(err, path);
    if (rc != DS_OK)
        unlink(temporary);
    free(temporary);
    return rc;
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

static ds_rc compute(uint8_t out[32], job *j, ds_model_digest_info *info, ds_err *err)
{
    ds_rc rc;

    if (!list_pieces(j))
        return no_memory(err);
    rc = hash_all(j, info, err);
    return rc == DS_OK ? combine(out, j, err) : rc;
}

static void job_fini(job *j)
{
    for (size_t i = 0; j->file && i < OWN_FILES + ds_st_shards(j->st); i++)
        free(j->file[i].path);
    for (uint32_t i = 0; j->member && i < j->n_members; i++) {
        if (j->member[i].fd != -1)
            close(j->member[i].fd);
        free(j->member[i].buf);
    }
    free(j->file);
    free(j->tensor);
    free(j->piece);
    free(j->member);
}

ds_rc ds_model_digest(uint8_t out[32], const ds_model *m, const char *dir, const ds_model_digest_opts *opts, ds_model_digest_info *info,
                      ds_err *err)
{
    static const ds_model_digest_opts none;
    job j = { .st = m->w.files, .o = opts ? opts : &none };
    char facts[65], *record = NULL;
    bool settled = false;
    ds_rc rc;

    *info = (ds_model_digest_info){ 0 };
    if (j.o->whole_tensor_bytes > PIECE || (j.o->whole_tensor_bytes && j.o->whole_tensor_bytes < PAGES * PAGE))
        return ds_fail(err, DS_E_ARG, "model digest: whole_tensor_bytes is %llu, within %d..%d",
                       (unsigned long long)j.o->whole_tensor_bytes, PAGES * PAGE, PIECE);
    rc = list_files(&j, dir, err);
    if (rc == DS_OK)
        rc = facts_of(facts, &settled, &j, err);
    if (rc == DS_OK && j.o->cache_dir)
        record = record_path(j.o->cache_dir, dir);
    if (rc == DS_OK && record)
        info->remembered = recall(out, record, facts);
    if (rc == DS_OK && !info->remembered) {
        rc = compute(out, &j, info, err);
        if (rc == DS_OK && record && settled)
            keep(out, j.o->cache_dir, record, facts, &info->unkept);
    }
    job_fini(&j);
    free(record);
    return rc;
}
