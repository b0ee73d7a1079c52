#!/bin/sh
# Builds a Debian package of what is built: tools/deb.sh BUILD_DIR [OUT_DIR]. Asks nothing, needs dpkg-deb, no root.
set -eu
build=${1:?build folder}
out=${2:-$build}
root=$(cd "$(dirname "$0")/.." && pwd)
version=$("$build/deepserve" --version | cut -d' ' -f2)
arch=$(dpkg --print-architecture)
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT

install -D -m 755 "$build/deepserve" "$tree/usr/bin/deepserve"
strip --strip-unneeded "$tree/usr/bin/deepserve"
python3 "$root/tools/manpages.py" "$build/deepserve" "$tree/man"
for page in "$tree"/man/*.1; do
    gzip -9n "$page"
    install -D -m 644 "$page.gz" "$tree/usr/share/man/man1/$(basename "$page").gz"
done
install -D -m 644 "$tree/man/deepserve.bash" "$tree/usr/share/bash-completion/completions/deepserve"
rm -r "$tree/man"
install -D -m 644 "$root/packaging/deepserve.service" "$tree/usr/lib/systemd/system/deepserve.service"
install -D -m 644 "$root/packaging/deepserve.default" "$tree/etc/default/deepserve"
install -D -m 644 "$root/packaging/grafana.json" "$tree/usr/share/doc/deepserve/grafana.json"
install -D -m 644 "$root/docs/server.md" "$tree/usr/share/doc/deepserve/server.md"
install -D -m 644 "$root/LICENSE" "$tree/usr/share/doc/deepserve/copyright"

# What the program is linked with says which packages it needs.
libraries=$(ldd "$build/deepserve" | sed -n 's/.*=> \(\/[^ ]*\).*/\1/p')
depends=$(for l in $libraries; do dpkg-query -S "$(readlink -f "$l")" 2>/dev/null || dpkg-query -S "$l" 2>/dev/null || dpkg-query -S "${l#/usr}" 2>/dev/null || true; done |
    cut -d: -f1 | sort -u | paste -sd, | sed 's/,/, /g')
mkdir -p "$tree/DEBIAN"
cat >"$tree/DEBIAN/control" <<END
Package: deepserve
Version: $version
Architecture: $arch
Maintainer: deepserve <dev@deepserve.invalid>
Section: net
Priority: optional
Depends: $depends
Installed-Size: $(du -sk "$tree" | cut -f1)
Description: server for DeepSeek-V4.1-Flash-class models
 Serves OpenAI's Chat Completions, Responses and Completions and Anthropic's
 Messages over HTTP, from one machine to a cluster.
END
echo /etc/default/deepserve >"$tree/DEBIAN/conffiles"
mkdir -p "$out"
dpkg-deb --root-owner-group --build "$tree" "$out/deepserve_${version}_$arch.deb"
