#!/bin/bash
# Kernel tests and benchmarks on a machine that has gcc and nothing else of what the project needs: builds base, format, kern and bench alone.
# usage: bench/amx.sh [OUT]    results go to OUT (default: bench-out)
set -e
cd "$(dirname "$0")/.."
out=${1:-bench-out}
obj=$(mktemp -d)
trap 'rm -rf "$obj"' EXIT
mkdir -p "$out"
cc=${CC:-gcc}
common="-std=gnu17 -O3 -D_GNU_SOURCE -DDS_VERSION=\"bare\" -fno-strict-aliasing -ffp-contract=off -fno-math-errno -Iinclude -Isrc -Ibench/bare -Itests/unit"
avx512="-mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512"
compile() { # flags, files
    local flags=$1 f
    shift
    for f in "$@"; do
        echo "$cc $common $flags -c $f -o $obj/$(echo "$f" | tr / _).o"
    done
}
{
    compile "" src/base/{err,mem,pool,cpu,clock,opt,utf8,buf}.c src/format/numfmt.c src/kern/*.c src/kern/ref/*.c src/kern/cpu/{attention,experts,gemm,index,sets}.c \
        src/kernbench/{bench,cases,roof_base}.c src/cli/{cli,cmd_bench}.c
    compile "-mavx2 -mfma -mf16c" src/kern/cpu/*_avx2.c src/kernbench/roof_avx2.c
    compile "$avx512" src/kern/cpu/*_avx512.c src/kernbench/roof_avx512.c
    compile "$avx512 -mavx512bf16" src/kern/cpu/*_avx512bf16.c src/kernbench/roof_avx512bf16.c
    compile "$avx512 -mamx-tile -mamx-bf16" src/kern/cpu/*_amx.c src/kernbench/roof_amx.c
} | xargs -P "$(nproc)" -d '\n' -I{} sh -c '{}'
$cc "$obj"/*.o -lm -lpthread $common bench/bare/main.c -o "$obj/bench"
{
    lscpu | grep -E 'Model name|^CPU\(s\)|L2|L3'
    $cc --version | head -1
    rc=0
    for t in tests/unit/kern/test_*.c; do
        flags=
        [ "$(basename "$t")" = test_amx.c ] && flags=$avx512
        lib=$(ls "$obj"/*.o | grep -v -e src_bench -e src_cli)
        $cc $common $flags "$t" $lib -lm -lpthread -o "$obj/test"
        echo "== $t"
        timeout 40 "$obj/test" 2>&1 || { rc=$?; echo "exit $rc"; }
    done
} >"$out/tests.txt" 2>&1
for set in amx avx512; do
    timeout 100 "$obj/bench" --kernels $set --threads "${THREADS:-2}" --time "${TIME:-50ms}" >"$out/bench-$set.txt" 2>&1 || true
done
grep -h -E 'FAILED|exit [0-9]' "$out/tests.txt" || echo "tests passed"
cat "$out/bench-amx.txt"
