#include "engine/masks.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"

enum { N_THREADS = 2 };

typedef enum { IDLE, ASKED, ANSWERING, ANSWERED } place_state;

typedef struct {
    /* [mu]; the rest belongs to the device's thread while IDLE or ANSWERED, else to the thread that answers */
    place_state state;
    ds_dev_sample *sample;
    ds_token draft[DS_DEV_MAX_DRAFTS];
    uint32_t n_drafts;
    uint32_t rows; /* the answer */
} place;

struct ds_masks {
    /* [const] */
    uint32_t n_seats, drafts;
    size_t ld;
    uint32_t *words;
    /* [mu] */
    pthread_mutex_t mu;
    pthread_cond_t came, answered;
    place *seat;
    uint32_t *queue; /* ring of seats that are ASKED, or were: [n_seats] */
    uint32_t first, n_queue;
    uint32_t n_open;        /* ASKED or ANSWERING */
    uint64_t n_answered;    /* in all */
    uint64_t seen_answered; /* when wait was called last */
    bool stop;
    pthread_t thread[N_THREADS];
    uint32_t n_threads;
};

uint64_t ds_masks_words_bytes(uint32_t n_seats, uint32_t drafts, size_t ld)
{
    return (uint64_t)n_seats * (1 + drafts) * ld * sizeof(uint32_t);
}

uint32_t *ds_masks_words(const ds_masks *m, uint32_t seat)
{
    return m->words + (size_t)seat * (1 + m->drafts) * m->ld;
}

static void answer(const ds_masks *m, uint32_t seat, place *p)
{
    ds_dev_sample *s = p->sample;
    const ds_gen_grammar *g = s->grammar;

    if (s->n_unread)
        g->fn->accept(g->ctx, s->sample, s->unread, s->n_unread);
    s->n_unread = 0;
    p->rows = g->fn->masks(g->ctx, s->sample, p->draft, p->n_drafts, ds_masks_words(m, seat), m->ld);
    assert(p->rows <= 1 + p->n_drafts);
}

static void *answers(void *arg)
{
    ds_masks *m = arg;

    pthread_mutex_lock(&m->mu);
    for (;;) {
        uint32_t seat;
        place *p;
        while (!m->stop && m->n_queue == 0)
            pthread_cond_wait(&m->came, &m->mu);
        if (m->stop)
            break;
        seat = m->queue[m->first];
        m->first = (m->first + 1) % m->n_seats;
        m->n_queue--;
        p = &m->seat[seat];
        p->state = ANSWERING;
        pthread_mutex_unlock(&m->mu);
        answer(m, seat, p);
        pthread_mutex_lock(&m->mu);
        p->state = ANSWERED;
        m->n_open--;
        m->n_answered++;
        pthread_cond_broadcast(&m->answered);
    }
    pthread_mutex_unlock(&m->mu);
    return NULL;
}

void ds_masks_ask(ds_masks *m, uint32_t seat, ds_dev_sample *s, const ds_token *drafts, uint32_t *n)
{
    place *p = &m->seat[seat];

    assert(*n <= m->drafts);
    pthread_mutex_lock(&m->mu);
    if (p->state != IDLE) {
        uint32_t same = 0;
        assert(p->sample == s);
        while (same < *n && same < p->n_drafts && drafts[same] == p->draft[same])
            same++;
        *n = same;
        pthread_mutex_unlock(&m->mu);
        return;
    }
    p->state = ASKED;
    p->sample = s;
    p->n_drafts = *n;
    memcpy(p->draft, drafts, *n * sizeof *drafts);
    m->queue[(m->first + m->n_queue++) % m->n_seats] = seat;
    m->n_open++;
    pthread_cond_signal(&m->came);
    pthread_mutex_unlock(&m->mu);
}

ds_masks_state ds_masks_poll(ds_masks *m, uint32_t seat, const uint32_t **words, uint32_t *rows)
{
    const place *p = &m->seat[seat];
    ds_masks_state state;

    pthread_mutex_lock(&m->mu);
    state = p->state == IDLE ? DS_MASKS_NONE : p->state == ANSWERED ? DS_MASKS_THERE : DS_MASKS_WAITING;
    if (state == DS_MASKS_THERE) {
        *words = ds_masks_words(m, seat);
        *rows = p->rows;
    }
    pthread_mutex_unlock(&m->mu);
    return state;
}

