/* Buffers of host memory: keys, order of leaving, pins; against a slow model of the same. */
#include "base/rng.h"
#include "engine/tier.h"
#include "test.h"

enum { N = 5, KEYS = 12 };

static ds_key key_of(uint32_t k)
{
    return (ds_key){ .b = { (uint8_t)(k % 3), 0, 0, 0, (uint8_t)k } }; /* many share a first word: cells collide */
}

typedef struct {
    bool used, approx;
    uint32_t buffer, note, pins;
    uint64_t at; /* last use */
} entry;

static entry model[KEYS];
static uint64_t now;

static uint32_t oldest(void)
{
    uint32_t best = UINT32_MAX;

    for (uint32_t k = 0; k < KEYS; k++)
        if (model[k].used && !model[k].pins && (best == UINT32_MAX || model[k].at < model[best].at))
            best = k;
    return best;
}

static uint32_t n_used(void)
{
    uint32_t n = 0;

    for (uint32_t k = 0; k < KEYS; k++)
        n += model[k].used;
    return n;
}

static void put(ds_tier *t, uint32_t k, uint32_t note, bool approx)
{
    ds_key key = key_of(k);
    uint32_t full = n_used() == N, gone = full ? oldest() : UINT32_MAX, i = ds_tier_put(t, &key, note, approx);

    if (model[k].used) {
        bool better = model[k].approx && !approx && !model[k].pins;
        assert_int_equal(i, better ? model[k].buffer : UINT32_MAX);
        if (!model[k].pins)
            model[k].at = ++now;
        if (!better)
            return;
    } else {
        if (full && gone == UINT32_MAX) {
            assert_int_equal(i, UINT32_MAX);
            return;
        }
        assert_true(i < N);
        if (full) {
            assert_int_equal(i, model[gone].buffer);
            model[gone].used = false;
        }
        for (uint32_t o = 0; o < KEYS; o++)
            assert_true(!model[o].used || model[o].buffer != i);
        model[k] = (entry){ .used = true, .buffer = i, .at = ++now };
    }
    model[k].note = note;
    model[k].approx = approx;
}

static void find(ds_tier *t, uint32_t k)
{
    ds_key key = key_of(k);
    uint32_t i = ds_tier_find(t, &key);

    assert_int_equal(i, model[k].used ? model[k].buffer : UINT32_MAX);
    if (i == UINT32_MAX)
        return;
    assert_int_equal(t->note[i], model[k].note);
    assert_int_equal(t->approx[i], model[k].approx);
    if (!model[k].pins)
        model[k].at = ++now;
}

static void as_the_model(void **state)
{
    ds_tier t;
    ds_err err;

    (void)state;
    assert_ok(ds_tier_init(&t, N, &err));
    for (uint64_t i = 0; i < 200000; i++) {
        uint64_t r = ds_rng_u64(7, 1, i);
        uint32_t k = (uint32_t)(r >> 8) % KEYS;
        switch (r % 5) {
        case 0:
            put(&t, k, (uint32_t)i, r >> 40 & 1);
            break;
        case 1:
            find(&t, k);
            break;
        case 2:
            if (model[k].used && model[k].pins < 3) {
                ds_tier_pin(&t, model[k].buffer);
                model[k].pins++;
            }
            break;
        case 3:
            if (model[k].pins == 1) { /* with its last pin, so that nobody has one of what isn't there */
                ds_tier_forget(&t, model[k].buffer);
                ds_tier_unpin(&t, model[k].buffer);
                model[k] = (entry){ 0 };
            }
            break;
        default:
            if (model[k].pins > 0) {
                ds_tier_unpin(&t, model[k].buffer);
                if (--model[k].pins == 0)
                    model[k].at = ++now;
            }
            break;
        }
        assert_int_equal(t.n_used, n_used());
    }
    assert_true(t.evicted > 1000);
    ds_tier_fini(&t);
}

static void an_empty_one_holds_nothing(void **state)
{
    ds_key key = key_of(1);
    ds_tier t;
    ds_err err;

    (void)state;
    assert_ok(ds_tier_init(&t, 0, &err));
    assert_int_equal(ds_tier_put(&t, &key, 0, false), UINT32_MAX);
    assert_int_equal(ds_tier_find(&t, &key), UINT32_MAX);
    ds_tier_fini(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(as_the_model), cmocka_unit_test(an_empty_one_holds_nothing) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
