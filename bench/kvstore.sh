#!/bin/sh
# The KV store next to its limits, in one go: the device that DIR is on by fio, with the sizes and the number of reads
# under way that the store has, then the store itself; its arithmetic, its hits on a trace, its restarts.
#
#   bench/kvstore.sh [BUILD [DIR [MILLIONS OF BLOCKS]]]
set -eu
build=${1:-build}
dir=${2:-/tmp}
millions=${3:-4}

device() { # what, block size, reads under way
    command -v fio >/dev/null || return 0
    fio --name=ds-kvstore --directory="$dir" --size=512M --rw=randread --bs="$2" --direct=1 --ioengine=io_uring --iodepth="$3" --runtime=5 \
        --time_based --output-format=json | python3 -c '
import json, sys
read = json.load(sys.stdin)["jobs"][0]["read"]
rate, late = read["bw_bytes"] / 1e9, read["clat_ns"]["percentile"]["99.000000"] / 1e3
print("op=fio code=%s bs=%s iodepth=%s gb_s=%.2f us_p99=%.0f" % (*sys.argv[1:], rate, late))' "$@"
    rm -f "$dir"/ds-kvstore.*
}

uptime
device 1+0 116k 4
device 10+2 12k 44
"$build"/bench/micro/bench_kvfetch "$dir"
"$build"/bench/micro/bench_kvstore
"$build"/bench/micro/bench_kvtrace || [ $? = 77 ]
"$build"/bench/micro/bench_kvrestart "$dir" "$millions" "$millions"
uptime
