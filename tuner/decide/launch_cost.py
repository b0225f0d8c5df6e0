"""How long a launch will take, from the ones that were made: its start, and its cells at the pace it is expected."""

from __future__ import annotations

from collections.abc import Mapping

from tuner.decide.evidence import Evidence
from tuner.measure.records import Cell, CellKey
from tuner.spec.speculation import SpecConfig


def launch_seconds(evidence: Evidence, spec: SpecConfig, gains: Mapping[CellKey, float] | None = None) -> float | None:
    """Start-up as launches of the same method took (or any), and every cell as long as off's over its gain.

    None where no launch was timed. `gains`: expected, over off; 1 where nothing is expected.
    """
    ready = [o.trial.ready_s for o in evidence.tried if o.spec.method == spec.method and o.trial.ready_s is not None]
    ready = ready or [o.trial.ready_s for o in evidence.tried if o.trial.ready_s is not None]
    cells_s = 0.0
    for key in evidence.keys:
        one = evidence.baseline(key)
        cell = one.trial.cell(key) if one else None
        cells_s += cell_seconds(cell) / (gains or {}).get(key, 1.0) if cell else 0.0
    return sum(ready) / len(ready) + cells_s if ready else None


def cell_seconds(cell: Cell) -> float:
    """From the first request sent to the last one ended, warm-up and drain included."""
    return max((r.sent_s + r.ended_s for r in cell.requests), default=0.0)
