/* No test itself: what tests of whole programs put into a store and look for in it.
 * use_store ADDRESS save|fetch CHAIN N [TENANT]: prints how many blocks came; wrong bytes end it with a message. */
#include <stdio.h>

#include "store_rig.h"
#include "test.h"

static const char *address, *verb, *tenant;
static uint32_t chain, n;

static void use(void **state)
{
    rig r = { 0 };
    ds_kvstore *s;
    ds_err err;

    (void)state;
    rig_layout(&r, RIG_BLOCK, 0);
    memset(r.user.model, 1, 32);
    memset(r.user.tokenizer, 2, 32);
    memset(r.user.dialect, 3, 32);
    assert_ok(ds_kvstore_connect(&s, address, &r.user, &err));
    if (strcmp(verb, "save") == 0)
        printf("%d\n", (int)rig_save(s, (rig_blocks){ chain, 0, n, n, DS_KVSTORE_AGENT, tenant, false }));
    else
        printf("%u %u\n", rig_match(s, chain, n), rig_fetch(s, chain, 0, n, 0).n);
    ds_kvstore_close(s);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(use) };

    if (argc < 5)
        return 2;
    address = argv[1];
    verb = argv[2];
    chain = (uint32_t)strtoul(argv[3], NULL, 10);
    n = (uint32_t)strtoul(argv[4], NULL, 10);
    tenant = argc > 5 ? argv[5] : NULL;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
