"""Over which tokens a step's loss is taken: those the target finds likely in its rows, and some of the others."""

from dataclasses import dataclass
from math import log

import torch

#: Of each row, so many of the target's likeliest tokens are always in; so many others are drawn at least.
LIKELY, FEWEST_DRAWN = 4, 512


@dataclass(frozen=True)
class Columns:
    """`ids`: tokens, as indices into the draft's. `shift`: added to their logits, the target's and the draft's alike.

    A drawn token stands for others / drawn tokens like it, so its shift is the log of that: then the sum of e^logit
    over the columns is in expectation the sum over all tokens, and so is the gradient's.
    """

    ids: torch.Tensor
    shift: torch.Tensor


def loss_columns(likely: torch.Tensor, among: int, most: int, draw: torch.Generator) -> Columns | None:
    """`likely`: ids that must be in, of `among` tokens. About `most` columns; None: all, where that is no fewer."""
    if not 0 < most < among:
        return None
    inside = torch.zeros(among, dtype=torch.bool).index_fill(0, likely.flatten(), True)
    certain, others = inside.nonzero().squeeze(1), (~inside).nonzero().squeeze(1)
    count = min(len(others), max(FEWEST_DRAWN, most - len(certain)))
    drawn = others[torch.randperm(len(others), generator=draw)[:count]]
    shift = torch.zeros(len(certain) + count)
    if count:
        shift[len(certain) :] = log(len(others) / count)
    return Columns(torch.cat([certain, drawn]), shift)
