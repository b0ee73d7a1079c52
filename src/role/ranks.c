#include "role/ranks.h"

#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "parallel/shm.h"

/* How long the others have to end by themselves; where one is gone, that is soon. */
enum { PEACE_MS = 2000, BROKEN_MS = 300, ARGS = 24 };

struct ds_ranks {
    ds_ranks_opts o;
    ds_comm *comm;
    pid_t *process; /* [n]; 0: none */
    bool met;
};

/* What a rank says of itself before all work. */
typedef struct {
    uint8_t model[24]; /* digest of the checkpoint's content */
    uint8_t how[16];   /* of what else decides bits and messages: the program's version, kernels, activations */
    uint32_t max_rows; /* rank 0's says it for all */
    uint8_t pad[DS_COMM_WORD - 44];
} hello;
_Static_assert(sizeof(hello) == DS_COMM_WORD, "a word");

static ds_rc say_of(hello *h, const ds_model *m, const char *dir, bool bf16, uint32_t max_rows, ds_err *err)
{
    uint8_t digest[32];
    char how[200];
    int n = snprintf(how, sizeof how, "%s %s %s", DS_VERSION, ds_model_kernels(m), bf16 ? "bf16" : "f32");
    ds_model_digest_info info;
    ds_rc rc = ds_model_digest(digest, m, dir, &(ds_model_digest_opts){ 0 }, &info, err);

    *h = (hello){ .max_rows = max_rows };
    memcpy(h->model, digest, sizeof h->model);
    ds_sha256(digest, how, (size_t)n);
    memcpy(h->how, digest, sizeof h->how);
    return rc;
}

/* Everybody's word, and nobody is other than rank 0. */
static ds_rc meet(ds_comm *c, const hello *mine, uint32_t *max_rows, ds_err *err)
{
    hello all[DS_COMM_MAX_RANKS];
    ds_rc rc = c->fn->agree(c, mine, all, err);

    for (uint32_t i = 1; i < c->ranks && rc == DS_OK; i++) {
        if (memcmp(all[i].model, all[0].model, sizeof all[i].model) != 0)
            rc = ds_fail(err, DS_E_IO, "rank %u of %u has another model than rank 0", i, c->ranks);
        else if (memcmp(all[i].how, all[0].how, sizeof all[i].how) != 0)
            rc = ds_fail(err, DS_E_IO, "rank %u of %u computes otherwise than rank 0: program, kernels or activations differ", i, c->ranks);
    }
    *max_rows = all[0].max_rows;
    return rc;
}

/* All have taken their memory. */
static ds_rc ready(ds_comm *c, ds_err *err)
{
    uint8_t word[DS_COMM_WORD] = { 0 }, all[DS_COMM_MAX_RANKS * DS_COMM_WORD];

    return c->fn->agree(c, word, all, err);
}

/* ---- rank 0 ------------------------------------------------------------------------------------------------------ */

extern char **environ;

