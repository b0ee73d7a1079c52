/* Threads that prepare large requests, so that the loop's streams don't wait for them. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "server/server_internal.h"

static void append(ds_call ***end, ds_call *c)
{
    c->next = NULL;
    **end = c;
    *end = &c->next;
}

static void *work(void *arg)
{
    ds_server *s = arg;
    ds_kit kit = { 0 };

    pthread_mutex_lock(&s->mu);
    while (!s->quit) {
        if (s->sweep_due) {
            s->sweep_due = false;
            pthread_mutex_unlock(&s->mu);
            ds_store_sweep(s->store, ds_server_wall(s));
            pthread_mutex_lock(&s->mu);
            continue;
        }
        ds_call *c = s->todo;
        if (!c) {
            pthread_cond_wait(&s->more, &s->mu);
            continue;
        }
        s->todo = c->next;
        if (!s->todo)
            s->todo_end = &s->todo;
        pthread_mutex_unlock(&s->mu);
        ds_err err = { 0 };
        if (!kit.encoder && ds_encoder_create(&kit.encoder, s->model.tokenizer, NULL, &err) != DS_OK) {
            c->rc = err.rc;
            ds_api_fail(&c->refusal, 503, NULL, NULL, NULL, "the server is out of memory");
        } else {
            ds_call_prepare(c, &kit);
        }
        pthread_mutex_lock(&s->mu);
        append(&s->done_end, c);
        pthread_mutex_unlock(&s->mu);
        ds_server_wake(s);
        pthread_mutex_lock(&s->mu);
    }
    pthread_mutex_unlock(&s->mu);
    ds_encoder_destroy(kit.encoder);
    return NULL;
}

ds_rc ds_workers_start(ds_server *s, ds_err *err)
{
    s->todo_end = &s->todo;
    s->done_end = &s->done;
    s->threads = calloc(s->o.workers, sizeof *s->threads);
    if (!s->threads)
        return ds_fail(err, DS_E_NOMEM, "workers: out of memory");
    for (; s->n_threads < s->o.workers; s->n_threads++) {
        int e = pthread_create(&s->threads[s->n_threads], NULL, work, s);
        if (e != 0)
            return ds_fail(err, DS_E_IO, "workers: %s", strerror(e));
    }
    return DS_OK;
}

void ds_workers_stop(ds_server *s)
{
    pthread_mutex_lock(&s->mu);
    s->quit = true;
    pthread_cond_broadcast(&s->more);
    pthread_mutex_unlock(&s->mu);
    for (size_t i = 0; i < s->n_threads; i++)
        pthread_join(s->threads[i], NULL);
    free(s->threads);
    s->threads = NULL;
    s->n_threads = 0;
}

void ds_workers_give(ds_server *s, ds_call *c)
{
    assert(c->preparing && s->n_threads > 0);
    pthread_mutex_lock(&s->mu);
    append(&s->todo_end, c);
    pthread_cond_signal(&s->more);
    pthread_mutex_unlock(&s->mu);
}

ds_call *ds_workers_take(ds_server *s)
{
    pthread_mutex_lock(&s->mu);
    ds_call *list = s->done;
    s->done = NULL;
    s->done_end = &s->done;
    pthread_mutex_unlock(&s->mu);
    return list;
}

void ds_workers_sweep(ds_server *s)
{
    pthread_mutex_lock(&s->mu);
    s->sweep_due = true;
    pthread_cond_signal(&s->more);
    pthread_mutex_unlock(&s->mu);
}
