"""What losslessness tests found, in words: a line for machines, a summary for people, and the whole of
`tuner verify`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from tuner.measure.lossless import BROKEN_FLOOR, Verified
from tuner.measure.lossless_greedy import GreedyResult
from tuner.measure.lossless_levels import POWER, SHIFT
from tuner.measure.lossless_sampled import SampledResult
from tuner.report.figures import listed
from tuner.run.verify import Verification
from tuner.spec.speculation import SpecConfig

NOT_TESTED = "not tested"
VOID = "; but off fails this test against itself, so it is void"
#: Below this a shift of SHIFT is more likely missed than seen.
WEAK = 0.5
IDLE = "; but nothing was drafted meanwhile, so it proves nothing"


def verify_json(found: Verification) -> str:
    return json.dumps(found.to_dict(), indent=2)


def verify_text(found: Verification) -> str:
    """A paragraph a setting, the verdict first."""
    lines: list[str] = []
    for one in found.results:
        lines += [f"{one.setting}: {verdict(one)}", *(f"  {text}" for text in details(one)), ""]
    if found.folder is not None:
        lines.append(f"stored in {found.folder}")
    return "\n".join(lines).rstrip()


def verdict(one: Verified) -> str:
    faults = [why for _, why in one.faults()]
    known = [f"by its configuration, at temperature {at:g}: {why}" for at, why in one.labels]
    if faults or known:
        return f"NOT LOSSLESS: {(faults + known)[0]}"
    if not one.tested:
        return "; ".join([_why_not(one), *one.cautions()])
    return "; ".join(["lossless, as far as tested", *one.cautions(), *(_not_tested(result) for result in one.thin)])


def _why_not(one: Verified) -> str:
    if one.thin:
        return f"{NOT_TESTED}: {few(one.thin[0])}"
    return NOT_TESTED + (": nothing was drafted on these requests" if one.vacuous else "")


def line(one: Verified) -> str:
    """One sentence with n and power, for files that have no table."""
    return f"{one.setting} {verdict(one)} ({'; '.join(_in_short(one))})"


def study_line(tested: Mapping[SpecConfig, Verified], advised: Sequence[SpecConfig]) -> str | None:
    """Of a study: the advised settings with n and power, then those that failed; None where nothing was tested.

    Where off is the advice everything that was tested is named: the answer to why not.
    """
    if not tested:
        return None
    on = [spec for spec in advised if not spec.is_off]
    lines = [line(tested[spec]) if spec in tested else f"{spec.label}: {NOT_TESTED}" for spec in on]
    failed = [spec for spec in tested if not tested[spec].ok and spec not in on]
    lines += [f"{spec.label} {verdict(tested[spec])}" for spec in failed]
    if not on:
        lines += [line(one) for one in tested.values() if one.ok]
    return "; ".join(lines)


def summary(tested: Mapping[SpecConfig, Verified], workload: str) -> str | None:
    """For people, above the table: what was found, and how large a fault could have passed unseen. `workload`: the
    file to verify with. None where nothing was tested."""
    parts = []
    clean = {spec: one.passed and one.tested and not any(one.cautions()) for spec, one in tested.items()}
    for spec, one in ((spec, one) for spec, one in tested.items() if not clean[spec]):
        # Of samples that were too few the temperature is named below, once for all settings.
        thin = one.passed and one.thin and not one.tested
        parts.append(f"{spec.label} {'; '.join([NOT_TESTED, *one.cautions()]) if thin else verdict(one)}")
    sound = [spec.label for spec in tested if clean[spec]]
    if sound:
        parts.append(f"no difference found in {listed(sound)}")
    if weak := unseen(tested):
        parts.append(f"{weak}: run `tuner verify {workload}` before turning it on")
    return "; ".join(parts) or None


def unseen(tested: Mapping[SpecConfig, Verified]) -> str:
    """The temperatures at which a shift of SHIFT is more likely missed than seen, with the least that shows, or that
    there were too few samples to tell; empty where there are none."""
    weak: dict[float, list[SampledResult]] = {}
    for one in (one for one in tested.values() if one.passed and not one.vacuous):
        for result in one.sampled:
            if one.trusted(result.temperature) and result.power() < WEAK:
                weak.setdefault(result.temperature, []).append(result)
    told = []
    for temperature, results in weak.items():
        thinnest = max(results, key=lambda result: 2.0 if result.caught is None else result.caught)
        seen = f"at temperature {temperature:g} only shifts above {thinnest.caught or 1.0:.2f} would show"
        told.append(seen if thinnest.telling else _not_tested(thinnest))
    return listed(told) if told else ""


def _in_short(one: Verified) -> Iterator[str]:
    """The same facts as `details`, without what off did with itself."""
    greedily = NOT_TESTED
    if one.greedy is not None:
        greedily = greedy_text(one.greedy) + (IDLE if one.idle_greedily else "")
    yield f"temperature 0: {greedily}"
    for result in one.sampled:
        told = f"{result.second} samples against {result.first}, p = {result.p_value:.2g}"
        if not one.trusted(result.temperature):
            told += VOID
        elif one.vacuous:
            told += IDLE
        elif not result.failed:
            told += f", {_power(result)}"
        yield f"temperature {result.temperature:g}: {told}"
    yield from (f"known at temperature {at:g}: {why}" for at, why in one.labels)


def details(one: Verified) -> Iterator[str]:
    greedily = NOT_TESTED
    if one.greedy is not None:
        greedily = greedy_text(one.greedy, its_own=True) + (IDLE if one.idle_greedily else "")
    yield f"temperature 0: {greedily}"
    for result in one.sampled:
        untrusted = "" if one.trusted(result.temperature) else VOID
        yield f"temperature {result.temperature:g}: {_sampled(result)}{untrusted or (IDLE if one.vacuous else '')}"
    for control in one.controls:
        yield f"off against itself at temperature {control.temperature:g}: p = {control.p_value:.2g}"
    for at, why in one.labels:
        yield f"known at temperature {at:g}: {why}"
    if one.structured is not None:
        yield f"bound to a grammar: {one.structured.whole} of {one.structured.asked} answers ended and parse"
    if one.drafted is not None:
        yield f"{one.drafted} verify steps drafted meanwhile"


def greedy_text(result: GreedyResult, *, its_own: bool = False) -> str:
    """`its_own`: with how often off parts from itself."""
    found = len(result.divergences)
    text = f"{found} of {result.prompts} answers ({result.tokens} tokens) part from off's"
    if its_own:
        text += f", {len(result.floor)} of {result.floor_prompts} of off's from its own at another concurrency"
    if result.void:
        return f"{text}; {BROKEN_FLOOR}"
    if not found:
        return text
    if result.faults:
        return f"{text}; {len(result.faults)} by more than a tie of {result.tolerance:g} nats"
    if result.unexplained:
        return f"{text} (p = {result.p_value:.2g}); {result.unexplained} gaps were not told"
    largest = max(d.gap or 0.0 for d in result.divergences)
    ties = f"{text}, all of them ties (gaps up to {largest:.2g} nats; p = {result.p_value:.2g})"
    return f"{ties}, but more often than off's own" if result.restless else ties


def _sampled(result: SampledResult) -> str:
    text = (
        f"{result.second} samples of {result.k} tokens against {result.first} of off over {len(result.tests)} prompts, "
        f"p = {result.p_value:.2g}"
    )
    if result.failed:
        return f"{text} at look {result.look + 1} of {result.looks}"
    return f"{text}; {_power(result)}"


def few(result: SampledResult) -> str:
    return f"too few samples to tell: n = {result.second} against {result.first}"


def _not_tested(result: SampledResult) -> str:
    return f"temperature {result.temperature:g} {NOT_TESTED} ({few(result)})"


def _power(result: SampledResult) -> str:
    if not result.telling:
        return f"{few(result)}, which counts as {NOT_TESTED}"
    least = f", one of {result.caught:.2g} with {POWER:g}" if result.caught is not None else ""
    return (
        f"a shift of {SHIFT:g} in total variation would have been caught with probability {result.power():.2g}{least}"
    )
