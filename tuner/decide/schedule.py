"""N by the number of running requests, in the engines' own formats, and the load at which speculation stops paying.

A schedule is a candidate like any other: an engine pays for switching, so it is measured as a whole before it is
advised. Here it is only made.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.decide.surface import CostSurface
from tuner.errors import UserError
from tuner.measure.statistics import TIE_MARGIN, Estimate
from tuner.spec.candidates import Arm
from tuner.spec.speculation import SGLANG_SCHEDULE, VLLM_SCHEDULE, Scalar, SpecConfig

#: vLLM asserts K == num_speculative_tokens for these (ENGINES: dynamic K); a schedule would crash it.
VLLM_FIXED_N = frozenset({"suffix", "medusa"})
SGLANG_ADAPTIVE = frozenset({"eagle", "eagle3"})

Cost = Callable[[int, int], float | None]


@dataclass(frozen=True, slots=True)
class Stretch:
    """From `start` to `end` running requests, both included, `n` tokens are drafted; 0 is off."""

    start: int
    end: int
    n: int


def surface_cost(surface: CostSurface, tau: Sequence[float]) -> Cost:
    """Time per token L(b, n) / tau(n); `tau[n-1]` is tau(n). None beyond what was measured."""

    def cost(b: int, n: int) -> float | None:
        step = surface.at(b, n)
        return step.step_s.value / (tau[n - 1] if n else 1.0) if step is not None and n <= len(tau) else None

    return cost


def schedule(loads: Sequence[int], ns: Sequence[int], cost: Cost) -> tuple[Stretch, ...]:
    """The cheapest n at each load, changed only where it gains more than a tie: a switch is not free.

    Between two loads with different n the change is at their geometric middle. Below the least load its n is carried
    on, as it is above the largest (ValueError without a load whose costs are known).
    """
    chosen: list[tuple[int, int]] = []
    for b in sorted(set(loads)):
        known = {n: value for n in ns if (value := cost(b, n)) is not None}
        if not known:
            continue
        least = min(known.values())
        keep = chosen[-1][1] if chosen else None
        if keep in known and known[keep] <= least * (1 + TIE_MARGIN):
            chosen.append((b, keep))
        else:
            chosen.append((b, min(n for n, value in known.items() if value <= least * (1 + TIE_MARGIN))))
    if not chosen:
        raise ValueError("no load has a known cost")
    return _stretches(chosen)


def _stretches(chosen: Sequence[tuple[int, int]]) -> tuple[Stretch, ...]:
    found: list[Stretch] = []
    start = 1
    for (b, n), (following, other) in itertools.pairwise(chosen):
        if other != n:
            end = max(b, min(following - 1, math.floor(math.sqrt(b * following))))
            found.append(Stretch(start, end, n))
            start = end + 1
    found.append(Stretch(start, max(start, chosen[-1][0]), chosen[-1][1]))
    return tuple(found)


def vllm_schedule(method: str, stretches: Sequence[Stretch]) -> dict[str, Any]:
    """Keys of vLLM's speculative config (0.24 on): the last stretch's n is carried on above its end."""
    if method in VLLM_FIXED_N:
        raise UserError(f"vLLM drafts a fixed N with {method}: use the one setting for all loads")
    most = max(stretch.n for stretch in stretches)
    if most < 1:
        raise UserError("the schedule never drafts: leave speculation off")
    ranges = [[stretch.start, stretch.end, stretch.n] for stretch in stretches]
    return {"num_speculative_tokens": most, "num_speculative_tokens_per_batch_size": ranges}


def sglang_schedule(method: str, stretches: Sequence[Stretch]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """(arguments, JSON for --speculative-adaptive-config) of SGLang (0.5.12 on): a slot holds from its key up."""
    if method not in SGLANG_ADAPTIVE:
        raise UserError(f"SGLang adapts steps for {' and '.join(sorted(SGLANG_ADAPTIVE))} only, not for {method}")
    most = max(stretch.n for stretch in stretches)
    if most < 1:
        raise UserError("the schedule never drafts: leave speculation off")
    slots = {str(stretch.start): {"candidate_steps": [stretch.n]} for stretch in stretches}
    # num-steps must be among the candidates, or SGLang refuses to start; topk 1 is the only one it adapts.
    args = ("--speculative-adaptive", "--speculative-num-steps", str(most), "--speculative-eagle-topk", "1",
            "--speculative-num-draft-tokens", str(most + 1))  # fmt: skip
    return args, slots


def scheduled(engine: str, arm: Arm, stretches: Sequence[Stretch]) -> SpecConfig:
    """What an engine is given to follow the stretches; UserError where it has no schedules, or none of this method."""
    option: tuple[str, Scalar]
    if engine == "vllm":
        rows = vllm_schedule(arm.method, stretches)[VLLM_SCHEDULE]
        option = (VLLM_SCHEDULE, json.dumps(rows))
    elif engine == "sglang":
        option = (SGLANG_SCHEDULE, json.dumps(sglang_schedule(arm.method, stretches)[1]))
    else:
        raise UserError(f"engine {engine} has no N by load: use one setting for all loads")
    most = max(stretch.n for stretch in stretches)
    return SpecConfig(arm.method, n=most, draft=arm.draft, options=(*arm.options, option), name=arm.name)


def stretches_of(spec: SpecConfig) -> tuple[Stretch, ...]:
    """The inverse of `scheduled`; a last stretch that goes on for ever ends where it starts. Empty without one."""
    options = dict(spec.options)
    if VLLM_SCHEDULE in options:
        return tuple(Stretch(*row) for row in json.loads(str(options[VLLM_SCHEDULE])))
    slots = json.loads(str(options.get(SGLANG_SCHEDULE, "{}")))
    starts = sorted((int(key), slots[key]["candidate_steps"][0]) for key in slots)
    ends = [start - 1 for start, _ in starts[1:]] + [start for start, _ in starts[-1:]]
    return tuple(Stretch(start, end, n) for (start, n), end in zip(starts, ends, strict=True))


def stretches_text(stretches: Sequence[Stretch]) -> str:
    """`N = 3 up to 5 requests running, N = 1 up to 12, off above`."""
    parts = []
    for place, stretch in enumerate(stretches):
        n = f"N = {stretch.n}" if stretch.n else "off"
        until = "above" if place == len(stretches) - 1 else f"up to {stretch.end}"
        until = "with one" if stretch.end == 1 else until
        running = f" request{'' if stretch.end == 1 else 's'} running" if place == 0 else ""
        parts.append(f"{n} {until}{running}")
    return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Crossover:
    """Where the gain over off falls to 1. A bound is None where the measured loads do not reach it."""

    load: float | None
    low: float | None
    high: float | None

    @property
    def text(self) -> str:
        if self.load is None:
            return "the gain does not fall to 1 at the loads that were measured"
        low = f"{self.low:.0f}" if self.low is not None else "below the least measured"
        high = f"{self.high:.0f}" if self.high is not None else "above the largest measured"
        return f"speculation stops paying at about {self.load:.0f} running requests [{low}, {high}]"


def crossover(gains: Sequence[tuple[float, Estimate]]) -> Crossover:
    """From the gain at each load: linear in log gain over log load, between measured loads alone."""
    ordered = sorted(gains, key=lambda pair: pair[0])
    lows, values, highs = ([(b, getattr(gain, bound)) for b, gain in ordered] for bound in ("low", "value", "high"))
    return Crossover(_falls_to_one(values), _falls_to_one(lows), _falls_to_one(highs))


def _falls_to_one(curve: Sequence[tuple[float, float]]) -> float | None:
    """The first load at which a curve that was above 1 reaches it; the least load where it never was."""
    if not curve or min(gain for _, gain in curve) <= 0:
        return None
    if curve[0][1] <= 1:
        return curve[0][0]
    for (b, gain), (following, other) in itertools.pairwise(curve):
        if other <= 1:
            share = math.log(gain) / (math.log(gain) - math.log(other))
            return math.exp(math.log(b) + share * (math.log(following) - math.log(b)))
    return None


@dataclass(frozen=True, slots=True)
class TemperatureSwitch:
    """Speculation pays up to `last_on` and was measured not to from `first_off` on; requests above go elsewhere.
    `beyond`: temperatures above `first_off` at which it pays all the same; there is no one switch then."""

    last_on: float | None
    first_off: float | None
    beyond: tuple[float, ...] = ()

    @property
    def text(self) -> str:
        if self.first_off is None:
            return "it pays at every temperature that was measured"
        if self.beyond:
            again = " and ".join(f"{t:g}" for t in self.beyond)
            return (
                f"it does not pay at temperature {self.first_off:g} and does at {again}: no one temperature divides "
                "them, so measure again before requests are routed by it"
            )
        if self.last_on is None:
            return "it pays at no temperature that was measured"
        return (
            f"it pays up to temperature {self.last_on:g} and not from {self.first_off:g} on: route requests above "
            f"{self.last_on:g} to a replica without speculation, or measure between the two"
        )


def temperature_switch(on: Sequence[tuple[float, bool]]) -> TemperatureSwitch:
    """From (temperature, whether the verdict is on) of one load."""
    first_off = min((t for t, pays in on if not pays), default=None)
    last_on = max((t for t, pays in on if pays and (first_off is None or t < first_off)), default=None)
    beyond = tuple(sorted({t for t, pays in on if pays and first_off is not None and t > first_off}))
    return TemperatureSwitch(last_on, first_off, beyond)
