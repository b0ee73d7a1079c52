#include <ds/gen_request.h>

static size_t join(ds_token *to, const ds_request_info_data *info, const ds_gen_beside *b)
{
    size_t n = 0;

    for (size_t i = 0; i < b->n_stop_ids && !info->ignore_eos; i++, n++)
        if (n < DS_GEN_MAX_STOP_IDS)
            to[n] = b->stop_ids[i];
    for (uint32_t i = 0; i < info->n_stop_ids; i++, n++)
        if (n < DS_GEN_MAX_STOP_IDS)
            to[n] = info->stop_ids[i];
    return n;
}

ds_gen_request ds_gen_request_of(const ds_request_info_data *info, const ds_gen_beside *b, ds_gen_room *room)
{
    bool logprobs = info->logprobs || info->include_logprobs, echo = info->echo_prompt && logprobs;
    uint32_t max_tokens = b->max_tokens ? b->max_tokens : 1;
    ds_gen_request q = {
        .prompt = b->ids,
        .n_prompt = (uint32_t)b->n_ids,
        .max_tokens = max_tokens,
        .min_tokens = info->min_tokens < max_tokens ? info->min_tokens : max_tokens,
        .n = info->n,
        .sampling = ds_sampling_or(info->sampling, &b->sampling),
        .bias = info->logit_bias,
        .n_bias = info->n_logit_bias,
        .bad = b->bad,
        .n_bad = b->n_bad,
        .allowed = info->allowed_ids,
        .n_allowed = info->n_allowed_ids,
        .stop_ids = room->stop_ids,
        .n_stop_ids = join(room->stop_ids, info, b),
        .report_stop_id = info->include_stop,
        .stop = info->stop,
        .n_stop = b->stop_strings ? info->n_stop : 0,
        .logprobs = logprobs,
        .n_top = logprobs ? info->top_logprobs : 0,
        .prompt_logprobs = info->prompt_logprobs || echo,
        .n_prompt_top = info->prompt_top_logprobs,
        .images = b->images,
        .n_images = b->images ? b->n_images : 0,
    };

    if (echo && info->top_logprobs > q.n_prompt_top)
        q.n_prompt_top = info->top_logprobs;
    q.sampling.seed = ds_sample_seed(q.sampling.seed, (uint64_t)b->prompt * info->n);
    return q;
}
