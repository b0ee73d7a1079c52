/* deepserve bench policy: what a decision of a balancer takes. */
#include "cli/cli.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/none.h"
#include "base/rng.h"
#include "policy/decode.h"
#include "policy/prefill.h"
#include "policy/vision.h"

typedef struct {
    int64_t engines, decisions;
    bool json;
} options;

static const ds_opt table[] = {
    { .name = "engines",
      .type = DS_OPT_INT,
      .offset = offsetof(options, engines),
      .def = "1000",
      .arg = "N",
      .min = 1,
      .max = 100000,
      .help = "engines in the snapshot, one rank each" },
    { .name = "decisions",
      .type = DS_OPT_INT,
      .offset = offsetof(options, decisions),
      .def = "20000",
      .arg = "N",
      .min = 100,
      .max = 10000000,
      .help = "decisions of each balancer" },
    { .name = "json", .type = DS_OPT_FLAG, .offset = offsetof(options, json), .help = "a JSON object for each balancer, one a line" },
    { 0 },
};

static const ds_opt_cmd command = {
    .command = "deepserve bench policy",
    .summary = "Times the balancers' decisions on one thread. Each decision's load is put into the snapshot before the next one, and\n"
               "ends a while later, so that no two see the same rows. The goal is 20 us for 1,000 engines.",
    .usage = "[options]",
    .example = "deepserve bench policy --engines 1000 --json",
    .opts = table,
};

enum { GOAL_NS = 20000, GOAL_ENGINES = 1000, ROUND_US = 1000000 };

typedef struct {
    uint32_t n, decisions;
    uint64_t *ns;    /* of each decision */
    uint32_t *at;    /* where each went */
    uint64_t *ahead; /* of each prefill rank */
    ds_decode_rank *decode;
    ds_prefill_group *prefill;
    ds_prefill_engine *engines;
    uint8_t *tiers;
    ds_vision_instance *vision;
} bench;

static uint64_t under(uint64_t stream, uint64_t i, uint64_t n)
{
    return ds_rng_u64(1, stream, i) % n;
}

