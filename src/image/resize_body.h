/* The sums of a resize, in vectors of eight 32-bit lanes that the compiler maps to what the file including this is
 * built for. Define NAME.
 *
 * A product needs 8 + 23 bits, so the arithmetic is plain 32-bit integers. Rows: eight rows are turned so that the
 * same sample of all eight lies together; then each tap is one widening, one multiplication and one addition for
 * eight outputs, whatever the positions, and the result is turned back. Columns run along the rows anyway. Bound by
 * the multiplications: one for each tap and sample. */
#include <string.h>

#include "image/image_internal.h"

typedef int32_t v8i __attribute__((vector_size(32)));
typedef int16_t v8s __attribute__((vector_size(16)));
typedef uint8_t v16b __attribute__((vector_size(16)));

#define INLINE static inline __attribute__((always_inline)) /* vectors aren't passed between functions */

/* Eight bytes to eight lanes, in two steps that every instruction set has. */
INLINE v8i widen(const uint8_t *p)
{
    v16b b = { 0 };

    memcpy(&b, p, 8);
    b = __builtin_shufflevector(b, (v16b){ 0 }, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    return __builtin_convertvector((v8s)b, v8i);
}

/* Rounded, cut to 0 .. 255, stored as bytes. */
INLINE void store8(uint8_t *to, v8i sum)
{
    v8i v = (sum + (1 << (DS_RESAMPLE_BITS - 1))) >> DS_RESAMPLE_BITS, over;
    v16b b;

    v &= ~(v >> 31);
    over = v > 255;
    v = (v & ~over) | (over & 255);
    b = (v16b) __builtin_convertvector(v, v8s);
    b = __builtin_shufflevector(b, b, 0, 2, 4, 6, 8, 10, 12, 14, 0, 0, 0, 0, 0, 0, 0, 0);
    memcpy(to, &b, 8);
}

INLINE void swap_parts(uint64_t *a, uint64_t *b, int bits, uint64_t mask)
{
    uint64_t t = ((*a >> bits) ^ *b) & mask;

    *b ^= t;
    *a ^= t << bits;
}

/* 8 x 8 bytes: byte c of word r becomes byte r of word c. Halves, quarters, eighths change places between words. */
INLINE void turn8(uint64_t a[8])
{
    for (int i = 0; i < 4; i++)
        swap_parts(&a[i], &a[i + 4], 32, 0x00000000FFFFFFFFu);
    for (int i = 0; i < 2; i++) {
        swap_parts(&a[i], &a[i + 2], 16, 0x0000FFFF0000FFFFu);
        swap_parts(&a[i + 4], &a[i + 6], 16, 0x0000FFFF0000FFFFu);
    }
    for (int i = 0; i < 8; i += 2)
        swap_parts(&a[i], &a[i + 1], 8, 0x00FF00FF00FF00FFu);
}

/* Eight rows of n bytes, `stride` apart, to n columns of eight bytes. */
static void to_columns(uint8_t *columns, const uint8_t *rows, size_t stride, size_t n)
{
    size_t x = 0;

    for (; x + 8 <= n; x += 8) {
        uint64_t a[8];

        for (int r = 0; r < 8; r++)
            memcpy(&a[r], rows + (size_t)r * stride + x, 8);
        turn8(a);
        memcpy(columns + 8 * x, a, sizeof a);
    }
    for (; x < n; x++)
        for (size_t r = 0; r < 8; r++)
            columns[8 * x + r] = rows[r * stride + x];
}

/* And back, the first n_rows of them. */
static void to_rows(uint8_t *rows, size_t stride, const uint8_t *columns, size_t n, uint32_t n_rows)
{
    size_t x = 0;

    for (; x + 8 <= n; x += 8) {
        uint64_t a[8];

        memcpy(a, columns + 8 * x, sizeof a);
        turn8(a);
        for (uint32_t r = 0; r < n_rows; r++)
            memcpy(rows + r * stride + x, &a[r], 8);
    }
    for (; x < n; x++)
        for (uint32_t r = 0; r < n_rows; r++)
            rows[r * stride + x] = columns[8 * x + r];
}

static void rows_body(const ds_resample *r, uint8_t *out, size_t stride, const uint8_t *rows, uint32_t n, uint8_t *scratch)
{
    uint8_t *in = scratch, *done = scratch + (size_t)DS_RESIZE_ROWS * 3 * r->in;

    to_columns(in, rows, (size_t)r->in * 3, (size_t)r->in * 3);
    for (uint32_t i = 0; i < r->out; i++) {
        const uint8_t *at = in + (size_t)r->first[i] * 24;
        const int32_t *w = r->weight + (size_t)i * r->taps;
        v8i red = { 0 }, green = { 0 }, blue = { 0 };

        for (uint32_t k = 0; k < r->count[i]; k++, at += 24) {
            red += widen(at) * w[k];
            green += widen(at + 8) * w[k];
            blue += widen(at + 16) * w[k];
        }
        store8(done + (size_t)i * 24, red);
        store8(done + (size_t)i * 24 + 8, green);
        store8(done + (size_t)i * 24 + 16, blue);
    }
    to_rows(out, stride, done, (size_t)r->out * 3, n);
}

static void column_body(const ds_resample *r, uint32_t i, uint8_t *out, const uint8_t *in, size_t n)
{
    const int32_t *w = r->weight + (size_t)i * r->taps;
    size_t x = 0;

    in += (size_t)r->first[i] * n;
    for (; x + 32 <= n; x += 32) {
        v8i sum[4] = { 0 };

        for (uint32_t k = 0; k < r->count[i]; k++)
            for (int q = 0; q < 4; q++)
                sum[q] += widen(in + k * n + x + 8 * q) * w[k];
        for (int q = 0; q < 4; q++)
            store8(out + x + 8 * q, sum[q]);
    }
    for (; x < n; x++) {
        int32_t sum = 1 << (DS_RESAMPLE_BITS - 1);

        for (uint32_t k = 0; k < r->count[i]; k++)
            sum += in[k * n + x] * w[k];
        sum >>= DS_RESAMPLE_BITS;
        out[x] = (uint8_t)(sum < 0 ? 0 : sum > 255 ? 255 : sum);
    }
}

const ds_resize_kern NAME = { rows_body, column_body };
