#!/bin/sh
# Makes a Debian package of what is built and prints its name. Asks nothing and needs no root.
#
#   tools/deb.sh BUILD [OUTDIR]     OUTDIR/deepserve_VERSION_ARCH.deb; OUTDIR is BUILD if it isn't given
#
# What Meson installs, moved to /usr whatever the prefix of the build is, packed by dpkg-deb. Dependencies are those of the libraries that the files in it are linked with.
set -eu
build=$(realpath "${1:?usage: tools/deb.sh BUILD [OUTDIR]}")
mkdir -p "${2:-$build}"
out=$(realpath "${2:-$build}")
cd "$(dirname "$0")/.."

for tool in dpkg-deb dpkg-shlibdeps meson; do
    command -v $tool >/dev/null || { echo "deb: $tool is missing (Debian: dpkg-dev, meson)" >&2; exit 1; }
done

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
tree=$stage/tree
mkdir -p "$tree/DEBIAN" "$tree/etc/default" "$tree/etc/deepserve" "$tree/var/lib/deepserve" "$stage/debian"
DESTDIR=$stage/as-built meson install -C "$build" --no-rebuild --quiet --strip
of() { meson introspect "$build" "$1" | python3 -c "import json, sys; x = json.load(sys.stdin); print($2)"; }
prefix=$(of --buildoptions 'next(o["value"] for o in x if o["name"] == "prefix")')
version=$(of --projectinfo 'x["version"]')
arch=$(dpkg --print-architecture)
mv "$stage/as-built$prefix" "$tree/usr"
for f in "$tree"/usr/lib/systemd/system/*.service $(find "$tree/usr" -name '*.pc'); do
    sed -i "s|$prefix\\b|/usr|g" "$f"
done

gzip -9n "$tree"/usr/share/man/man1/*.1
cp packaging/deepserve.default "$tree/etc/default/deepserve"
mkdir -p "$tree/usr/share/doc/deepserve"
cat >"$tree/usr/share/doc/deepserve/copyright" <<END
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: deepserve

Files: *
Copyright: the deepserve authors
License: Apache-2.0
 On Debian systems the text of the Apache License 2.0 is in
 /usr/share/common-licenses/Apache-2.0.
END
printf 'deepserve (%s) stable; urgency=medium\n\n  * Built from its repository.\n\n -- deepserve maintainers <maintainers@deepserve.invalid>  %s\n' \
    "$version" "$(date -Ru ${SOURCE_DATE_EPOCH:+-d @$SOURCE_DATE_EPOCH})" | gzip -9n >"$tree/usr/share/doc/deepserve/changelog.gz"
cp docs/server.md "$tree/usr/share/doc/deepserve/"
chmod -R u=rwX,go=rX "$tree"
find "$tree/usr/lib" -name '*.so*' -type f -exec chmod 644 {} +

printf 'Source: deepserve\nMaintainer: deepserve\nPackage: deepserve\nArchitecture: any\n' >"$stage/debian/control"
libs=$(cd "$stage" && find tree/usr/lib -name '*.so*' -type f)
depends=$(cd "$stage" && dpkg-shlibdeps -O $(for f in tree/usr/bin/deepserve $libs; do echo "-e$f"; done) | sed -n 's/^shlibs:Depends=//p')
[ -n "$depends" ] || { echo "deb: no dependencies were found" >&2; exit 1; }

cat >"$tree/DEBIAN/control" <<END
Package: deepserve
Version: $version
Architecture: $arch
Maintainer: deepserve maintainers <maintainers@deepserve.invalid>
Installed-Size: $(du -sk --exclude=DEBIAN "$tree" | cut -f1)
Depends: $depends
Recommends: systemd
Suggests: librados2
Section: net
Priority: optional
Description: serving system for DeepSeek-V4.1-Flash-class models
 Answers the protocols of OpenAI (Chat Completions, Responses, Completions) and
 Anthropic (Messages) over HTTP, generates from the command line, and shows each
 step of it: prompts, token ids, logits. With a web page, metrics and a load
 generator.
END
echo /etc/default/deepserve >"$tree/DEBIAN/conffiles"
echo 'activate-noawait ldconfig' >"$tree/DEBIAN/triggers"
install -m 755 packaging/postinst packaging/prerm packaging/postrm "$tree/DEBIAN/"
(cd "$tree" && find usr etc -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum >DEBIAN/md5sums)

deb=$out/deepserve_${version}_$arch.deb
dpkg-deb --root-owner-group --build "$tree" "$deb" >/dev/null
echo "$deb"
