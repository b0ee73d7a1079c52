#!/bin/sh
# Installs the Debian packages that building, testing and formatting need. Says what it does, asks nothing, and does nothing when everything is
# there. Works as root and with sudo.
#
#   tools/deps.sh            build and tests
#   tools/deps.sh fuzz       also clang with libFuzzer
#   tools/deps.sh browser    also Chromium, for the tests of the web page
#   tools/deps.sh etcd       also etcd, for tests of clusters whose coord it is
#   tools/deps.sh ceph       also librados and a Ceph cluster for its tests
#   tools/deps.sh reference  also PyTorch, for the reference and its tests
set -eu

packages="
build-essential git meson ninja-build pkg-config curl openssl
libcmocka-dev libssl-dev libpcre2-dev libutf8proc-dev libcurl4-openssl-dev libsqlite3-dev libyaml-dev libmicrohttpd-dev
libisal-dev liburing-dev libedit-dev
libjpeg62-turbo-dev libpng-dev libwebp-dev libgif-dev
python3 python3-pytest python3-numpy python3-venv python3-setuptools python3-wheel
clang-format groff-base
"
for group in "$@"; do
    case $group in
    fuzz) packages="$packages clang libclang-rt-dev" ;;
    browser) packages="$packages chromium-driver" ;;
    etcd) packages="$packages etcd-server" ;;
    ceph) packages="$packages librados-dev ceph-mon ceph-osd python3-rados" ;;
    reference) packages="$packages python3-torch" ;;
    *)
        echo "deps: unknown group '$group'" >&2
        exit 2
        ;;
    esac
done

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    echo "deps: this is no Debian system. Install what these packages hold, by your system's means:" >&2
    echo $packages >&2
    exit 1
fi

missing=
for p in $packages; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || missing="$missing $p"
done
if [ -z "$missing" ]; then
    echo "deps: everything is installed"
    exit 0
fi

as_root=
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
        echo "deps: missing, and neither root nor sudo:$missing" >&2
        exit 1
    fi
    as_root=sudo
fi
echo "deps: installing$missing"
$as_root apt-get update -q -o Acquire::Retries=3 || echo "deps: apt-get update failed; trying with the package lists that are there" >&2
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends \
    -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 $missing