/* Runs the program as rank i. */
static ds_rc spawn(ds_ranks *r, int fd, uint32_t i, ds_err *err)
{
    const ds_llm_place *p = &r->o.place;
    char number[16], descriptor[16], threads[16];
    const char *arg[ARGS] = { "deepserve", "rank", "--model", r->o.dir, "--rank", number, "--fd", descriptor, "--threads", threads };
    size_t n = 10;
    posix_spawn_file_actions_t actions;
    int rc;

    snprintf(number, sizeof number, "%u", i);
    snprintf(descriptor, sizeof descriptor, "%d", fd);
    snprintf(threads, sizeof threads, "%u", p->team.n_threads);
    if (p->kernels) {
        arg[n++] = "--kernels";
        arg[n++] = p->kernels;
    }
    if (r->o.bf16) {
        arg[n++] = "--act";
        arg[n++] = "bf16";
    }
    if (posix_spawn_file_actions_init(&actions) != 0)
        return ds_fail(err, DS_E_NOMEM, "ranks: out of memory");
    rc = posix_spawn_file_actions_adddup2(&actions, fd, fd); /* the same number: it survives exec */
    if (rc == 0)
        rc = posix_spawn(&r->process[i], r->o.program, &actions, NULL, (char *const *)(uintptr_t)arg, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (rc != 0) {
        r->process[i] = 0;
        return ds_fail(err, DS_E_IO, "rank %u of %u doesn't start: %s: %s", i, r->o.n, r->o.program, strerror(rc));
    }
    ds_comm_shm_expect(r->comm, i, r->process[i]);
    return DS_OK;
}

ds_rc ds_ranks_start(ds_ranks **out, const ds_ranks_opts *o, ds_err *err)
{
    ds_ranks *r = calloc(1, sizeof *r);
    int fd = -1;
    ds_rc rc;

    *out = NULL;
    if (!r || !(r->process = calloc(o->n, sizeof *r->process))) {
        free(r);
        return ds_fail(err, DS_E_NOMEM, "ranks: out of memory");
    }
    r->o = *o;
    rc = ds_comm_shm_create(&fd, &(ds_comm_shm_opts){ .ranks = o->n }, err);
    if (rc == DS_OK)
        rc = ds_comm_shm_join(&r->comm, fd, 0, err);
    if (rc == DS_OK && o->lost)
        r->comm->fn->when_broken(r->comm, o->lost, o->ctx);
    for (uint32_t i = 1; i < o->n && rc == DS_OK; i++)
        rc = spawn(r, fd, i, err);
    if (fd >= 0)
        close(fd);
    if (rc != DS_OK) {
        ds_ranks_stop(r);
        return rc;
    }
    *out = r;
    return DS_OK;
}

ds_rc ds_ranks_meet(ds_ranks *r, const ds_model *m, const char *dir, uint32_t max_rows, ds_err *err)
{
    hello mine;
    ds_rc rc = say_of(&mine, m, dir, r->o.bf16, max_rows, err);

    if (rc == DS_OK)
        rc = meet(r->comm, &mine, &max_rows, err);
    if (rc == DS_OK)
        rc = ready(r->comm, err);
    r->met = rc == DS_OK;
    return rc;
}

ds_comm *ds_ranks_comm(const ds_ranks *r)
{
    return r->comm;
}

ds_rc ds_ranks_state(const ds_ranks *r, ds_err *err)
{
    return r->comm->fn->state(r->comm, err);
}

/* All others have left, or are as good as gone. */
static void part(ds_ranks *r)
{
    ds_err err;

    r->comm->fn->leave(r->comm);
    while (r->comm->fn->attend(r->comm, &err) == DS_E_AGAIN)
        ;
}

static void wait_for(ds_ranks *r, uint32_t i)
{
    uint64_t until = ds_now_ns() + (ds_ranks_state(r, NULL) == DS_OK ? PEACE_MS : BROKEN_MS) * UINT64_C(1000000);
    struct timespec pause = { .tv_nsec = 5000000 };

    while (waitpid(r->process[i], NULL, WNOHANG) == 0) {
        if (ds_now_ns() > until) {
            kill(r->process[i], SIGKILL);
            waitpid(r->process[i], NULL, 0);
            break;
        }
        nanosleep(&pause, NULL);
    }
}

void ds_ranks_stop(ds_ranks *r)
{
    if (!r)
        return;
    if (r->met)
        part(r);
    for (uint32_t i = 1; i < r->o.n; i++)
        if (r->process[i] && !r->met)
            kill(r->process[i], SIGKILL); /* it may be opening the model for a long time yet */
    for (uint32_t i = 1; i < r->o.n; i++)
        if (r->process[i])
            wait_for(r, i);
    if (r->comm)
        r->comm->fn->destroy(r->comm);
    free(r->process);
    free(r);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Memory for one sequence that never comes, and for rows of others. */
static ds_runner_opts runner_opts(bool bf16, const ds_model *m, uint32_t max_rows)
{
    ds_model_layout lay;

    ds_model_layout_get(m, &lay);
    return (ds_runner_opts){ .bf16 = bf16,
                             .max_rows = max_rows,
                             .max_seqs = 1,
                             .max_logits = 1,
                             .max_context = lay.block_tokens < lay.max_context ? lay.block_tokens : lay.max_context,
                             .n_blocks = 1,
                             .n_slots = 1,
                             .no_drafts = true };
}

bool ds_ranks_bytes(const ds_model *m, uint32_t n, bool bf16, uint32_t max_rows, uint64_t *bytes)
{
    ds_runner_opts o = runner_opts(bf16, m, max_rows);
    ds_runner_size each;

    *bytes = ds_comm_shm_bytes(&(ds_comm_shm_opts){ .ranks = n });
    return ds_runner_bytes(m, &o, &each) && !__builtin_mul_overflow(each.total, (uint64_t)n - 1, &each.total) &&
           !__builtin_add_overflow(*bytes, each.total, bytes);
}

/* ---- the others -------------------------------------------------------------------------------------------------- */

static ds_rc attend(ds_comm *comm, ds_runner *run, ds_err *err)
{
    ds_rc rc = ready(comm, err);

    if (rc != DS_OK)
        return rc;
    comm->fn->leave(comm); /* it begins nothing */
    while ((rc = ds_runner_attend(run, err)) == DS_E_AGAIN)
        ;
    return rc == DS_E_CANCELED ? DS_OK : rc;
}

static ds_rc serve(ds_comm *comm, const ds_rank_opts *o, ds_err *err)
{
    ds_pool *pool = NULL;
    ds_model *m = NULL;
    ds_runner *run = NULL;
    uint32_t max_rows = 0;
    hello mine;
    ds_rc rc = ds_llm_open_rank(&pool, &m, o->dir, &o->place, comm->ranks, comm->rank, err);

    if (rc == DS_OK)
        rc = say_of(&mine, m, o->dir, o->bf16, 0, err);
    if (rc == DS_OK)
        rc = meet(comm, &mine, &max_rows, err);
    if (rc == DS_OK) {
        ds_runner_opts ro = runner_opts(o->bf16, m, max_rows);
        ro.comm = comm;
        ro.pool = pool;
        rc = ds_runner_create(&run, m, &ro, err);
    }
    if (rc == DS_OK)
        rc = attend(comm, run, err);
    ds_runner_destroy(run);
    ds_model_close(m);
    ds_pool_destroy(pool);
    return rc;
}

ds_rc ds_rank_serve(const ds_rank_opts *o, bool *told, ds_err *err)
{
    ds_comm *comm;
    ds_rc rc = ds_comm_shm_join(&comm, o->fd, o->rank, err);

    *told = rc == DS_OK;
    if (rc != DS_OK)
        return rc;
    rc = serve(comm, o, err);
    if (rc != DS_OK)
        comm->fn->give_up(comm, err->msg);
    comm->fn->destroy(comm);
    return rc;
}
