#!/bin/bash
# Kernel benchmarks of this machine into bench/results/, with machine, compiler, flags, commit and command in the first lines.
# usage: bench/kernels.sh [BUILD [TIME]]    default: build 500ms. Run it while nothing else runs.
set -e
cd "$(dirname "$0")/.."
build=${1:-build}
time=${2:-500ms}
file=bench/results/$(date +%F)-kernels.txt
{
    echo "date     $(date -u '+%F %H:%M') UTC, load $(cut -d' ' -f1-3 /proc/loadavg)"
    echo "machine  $(lscpu | sed -n 's/^Model name: *//p'), $(nproc) CPUs, L3 $(lscpu | sed -n 's/^L3 cache: *//p')"
    echo "compiler $(cc --version | head -1); -O3, each set with its own -m flags (src/kern/meson.build)"
    echo "commit   $(git describe --always --dirty)"
    for set in amx avx512 avx2; do
        command="deepserve bench --kernels $set --time $time"
        if "$build/deepserve" bench pool --kernels $set --time 1ms >/dev/null 2>&1; then
            echo
            echo "\$ $command"
            "$build/deepserve" bench --kernels $set --time "$time"
        fi
    done
} | tee "$file"
echo "written to $file" >&2
