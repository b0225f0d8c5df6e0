"""`tuner doctor`: everything a study stands on, looked at once; launches nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import tuner
from tuner.engines.home import data_folder
from tuner.engines.hub_cache import hub_folder
from tuner.run import installed, machine
from tuner.run.checkup import Checkup
from tuner.run.host import HostFacts


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`host`: the facts that head every report."""

    host: HostFacts
    checkups: tuple[Checkup, ...]

    @property
    def ok(self) -> bool:
        return not any(checkup.status == "fail" for checkup in self.checkups)


def diagnose(reports: Path) -> Diagnosis:
    """`reports`: where studies would be written."""
    host = HostFacts.read()
    return Diagnosis(host, tuple(_checkups(host, reports)))


def _checkups(host: HostFacts, reports: Path) -> Iterator[Checkup]:
    # First: where it cannot be used, most of what follows says so too.
    yield machine.own_folder(data_folder())
    yield from machine.system(host)
    yield machine.load(host)
    yield from machine.gpus(host)
    yield from installed.engines(host)
    yield from installed.models()
    yield machine.port()
    yield from machine.limits()
    yield machine.room("disk", data_folder())
    yield machine.room("disk", reports.absolute())
    yield machine.room("disk", hub_folder())
    yield from installed.hub()
    yield from machine.clocks(Path(tuner.__file__).parent)
