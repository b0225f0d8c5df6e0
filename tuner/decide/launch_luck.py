"""How much two launches of one setting differ as a whole: what a claim must stand above, beside its requests' spread.

A setting is launched once. Its requests tell how sure its figures are in that launch; they do not tell what another
launch of it would give (placement, clocks, a neighbour). Off, launched twice, does, with one degree of freedom a study.
"""

from __future__ import annotations

import math

from tuner.decide.evidence import Evidence
from tuner.measure.statistics import TIE_MARGIN, Estimate

#: Held before off was launched again: two launches of one setting differ by as much as is called a tie.
PRIOR_SD = TIE_MARGIN
#: So many drifts of off weigh as much as the prior.
PRIOR_WEIGHT = 3.0


def launch_luck(evidence: Evidence) -> float:
    """Standard deviation of the log of a ratio of two launches: prior and drift of off, as variances.

    All loads were measured in the same two launches of off, so together they count once.
    """
    drifts = [drift for load in dict.fromkeys(key.load for key in evidence.keys) if (drift := evidence.drift(load))]
    seen = [_variance(drift) for drift in drifts if drift.low > 0]
    if not seen:
        return PRIOR_SD
    return math.sqrt((PRIOR_WEIGHT * PRIOR_SD**2 + max(0.0, sum(seen) / len(seen))) / (PRIOR_WEIGHT + 1))


def _variance(drift: Estimate) -> float:
    """Of the log, less what its requests explain."""
    return float(math.log(drift.value) ** 2 - drift.log_sd**2)
