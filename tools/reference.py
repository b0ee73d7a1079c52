#!/usr/bin/env python3
"""Man pages and shell completion, made from the help pages of the built program, which come from its option tables.

  tools/reference.py PROGRAM OUTDIR      writes OUTDIR/man1/*.1, OUTDIR/deepserve (bash), OUTDIR/_deepserve (zsh), OUTDIR/deepserve.fish
"""
import pathlib
import re
import shutil
import subprocess
import sys


class Option:
    """  --name ARG   text [notes]   or   --[no-]name   text"""

    def __init__(self, names, arg, text):
        self.negatable = names.startswith("--[no-]")
        self.name = names.replace("[no-]", "")
        self.arg = arg
        self.text = text
        choices = re.search(r"\[([\w.-]+(?:\|[\w.-]+)+)", text)
        self.choices = arg.split("|") if arg and "|" in arg else choices.group(1).split("|") if choices else []
        if any(not re.fullmatch(r"[\w.-]+", c) or c == "N" for c in self.choices):
            self.choices = [c for c in self.choices if re.fullmatch(r"[a-z0-9.][\w.-]*", c)]

    def flags(self):
        return [self.name, "--no-" + self.name[2:]] if self.negatable else [self.name]

    def wants(self):
        """What to offer for its value: "file", "dir", or nothing."""
        arg = self.arg or ""
        return "dir" if arg == "DIR" else "file" if re.search(r"FILE|PATH|^[FC]\.|\.(json|jsonl|pem|npy)$", arg) else ""


class Command:
    def __init__(self, words, page):
        head, _, rest = page.partition("\n\nusage: ")
        self.words = words
        self.summary = head.partition(": ")[2]
        usage, _, rest = rest.partition("\n\noptions:\n")
        self.usage = usage[len("deepserve " + " ".join(words)):].strip()
        options, _, example = rest.partition("\n\nexample:\n")
        self.example = example.strip()
        self.options = []
        for line in options.splitlines():
            m = re.match(r"  (-h, )?(--(?:\[no-\])?[\w-]+)(?: (\S+(?: \S+)*?))?(?:  +(.*))?$", line)
            if m:
                self.options.append(Option(m.group(2), m.group(3), m.group(4) or ""))
            elif self.options and line.startswith("   "):
                self.options[-1].text = (self.options[-1].text + " " + line.strip()).strip()
            elif line.strip():
                sys.exit(f"reference: {' '.join(words)}: not an option: {line}")
        self.options = [Option(("--[no-]" if o.negatable else "--") + o.name[2:], o.arg, o.text) for o in self.options]  # choices of the whole text

    @property
    def name(self):
        return "-".join(["deepserve", *self.words])


def ask(program, *args):
    return subprocess.run([program, *args], stdout=subprocess.PIPE, text=True, check=True).stdout


def read(program):
    """Version, [(command, one line)], [Command] with the commands of commands."""
    version = ask(program, "--version").split()[-1]
    listing = re.findall(r"^  ([a-z][\w-]*) {2,}(.*)$", ask(program, "--help").partition("commands:\n")[2].partition("\n\n")[0], re.M)
    commands = []
    for name, _ in listing:
        c = Command([name], ask(program, name, "--help"))
        commands.append(c)
        commands += [Command([name, sub], ask(program, name, sub, "--help")) for sub in re.findall(r"\| ([a-z]+) \[options\]", c.usage)]
    return version, listing, commands


# ---- man ----


