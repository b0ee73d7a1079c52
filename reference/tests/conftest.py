import os
import sys

import pytest

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests"))
from limit import pytest_configure, pytest_runtest_protocol  # noqa: E402,F401

try:
    import torch
    from refdata import ROOT
except ImportError:         # without PyTorch every module here is skipped
    torch = None
else:
    torch.set_num_threads(1)


@pytest.fixture(scope="session", params=["tiny-a", "tiny-b", "tiny-c"])
def model(request):
    """A golden model, f32 mode in f64."""
    from dsref.model import Model
    path = os.path.join(ROOT, "tests", "golden", request.param, "model")
    if not os.path.isdir(path):
        pytest.skip("no golden data")
    m = Model(path)
    m.name = request.param
    return m
