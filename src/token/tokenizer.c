/* The tokenizer object: opening, and what it says about single tokens. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "token/tokenizer_internal.h"

void ds_tok_alphabet(uint16_t of_byte[256], uint16_t of_char[0x144])
{
    uint16_t next = 0x100;

    memset(of_char, 0, 0x144 * sizeof *of_char);
    for (uint16_t b = 0; b < 256; b++) {
        bool same = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        of_byte[b] = same ? b : next++;
        of_char[of_byte[b]] = (uint16_t)(b + 1);
    }
}

static ds_rc read_file(const char *path, char **out, size_t *n, ds_err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not hang us */
    char *text = NULL;
    size_t got = 0, size;
    struct stat st;
    ds_rc rc = DS_OK;

    *out = NULL;
    if (fd == -1 || fstat(fd, &st) == -1) {
        rc = ds_fail(err, DS_E_IO, "%s", strerror(errno));
        goto done;
    }
    if (!S_ISREG(st.st_mode)) {
        rc = ds_fail(err, DS_E_IO, "not a regular file");
        goto done;
    }
    if (st.st_size > DS_TOKENIZER_FILE_MAX) {
        rc = ds_fail(err, DS_E_FORMAT, "%lld bytes; the limit is %u", (long long)st.st_size, DS_TOKENIZER_FILE_MAX);
        goto done;
    }
    size = (size_t)st.st_size;
    text = ds_malloc_large(size + 1);
    if (!text) {
        rc = ds_fail(err, DS_E_NOMEM, "out of memory (%zu bytes)", size);
        goto done;
    }
    while (got < size) {
        ssize_t r = read(fd, text + got, size - got);
        if (r == -1 && errno == EINTR)
            continue;
        if (r <= 0) {
            rc = ds_fail(err, DS_E_IO, "%s", r == 0 ? "the file became shorter while it was read" : strerror(errno));
            goto done;
        }
        got += (size_t)r;
    }
    *out = text;
    *n = size;
    text = NULL;
done:
    free(text);
    if (fd != -1)
        close(fd);
    return rc;
}

ds_rc ds_tokenizer_open(ds_tokenizer **out, const char *path, ds_err *err)
{
    char quoted[256], *text;
    size_t n = 0;
    ds_rc rc = read_file(path, &text, &n, err);

    *out = NULL;
    if (rc == DS_OK) {
        rc = ds_tokenizer_parse(out, text, n, err);
        free(text);
    }
    return rc == DS_OK ? rc : ds_err_prefix(err, rc, "%.120s: ", ds_quote(quoted, sizeof quoted, path, strlen(path)));
}

void ds_tokenizer_destroy(ds_tokenizer *t)
{
    if (!t)
        return;
    free(t->bytes);
    free(t->entry);
    free(t->byte_rank);
    free(t->pair);
    free(t->merge_id);
    free(t->vocab.slot);
    free(t->added.slot);
    free(t->join_pair);
    free(t->char_id);
    ds_tok_regex_destroy(t->regex);
    free(t);
}

uint32_t ds_tokenizer_size(const ds_tokenizer *t)
{
    return t->n;
}

size_t ds_tokenizer_max_bytes(const ds_tokenizer *t)
{
    return t->max_bytes;
}

const char *ds_tokenizer_bytes(const ds_tokenizer *t, ds_token id, size_t *n)
{
    *n = 0;
    if ((uint32_t)id >= t->n)
        return "";
    *n = t->entry[id].len;
    return (const char *)ds_tok_bytes(t, (uint32_t)id);
}

uint32_t ds_tok_find(const ds_tokenizer *t, const uint8_t *p, size_t n, bool literal)
{
    uint32_t id = ds_tok_lookup(t, &t->vocab, ds_tok_hash(p, n, t->seed ^ literal), p, n);

    return id != DS_NONE && t->entry[id].literal == literal ? id : DS_NONE;
}

uint32_t ds_tok_find_added(const ds_tokenizer *t, const uint8_t *p, size_t n)
{
    return ds_tok_lookup(t, &t->added, ds_tok_hash(p, n, t->seed), p, n);
}

ds_token ds_tokenizer_control_n(const ds_tokenizer *t, const char *spelling, size_t n)
{
    return (ds_token)ds_tok_find_added(t, (const uint8_t *)spelling, n); /* DS_NONE becomes DS_TOKEN_NONE */
}

ds_token ds_tokenizer_control(const ds_tokenizer *t, const char *spelling)
{
    return ds_tokenizer_control_n(t, spelling, strlen(spelling));
}

ds_token_kind ds_tokenizer_kind(const ds_tokenizer *t, ds_token id)
{
    if ((uint32_t)id >= t->n)
        return DS_TOKEN_UNKNOWN;
    if (t->entry[id].dropped)
        return DS_TOKEN_DROPPED;
    return t->entry[id].added ? DS_TOKEN_CONTROL : DS_TOKEN_TEXT;
}
