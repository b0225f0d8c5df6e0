"""Where the advice turns: the load at which another setting takes over, and the temperature from which off is best."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.decide.evidence import Evidence
from tuner.decide.schedule import Crossover, TemperatureSwitch, crossover, temperature_switch
from tuner.decide.verdict import Verdict
from tuner.measure.records import Load
from tuner.spec.speculation import SpecConfig


@dataclass(frozen=True, slots=True)
class LoadTurn:
    """`before` is advised at the load `low` and `after` at the next measured one, `high`; `at`: where they are equal,
    from their gain over each other at every load that has both."""

    temperature: float
    before: SpecConfig
    after: SpecConfig
    low: int
    high: int
    at: Crossover


@dataclass(frozen=True, slots=True)
class TemperatureTurn:
    """At one load: up to which temperature speculation is advised."""

    load: Load
    switch: TemperatureSwitch


def load_turns(evidence: Evidence, verdicts: Sequence[Verdict]) -> tuple[LoadTurn, ...]:
    """By temperature, from light load to heavy. Closed loops only: a rate says little of how many requests run."""
    found = []
    for temperature in dict.fromkeys(v.key.temperature for v in verdicts):
        row = sorted(
            (v for v in verdicts if v.key.temperature == temperature and v.key.load.concurrency),
            key=lambda v: v.key.load.concurrency or 0,
        )
        for here, there in itertools.pairwise(row):
            if here.best != there.best:
                found.append(_turn(evidence, row, here, there))
    return tuple(found)


def temperature_turns(verdicts: Sequence[Verdict]) -> tuple[TemperatureTurn, ...]:
    """Loads that were measured at several temperatures."""
    found = []
    for load in dict.fromkeys(v.key.load for v in verdicts):
        on = [(v.key.temperature, v.on) for v in verdicts if v.key.load == load]
        if len(on) > 1:
            found.append(TemperatureTurn(load, temperature_switch(sorted(on))))
    return tuple(found)


def _turn(evidence: Evidence, row: Sequence[Verdict], here: Verdict, there: Verdict) -> LoadTurn:
    gains = [
        (float(v.key.load.concurrency or 0), gain)
        for v in row
        if (gain := evidence.ratio(there.best, here.best, v.key)) is not None
    ]
    low, high = here.key.load.concurrency, there.key.load.concurrency
    assert low is not None
    assert high is not None
    return LoadTurn(here.key.temperature, here.best, there.best, low, high, crossover(gains))
