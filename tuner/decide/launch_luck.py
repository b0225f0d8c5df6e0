"""How much two launches of one setting differ as a whole: what a claim must stand above, beside its requests' spread.

A setting is launched once. Its requests tell how sure its figures are in that launch; they do not tell what another
launch of it would give (placement, clocks, a neighbour). Off, launched twice, does, with one degree of freedom a study.
"""

from __future__ import annotations

import math

from tuner.decide.evidence import Evidence
from tuner.measure.statistics import Z95, Estimate

#: Held of an engine before its off was launched again: one launch's pace differs from another's by half a percent.
PRIOR_SD = 0.005
#: So many drifts of off weigh as much as the prior.
PRIOR_WEIGHT = 3.0


def launch_luck(evidence: Evidence) -> float:
    """Standard deviation of the log of a ratio of two launches: prior and drift of off, as variances.

    All loads were measured in the same two launches of off, so together they count once.
    """
    drifts = [drift for load in dict.fromkeys(key.load for key in evidence.keys) if (drift := evidence.drift(load))]
    seen = [_variance(drift) for drift in drifts if drift.low > 0]
    prior = 2 * PRIOR_SD**2
    if not seen:
        return math.sqrt(prior)
    return math.sqrt((PRIOR_WEIGHT * prior + max(0.0, sum(seen) / len(seen))) / (PRIOR_WEIGHT + 1))


def _variance(drift: Estimate) -> float:
    """Of the log, less what its requests explain."""
    requests = math.log(drift.high / drift.low) / (2 * Z95)
    return float(math.log(drift.value) ** 2 - requests**2)
