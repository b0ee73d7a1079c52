/* Statistics of several engines as one. */
#include <ds/gen.h>

static void add_hist(ds_gen_hist *to, const ds_gen_hist *h)
{
    to->n += h->n;
    to->sum_us += h->sum_us;
    for (int i = 0; i < DS_GEN_HIST; i++)
        to->bucket[i] += h->bucket[i];
}

static void add_now(ds_gen_stats *to, const ds_gen_stats *s)
{
    to->waiting += s->waiting;
    to->prefilling += s->prefilling;
    to->running += s->running;
    to->parked += s->parked;
    to->requests += s->requests;
    to->lost += s->lost;
    to->kv_blocks += s->kv_blocks;
    to->kv_used += s->kv_used;
    to->kv_cached += s->kv_cached;
    to->states += s->states;
    to->states_used += s->states_used;
    to->slots += s->slots;
    to->slots_used += s->slots_used;
    to->host_blocks += s->host_blocks;
    to->host_blocks_used += s->host_blocks_used;
    to->host_states += s->host_states;
    to->host_states_used += s->host_states_used;
}

static void add_totals(ds_gen_stats *to, const ds_gen_stats *s)
{
    to->accepted += s->accepted;
    to->refused_busy += s->refused_busy;
    to->refused_arg += s->refused_arg;
    for (int i = 0; i < DS_N_ENDED; i++)
        to->ended[i] += s->ended[i];
    to->prompt_tokens += s->prompt_tokens;
    to->computed_tokens += s->computed_tokens;
    to->recomputed_tokens += s->recomputed_tokens;
    to->hit_state_tokens += s->hit_state_tokens;
    to->hit_replay_tokens += s->hit_replay_tokens;
    to->replayed_tokens += s->replayed_tokens;
    to->hit_host_tokens += s->hit_host_tokens;
    to->hit_store_tokens += s->hit_store_tokens;
    to->fetches += s->fetches;
    to->fetched_blocks += s->fetched_blocks;
    to->fetched_states += s->fetched_states;
    for (int i = 0; i < DS_GEN_MISSES; i++)
        to->fetch_missed[i] += s->fetch_missed[i];
    to->saves_lost += s->saves_lost;
    to->host_blocks_saved += s->host_blocks_saved;
    to->host_blocks_evicted += s->host_blocks_evicted;
    to->host_states_saved += s->host_states_saved;
    to->host_states_evicted += s->host_states_evicted;
    to->output_tokens += s->output_tokens;
    to->dropped_tokens += s->dropped_tokens;
    for (int i = 0; i < DS_GEN_MAX_DRAFTS; i++) {
        to->drafted[i] += s->drafted[i];
        to->kept[i] += s->kept[i];
    }
    to->preempted_parked += s->preempted_parked;
    to->preempted_recomputed += s->preempted_recomputed;
    to->states_saved += s->states_saved;
    to->states_evicted += s->states_evicted;
    to->blocks_published += s->blocks_published;
    to->blocks_evicted += s->blocks_evicted;
    to->steps += s->steps;
    to->step_rows += s->step_rows;
    to->device_busy_ns += s->device_busy_ns;
    to->device_idle_ns += s->device_idle_ns;
    to->host_plan_ns += s->host_plan_ns;
    to->host_finish_ns += s->host_finish_ns;
    to->host_publish_ns += s->host_publish_ns;
    to->draft_ns += s->draft_ns;
}

void ds_gen_stats_add(ds_gen_stats *to, const ds_gen_stats *s)
{
    add_now(to, s);
    add_totals(to, s);
    add_hist(&to->queue, &s->queue);
    add_hist(&to->ttft, &s->ttft);
    add_hist(&to->tbt, &s->tbt);
    add_hist(&to->step_prefill, &s->step_prefill);
    add_hist(&to->step_decode, &s->step_decode);
    add_hist(&to->fetch, &s->fetch);
    add_hist(&to->total, &s->total);
}
