/* The trie of a vocabulary, and its parts for plain text. */
#ifndef DS_GRAMMAR_TRIE_INTERNAL_H
#define DS_GRAMMAR_TRIE_INTERNAL_H

#include "grammar/grammar_internal.h"

typedef struct {
    uint32_t skip;  /* the next node that isn't below this one */
    uint32_t first; /* order[first .. next node's first): tokens that end here */
    uint16_t depth; /* bytes to here */
    uint8_t byte;
} trie_node;

/* Some of the tokens. The first part has all of them. Others have those that are no plain text of at most `most`
 * characters; the rest of the tokens are bits of `plain`. The last has the plain ones of more than 32 characters. */
typedef struct {
    trie_node *nodes; /* in preorder; 0 is the root; one more at the end */
    uint32_t n_nodes, n_order;
    uint32_t *order;     /* ids, sorted by bytes */
    uint32_t child[256]; /* of the root: the node of each first byte, 0: none. They lie far apart */
    uint32_t *plain;     /* NULL: none */
    uint32_t most;       /* 0: any number */
} trie_part;

enum { N_PLAIN = 6, MOST_ROWS = 32, NOT_PLAIN = 255 };

struct ds_token_trie {
    trie_part parts[N_PLAIN + 1];
    uint32_t n_tokens, max_depth;
    uint32_t *at; /* of each id: the offset of its bytes; at[n_tokens] is the end */
    char *bytes;
    /* Plain text: an automaton over bytes. Row 0 is where a character ends; its classes. */
    uint8_t plain[MOST_ROWS][256];
    uint8_t plain_class[256];
};

#endif
