/* What the bodies of attention share. */
#ifndef DS_KERN_CUDA_ATTENTION_CUH
#define DS_KERN_CUDA_ATTENTION_CUH

#include "common.cuh"

/* What a row sees: positions first .. first + n_win - 1, then n - n_win selected entries. */
typedef struct {
    int32_t first;
    uint32_t n_win, n;
} key_list;

static __device__ __forceinline__ key_list list_of(const ds_step &st, const ds_op_attention &a, uint32_t r, uint32_t s)
{
    int32_t p = st.pos[r], pos0 = st.pos0[s], window = (int32_t)a.window;
    int32_t first = a.bidir ? pos0 - window : p - window + 1, last = a.bidir ? pos0 + (int32_t)st.count[s] - 1 : p;
    key_list l;

    l.first = max(0, max(first, st.win_lo[s]));
    l.n_win = last >= l.first ? (uint32_t)(last - l.first + 1) : 0;
    l.n = l.n_win + (a.sel ? a.n_sel[r] : 0);
    return l;
}

/* bf16 mode, entries of MMA_DIM columns (attention_mma.cu). */
enum { MMA_DIM = 512 };
void ds_attention_mma(ds_exec *e, const ds_op_attention *a);

#endif
