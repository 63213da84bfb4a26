"""Memory of products whose number of rows is never the same twice."""

import ctypes
import os
import subprocess
import sys

import pytest

from unmask.base.progress import CACHES
from unmask.kernels.products import onednn_takes

pytestmark = pytest.mark.long

PROGRAM = """
import ctypes, torch
from unmask.encoder.trained_linear import train_with_onednn

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "abcdefghij"]

info = ctypes.CDLL(None).mallinfo2
info.restype = Info
layer = torch.nn.Linear(64, 64)
train_with_onednn(layer)
used = []
for rows in range(64, 364):
    layer(torch.ones(rows, 64)).sum().backward()
    if rows % 100 == 63:
        used.append(info().h / 2**20)
print(used[-1] - used[-2])
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="needs mallinfo2 of glibc 2.33")
def test_training_on_ever_new_numbers_of_tokens_keeps_no_more_of_them():
    import torch

    if not onednn_takes(torch.float32):
        pytest.skip("this torch has no oneDNN")
    own = {name: value for name, value in os.environ.items() if name not in CACHES}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=own, capture_output=True, text=True, check=True
    )
    print(done.stdout)
    assert float(done.stdout.split()[-1]) < 1
