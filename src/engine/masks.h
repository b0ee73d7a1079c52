/* Masks of constrained samples (ds_gen_grammar), made on threads of their own while the device computes.
 *
 * Each seat has one place for a question. Before the pass, when the drafts are known, the device's thread asks; after
 * it, it takes the answers that are there and says so when it has used one. A question that isn't answered in time
 * stays and is asked no second time: its sample's rows are computed again in the next step. Tokens that were drawn
 * wait in the sample (ds_dev_sample.unread) until the next question, and are accepted in front of it, so that nobody
 * but these threads ever waits for a grammar.
 *
 * Threads: ask, poll, wait, used from the device's thread; forget from any other. Two threads answer, so that a slow
 * question doesn't hold up the others. Locks: one, held for looking at the places only.   Memory: all in create. */
#ifndef DS_ENGINE_MASKS_H
#define DS_ENGINE_MASKS_H

#include "engine/backend.h"

typedef struct ds_masks ds_masks;

typedef enum { DS_MASKS_NONE, DS_MASKS_WAITING, DS_MASKS_THERE } ds_masks_state;

/* words: [n_seats][1 + drafts][ld], borrowed: memory that the device reads. DS_E_NOMEM; DS_E_IO: no thread to be
 * had. */
ds_rc ds_masks_create(ds_masks **out, uint32_t n_seats, uint32_t drafts, uint32_t *words, size_t ld, ds_err *err);
void ds_masks_destroy(ds_masks *m); /* NULL is fine. Waits for what is being answered */
/* A seat's rows, for whoever has no question there. */
uint32_t *ds_masks_words(const ds_masks *m, uint32_t seat);
/* Bytes of all of them. */
uint64_t ds_masks_words_bytes(uint32_t n_seats, uint32_t drafts, size_t ld);

/* Asks for the masks behind s's text and n drafts, n <= drafts. A question of the same seat that was left from a step
 * before stands instead; then it is *n that follows: as many drafts as both begin with. */
void ds_masks_ask(ds_masks *m, uint32_t seat, ds_dev_sample *s, const ds_token *drafts, uint32_t *n);
/* THERE: *words is the first row, *rows their number (0: the text can't go on); valid until used. */
ds_masks_state ds_masks_poll(ds_masks *m, uint32_t seat, const uint32_t **words, uint32_t *rows);
/* Waits until one more question has been answered than when this was called last, until until_ns of ds_now_ns, or
 * until nothing is asked. False: time is up. */
bool ds_masks_wait(ds_masks *m, uint64_t until_ns);
/* The answer of that seat isn't needed any more. */
void ds_masks_used(ds_masks *m, uint32_t seat);
/* The seat is given to others: its question is dropped. When this returns nobody calls s's grammar. Waits for the
 * answer if it is being made. */
void ds_masks_forget(ds_masks *m, uint32_t seat);

#endif
