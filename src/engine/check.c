/* Every invariant of the loop's tables, checked the slow way. */
#include <stdio.h>
#include <string.h>

#include "engine/engine_internal.h"

enum { MAX_CHECKED = 1 << 16 };

static _Thread_local char text[160];
static _Thread_local uint32_t refs[MAX_CHECKED], pins[MAX_CHECKED];
static _Thread_local uint8_t seats[MAX_CHECKED], tails[MAX_CHECKED];

#define WRONG(...) (snprintf(text, sizeof text, __VA_ARGS__), text)

static const char *count_sample(const ds_eng_loop *e, const ds_eng_sample *s)
{
    bool seated = s->state == S_PROMPT || s->state == S_DECODE || s->state == S_LEAVING;

    for (uint32_t i = 0; i < s->n_blocks; i++)
        refs[s->blocks[i]]++;
    if (s->parked != DS_NONE)
        pins[s->parked]++;
    if (s->fork_state != DS_NONE)
        pins[s->fork_state]++;
    if (s->held_state != DS_NONE)
        pins[s->held_state]++;
    if (s->state == S_FETCHING && e->fetches.f[s->fetch].state != DS_NONE)
        pins[e->fetches.f[s->fetch].state]++;
    if (s->holds != (s->holds && (s->state == S_WAITING || s->state == S_FETCHING) && s->parked == DS_NONE) ||
        (s->held_state != DS_NONE && !s->holds) || (s->state == S_FETCHING && !s->holds))
        return WRONG("a sample in state %d holds what came from the store: %d", s->state, s->holds);
    if (s->tail != DS_NONE && tails[s->tail]++)
        return WRONG("tail %u twice", s->tail);
    if (seated != (s->seat != DS_NONE))
        return WRONG("state %d and seat %u", s->state, s->seat);
    if (s->seat != DS_NONE && seats[s->seat]++)
        return WRONG("seat %u twice", s->seat);
    if (s->state == S_GONE || s->state == S_HELD) {
        if (s->n_blocks || s->parked != DS_NONE || s->fork_state != DS_NONE || s->tail != DS_NONE)
            return WRONG("a sample in state %d holds something", s->state);
        return NULL;
    }
    if (s->state == S_WAITING && s->parked == DS_NONE && s->n_blocks && !s->holds)
        return WRONG("a waiting sample that isn't parked holds blocks");
    if (s->pos > s->pos_max || s->pos_max > s->dev.limit)
        return WRONG("position %u, at most %u, limit %u", s->pos, s->pos_max, s->dev.limit);
    if (seated && ds_eng_blocks_for(s->pos_max) > s->n_blocks && !(s->state == S_LEAVING && s->n_blocks == 0))
        return WRONG("%u positions in %u blocks", s->pos_max, s->n_blocks);
    if (s->pos > s->req->n_prompt + s->n_out)
        return WRONG("position %u of %u tokens", s->pos, s->req->n_prompt + s->n_out);
    return NULL;
}

