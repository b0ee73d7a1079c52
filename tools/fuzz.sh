#!/bin/sh
# Builds the fuzz targets with clang and runs each for SECONDS on its corpus. See fuzz/README.md.
#
#   tools/fuzz.sh SECONDS [TARGET...]
set -eu
cd "$(dirname "$0")/.."
seconds=${1:-60}
[ $# -gt 0 ] && shift
out=build-fuzz

command -v clang >/dev/null || tools/deps.sh fuzz
[ -f $out/build.ninja ] || CC=clang meson setup $out -Dfuzz=true -Db_sanitize=address,undefined -Db_lundef=false -Dbuildtype=debugoptimized
[ $# -gt 0 ] || set -- $(cd fuzz && ls fuzz_*.c | sed 's/^fuzz_//; s/\.c$//')
ninja -C $out $(for t in "$@"; do echo fuzz/fuzz_$t; done) >$out/ninja.log || {
    cat $out/ninja.log
    exit 1
}
mkdir -p $out/crashes
failed=
for t in "$@"; do
    mkdir -p $out/corpus/$t
    echo "fuzz: $t for $seconds s"
    UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 $out/fuzz/fuzz_$t -max_total_time="$seconds" -max_len=65536 -rss_limit_mb=4096 -timeout=10 \
        -print_final_stats=1 -artifact_prefix=$out/crashes/$t- $out/corpus/$t fuzz/corpus/$t 2>$out/$t.log ||
        failed="$failed $t"
    grep -E '^stat::(number_of_executed_units|average_exec_per_sec)' $out/$t.log || tail -40 $out/$t.log
done
if [ -n "$failed" ]; then
    echo "fuzz: failed:$failed (inputs in $out/crashes, logs in $out/TARGET.log)"
    exit 1
fi
echo "fuzz: no target failed"
