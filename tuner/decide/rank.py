"""From evidence to advice: a verdict for every cell, and one setting for all of them. `off` may win both."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tuner.decide.evidence import Evidence
from tuner.decide.overall import Overall, geometric_mean, overall_of
from tuner.decide.verdict import Comparison, Verdict, missed_slos, ratio_text, verdicts_of
from tuner.spec.speculation import OFF

__all__ = [
    "Comparison", "Overall", "Recommendation", "Verdict", "geometric_mean", "missed_slos", "ratio_text", "recommend",
    "withheld",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Recommendation:
    verdicts: tuple[Verdict, ...]
    overall: Overall


def recommend(evidence: Evidence) -> Recommendation:
    """A verdict for every cell that off was measured in, and one for all of them."""
    verdicts = verdicts_of(evidence)
    return Recommendation(verdicts, overall_of(evidence, verdicts))


def withheld(found: Recommendation, reason: str) -> Recommendation:
    """The same where nothing may be advised: no setting is held against off, and off is no finding."""
    verdicts = tuple(
        replace(
            verdict, best=OFF, ratio=None, reason=reason, ties=(),
            comparisons=tuple(c for c in verdict.comparisons if c.spec.is_off),
        )
        for verdict in found.verdicts
    )  # fmt: skip
    return Recommendation(verdicts, Overall(OFF, None, None, None, reason))
