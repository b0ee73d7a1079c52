#include "request.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    return fuzz_request(DS_PROTO_MESSAGES, data, n);
}
