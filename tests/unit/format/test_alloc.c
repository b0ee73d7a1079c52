/* Every allocation of the readers and writers fails once: an error comes back, nothing leaks, no file is left. */
#include "test.h"

#include <unistd.h>

#include "fault.h"
#include "format/config.h"
#include "base/file.h"
#include "format/npy.h"
#include "format/safetensors.h"
#include "format/synth.h"
#include "format/tensors.h"

#define TINY_B DS_TEST_ROOT "/tests/configs/tiny-b.json"

static char dir[64], sharded[96], single[128], array[96], target[96];
static char *config_text;
static size_t config_bytes;
static ds_config config;

static ds_rc write_model(const char *out, bool sparse, uint64_t shard_bytes, ds_err *err)
{
    ds_synth_result result;
    ds_synth_opts o = { .config = &config,
                        .config_text = config_text,
                        .config_bytes = config_bytes,
                        .out = out,
                        .quantised = true,
                        .sparse = sparse,
                        .n_threads = 1,
                        .shard_bytes = shard_bytes };
    return ds_synth_write(&o, &result, err);
}

static int set_up(void **state)
{
    (void)state;
    ds_err err;
    strcpy(dir, "/tmp/ds_alloc_XXXXXX");
    if (!mkdtemp(dir))
        return -1;
    snprintf(sharded, sizeof sharded, "%s/m", dir);
    snprintf(single, sizeof single, "%s/m/model-00001-of-00001.safetensors", dir);
    snprintf(array, sizeof array, "%s/a.npy", dir);
    snprintf(target, sizeof target, "%s/t", dir);
    if (ds_file_read(&config_text, &config_bytes, TINY_B, 1 << 20, &err) != DS_OK ||
        ds_config_parse(&config, config_text, config_bytes, "b", &err) != DS_OK)
        return -1;
    return write_model(sharded, true, 0, &err);
}

static int tear_down(void **state)
{
    (void)state;
    char cmd[96];
    free(config_text);
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", dir);
    return system(cmd);
}

static ds_rc load_config(void *ctx, ds_err *err)
{
    ds_config c;
    (void)ctx;
    return ds_config_load(&c, TINY_B, err);
}

static ds_rc open_checkpoint(void *ctx, ds_err *err)
{
    ds_st *st;
    ds_rc rc = ds_st_open(&st, ctx, err);
    if (rc == DS_OK)
        rc = ds_tensors_check(&config, st, err);
    else
        assert_null(st);
    ds_st_close(st);
    return rc;
}

static ds_rc array_there_and_back(void *ctx, ds_err *err)
{
    static const float row[3] = { 1, 2, 3 };
    ds_npy_writer *w;
    ds_npy a;
    ds_rc rc = ds_npy_create(&w, array, 3, err);
    (void)ctx;
    if (rc != DS_OK)
        return rc;
    rc = ds_npy_append(w, row, 1, err);
    if (rc == DS_OK)
        rc = ds_npy_commit(w, err);
    else
        ds_npy_abort(w);
    if (rc == DS_OK)
        rc = ds_npy_read(&a, array, err);
    if (rc == DS_OK)
        ds_npy_free(&a);
    unlink(array);
    return rc;
}

static ds_rc synth(void *ctx, ds_err *err)
{
    char cmd[128];
    ds_rc rc = write_model(target, true, 0, err);
    (void)ctx;
    if (rc != DS_OK) {
        assert_int_equal(access(target, F_OK), -1);
        return rc;
    }
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", target);
    assert_int_equal(system(cmd), 0);
    return DS_OK;
}

static void configs(void **state)
{
    (void)state;
    fault_every_allocation(load_config, NULL);
}

static void checkpoints(void **state)
{
    (void)state;
    fault_every_allocation(open_checkpoint, sharded);
    fault_every_allocation(open_checkpoint, single);
}

static void arrays(void **state)
{
    (void)state;
    fault_every_allocation(array_there_and_back, NULL);
}

static void random_checkpoints(void **state)
{
    (void)state;
    ds_err err;
    fault_every_allocation(synth, NULL);
    /* One allocation of the writing threads. */
    fault_arm(40, true);
    ds_rc rc = write_model(target, false, 0, &err);
    assert_true(fault_disarm());
    assert_int_equal(rc, DS_E_NOMEM);
    assert_int_equal(access(target, F_OK), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(configs),
        cmocka_unit_test(checkpoints),
        cmocka_unit_test(arrays),
        cmocka_unit_test(random_checkpoints),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
