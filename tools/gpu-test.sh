#!/bin/sh
# make gpu-test: ops, models and the engine on the GPU, then the benchmark of the ops; ends with one line.
set -u
build=$1
out=$build/gpu
passed=0 failed=0 skipped=0

check() { # NAME PROGRAM ARGUMENTS
    name=$1
    shift
    "$@" >"$out/$name.log" 2>&1
    case $? in
    0) passed=$((passed + 1)) ;;
    77) skipped=$((skipped + 1)) && tail -1 "$out/$name.log" ;;
    *) failed=$((failed + 1)) && cat "$out/$name.log" ;;
    esac
}

if [ ! -x "$build/bench/bench-gpu" ]; then
    echo "gpu-test: skipped: $build was made without nvcc (meson setup -Dcuda=enabled says what is missing)"
    exit 0
fi
mkdir -p "$out"
for test in products rows sequences step; do
    check "$test" "$build/tests/unit/kern/test_$test" cuda
done
for model in tiny-a tiny-b tiny-c; do
    check "golden-$model" "$build/tests/unit/model/test_golden" "$model" best cuda
    check "batch-$model" "$build/tests/unit/model/test_batch" "$model" best cuda
    check "engine-$model" "$build/tests/unit/engine/test_engine_model" "$model" best cuda
done
if [ "$passed" -gt 0 ]; then
    "$build/bench/bench-gpu" || failed=$((failed + 1))
fi
echo "gpu-test: $passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
