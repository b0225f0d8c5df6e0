"""Stands in for Triton on a machine without a GPU."""

# mypy: ignore-errors
import cpu_stand_in
import torch
from cpu_machine import refuse_gpu

refuse_gpu()

__version__ = "0.0"
cpu_stand_in.install(__name__)

# SGLang takes its CPU path on processors with AMX only, and asks right after it imported Triton (0.5.23). Kernels in
# plain PyTorch need no AMX.
torch.cpu._is_amx_tile_supported = lambda: True


def cdiv(a, b):
    return -(-a // b)


def next_power_of_2(n):
    return 1 << (n - 1).bit_length()
