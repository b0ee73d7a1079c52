#!/bin/sh
# Trains the demonstration model on one H200-class GPU: two runs of at most ten minutes, then their blend.
#   reference/train/run.sh OUT_DIR        (PYTHON names the interpreter)
set -e
here=$(cd "$(dirname "$0")" && pwd)
out=${1:?output folder}
python=${PYTHON:-python3}
tok=$here/../../models/demo/tokenizer.json
$python "$here/test_kernels.py"
$python "$here/train.py" --tokenizer "$tok" --out "$out/first" --steps 3009 --draft-steps 345 --tune-from 2000 --qat-from 0.8 --compare
$python "$here/train.py" --tokenizer "$tok" --resume "$out/first" --out "$out/second" --steps 2649 --draft-steps 923 --stages more,tune --tune-from 1900 \
    --qat-from 0 --lr 4e-3 --warm 60 --decay-from 0.3 --anchors 40 --seed 2 --compare
$python "$here/blend.py" "$out/first" "$out/second" 0.8 "$out/demo"
$python "$here/check.py" "$out/demo"
