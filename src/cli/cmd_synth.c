/* deepserve synth: a random checkpoint from a config and a seed. */
#include "cli/cli.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "format/synth.h"

typedef struct {
    const char *config;
    const char *out;
    int64_t seed;
    int quant;
    bool sparse;
    int64_t threads;
    uint64_t shard_bytes;
} options;

enum { QUANT_RELEASE, QUANT_NONE };

static const ds_opt table[] = {
    { .name = "config",
      .type = DS_OPT_STR,
      .offset = offsetof(options, config),
      .arg = "C.json",
      .required = true,
      .help = "config.json in the released form" },
    { .name = "seed",
      .type = DS_OPT_INT,
      .offset = offsetof(options, seed),
      .def = "0",
      .arg = "N",
      .min = 0,
      .max = 9007199254740992.0,
      .help = "same seed, same bytes" },
    { .name = "out",
      .type = DS_OPT_STR,
      .offset = offsetof(options, out),
      .arg = "DIR",
      .required = true,
      .help = "model directory to write; must not exist, or be empty" },
    { .name = "quant",
      .type = DS_OPT_ENUM,
      .offset = offsetof(options, quant),
      .def = "release",
      .arg = "FORM",
      .choices = "release|none",
      .help = "release: FP8 and MXFP4 as released; none: BF16" },
    { .name = "sparse",
      .type = DS_OPT_FLAG,
      .offset = offsetof(options, sparse),
      .help = "names, shapes and sizes only: the files are holes and read as zeros" },
    { .name = "threads",
      .type = DS_OPT_INT,
      .offset = offsetof(options, threads),
      .arg = "N",
      .min = 1,
      .max = 1024,
      .help = "threads that make values (default: one for each CPU). The bytes don't depend on it" },
    { .name = "shard-bytes",
      .type = DS_OPT_BYTES,
      .offset = offsetof(options, shard_bytes),
      .def = "6600MiB",
      .arg = "BYTES",
      .min = 1,
      .max = 0x1p62,
      .help = "largest file, unless one weight alone is larger" },
    { 0 },
};

static const ds_opt_cmd command = {
    .command = "deepserve synth",
    .summary = "Writes a random checkpoint: config.json, safetensors with index, generation_config.json, and for vocabularies of 259 to "
               "65536 a byte-level\n"
               "tokenizer.json. The text it generates means nothing; its sizes, formats and mechanisms are those of the config.",
    .usage = "--config C.json --seed N --out DIR [--quant release|none] [--sparse]",
    .example = "deepserve synth --config models/configs/deepseek-v4.1-flash.json --out /tmp/full --sparse",
    .opts = table,
};

static volatile sig_atomic_t stopped; /* the signal's number */

static void on_signal(int sig)
{
    stopped = sig;
}

/* At most ten times a second, and only where somebody looks. */
static void show_progress(void *arg, uint64_t done, uint64_t total)
{
    uint64_t *last = arg, now = ds_now_us();

    if (now - *last < 100000 && done != total)
        return;
    *last = now;
    fprintf(stderr, "\rsynth: %.1f of %.1f MiB%s", (double)done / (1 << 20), (double)total / (1 << 20), done == total ? "\n" : "");
}

static ds_rc run(const options *o, ds_synth_result *result, ds_err *err)
{
    uint64_t last = 0;
    ds_config config;
    char *text, *path = NULL;
    struct stat st;
    size_t n;
    ds_rc rc;

    if (stat(o->config, &st) == 0 && S_ISDIR(st.st_mode) && asprintf(&path, "%s/config.json", o->config) < 0)
        return ds_fail(err, DS_E_NOMEM, "config.json: out of memory");
    rc = ds_file_read(&text, &n, path ? path : o->config, DS_CONFIG_FILE_MAX_BYTES, err);
    if (rc == DS_OK)
        rc = ds_config_parse(&config, text, n, path ? path : o->config, err);
    if (rc == DS_OK)
        rc = ds_synth_write(&(ds_synth_opts){ .config = &config,
                                              .config_text = text,
                                              .config_bytes = n,
                                              .out = o->out,
                                              .seed = (uint64_t)o->seed,
                                              .quantised = o->quant == QUANT_RELEASE,
                                              .sparse = o->sparse,
                                              .n_threads = (uint32_t)o->threads,
                                              .shard_bytes = o->shard_bytes,
                                              .cancel = &stopped,
                                              .progress = isatty(STDERR_FILENO) && !o->sparse ? show_progress : NULL,
                                              .progress_arg = &last },
                            result, err);
    free(text);
    free(path);
    return rc;
}

int ds_cmd_synth(int argc, char **argv)
{
    options o;
    ds_synth_result result;
    ds_err err;
    ds_rc rc;
    int status = ds_cli_parse(&command, &o, argc, argv, NULL);

    if (status >= 0)
        return status;
    sigaction(SIGINT, &(struct sigaction){ .sa_handler = on_signal }, NULL);
    sigaction(SIGTERM, &(struct sigaction){ .sa_handler = on_signal }, NULL);
    rc = run(&o, &result, &err);
    if (rc != DS_OK) {
        status = ds_cli_fail(argv[0], &err);
        return rc == DS_E_CANCELED ? 128 + (int)stopped : status;
    }
    fprintf(stderr, "synth: %llu tensors, %.2f GiB in %llu files%s%s\n", (unsigned long long)result.tensors,
            (double)result.bytes / (1 << 30), (unsigned long long)result.shards, o.sparse ? ", all holes" : "",
            result.has_tokenizer ? ", with tokenizer.json" : "");
    return 0;
}
