#!/bin/sh
# make gpu-test: the op tests on the GPU, then the benchmark of the ops; ends with one line.
set -u
build=$1
out=$build/gpu
passed=0 failed=0 skipped=0

if [ ! -x "$build/bench/bench-gpu" ]; then
    echo "gpu-test: skipped: $build was made without nvcc (meson setup -Dcuda=enabled says what is missing)"
    exit 0
fi
mkdir -p "$out"
for test in products rows sequences; do
    "$build/tests/unit/kern/test_$test" cuda >"$out/$test.log" 2>&1
    case $? in
    0) passed=$((passed + 1)) ;;
    77) skipped=$((skipped + 1)) && tail -1 "$out/$test.log" ;;
    *) failed=$((failed + 1)) && cat "$out/$test.log" ;;
    esac
done
if [ "$passed" -gt 0 ]; then
    "$build/bench/bench-gpu" || failed=$((failed + 1))
fi
echo "gpu-test: $passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
