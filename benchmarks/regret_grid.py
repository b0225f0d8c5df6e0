"""A full grid measured on a real engine, and the planner replayed on it.

    python benchmarks/regret_grid.py measure [--minutes 45]    launches engines; goes on where it was ended
    python benchmarks/regret_grid.py replay [--json]           no engine

Both take `--study`, the folder of the grid (reports/example-grid-cpu). A launch that was ended half-way, or that
failed, is made up for by a new launch of the cells it lacks when `measure` runs again.

Replaying answers every launch the planner asks for from the grid's records. Regret at a load is how much slower, by
the grid's own median TPOT, the advised setting is than the best of the grid; `gain` is the best over the advised as the
rules state it from the whole grid, paired by prompts, its interval that of the best of so many comparisons and of two
launches that differ by luck. `tie`: that interval holds 1, or the two differ by under one percent. `of_all`: what the
same rules advise from all launches of the grid. Predictions are held against cells the planner did not launch.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tuner.decide.evidence import Evidence, gather, with_trial
from tuner.decide.launch_luck import launch_luck
from tuner.decide.plan import Ask, ask, predictions
from tuner.decide.rank import recommend
from tuner.decide.verdict import Chance, comparisons_made
from tuner.measure.records import CellKey, Trial
from tuner.measure.statistics import Estimate, is_tie
from tuner.spec.candidates import Arm
from tuner.spec.speculation import OFF, SpecConfig

if TYPE_CHECKING:
    from tuner.run.question import Question
    from tuner.run.store import StudyStore

STUDY = Path(__file__).parent.parent / "reports" / "example-grid-cpu"


@dataclass(frozen=True)
class Outcome:
    """The planner at one load, by the grid's own figures."""

    key: CellKey
    chosen: SpecConfig
    best: SpecConfig
    regret: float
    gain: Estimate | None
    of_all: SpecConfig

    @property
    def tie(self) -> bool:
        return self.gain is None or is_tie(self.gain)


@dataclass(frozen=True)
class Replay:
    outcomes: tuple[Outcome, ...]
    launches: int
    settings: int
    errors: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
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
                    "gain": asdict(one.gain) if one.gain else None, "of_all": one.of_all.label,
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
    advised, of_all = ({v.key: v.best for v in recommend(known).verdicts} for known in (evidence, grid))
    outcomes = tuple(_outcome(grid, key, advised.get(key, OFF), of_all.get(key, OFF)) for key in grid.keys)
    return Replay(outcomes, len(evidence.tried), len(grid.specs()), tuple(_errors(grid, arms, evidence)))


def _answer(trials: Sequence[Trial], asked: Ask, number: int) -> Trial:
    same = [trial for trial in trials if trial.spec == asked.spec]
    if not same:
        return Trial(number, asked.spec, trials[0].engine, status="failed: not in the grid", role=asked.role)
    return replace(same[-1 if asked.role == "baseline-again" else 0], number=number, role=asked.role, why=asked.why)


def whole(trials: Sequence[Trial]) -> list[Trial]:
    """One trial a setting and role: launches that made up for cells another one lacked are one with it."""
    merged: dict[tuple[SpecConfig, str], Trial] = {}
    for trial in trials:
        place = (trial.spec, trial.role)
        before = merged.get(place)
        if before is not None:
            known = {cell.key for cell in before.cells}
            cells = (*before.cells, *(cell for cell in trial.cells if cell.key not in known))
            trial = replace(before if before.ok else trial, cells=cells)
        merged[place] = trial
    return [replace(trial, status="ok") if trial.cells else trial for trial in merged.values()]


def _outcome(grid: Evidence, key: CellKey, chosen: SpecConfig, of_all: SpecConfig) -> Outcome:
    medians = {
        spec: cell.tpot_p50_s.value
        for spec in grid.specs()
        if (one := grid.best_trial(spec, key)) and (cell := one.cells[key]).tpot_p50_s and not one.lossy(key)
    }
    best = min(medians, key=lambda spec: medians[spec])
    ratio = grid.ratio(chosen, best, key) if chosen != best else None
    chance = Chance(comparisons_made(grid), launch_luck(grid))
    gain = None if ratio is None else chance.widened(ratio)
    return Outcome(key, chosen, best, medians[chosen] / medians[best] - 1, gain, of_all)


def _errors(grid: Evidence, arms: Sequence[Arm], evidence: Evidence) -> list[float]:
    launched = {one.spec for one in evidence.tried}
    found = []
    for p in predictions(arms, evidence):
        one = grid.best_trial(p.spec, p.key)
        if p.spec not in launched and one is not None and (measured := one.cells[p.key].tpot_mean_s):
            found.append(abs(p.tpot_s.value / measured.value - 1))
    return found


