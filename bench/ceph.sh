#!/bin/bash
# A KV store in a pool of Ceph next to `rados bench` on the same cluster: twelve OSDs on this machine, 10+2, everything in memory, so that
# processors bound both. Rounds alternate, and what is saved is removed between them.
#
#   bench/ceph.sh BUILD [ROUNDS [MIB [SEGMENT_MIB]]]     needs what `tools/deps.sh ceph` installs, and Debian's ceph-common
set -eu
build=$(realpath "${1:?usage: bench/ceph.sh BUILD [ROUNDS [MIB [SEGMENT_MIB]]]}")
rounds=${2:-3} mib=${3:-200} segment=${4:-0}
cd "$(dirname "$0")/.."
command -v rados >/dev/null || { echo "bench: rados is missing (Debian: ceph-common)" >&2; exit 1; }
coproc cluster { exec /usr/bin/python3 tests/ceph.py; }
read -r line <&"${cluster[0]}"
conf=$(sed -nE 's/.*"conf": "([^"]*)".*/\1/p' <<<"$line")
[ -n "$conf" ] || { echo "bench: $line" >&2; exit 1; }
tool() { rados -c "$conf" -p kv "$@"; }
peer() { # write or rand, bytes of an operation, operations at a time
    tool bench 5 "$1" ${2:+-b "$2"} -t "$3" --no-cleanup | sed -nE "s/^Bandwidth \(MB\/sec\): *([0-9.]+)/op=rados_bench variant=$1 bytes=${2:-same} at_a_time=$3 mib_s=\1/p"
}
for _ in $(seq "$rounds"); do
    peer write 4096000 16
    peer rand '' 16
    tool cleanup >/dev/null
    peer write 122880 16 # a block and the stripes that it fills
    peer rand '' 16
    tool cleanup >/dev/null
    "$build/bench/bench-kv-place" "rados://kv/bench?conf=$conf" "$mib" "$segment"
    tool -N bench ls | xargs -r rados -c "$conf" -p kv -N bench rm
done
