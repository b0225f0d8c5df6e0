"""What a night planned and did not measure, from the journals of its studies."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tuner.decide.nights import EVERYTHING
from tuner.decide.nights_gates import Unmeasured
from tuner.errors import UserError
from tuner.measure.records import BASELINE, CLOSING, CellKey, Load
from tuner.run.history_rows import label_of
from tuner.run.journal import Event
from tuner.run.question import loads_of
from tuner.run.start import Resolved
from tuner.run.store import StudyStore
from tuner.run.sweep_store import NightStore, is_night
from tuner.spec.candidates import Arm
from tuner.spec.speculation import OFF, SpecConfig
from tuner.spec.workload import Workload

#: A setting in one of its roles: off is launched as the baseline and once more at the end.
Launched = tuple[SpecConfig, str]


def unmeasured(folder: Path) -> tuple[Unmeasured, ...]:
    """Of a night or of a study: every setting that was asked for and lacks a cell, or whose last launch ended badly."""
    if is_night(folder):
        studies = [(folder / str(told["folder"]), told) for told in NightStore.read(folder).header.studies]
    else:
        studies = [(folder, {})]
    return tuple(one for path, told in studies for one in _of_study(path, told))


def _of_study(folder: Path, told: Mapping[str, Any]) -> Iterator[Unmeasured]:
    try:
        store = StudyStore.read(folder)
        events = store.events()
    except UserError:
        yield Unmeasured(str(told.get("label", folder.name)), EVERYTHING, (), failed=False)
        return
    label, workload = str(told.get("label", store.header.name)), Workload.model_validate(store.header.workload)
    statuses, done = _launches(events)
    for spec, role in _asked(store, workload, statuses, exhaustive=bool(told.get("exhaustive"))):
        ended = statuses.get((spec, role), [])
        missing = tuple(key for key in _keys(workload, role) if key not in done.get((spec, role), set()))
        well = ended[-1:] == ["ok"]
        if missing or not well:
            failed = any(status.startswith("failed") for status in ended)
            yield Unmeasured(label, label_of(spec), missing, failed, again=role == CLOSING, asked=well)


def _launches(events: Sequence[Event]) -> tuple[dict[Launched, list[str]], dict[Launched, set[CellKey]]]:
    """How each setting's launches ended, in order and empty for one that did not, and the cells they finished."""
    numbers: dict[int, Launched] = {}
    ended: dict[Launched, dict[int, str]] = {}
    done: dict[Launched, set[CellKey]] = {}
    for event in events:
        if event["event"] == "trial_started":
            numbers[event["number"]] = one = (SpecConfig.from_dict(event["spec"]), str(event["role"]))
            ended.setdefault(one, {})[event["number"]] = ""
        elif event["event"] == "cell_done":
            key = event["key"]
            cell = CellKey(Load(key["concurrency"], key["rate"]), key["temperature"])
            done.setdefault(numbers[event["number"]], set()).add(cell)
        elif event["event"] == "trial_ended":
            ended[numbers[event["number"]]][event["number"]] = str(event["status"])
    return {one: list(statuses.values()) for one, statuses in ended.items()}, done


def _asked(
    store: StudyStore, workload: Workload, launched: Mapping[Launched, object], *, exhaustive: bool
) -> dict[Launched, None]:
    """What was launched; of an exhaustive study also what its launches had room for and never was, where its journal
    goes so far: one that was killed before lacks off, which is enough."""
    asked = dict.fromkeys([(OFF, BASELINE), *launched])
    if exhaustive:
        arms: Sequence[Arm] = ()
        with contextlib.suppress(UserError):
            arms = Resolved.read(store).arms
        settings = [spec for arm in arms for spec in arm.configs][: max(0, workload.budget.launches - 2)]
        asked |= dict.fromkeys((spec, "explore") for spec in settings)
    return asked


def _keys(workload: Workload, role: str) -> list[CellKey]:
    """The cells of a launch, as `keys_for` has them of a resolved workload."""
    temperatures = list(dict.fromkeys(workload.sampling.temperatures))
    return [
        CellKey(load, t) for t in (temperatures[:1] if role == CLOSING else temperatures) for load in loads_of(workload)
    ]
