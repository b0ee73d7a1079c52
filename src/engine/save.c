/* From the device to the store: what is committed, where the store wants that at once, and what leaves. */
#include <assert.h>

#include "engine/engine_internal.h"

enum { SAVES_A_STEP = 64 };

static void save_op(ds_eng_step *st, const ds_store_item *item, uint32_t from, uint32_t buffer)
{
    ds_eng_op(st, item->is_state ? DS_DEV_SAVE_SLOT : DS_DEV_SAVE_BLOCK, from, buffer);
    st->dev.ops[st->dev.n_ops - 1].dec_start = item->dec_start;
    st->dev.ops[st->dev.n_ops - 1].approx = item->approx;
}

/* Something with this key is about to be overwritten. */
static void offer_leaving(ds_eng_loop *e, ds_eng_step *st, const ds_store_item *item, uint32_t from)
{
    uint32_t buffer;

    if (ds_eng_ops_left(e, st) == 0)
        return;
    buffer = e->store->fn->save(e->store->ctx, item);
    if (buffer != DS_NONE && buffer != DS_STORE_LATER)
        save_op(st, item, from, buffer);
}

uint32_t ds_eng_take_block(ds_eng_loop *e, ds_eng_step *st)
{
    const ds_blocks *b = &e->blocks;
    uint32_t i = ds_blocks_next(b);

    if (e->store && i != DS_NONE && b->keys.used[i])
        offer_leaving(e, st, &(ds_store_item){ .leaving = true, .key = b->keys.key[i], .approx = b->approx[i] }, i);
    return ds_blocks_take(&e->blocks);
}

uint32_t ds_eng_take_state(ds_eng_loop *e, ds_eng_step *st)
{
    const ds_states *s = &e->states;
    uint32_t i = ds_states_next(s);

    if (e->store && i != DS_NONE && s->keys.used[i])
        offer_leaving(e, st,
                      &(ds_store_item){
                          .is_state = true, .leaving = true, .key = s->keys.key[i], .approx = s->approx[i], .dec_start = s->dec_start[i] },
                      ds_states_slot(s, i));
    return ds_states_take(&e->states);
}

void ds_eng_want_saved(ds_eng_loop *e, const ds_eng_save *what)
{
    ds_eng_saves *q = &e->saves;

    if (q->cap == 0)
        return;
    if (q->n == q->cap) {
        e->turn.saves_lost++;
        return;
    }
    q->item[(q->first + q->n++) % q->cap] = *what;
}

/* It is still where it was. */
static bool is_there(const ds_eng_loop *e, const ds_eng_save *v)
{
    const ds_keytab *keys = v->is_state ? &e->states.keys : &e->blocks.keys;

    return keys->used[v->at] && ds_key_equal(&keys->key[v->at], &v->key) && (v->is_state || !e->blocks.expected[v->at]);
}

void ds_eng_plan_saves(ds_eng_loop *e, ds_eng_step *st)
{
    ds_eng_saves *q = &e->saves;

    for (uint32_t n = 0; n < SAVES_A_STEP && q->n > 0 && ds_eng_ops_left(e, st) > 0; n++) {
        const ds_eng_save *v = &q->item[q->first];
        if (is_there(e, v)) {
            ds_store_item item = { .is_state = v->is_state,
                                   .key = v->key,
                                   .approx = v->is_state ? e->states.approx[v->at] : e->blocks.approx[v->at],
                                   .dec_start = v->is_state ? e->states.dec_start[v->at] : 0,
                                   .parent = v->parent,
                                   .depth = v->depth,
                                   .needed = v->needed };
            uint32_t buffer = e->store->fn->save(e->store->ctx, &item);
            if (buffer == DS_STORE_LATER) {
                q->later = true;
                return;
            }
            if (buffer != DS_NONE)
                save_op(st, &item, v->is_state ? ds_states_slot(&e->states, v->at) : v->at, buffer);
        } else {
            e->turn.saves_lost++;
        }
        q->first = (q->first + 1) % q->cap;
        q->n--;
    }
    q->later = false;
}

void ds_eng_saves_done(ds_eng_loop *e, const ds_eng_step *st)
{
    if (!e->store || !e->store->fn->saved || st->dev.ops_rc != DS_OK) /* what isn't filled is never to be read */
        return;
    for (uint32_t i = 0; i < st->dev.n_ops; i++) {
        const ds_dev_op *op = &st->dev.ops[i];
        if ((op->kind == DS_DEV_SAVE_BLOCK && op->dst < e->handoff_block) ||
            (op->kind == DS_DEV_SAVE_SLOT && op->dst < e->handoff_state)) /* those aren't the store's */
            e->store->fn->saved(e->store->ctx, op->kind == DS_DEV_SAVE_SLOT, op->dst);
    }
}
