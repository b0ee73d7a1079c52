/* What blocks and saved states have in common, done so slowly that it can't be wrong: numbers that are held or idle,
 * idle ones in the order in which they are given out, each with a name or none. Both are tested at random against
 * it. */
#ifndef DS_TEST_LRU_MODEL_H
#define DS_TEST_LRU_MODEL_H

#include "base/rng.h"
#include "kv/key.h"
#include "test.h"

enum { LRU_NONE = -1, LRU_MAX = 16, LRU_STEPS = 30000 };

typedef struct {
    uint32_t n, held[LRU_MAX], idle[LRU_MAX], n_idle; /* idle: the next to be given out first */
    int name[LRU_MAX];
    bool approx[LRU_MAX];
} lru_model;

static inline ds_key lru_key(uint32_t name)
{
    ds_key k = { { (uint8_t)name } };

    k.b[31] = 1;
    return k;
}

static inline lru_model lru_new(uint32_t n)
{
    lru_model m = { .n = n, .n_idle = n };

    for (uint32_t i = 0; i < n; i++) {
        m.idle[i] = i;
        m.name[i] = LRU_NONE;
    }
    return m;
}

static inline void lru_leave(lru_model *m, uint32_t i)
{
    uint32_t at = 0;

    while (m->idle[at] != i)
        at++;
    memmove(m->idle + at, m->idle + at + 1, (--m->n_idle - at) * sizeof *m->idle);
}

/* Nameless ones are given out before all others. */
static inline void lru_join(lru_model *m, uint32_t i)
{
    if (m->name[i] != LRU_NONE) {
        m->idle[m->n_idle++] = i;
        return;
    }
    memmove(m->idle + 1, m->idle, m->n_idle++ * sizeof *m->idle);
    m->idle[0] = i;
}

static inline int lru_find(const lru_model *m, int name)
{
    for (uint32_t i = 0; i < m->n; i++)
        if (m->name[i] == name)
            return (int)i;
    return LRU_NONE;
}

/* Which one is given out; UINT32_MAX: none. */
static inline uint32_t lru_take(lru_model *m)
{
    uint32_t i = m->n_idle ? m->idle[0] : UINT32_MAX;

    if (i == UINT32_MAX)
        return i;
    lru_leave(m, i);
    m->name[i] = LRU_NONE;
    m->held[i] = 1;
    return i;
}

static inline void lru_hold(lru_model *m, uint32_t i)
{
    if (m->held[i]++ == 0)
        lru_leave(m, i);
}

static inline void lru_let(lru_model *m, uint32_t i)
{
    if (--m->held[i] == 0)
        lru_join(m, i);
}

/* i gets the name, and whoever has it loses it. */
static inline void lru_rename(lru_model *m, uint32_t i, int name, bool approx)
{
    int old = lru_find(m, name);

    if (old != LRU_NONE) {
        m->name[old] = LRU_NONE;
        if (m->held[old] == 0) {
            lru_leave(m, (uint32_t)old);
            lru_join(m, (uint32_t)old);
        }
    }
    m->name[i] = name;
    m->approx[i] = approx;
}

/* The list is the model's; next[n] is its head. */
static inline void lru_compare(const lru_model *m, const uint32_t *next, const uint32_t *prev, const uint32_t *held, const bool *named)
{
    uint32_t at = next[m->n];

    for (uint32_t i = 0; i < m->n_idle; i++, at = next[at]) {
        assert_int_equal(at, m->idle[i]);
        assert_int_equal(next[prev[at]], at);
    }
    assert_int_equal(at, m->n);
    for (uint32_t i = 0; i < m->n; i++) {
        assert_int_equal(held[i], m->held[i]);
        assert_int_equal(named[i], m->name[i] != LRU_NONE);
    }
}

/* The plan says what is taken: never less, and not much more. `taken`: bytes of the heap; 0: another allocator,
 * which doesn't count. */
static inline void lru_bytes(uint64_t taken, uint64_t planned)
{
    if (taken == 0)
        skip();
    assert_true(taken <= planned + 16 * 4096); /* the heap's own pages */
    assert_true(taken >= planned / 2);
}

#endif
