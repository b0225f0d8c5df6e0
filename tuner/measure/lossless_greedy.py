"""Greedy output against the target's own: first divergences, their log-probability gaps, and the floor of off itself.

Only the first divergence of a prompt is judged: what follows it answers another text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tuner.measure.lossless_levels import ALPHA

#: Gaps up to these are ties that rounding decides, nats. bfloat16 spaces logits between 32 and 64 by 0.25, and two
#: such steps meet in a difference; float32 rounds a million times finer, and what is left are sums in another order.
TIE_16_BIT, TIE_32_BIT = 0.5, 0.05
#: Off's own gaps may raise that so many times; where off strays further from itself, it is no rounding either.
MOST_RAISED = 2

Token = int | str


@dataclass(frozen=True, slots=True)
class GreedyAnswer:
    """One prompt's tokens at temperature 0. `scores[i]`: log-probabilities of the likeliest tokens at position i.

    `ended`: the model ended it; else the cap on tokens did. Without log-probabilities `scores` is empty.
    """

    prompt: str
    tokens: tuple[Token, ...]
    ended: bool = False
    scores: tuple[Mapping[Token, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first position where two answers part. `gap`: how much likelier the first server found its own token than
    the other's, nats; `at_least`: the other's was not among the listed ones, so the gap is larger. None: not told."""

    prompt: str
    position: int
    own: Token | None
    other: Token | None
    gap: float | None = None
    at_least: bool = False


@dataclass(frozen=True, slots=True)
class GreedyResult:
    """Off against speculation, and off against itself at another concurrency.

    `tolerance`: the gap up to which a divergence is a tie; raised to the largest gap of off against itself, as far as
    that may be a tie too.
    `p_value`: one-sided Fisher test that speculation parts from off more often than off from itself; `level`: this
    setting's share of the error, which it is held against.
    """

    prompts: int
    tokens: int
    divergences: tuple[Divergence, ...]
    floor_prompts: int
    floor: tuple[Divergence, ...]
    tolerance: float
    p_value: float
    level: float = ALPHA

    @property
    def faults(self) -> tuple[Divergence, ...]:
        """Divergences that no rounding explains, the largest gap first."""
        beyond = [d for d in self.divergences if d.gap is not None and d.gap > self.tolerance]
        return tuple(sorted(beyond, key=lambda d: -(d.gap or 0.0)))

    @property
    def unexplained(self) -> int:
        """Divergences of which it was not told whether their gap is a tie."""
        return sum(d.gap is None or (d.at_least and d.gap <= self.tolerance) for d in self.divergences)

    @property
    def void(self) -> bool:
        """Off parts from itself by more than any tie: what speculation does then cannot be told from that."""
        return any(d.gap is not None and d.gap > self.tolerance for d in self.floor)

    @property
    def failed(self) -> bool:
        """A gap beyond a tie; or, where gaps were not told, divergences more often than off's own."""
        return not self.void and (bool(self.faults) or (self.unexplained > 0 and self.more_often))

    @property
    def restless(self) -> bool:
        """Ties alone, but more often than off's own: no fault, and not what off does either."""
        return not self.void and not self.failed and self.more_often

    @property
    def more_often(self) -> bool:
        return self.p_value < self.level


def compare_greedy(
    off: Sequence[GreedyAnswer],
    again: Sequence[GreedyAnswer],
    spec: Sequence[GreedyAnswer],
    tolerance: float = TIE_16_BIT,
    alpha: float = ALPHA,
) -> GreedyResult:
    """`off` against `spec`, with `again` (off at another concurrency) as the floor; paired by prompt. `alpha`: this
    comparison's share of the error."""
    floor_pairs, pairs = paired(off, again), paired(off, spec)
    floor = tuple(d for a, b in floor_pairs if (d := first_divergence(a, b)))
    found = tuple(d for a, b in pairs if (d := first_divergence(a, b)))
    own = max((d.gap for d in floor if d.gap is not None), default=0.0)
    return GreedyResult(
        prompts=len(pairs),
        tokens=sum(len(b.tokens) for _, b in pairs),
        divergences=found,
        floor_prompts=len(floor_pairs),
        floor=floor,
        tolerance=max(tolerance, own) if own <= MOST_RAISED * tolerance else tolerance,
        p_value=more_often(len(found), len(pairs), len(floor), len(floor_pairs)),
        level=alpha,
    )


def paired(
    first: Sequence[GreedyAnswer], second: Sequence[GreedyAnswer]
) -> tuple[tuple[GreedyAnswer, GreedyAnswer], ...]:
    """Answers to the same prompt; prompts that either side lacks are left out."""
    others = {answer.prompt: answer for answer in second}
    return tuple((answer, others[answer.prompt]) for answer in first if answer.prompt in others)


def first_divergence(own: GreedyAnswer, other: GreedyAnswer) -> Divergence | None:
    """None where the answers agree. An answer that stops where the other goes on parts there, unless its cap did it."""
    both = min(len(own.tokens), len(other.tokens))
    position = next((i for i in range(both) if own.tokens[i] != other.tokens[i]), both)
    if position == both:
        shorter = own if len(own.tokens) < len(other.tokens) else other
        if len(own.tokens) == len(other.tokens) or not shorter.ended:
            return None
    mine, theirs = _at(own.tokens, position), _at(other.tokens, position)
    gap, at_least = _gap(own, position, mine, theirs)
    return Divergence(own.prompt, position, mine, theirs, gap, at_least)


def more_often(diverged: int, of: int, floor: int, floor_of: int) -> float:
    """Fisher's exact test, one-sided: the chance of so many or more of all divergences on the first side, by luck.

    Hypergeometric tail with all margins fixed (Fisher 1934); 1 where a side is empty.
    """
    if not of or not floor_of:
        return 1.0
    from scipy.stats import hypergeom

    return float(hypergeom.sf(diverged - 1, of + floor_of, diverged + floor, of))


def _at(tokens: Sequence[Token], position: int) -> Token | None:
    return tokens[position] if position < len(tokens) else None


def _gap(own: GreedyAnswer, position: int, mine: Token | None, theirs: Token | None) -> tuple[float | None, bool]:
    """(gap, at_least) under the first server; an end that no token stands for has no log-probability."""
    listed = own.scores[position] if position < len(own.scores) else {}
    if mine is None or theirs is None or mine not in listed:
        return None, False
    if theirs in listed:
        return max(0.0, listed[mine] - listed[theirs]), False
    return listed[mine] - min(listed.values()), True
