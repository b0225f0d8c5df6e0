"""Where the advice turns: the load at which another setting takes over, and the temperature from which off is best."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tuner.decide.arm_surface import step_surface
from tuner.decide.evidence import Evidence
from tuner.decide.schedule import Crossover, TemperatureSwitch, crossover, temperature_switch
from tuner.decide.surface import CostSurface
from tuner.decide.verdict import Verdict
from tuner.measure.records import Load
from tuner.measure.statistics import Z95, Estimate
from tuner.spec.candidates import Arm
from tuner.spec.speculation import SpecConfig

#: Loads between two measured ones at which the gain is looked at.
POINTS = 64


@dataclass(frozen=True, slots=True)
class LoadTurn:
    """`before` is advised at load `low`, `after` at the next measured one, `high`; `at`: where they are equal."""

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
                found.append(_turn(evidence, here, there))
    return tuple(found)


def temperature_turns(verdicts: Sequence[Verdict]) -> tuple[TemperatureTurn, ...]:
    """Loads that were measured at several temperatures."""
    found = []
    for load in dict.fromkeys(v.key.load for v in verdicts):
        on = [(v.key.temperature, v.on) for v in verdicts if v.key.load == load]
        if len(on) > 1:
            found.append(TemperatureTurn(load, temperature_switch(sorted(on))))
    return tuple(found)


def _turn(evidence: Evidence, here: Verdict, there: Verdict) -> LoadTurn:
    low, high = here.key.load.concurrency, there.key.load.concurrency
    assert low is not None
    assert high is not None
    found = LoadTurn(here.key.temperature, here.best, there.best, low, high, Crossover(None, None, None))
    ends = [evidence.ratio(there.best, here.best, verdict.key) for verdict in (here, there)]
    if ends[0] is None or ends[1] is None:
        return found
    curve = _curve(evidence, found, ends[0], ends[1])
    if curve is not None:
        return replace(found, at=crossover(curve))
    # Without a surface nothing is known between the two loads but that the crossing is there.
    at = crossover([(float(low), ends[0]), (float(high), ends[1])])
    return replace(found, at=Crossover(at.load, float(low), float(high)))


def _curve(evidence: Evidence, turn: LoadTurn, first: Estimate, last: Estimate) -> list[tuple[float, Estimate]] | None:
    """The gain of `before` over `after` between the two loads, by the cost surface of the one arm there is besides off:
    exact at both ends, in between as uncertain as the surface is. None where two arms or a tree meet."""
    arms = list(dict.fromkeys(spec.arm for spec in (turn.before, turn.after) if not spec.is_off))
    if len(arms) != 1 or turn.before.tree or turn.after.tree:
        return None
    method, draft, options = arms[0]
    ns = {one.spec.n for one in evidence.tried if one.spec.arm == arms[0] and one.spec.n}
    surface = step_surface(Arm(method, draft, options, ns=tuple(sorted(ns))), evidence)
    ends = [_steps(surface, b, turn) for b in (turn.low, turn.high)] if surface else []
    if surface is None or None in ends:
        return None
    curve = []
    for i in range(POINTS + 1):
        share = i / POINTS
        b = turn.low * (turn.high / turn.low) ** share
        here = _steps(surface, b, turn)
        told = [e for e in ends if e is not None]
        if here is None or len(told) < 2:
            return None
        shift = (1 - share) * (math.log(first.value) - told[0][0]) + share * (math.log(last.value) - told[1][0])
        spread = (1 - share) * _half(first) + share * _half(last)
        stray = math.sqrt(max(0.0, here[1] ** 2 - ((1 - share) * told[0][1]) ** 2 - (share * told[1][1]) ** 2))
        value, half = math.exp(here[0] + shift), math.hypot(spread, Z95 * stray)
        curve.append((b, Estimate(value, value * math.exp(-half), value * math.exp(half), first.n)))
    return curve


def _steps(surface: CostSurface, b: float, turn: LoadTurn) -> tuple[float, float] | None:
    """(logarithm of L after over L before, its standard deviation); tau stays as it is between loads."""
    after, before = surface.at(b, turn.after.n), surface.at(b, turn.before.n)
    if after is None or before is None:
        return None
    sd = math.hypot(after.sd_s / after.step_s.value, before.sd_s / before.step_s.value)
    return math.log(after.step_s.value / before.step_s.value), sd


def _half(gain: Estimate) -> float:
    """Half the interval of a gain, in logarithms."""
    return math.log(gain.high / gain.low) / 2 if gain.low > 0 else math.inf
