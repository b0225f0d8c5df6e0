"""The order in which the prompts of several sets are sent: in proportion, seeded, the same for every candidate."""

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import cycle
from random import Random

from tuner.errors import UserError
from tuner.prompts.rows import Prompt

Share = tuple[tuple[Prompt, ...], float]


def interleave(shares: Sequence[Share], n: int, seed: int) -> tuple[Prompt, ...]:
    """n prompts from several sets; in every prefix each set's count is within 1 of its share of the prefix.

    A set is shuffled once and begins again when all its prompts were used, so that repeats are as far apart
    as they can be. Shares are relative: (3, 1) and (0.75, 0.25) mean the same.
    """
    if n < 0:
        raise ValueError(f"n must not be negative: {n}")
    weights = _whole_weights(shares)
    decks = [cycle(_shuffled(prompts, f"{seed}/{i}")) for i, (prompts, _) in enumerate(shares)]
    return tuple(next(decks[i]) for i in _schedule(weights, n))


def _schedule(weights: Sequence[int], n: int) -> list[int]:
    """Indices into `weights`: in every slot, among the sets that are not ahead, the one that is due first.

    These are unit jobs with windows [j / w, (j + 1) / w) under earliest deadline first, which meets every deadline
    (proportionate fairness: Baruah, Cohen, Plaxton, Varvel 1996, one processor). Smooth weighted round robin
    can stray by more than 1 with many sets: 1.14 for weights 2, 20, 1, 1, 2, 1, 20, 2, 1, 20.
    """
    whole = sum(weights)
    counts = [0] * len(weights)
    order: list[int] = []
    for slot in range(1, n + 1):
        not_ahead = [i for i, weight in enumerate(weights) if counts[i] * whole < slot * weight]
        due = min(not_ahead, key=lambda i: Fraction(counts[i] + 1, weights[i]))
        counts[due] += 1
        order.append(due)
    return order


def _whole_weights(shares: Sequence[Share]) -> list[int]:
    for prompts, share in shares:
        if not math.isfinite(share) or share < 0:
            raise UserError(f"a prompt set's share is {share}; give a number from 0.")
        if share > 0 and not prompts:
            raise UserError(f"a prompt set with the share {share} is empty; give it prompts or the share 0.")
    if not any(share > 0 for _, share in shares):
        raise UserError("no prompt set has a share above 0; give at least one.")
    _reject_shared_ids(shares)
    exact = [Fraction(str(share)) for _, share in shares]  # str: people who type 0.1 mean 1/10
    denominator = math.lcm(*(weight.denominator for weight in exact))
    return [int(weight * denominator) for weight in exact]


def _reject_shared_ids(shares: Sequence[Share]) -> None:
    """Records are paired between candidates by prompt id, so one id must mean one prompt."""
    known: dict[str, Prompt] = {}
    for prompts, _ in shares:
        for prompt in prompts:
            if known.setdefault(prompt.id, prompt) != prompt:
                raise UserError(
                    f"two different prompts have the id {prompt.id!r}; give one, or its file, another name."
                )


def _shuffled(prompts: Sequence[Prompt], seed: str) -> list[Prompt]:
    deck = list(prompts)
    Random(seed).shuffle(deck)
    return deck