def grid_asks(arms: Sequence[Arm]) -> list[Ask]:
    specs = [spec for arm in arms for spec in arm.configs]
    return [
        Ask(OFF, "baseline", "the full grid: off first"),
        *(Ask(spec, "explore", "the full grid: every setting once") for spec in specs),
        Ask(OFF, "baseline-again", "the full grid: off last"),
    ]


def missing(asked: Ask, trials: Sequence[Trial], keys: Sequence[CellKey]) -> tuple[CellKey, ...]:
    """Cells no launch of this setting in this role has measured yet."""
    same = [trial for trial in trials if (trial.spec, trial.role) == (asked.spec, asked.role)]
    done = {cell.key for trial in same for cell in trial.cells}
    return tuple(key for key in keys if key not in done)


def measure(workload: Path, folder: Path, minutes: float) -> str:
    """Launch what is missing, off first and last; none begins so many minutes after the first. Returns the status."""
    from tuner.cli.progress import progress
    from tuner.run.device_lock import holding_engines
    from tuner.run.preflight import read_question
    from tuner.run.signals import unwinding_signals
    from tuner.run.trial import TrialPlan, run_trial

    question, status = read_question(workload), "complete"
    began_s: float | None = None
    held = holding_engines(
        [(one, question.options(one)) for one in question.environments[:1]], f"regret_grid {question.workload.name}"
    )
    with unwinding_signals(), held, _open(question, folder) as store, progress() as notify:
        for asked in grid_asks(question.arms):
            keys = missing(asked, store.trials(), question.keys)
            if not keys:
                continue
            began_s = began_s or time.monotonic()
            if time.monotonic() - began_s > minutes * 60:
                status = "stopped: the minutes are used up"
                break
            plan = TrialPlan(store.next_number, asked, question.environments[0], keys)
            if (ended := asyncio.run(run_trial(question, plan, store, notify))) != "ok":
                status = f"stopped: {asked.spec.label} {ended}"
                print(status)
        store.study_ended(status)
    return status


def _open(question: Question, folder: Path) -> StudyStore:
    """The grid's own folder, new or begun before with this very workload."""
    from tuner.errors import UserError
    from tuner.run.host import HostFacts
    from tuner.run.start import with_resolved
    from tuner.run.store import StudyStore
    from tuner.run.study_header import StudyHeader, workload_hash

    asked = question.workload.model_dump(mode="json")
    if (folder / "study.json").exists():
        store = StudyStore.open(folder)
        if store.header.workload_hash == workload_hash(asked):
            return with_resolved(store, question)
        store.close()
        raise UserError(f"{folder} holds another workload's grid: give --study another folder")
    environments = tuple(asdict(environment) for environment in question.environments)
    header = StudyHeader.new(asked, question.text, HostFacts.read(), environments)
    return with_resolved(StudyStore.create(folder, header), question)


def replay_study(folder: Path) -> Replay:
    from tuner.run.start import Resolved
    from tuner.run.store import StudyStore

    store = StudyStore.read(folder)
    arms = Resolved.read(store).arms
    settings = 1 + sum(len(arm.configs) for arm in arms)
    return replay(
        whole(store.trials()), arms, str(store.header.workload["objective"]), settings // 3, store.header.seed
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    measured = commands.add_parser("measure")
    measured.add_argument("workload", type=Path, nargs="?", default=Path(__file__).with_name("grid_cpu.yaml"))
    measured.add_argument("--minutes", type=float, default=45, help="begin no launch after so many minutes")
    replayed = commands.add_parser("replay")
    replayed.add_argument("--json", action="store_true")
    for command in (measured, replayed):
        command.add_argument("--study", type=Path, default=STUDY)
    options = parser.parse_args()
    if options.command == "measure":
        print(f"{options.study}: {measure(options.workload, options.study, options.minutes)}")
        return
    told = replay_study(options.study).to_dict()
    print(json.dumps(told, indent=2) if options.json else _text(told))


def _text(told: dict[str, Any]) -> str:
    lines = [f"{told['launches']} launches, {told['launch_share']:.0%} of the grid's settings"]
    for one in told["loads"]:
        lines.append(f"{one['load']}: {one['chosen']}, best {one['best']}, regret {one['regret']:.1%}{_gain(one)}")
        lines.append(f"  by the same rules from all launches: {one['of_all']}")
    if told["predicted_median_error"] is not None:
        count, error = told["unlaunched_predictions"], told["predicted_median_error"]
        lines.append(f"mean TPOT of {count} cells that were not launched: median error {error:.1%}")
    return "\n".join(lines)


def _gain(one: dict[str, Any]) -> str:
    if one["gain"] is None:
        return ""
    word = "a tie" if one["tie"] else "no tie"
    return "; {} over {}: {value:.2f}x [{low:.2f}, {high:.2f}], n = {n}, {}".format(
        one["best"], one["chosen"], word, **one["gain"]
    )


if __name__ == "__main__":
    from tuner.errors import TunerError

    try:
        main()
    except TunerError as error:
        raise SystemExit(f"Error: {error}") from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
