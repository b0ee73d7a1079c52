/* Every request member that the hosted protocols and other servers know, and what becomes of it here. docs/server.md
 * prints this table. */
#include "recipe/members.h"

#include <stdio.h>
#include <string.h>

#include "base/buf.h"

enum { LONGEST_NAME = 64 };

/* on: for Chat, Responses, Messages, completions in turn: T taken (the protocol's adapter reads it), I ignored
 * because no answer depends on it, R refused by name unless the value is one of `neutral` (compact JSON values
 * separated by spaces: they ask for nothing), - unknown to that protocol. Sorted by name. */
static const ds_request_member members[] = {
    { "access_programs", "IIII", NULL, "OpenAI" },
    { "adapter_id", "RRRR", NULL, "TGI: a LoRA adapter" },
    { "add_generation_prompt", "TRRR", "true", "vLLM, SGLang; false: the prompt ends behind the last message" },
    { "add_special_tokens", "RRRR", "false", "vLLM; false in completions: no begin-of-sentence token in front" },
    { "allowed_token_ids", "TRRT", NULL, "vLLM: no other token is drawn, also none that ends the text" },
    { "audio", "TRRR", NULL, "OpenAI: audio output; refused" },
    { "background", "RTRR", "false", "OpenAI; true is refused" },
    { "background_options", "IIII", NULL, "OpenAI" },
    { "bad_words", "TRRT", "[]", "vLLM: words that aren't written, alone or behind a space" },
    { "best_of", "RRRT", "1", "OpenAI; other values than n are refused" },
    { "betas", "IIII", NULL, "Anthropic" },
    { "billing_policy", "IIII", NULL, "Anthropic" },
    { "cache_control", "IIII", NULL, "Anthropic; prefixes are cached without it" },
    { "cache_prompt", "IIII", NULL, "llama.cpp" },
    { "cache_salt", "RRRR", NULL, "vLLM: requests share cached prefixes only with the same salt" },
    { "chat_template", "RRRR", NULL, "vLLM, SGLang: the template is the model's" },
    { "chat_template_kwargs", "TRRR", "{}", "vLLM, SGLang; thinking, enable_thinking, reasoning_effort" },
    { "client_metadata", "IIII", NULL, "Codex" },
    { "compaction", "RRRR", NULL, "Anthropic" },
    { "container", "RRRR", NULL, "Anthropic: code execution" },
    { "context", "RRRR", NULL, "Ollama" },
    { "context_management", "IIII", NULL, "Anthropic, OpenAI: what a server may drop of a long history; nothing is dropped" },
    { "continue_final_message", "TRRR", "false", "vLLM, SGLang; as prefix on the last message" },
    { "conversation", "RTRR", NULL, "OpenAI" },
    { "custom_logit_processor", "RRRR", NULL, "SGLang" },
    { "custom_params", "RRRR", "{}", "SGLang" },
    { "data_parallel_rank", "IIII", NULL, "SGLang" },
    { "decoder_input_details", "RRRR", "false", "TGI" },
    { "details", "IIII", NULL, "TGI" },
    { "diagnostics", "IIII", NULL, "Anthropic" },
    { "do_sample", "RRRR", "true", "TGI" },
    { "documents", "RRRR", "[]", "vLLM: retrieval" },
    { "dry_allowed_length", "IIII", NULL, "llama.cpp" },
    { "dry_base", "IIII", NULL, "llama.cpp" },
    { "dry_multiplier", "RRRR", "0 0.0", "llama.cpp" },
    { "dry_penalty_last_n", "IIII", NULL, "llama.cpp" },
    { "dry_sequence_breakers", "IIII", NULL, "llama.cpp" },
    { "dynatemp_exponent", "IIII", NULL, "llama.cpp" },
    { "dynatemp_range", "RRRR", "0 0.0", "llama.cpp" },
    { "early_stopping", "RRRR", "false", "beam search" },
    { "ebnf", "RRRR", NULL, "SGLang: a constraint" },
    { "echo", "RRRT", "false", "OpenAI, vLLM" },
    { "extra_body", "TIII", NULL,
      "a client's mistake; thinking, reasoning_effort and chat_template_kwargs in it are read, other members that matter are refused" },
    { "fallback_credit_token", "IIII", NULL, "Anthropic" },
    { "fallbacks", "IIII", NULL, "Anthropic: other models for a refused answer" },
    { "format", "RRRR", "\"\"", "Ollama: a constraint" },
    { "frequency_penalty", "TTTT", NULL, "OpenAI" },
    { "function_call", "TRRR", "\"auto\"", "OpenAI, legacy" },
    { "functions", "TRRR", "[]", "OpenAI, legacy" },
    { "grammar", "RRRR", "\"\"", "llama.cpp, TGI: a constraint" },
    { "grammar_lazy", "RRRR", "false", "llama.cpp: a constraint" },
    { "grammar_triggers", "RRRR", "[]", "llama.cpp: a constraint" },
    { "guided_choice", "TRRT", NULL, "vLLM: a constraint" },
    { "guided_decoding_backend", "IIII", NULL, "vLLM" },
    { "guided_grammar", "TRRT", NULL, "vLLM: a constraint" },
    { "guided_json", "TRRT", NULL, "vLLM: a constraint" },
    { "guided_regex", "TRRT", NULL, "vLLM: a constraint" },
    { "guided_whitespace_pattern", "RRRR", NULL, "vLLM: a constraint" },
    { "guideline", "RRRR", NULL, "TGI" },
    { "id_slot", "IIII", NULL, "llama.cpp" },
    { "ignore_eos", "TTTT", NULL, "vLLM, SGLang, llama.cpp" },
    { "image", "RRRR", NULL, "OpenAI: image output" },
    { "image_data", "RRRR", "[]", "llama.cpp, SGLang" },
    { "images", "RRRR", "[]", "Ollama" },
    { "include", "ITII", NULL, "OpenAI" },
    { "include_reasoning", "RRRR", "true", "vLLM" },
    { "include_stop_str_in_output", "TRRT", "false", "vLLM: a stop string, or a token of stop_token_ids, is part of the answer" },
    { "inference_geo", "IIII", NULL, "Anthropic" },
    { "input", "RTRR", NULL, "OpenAI" },
    { "input_embeds", "RRRR", NULL, "SGLang" },
    { "input_ids", "RRRR", NULL, "SGLang" },
    { "input_prefix", "RRRR", "\"\"", "llama.cpp" },
    { "input_suffix", "RRRR", "\"\"", "llama.cpp" },
    { "inputs", "RRRR", NULL, "TGI" },
    { "instructions", "RTRR", NULL, "OpenAI" },
    { "json_schema", "RRRR", NULL, "SGLang, llama.cpp: a constraint" },
    { "keep_alive", "IIII", NULL, "Ollama" },
    { "kv_transfer_params", "RRRR", "{}", "vLLM" },
    { "length_penalty", "IIII", NULL, "vLLM: of beam search, which is refused" },
    { "logit_bias", "TTTT", NULL, "OpenAI" },
    { "logits_processors", "RRRR", "[]", "vLLM" },
    { "logprobs", "TRRT", "false", "OpenAI; Responses has include and top_logprobs for it" },
    { "lora", "RRRR", "[]", "llama.cpp: LoRA adapters" },
    { "lora_path", "RRRR", NULL, "SGLang: a LoRA adapter" },
    { "max_completion_tokens", "TRRR", NULL, "OpenAI" },
    { "max_new_tokens", "RRRR", NULL, "TGI, SGLang: max_tokens is the name here" },
    { "max_output_tokens", "RTRR", NULL, "OpenAI" },
    { "max_tokens", "TRTT", NULL, "OpenAI, Anthropic" },
    { "max_tool_calls", "ITII", NULL, "OpenAI: of hosted tools; repeated in the response" },
    { "mcp_servers", "RRRR", "[]", "Anthropic: tools that the server calls" },
    { "media_io_kwargs", "RRRR", "{}", "vLLM" },
    { "messages", "TRTR", NULL, "OpenAI, Anthropic" },
    { "metadata", "ITTI", NULL, "OpenAI, Anthropic; user_id in Messages, repeated in Responses" },
    { "min_keep", "RRRR", "0", "llama.cpp" },
    { "min_p", "TTTT", NULL, "vLLM, SGLang, llama.cpp" },
    { "min_tokens", "TTTT", NULL, "vLLM, SGLang" },
    { "mirostat", "RRRR", "0", "llama.cpp, Ollama" },
    { "mirostat_eta", "IIII", NULL, "llama.cpp, Ollama" },
    { "mirostat_tau", "IIII", NULL, "llama.cpp, Ollama" },
    { "mm_processor_kwargs", "RRRR", "{}", "vLLM" },
    { "modalities", "TRRR", "[\"text\"]", "OpenAI; others than text are refused" },
    { "model", "TTTT", NULL, "absent: the one that is served" },
    { "moderation", "IIII", NULL, "OpenAI" },
    { "n", "TRRT", "1", "OpenAI" },
    { "n_discard", "IIII", NULL, "llama.cpp: of context shift, which isn't done" },
    { "n_indent", "RRRR", "0", "llama.cpp" },
    { "n_keep", "IIII", NULL, "llama.cpp: of context shift, which isn't done" },
    { "n_predict", "RRRR", NULL, "llama.cpp: max_tokens is the name here" },
    { "n_probs", "RRRR", "0", "llama.cpp: logprobs is the name here" },
    { "num_ctx", "IIII", NULL, "Ollama" },
    { "num_predict", "RRRR", NULL, "Ollama: max_tokens is the name here" },
    { "options", "RRRR", "{}", "Ollama" },
    { "output_config", "RRTR", "{}", "Anthropic" },
    { "output_format", "RRTR", NULL, "Anthropic" },
    { "parallel_tool_calls", "TTRI", "true", "OpenAI" },
    { "parameters", "RRRR", "{}", "TGI" },
    { "parse_tool_calls", "RRRR", "true", "llama.cpp" },
    { "penalize_nl", "RRRR", "false", "llama.cpp, Ollama" },
    { "penalty_prompt", "RRRR", NULL, "llama.cpp" },
    { "post_sampling_probs", "RRRR", "false", "llama.cpp" },
    { "prediction", "IIII", NULL, "OpenAI: only faster" },
    { "presence_penalty", "TTTT", NULL, "OpenAI" },
    { "previous_response_id", "RTRR", NULL, "OpenAI" },
    { "priority", "IIII", NULL, "vLLM, SGLang" },
    { "prompt", "RTRT", NULL, "OpenAI; stored templates of Responses are refused" },
    { "prompt_cache_key", "TTII", NULL, "OpenAI; prefixes are cached without it" },
    { "prompt_cache_options", "IIII", NULL, "OpenAI" },
    { "prompt_cache_retention", "IIII", NULL, "OpenAI" },
    { "prompt_embeds", "RRRR", NULL, "vLLM" },
    { "prompt_logprobs", "TRRT", NULL, "vLLM: of the prompt's own tokens; not together with stream" },
    { "raw", "RRRR", "false", "Ollama" },
    { "reasoning", "RTRR", "{}", "OpenAI" },
    { "reasoning_effort", "TRRR", NULL, "OpenAI" },
    { "reasoning_format", "RRRR", "\"auto\" \"deepseek\"", "llama.cpp" },
    { "regex", "RRRR", NULL, "SGLang: a constraint" },
    { "repeat_last_n", "IIII", NULL, "llama.cpp, Ollama: of repeat_penalty" },
    { "repeat_penalty", "RRRR", "1 1.0", "llama.cpp, Ollama: repetition_penalty is the name here" },
    { "repetition_detection", "RRRR", NULL, "vLLM" },
    { "repetition_penalty", "TTTT", NULL, "vLLM, SGLang, TGI" },
    { "request_id", "IIII", NULL, "vLLM; the header x-request-id is read" },
    { "response_fields", "RRRR", "[]", "llama.cpp" },
    { "response_format", "TRRR", "{\"type\":\"text\"}", "OpenAI; Responses has text.format for it, Messages output_config.format" },
    { "return_full_text", "RRRR", "false", "TGI: echo is the name here" },
    { "return_hidden_states", "RRRR", "false", "SGLang" },
    { "return_logprob", "RRRR", "false", "SGLang" },
    { "return_progress", "IIII", NULL, "llama.cpp" },
    { "return_token_ids", "RRRR", "false", "vLLM" },
    { "return_tokens", "RRRR", "false", "llama.cpp" },
    { "return_tokens_as_token_ids", "RRRR", "false", "vLLM" },
    { "rid", "IIII", NULL, "SGLang" },
    { "safety_identifier", "TTII", NULL, "OpenAI" },
    { "samplers", "RRRR", NULL, "llama.cpp: their order" },
    { "sampling_params", "RRRR", "{}", "SGLang" },
    { "seed", "TTTT", NULL, "OpenAI" },
    { "separate_reasoning", "RRRR", "true", "SGLang" },
    { "service_tier", "ITII", NULL, "OpenAI, Anthropic; repeated in Responses" },
    { "session_params", "RRRR", "{}", "SGLang" },
    { "skip_special_tokens", "RRRR", "true", "vLLM, SGLang" },
    { "slot_id", "IIII", NULL, "llama.cpp" },
    { "spaces_between_special_tokens", "IIII", NULL, "vLLM" },
    { "speed", "IIII", NULL, "Anthropic" },
    { "stop", "TTRT", "[]", "OpenAI" },
    { "stop_regex", "RRRR", "[]", "SGLang" },
    { "stop_sequences", "RRTR", "[]", "Anthropic" },
    { "stop_token_ids", "TRRT", "[]", "vLLM, SGLang; such a token ends the answer and isn't part of it" },
    { "store", "ITII", NULL, "OpenAI" },
    { "stream", "TTTT", NULL, "OpenAI, Anthropic" },
    { "stream_options", "TIIT", NULL, "OpenAI" },
    { "stream_reasoning", "IIII", NULL, "SGLang" },
    { "structural_tag", "RRRR", NULL, "vLLM: a constraint" },
    { "structured_outputs", "TRRT", "{}", "vLLM: a constraint" },
    { "suffix", "RRRT", "\"\"", "OpenAI" },
    { "system", "RRTR", NULL, "Anthropic" },
    { "t_max_predict_ms", "RRRR", "0", "llama.cpp" },
    { "temperature", "TTTT", NULL, "OpenAI, Anthropic" },
    { "template", "RRRR", NULL, "Ollama" },
    { "text", "RTRR", NULL, "OpenAI" },
    { "tfs_z", "RRRR", "1 1.0", "llama.cpp, Ollama" },
    { "think", "RRRR", NULL, "Ollama: thinking is the name here" },
    { "thinking", "TRTR", NULL, "DeepSeek, Anthropic; Responses has reasoning.effort for it" },
    { "thinking_forced_open", "RRRR", "false", "llama.cpp" },
    { "thinking_token_budget", "RRRR", NULL, "vLLM" },
    { "thread", "RRRR", NULL, "Anthropic: conversations that the server holds; its SDK goes on without" },
    { "timings_per_token", "IIII", NULL, "llama.cpp" },
    { "tool_choice", "TTTR", "\"auto\" \"none\"", "OpenAI, Anthropic" },
    { "tool_prompt", "RRRR", NULL, "TGI" },
    { "tools", "TTTR", "[]", "OpenAI, Anthropic" },
    { "top_k", "TTTT", NULL, "Anthropic, vLLM, SGLang, llama.cpp" },
    { "top_logprobs", "TTRR", "0", "OpenAI" },
    { "top_n_sigma", "RRRR", "-1 -1.0 0 0.0", "llama.cpp" },
    { "top_n_tokens", "RRRR", "0", "TGI" },
    { "top_p", "TTTT", NULL, "OpenAI, Anthropic" },
    { "truncate", "RRRR", NULL, "TGI: truncate_prompt_tokens is the name here" },
    { "truncate_prompt_tokens", "TRRT", NULL, "vLLM: the prompt's last N tokens; -1: as many as leave room for one token of the answer" },
    { "truncation", "RTRR", "\"disabled\"", "OpenAI" },
    { "truncation_side", "RRRR", "\"left\"", "vLLM" },
    { "typical_p", "RRRR", "1 1.0", "llama.cpp, TGI, Ollama" },
    { "use_beam_search", "RRRR", "false", "vLLM" },
    { "user", "TTIT", NULL, "OpenAI" },
    { "user_id", "TIII", NULL, "DeepSeek" },
    { "user_profile_id", "IIII", NULL, "Anthropic" },
    { "verbosity", "IIII", NULL, "OpenAI: a wish" },
    { "vllm_xargs", "RRRR", "{}", "vLLM" },
    { "watermark", "RRRR", "false", "TGI" },
    { "web_search_options", "RRRR", NULL, "OpenAI: the server searches" },
    { "workspace_id", "IIII", NULL, "Anthropic" },
    { "xtc_probability", "RRRR", "0 0.0", "llama.cpp" },
    { "xtc_threshold", "IIII", NULL, "llama.cpp" },
};
#define N_MEMBERS (sizeof members / sizeof *members)

