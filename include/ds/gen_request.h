/* From a parsed request (ds/request.h) to what a generator is asked (ds/gen.h): the one place where the first becomes
 * the second, for every protocol and every program. What a client gave wins over what stands beside his request. */
#ifndef DS_GEN_REQUEST_H
#define DS_GEN_REQUEST_H

#include <ds/gen.h>
#include <ds/request.h>

/* What isn't in the request itself. Borrowed until the generator has it. */
typedef struct {
    uint32_t prompt;     /* which of the request's prompts this is: its samples draw with seeds of their own */
    const ds_token *ids; /* its tokens, room for pictures among them */
    size_t n_ids;
    uint32_t max_tokens;      /* what the context leaves of the request's limit. 0: nobody wants a token; one is drawn all the same */
    ds_sampling sampling;     /* what holds where the client said nothing; nothing is missing */
    const ds_token *stop_ids; /* that end any text of this model, unless the request ignores them */
    size_t n_stop_ids;
    const ds_token_seq *bad; /* the request's bad words in this model's tokens */
    size_t n_bad;
    bool stop_strings; /* texts end at the request's stop strings; else whoever reads the answer finds them */
    const ds_gen_image *images;
    size_t n_images;
} ds_gen_beside;

typedef struct {
    ds_token stop_ids[DS_GEN_MAX_STOP_IDS];
} ds_gen_room;

/* Borrows from all three: `room` takes what has to be put together. Cookie, tag, deadline, cache domain, grammar and
 * priority are the caller's to set. Stop ids beyond what a generator takes are left in their number, so that it
 * refuses them. */
ds_gen_request ds_gen_request_of(const ds_request_info_data *info, const ds_gen_beside *b, ds_gen_room *room);

#endif
