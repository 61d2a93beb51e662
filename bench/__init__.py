"""The bench: every variant verified against float64, then timed beside cuBLAS. `python -m bench --help`.

Without a CUDA GPU, Triton is told to interpret its kernels. It reads that variable when it is first
imported, hence here.
"""

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
