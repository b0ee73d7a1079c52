"""Weighted mean of the backbones of two exported models (draft blocks and router biases of the second are weighted alike, drafts kept).

    python blend.py FIRST SECOND SHARE_OF_SECOND OUT

Two runs that follow one another lie in one basin: the mean keeps what the second learned and gives back part of what it forgot."""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import config
import export


def main():
    first, second, share, out = sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4]
    a, biases_a = export.load(first, "cpu")
    b, biases_b = export.load(second, "cpu")
    mean = {n: t if n.startswith("mtp.") else a[n] * (1 - share) + t * share for n, t in b.items()}
    biases = [x * (1 - share) + y * share for x, y in zip(biases_a, biases_b)]
    print(export.save(out, os.path.join(second, "tokenizer.json"), config.SHAPE, mean, biases), "bytes of weights")


if __name__ == "__main__":
    main()
