/* Plan (which tensor in which file at which offset), then files in a temporary directory, then one rename. */
#include "format/synth.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/json.h"
#include "base/mem.h"
#include "base/pool.h"
#include "base/file.h"
#include "format/numfmt.h"

enum { MAX_ITEMS = 1 << 20, MAX_SHARDS = 1024, MAX_THREADS = 16, DATA_ALIGN = 64, CHUNK_ELEMENTS = 1 << 20 };

typedef struct {
    ds_tensor_want w;
    ds_dtype dtype;
    uint32_t shard;
    uint64_t shape[2], scale_shape[2];
    uint64_t bytes, scale_bytes;   /* scale_bytes 0: no scale */
    uint64_t offset, scale_offset; /* in the file's data */
} item;

typedef struct {
    uint32_t first, n; /* items */
    uint64_t bytes;    /* of data */
} shard;

typedef struct {
    const ds_synth_opts *o;
    item *items;
    uint32_t n, cap;
    shard *shards;
    uint32_t n_shards;
    uint64_t bytes, tensors, done;
    bool with_map; /* engram.token_map is needed: no tokenizer gives the class count */
    char *dir;     /* temporary; "" before it exists */
    ds_pool *pool;
} job;

/* ---- plan ---- */

static ds_rc add_item(void *arg, const ds_tensor_want *w, ds_err *err)
{
    job *j = arg;
    item *it;
    uint64_t size, limit = j->o->shard_bytes ? j->o->shard_bytes : DS_SYNTH_SHARD_BYTES;

    if (w->optional && !(j->with_map && strcmp(w->name, "engram.token_map") == 0))
        return DS_OK;
    if (j->n == MAX_ITEMS)
        return ds_fail(err, DS_E_ARG, "config.json: implies more than %d weights", MAX_ITEMS);
    if (j->n == j->cap) {
        uint32_t cap = j->cap ? j->cap * 2 : 1024;
        item *more = realloc(j->items, cap * sizeof *more);
        if (!more)
            return ds_fail(err, DS_E_NOMEM, "synth: out of memory for the tensor list");
        j->items = more;
        j->cap = cap;
    }
    it = &j->items[j->n];
    *it = (item){ .w = *w };
    ds_want_storage(w, j->o->quantised, &it->dtype, it->shape, it->scale_shape);
    it->bytes = it->shape[0] * it->shape[1] * ds_dtype_bytes(it->dtype); /* config.h's bounds keep this far below 2^63 */
    it->scale_bytes = it->scale_shape[0] * it->scale_shape[1];
    size = it->bytes + it->scale_bytes;
    if (j->n_shards == 0 || (j->shards[j->n_shards - 1].n && j->shards[j->n_shards - 1].bytes + size > limit)) {
        if (j->n_shards == MAX_SHARDS)
            return ds_fail(err, DS_E_ARG, "synth: more than %d files; raise --shard-bytes", MAX_SHARDS);
        j->shards[j->n_shards++] = (shard){ .first = j->n };
    }
    it->shard = j->n_shards - 1;
    j->shards[it->shard].n++;
    j->shards[it->shard].bytes += size;
    j->bytes += size;
    j->tensors += it->scale_bytes ? 2 : 1;
    j->n++;
    return DS_OK;
}

/* Wide elements first, scales last, so that every tensor is aligned to its element. */
static void place(job *j, const shard *s)
{
    uint64_t at = 0;
    for (uint64_t width = 8; width; width /= 2)
        for (uint32_t i = s->first; i < s->first + s->n; i++)
            if (ds_dtype_bytes(j->items[i].dtype) == width) {
                j->items[i].offset = at;
                at += j->items[i].bytes;
            }
    for (uint32_t i = s->first; i < s->first + s->n; i++) {
        j->items[i].scale_offset = at;
        at += j->items[i].scale_bytes;
    }
}

