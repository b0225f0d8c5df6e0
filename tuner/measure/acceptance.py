"""Acceptance from what verify steps did: a_k, alpha_k, alpha, tau and the draft acceptance rate."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.measure.records import RequestRecord

#: Below this tau, over this many drafting steps, a draft does not work with its target (field cases C01, S11).
DEAD_TAU, DEAD_STEPS = 1.02, 200
#: And with nothing accepted at all in this many (field case C12): a_1 is then below 3 / 100 at 95 %.
NOTHING_IN_STEPS = 100


@dataclass(frozen=True, slots=True)
class AcceptanceCounts:
    """Counts that add over requests, and all that acceptance is made of.

    `reached[k-1]`: drafting steps in which the first k drafted tokens were all accepted; `full`: drafting steps that
    accepted everything they drafted (censored: they say nothing of the token after). `drafted` and `verify_steps`
    (drafting or not) are None where the source does not tell.
    """

    drafting_steps: int
    accepted: int
    reached: tuple[int, ...]
    full: int
    drafted: int | None = None
    verify_steps: int | None = None

    @property
    def n(self) -> int:
        return len(self.reached)

    @property
    def a(self) -> tuple[float, ...] | None:
        """Marginal acceptance a_1..a_N; None without a drafting step."""
        if not self.drafting_steps:
            return None
        return tuple(count / self.drafting_steps for count in self.reached)

    @property
    def alpha_by_position(self) -> tuple[float | None, ...] | None:
        """Conditional acceptance a_k / a_(k-1); None from the position no step reached."""
        if not self.drafting_steps:
            return None
        before = (self.drafting_steps, *self.reached[:-1])
        return tuple(now / prior if prior else None for now, prior in zip(self.reached, before, strict=True))

    @property
    def alpha(self) -> float | None:
        """Censored maximum likelihood under i.i.d.: accepted / (accepted + steps that ended in a rejection)."""
        trials = self.accepted + self.drafting_steps - self.full
        return self.accepted / trials if trials else None

    @property
    def draft_acceptance_rate(self) -> float | None:
        return self.accepted / self.drafted if self.drafted else None

    @property
    def tau(self) -> float | None:
        """Tokens emitted per verify step, bonus included; over all verify steps where these are known."""
        steps = self.verify_steps if self.verify_steps is not None else self.drafting_steps
        return 1 + self.accepted / steps if steps else None

    @property
    def drafting_share(self) -> float | None:
        """Share of verify steps in which anything was drafted."""
        return self.drafting_steps / self.verify_steps if self.verify_steps else None

    @property
    def dead(self) -> str | None:
        """What is said where the draft does not work with its target."""
        steps, accepted = self.drafting_steps, self.accepted
        low = steps >= DEAD_STEPS and 1 + accepted / steps <= DEAD_TAU
        if not low and (accepted or steps < NOTHING_IN_STEPS):
            return None
        return (
            f"{accepted} tokens accepted in {steps} drafting steps: the draft does not work with this target (wrong "
            "head or method, heads not loaded as trained, a vocabulary map, missing weights, or no chat template)"
        )

    def __add__(self, other: AcceptanceCounts) -> AcceptanceCounts:
        total = pool([self, other])
        assert total is not None
        return total


def tau_at(a: Sequence[float], n: int) -> float:
    """tau(n) = 1 + a_1 + ... + a_n from one run at a larger N. Autoregressive drafts only (DEFINITIONS, Formulas)."""
    if not 0 <= n <= len(a):
        raise ValueError(f"n = {n} is outside 0..{len(a)}, the positions that were measured")
    return 1 + sum(a[:n])


def draft_rate_of(tau: float, n: int) -> float:
    """accepted / drafted of a chain from its tau: (tau - 1) / n. SGLang logs tau / (n + 1) under a like name."""
    if n < 1 or not 1 <= tau <= n + 1:
        raise ValueError(f"tau {tau} is outside 1..{n + 1}")
    return (tau - 1) / n


def request_counts(request: RequestRecord, n: int) -> AcceptanceCounts | None:
    """One request's counts at `n` drafted tokens per step; None when its engine told nothing.

    Verify steps that drafted nothing are what the emitted tokens leave over: every step emits 1 + accepted, and the
    first token comes from the prefill. That misses some where the output limit cut the last step short; the stream
    shows them, unless it merged chunks: no step brings more than one, and the first is the prefill's.
    """
    spec = request.spec
    if spec is None:
        return None
    histogram = spec.histogram
    width = max(n, len(histogram) - 1)
    after = (0,) * (width + 1 - len(histogram)) + tuple(itertools.accumulate(reversed(histogram)))
    reached = tuple(reversed(after[:width]))
    if spec.accepted_by_step is not None and spec.drafted_by_step is not None:
        pairs = zip(spec.accepted_by_step, spec.drafted_by_step, strict=True)
        full = sum(accepted >= drafted for accepted, drafted in pairs)
    else:
        full = histogram[n] if len(histogram) > n else 0
    verify_steps = spec.verify_steps
    if verify_steps is None:
        left_over = max(0, request.n_out - 1 - spec.drafting_steps - spec.accepted)
        verify_steps = max(spec.drafting_steps + left_over, len(request.chunks) - 1)
    return AcceptanceCounts(spec.drafting_steps, spec.accepted, reached, full, spec.drafted, verify_steps)


def pool(counts: Sequence[AcceptanceCounts]) -> AcceptanceCounts | None:
    """Sum by verify step, never an average of requests' ratios; None of nothing."""
    if not counts:
        return None
    width = max(one.n for one in counts)
    return AcceptanceCounts(
        drafting_steps=sum(one.drafting_steps for one in counts),
        accepted=sum(one.accepted for one in counts),
        reached=tuple(map(sum, zip(*(_wide(one.reached, width) for one in counts), strict=True))),
        full=sum(one.full for one in counts),
        drafted=_sum([one.drafted for one in counts]),
        verify_steps=_sum([one.verify_steps for one in counts]),
    )


def cell_counts(requests: Sequence[RequestRecord], n: int) -> AcceptanceCounts | None:
    """Pooled counts of the requests whose engine told them."""
    return pool([c for c in (request_counts(r, n) for r in requests) if c is not None])


def _wide(values: tuple[int, ...], width: int) -> tuple[int, ...]:
    return values + (0,) * (width - len(values))


def _sum(values: Sequence[int | None]) -> int | None:
    """None where any part is not known."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
