/* The hit rule against its sentences, over all small numbers. */
#include "kv/hit.h"
#include "test.h"

enum { B = 128, MARGIN = 134, MOST = 7 };

typedef struct {
    uint32_t any, own; /* bit i: there is a state behind block i; one whose decoder windows are the asker's */
    uint32_t asked, last;
} states;

static bool has(void *ctx, uint32_t pos, bool own)
{
    states *s = ctx;

    assert_true(pos > 0 && pos % B == 0 && (s->asked == 0 || pos < s->last));
    s->asked++;
    s->last = pos;
    return (own ? s->own : s->any) >> (pos / B - 1) & 1;
}

static void cap(void **state)
{
    (void)state;
    assert_int_equal(ds_hit_margin(128), 134);
    assert_int_equal(ds_hit_margin(64), 134);
    assert_int_equal(ds_hit_margin(256), 262);
    for (uint32_t n = 0; n < 2000; n++) {
        uint32_t c = ds_hit_cap(n, MARGIN);
        assert_true(c % B == 0 && (c == 0 || c + MARGIN <= n) && c + B + MARGIN > n);
    }
    assert_int_equal(ds_hit_cap(UINT32_MAX, MARGIN), (UINT32_MAX - MARGIN) / B * B);
}

/* A new prompt. L1 is the largest border that the blocks reach and the cap allows. */
static void new_prompts(void **state)
{
    (void)state;
    for (uint32_t n = 0; n <= MOST * B + MARGIN; n++)
        for (uint32_t blocks = 0; blocks <= MOST; blocks++)
            for (uint32_t mask = 0; mask < 1u << MOST; mask += n % B < 2 || n % B == MARGIN - B || n % B == MARGIN - B - 1 ? 1 : 13)
                for (uint32_t how = 0; how < 4; how++) {
                    ds_hit_ask q = { .prompt = n, .margin = MARGIN, .strict = how & 1, .any_state = how & 2 };
                    states s = { .any = mask };
                    ds_hit h = ds_hit_find(&q, blocks, has, &s), want = { DS_HIT_NONE, 0 };
                    uint32_t l1 = 0;
                    for (uint32_t pos = B; pos <= blocks * B && pos + MARGIN <= n; pos += B)
                        l1 = pos;
                    if (l1 && mask >> (l1 / B - 1) & 1)
                        want = (ds_hit){ DS_HIT_STATE, l1 };
                    else if (l1 && !q.strict)
                        want = (ds_hit){ DS_HIT_REPLAY, l1 };
                    else
                        for (uint32_t pos = B; pos <= l1; pos += B)
                            if (mask >> (pos / B - 1) & 1)
                                want = (ds_hit){ DS_HIT_STATE, pos };
                    assert_true(h.kind == want.kind && h.pos == want.pos);
                    assert_true(q.strict || s.asked <= 1); /* a lost state costs a replay, never the blocks */
                }
}

/* One that comes back: by its own replay, or by a state, never by another replay. */
static void those_that_come_back(void **state)
{
    (void)state;
    for (uint32_t prompt = 1; prompt <= 4 * B; prompt += prompt % B < 10 || prompt % B > 120 ? 1 : 17)
        for (uint32_t goal = prompt; goal <= 6 * B + 1; goal += goal % B < 3 || goal % B > 126 ? 1 : 25)
            for (uint32_t blocks = 0; blocks <= MOST; blocks++)
                for (uint32_t mask = 0; mask < 1u << MOST; mask += 3)
                    for (uint32_t how = 0; how < 4; how++) {
                        ds_hit_ask q = { .prompt = prompt, .margin = MARGIN, .strict = how & 1, .any_state = how & 2, .back = goal };
                        states s = { .any = mask, .own = mask & 0x2d };
                        ds_hit h = ds_hit_find(&q, blocks, has, &s);
                        uint32_t best = 0;
                        for (uint32_t pos = B; pos <= blocks * B && pos < goal; pos += B) {
                            bool in_front = pos + MARGIN <= prompt, behind = pos >= prompt;
                            if (in_front || q.any_state ? s.any >> (pos / B - 1) & 1 : behind && s.own >> (pos / B - 1) & 1)
                                best = pos;
                        }
                        assert_true(h.kind == (best ? DS_HIT_STATE : DS_HIT_NONE) && h.pos == best);
                        for (q.replay_at = B; q.replay_at < goal; q.replay_at += B) {
                            h = ds_hit_find(&q, blocks, has, &(states){ .any = mask });
                            assert_true(blocks * B >= q.replay_at ? h.kind == DS_HIT_REPLAY && h.pos == q.replay_at
                                                                  : h.kind == DS_HIT_NONE && h.pos == 0);
                        }
                    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(cap), cmocka_unit_test(new_prompts), cmocka_unit_test(those_that_come_back) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
