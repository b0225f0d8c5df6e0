"""Two or more single-thread processes that train one draft: gradients averaged over gloo."""

from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist


class Ranks:
    """`rank` of `count`; with one, nothing is exchanged. `meeting`: a file that all find each other by."""

    def __init__(self, rank: int, count: int, meeting: Path) -> None:
        self.rank, self.count = rank, count
        if count > 1:
            dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=count)

    @property
    def first(self) -> bool:
        return self.rank == 0

    def average(self, parameters: Sequence[torch.nn.Parameter], told: torch.Tensor) -> torch.Tensor:
        """Average all gradients in place, and `told`, a few figures of this rank, in the same exchange."""
        if self.count == 1:
            return told
        grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters]
        flat = torch.cat([*(grad.flatten() for grad in grads), told])
        dist.all_reduce(flat)
        flat /= self.count
        for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters] + [len(told)]), strict=False):
            parameter.grad = part.view_as(parameter).clone()
        return flat[-len(told) :]

    def leave(self) -> None:
        if self.count > 1:
            dist.destroy_process_group()