bool ds_masks_wait(ds_masks *m, uint64_t until_ns)
{
    const struct timespec t = { (time_t)(until_ns / 1000000000u), (long)(until_ns % 1000000000u) };
    bool more;
    int rc = 0;

    pthread_mutex_lock(&m->mu);
    while (m->n_answered == m->seen_answered && m->n_open && rc != ETIMEDOUT)
        rc = pthread_cond_timedwait(&m->answered, &m->mu, &t);
    more = m->n_answered != m->seen_answered || m->n_open == 0;
    m->seen_answered = m->n_answered;
    pthread_mutex_unlock(&m->mu);
    return more;
}

void ds_masks_used(ds_masks *m, uint32_t seat)
{
    pthread_mutex_lock(&m->mu);
    assert(m->seat[seat].state == ANSWERED);
    m->seat[seat].state = IDLE;
    pthread_mutex_unlock(&m->mu);
}

/* Takes a seat out of the queue. */
static void unqueue(ds_masks *m, uint32_t seat)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < m->n_queue; i++) {
        uint32_t q = m->queue[(m->first + i) % m->n_seats];
        if (q != seat)
            m->queue[(m->first + kept++) % m->n_seats] = q;
    }
    m->n_open -= m->n_queue - kept;
    m->n_queue = kept;
}

void ds_masks_forget(ds_masks *m, uint32_t seat)
{
    place *p = &m->seat[seat];

    pthread_mutex_lock(&m->mu);
    if (p->state == ASKED)
        unqueue(m, seat);
    while (p->state == ANSWERING)
        pthread_cond_wait(&m->answered, &m->mu);
    p->state = IDLE;
    pthread_mutex_unlock(&m->mu);
}

void ds_masks_destroy(ds_masks *m)
{
    if (!m)
        return;
    pthread_mutex_lock(&m->mu);
    m->stop = true;
    pthread_cond_broadcast(&m->came);
    pthread_mutex_unlock(&m->mu);
    for (uint32_t i = 0; i < m->n_threads; i++)
        pthread_join(m->thread[i], NULL);
    pthread_mutex_destroy(&m->mu);
    pthread_cond_destroy(&m->came);
    pthread_cond_destroy(&m->answered);
    free(m->seat);
    free(m->queue);
    free(m);
}

ds_rc ds_masks_create(ds_masks **out, uint32_t n_seats, uint32_t drafts, uint32_t *words, size_t ld, ds_err *err)
{
    ds_masks *m = calloc(1, sizeof *m);
    pthread_condattr_t clock;
    ds_rc rc = DS_OK;

    *out = NULL;
    if (!m)
        return ds_fail(err, DS_E_NOMEM, "engine: out of memory");
    m->n_seats = n_seats;
    m->drafts = drafts;
    m->words = words;
    m->ld = ld;
    pthread_mutex_init(&m->mu, NULL);
    pthread_cond_init(&m->came, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&m->answered, &clock);
    pthread_condattr_destroy(&clock);
    m->seat = calloc(n_seats, sizeof *m->seat);
    m->queue = calloc(n_seats, sizeof *m->queue);
    if (!m->seat || !m->queue)
        rc = ds_fail(err, DS_E_NOMEM, "engine: out of memory for masks of %u sequences", n_seats);
    for (; rc == DS_OK && m->n_threads < N_THREADS; m->n_threads++) {
        int started = pthread_create(&m->thread[m->n_threads], NULL, answers, m);
        if (started != 0) {
            rc = ds_fail(err, DS_E_IO, "engine: a thread for masks can't start: %s", strerror(started));
            break;
        }
        pthread_setname_np(m->thread[m->n_threads], "ds-masks");
    }
    if (rc != DS_OK) {
        ds_masks_destroy(m);
        return rc;
    }
    *out = m;
    return DS_OK;
}
