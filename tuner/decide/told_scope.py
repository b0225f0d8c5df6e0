"""Which told rows speak for what will be served (temperature, GPUs and load carry nothing over), and their shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tuner.decide.told import Place, ToldRow
from tuner.measure.records import CellKey, Load


@dataclass(frozen=True, slots=True)
class Served:
    """What will be served; None and empty: nobody said. `weights`, `shares`: of the traffic by cell and by task."""

    temperatures: Sequence[float] | None = None
    tp: int | None = None
    loads: Sequence[Load] | None = None
    weights: Mapping[CellKey, float] = field(default_factory=dict)
    shares: Mapping[str, float] = field(default_factory=dict)

    def weight(self, place: Place) -> float:
        """Of a cell in the traffic; a row that does not tell its temperature or load stands for all of them."""
        concurrency, temperature, _, rate = place
        if not self.weights:
            return 1.0
        return sum(
            weight
            for key, weight in self.weights.items()
            if temperature in (None, key.temperature)
            and ((concurrency, rate) == (None, None) or (concurrency, rate) == (key.load.concurrency, key.load.rate))
        )


def carries_over(rows: Sequence[ToldRow], served: Served) -> tuple[tuple[ToldRow, ...], tuple[str, ...]]:
    """(rows that speak for it, why others do not). Acceptance falls as temperature rises, and the time of a step hangs
    on the GPUs and on how many requests run."""
    reasons: list[str] = []
    kept = _temperatures(tuple(rows), served.temperatures, reasons)
    if served.tp is not None and any(row.tp is not None for row in kept):
        here = tuple(row for row in kept if row.tp in (None, served.tp))
        if len(here) < len(kept):
            reasons.append(f"rows measured on other than {served.tp} GPUs are left out: step times do not carry over")
        kept = here
    kept = _loads(kept, served.loads, reasons)
    return tuple(_with_share(row, served.shares) for row in kept), tuple(reasons)


def _temperatures(rows: tuple[ToldRow, ...], asked: Sequence[float] | None, reasons: list[str]) -> tuple[ToldRow, ...]:
    if asked is None or all(row.temperature is None for row in rows):
        return rows
    measured = sorted({row.temperature for row in rows if row.temperature is not None})
    missing = [t for t in asked if t not in measured]
    if missing:
        shown = ", ".join(f"{t:g}" for t in measured)
        reasons.append(f"measured at temperature {shown} only: that does not carry over to {missing[0]:g}")
    return tuple(row for row in rows if row.temperature is None or row.temperature in asked)


def _loads(rows: tuple[ToldRow, ...], asked: Sequence[Load] | None, reasons: list[str]) -> tuple[ToldRow, ...]:
    told = dict.fromkeys(load for row in rows if (load := _load(row)) is not None)
    if asked is None or not told:
        return rows
    missing = [load for load in asked if load not in told]
    if missing and all(_load(row) is not None for row in rows):
        shown, wanted = ("; ".join(load.text for load in loads) for loads in (told, missing))
        reasons.append(f"measured at {shown}: step times do not carry over to {wanted}, which will be served")
    return tuple(row for row in rows if _load(row) is None or _load(row) in asked)


def _load(row: ToldRow) -> Load | None:
    if row.concurrency is None and row.rate is None:
        return None
    return Load(row.concurrency, row.rate)


def _with_share(row: ToldRow, shares: Mapping[str, float]) -> ToldRow:
    """A row's own share counts; else the workload's, where a prompt set has the task's name."""
    return replace(row, share=shares[row.task]) if row.share is None and row.task in shares else row
