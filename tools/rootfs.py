#!/usr/bin/env python3
"""Makes a root file system with the program and nothing else that it doesn't need: what the Containerfile's image consists of.

    tools/rootfs.py BUILD OUT     OUT must not exist

Program, libraries down to glibc and its loader, certificates of this machine, a user, folders to write in. No shell, no package manager."""
import pathlib
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import bundle  # noqa: E402

CERTIFICATES = pathlib.Path("/etc/ssl/certs/ca-certificates.crt")


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    build, out = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
    if out.exists():
        sys.exit(f"rootfs: {out} is there already")
    program = build / "deepserve"
    if not program.exists():
        sys.exit(f"rootfs: {program} isn't built")
    bundle.stripped(program, out / "usr" / "bin" / "deepserve")
    for path in bundle.needed(program).values():
        target = out / str(path).lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path.resolve(), target)  # where the loader looks for it, whatever it is a link to here
    for folder, mode in (("tmp", 0o1777), ("etc/deepserve", 0o755), ("var/lib/deepserve", 0o755), ("run/deepserve", 0o755), ("proc", 0o755), ("dev", 0o755), ("sys", 0o755)):
        (out / folder).mkdir(parents=True, exist_ok=True)
        (out / folder).chmod(mode)
    for folder in ("var/lib/deepserve", "run/deepserve"):
        try:
            shutil.chown(out / folder, 65532, 65532)
        except PermissionError:
            pass  # made by an ordinary user, everything is that user's
    (out / "etc" / "passwd").write_text("root:x:0:0:root:/:/nonexistent\ndeepserve:x:65532:65532:deepserve:/var/lib/deepserve:/nonexistent\n")
    (out / "etc" / "group").write_text("root:x:0:\ndeepserve:x:65532:\n")
    (out / "etc" / "nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files dns\n")
    if CERTIFICATES.exists():
        target = out / str(CERTIFICATES).lstrip("/")
        target.parent.mkdir(parents=True)
        shutil.copy(CERTIFICATES, target)
    print(out)


if __name__ == "__main__":
    main()
