"""How long launches and cells take in this study, from the ones that were measured, and what the time left affords."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean

from tuner.decide.launch_cost import cell_seconds
from tuner.measure.records import Trial


@dataclass(frozen=True, slots=True)
class Pace:
    """Mean seconds until an engine serves, and of each cell; None where none was measured yet."""

    launch_s: float | None
    cell_s: float | None

    def launch_of(self, cells: int) -> float:
        """Seconds a launch with so many cells is expected to take; 0 while nothing tells."""
        return (self.launch_s or 0.0) + cells * (self.cell_s or 0.0)

    @property
    def text(self) -> str:
        launch = "not measured" if self.launch_s is None else f"{self.launch_s:.0f} s"
        cell = "not measured" if self.cell_s is None else f"{self.cell_s:.0f} s"
        return f"{launch} a launch, {cell} a cell"


def pace_of(trials: Sequence[Trial]) -> Pace:
    ready = [trial.ready_s for trial in trials if trial.ready_s is not None]
    cells = [cell_seconds(cell) for trial in trials for cell in trial.cells]
    return Pace(mean(ready) if ready else None, mean(cells) if cells else None)


@dataclass(frozen=True, slots=True)
class Deadline:
    """A point of the wall clock, so that it holds on any machine that keeps time. `now`: for tests."""

    unix_s: float
    now: Callable[[], float] = time.time

    @property
    def left_s(self) -> float:
        return self.unix_s - self.now()

    def earlier(self, seconds: float) -> Deadline:
        return Deadline(self.unix_s - seconds, self.now)