static ds_rc make_plan(job *j, ds_err *err)
{
    const ds_config *c = j->o->config;
    bool tokenizer = c->vocab_size >= DS_SYNTH_TOKENIZER_MIN_VOCAB && c->vocab_size <= DS_SYNTH_TOKENIZER_MAX_VOCAB;
    ds_rc rc;

    j->with_map =
        !j->o->sparse && c->n_engram_layers && !(tokenizer && ds_synth_tokenizer_classes(c->vocab_size) == c->engram_compressed_vocab_size);
    j->shards = calloc(MAX_SHARDS, sizeof *j->shards);
    if (!j->shards)
        return ds_fail(err, DS_E_NOMEM, "synth: out of memory");
    rc = ds_tensors_each(c, add_item, j, err);
    for (uint32_t i = 0; rc == DS_OK && i < j->n_shards; i++)
        place(j, &j->shards[i]);
    return rc;
}

/* ---- small files ---- */

static ds_rc create_in(int *fd, const job *j, const char *name, ds_err *err)
{
    char *path;

    *fd = -1;
    if (asprintf(&path, "%s/%s", j->dir, name) < 0)
        return ds_fail(err, DS_E_NOMEM, "%s: out of memory", name);
    *fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (*fd == -1)
        ds_fail(err, DS_E_IO, "%s: %s", name, strerror(errno));
    free(path);
    return *fd == -1 ? DS_E_IO : DS_OK;
}

static ds_rc close_file(int fd, const char *name, ds_rc rc, ds_err *err)
{
    if (close(fd) == -1 && rc == DS_OK)
        rc = ds_fail(err, DS_E_IO, "%s: %s", name, strerror(errno));
    return rc;
}

/* Writes and frees the buffer. */
static ds_rc write_buf(const job *j, const char *name, ds_buf *b, ds_err *err)
{
    int fd;
    ds_rc rc;

    if (b->oom)
        rc = ds_fail(err, DS_E_NOMEM, "%s: out of memory", name);
    else
        rc = create_in(&fd, j, name, err);
    if (rc == DS_OK)
        rc = close_file(fd, name, ds_file_write(fd, b->p, b->len, name, err), err);
    ds_buf_free(b);
    return rc;
}

/* The config as given, except that quantization_config is there exactly when the weights are quantised. */
static ds_rc write_config(const job *j, ds_err *err)
{
    static const char quant[] =
        "\"quantization_config\":{\"quant_method\":\"fp8\",\"activation_scheme\":\"dynamic\",\"weight_block_size\":[32,32],"
        "\"scale_fmt\":\"ue8m0\",\"expert_dtype\":\"fp4\"}";
    ds_buf b = { 0 };
    ds_json_doc *doc;
    bool first = true;
    ds_rc rc;

    if (j->o->quantised == j->o->config->has_quantization_config) {
        ds_buf_put(&b, j->o->config_text, j->o->config_bytes);
        return write_buf(j, "config.json", &b, err);
    }
    rc = ds_json_parse(&doc, j->o->config_text, j->o->config_bytes, NULL, err);
    if (rc != DS_OK)
        return rc;
    ds_buf_putc(&b, '{');
    for (const ds_json *m = ds_json_root(doc)->child; m; m = m->next) {
        if (m->key_len == 19 && memcmp(m->key, "quantization_config", 19) == 0)
            continue;
        ds_buf_puts(&b, first ? "\n" : ",\n");
        first = false;
        ds_json_write_str(&b, m->key, m->key_len, DS_JSON_COMPACT);
        ds_buf_putc(&b, ':');
        ds_json_write(&b, m, DS_JSON_COMPACT);
    }
    if (j->o->quantised)
        ds_buf_printf(&b, "%s%s", first ? "\n" : ",\n", quant);
    ds_buf_puts(&b, "\n}\n");
    ds_json_free(doc);
    return write_buf(j, "config.json", &b, err);
}

