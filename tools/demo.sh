#!/bin/sh
# The main job on the demonstration model: a conversation, answered on this machine's CPU.
#
#   tools/demo.sh [BUILD]      after `make deps` and `make`; `make demo` does all three
set -eu
cd "$(dirname "$0")/.."
build=${1:-build}
model=models/demo

if [ ! -f "$model/config.json" ]; then
    echo "demo: $model holds no model" >&2
    exit 1
fi
if [ ! -x "$build/deepserve" ]; then
    echo "demo: $build/deepserve isn't built; make demo does that, too" >&2
    exit 1
fi
echo "A conversation with the demonstration model (46 MB of FP8 and MXFP4 weights), on this machine's CPU:"
echo
printf '%s\n' "Hello!" "Who are you?" "What is the capital of Japan?" "What is 134 + 289?" "Tell me a short story about a fox." "Thank you!" |
    "$build/deepserve" chat --model "$model" --temperature 0 --max-tokens 300 --echo
echo
echo "Go on yourself:    $build/deepserve chat --model $model"
echo "Continue a text:   $build/deepserve generate --model $model --prompt 'Once upon a time'"
echo "What it is made of: $build/deepserve inspect --model $model"
