/* What Hopper adds, as functions: bulk copies that arrive at barriers in shared memory, products of a warpgroup, registers that move
 * between warpgroups. Addresses of shared memory are 32-bit numbers here: pointers made from them would be generic, and slower. */
#ifndef DS_KERN_CUDA_HOPPER_CUH
#define DS_KERN_CUDA_HOPPER_CUH

#include "common.cuh"

static __device__ __forceinline__ uint32_t shared_at(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* ---- barriers ---- */

static __device__ __forceinline__ void barrier_init(uint32_t bar, uint32_t count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}

/* After the last init, before anything else uses them. */
static __device__ __forceinline__ void barriers_are_ready(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    __syncthreads();
}

static __device__ __forceinline__ void barrier_arrive(uint32_t bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

/* Arrives, and has the phase wait for so many bytes of bulk copies too. */
static __device__ __forceinline__ void barrier_expect(uint32_t bar, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}

/* Until the phase of this parity is over. */
static __device__ __forceinline__ void barrier_wait(uint32_t bar, uint32_t parity)
{
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n"
                 "}" ::"r"(bar),
                 "r"(parity)
                 : "memory");
}

/* Threads of a named barrier: `id` 1..15. */
static __device__ __forceinline__ void group_sync(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* ---- bulk copies: one thread sends, 16-byte aligned ---- */

static __device__ __forceinline__ uint64_t policy_once(void)
{
    uint64_t p;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(p));
    return p;
}

static __device__ __forceinline__ uint64_t policy_keep(void)
{
    uint64_t p;
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(p));
    return p;
}

static __device__ __forceinline__ uint64_t policy_none(void)
{
    uint64_t p;
    asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(p));
    return p;
}

static __device__ __forceinline__ void bulk_copy(uint32_t to, const void *from, uint32_t bytes, uint32_t bar, uint64_t policy)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(bar), "l"(policy)
                 : "memory");
}

/* Between what threads store or load and what bulk copies and warpgroup products see of it. */
static __device__ __forceinline__ void proxy_fence(void)
{
    asm volatile("fence.proxy.async;" ::: "memory");
}

/* The same of this block's shared memory alone, which doesn't wait for what is on its way to the device's. */
static __device__ __forceinline__ void proxy_fence_shared(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* ---- counters between blocks ---- */

static __device__ __forceinline__ void count_up(uint32_t *at)
{
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(at) : "memory");
}

static __device__ __forceinline__ uint32_t count_of(const uint32_t *at)
{
    uint32_t n;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(n) : "l"(at) : "memory");
    return n;
}

/* ---- clusters ---- */

/* All threads of a cluster; what they wrote to shared memory is seen by all. */
static __device__ __forceinline__ void cluster_sync(void)
{
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* Address `at` of this block's shared memory in the block of that rank. */
static __device__ __forceinline__ uint32_t in_block(uint32_t at, uint32_t rank)
{
    uint32_t r;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(at), "r"(rank));
    return r;
}

static __device__ __forceinline__ float4 cluster_16(uint32_t at)
{
    float4 v;
    asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(at));
    return v;
}

/* ---- copies of 16 bytes by every thread ---- */

/* Zeros if not `inside`; `from` must be a valid address all the same. */
static __device__ __forceinline__ void copy_16(uint32_t to, const void *from, bool inside)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(inside ? 16 : 0) : "memory");
}

static __device__ __forceinline__ void copies_sent(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int LEFT> static __device__ __forceinline__ void copies_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

/* Arrives when this thread's copies so far are there. */
static __device__ __forceinline__ void barrier_arrive_with_copies(uint32_t bar)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bar) : "memory");
}

/* ---- registers ---- */

/* All warps of a warpgroup. */
template <int N> static __device__ __forceinline__ void take_registers(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> static __device__ __forceinline__ void give_registers(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

/* ---- shared memory to registers ---- */

static __device__ __forceinline__ uint4 shared_16(uint32_t at)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
    return v;
}

static __device__ __forceinline__ uint32_t shared_4(uint32_t at)
{
    uint32_t v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at));
    return v;
}

static __device__ __forceinline__ uint32_t shared_1(uint32_t at)
{
    uint32_t v;
    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(at));
    return v;
}

static __device__ __forceinline__ uint2 shared_8(uint32_t at)
{
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at));
    return v;
}

static __device__ __forceinline__ void put_shared_4(uint32_t at, uint32_t v)
{
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(v) : "memory");
}

static __device__ __forceinline__ void put_shared_8(uint32_t at, uint2 v)
{
    asm volatile("st.shared.v2.u32 [%0], {%1,%2};" ::"r"(at), "r"(v.x), "r"(v.y) : "memory");
}

static __device__ __forceinline__ void put_shared_16(uint32_t at, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(at), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

/* Four 8x8 matrices of 16 bits; lane 8 i + r has the address of row r of matrix i. */
static __device__ __forceinline__ void matrices(uint32_t r[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at));
}

/* Lane l has row l / 4, columns 2 (l % 4) and the next; afterwards of the matrix turned over. */
static __device__ __forceinline__ uint32_t turned(uint32_t v)
{
    uint32_t r;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(v));
    return r;
}

/* ---- values ---- */

/* Two floats rounded to bf16 by the hardware; the first is the low half. */
static __device__ __forceinline__ uint32_t bf16_pair(float lo, float hi)
{
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
}