/* Rows that may write a block have it for themselves; rows in flight have live resources. */
static const char *check_step(const ds_eng_loop *e, const ds_eng_step *st)
{
    for (uint32_t i = 0; i < st->dev.n_rows; i++) {
        const ds_dev_rows *r = &st->dev.rows[i];
        const ds_eng_sample *s = st->who[i];
        uint32_t first = (r->decode ? s->pos : r->pos > r->store_from ? r->pos : r->store_from) / DS_KV_BLOCK_TOKENS;
        if (s->busy_until < st->dev.no || s->state == S_GONE || s->state == S_WAITING || s->seat != r->slot)
            return WRONG("step %llu has rows of a sample that was let go", (unsigned long long)st->dev.no);
        if (s->n_blocks < r->n_blocks)
            return WRONG("step %llu reads %u blocks of a sample that has %u", (unsigned long long)st->dev.no, r->n_blocks, s->n_blocks);
        for (uint32_t k = 0; k < r->n_blocks; k++) {
            if (e->blocks.ref[r->blocks[k]] == 0)
                return WRONG("step %llu reads block %u, which is free", (unsigned long long)st->dev.no, r->blocks[k]);
            if (k >= first && k < ds_eng_blocks_for(s->pos_max) && e->blocks.ref[r->blocks[k]] != 1 && !(s->req->n_samples > 1))
                return WRONG("step %llu writes block %u, which %u share", (unsigned long long)st->dev.no, r->blocks[k],
                             e->blocks.ref[r->blocks[k]]);
        }
        if (st->save[i] != DS_NONE)
            pins[st->save[i]]++;
    }
    for (uint32_t i = 0; i < st->n_after; i++)
        switch (st->after[i].kind) {
        case AFTER_UNPIN:
            pins[st->after[i].what]++;
            break;
        case AFTER_UNREF:
            refs[st->after[i].what]++;
            break;
        case AFTER_FREE_TAIL:
            if (tails[st->after[i].what]++)
                return WRONG("tail %u twice", st->after[i].what);
            break;
        case AFTER_HANDOFF:
            if (!e->handoff_busy)
                return WRONG("a step uses the buffers of handoffs, which are free");
            break;
        case AFTER_DROP:
            if (e->fetches.f[st->after[i].what].ticket == 0 || e->fetches.f[st->after[i].what].who)
                return WRONG("fetch %u isn't one that is read", st->after[i].what);
            break;
        }
    return NULL;
}

static const char *check_blocks(const ds_eng_loop *e)
{
    const ds_blocks *b = &e->blocks;
    uint32_t idle = 0, cached = 0;

    for (uint32_t i = b->next[b->n]; i != b->n; i = b->next[i]) {
        if (b->ref[i] != 0 || b->prev[b->next[i]] != i || ++idle > b->n)
            return WRONG("block %u in the list of idle ones has %u references", i, b->ref[i]);
        cached += b->keys.used[i];
    }
    if (idle != b->n_idle || cached != b->n_cached)
        return WRONG("%u idle blocks, %u cached: counted %u and %u", b->n_idle, b->n_cached, idle, cached);
    for (uint32_t i = 0; i < b->n; i++) {
        if (b->ref[i] != refs[i])
            return WRONG("block %u has %u references, counted %u", i, b->ref[i], refs[i]);
        if (b->keys.used[i] && ds_keytab_find(&b->keys, &b->keys.key[i]) != i)
            return WRONG("block %u isn't found by its key", i);
        idle += b->ref[i] != 0;
    }
    return idle == b->n ? NULL : WRONG("%u blocks are neither idle nor used", b->n - idle);
}

static const char *check_states(const ds_eng_loop *e)
{
    const ds_states *s = &e->states;
    uint32_t unpinned = 0, used = 0;

    for (uint32_t i = s->next[s->n_saved]; i != s->n_saved; i = s->next[i])
        if (s->pins[i] != 0 || s->prev[s->next[i]] != i || ++unpinned > s->n_saved)
            return WRONG("saved state %u in the list of free ones has %u pins", i, s->pins[i]);
    for (uint32_t i = 0; i < s->n_saved; i++)
        if (s->pins[i] != pins[i])
            return WRONG("saved state %u has %u pins, counted %u", i, s->pins[i], pins[i]);
    if (unpinned + s->n_pinned != s->n_saved)
        return WRONG("%u saved states are free, %u pinned, of %u", unpinned, s->n_pinned, s->n_saved);
    for (uint32_t i = 0; i < s->n_free_seats; i++)
        if (seats[s->seat[i]]++)
            return WRONG("seat %u is free and taken", s->seat[i]);
    for (uint32_t i = 0; i < s->n_seats; i++)
        used += seats[i];
    return used == s->n_seats ? NULL : WRONG("%u of %u seats are lost", s->n_seats - used, s->n_seats);
}