static int by_size(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

static void make_rows(bench *b)
{
    for (uint32_t i = 0; i < b->n; i++) {
        b->decode[i] = (ds_decode_rank){ .id = i, .ready = true, .max_requests = 256, .max_kv_tokens = 8000000 };
        b->ahead[i] = under(1, i, ROUND_US);
        b->prefill[i] = (ds_prefill_group){ .id = i,
                                            .ready = true,
                                            .tiers = (uint8_t)(1 << i % 4),
                                            .ranks = 1,
                                            .rank_us = &b->ahead[i],
                                            .left_us = (int64_t)under(2, i, ROUND_US) };
        b->engines[i] = (ds_prefill_engine){ .id = i, .tiers = (uint8_t)(1 << i % 4), .live_us = b->ahead[i] };
        b->vision[i] = (ds_vision_instance){ .id = i, .ready = true, .max_patches = 1000000, .patches_s = 100000 };
    }
}

/* Each function: decision k, timed from a snapshot that earlier ones changed; where it went. */
static uint32_t decode(bench *b, uint64_t k)
{
    ds_decode_ask ask = { .kv_tokens = 500 + under(3, k, 100000), .seed = ds_rng_u64(1, 4, k) };
    uint64_t start = ds_now_ns();
    uint32_t at = ds_decode_choose(b->decode, b->n, &ask);

    b->ns[k] = ds_now_ns() - start;
    if (at != DS_NONE) {
        b->decode[at].requests++;
        b->decode[at].kv_tokens += ask.kv_tokens;
    }
    if (k >= b->n && b->at[k - b->n] != DS_NONE) {
        uint32_t old = b->at[k - b->n];
        b->decode[old].requests--;
        b->decode[old].kv_tokens -= 500 + under(3, k - b->n, 100000);
    }
    return at;
}

static uint32_t prefill(bench *b, uint64_t k)
{
    uint64_t us = 1000 + under(5, k, 100000), start = ds_now_ns();
    uint32_t at = ds_prefill_choose(b->prefill, b->n, (uint32_t)(k % DS_PREFILL_TIERS), 0).group;

    b->ns[k] = ds_now_ns() - start;
    if (at != DS_NONE) {
        b->prefill[at].left_us -= (int64_t)us;
        b->prefill[at].taken_us += us;
        b->ahead[at] += us;
    }
    if (k % (10ull * b->n) == 0)
        for (uint32_t i = 0; i < b->n; i++) {
            b->prefill[i].left_us = ds_prefill_refill(b->prefill[i].left_us, 1, ROUND_US);
            b->ahead[i] = 0;
        }
    return at;
}

static uint32_t deal(bench *b, uint64_t k)
{
    uint64_t demand[DS_PREFILL_TIERS], start;

    for (uint32_t t = 0; t < DS_PREFILL_TIERS; t++)
        demand[t] = under(6 + t, k, 1000000);
    start = ds_now_ns();
    ds_prefill_deal(b->engines, b->n, demand, b->tiers);
    b->ns[k] = ds_now_ns() - start;
    for (uint32_t i = 0; i < b->n; i++)
        b->engines[i].tiers = b->tiers[i];
    return 0;
}

static uint32_t vision(bench *b, uint64_t k)
{
    uint64_t patches = 1 + under(11, k, 9000), start = ds_now_ns();
    uint32_t at = ds_vision_choose(b->vision, b->n, patches);

    b->ns[k] = ds_now_ns() - start;
    if (at != DS_NONE)
        b->vision[at].ahead[ds_vision_class(patches)] += patches;
    if (k >= b->n && b->at[k - b->n] != DS_NONE) {
        uint64_t old = 1 + under(11, k - b->n, 9000);
        b->vision[b->at[k - b->n]].ahead[ds_vision_class(old)] -= old;
    }
    return at;
}

static int report(bench *b, bool json, const char *what)
{
    uint64_t p50, p99;

    qsort(b->ns, b->decisions, sizeof *b->ns, by_size);
    p50 = b->ns[b->decisions / 2];
    p99 = b->ns[(uint64_t)b->decisions * 99 / 100];
    if (json)
        printf("{\"decision\":\"%s\",\"engines\":%u,\"decisions\":%u,\"ns_p50\":%llu,\"ns_p99\":%llu,\"goal_ns\":%llu}\n", what, b->n,
               b->decisions, (unsigned long long)p50, (unsigned long long)p99,
               (unsigned long long)((uint64_t)GOAL_NS * b->n / GOAL_ENGINES));
    else
        printf("%-14s %6u engines  p50 %8.2f us  p99 %8.2f us  goal %.2f us\n", what, b->n, (double)p50 / 1e3, (double)p99 / 1e3,
               (double)GOAL_NS / 1e3 * b->n / GOAL_ENGINES);
    return fflush(stdout) == 0 ? 0 : 1;
}

static int run(bench *b, bool json)
{
    static const struct {
        const char *what;
        uint32_t (*decide)(bench *b, uint64_t k);
    } cases[] = { { "prefill", prefill }, { "prefill-deal", deal }, { "decode", decode }, { "vision", vision } };
    int failed = 0;

    make_rows(b);
    for (size_t c = 0; c < sizeof cases / sizeof *cases && !failed; c++) {
        for (uint64_t k = 0; k < b->decisions; k++)
            b->at[k] = cases[c].decide(b, k);
        failed = report(b, json, cases[c].what);
    }
    return failed;
}

int ds_cmd_bench_policy(int argc, char **argv)
{
    options o = { 0 };
    bench b = { 0 };
    ds_err err = { 0 };
    const char *word;
    size_t n;
    int status = 1;
    bool help;

    if (ds_opt_parse(&command, &o, argc, argv, &word, 0, &n, NULL, &help, &err) != DS_OK)
        return ds_cli_wrong("bench policy", "%s", err.msg);
    if (help) {
        ds_opt_print_help(&command, stdout);
        return 0;
    }
    b.n = (uint32_t)o.engines;
    b.decisions = (uint32_t)o.decisions;
    b.ns = calloc(b.decisions, sizeof *b.ns);
    b.at = calloc(b.decisions, sizeof *b.at);
    b.ahead = calloc(b.n, sizeof *b.ahead);
    b.decode = calloc(b.n, sizeof *b.decode);
    b.prefill = calloc(b.n, sizeof *b.prefill);
    b.engines = calloc(b.n, sizeof *b.engines);
    b.tiers = calloc(b.n, sizeof *b.tiers);
    b.vision = calloc(b.n, sizeof *b.vision);
    if (!b.ns || !b.at || !b.ahead || !b.decode || !b.prefill || !b.engines || !b.tiers || !b.vision) {
        ds_fail(&err, DS_E_NOMEM, "out of memory for %u engines", b.n);
        ds_cli_fail("bench policy", &err);
    } else
        status = run(&b, o.json);
    free(b.vision);
    free(b.tiers);
    free(b.engines);
    free(b.prefill);
    free(b.decode);
    free(b.ahead);
    free(b.at);
    free(b.ns);
    return status;
}
