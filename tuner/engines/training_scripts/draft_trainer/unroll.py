"""Training-time test: a head drafts step after step on its own outputs, from every row of a batch at once."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch

from draft_trainer.corpus import Batch
from draft_trainer.decoder import DecoderLayer, attend


class Drafting(Protocol):
    """What unrolling needs of a head: its layer, where it starts, and what attention and residual get."""

    layer: DecoderLayer

    def first_states(self, batch: Batch) -> torch.Tensor:
        """[B * M, hidden] from the target's states."""

    def joined(self, tokens: torch.Tensor, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(what attention reads, residual) of tokens and the states before them."""


@dataclass(frozen=True)
class Step:
    """Step k has drafted, for each of `rows`, the token k + 2 places on, from `hidden` before the last norm."""

    number: int
    rows: torch.Tensor
    hidden: torch.Tensor


def unroll(head: Drafting, batch: Batch, steps: int, kept: torch.Tensor | None = None) -> Iterator[Step]:
    """Steps 0 to `steps` - 1. Tokens are the answer's own, so a chain is what an engine drafts while it is accepted.

    As in the engines: the input of step k has position i + k; places up to i keep the keys and values made of the
    target's states, later ones have those of the head's own outputs. `kept`: indices of the rows that go on after
    step 0; None: all.
    """
    rows, everywhere = batch.rows, torch.arange(batch.tokens.numel())
    context, residuals = head.joined(batch.next_tokens, head.first_states(batch))
    keys, values = head.layer.key_value(context, batch.positions(everywhere))
    keys, values = (x.view(*batch.tokens.shape, *x.shape[1:]).transpose(1, 2) for x in (keys, values))
    x, residual, own = context[rows], residuals[rows], []
    for number in range(steps):
        positions = batch.positions(rows) + number
        if number:
            own.append(head.layer.key_value(x, positions))
        attended = attend(head.layer.query(x, positions), rows, keys, values, own)
        hidden = head.layer.finish(residual, attended)
        yield Step(number, rows, hidden)
        if number == 0 and kept is not None:
            rows, hidden = rows[kept], hidden[kept]
        if number + 1 < steps:
            x, residual = head.joined(batch.token_after(rows, number + 2), hidden)
