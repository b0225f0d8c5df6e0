"""The advice in sentences: what to do, by how much, how sure, and where to leave it off."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from tuner.decide.launch_luck import launch_luck
from tuner.decide.rank import Comparison, Overall, Verdict
from tuner.decide.schedule import stretches_of, stretches_text
from tuner.measure.records import CellKey, Load
from tuner.measure.statistics import Estimate
from tuner.report.calibration import confirmations, worst_error
from tuner.report.data import ReportInput
from tuner.report.figures import cell_text, cells_text, change, listed, moved, ratio
from tuner.spec.speculation import SpecConfig

Word = Literal["on", "off", "mixed", "undecided"]

GAINS = {
    "tpot_p50": "Speed-up (TPOT p50 of off over that with it)",
    "throughput": "Throughput with it over off",
    "goodput": "Goodput with it over off",
}


def verdict_word(data: ReportInput) -> Word:
    """`undecided`: nothing was compared with off, so that `off` would be no finding."""
    if not any(c.ratio for v in data.verdicts for c in v.comparisons):
        return "undecided"
    on = [v.on for v in data.verdicts]
    return "on" if all(on) else "mixed" if any(on) else "off"


def headline(data: ReportInput) -> str:
    """The advice, and the gain with its interval."""
    word = verdict_word(data)
    if word == "undecided":
        return advice(data)
    if word == "off":
        best = max((c for v in data.verdicts if (c := decisive(v)) is not None), key=_value)
        gain = GAINS[data.evidence.objective]
        tried = f"{best.spec.label} at {cell_text(best.key)}"
        return f"{advice(data)} The best that was tried is {tried}. {gain}: {ratio(best.ratio)}."
    return f"{advice(data)} {_gain_range(data)}"


def advice(data: ReportInput) -> str:
    """What to do, in one sentence."""
    word, keys = verdict_word(data), [v.key for v in data.verdicts]
    if word == "undecided":
        reason = data.verdicts[0].reason if data.verdicts else "no cell was measured without speculation"
        return f"No advice can be given: {reason}."
    if word == "off":
        where = (
            f"none of the {len(keys)} measured cells did any setting" if len(keys) > 1 else "the one measured cell no"
        )
        shown = "show a gain" if len(keys) > 1 else "setting showed a gain"
        return f"Leave speculative decoding off: in {where} {shown}."
    parts = [f"use {spec.label} at {cells_text(where, keys)}" for spec, where in _settings(data.verdicts)]
    off = [v.key for v in data.verdicts if not v.on]
    if off:
        parts.append(f"leave speculation off at {cells_text(off, keys)}")
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


def how_sure(data: ReportInput) -> tuple[str, ...]:
    """What stands behind the advice, and what does not."""
    ratios = [c.ratio for v in data.verdicts for c in v.comparisons if c.ratio]
    lines = []
    if ratios:
        least, most = min(r.n for r in ratios), max(r.n for r in ratios)
        pairs = f"{least}" if least == most else f"{least} to {most}"
        lines.append(
            f"Every gain is a ratio over {pairs} requests that both arms ran with the same prompts; in brackets its "
            "95 percent interval from a bootstrap over requests."
        )
    lines.append(drift_sentence(data))
    lines.append(
        "Each setting but off was launched once, on one machine. The intervals hold the spread between requests. "
        f"That two launches of one setting differ by {launch_luck(data.evidence):.1%} (as held here: half a percent a "
        "launch beforehand, and the drift of off) is held against every gain that is advised as well."
    )
    worst = worst_error(confirmations(data.evidence))
    if worst:
        lines.append(
            f"What was predicted of a setting before its launch missed mean TPOT by {change(worst.error)} at most "
            f"({worst.spec.label}, {cell_text(worst.key)})."
        )
    if data.status != "complete":
        more = " Run it again with more --minutes or --launches to measure them." if "budget" in data.status else ""
        lines.append(
            f"The study is not complete ({data.status}): settings it did not reach could still be better.{more}"
        )
    lines.append(f"Output still the target's: {data.losslessness or 'not verified in this study'}.")
    return tuple(lines)


def drift_sentence(data: ReportInput) -> str:
    drifts = drifts_by_load(data)
    seen = [(load, drift) for load, drift in drifts if drift is not None]
    if not seen:
        return "Off was not measured a second time, so drift is not measured and no gain could be held against it."
    load, drift = max(seen, key=lambda pair: abs(pair[1].value - 1))
    return (
        f"Off was measured first and again last; its largest move was {moved(drift)} at "
        f"{load.text} (above 0 is better), and a gain no larger than its load's drift is not advised."
    )


def drifts_by_load(data: ReportInput) -> tuple[tuple[Load, Estimate | None], ...]:
    return tuple({v.key.load: v.drift for v in data.verdicts}.items())


def leave_off(data: ReportInput) -> tuple[str, ...]:
    """One sentence a reason for the cells where off is the advice; none where that is everywhere."""
    if verdict_word(data) == "off":
        return ()
    reasons: dict[str, list[CellKey]] = {}
    for verdict in data.verdicts:
        if not verdict.on and verdict_word(data) != "undecided":
            reasons.setdefault(verdict.reason, []).append(verdict.key)
    keys = [v.key for v in data.verdicts]
    return tuple(f"Leave it off at {cells_text(where, keys)}: {reason}." for reason, where in reasons.items())


def one_setting(data: ReportInput) -> str:
    """The setting for people who can run only one, and what it loses."""
    overall = data.recommendation.overall
    text = f"One setting for all of it: **{overall.best.label}**"
    if stretches := stretches_of(overall.best):
        text += f" ({stretches_text(stretches)})"
    if overall.ratio:
        text += f", {ratio(overall.ratio)}"
    text += f"; {overall.reason}."
    ratios = {v.key: c.ratio for v in data.verdicts for c in v.comparisons if c.spec == overall.best and c.ratio}
    losing = {key: found for key, found in ratios.items() if found.high < 1}
    if losing:
        where, found = min(losing.items(), key=lambda item: item[1].value)
        text += (
            f" It is worse than off at {cells_text(losing, ratios)}; the worst is {ratio(found)} at {cell_text(where)}."
        )
    if overall.regret and overall.regret > 0:
        text += f" Against each cell's own advice it gives up {overall.regret:.1%} on average{_at_most(overall)}."
    return text


def _at_most(overall: Overall) -> str:
    if overall.worst_loss is None or overall.worst_loss[1] <= (overall.regret or 0):
        return ""
    key, loss = overall.worst_loss
    return f", and {loss:.1%} at most (at {cell_text(key)})"


def ties(data: ReportInput) -> tuple[str, ...]:
    return tuple(
        f"{cell_text(v.key)}: {v.best.label} is not told apart from {listed(spec.label for spec in v.ties)}."
        for v in data.verdicts
        if v.ties
    )


def decisive(verdict: Verdict) -> Comparison | None:
    """The comparison a verdict rests on: the advised setting's, or the best of those that did not beat off."""
    # N by load is judged over all loads; at one of them it is one N, which stands here itself.
    seen = [c for c in verdict.comparisons if c.ratio]
    tried = [c for c in seen if not c.spec.by_load] or seen
    if verdict.on:
        return next((c for c in tried if c.spec == verdict.best), None)
    return max(tried, key=_value, default=None)


def _settings(verdicts: Sequence[Verdict]) -> list[tuple[SpecConfig, list[CellKey]]]:
    groups: dict[SpecConfig, list[CellKey]] = {}
    for verdict in verdicts:
        if verdict.on:
            groups.setdefault(verdict.best, []).append(verdict.key)
    return list(groups.items())


def _gain_range(data: ReportInput) -> str:
    on = [v for v in data.verdicts if v.on and v.ratio]
    low, high = min(on, key=_value), max(on, key=_value)
    gain = GAINS[data.evidence.objective]
    if low is high:
        return f"{gain}: {ratio(high.ratio)}."
    return f"{gain}: {ratio(low.ratio)} ({cell_text(low.key)}) to {ratio(high.ratio)} ({cell_text(high.key)})."


def _value(item: Comparison | Verdict) -> float:
    return item.ratio.value if item.ratio else 0.0
