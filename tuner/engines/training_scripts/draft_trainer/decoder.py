"""The one decoder layer of an EAGLE head, and attention from rows that have each drafted some tokens of their own."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from draft_trainer.target import Target

#: Standard deviation of new matrices, as models are initialised; what writes to the residual stream begins smaller.
SPREAD, WRITING_SPREAD = 0.02, 0.01


class RmsNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.float()
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def matrix(reads: int, writes: int, draw: torch.Generator, spread: float = SPREAD) -> nn.Linear:
    """Without bias; drawn from `draw` alone, so that a seed makes the same head whatever was made before."""
    linear = nn.utils.skip_init(nn.Linear, reads, writes, bias=False)
    with torch.no_grad():
        linear.weight.copy_(torch.randn(writes, reads, generator=draw) * spread)
    return linear


class Rotary:
    """Rotary positions as Llama has them: the two halves of a head are turned against each other."""

    def __init__(self, head_dim: int, theta: float, most: int) -> None:
        inverse = theta ** -(torch.arange(0, head_dim, 2).float() / head_dim)
        angles = torch.outer(torch.arange(most).float(), inverse).repeat(1, 2)
        self.cos, self.sin = angles.cos(), angles.sin()

    def __call__(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """x [n, heads, head_dim], positions [n]; float32."""
        x = x.float()
        first, second = x.chunk(2, -1)
        turned = torch.cat([-second, first], -1)
        return x * self.cos[positions][:, None] + turned * self.sin[positions][:, None]


class DecoderLayer(nn.Module):
    """Attention and MLP with their residual; what attention reads, of width `reads`, is made by the head."""

    def __init__(self, target: Target, reads: int, intermediate: int, draw: torch.Generator, most: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = target.heads, target.kv_heads, target.head_dim
        self.q_proj = matrix(reads, self.heads * self.head_dim, draw)
        self.k_proj = matrix(reads, self.kv_heads * self.head_dim, draw)
        self.v_proj = matrix(reads, self.kv_heads * self.head_dim, draw)
        self.o_proj = matrix(self.heads * self.head_dim, target.hidden, draw)
        self.gate_proj = matrix(target.hidden, intermediate, draw)
        self.up_proj = matrix(target.hidden, intermediate, draw)
        self.down_proj = matrix(intermediate, target.hidden, draw, WRITING_SPREAD)
        self.post_attention_layernorm = RmsNorm(target.hidden, target.eps)
        self.rotary = Rotary(target.head_dim, target.theta, most)

    def query(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return self.rotary(self.q_proj(x).view(-1, self.heads, self.head_dim), positions)

    def key_value(self, x: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        keys = self.rotary(self.k_proj(x).view(-1, self.kv_heads, self.head_dim), positions)
        return keys, self.v_proj(x).view(-1, self.kv_heads, self.head_dim).float()

    def finish(self, residual: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """[n, hidden] before any norm: what engines hand to the next drafted step."""
        hidden = residual + self.o_proj(attended.flatten(1)).float()
        normed = self.post_attention_layernorm(hidden)
        return hidden + self.down_proj(F.silu(self.gate_proj(normed)) * self.up_proj(normed)).float()


def attend(
    query: torch.Tensor,
    rows: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    own: Sequence[tuple[torch.Tensor, torch.Tensor]],
) -> torch.Tensor:
    """Each row attends to the places up to its own in its document, and to the tokens it has drafted itself.

    query [n, heads, d]; keys, values [documents, kv_heads, places, d], which are of the target's states; own: for each
    drafted token, (key, value) [n, kv_heads, d]. Returns [n, heads, d].
    """
    documents, kv_heads, places, dim = keys.shape
    grouped = query.view(len(query), kv_heads, -1, dim)
    scores = _spread(grouped, rows, documents, places) @ keys.transpose(-1, -2)
    scores = _gathered(scores, rows, documents, places).float()
    later = torch.arange(places) > (rows % places)[:, None]
    scores = scores.masked_fill(later[:, None, None], float("-inf"))
    drafted = [(grouped * key[:, :, None]).sum(-1, keepdim=True) for key, _ in own]
    weights = torch.softmax(torch.cat([scores, *drafted], -1) * dim**-0.5, -1)
    found = _spread(weights[..., :places], rows, documents, places) @ values
    attended = _gathered(found, rows, documents, places).float()
    for index, (_, value) in enumerate(own):
        attended = attended + weights[..., places + index, None] * value[:, :, None]
    return attended.reshape(query.shape)


def _spread(x: torch.Tensor, rows: torch.Tensor, documents: int, places: int) -> torch.Tensor:
    """[n, kv_heads, group, w] to [documents, kv_heads, places * group, w], zero where no row is."""
    kv_heads, group, width = x.shape[1:]
    grid = x.new_zeros(documents * places, kv_heads, group, width).index_copy(0, rows, x)
    grid = grid.view(documents, places, kv_heads, group, width).transpose(1, 2)
    return grid.reshape(documents, kv_heads, places * group, width)


def _gathered(x: torch.Tensor, rows: torch.Tensor, documents: int, places: int) -> torch.Tensor:
    """The way back from `_spread`."""
    kv_heads, width = x.shape[1], x.shape[-1]
    grid = x.view(documents, kv_heads, places, -1, width).transpose(1, 2)
    return grid.reshape(documents * places, kv_heads, -1, width)[rows]
