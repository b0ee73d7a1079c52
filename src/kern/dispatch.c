/* Which bodies make up the table. */
#include "kern/kern.h"

#include <string.h>

#include "kern/cpu/cpu.h"
#include "kern/ref/ref.h"

static const ds_kern ref_table = {
    .name = "ref",
    .scratch_bytes = ds_scratch_bytes_ref,
    .rows = ds_rows_ref,
    .linear = ds_linear_ref,
    .dequant = ds_dequant_ref,
    .rmsnorm = ds_rmsnorm_ref,
    .rope = ds_rope_ref,
    .add = ds_add_ref,
    .swiglu = ds_swiglu_ref,
    .gelu = ds_gelu_ref,
    .argmax = ds_argmax_ref,
    .copy = ds_copy_ref,
    .scatter = ds_scatter_ref,
    .finite = ds_finite_ref,
    .embed = ds_embed_ref,
    .mhc = ds_mhc_ref,
    .stream_mean = ds_stream_mean_ref,
    .ring_store = ds_ring_store_ref,
    .ring_load = ds_ring_load_ref,
    .win_quant = ds_win_quant_ref,
    .idx_quant = ds_idx_quant_ref,
    .pool_pairs = ds_pool_pairs_ref,
    .kv_store = ds_kv_store_ref,
    .idx_store = ds_idx_store_ref,
    .index_topk = ds_index_topk_ref,
    .attention = ds_attention_ref,
    .route = ds_route_ref,
    .experts_part = ds_experts_part_ref,
    .experts_sum = ds_experts_sum_ref,
    .engram_hash = ds_engram_hash_ref,
    .engram_gather = ds_engram_gather_ref,
    .engram_fuse = ds_engram_fuse_ref,
    .rope2d = ds_rope2d_ref,
    .vit_attention = ds_vit_attention_ref,
    .cells = ds_cells_ref,
    .sample = ds_sample_ref,
    .accept = ds_accept_ref,
};

static bool has_ref(const char **lacks)
{
    *lacks = "";
    return true;
}

static void use_ref(ds_kern *k)
{
    *k = ref_table;
}

/* From the plainest to the best. */
static const struct {
    const char *name;
    bool (*has)(const char **lacks);
    void (*use)(ds_kern *k);
} sets[] = {
    { "ref", has_ref, use_ref },
#ifdef __x86_64__
    { "avx2", ds_cpu_has_avx2, ds_cpu_use_avx2 },
    { "avx512", ds_cpu_has_avx512, ds_cpu_use_avx512 },
    { "amx", ds_cpu_has_amx, ds_cpu_use_amx },
#endif
};

ds_rc ds_kern_init(ds_kern *k, const char *want, ds_err *err)
{
    const char *lacks;
    size_t i = sizeof sets / sizeof *sets;

    *k = ref_table;
    while (i-- > 0) {
        if (want && strcmp(want, sets[i].name) != 0)
            continue;
        if (sets[i].has(&lacks)) {
            sets[i].use(k);
            return DS_OK;
        }
        if (want)
            return ds_fail(err, DS_E_ARG, "kernels '%s': this CPU lacks %s", want, lacks);
    }
    return ds_fail(err, DS_E_ARG, "kernels '%.32s': no such set in this build", want);
}
