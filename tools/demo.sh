#!/bin/sh
# The main job on the demonstration model: the prompt goes in, an answer comes out, all on this machine's CPU.
#
#   tools/demo.sh [BUILD]      after `make deps` and `make`; `make demo` does all three
set -eu
cd "$(dirname "$0")/.."
build=${1:-build}
model=models/demo
prompt="Once upon a time, there was a little girl who"

if [ ! -f "$model/config.json" ]; then
    echo "demo: $model holds no model" >&2
    exit 1
fi
set -- "$build/deepserve" generate --model "$model" --prompt "$prompt" --max-tokens 120 --temperature 0
echo "The demonstration model of this repository continues a text. The command is"
echo
echo "  $build/deepserve generate --model $model --prompt \"$prompt\" --max-tokens 120 --temperature 0"
echo
"$@"
echo
echo "For a conversation: $build/deepserve chat --model $model"