static __device__ __forceinline__ float low_of(uint32_t pair)
{
    return float_of(pair << 16);
}

static __device__ __forceinline__ float high_of(uint32_t pair)
{
    return float_of(pair & 0xffff0000u);
}

/* ---- products of a warpgroup: D [64][N] += A [64][16] (registers) * B [N][16] (shared memory) ---- */

/* B in rows of 128 bytes, their 16-byte pieces XOR row % 8, rows together, 1024-byte aligned; k16 steps are 32 bytes apart. */
static __device__ __forceinline__ uint64_t rows_128(uint32_t at)
{
    return (uint64_t)(at >> 4 & 0x3fff) | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

static __device__ __forceinline__ void wgmma_begin(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void wgmma_send(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Until at most LEFT groups are under way. */
template <int LEFT> static __device__ __forceinline__ void wgmma_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

static __device__ __forceinline__ void mma16(float (&c)[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* The accumulators of a thread: for each 8 columns as those of mma.sync m16n8k16, warps one below the other. add false: they are set. */
#define REGS_0 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define REGS_16 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define REGS_32 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define REGS_48 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define REGS_64 "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define REGS_80 "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define REGS_96 "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111"
#define REGS_112 "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define ACC_4(c) "+f"((c)[0]), "+f"((c)[1]), "+f"((c)[2]), "+f"((c)[3])
#define ACC_16(c, i) ACC_4(c[i]), ACC_4(c[i + 1]), ACC_4(c[i + 2]), ACC_4(c[i + 3])
#define WGMMA(n, regs, a0, a1, a2, a3, b, add)       \
    "{\n.reg .pred p;\nsetp.ne.b32 p, " add ", 0;\n" \
    "wgmma.mma_async.sync.aligned.m64n" n "k16.f32.bf16.bf16 {" regs "}, {" a0 "," a1 "," a2 "," a3 "}, " b ", p, 1, 1, 0;\n}"

static __device__ __forceinline__ void wgmma(float (&c)[4][4], const uint32_t a[4], uint64_t b, bool add)
{
    asm volatile(WGMMA("32", REGS_0, "%16", "%17", "%18", "%19", "%20", "%21")
                 : ACC_16(c, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add));
}

static __device__ __forceinline__ void wgmma(float (&c)[8][4], const uint32_t a[4], uint64_t b, bool add)
{
    asm volatile(WGMMA("64", REGS_0 "," REGS_16, "%32", "%33", "%34", "%35", "%36", "%37")
                 : ACC_16(c, 0), ACC_16(c, 4)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add));
}

static __device__ __forceinline__ void wgmma(float (&c)[11][4], const uint32_t a[4], uint64_t b, bool add)
{
    asm volatile(
        WGMMA("88", REGS_0 "," REGS_16 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43", "%44", "%45", "%46", "%47", "%48", "%49")
        : ACC_16(c, 0), ACC_16(c, 4), ACC_4(c[8]), ACC_4(c[9]), ACC_4(c[10])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add));
}

static __device__ __forceinline__ void wgmma(float (&c)[12][4], const uint32_t a[4], uint64_t b, bool add)
{
    asm volatile(WGMMA("96", REGS_0 "," REGS_16 "," REGS_32, "%48", "%49", "%50", "%51", "%52", "%53")
                 : ACC_16(c, 0), ACC_16(c, 4), ACC_16(c, 8)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add));
}

static __device__ __forceinline__ void wgmma(float (&c)[16][4], const uint32_t a[4], uint64_t b, bool add)
{
    asm volatile(WGMMA("128", REGS_0 "," REGS_16 "," REGS_32 "," REGS_48, "%64", "%65", "%66", "%67", "%68", "%69")
                 : ACC_16(c, 0), ACC_16(c, 4), ACC_16(c, 8), ACC_16(c, 12)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add));
}

/* A in shared memory too, as rows_128. */
static __device__ __forceinline__ void wgmma_shared(float (&c)[8][4], uint64_t a, uint64_t b, bool add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" REGS_0 "," REGS_16 "}, %32, %33, p, 1, 1, 0, 0;\n}"
                 : ACC_16(c, 0), ACC_16(c, 4)
                 : "l"(a), "l"(b), "r"((int)add));
}

/* B [16][N] in shared memory, rows of 64 columns together in 128 bytes as rows_128 has them; the next 64 columns `apart` bytes further. */
static __device__ __forceinline__ uint64_t columns_128(uint32_t at, uint32_t apart)
{
    return (uint64_t)(at >> 4 & 0x3fff) | (uint64_t)(apart >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

static __device__ __forceinline__ void wgmma_turned(float (&c)[32][4], const uint32_t a[4], uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" REGS_0 "," REGS_16 "," REGS_32 "," REGS_48 "," REGS_64
                 "," REGS_80 "," REGS_96 "," REGS_112 "}, {%128,%129,%130,%131}, %132, 1, 1, 1, 1;"
                 : ACC_16(c, 0), ACC_16(c, 4), ACC_16(c, 8), ACC_16(c, 12), ACC_16(c, 16), ACC_16(c, 20), ACC_16(c, 24), ACC_16(c, 28)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

/* Accumulators are read or written by threads from here on. */
template <int NT> static __device__ __forceinline__ void wgmma_settled(float (&c)[NT][4])
{
#pragma unroll
    for (int n = 0; n < NT; n++)
        asm volatile("" : ACC_4(c[n])::"memory");
}

#endif
