"""How far a run is, and what follows from it: learning rate and unrolled steps. Pure, no torch."""

from dataclasses import dataclass
from math import cos, pi

WARM_UP_STEPS = 40
LAST_RATE = 0.03
#: Share of a run with at most two unrolled steps: later ones learn little from a head that cannot draft one token yet.
SHORT_SHARE = 0.3


@dataclass(frozen=True)
class Budget:
    """Ends a run after `steps` optimiser steps or `minutes`, whichever is first; at least one is given."""

    steps: int | None
    minutes: float | None

    def done(self, step: int, elapsed_s: float) -> float:
        """Share of the run behind it, 0 to 1 and beyond. With steps alone it depends on nothing but the step."""
        by_step = step / self.steps if self.steps else 0.0
        by_time = elapsed_s / (60.0 * self.minutes) if self.minutes else 0.0
        return max(by_step, by_time)

    def left_s(self, done: float, elapsed_s: float) -> float | None:
        """Seconds to go at the pace so far; None before there is a pace."""
        return elapsed_s * (1.0 - done) / done if done > 0 else None


def learning_rate(peak: float, step: int, done: float) -> float:
    """Linear warm-up by steps, then half a cosine by `done` down to 3 % of the peak."""
    warm = min(1.0, (step + 1) / WARM_UP_STEPS)
    fall = 0.5 * (1.0 + cos(pi * min(1.0, max(0.0, done))))
    return peak * warm * (LAST_RATE + (1.0 - LAST_RATE) * fall)


def unrolled_steps(ttt: int, done: float) -> int:
    return min(2, ttt) if done < SHORT_SHARE else ttt
