"""Cross-entropy against whole distributions, in pieces that stay in a core's cache."""

from typing import Any

import torch

#: Rows whose probabilities are in memory at once: 64 rows of 8,192 in float32 are 2 MiB.
PIECE = 64


class SoftCrossEntropy(torch.autograd.Function):
    """sum_n weight_n * sum_v -p_n(v) log softmax(logits_n)(v), with p_n = softmax(sharpness * wanted[index_n]).

    The gradient, weight * (softmax - p), is made with the value, so that no matrix of float32 probabilities is kept.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, wanted: torch.Tensor, index: torch.Tensor, weight: torch.Tensor,
        sharpness: float,
    ) -> torch.Tensor:  # fmt: skip
        gradient = torch.empty_like(logits)
        total = torch.zeros(())
        for start in range(0, len(logits), PIECE):
            part = slice(start, start + PIECE)
            p = torch.softmax(wanted[index[part]].float() * sharpness, -1)
            log_q = torch.log_softmax(logits[part].float(), -1)
            total -= (p * log_q).sum(-1) @ weight[part]
            gradient[part] = (log_q.exp_().sub_(p).mul_(weight[part, None])).to(gradient.dtype)
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    def backward(ctx: Any, scale: torch.Tensor) -> tuple[torch.Tensor, None, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * scale.to(gradient.dtype), None, None, None, None


def soft_cross_entropy(
    logits: torch.Tensor, wanted: torch.Tensor, index: torch.Tensor, weight: torch.Tensor, sharpness: float = 1.0
) -> torch.Tensor:
    return SoftCrossEntropy.apply(logits, wanted, index, weight, sharpness)
