"""The advice in sentences: what to do, by how much, and where to leave it off."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from tuner.decide.rank import Comparison, Overall, Verdict
from tuner.decide.schedule import stretches_of, stretches_text
from tuner.measure.records import CellKey
from tuner.report.data import ReportInput
from tuner.report.figures import cell_text, cells_text, ratio
from tuner.spec.speculation import SpecConfig

Word = Literal["on", "off", "mixed", "undecided"]

GAINS = {
    "tpot_p50": "Speed-up (TPOT p50 of off over that with it)",
    "throughput": "Throughput with it over off",
    "goodput": "Goodput with it over off",
}
OBJECTIVES = {"tpot_p50": "TPOT p50", "throughput": "throughput", "goodput": "goodput"}
#: What no setting does where off is the advice: in several cells, and in one.
NO_GAIN = {
    "tpot_p50": ("do tokens come faster", "tokens do not come faster"),
    "throughput": ("do more tokens come per second", "no more tokens come per second"),
    "goodput": ("do more requests meet their objectives", "no more requests meet their objectives"),
}


def gain_word(data: ReportInput) -> str:
    return "speed-up" if data.evidence.objective == "tpot_p50" else "gain"


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
        best = max((c for v in data.verdicts if (c := decisive(v)) is not None), key=_value, default=None)
        if best is None:
            return advice(data)
        gain = GAINS[data.evidence.objective]
        tried = f"{best.spec.label} at {cell_text(best.key)}"
        return f"{advice(data)} The best that was tried is {tried}. {gain}: {ratio(best.ratio)}, {_read(best)}."
    return f"{advice(data)} {_gain_range(data)}"


def advice(data: ReportInput) -> str:
    """What to do, in one sentence."""
    word, keys = verdict_word(data), [v.key for v in data.verdicts]
    if word == "undecided":
        reason = data.verdicts[0].reason if data.verdicts else "no cell was measured without speculation"
        return f"No advice can be given: {reason}."
    if word == "off":
        lossy = [c.lossy is not None for v in data.verdicts for c in v.comparisons if c.ratio]
        if all(lossy):
            return "Leave speculative decoding off: no lossless setting was measured."
        several, one = NO_GAIN[data.evidence.objective]
        where = f"in none of the {len(keys)} measured cells {several}" if len(keys) > 1 else f"in the one cell {one}"
        objective = OBJECTIVES[data.evidence.objective]
        kind = "lossless setting" if any(lossy) else "setting"
        return f"Leave speculative decoding off: {where} with any {kind} ({objective}) by more than the noise."
    parts = [f"use {spec.label} at {cells_text(where, keys)}" for spec, where in _settings(data.verdicts)]
    off = [v.key for v in data.verdicts if not v.on]
    if off:
        parts.append(f"leave speculation off at {cells_text(off, keys)}")
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


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


def decisive(verdict: Verdict) -> Comparison | None:
    """The comparison a verdict rests on: the advised setting's, or the best of those that did not beat off. A lossy
    setting is no rival: None where no other was measured."""
    # N by load is judged over all loads; at one of them it is one N, which stands here itself.
    seen = [c for c in verdict.comparisons if c.ratio and not c.lossy]
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


def _read(best: Comparison) -> str:
    """How the best of what is not advised is to be read."""
    assert best.ratio is not None
    if best.ratio.high < 1:
        return "so even that one loses"
    if best.ratio.low <= 1:
        return "an interval that holds 1, which is no change"
    return "which is not believed: chance, drift or a relaunch may give as much"


def _value(item: Comparison | Verdict) -> float:
    return item.ratio.value if item.ratio else 0.0
