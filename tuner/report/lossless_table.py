"""What losslessness tests compared, found and could have seen, a row a setting and temperature."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tuner.measure.lossless import BROKEN_FLOOR, Verified
from tuner.measure.lossless_levels import POWER, SHIFT
from tuner.measure.lossless_sampled import SampledResult
from tuner.report.lossless_text import NOT_TESTED, few, greedy_text
from tuner.report.tables import Table, table
from tuner.spec.speculation import SpecConfig

COLUMNS = (
    "setting", "temperature", "compared", "result", f"smallest shift seen with probability {POWER:g}",
    f"power at a shift of {SHIFT:g}",
)  # fmt: skip
NOTHING_DRAFTED = "nothing was drafted: proves nothing"
NO_SAMPLES = ("", "")


def lossless_table(tested: Mapping[SpecConfig, Verified]) -> Table:
    """A shift is in total variation of the first tokens' distribution; greedy answers are compared token by token."""
    return table(COLUMNS, (row for spec, one in tested.items() for row in _rows(spec.label, one)))


def _rows(label: str, one: Verified) -> Iterator[tuple[str, ...]]:
    if one.unsafe:
        at = "any" if one.unsafe_at is None else f"{one.unsafe_at:g}"
        yield (label, at, "whether it serves this workload", f"UNSAFE: {one.unsafe}", *NO_SAMPLES)
    if one.greedy is not None:
        greedy = one.greedy
        result = NOTHING_DRAFTED if one.idle_greedily else greedy_text(greedy)
        if greedy.void:
            result = f"void: {BROKEN_FLOOR}"
        elif greedy.failed:
            result = f"DIFFERS: {result}"
        against = f"{greedy.prompts} answers; off against itself: {len(greedy.floor)} of {greedy.floor_prompts} part"
        yield (label, "0", against, result, *NO_SAMPLES)
    for sampled in one.sampled:
        yield (label, f"{sampled.temperature:g}", *_sampled(one, sampled))
    for temperature, why in one.labels:
        yield (label, f"{temperature:g}", "its configuration", f"DIFFERS: {why}", *NO_SAMPLES)
    if one.structured is not None:
        told = f"{one.structured.whole} ended and parse (off: {one.structured.off_whole})"
        result = f"UNSAFE: {told}" if one.structured.failed else told
        yield (label, "any", f"{one.structured.asked} answers bound to a grammar", result, *NO_SAMPLES)


def _sampled(one: Verified, result: SampledResult) -> tuple[str, str, str, str]:
    against = f"{result.second} samples against {result.first} of off, {len(result.tests)} prompts"
    told = f"p = {result.p_value:.2g}"
    if not one.trusted(result.temperature):
        return against, f"void: off fails this test against itself ({told})", *NO_SAMPLES
    if one.vacuous:
        return against, NOTHING_DRAFTED, *NO_SAMPLES
    if result.failed:
        return against, f"DIFFERS ({told})", *NO_SAMPLES
    caught = "none" if result.caught is None else f"{result.caught:.2f}"
    power = result.power()
    found = "no difference found" if result.telling else f"{NOT_TESTED}, {few(result)}"
    return against, f"{found} ({told})", caught, "under 0.01" if power < 0.01 else f"{power:.2f}"
