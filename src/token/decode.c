/* Ids to text, a piece at a time. */
#include "token/tokenizer_internal.h"

void ds_decoder_init(ds_decoder *d, const ds_tokenizer *t, bool keep_dropped)
{
    *d = (ds_decoder){ .t = t, .keep_dropped = keep_dropped };
}

size_t ds_decoder_room(const ds_tokenizer *t)
{
    return 3 * ((size_t)t->max_bytes + 3);
}

/* How many bytes at p (n > 0) belong together: a character (*valid), the longest beginning of one, or a single byte
 * that begins none. */
static size_t subpart(const uint8_t *p, size_t n, bool *valid)
{
    uint8_t low = 0x80, high = 0xbf; /* what the second byte may be */
    size_t len, i;

    *valid = false;
    if (p[0] < 0x80) {
        *valid = true;
        return 1;
    }
    if (p[0] < 0xc2 || p[0] > 0xf4)
        return 1;
    len = p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
    if (p[0] == 0xe0)
        low = 0xa0;
    else if (p[0] == 0xed)
        high = 0x9f;
    else if (p[0] == 0xf0)
        low = 0x90;
    else if (p[0] == 0xf4)
        high = 0x8f;
    for (i = 1; i < len && i < n; i++) {
        if (p[i] < low || p[i] > high)
            return i;
        low = 0x80;
        high = 0xbf;
    }
    *valid = i == len;
    return i;
}

static size_t put_replacement(char *out)
{
    memcpy(out, "\xef\xbf\xbd", 3);
    return 3;
}

static void account(ds_decoder *d, uint32_t n, uint32_t *n_tokens)
{
    d->held_tokens -= n;
    if (n_tokens)
        *n_tokens = n;
}

size_t ds_decoder_push(ds_decoder *d, ds_token id, char *out, uint32_t *n_tokens)
{
    ds_token_kind kind = ds_tokenizer_kind(d->t, id);
    const uint8_t *p;
    size_t n, at = 0, wrote = 0;

    d->held_tokens++;
    p = (const uint8_t *)ds_tokenizer_bytes(d->t, id, &n);
    if (n == 0 || (kind == DS_TOKEN_DROPPED && !d->keep_dropped)) {
        account(d, d->n_held ? 0 : d->held_tokens, n_tokens);
        return 0;
    }
    /* First complete, or give up, what is held: at most three bytes, and three more decide it. */
    if (d->n_held) {
        uint8_t head[6];
        size_t take = n - at < 3 ? n - at : 3, part;
        bool valid;

        memcpy(head, d->held, d->n_held);
        memcpy(head + d->n_held, p + at, take);
        part = subpart(head, d->n_held + take, &valid);
        if (!valid && part == d->n_held + take) { /* still open */
            memcpy(d->held, head, part);
            d->n_held = (uint8_t)part;
            account(d, 0, n_tokens);
            return 0;
        }
        if (valid)
            memcpy(out, head, part);
        wrote = valid ? part : put_replacement(out);
        /* held bytes are always the beginning of one character: all of them go at once */
        at += part - d->n_held;
        d->n_held = 0;
    }
    while (at < n) {
        bool valid;
        size_t run = at, part;

        while (run < n && p[run] < 0x80)
            run++;
        memcpy(out + wrote, p + at, run - at);
        wrote += run - at;
        at = run;
        if (at == n)
            break;
        part = subpart(p + at, n - at, &valid);
        if (valid) {
            memcpy(out + wrote, p + at, part);
            wrote += part;
        } else if (at + part == n && p[at] >= 0xc2 && p[at] <= 0xf4) {
            memcpy(d->held, p + at, part);
            d->n_held = (uint8_t)part;
            account(d, wrote ? d->held_tokens - 1 : 0, n_tokens);
            return wrote;
        } else {
            wrote += put_replacement(out + wrote);
        }
        at += part;
    }
    account(d, d->held_tokens, n_tokens);
    return wrote;
}

size_t ds_decoder_finish(ds_decoder *d, bool replace, char *out, uint32_t *n_tokens)
{
    size_t wrote = replace && d->n_held ? put_replacement(out) : 0;
    uint32_t n = wrote ? d->held_tokens : 0;

    ds_decoder_init(d, d->t, d->keep_dropped);
    if (n_tokens)
        *n_tokens = n;
    return wrote;
}
