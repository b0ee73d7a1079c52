/* Base64 and percent-encoding: the first byte chooses. What comes out fits what is promised, and doesn't depend on
 * line breaks in it. */
#include <stdlib.h>
#include <string.h>

#include "recipe/media_text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool ok)
{
    if (!ok)
        __builtin_trap();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bool percent = size && data[0] & 1, ok, again;
    ds_str text = { (const char *)data + 1, size ? size - 1 : 0 };
    size_t room = percent ? text.n : text.n / 4 * 3 + 3, n, m, k = 0;
    char *out = malloc(room ? room : 1), *broken = malloc(text.n * 2 + 1), *second = malloc(text.n * 2 / 4 * 3 + 3);

    if (size && out && broken && second) {
        ok = percent ? ds_percent_decode(text, out, &n) : ds_base64_decode(text, out, &n);
        must(n <= room);
        if (!percent) {
            for (size_t i = 0; i < text.n; i++) {
                broken[k++] = text.p[i];
                if (i % 7 == 6)
                    broken[k++] = '\n';
            }
            again = ds_base64_decode((ds_str){ broken, k }, second, &m);
            must(ok == again && (!ok || (n == m && memcmp(out, second, n) == 0)));
        }
    }
    free(out);
    free(broken);
    free(second);
    return 0;
}
