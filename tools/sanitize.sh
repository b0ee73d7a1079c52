#!/bin/sh
# The unit tests and corpora under the address and undefined-behaviour sanitizers, then under the thread sanitizer, in build-asan and build-tsan.
#
#   tools/sanitize.sh [SUITE]      base, format, … ; without it all
set -eu
cd "$(dirname "$0")/.."
suite=${1:+--suite $1}
status=0
for kind in asan:address,undefined tsan:thread; do
    build=build-${kind%%:*}
    [ -f $build/build.ninja ] || meson setup $build -Db_sanitize=${kind#*:} -Db_lundef=false -Dbuildtype=debugoptimized >/dev/null
    ninja -C $build
    echo "sanitize: ${kind#*:}"
    UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 tests/run.py --build $build --only unit $suite || status=1
done
exit $status
