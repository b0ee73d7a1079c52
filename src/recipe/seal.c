#include "recipe/seal.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/rand.h>

#include "base/hash.h"

#define MAGIC "ds1"
#define ID_BYTES 8
#define NONCE_BYTES 12
#define TAG_BYTES 16
#define HEAD_BYTES (sizeof MAGIC - 1 + ID_BYTES)
#define EXTRA_BYTES (HEAD_BYTES + NONCE_BYTES + TAG_BYTES)
#define MAX_TEXT ((size_t)64 << 20)

struct ds_seal {
    size_t n;
    struct {
        uint8_t key[DS_SEAL_KEY_BYTES], id[ID_BYTES];
    } keys[DS_SEAL_MAX_KEYS];
};

ds_rc ds_seal_create(ds_seal **out, const uint8_t (*keys)[DS_SEAL_KEY_BYTES], size_t n_keys, ds_err *err)
{
    ds_seal *s;

    *out = NULL;
    if (n_keys == 0 || n_keys > DS_SEAL_MAX_KEYS)
        return ds_fail(err, DS_E_ARG, "%zu sealing keys, expected 1 to %d", n_keys, DS_SEAL_MAX_KEYS);
    s = calloc(1, sizeof *s);
    if (!s)
        return ds_fail(err, DS_E_NOMEM, "sealing keys: out of memory");
    s->n = n_keys;
    for (size_t i = 0; i < n_keys; i++) {
        uint8_t digest[32];

        memcpy(s->keys[i].key, keys[i], DS_SEAL_KEY_BYTES);
        ds_sha256(digest, keys[i], DS_SEAL_KEY_BYTES);
        memcpy(s->keys[i].id, digest, ID_BYTES);
    }
    *out = s;
    return DS_OK;
}

void ds_seal_destroy(ds_seal *s)
{
    if (!s)
        return;
    OPENSSL_cleanse(s, sizeof *s);
    free(s);
}

/* ---- base64url without padding ---- */

static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

static size_t encoded_bytes(size_t n)
{
    return n / 3 * 4 + (n % 3 ? n % 3 + 1 : 0);
}

static void encode(char *out, const uint8_t *in, size_t n)
{
    size_t i = 0;

    for (; i + 3 <= n; i += 3, out += 4) {
        uint32_t v = (uint32_t)in[i] << 16 | (uint32_t)in[i + 1] << 8 | in[i + 2];

        out[0] = letters[v >> 18];
        out[1] = letters[v >> 12 & 63];
        out[2] = letters[v >> 6 & 63];
        out[3] = letters[v & 63];
    }
    if (n - i == 1) {
        out[0] = letters[in[i] >> 2];
        out[1] = letters[(in[i] & 3) << 4];
    } else if (n - i == 2) {
        out[0] = letters[in[i] >> 2];
        out[1] = letters[(in[i] & 3) << 4 | in[i + 1] >> 4];
        out[2] = letters[(in[i + 1] & 15) << 2];
    }
}

static int value_of(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '-' ? 62 : c == '_' ? 63 : -1;
}

/* Strict: one spelling for each byte string. Returns false when malformed. */
static int decode(uint8_t *out, const char *in, size_t n)
{
    uint32_t acc = 0, bits = 0;

    if (n % 4 == 1)
        return 0;
    for (size_t i = 0; i < n; i++) {
        int v = value_of(in[i]);

        if (v < 0)
            return 0;
        acc = acc << 6 | (uint32_t)v;
        bits += 6;
        if (bits >= 8) {
            bits -= 8;
            *out++ = (uint8_t)(acc >> bits);
            acc &= (1u << bits) - 1;
        }
    }
    return acc == 0;
}

size_t ds_seal_blob_bytes(size_t text_bytes)
{
    return encoded_bytes(text_bytes + EXTRA_BYTES);
}

size_t ds_seal_opened_max(size_t blob_bytes)
{
    size_t raw = blob_bytes / 4 * 3 + 2;

    return raw > EXTRA_BYTES ? raw - EXTRA_BYTES : 0;
}

