"""Is a speculating server's output still the target's: the verdict on one setting, from all its tests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tuner.measure.lossless_greedy import Divergence, GreedyResult
from tuner.measure.lossless_sampled import SampledResult

#: How a fault begins that says nothing of the output's law: the setting died, hung or broke answers off.
UNSAFE = "unsafe for this workload"
BROKEN_FLOOR = "off parts from itself where it clearly prefers another token, so the greedy comparison tells nothing"


@dataclass(frozen=True, slots=True)
class Structured:
    """Requests bound to a grammar. `whole`: answers that ended and parse; `off_whole`: those of off, on the same.

    `broken`: the first answer of the speculating server that did not, where off's did.
    """

    asked: int
    whole: int
    off_whole: int
    broken: str | None = None

    @property
    def failed(self) -> bool:
        return self.broken is not None


@dataclass(frozen=True, slots=True)
class Verified:
    """One setting against off. What was not tested is None or absent, and never counts as passed.

    `labels`: (temperature, why) of what the resolved configuration alone gives away. `controls`: off against itself by
    the test of the same temperature. `drafted`: steps in which the server drafted during the sampled requests, of the
    greedy ones where no sample was asked for; `drafted_greedily`: during those; None: not counted. `unsafe`: why the
    setting cannot be used for this workload: it died or hung, asked at temperature `unsafe_at`; None: for answers bound
    to a grammar.
    """

    setting: str
    greedy: GreedyResult | None = None
    sampled: tuple[SampledResult, ...] = ()
    controls: tuple[SampledResult, ...] = ()
    labels: tuple[tuple[float, str], ...] = ()
    structured: Structured | None = None
    drafted: int | None = None
    unsafe: str | None = None
    unsafe_at: float | None = None
    drafted_greedily: int | None = None

    @property
    def ok(self) -> bool:
        return not any(True for _ in self.faults())

    @property
    def tested(self) -> bool:
        greedily = self.greedy is not None and not self.greedy.void and not self.idle_greedily
        sampled = (r.telling and self.trusted(r.temperature) for r in self.sampled)
        return greedily or (not self.vacuous and any(sampled))

    @property
    def passed(self) -> bool:
        """Nothing was found against it, nor is anything known of its configuration."""
        return self.ok and not self.labels

    @property
    def thin(self) -> tuple[SampledResult, ...]:
        """Temperatures with too few samples to tell: they count as not tested."""
        return tuple(r for r in self.sampled if not (r.telling or self.vacuous) and self.trusted(r.temperature))

    @property
    def vacuous(self) -> bool:
        """Nothing was drafted: equal output then proves nothing."""
        return self.drafted == 0

    @property
    def idle_greedily(self) -> bool:
        """The same of the greedy answers."""
        return self.drafted_greedily == 0

    def fault(self, temperature: float) -> str | None:
        """Why output at this temperature is not the target's; None where all that was tested passed.

        What is wrong at temperature 0 is wrong with the server; what is wrong at one temperature above 0 is not to be
        trusted at another.
        """
        found = (why for at, why in self.faults() if at is None or at == 0 or (temperature > 0 and at > 0))
        return next(found, None)

    def faults(self) -> Iterator[tuple[float | None, str]]:
        """(temperature, why); None: at any."""
        if self.unsafe:
            yield self.unsafe_at, f"{UNSAFE}: {self.unsafe}"
        if self.structured is not None and self.structured.broken:
            yield None, f"{UNSAFE}: {_structured(self.structured)}"
        if self.greedy is not None and self.greedy.failed:
            yield 0.0, _greedy(self.greedy)
        for result in self.sampled:
            if result.failed and self.trusted(result.temperature):
                yield result.temperature, _sampled(result)

    def cautions(self) -> Iterator[str]:
        """What is no fault, and is told wherever the verdict is."""
        if self.greedy is not None and self.greedy.void:
            yield BROKEN_FLOOR
        elif self.greedy is not None and self.greedy.restless:
            yield _restless(self.greedy)

    def trusted(self, temperature: float) -> bool:
        """Whether off passed the same test against itself: else the test says nothing of speculation."""
        return not any(control.failed for control in self.controls if control.temperature == temperature)


def _structured(result: Structured) -> str:
    return (
        f"{result.whole} of {result.asked} answers bound to a grammar ended and parse, {result.off_whole} without "
        f"speculation ({result.broken})"
    )


def _greedy(result: GreedyResult) -> str:
    shares, own = _shares(result)
    if not result.faults:
        return f"{shares}, {own} (p = {result.p_value:.1g}; log-probabilities were not told)"
    return f"{shares}, {_gap(result.faults[0])}, and a gap above {result.tolerance:g} nats is no rounding; {own}"


def _restless(result: GreedyResult) -> str:
    shares, own = _shares(result)
    return (
        f"{shares}, {own} (p = {result.p_value:.1g}): each at a near-tie, which is no fault, but more often than "
        "rounding makes off do it"
    )


def _shares(result: GreedyResult) -> tuple[str, str]:
    return (
        f"{len(result.divergences)} of {result.prompts} greedy answers part from the target's",
        f"off parts from itself in {len(result.floor)} of {result.floor_prompts}",
    )


def _gap(worst: Divergence) -> str:
    more = "over " if worst.at_least else ""
    return (
        f"at token {worst.position + 1} of '{worst.prompt}' by one that the target holds for {more}{worst.gap:.2f} "
        "nats less likely"
    )


def _sampled(result: SampledResult) -> str:
    worst = result.worst
    assert worst is not None
    return (
        f"at temperature {result.temperature:g} the first {result.k} tokens are not drawn from the target's "
        f"distribution (p = {result.p_value:.1g}; {result.second} samples against {result.first} over "
        f"{len(result.tests)} prompts; most on '{worst.prompt}', total variation about {worst.distance:.2f})"
    )