static const char *shard_name(char buf[64], const job *j, uint32_t i)
{
    snprintf(buf, 64, "model-%05u-of-%05u.safetensors", i + 1, j->n_shards);
    return buf;
}

static ds_rc write_index(const job *j, ds_err *err)
{
    ds_buf b = { 0 };
    char name[64];

    ds_buf_printf(&b, "{\"metadata\":{\"total_size\":%llu},\"weight_map\":{", (unsigned long long)j->bytes);
    for (uint32_t i = 0; i < j->n; i++) {
        const item *it = &j->items[i];
        shard_name(name, j, it->shard);
        ds_buf_printf(&b, "%s\n\"%s\":\"%s\"", i ? "," : "", it->w.name, name);
        if (it->scale_bytes)
            ds_buf_printf(&b, ",\n\"%s\":\"%s\"", it->w.scale, name);
    }
    ds_buf_puts(&b, "\n}}\n");
    return write_buf(j, DS_ST_INDEX_NAME, &b, err);
}

static ds_rc write_small_files(const job *j, ds_synth_result *result, ds_err *err)
{
    const ds_config *c = j->o->config;
    ds_buf b = { 0 };
    ds_rc rc = write_config(j, err);

    if (rc == DS_OK) {
        ds_buf_printf(&b, "{\"bos_token_id\":%u,\"eos_token_id\":%u,\"pad_token_id\":%u}\n", c->bos_token_id, c->eos_token_id,
                      c->pad_token_id);
        rc = write_buf(j, "generation_config.json", &b, err);
    }
    result->has_tokenizer = c->vocab_size >= DS_SYNTH_TOKENIZER_MIN_VOCAB && c->vocab_size <= DS_SYNTH_TOKENIZER_MAX_VOCAB;
    if (rc == DS_OK && result->has_tokenizer) {
        ds_synth_tokenizer(&b, c->vocab_size);
        rc = write_buf(j, "tokenizer.json", &b, err);
    }
    return rc == DS_OK ? write_index(j, err) : rc;
}

/* ---- shards ---- */

static void put_entry(ds_buf *b, const char *name, ds_dtype t, const uint64_t shape[2], int ndim, uint64_t begin, uint64_t bytes)
{
    ds_buf_printf(b, ",\n\"%s\":{\"dtype\":\"%s\",\"shape\":[%llu", name, ds_dtype_name(t), (unsigned long long)shape[0]);
    if (ndim == 2)
        ds_buf_printf(b, ",%llu", (unsigned long long)shape[1]);
    ds_buf_printf(b, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)begin, (unsigned long long)(begin + bytes));
}

