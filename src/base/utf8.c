/* Validation of whole texts, without a branch on the kind of character.
 *
 * The automaton's state is a bit offset (a multiple of 6) into a 64-bit row; the row of a byte's class holds, at the
 * offset of each state, the next one. A step is a load that doesn't depend on the state, and a shift that does.
 * ERROR is offset 0 and stays there, for the low bits of every row are 0. */
#include "base/utf8.h"

#include <string.h>

enum {
    ERROR = 0,
    START = 6,
    TAIL1 = 12, /* that many continuation bytes are missing */
    TAIL2 = 18,
    TAIL3 = 24,
    AFTER_E0 = 30, /* the next byte's range is narrower: no overlong form, no surrogate, nothing above U+10FFFF */
    AFTER_ED = 36,
    AFTER_F0 = 42,
    AFTER_F4 = 48,
};

enum { ASCII = 1, C80, C90, CA0, L2, LE0, L3, LED, LF0, L4, LF4, N_CLASSES }; /* 0: never legal */

static const uint8_t class_of[256] = {
    [0x00 ... 0x7f] = ASCII, [0x80 ... 0x8f] = C80, [0x90 ... 0x9f] = C90, [0xa0 ... 0xbf] = CA0, [0xc2 ... 0xdf] = L2, [0xe0] = LE0,
    [0xe1 ... 0xec] = L3,    [0xed] = LED,          [0xee ... 0xef] = L3,  [0xf0] = LF0,          [0xf1 ... 0xf3] = L4, [0xf4] = LF4,
};

#define TO(from, to) ((uint64_t)(to) << (from))
#define TAILS (TO(TAIL1, START) | TO(TAIL2, TAIL1) | TO(TAIL3, TAIL2))
static const uint64_t row[N_CLASSES] = {
    [ASCII] = TO(START, START),
    [C80] = TAILS | TO(AFTER_ED, TAIL1) | TO(AFTER_F4, TAIL2),
    [C90] = TAILS | TO(AFTER_ED, TAIL1) | TO(AFTER_F0, TAIL2),
    [CA0] = TAILS | TO(AFTER_E0, TAIL1) | TO(AFTER_F0, TAIL2),
    [L2] = TO(START, TAIL1),
    [LE0] = TO(START, AFTER_E0),
    [L3] = TO(START, TAIL2),
    [LED] = TO(START, AFTER_ED),
    [LF0] = TO(START, AFTER_F0),
    [L4] = TO(START, TAIL3),
    [LF4] = TO(START, AFTER_F4),
};

bool ds_utf8_valid(const char *s, size_t n)
{
    const unsigned char *p = (const unsigned char *)s;
    uint64_t state = START;
    size_t i = 0;

    while (n - i >= 16) {
        uint64_t w[2];
        memcpy(w, p + i, 16);
        if ((state & 63) == START && ((w[0] | w[1]) & 0x8080808080808080u) == 0) {
            i += 16;
            continue;
        }
        for (size_t end = i + 16; i < end; i++)
            state = row[class_of[p[i]]] >> (state & 63);
        if ((state & 63) == ERROR)
            return false;
    }
    for (; i < n; i++)
        state = row[class_of[p[i]]] >> (state & 63);
    return (state & 63) == START;
}
