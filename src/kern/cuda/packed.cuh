/* MXFP4 weights of experts in the form that the tensor cores take them in, made once when a model is loaded.
 *
 * A tile is 64 outputs. A block is a tile's 128 inputs: 4,096 bytes of codes and 256 of scales. A matrix is
 * [tile][inputs / 128] blocks; of an expert first W1 and W3 as one matrix of 2 * inner outputs, then W2.
 *
 *   codes   [input / 64][thread 0..127][4 words]: word j has the 8 codes of that thread's fragment of A (m16n8k16) in
 *           step j of 16 inputs: warp w = thread / 32 has rows 16 w + g and + 8, g = lane / 4, inputs 2 (lane % 4) and
 *           the next, and both + 8. Where the bits of a code stand is such that `fragment` takes few instructions.
 *   scales  [w][g][8 bytes]: of inputs 0-31 and 32-63 of row g, the same of row g + 8; then for inputs 64-127. The
 *           byte is the code + 126: the exponent of the factor that undoes `fragment`'s 2^-126 and applies the scale.
 *
 * Row g of warp w in a tile of W1 and W3 is output 32 tile + 8 w + g of W1, row g + 8 the same of W3: gate and up of a
 * hidden value are in one thread. In a tile of W2 they are outputs 64 tile + 16 w + 2 g and the next.
 *
 * For layers whose widths are multiples of 256 and whose scales are at most 128 (2.0): others stay in the file's form. */
#ifndef DS_KERN_CUDA_PACKED_CUH
#define DS_KERN_CUDA_PACKED_CUH

#include "common.cuh"

enum { BLOCK_BYTES = 4352, BLOCK_SCALES = 4096, TILE_OUTS = 64, BLOCK_INS = 128, LARGEST_SCALE = 128, PACKED_WIDTH = 256 };

static inline __host__ __device__ size_t packed_bytes(size_t out, size_t in)
{
    return out / TILE_OUTS * (in / BLOCK_INS) * BLOCK_BYTES;
}

/* The four registers of A that a word holds, as bf16 that are too small by 2^126: sign, exponent and mantissa of a code land in bits 15, 8, 7
 * and 6 of a half. */
static __device__ __forceinline__ void fragment(uint32_t a[4], uint32_t w)
{
    a[0] = w & 0x81c081c0u;
    a[1] = __funnelshift_l(w, w, 10) & 0x81c081c0u;
    a[2] = w << 6 & 0x81c081c0u;
    a[3] = (__funnelshift_l(w, w, 12) & 0x80c080c0u) | (__funnelshift_l(w, w, 4) & 0x01000100u);
}

/* The same the other way: half h of register i. */
static __device__ __forceinline__ uint32_t fragment_bits(uint32_t code, int i, int h)
{
    uint32_t u = ((code & 8) << 12 | (code & 7) << 6) << 16 * h;

    switch (i) {
    case 0:
        return u;
    case 1:
        return __funnelshift_r(u, u, 10);
    case 2:
        return u >> 6;
    default:
        return __funnelshift_r(u & 0x80c080c0u, u & 0x80c080c0u, 12) | __funnelshift_r(u & 0x01000100u, u & 0x01000100u, 4);
    }
}

/* Of a word of scales, the factors of rows g (low half) and g + 8 for its first or second 32 inputs. */
static __device__ __forceinline__ uint32_t packed_factors(uint32_t scales, int second)
{
    return (second ? scales >> 1 : scales << 7) & 0x7f807f80u;
}

static __device__ __forceinline__ uint32_t mul_low(uint32_t a, uint32_t f)
{
    uint32_t r;
    asm("{\n.reg .b16 lo, hi;\n.reg .b32 both;\nmov.b32 {lo, hi}, %2;\nmov.b32 both, {lo, lo};\nmul.rn.bf16x2 %0, %1, both;\n}"
        : "=r"(r)
        : "r"(a), "r"(f));
    return r;
}

static __device__ __forceinline__ uint32_t mul_high(uint32_t a, uint32_t f)
{
    uint32_t r;
    asm("{\n.reg .b16 lo, hi;\n.reg .b32 both;\nmov.b32 {lo, hi}, %2;\nmov.b32 both, {hi, hi};\nmul.rn.bf16x2 %0, %1, both;\n}"
        : "=r"(r)
        : "r"(a), "r"(f));
    return r;
}

/* A step's fragment, exact. */
static __device__ __forceinline__ void unpack(uint32_t a[4], uint32_t word, uint32_t factors)
{
    fragment(a, word);
    a[0] = mul_low(a[0], factors);
    a[1] = mul_high(a[1], factors);
    a[2] = mul_low(a[2], factors);
    a[3] = mul_high(a[3], factors);
}

/* Where output o stands: of W1 (which 0) and W3 (1) among both, or of W2 (2). */
typedef struct {
    uint32_t tile, warp, g, high;
} packed_place;

static __device__ __forceinline__ packed_place packed_place_of(int which, uint32_t o)
{
    if (which == 2)
        return { o / 64, o % 64 / 16, o % 16 / 2, o % 2 };
    return { o / 32, o % 32 / 8, o % 8, (uint32_t)which };
}

/* Weight (o, k) of a packed matrix with `in` inputs. */
static __device__ __forceinline__ float packed_value(const uint8_t *m, int which, size_t in, uint32_t o, uint32_t k)
{
    packed_place p = packed_place_of(which, o);
    const uint8_t *block = m + (p.tile * (in / BLOCK_INS) + k / BLOCK_INS) * BLOCK_BYTES;
    uint32_t half = k % 128 / 64, step = k % 64 / 16, thread = p.warp * 32 + p.g * 4 + k % 8 / 2, a[4];
    uint32_t scale = block[BLOCK_SCALES + (p.warp * 8 + p.g) * 8 + half * 4 + p.high * 2 + k % 64 / 32];

    fragment(a, *(const uint32_t *)(block + half * 2048 + thread * 16 + step * 4));
    uint32_t small = a[p.high + 2 * (k % 16 / 8)] >> 16 * (k % 2) & 0xffffu;
    return bf16_value(small) * 0x1p126f * e8m0_value(scale - 126);
}

/* Packs one expert's matrices from their file's form, all in device memory: W1 and W3 [inner][d], W2 [d][inner]. On the legacy stream. */
cudaError_t ds_cuda_pack(uint8_t *w13, uint8_t *w2, const uint8_t *const data[3], const uint8_t *const scale[3], uint32_t d,
                         uint32_t inner);

#endif
