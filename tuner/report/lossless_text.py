"""What losslessness tests found, in words: a line beside a speed-up, and the whole of `tuner verify`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from tuner.measure.lossless import Verified
from tuner.measure.lossless_greedy import GreedyResult
from tuner.measure.lossless_levels import POWER, SHIFT
from tuner.measure.lossless_sampled import SampledResult
from tuner.run.verify import Verification
from tuner.spec.speculation import SpecConfig

NOT_TESTED = "not tested"
IDLE = "; but nothing was drafted meanwhile, so it proves nothing"


def verify_json(found: Verification) -> str:
    return json.dumps(found.to_dict(), indent=2)


def verify_text(found: Verification) -> str:
    """A paragraph a setting, the verdict first."""
    lines: list[str] = []
    for one in found.results:
        lines += [f"{one.setting}: {verdict(one)}", *(f"  {text}" for text in _details(one)), ""]
    if found.folder is not None:
        lines.append(f"stored in {found.folder}")
    return "\n".join(lines).rstrip()


def verdict(one: Verified) -> str:
    faults = [why for _, why in one.faults()]
    known = [f"by its configuration, at temperature {at:g}: {why}" for at, why in one.labels]
    if faults or known:
        return f"NOT LOSSLESS: {(faults + known)[0]}"
    if not one.tested:
        return NOT_TESTED + (": nothing was drafted on these requests" if one.vacuous else "")
    return "lossless, as far as tested"


def line(one: Verified) -> str:
    """One sentence with n and power, as it stands beside a speed-up."""
    details = "; ".join(_details(one)) or NOT_TESTED
    return f"{one.setting} {verdict(one)} ({details})"


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


def _details(one: Verified) -> Iterator[str]:
    greedily = NOT_TESTED if one.greedy is None else _greedy(one.greedy) + (IDLE if one.idle_greedily else "")
    yield f"temperature 0: {greedily}"
    for result in one.sampled:
        untrusted = "" if one.trusted(result.temperature) else "; but off fails this test against itself, so it is void"
        yield f"temperature {result.temperature:g}: {_sampled(result)}{untrusted or (IDLE if one.vacuous else '')}"
    for control in one.controls:
        yield f"off against itself at temperature {control.temperature:g}: p = {control.p_value:.2g}"
    for at, why in one.labels:
        yield f"known at temperature {at:g}: {why}"
    if one.structured is not None:
        yield f"bound to a grammar: {one.structured.whole} of {one.structured.asked} answers ended and parse"
    if one.drafted is not None:
        yield f"{one.drafted} verify steps drafted meanwhile"


def _greedy(result: GreedyResult) -> str:
    found, own = len(result.divergences), len(result.floor)
    text = (
        f"{found} of {result.prompts} answers ({result.tokens} tokens) part from off's, {own} of "
        f"{result.floor_prompts} of off's from its own at another concurrency"
    )
    if not found:
        return text
    if result.faults:
        return f"{text}; {len(result.faults)} by more than a tie of {result.tolerance:g} nats"
    if result.unexplained:
        return f"{text} (p = {result.p_value:.2g}); {result.unexplained} gaps were not told"
    largest = max(d.gap or 0.0 for d in result.divergences)
    return f"{text}, all of them ties (gaps up to {largest:.2g} nats; p = {result.p_value:.2g})"


def _sampled(result: SampledResult) -> str:
    text = (
        f"{result.second} samples of {result.k} tokens against {result.first} of off over {len(result.tests)} prompts, "
        f"p = {result.p_value:.2g}"
    )
    if result.failed:
        return f"{text} at look {result.look + 1} of {result.looks}"
    least = f", one of {result.caught:.2g} with {POWER:g}" if result.caught is not None else ""
    return (
        f"{text}; a shift of {SHIFT:g} in total variation would have been caught with probability "
        f"{result.power():.2g}{least}"
    )
