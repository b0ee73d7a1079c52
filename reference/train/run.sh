#!/bin/sh
# Trains, exports and evaluates the demonstration model on one H200-class GPU, with the dense yardstick: OUT/demo is the model with its card.
#
#   reference/train/run.sh OUT [STEP...]     all steps that OUT/done does not name yet, or the named ones
#
# Each step takes under ten minutes; one that was broken off is run again from its beginning. PYTHON: an interpreter with ../requirements.txt;
# PROGRAM: deepserve, for the evaluation (build/deepserve); NATURAL: folder with more natural text; TINY=1: a tiny shape and few steps, for a CPU.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=${1:?usage: run.sh OUT [STEP...]}
shift
python=${PYTHON:-python3}
program=${PROGRAM:-$here/../../build/deepserve}
flags="${TINY:+--tiny} ${NATURAL:+--natural $NATURAL}"
eval=$here/../eval
mkdir -p "$out/done" "$out/results"

step() {
    case $1 in
    kernels) $python "$here/test_kernels.py" ;;
    tokenizer) $python "$here/../data/tokenizer.py" "$out/tokenizer.json" ;;
    first | second | long | longer | draft) $python "$here/train.py" "$1" "$out" $flags ;;
    dense) $python "$here/dense.py" "$out" $flags ;;
    model)
        mkdir -p "$out/demo"
        cp "$out"/draft/*.json "$out/draft/model.safetensors" "$here/../data/NOTICE" "$out/demo"
        $python "$here/export.py" "$out/state.pt" "$out/tokenizer.json" "$out/plain"
        $python "$here/figures.py" "$out" > "$out/results/training.json" ;;
    check) $python "$here/check.py" "$out/demo" ;;
    evaluate)
        if [ ! -x "$program" ]; then
            echo "run.sh: no program $program: build it (make), or name it by PROGRAM, and run this command again" >&2
            exit 1
        fi
        against=
        [ ! -d "$out/plain" ] || against="--against $out/plain"         # 106 MB: it may have stayed on another machine
        $python "$eval/run.py" --model "$out/demo" --program "$program" $against --json "$out/results/demo.json" \
            --cache "$out/cache" --workers "$(nproc)" ${TINY:+--every 40} ;;
    mechanisms) $python "$eval/mechanisms.py" --model "$out/demo" --program "$program" --json "$out/results/mechanisms.json" --cache "$out/cache" ${TINY:+--texts 1 --tokens 160} ;;
    card)
        cp "$here/../../models/demo/README.md" "$out/demo/README.md"
        $python "$eval/card.py" "$out/demo/README.md" "$out/results" ;;
    *) echo "run.sh: no step $1" >&2; exit 2 ;;
    esac
}

[ $# -gt 0 ] || set -- kernels tokenizer first second long longer draft dense model check evaluate mechanisms card
for name; do
    [ ! -e "$out/done/$name" ] || continue
    echo "== $name"
    begun=$(date +%s)
    step "$name"
    echo "$(($(date +%s) - begun)) s" | tee "$out/done/$name"
done