/* Length and JSON text, padded so that the data begin at a multiple of DATA_ALIGN. */
static void make_header(ds_buf *b, const job *j, const shard *s)
{
    ds_buf_put(b, "\0\0\0\0\0\0\0\0", 8);
    ds_buf_puts(b, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (uint32_t i = s->first; i < s->first + s->n; i++) {
        const item *it = &j->items[i];
        put_entry(b, it->w.name, it->dtype, it->shape, it->w.ndim, it->offset, it->bytes);
        if (it->scale_bytes)
            put_entry(b, it->w.scale, DS_DT_F8_E8M0, it->scale_shape, 2, it->scale_offset, it->scale_bytes);
    }
    ds_buf_putc(b, '}');
    while (!b->oom && b->len % DATA_ALIGN)
        ds_buf_putc(b, ' ');
    for (int i = 0; !b->oom && i < 8; i++)
        b->p[i] = (char)((uint64_t)(b->len - 8) >> (8 * i));
}

/* One tensor written by all threads, a block of rows at a time. */
typedef struct {
    job *j;
    const item *it;
    int fd;
    uint64_t data_at; /* offset of the data in the file */
    uint64_t rows, cols, chunk_rows;
    atomic_uint_fast64_t next_row; /* relaxed: only hands out work; ds_pool_run orders everything else */
    atomic_int failed;             /* errno of the first failure; relaxed */
} fill;

static bool pwrite_all(int fd, const void *src, size_t n, uint64_t at)
{
    const char *p = src;
    while (n) {
        ssize_t put = pwrite(fd, p, n, (off_t)at);
        if (put == -1 && errno == EINTR)
            continue;
        if (put == -1)
            return false;
        p += put;
        n -= (size_t)put;
        at += (uint64_t)put;
    }
    return true;
}

/* Rows r .. r + n - 1 in stored form: codes into `out`, scales into `scales`. Returns bytes a row of each. */
static void encode_rows(const item *it, const float *x, size_t n, size_t cols, uint8_t *out, uint8_t *scales)
{
    size_t groups = (cols + 31) / 32;

    if (it->dtype == DS_DT_F32) {
        memcpy(out, x, n * cols * sizeof *x);
    } else if (it->dtype == DS_DT_BF16) {
        ds_bf16_from_f32_row((uint16_t *)(void *)out, x, n * cols);
    } else if (it->w.form == DS_FORM_FP8) {
        ds_fp8_block_quant(out, scales, x, n, cols);
    } else {
        for (size_t r = 0; r < n; r++)
            if (it->w.form == DS_FORM_FP4)
                ds_mxfp4_quant(out + r * cols / 2, scales + r * groups, x + r * cols, cols);
            else
                ds_fp8_quant(out + r * cols, scales + r * groups, x + r * cols, cols);
    }
}

static bool canceled(const job *j)
{
    return j->o->cancel && *j->o->cancel;
}

static void fill_rows(void *arg, uint32_t member, uint32_t n_members)
{
    fill *f = arg;
    const item *it = f->it;
    size_t cols = (size_t)f->cols, chunk = (size_t)f->chunk_rows * cols;
    uint64_t row_bytes = it->bytes / f->rows, scale_row_bytes = it->scale_shape[1];
    float *x = NULL;
    uint8_t *out, *scales;

    (void)member;
    (void)n_members;
    for (;;) {
        uint64_t r = atomic_fetch_add_explicit(&f->next_row, f->chunk_rows, memory_order_relaxed);
        if (r >= f->rows || canceled(f->j) || atomic_load_explicit(&f->failed, memory_order_relaxed))
            break;
        if (!x) /* values, codes, scales */
            x = ds_calloc_aligned(chunk, 2 * sizeof *x + 1);
        if (!x) {
            atomic_store_explicit(&f->failed, ENOMEM, memory_order_relaxed);
            break;
        }
        out = (uint8_t *)(x + chunk);
        scales = (uint8_t *)(x + 2 * chunk);
        size_t n = (size_t)(f->rows - r < f->chunk_rows ? f->rows - r : f->chunk_rows);
        ds_synth_values(x, &it->w, f->j->o->config, f->j->o->seed, r * cols, n * cols);
        encode_rows(it, x, n, cols, out, scales);
        uint64_t scale_row = it->w.form == DS_FORM_FP8 ? r / 32 : r, scale_rows = it->w.form == DS_FORM_FP8 ? (n + 31) / 32 : n;
        if (!pwrite_all(f->fd, out, (size_t)(n * row_bytes), f->data_at + it->offset + r * row_bytes) ||
            (it->scale_bytes && !pwrite_all(f->fd, scales, (size_t)(scale_rows * scale_row_bytes),
                                            f->data_at + it->scale_offset + scale_row * scale_row_bytes)))
            atomic_store_explicit(&f->failed, errno, memory_order_relaxed);
    }
    free(x);
}

/* engram.token_map where no tokenizer gives the right number of classes: every class is used. */
static ds_rc write_map(const job *j, const item *it, int fd, uint64_t data_at, const char *name, ds_err *err)
{
    uint32_t n = j->o->config->vocab_size;
    int64_t *map = malloc(n * sizeof *map);
    ds_rc rc = DS_OK;

    if (!map)
        return ds_fail(err, DS_E_NOMEM, "%s: out of memory", name);
    for (uint32_t i = 0; i < n; i++)
        map[i] = i % j->o->config->engram_compressed_vocab_size;
    if (!pwrite_all(fd, map, n * sizeof *map, data_at + it->offset))
        rc = ds_fail(err, DS_E_IO, "%s: %s", name, strerror(errno));
    free(map);
    return rc;
}

static ds_rc fill_tensor(job *j, const item *it, int fd, uint64_t data_at, const char *name, ds_err *err)
{
    bool vector = it->w.ndim == 1;
    fill f = { .j = j,
               .it = it,
               .fd = fd,
               .data_at = data_at,
               .rows = vector ? 1 : it->w.shape[0],
               .cols = vector ? it->w.shape[0] : it->w.shape[1] };
    int failed;

    if (it->dtype == DS_DT_I64)
        return write_map(j, it, fd, data_at, name, err);
    f.chunk_rows = (CHUNK_ELEMENTS / (f.cols ? f.cols : 1)) & ~31ull; /* whole FP8 blocks, and an even number of elements */
    if (f.chunk_rows < 32)
        f.chunk_rows = 32;
    if (f.chunk_rows > f.rows)
        f.chunk_rows = f.rows;
    if (f.rows > f.chunk_rows)
        ds_pool_run(j->pool, fill_rows, &f);
    else
        fill_rows(&f, 0, 1);
    failed = atomic_load_explicit(&f.failed, memory_order_relaxed);
    if (failed)
        return ds_fail(err, failed == ENOMEM ? DS_E_NOMEM : DS_E_IO, "%s: %s", name, strerror(failed));
    if (canceled(j))
        return ds_fail(err, DS_E_CANCELED, "synth: stopped; nothing is left behind");
    j->done += it->bytes + it->scale_bytes;
    if (j->o->progress)
        j->o->progress(j->o->progress_arg, j->done, j->bytes);
    return DS_OK;
}

static ds_rc write_shard(job *j, uint32_t index, ds_err *err)
{
    const shard *s = &j->shards[index];
    ds_buf head = { 0 };
    char name[64];
    int fd;
    ds_rc rc;

    shard_name(name, j, index);
    make_header(&head, j, s);
    if (head.oom)
        rc = ds_fail(err, DS_E_NOMEM, "%s: out of memory", name);
    else if (head.len - 8 > DS_ST_HEADER_MAX_BYTES)
        rc = ds_fail(err, DS_E_ARG, "%s: a header of %zu bytes; at most %u are allowed", name, head.len - 8, DS_ST_HEADER_MAX_BYTES);
    else
        rc = create_in(&fd, j, name, err);
    if (rc != DS_OK) {
        ds_buf_free(&head);
        return rc;
    }
    rc = ds_file_write(fd, head.p, head.len, name, err);
    if (rc == DS_OK && ftruncate(fd, (off_t)(head.len + s->bytes)) == -1)
        rc = ds_fail(err, DS_E_IO, "%s: %s", name, strerror(errno));
    for (uint32_t i = s->first; rc == DS_OK && !j->o->sparse && i < s->first + s->n; i++)
        rc = fill_tensor(j, &j->items[i], fd, head.len, name, err);
    if (rc == DS_OK && canceled(j))
        rc = ds_fail(err, DS_E_CANCELED, "synth: stopped; nothing is left behind");
    ds_buf_free(&head);
    return close_file(fd, name, rc, err);
}

/* ---- the directory ---- */

/* `out` must not be there, or be an empty directory. */
static ds_rc check_target(const char *out, ds_err *err)
{
    char label[112];
    struct stat st;
    DIR *d;
    bool empty = true;

    ds_file_label(label, sizeof label, out);
    if (lstat(out, &st) == -1)
        return errno == ENOENT ? DS_OK : ds_fail(err, DS_E_IO, "%s: %s", label, strerror(errno));
    if (!S_ISDIR(st.st_mode))
        return ds_fail(err, DS_E_IO, "%s: is there and is not a directory", label);
    d = opendir(out);
    if (!d)
        return ds_fail(err, DS_E_IO, "%s: %s", label, strerror(errno));
    for (struct dirent *e; (e = readdir(d)) != NULL;)
        empty = empty && (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0);
    closedir(d);
    return empty ? DS_OK : ds_fail(err, DS_E_IO, "%s: is there and is not empty", label);
}

static ds_rc make_dir(job *j, const char *out, ds_err *err)
{
    char label[112];
    mode_t mask = umask(0);
    struct statvfs vfs;

    umask(mask);
    ds_file_label(label, sizeof label, out);
    if (asprintf(&j->dir, "%s.tmp.XXXXXX", out) < 0) {
        j->dir = NULL;
        return ds_fail(err, DS_E_NOMEM, "%s: out of memory", label);
    }
    if (!mkdtemp(j->dir)) {
        j->dir[0] = '\0';
        return ds_fail(err, DS_E_IO, "%s: %s", label, strerror(errno));
    }
    if (chmod(j->dir, 0777 & ~mask) == -1)
        return ds_fail(err, DS_E_IO, "%s: %s", label, strerror(errno));
    if (!j->o->sparse && statvfs(j->dir, &vfs) == 0 && (uint64_t)vfs.f_bavail * vfs.f_frsize < j->bytes)
        return ds_fail(err, DS_E_IO, "%s: needs %.2f GiB and %.2f GiB are free; --sparse writes no values", label,
                       (double)j->bytes / (1 << 30), (double)vfs.f_bavail * (double)vfs.f_frsize / (1 << 30));
    return DS_OK;
}

static void remove_dir(const char *dir)
{
    DIR *d = opendir(dir);

    for (struct dirent *e; d && (e = readdir(d)) != NULL;)
        unlinkat(dirfd(d), e->d_name, 0); /* fails for . and .. */
    if (d)
        closedir(d);
    rmdir(dir);
}

ds_rc ds_synth_write(const ds_synth_opts *o, ds_synth_result *result, ds_err *err)
{
    job j = { .o = o };
    uint32_t threads = o->n_threads ? o->n_threads : ds_cpu_count();
    char label[112], *out = strdup(o->out);
    size_t n = out ? strlen(out) : 0;
    ds_rc rc;

    *result = (ds_synth_result){ 0 };
    if (!out)
        return ds_fail(err, DS_E_NOMEM, "synth: out of memory");
    while (n > 1 && out[n - 1] == '/')
        out[--n] = '\0';
    rc = n ? check_target(out, err) : ds_fail(err, DS_E_ARG, "synth: the output directory has no name");
    if (rc == DS_OK)
        rc = make_plan(&j, err);
    if (rc == DS_OK)
        rc = ds_pool_create(&j.pool, &(ds_pool_opts){ .n_threads = o->sparse ? 1 : threads < MAX_THREADS ? threads : MAX_THREADS }, err);
    if (rc == DS_OK)
        rc = make_dir(&j, out, err);
    for (uint32_t i = 0; rc == DS_OK && i < j.n_shards; i++)
        rc = write_shard(&j, i, err);
    if (rc == DS_OK)
        rc = write_small_files(&j, result, err);
    if (rc == DS_OK && rename(j.dir, out) == -1)
        rc = ds_fail(err, DS_E_IO, "%s: %s", ds_file_label(label, sizeof label, out), strerror(errno));
    if (rc != DS_OK && j.dir && j.dir[0])
        remove_dir(j.dir);
    result->tensors = j.tensors;
    result->bytes = j.bytes;
    result->shards = j.n_shards;
    ds_pool_destroy(j.pool);
    free(j.dir);
    free(j.items);
    free(j.shards);
    free(out);
    return rc;
}
