"""All trials of a study with their cells' figures: the one thing recommendations are made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tuner.measure.compare import compare
from tuner.measure.records import Cell, CellKey, Load, Trial
from tuner.measure.statistics import Estimate
from tuner.measure.summary import CellSummary, summarise
from tuner.measure.validity import Finding, check_cell
from tuner.spec.speculation import SpecConfig


@dataclass(frozen=True, slots=True)
class Tried:
    """A trial with the figures of its cells. A cell with a finding that blocks is in `findings` and not in `cells`."""

    trial: Trial
    cells: Mapping[CellKey, CellSummary]
    findings: Mapping[CellKey, tuple[Finding, ...]] = field(default_factory=dict)

    @property
    def spec(self) -> SpecConfig:
        return self.trial.spec

    def lossy(self, key: CellKey) -> str | None:
        """Why the cell's output is known not to be the target's."""
        cell = self.trial.cell(key)
        return cell.lossy if cell else None


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was measured, and on which terms it is compared. `weights`: shares of the traffic by cell, relative; cells
    that are not named count 1."""

    tried: tuple[Tried, ...]
    objective: str = "tpot_p50"
    slo_ms: tuple[tuple[str, float], ...] = ()
    seed: int = 0
    weights: tuple[tuple[CellKey, float], ...] = ()

    def weight_of(self, key: CellKey) -> float:
        return next((weight for one, weight in self.weights if one == key), 1.0)

    @property
    def keys(self) -> tuple[CellKey, ...]:
        """Cells in the order they were first measured."""
        return tuple(dict.fromkeys(key for one in self.tried for key in one.cells))

    @property
    def baselines(self) -> tuple[Tried, ...]:
        return tuple(one for one in self.tried if one.spec.is_off)

    def baseline(self, key: CellKey) -> Tried | None:
        return next((one for one in self.baselines if key in one.cells), None)

    def specs(self) -> tuple[SpecConfig, ...]:
        """Configurations with at least one measured cell, off first."""
        seen = dict.fromkeys(one.spec for one in self.tried if one.cells)
        return tuple(sorted(seen, key=lambda spec: not spec.is_off))

    def best_trial(self, spec: SpecConfig, key: CellKey) -> Tried | None:
        """The first trial of `spec` that has the cell."""
        return next((one for one in self.tried if one.spec == spec and key in one.cells), None)

    def ratio(self, first: SpecConfig, second: SpecConfig, key: CellKey) -> Estimate | None:
        """How many times better `second` is than `first` in a cell, paired; None where either is missing."""
        a, b = self.best_trial(first, key), self.best_trial(second, key)
        if a is None or b is None:
            return None
        cells: list[Cell | None] = [a.trial.cell(key), b.trial.cell(key)]
        if cells[0] is None or cells[1] is None:
            return None
        return compare(cells[0], cells[1], self.objective, dict(self.slo_ms), self.seed)

    def drift(self, load: Load) -> Estimate | None:
        """The last off run over the first at one load, in the objective: 1 is no drift. None with a single off run."""
        for key in (k for k in self.keys if k.load == load):
            runs = [one.trial.cell(key) for one in self.baselines if key in one.cells]
            cells = [cell for cell in runs if cell is not None]
            if len(cells) >= 2:
                return compare(cells[0], cells[-1], self.objective, dict(self.slo_ms), self.seed)
        return None


def gather(
    trials: Sequence[Trial],
    objective: str,
    slo_ms: Mapping[str, float] | None = None,
    seed: int = 0,
    weights: Mapping[CellKey, float] | None = None,
) -> Evidence:
    """Check every cell, and summarise those whose figures can be."""
    slo = dict(slo_ms or {})
    tried = tuple(_tried(trial, slo, seed) for trial in trials)
    return Evidence(tried, objective, tuple(sorted(slo.items())), seed, tuple((weights or {}).items()))


def with_trial(evidence: Evidence, trial: Trial) -> Evidence:
    """The evidence with one more trial; what was summarised before is kept."""
    return replace(evidence, tried=(*evidence.tried, _tried(trial, dict(evidence.slo_ms), evidence.seed)))


def _tried(trial: Trial, slo: Mapping[str, float], seed: int) -> Tried:
    findings = {cell.key: check_cell(cell, trial.spec) for cell in trial.cells}
    sound = [c for c in trial.cells if c.completed and not any(f.blocks for f in findings[c.key])]
    return Tried(trial, {cell.key: summarise(cell, trial.spec, slo, seed) for cell in sound}, findings)
