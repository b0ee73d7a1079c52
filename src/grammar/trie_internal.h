/* The trie of a vocabulary, and its parts for plain text. */
#ifndef DS_GRAMMAR_TRIE_INTERNAL_H
#define DS_GRAMMAR_TRIE_INTERNAL_H

#include "grammar/grammar_internal.h"

typedef struct {
    uint32_t skip;  /* the next node that isn't below this one */
    uint32_t first; /* order[first .. next node's first): tokens that end here */
    uint32_t below; /* kinds of the bytes below this one (byte_kind) */
    uint16_t depth; /* bytes to here */
    uint8_t byte;
} trie_node;

/* Some of the tokens. The first part has all of them. Others have those that are no plain text of at most `most`
 * characters; the rest of the tokens are bits of `plain`. */
typedef struct {
    trie_node *nodes; /* in preorder; 0 is the root; one more at the end */
    uint32_t n_nodes, n_order;
    uint32_t *order;       /* ids, sorted by bytes */
    uint32_t child[256];   /* of the root: the node of each first byte, 0: none. They lie far apart */
    const uint32_t *plain; /* NULL: none */
    uint32_t most;         /* 0: any number */
} trie_part;

enum { N_PARTS = 6, MOST_ROWS = 32, NOT_PLAIN = 255, SHORT = 16 /* characters */ };

struct ds_token_trie {
    trie_part parts[N_PARTS];
    uint32_t n_tokens, max_depth;
    uint32_t *at; /* of each id: the offset of its bytes; at[n_tokens] is the end */
    char *bytes;
    uint8_t byte_kind[256]; /* up to 31: letters, digits, … */
    /* Plain text: an automaton over bytes. Row 0 is where a character ends; its classes. */
    uint8_t plain[MOST_ROWS][256];
    uint8_t plain_class[256];
    /* Plain tokens by length in characters: in order; where those of more than n characters begin; and as bits all of
     * at most n characters, n up to SHORT, behind them all. */
    uint32_t *by_length, *longer, longest;
    uint32_t *shorter[SHORT + 2];
};

/* Heads: which tokens may follow a frame (heads.c). Each function: false: memory or a bound. */

/* The number of the head of a frame, and the limit that it is to be read with. */
bool ds_head_of(ds_grammar *g, const ds_token_trie *t, uint32_t frame, uint32_t *head, uint32_t *limit);
/* What follows the leaves of a head, where its rule ends and the stack has that frame on top. Its limit is that of the
 * head, if that is counted, else *limit. */
bool ds_head_below(ds_grammar *g, const ds_token_trie *t, uint32_t head, uint32_t frame, uint32_t *below, uint32_t *limit);

static inline bool ds_limit_allows(uint32_t limit, uint8_t calls)
{
    uint32_t n = calls & (PAST_CALLS - 1);

    return n <= (limit & UINT16_MAX) && (!(calls & PAST_CALLS) || n >= limit >> 16);
}

#endif
