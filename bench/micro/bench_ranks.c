/* Ranks on one host, each a process: what an agreement takes, and rows to their experts and back against a memcpy of
 * the same bytes by all ranks at the same time.
 *
 * The experts compute nothing. Bytes are those that a rank sends: its rows to other ranks, and results for rows of
 * others. They cross shared memory, so each is copied into a ring and out of it; the roof is one memcpy, all of it in
 * the cache. On a machine with fewer CPUs than ranks, times are those of taking turns. */
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/pool.h"
#include "base/rng.h"
#include "bench.h"
#include "parallel/dispatch.h"
#include "parallel/shm.h"

enum { ROWS = 64, DIM = 5120, K = 6, MAX_ROWS = 256, EXPERTS = 384, REPS = 300, ROUNDS = 3000, MAX_RANKS = 8 };

typedef struct {
    ds_comm *comm;
    uint32_t k;
    uint64_t bytes; /* sent to others in a call */
} rank;

static void move(void *ctx, void *to, const void *from, size_t bytes)
{
    (void)ctx;
    memcpy(to, from, bytes);
}

static void nothing(void *ctx, uint32_t first, uint32_t n)
{
    (void)ctx;
    (void)first;
    (void)n;
}

/* K different experts for each row; and what that sends from here to other ranks. */
static void choose(rank *a, int32_t *sel, const ds_expert_place *place)
{
    for (uint32_t r = 0; r < ROWS; r++) {
        bool to[MAX_RANKS] = { 0 };
        for (uint32_t i = 0, n = 0; i < K; n++) {
            int32_t e = (int32_t)(ds_rng_u64(a->comm->rank, r * K + i, n) % EXPERTS);
            bool again = false;
            for (uint32_t j = 0; j < i; j++)
                again = again || sel[r * K + j] == e;
            if (again)
                continue;
            sel[r * K + i++] = e;
            to[place[e].rank] = true;
            a->bytes += place[e].rank != a->comm->rank ? DIM * sizeof(float) : 0; /* a result, which comes from there and as one goes */
        }
        for (uint32_t p = 0; p < a->comm->ranks; p++)
            a->bytes += to[p] && p != a->comm->rank ? DIM * sizeof(float) : 0;
    }
}

static void meet(ds_comm *c)
{
    uint8_t word[DS_COMM_WORD] = { 0 }, all[MAX_RANKS * DS_COMM_WORD];

    if (c->fn->agree(c, word, all, NULL) != DS_OK)
        _exit(1);
}

static void report(const char *op, const rank *a, uint64_t *ns, size_t n, uint64_t *median)
{
    uint64_t p95;

    bench_stats(ns, n, median, &p95);
    if (a->comm->rank == 0)
        printf("op=%s ranks=%u cpus=%u reps=%zu ns_med=%lu ns_p95=%lu", op, a->comm->ranks, ds_cpu_count(), n, *median, p95);
}

static void agreements(rank *a)
{
    static uint64_t ns[ROUNDS];
    uint64_t median;

    for (int i = -100; i < ROUNDS; i++) {
        uint64_t begin = ds_now_ns();
        meet(a->comm);
        if (i >= 0)
            ns[i] = ds_now_ns() - begin;
    }
    report("agree", a, ns, ROUNDS, &median);
    if (a->comm->rank == 0)
        printf("\n");
}

static void exchanges(rank *a)
{
    static const ds_exchange_fns fns = { move, move, nothing };
    static uint64_t ns[REPS];
    size_t all = ROWS + ds_exchange_guests(a->comm->ranks, MAX_ROWS);
    ds_expert_place place[EXPERTS];
    int32_t *sel = calloc(ROWS * K, sizeof *sel), *local = calloc(all * K, sizeof *local);
    float *x = calloc(all * DIM, sizeof *x), *w = calloc(all * K, sizeof *w), *part = calloc(all * K * DIM, sizeof *part);
    ds_exchange *ex;
    ds_exchange_call call;
    uint64_t median, copy;
    void *to;
    ds_err err;

    for (uint32_t r = 0; r < a->comm->ranks; r++) {
        uint32_t first, n;
        ds_exchange_deal(EXPERTS, a->comm->ranks, r, &first, &n);
        for (uint32_t i = 0; i < n; i++)
            place[first + i] = (ds_expert_place){ r, i };
    }
    if (!sel || !local || !x || !w || !part ||
        ds_exchange_create(&ex, a->comm, &(ds_exchange_opts){ .max_rows = MAX_ROWS, .max_k = K, .max_d = DIM }, &err) != DS_OK)
        _exit(1);
    memset(part, 1, all * K * DIM * sizeof *part);
    memset(x, 1, all * DIM * sizeof *x);
    choose(a, sel, place);
    call = (ds_exchange_call){ .fn = &fns,
                               .rows = ROWS,
                               .k = K,
                               .d = DIM,
                               .sel = sel,
                               .x = x,
                               .w = w,
                               .local = local,
                               .part = part,
                               .place = place,
                               .n_experts = EXPERTS };
    for (int i = -10; i < REPS; i++) {
        uint64_t begin;
        meet(a->comm);
        begin = ds_now_ns();
        if (ds_exchange_run(ex, &call, &err) != DS_OK)
            _exit(1);
        if (i >= 0)
            ns[i] = ds_now_ns() - begin;
    }
    report("exchange", a, ns, REPS, &median);
    to = malloc(a->bytes);
    if (!to)
        _exit(1);
    for (int i = -10; i < REPS; i++) {
        uint64_t begin;
        meet(a->comm);
        begin = ds_now_ns();
        memcpy(to, part, a->bytes);
        __asm__ volatile("" : : "r"(to) : "memory");
        if (i >= 0)
            ns[i] = ds_now_ns() - begin;
    }
    if (a->comm->rank == 0) {
        uint64_t p95;
        bench_stats(ns, REPS, &copy, &p95);
        printf(" rows=%d dim=%d k=%d bytes=%lu gb_s=%.1f memcpy_ns=%lu roof_pct=%.0f\n", ROWS, DIM, K, a->bytes,
               (double)a->bytes / (double)median, copy, 100.0 * (double)copy / (double)median);
    }
    ds_exchange_destroy(ex);
}

static int rank_main(int fd, uint32_t number)
{
    rank a = { .k = K };
    ds_err err;

    if (ds_comm_shm_join(&a.comm, fd, number, &err) != DS_OK)
        return 1;
    meet(a.comm);
    agreements(&a);
    exchanges(&a);
    meet(a.comm);
    a.comm->fn->leave(a.comm);
    while (a.comm->fn->attend(a.comm, &err) == DS_E_AGAIN)
        ;
    a.comm->fn->destroy(a.comm);
    fflush(stdout);
    return 0;
}

int main(void)
{
    for (uint32_t n = 2; n <= MAX_RANKS; n *= 2) {
        int fd, status, bad = 0;
        ds_err err;

        if (ds_comm_shm_create(&fd, &(ds_comm_shm_opts){ .ranks = n }, &err) != DS_OK) {
            fprintf(stderr, "%s\n", err.msg);
            return 1;
        }
        fflush(stdout);
        for (uint32_t i = 0; i < n; i++)
            if (fork() == 0)
                _exit(rank_main(fd, i));
        close(fd);
        for (uint32_t i = 0; i < n; i++) {
            wait(&status);
            bad += status != 0;
        }
        if (bad) {
            fprintf(stderr, "%d of %u ranks failed\n", bad, n);
            return 1;
        }
    }
    return 0;
}
