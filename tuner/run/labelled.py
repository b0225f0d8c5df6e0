"""Trials with what the losslessness gate found: a faulty setting's cells say so, at the temperatures concerned."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from tuner.measure.lossless import Verified
from tuner.measure.lossless_records import verified_from_dict
from tuner.measure.records import Trial
from tuner.run.journal import Event
from tuner.spec.speculation import SpecConfig

#: The journal's event that says whether a setting's output is the target's.
VERIFIED = "verified"


def with_faults(trials: tuple[Trial, ...], events: Iterable[Event]) -> tuple[Trial, ...]:
    """Every launch of a setting, also those before it was tested."""
    found = {}
    for event in events:
        if event["event"] == VERIFIED:
            verified = verified_from_dict(event["verified"])
            if not verified.ok:
                found[event["engine"], SpecConfig.from_dict(event["spec"])] = verified
    return tuple(_labelled(trial, found.get((trial.engine, trial.spec))) for trial in trials)


def _labelled(trial: Trial, verified: Verified | None) -> Trial:
    if verified is None:
        return trial
    faults = [cell.lossy or verified.fault(cell.key.temperature) for cell in trial.cells]
    cells = tuple(dataclasses.replace(cell, lossy=why) for cell, why in zip(trial.cells, faults, strict=True))
    return dataclasses.replace(trial, cells=cells)
