#!/usr/bin/env python3
"""Manual pages and bash completion from the help pages of the built program.

  tools/manpages.py PROGRAM OUT_DIR      OUT_DIR/deepserve.1, deepserve-COMMAND.1, deepserve.bash
"""
import pathlib
import re
import subprocess
import sys


def help_of(program, *words):
    return subprocess.run([program, *words], check=True, capture_output=True, text=True).stdout


def roff(text):
    """Text for roff: backslashes and leading dots are its own."""
    return re.sub(r"^([.'])", r"\\&\1", text.replace("\\", "\\e").replace("-", "\\-"), flags=re.M)


def parse(text):
    """A help page -> (summary, usage, [(option, text)], example)."""
    summary = text[text.index(": ") + 2:text.index("\nusage:")].strip()
    usage = re.search(r"^usage: (.*)$", text, re.M).group(1)
    block = re.search(r"^options:\n(.*?)(?:\n\n|\Z)", text, re.M | re.S)
    options = []
    for line in (block.group(1).splitlines() if block else []):
        m = re.match(r"  (-\S.*?)(?:  +(\S.*))?$", line)
        if m:
            options.append([m.group(1), m.group(2) or ""])
        elif options:
            options[-1][1] += " " + line.strip()
    example = re.search(r"^example:\s*(.*)$", text, re.M)
    return summary, usage, options, example.group(1).strip() if example else None


def page(name, version, summary, usage, options, example, others):
    first, _, rest = summary.partition("\n")
    out = [f'.TH {name.upper()} 1 "" "deepserve {version}"', ".SH NAME", roff(f"{name} - {first.rstrip('.')}"), ".SH SYNOPSIS", ".nf", roff(usage), ".fi", ".SH DESCRIPTION", roff(summary)]
    if options:
        out.append(".SH OPTIONS")
        for option, text in options:
            out += [".TP", ".B " + roff(option), roff(text.strip() or "\\&")]
    if example:
        out += [".SH EXAMPLE", ".nf", roff(example), ".fi"]
    out += [".SH EXIT STATUS", "0: done; 1: failed; 2: wrong use.", ".SH SEE ALSO", ", ".join(roff(f"{o}(1)") for o in others)]
    return "\n".join(out) + "\n"


def main():
    program, target = sys.argv[1], pathlib.Path(sys.argv[2])
    target.mkdir(parents=True, exist_ok=True)
    version = help_of(program, "--version").split()[-1]
    top = help_of(program, "help")
    commands = re.findall(r"^  (\w+)  +(.*)$", top[top.index("commands:"):].split("\n\n")[0], re.M)
    extra = [("bench", "http"), ("bench", "serve")]
    pages = [(c,) for c, _ in commands] + [e for e in extra if e[0] in dict(commands)]
    words = {}
    for p in pages:
        summary, usage, options, example = parse(help_of(program, *p, "--help"))
        words[" ".join(p)] = [re.split(r"[ =]", o)[0] for o, _ in options]
        name = "-".join(("deepserve", *p))
        (target / f"{name}.1").write_text(page(name, version, summary, usage, options, example, ["deepserve"]))
    (target / "deepserve.1").write_text(page("deepserve", version, "serves DeepSeek-V4.1-Flash-class models", "deepserve COMMAND [options]", [[c, text] for c, text in commands], None,
                                             ["deepserve-" + c for c, _ in commands]))
    cases = "\n".join(f'    "{c}") words="{" ".join(w)} --help" ;;' for c, w in sorted(words.items()))
    (target / "deepserve.bash").write_text(f"""# bash completion for deepserve
_deepserve() {{
    local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} key=${{COMP_WORDS[1]}} words
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "{' '.join(c for c, _ in commands)} help --version" -- "$cur"))
        return
    fi
    case "${{COMP_WORDS[2]}}" in http | serve) [ "$key" = bench ] && key="bench ${{COMP_WORDS[2]}}" ;; esac
    case "$key" in
{cases}
    esac
    case "$prev" in --model | --out | --kv-dir) COMPREPLY=($(compgen -d -- "$cur")); return ;; esac
    case "$cur" in
    -*) COMPREPLY=($(compgen -W "$words" -- "$cur")) ;;
    *) COMPREPLY=($(compgen -f -- "$cur")) ;;
    esac
}}
complete -o filenames -F _deepserve deepserve
""")


if __name__ == "__main__":
    main()
