"""Paths and files that the tests share; importing it makes dsref importable."""

import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.dirname(HERE))


def raw_config(name):
    with open(os.path.join(ROOT, "tests", "configs", name + ".json"), encoding="utf-8") as f:
        return json.load(f)
