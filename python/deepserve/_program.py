"""The command `deepserve` of a wheel: the program that came with it, with the libraries that came with it."""
import os
import pathlib
import sys


def main():
    here = pathlib.Path(__file__).resolve().parent
    program = here / "bin" / "deepserve"
    if not program.exists():
        sys.exit("deepserve: this installation of the Python package has no program; `make wheel` makes one that has")
    paths = [str(here / "libs"), os.environ.get("LD_LIBRARY_PATH", "")]
    os.execve(program, ["deepserve", *sys.argv[1:]], {**os.environ, "LD_LIBRARY_PATH": ":".join(p for p in paths if p)})
