"""How long a launch will take, from the ones that were made: its start, and its cells at the pace it is expected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tuner.decide.evidence import Evidence
from tuner.measure.records import Cell, CellKey
from tuner.spec.speculation import OFF, SpecConfig


def launch_seconds(
    evidence: Evidence,
    spec: SpecConfig,
    gains: Mapping[CellKey, float] | None = None,
    keys: Sequence[CellKey] | None = None,
) -> float | None:
    """Start-up as launches of the same method took (or any), and every cell as long as off's over its gain.

    None where no launch was timed. `gains`: expected, over off; 1 where nothing is expected. `keys`: the launch's
    cells, None for all.
    """
    ready = [o.trial.ready_s for o in evidence.tried if o.spec.method == spec.method and o.trial.ready_s is not None]
    ready = ready or [o.trial.ready_s for o in evidence.tried if o.trial.ready_s is not None]
    cells_s = 0.0
    for key in evidence.keys if keys is None else keys:
        one = evidence.baseline(key)
        cell = one.trial.cell(key) if one else None
        cells_s += cell_seconds(cell) / (gains or {}).get(key, 1.0) if cell else 0.0
    return sum(ready) / len(ready) + cells_s if ready else None


def closing_seconds(evidence: Evidence) -> float | None:
    """Of off's last run, which measures one temperature: the first one's."""
    first = next((key.temperature for key in evidence.keys), None)
    keys = [key for key in evidence.keys if key.temperature == first]
    return launch_seconds(evidence, OFF, keys=keys)


def cell_seconds(cell: Cell) -> float:
    """From the first request sent to the last one ended, warm-up and drain included."""
    return max((r.sent_s + r.ended_s for r in cell.requests), default=0.0)
