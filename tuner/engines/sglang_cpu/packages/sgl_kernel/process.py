"""Set-up of one scheduler process."""

# mypy: ignore-errors
import torch


def init_cpu_threads_env(cpu_ids):
    """As many threads as a comma list names cores; they are not bound to them."""
    torch.set_num_threads(len(cpu_ids.split(",")))


def initialize(size, rank):
    if size != 1:
        raise NotImplementedError(f"CPU kernels in plain PyTorch have no tensor parallelism: rank {rank} of {size}")


OPS = (init_cpu_threads_env, initialize)