const ds_request_member *ds_request_member_at(size_t i)
{
    return i < N_MEMBERS ? &members[i] : NULL;
}

static const ds_request_member *find(ds_str name)
{
    size_t lo = 0, hi = N_MEMBERS;

    while (lo < hi) {
        size_t mid = (lo + hi) / 2, n = strlen(members[mid].name);
        int order = memcmp(members[mid].name, name.p, n < name.n ? n : name.n);

        if (order == 0 && n == name.n)
            return &members[mid];
        if (order < 0 || (order == 0 && n < name.n))
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}

/* The value asks for nothing: one of the list, or nothing at all. */
static bool is_neutral(const ds_request_member *m, const ds_json *v)
{
    ds_buf b = { 0 };
    bool same = false;

    if (v->type == DS_JSON_NULL)
        return true;
    if (!m->neutral || v->n > 1) /* every list and object among them has at most one element */
        return false;
    ds_json_write(&b, v, DS_JSON_COMPACT);
    for (const char *w = m->neutral; *w && !same && !b.oom;) {
        size_t n = strcspn(w, " ");
        same = n == b.len && memcmp(w, b.p, n) == 0;
        w += n + (w[n] == ' ');
    }
    ds_buf_free(&b);
    return same;
}

/* One list of all unknown names, in the order of the body, for the caller's log. */
static void note_unknown(ds_rp *p, const char *in, ds_str name)
{
    ds_str *list = &p->r->info.unknown_members;
    char word[LONGEST_NAME];

    if (list->n < 200)
        *list = ds_region_printf(p->mem, "%.*s%s%s%s", (int)list->n, list->p ? list->p : "", list->n ? ", " : "", in,
                                 ds_str_word(word, sizeof word, name));
}

/* A member that no table has. */
static void unknown(ds_rp *p, const ds_path *at, const ds_json *v)
{
    char word[LONGEST_NAME], in[LONGEST_NAME] = "";

    if (p->o->unknown_members == DS_UNKNOWN_MEMBERS_REFUSE) {
        ds_rp_refuse(p, DS_STAGE_SAMPLING, at, ds_str_word(word, sizeof word, (ds_str){ v->key, v->key_len }),
                     "nobody knows this member here");
        return;
    }
    if (at)
        snprintf(in, sizeof in, "%s.", at->key);
    note_unknown(p, in, (ds_str){ v->key, v->key_len });
}

static bool is_one_of(const ds_json *v, const char *const *names)
{
    for (; *names; names++)
        if (strlen(*names) == v->key_len && memcmp(*names, v->key, v->key_len) == 0)
            return true;
    return false;
}

/* Members of extra_body and of chat_template_kwargs: those that Chat's adapter reads there, the harmless ones, and
 * the rest. */
static void inner_members(ds_rp *p, const ds_request_member *outer, const ds_json *object)
{
    static const char *const extra[] = { "thinking", "reasoning_effort", "chat_template_kwargs", NULL };
    static const char *const kwargs[] = { "thinking", "enable_thinking", "reasoning_effort", NULL };
    bool is_extra = strcmp(outer->name, "extra_body") == 0;
    ds_path at = { NULL, outer->name, 0 };

    if (object->type != DS_JSON_OBJECT || (!is_extra && strcmp(outer->name, "chat_template_kwargs") != 0))
        return;
    for (const ds_json *v = object->child; v; v = v->next) {
        const ds_request_member *m = is_extra ? find((ds_str){ v->key, v->key_len }) : NULL;

        if (v->type == DS_JSON_NULL || is_one_of(v, is_extra ? extra : kwargs))
            continue;
        if (!m)
            unknown(p, &at, v);
        else if (m->on[p->r->info.proto] != 'I' && !is_neutral(m, v))
            ds_rp_refuse(p, DS_STAGE_SAMPLING, &at, m->name, "not read here: it belongs into the body itself");
    }
}

void ds_rp_members(ds_rp *p, const ds_json *body)
{
    for (const ds_json *v = body->child; v; v = v->next) {
        const ds_request_member *m = find((ds_str){ v->key, v->key_len });
        char how = m ? m->on[p->r->info.proto] : '-';

        if (v->type == DS_JSON_NULL)
            continue;
        if (how == '-')
            unknown(p, NULL, v);
        else if (how == 'R' && !is_neutral(m, v))
            ds_rp_refuse_status(p, DS_STAGE_SAMPLING, 400, NULL, strcmp(m->name, "thread") == 0 ? "thread_unsupported_request" : NULL, NULL,
                                m->name, "not supported (%s)", m->note);
        else if (how == 'T')
            inner_members(p, m, v);
    }
}
