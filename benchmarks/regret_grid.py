"""A full grid measured on a real engine, and the planner replayed on it.

    python benchmarks/regret_grid.py measure [benchmarks/grid_cpu.yaml] [--reports reports]    hours; resumable
    python benchmarks/regret_grid.py replay reports/<study> [--json]                           no engine

Replaying answers every launch the planner asks for from the grid's records. Regret at a load is how much slower, by
the grid's own median TPOT, the advised setting is than the best of the grid; `tie`: the grid's interval of the two
contains 1, or they differ by under one percent. Predictions are held against cells the planner did not launch.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tuner.decide.evidence import Evidence, gather, with_trial
from tuner.decide.plan import Ask, ask, predictions
from tuner.decide.rank import recommend
from tuner.measure.records import CellKey, Trial
from tuner.measure.statistics import is_tie
from tuner.spec.candidates import Arm
from tuner.spec.speculation import OFF, SpecConfig


@dataclass(frozen=True)
class Outcome:
    """The planner at one load, by the grid's own figures."""

    key: CellKey
    chosen: SpecConfig
    best: SpecConfig
    regret: float
    tie: bool


@dataclass(frozen=True)
class Replay:
    outcomes: tuple[Outcome, ...]
    launches: int
    settings: int
    errors: tuple[float, ...]

    def to_dict(self) -> dict[str, object]:
        return {
            "launches": self.launches,
            "launch_share": self.launches / self.settings,
            "mean_regret": float(np.mean([one.regret for one in self.outcomes])),
            "predicted_median_error": float(np.median(self.errors)) if self.errors else None,
            "unlaunched_predictions": len(self.errors),
            "loads": [
                {
                    "load": one.key.load.text, "temperature": one.key.temperature, "chosen": one.chosen.label,
                    "best": one.best.label, "regret": one.regret, "tie": one.tie,
                }
                for one in self.outcomes
            ],
        }  # fmt: skip


def replay(trials: Sequence[Trial], arms: Sequence[Arm], objective: str, budget: int, seed: int) -> Replay:
    """`trials`: a full grid, off at least once. The second off of the grid answers off again, if there is one."""
    grid = gather(trials, objective, seed=seed)
    evidence = gather([], objective, seed=seed)
    while (asked := ask(arms, evidence, budget - len(evidence.tried))) is not None:
        evidence = with_trial(evidence, _answer(trials, asked, len(evidence.tried) + 1))
    advised = {verdict.key: verdict.best for verdict in recommend(evidence).verdicts}
    outcomes = tuple(_outcome(grid, key, advised.get(key, OFF)) for key in grid.keys)
    return Replay(outcomes, len(evidence.tried), len(grid.specs()), tuple(_errors(grid, arms, evidence)))


def _answer(trials: Sequence[Trial], asked: Ask, number: int) -> Trial:
    from dataclasses import replace

    same = [trial for trial in trials if trial.spec == asked.spec]
    if not same:
        return Trial(number, asked.spec, trials[0].engine, status="failed: not in the grid", role=asked.role)
    return replace(same[-1 if asked.role == "baseline-again" else 0], number=number, role=asked.role, why=asked.why)


def _outcome(grid: Evidence, key: CellKey, chosen: SpecConfig) -> Outcome:
    medians = {
        spec: cell.tpot_p50_s.value
        for spec in grid.specs()
        if (one := grid.best_trial(spec, key)) and (cell := one.cells[key]).tpot_p50_s
    }
    best = min(medians, key=lambda spec: medians[spec])
    ratio = grid.ratio(chosen, best, key) if chosen != best else None
    tie = chosen == best or (ratio is not None and is_tie(ratio))
    return Outcome(key, chosen, best, medians[chosen] / medians[best] - 1, tie)


def _errors(grid: Evidence, arms: Sequence[Arm], evidence: Evidence) -> list[float]:
    launched = {one.spec for one in evidence.tried}
    found = []
    for p in predictions(arms, evidence):
        one = grid.best_trial(p.spec, p.key)
        if p.spec not in launched and one is not None and (measured := one.cells[p.key].tpot_mean_s):
            found.append(abs(p.tpot_s.value / measured.value - 1))
    return found


def measure(workload: Path, reports: Path) -> Path:
    """Launch every setting once, off first and last; goes on with an unfinished study of the same workload."""
    from tuner.cli.progress import progress
    from tuner.errors import UserError
    from tuner.run.preflight import read_question
    from tuner.run.signals import unwinding_signals
    from tuner.run.start import open_study
    from tuner.run.trial import TrialPlan, run_trial

    question = read_question(workload)
    try:
        store = open_study(question, reports, resume=True)
    except UserError:
        store = open_study(question, reports, resume=False)
    specs = [spec for arm in question.arms for spec in arm.configs]
    asks = [Ask(OFF, "baseline", "the full grid: off first")]
    asks += [Ask(spec, "explore", "the full grid: every setting once") for spec in specs]
    asks += [Ask(OFF, "baseline-again", "the full grid: off last")]
    with unwinding_signals(), store, progress() as notify:
        for asked in asks:
            done = {(t.spec, t.role) for t in store.trials() if t.status != "interrupted"}
            if (asked.spec, asked.role) not in done:
                plan = TrialPlan(len(store.trials()) + 1, asked, question.environments[0], question.keys)
                asyncio.run(run_trial(question, plan, store, notify))
        store.study_ended("complete")
    return store.folder


def replay_study(folder: Path) -> Replay:
    from tuner.run.start import Resolved
    from tuner.run.store import StudyStore

    store = StudyStore.read(folder)
    arms = Resolved.read(store).arms
    settings = 1 + sum(len(arm.configs) for arm in arms)
    return replay(store.trials(), arms, str(store.header.workload["objective"]), settings // 3, store.header.seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    measured = commands.add_parser("measure")
    measured.add_argument("workload", type=Path, nargs="?", default=Path(__file__).with_name("grid_cpu.yaml"))
    measured.add_argument("--reports", type=Path, default=Path("reports"))
    replayed = commands.add_parser("replay")
    replayed.add_argument("study", type=Path)
    replayed.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.command == "measure":
        folder = measure(options.workload, options.reports)
        print(f"measured: {folder}; now: python {Path(__file__).name} replay {folder}")
        return
    told = replay_study(options.study).to_dict()
    print(json.dumps(told, indent=2) if options.json else _text(told))


def _text(told: dict[str, object]) -> str:
    loads = told["loads"]
    assert isinstance(loads, list)
    lines = [f"{told['launches']} launches, {told['launch_share']:.0%} of the grid's settings"]
    for one in loads:
        tie = " (a tie by the grid's own interval)" if one["tie"] and one["regret"] > 0 else ""
        lines.append(f"{one['load']}: {one['chosen']}, best {one['best']}, regret {one['regret']:.1%}{tie}")
    if told["predicted_median_error"] is not None:
        count, error = told["unlaunched_predictions"], told["predicted_median_error"]
        lines.append(f"mean TPOT of {count} cells that were not launched: median error {error:.1%}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