/* Who fetches has a ticket with its blocks; who expects something else is wrong. */
static const char *check_fetches(const ds_eng_loop *e)
{
    uint32_t under_way = 0, expected = 0, flagged = 0, unused = 0;

    for (uint32_t i = 0; i < e->fetches.n; i++) {
        const ds_fetch *f = &e->fetches.f[i];
        unused += f->ticket == 0;
        if (!f->ticket || !f->who)
            continue;
        under_way++;
        if (f->who->state != S_FETCHING || f->who->fetch != i)
            return WRONG("fetch %u is for a sample in state %d with fetch %u", i, f->who->state, f->who->fetch);
        for (uint32_t k = 0, at = 0; k < f->n; k++) {
            while (at < f->who->n_blocks && f->who->blocks[at] != f->block[k])
                at++;
            if (at == f->who->n_blocks)
                return WRONG("fetch %u: its sample doesn't hold block %u", i, f->block[k]);
            expected += e->blocks.expected[f->block[k]];
        }
    }
    for (uint32_t i = 0; i < e->blocks.n; i++) {
        flagged += e->blocks.expected[i];
        if (e->blocks.expected[i] && (e->blocks.ref[i] != 1 || !e->blocks.keys.used[i]))
            return WRONG("block %u is expected and has %u references", i, e->blocks.ref[i]);
    }
    if (expected != flagged || under_way != e->fetches.n_under_way || unused != e->fetches.n_free)
        return WRONG("%u blocks are expected, %u by fetches; %u fetches, counted %u; %u free, counted %u", flagged, expected,
                     e->fetches.n_under_way, under_way, e->fetches.n_free, unused);
    return NULL;
}

const char *ds_engine_check(const ds_engine *engine)
{
    const ds_eng_loop *e = &engine->loop;
    const char *wrong = NULL;
    uint32_t waiting = 0, parked = 0, running = 0, live = 0, holding = 0, all_tails = e->n_free_tails;

    if (e->blocks.n > MAX_CHECKED || e->states.n_saved > MAX_CHECKED || e->states.n_seats > MAX_CHECKED)
        return WRONG("too large to be checked");
    memset(refs, 0, e->blocks.n * sizeof *refs);
    memset(pins, 0, e->states.n_saved * sizeof *pins);
    memset(seats, 0, e->states.n_seats);
    memset(tails, 0, e->o->prefills);
    for (uint32_t i = 0; i < e->o->max_requests; i++) {
        const ds_eng_request *r = engine->mail.table[i];
        uint32_t gone = 0;
        for (uint32_t k = 0; r && k < r->n_samples && !wrong; k++) {
            const ds_eng_sample *s = &r->samples[k];
            wrong = count_sample(e, s);
            waiting += s->state == S_WAITING || s->state == S_FETCHING;
            holding += s->holds;
            parked += s->parked != DS_NONE;
            running += s->seat != DS_NONE;
            gone += s->state == S_GONE;
            if (s->ended && s->n_out > s->cap_out)
                wrong = WRONG("%u tokens where %u fit", s->n_out, s->cap_out);
        }
        if (r && !wrong && gone != r->n_gone)
            wrong = WRONG("%u samples are gone, counted %u", r->n_gone, gone);
        if (r)
            live += r->n_samples - gone;
        if (wrong)
            return wrong;
    }
    for (uint64_t no = e->done + 1; no <= e->submitted && !wrong; no++)
        wrong = check_step(e, &e->step[no % DS_DEV_DEPTH]);
    if (!wrong)
        wrong = check_blocks(e);
    if (!wrong)
        wrong = check_states(e);
    if (!wrong)
        wrong = check_fetches(e);
    if (!wrong && engine->host)
        wrong = ds_hoststore_check(engine->host);
    if (wrong)
        return wrong;
    for (uint32_t i = 0; i < e->o->prefills; i++)
        all_tails += tails[i];
    if (e->o->mode == DS_ENGINE_CED && all_tails != e->o->prefills)
        return WRONG("%u of %u tails are accounted for", all_tails, e->o->prefills);
    if (waiting != e->n_waiting || parked != e->n_parked || holding != e->n_holding || running != e->n_running || live < e->n_live)
        return WRONG("waiting %u (%u), parked %u (%u), running %u (%u), live %u (%u)", e->n_waiting, waiting, e->n_parked, parked,
                     e->n_running, running, e->n_live, live);
    return NULL;
}
