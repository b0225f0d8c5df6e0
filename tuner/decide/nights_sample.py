"""A night as comparing needs it: each cell's requests as arrays, and what the cells were measured with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tuner.measure.records import CellKey
from tuner.measure.statistics import Array

#: Study, setting and cell: what is the same from night to night.
Place = tuple[str, str, CellKey]
OFF = "off"


@dataclass(frozen=True, slots=True, eq=False)
class CellSample:
    """Completed requests of one cell, one entry each; nan where a figure is not defined.

    `setting`: what the cell's launch is called, `off` without speculation; `again`: off's last run of the night.
    `blocked`: why its figures are none. `draft`: the name of its draft, which the facts of its study tell of.
    """

    study: str
    setting: str
    key: CellKey
    ids: tuple[tuple[int, str], ...]
    tpot_s: Array
    ttft_s: Array
    ended_s: Array
    n_out: Array
    accepted: Array
    steps: Array
    good: Array
    again: bool = False
    blocked: str = ""
    draft: str = ""

    @property
    def is_off(self) -> bool:
        return self.setting == OFF

    @property
    def place(self) -> Place:
        return (self.study, self.setting, self.key)

    def columns(self, metric: str) -> Array:
        """[requests, 1 or 2]: what a metric is made of."""
        made = {
            "tpot_p50": (self.tpot_s,),
            "ttft_p50": (self.ttft_s,),
            "goodput": (self.good,),
            "tau": (self.accepted, self.steps),
            "throughput": (self.n_out, self.ended_s),
        }[metric]
        return np.stack(made, axis=1)

    def at(self, order: Sequence[tuple[int, str]]) -> CellSample:
        """The same cell, with these requests in this order."""
        place = {one: i for i, one in enumerate(self.ids)}
        rows = [place[one] for one in order]
        return CellSample(
            self.study, self.setting, self.key, tuple(order), self.tpot_s[rows], self.ttft_s[rows],
            self.ended_s[rows], self.n_out[rows], self.accepted[rows], self.steps[rows], self.good[rows], self.again,
            self.blocked, self.draft,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class StudyFacts:
    """What a study was measured with. `models`: name and fingerprint of the target and every draft, None: not kept.

    `question`: equal for studies that ask the same. `host`, `resolved`: name and value of what explains figures.
    """

    engine: str
    version: str
    question: str
    models: tuple[tuple[str, str | None], ...] = ()
    host: tuple[tuple[str, str], ...] = ()
    resolved: tuple[tuple[str, str], ...] = ()
    load_1m: float | None = None


@dataclass(frozen=True, slots=True)
class NightSample:
    """One run: `cells` hold the first measurement of every place, `agains` those of off's last run."""

    run: str
    cells: tuple[CellSample, ...]
    agains: tuple[CellSample, ...] = ()
    facts: Mapping[str, StudyFacts] = field(default_factory=dict)

    def by_place(self) -> dict[Place, CellSample]:
        return {cell.place: cell for cell in reversed(self.cells)}

    def off_of(self, cell: CellSample) -> CellSample | None:
        return next((one for one in self.cells if one.place == (cell.study, OFF, cell.key)), None)
