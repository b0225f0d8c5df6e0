"""From evidence to advice: a verdict for every cell, and one setting for all of them. `off` may win both."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.decide.evidence import Evidence
from tuner.decide.overall import Overall, geometric_mean, overall_of
from tuner.decide.verdict import Comparison, Verdict, missed_slos, ratio_text, verdicts_of

__all__ = [
    "Comparison", "Overall", "Recommendation", "Verdict", "geometric_mean", "missed_slos", "ratio_text", "recommend",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Recommendation:
    verdicts: tuple[Verdict, ...]
    overall: Overall


def recommend(evidence: Evidence) -> Recommendation:
    """A verdict for every cell that off was measured in, and one for all of them."""
    verdicts = verdicts_of(evidence)
    return Recommendation(verdicts, overall_of(evidence, verdicts))
