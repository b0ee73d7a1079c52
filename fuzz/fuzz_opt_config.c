/* Options from a file: whatever is accepted is accepted as words too, and what isn't says its line. */
#include <stdlib.h>
#include <string.h>

#include "base/opt.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct {
    bool flag;
    int64_t n;
    double x;
    const char *text;
    int choice;
    ds_opt_list list;
    uint64_t bytes, ms;
} options;

static const ds_opt table[] = {
    { "flag", DS_OPT_FLAG, offsetof(options, flag), .help = "" },
    { "n", DS_OPT_INT, offsetof(options, n), .arg = "N", .help = "", .min = -3, .max = 9 },
    { "x", DS_OPT_REAL, offsetof(options, x), .arg = "X", .help = "" },
    { "text", DS_OPT_STR, offsetof(options, text), .arg = "T", .help = "", .required = true },
    { "choice", DS_OPT_ENUM, offsetof(options, choice), .help = "", .choices = "a|bc" },
    { "list", DS_OPT_LIST, offsetof(options, list), .arg = "L", .help = "" },
    { "bytes", DS_OPT_BYTES, offsetof(options, bytes), .arg = "B", .help = "" },
    { "ms", DS_OPT_MS, offsetof(options, ms), .arg = "T", .help = "" },
    { .name = NULL },
};
static const ds_opt_cmd command = { "deepserve fuzz", "", "", NULL, table };

static void must(int ok)
{
    if (!ok)
        __builtin_trap();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ds_opt_words w;
    options o;
    ds_err err = { 0 };
    ds_rc rc = ds_opt_config(&command, &o, (const char *)data, size, "f", &w, &err);

    if (rc != DS_OK) {
        must(rc == DS_E_FORMAT && w.v == NULL && w.n == 0 && strncmp(err.msg, "f:", 2) == 0);
        return 0;
    }
    for (size_t i = 0; i < w.n; i++)
        must(w.v[i][0] == '-' && w.v[i][1] == '-');
    ds_opt_words_free(&w);
    return 0;
}