def roff(text):
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga").replace("^", "\\(ha").replace("~", "\\(ti")
    text = re.sub(r"[^\x00-\x7f]", lambda m: f"\\[u{ord(m.group(0)):04X}]", text)
    return "\\&" + text if text.startswith(".") else text


def man(command, version):
    full = "deepserve " + " ".join(command.words)
    first = re.split(r"(?<=[.;:])\s", command.summary.replace("\n", " "))[0].rstrip(".;:")
    out = [f'.TH "{command.name.upper()}" "1" "" "deepserve {version}" "deepserve"', ".nh", ".SH NAME", f"{roff(command.name)} \\- {roff(first[0].lower() + first[1:])}",
           ".SH SYNOPSIS", f".B {roff(full)}", roff(command.usage), ".SH DESCRIPTION", roff(command.summary.replace("\n", " ")), ".SH OPTIONS"]
    for o in command.options:
        out += [".TP", f"\\fB{', '.join(roff(f) for f in o.flags())}\\fR" + (f" \\fI{roff(o.arg)}\\fR" if o.arg else ""), roff(o.text)]
    if command.example:
        out += [".SH EXAMPLE", ".nf", *(roff(line) for line in command.example.splitlines()), ".fi"]
    out += [".SH EXIT STATUS", "0 done, 1 failed, 2 the command line alone is wrong.", ".SH SEE ALSO", ".BR deepserve (1)"]
    return "\n".join(out) + "\n"


def man_overview(listing, commands, version):
    out = [f'.TH "DEEPSERVE" "1" "" "deepserve {version}" "deepserve"', ".nh", ".SH NAME", "deepserve \\- serves DeepSeek\\-V4.1\\-Flash\\-class models", ".SH SYNOPSIS", ".B deepserve",
           ".I COMMAND", "[options]", ".SH DESCRIPTION",
           "One program for one model: it answers the protocols of OpenAI and Anthropic over HTTP, generates from the command line, and shows what it does step by step.",
           "A model directory has the layout of the release: config.json, *.safetensors with their index, tokenizer.json.", ".SH COMMANDS"]
    for name, text in listing:
        out += [".TP", f"\\fB{roff(name)}\\fR", roff(text) + f" (\\fBdeepserve\\-{roff(name)}\\fR(1))"]
    out += [".SH OPTIONS", ".TP", "\\fB\\-\\-help\\fR", "the list of commands; after a command, its options", ".TP", "\\fB\\-\\-version\\fR", "version of this program", ".SH EXIT STATUS",
            "0 done, 1 failed, 2 the command line alone is wrong.", ".SH SEE ALSO"]
    out += [f".BR {roff(c.name)} (1)" + ("," if i + 1 < len(commands) else "") for i, c in enumerate(commands)]
    return "\n".join(out) + "\n"


# ---- shells ----


def bash(listing, commands):
    top, subs = " ".join(n for n, _ in listing), {}
    for c in commands:
        if len(c.words) == 2:
            subs.setdefault(c.words[0], []).append(c.words[1])
    out = ["# bash completion for deepserve; made by tools/reference.py", "_deepserve()", "{", "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} cmd=${COMP_WORDS[1]}",
           "    COMPREPLY=()", "    if [ \"$COMP_CWORD\" -eq 1 ]; then", f"        COMPREPLY=($(compgen -W \"{top} help --help --version\" -- \"$cur\"))", "        return", "    fi",
           "    if [ \"$cmd\" = help ]; then", f"        COMPREPLY=($(compgen -W \"{top} all\" -- \"$cur\"))", "        return", "    fi"]
    for name, words in subs.items():
        out += [f"    if [ \"$cmd\" = {name} ]; then", "        case ${COMP_WORDS[2]} in"]
        out += [f"        {w}) [ \"$COMP_CWORD\" -gt 2 ] && cmd=\"{name} {w}\" ;;" for w in words]
        out += ["        esac", "    fi"]
    out += ["    case \"$cmd $prev\" in"]
    for c in commands:
        words = " ".join(c.words)
        for want, action in (("dir", "$(compgen -d -- \"$cur\")"), ("file", "$(compgen -f -- \"$cur\")")):
            names = [f for o in c.options if o.wants() == want for f in o.flags()]
            if names:
                out.append("    " + "|".join(f"\"{words} {n}\"" for n in names) + f") COMPREPLY=({action}); compopt -o filenames 2>/dev/null; return ;;")
        out += [f"    \"{words} {o.name}\") COMPREPLY=($(compgen -W \"{' '.join(o.choices)}\" -- \"$cur\")); return ;;" for o in c.options if o.choices]
    out += ["    esac", "    case $cmd in"]
    for c in commands:
        more = " ".join(subs.get(c.words[0], [])) if len(c.words) == 1 else ""
        flags = " ".join(f for o in c.options for f in o.flags())
        out.append(f"    \"{' '.join(c.words)}\") COMPREPLY=($(compgen -W \"{(more + ' ' + flags).strip()}\" -- \"$cur\")) ;;")
    return "\n".join([*out, "    esac", "}", "complete -F _deepserve deepserve"]) + "\n"


def zsh_text(text):
    return text.replace("\\", "\\\\").replace("'", "'\\''").replace("[", "\\[").replace("]", "\\]").replace(":", "\\:")


def zsh(listing, commands):
    out = ["#compdef deepserve", "# zsh completion for deepserve; made by tools/reference.py", "_deepserve() {", "    local -a commands", "    commands=("]
    out += [f"        '{zsh_text(n)}:{zsh_text(t)}'" for n, t in listing]
    out += ["    )", "    if (( CURRENT == 2 )); then", "        _describe command commands", "        return", "    fi", "    local cmd=$words[2]"]
    subs = {c.words[0] for c in commands if len(c.words) == 2}
    for name in sorted(subs):
        names = [c.words[1] for c in commands if len(c.words) == 2 and c.words[0] == name]
        out += [f"    if [[ $cmd == {name} ]] && (( CURRENT == 3 )); then compadd {' '.join(names)}; fi",
                f"    if [[ $cmd == {name} && $words[3] == ({'|'.join(names)}) ]] && (( CURRENT > 3 )); then cmd=\"{name} $words[3]\"; fi"]
    out += ["    local -a parts=(${=cmd})", "    shift $#parts words", "    (( CURRENT -= $#parts ))", "    case $cmd in"]
    for c in commands:
        specs = []
        for o in c.options:
            value = ""
            if o.arg:
                action = f"({' '.join(o.choices)})" if o.choices else {"dir": "_files -/", "file": "_files", "": ""}[o.wants()]
                value = f":{zsh_text(o.arg)}:{action}"
            specs += [f"'{f}[{zsh_text(o.text)}]{value}'" for f in o.flags()]
        out += [f"    '{' '.join(c.words)}') _arguments \\", *(f"        {s} \\" for s in specs[:-1]), f"        {specs[-1]} ;;"]
    return "\n".join([*out, "    esac", "}", "_deepserve \"$@\""]) + "\n"


def fish(listing, commands):
    def quote(s):
        return "'" + s.replace("\\", "\\\\").replace("'", "\\'") + "'"

    out = ["# fish completion for deepserve; made by tools/reference.py", "complete -c deepserve -f"]
    out += [f"complete -c deepserve -n __fish_use_subcommand -a {n} -d {quote(t)}" for n, t in listing]
    for c in commands:
        here = f"__fish_seen_subcommand_from {c.words[0]}"
        if len(c.words) == 2:
            out.append(f"complete -c deepserve -n {quote(here)} -a {c.words[1]}")
            here += f"; and __fish_seen_subcommand_from {c.words[1]}"
        elif any(len(d.words) == 2 and d.words[0] == c.words[0] for d in commands):
            here += "; and not __fish_seen_subcommand_from " + " ".join(d.words[1] for d in commands if len(d.words) == 2 and d.words[0] == c.words[0])
        for o in c.options:
            value = "" if not o.arg else f" -x -a {quote(' '.join(o.choices))}" if o.choices else " -r -F" if o.wants() else " -x"
            out += [f"complete -c deepserve -n {quote(here)} -l {f[2:]}{value} -d {quote(o.text)}" for f in o.flags()]
    return "\n".join(out) + "\n"


def main():
    program, out = sys.argv[1], pathlib.Path(sys.argv[2])
    version, listing, commands = read(str(pathlib.Path(program).resolve()))
    shutil.rmtree(out / "man1", ignore_errors=True)
    (out / "man1").mkdir(parents=True)
    (out / "man1" / "deepserve.1").write_text(man_overview(listing, commands, version), encoding="utf-8")
    for c in commands:
        (out / "man1" / f"{c.name}.1").write_text(man(c, version), encoding="utf-8")
    (out / "deepserve").write_text(bash(listing, commands), encoding="utf-8")
    (out / "_deepserve").write_text(zsh(listing, commands), encoding="utf-8")
    (out / "deepserve.fish").write_text(fish(listing, commands), encoding="utf-8")


if __name__ == "__main__":
    main()