ds_rc ds_seal_close(const ds_seal *s, const char *text, size_t n, char *out, ds_err *err)
{
    uint8_t *raw = NULL, *head, *nonce, *body, *tag;
    EVP_CIPHER_CTX *ctx = NULL;
    int len = 0;
    ds_rc rc = DS_E_NOMEM;

    if (n > MAX_TEXT)
        return ds_fail(err, DS_E_ARG, "%zu bytes of reasoning can't be sealed", n);
    raw = malloc(n + EXTRA_BYTES);
    ctx = EVP_CIPHER_CTX_new();
    if (!raw || !ctx) {
        ds_fail(err, rc, "sealing: out of memory");
        goto done;
    }
    head = raw;
    nonce = head + HEAD_BYTES;
    body = nonce + NONCE_BYTES;
    tag = body + n;
    memcpy(head, MAGIC, sizeof MAGIC - 1);
    memcpy(head + sizeof MAGIC - 1, s->keys[0].id, ID_BYTES);
    if (RAND_bytes(nonce, NONCE_BYTES) != 1) {
        rc = ds_fail(err, DS_E_IO, "sealing: no random numbers");
        goto done;
    }
    if (EVP_EncryptInit_ex(ctx, EVP_aes_256_gcm(), NULL, s->keys[0].key, nonce) != 1 ||
        EVP_EncryptUpdate(ctx, NULL, &len, head, HEAD_BYTES) != 1 ||
        EVP_EncryptUpdate(ctx, body, &len, (const uint8_t *)text, (int)n) != 1 || EVP_EncryptFinal_ex(ctx, body + len, &len) != 1 ||
        EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_GCM_GET_TAG, TAG_BYTES, tag) != 1) {
        ds_fail(err, rc, "sealing: the cipher failed");
        goto done;
    }
    encode(out, raw, n + EXTRA_BYTES);
    rc = DS_OK;
done:
    EVP_CIPHER_CTX_free(ctx);
    free(raw);
    return rc;
}

ds_rc ds_seal_open(const ds_seal *s, const char *blob, size_t n, char *out, size_t cap, size_t *out_n, ds_err *err)
{
    size_t raw_n = n / 4 * 3 + (n % 4 ? n % 4 - 1 : 0), text_n, k = 0;
    uint8_t *raw, *nonce, *body;
    EVP_CIPHER_CTX *ctx = NULL;
    int len = 0, more = 0;
    ds_rc rc = DS_E_NOMEM;

    *out_n = 0;
    if (raw_n < EXTRA_BYTES || raw_n > MAX_TEXT + EXTRA_BYTES || raw_n - EXTRA_BYTES > cap)
        return ds_fail(err, DS_E_FORMAT, "sealed text of %zu characters", n);
    raw = malloc(raw_n + 4);
    ctx = EVP_CIPHER_CTX_new();
    if (!raw || !ctx) {
        ds_fail(err, rc, "opening sealed text: out of memory");
        goto done;
    }
    rc = DS_E_FORMAT;
    if (!decode(raw, blob, n) || memcmp(raw, MAGIC, sizeof MAGIC - 1) != 0) {
        ds_fail(err, rc, "not a sealed text");
        goto done;
    }
    while (k < s->n && memcmp(raw + sizeof MAGIC - 1, s->keys[k].id, ID_BYTES) != 0)
        k++;
    if (k == s->n) {
        ds_fail(err, rc, "text sealed with a key that is not ours");
        goto done;
    }
    nonce = raw + HEAD_BYTES;
    body = nonce + NONCE_BYTES;
    text_n = raw_n - EXTRA_BYTES;
    if (EVP_DecryptInit_ex(ctx, EVP_aes_256_gcm(), NULL, s->keys[k].key, nonce) != 1 ||
        EVP_DecryptUpdate(ctx, NULL, &len, raw, HEAD_BYTES) != 1 || EVP_DecryptUpdate(ctx, (uint8_t *)out, &len, body, (int)text_n) != 1 ||
        EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_GCM_SET_TAG, TAG_BYTES, body + text_n) != 1 ||
        EVP_DecryptFinal_ex(ctx, (uint8_t *)out + len, &more) != 1) {
        OPENSSL_cleanse(out, text_n);
        ds_fail(err, rc, "damaged sealed text");
        goto done;
    }
    *out_n = text_n;
    rc = DS_OK;
done:
    EVP_CIPHER_CTX_free(ctx);
    free(raw);
    return rc;
}
