"""Where the advice turns, in sentences: by load, by temperature, and what N by load came to."""

from __future__ import annotations

from collections.abc import Iterator

from tuner.decide.schedule import stretches_text
from tuner.decide.schedule_verdict import ScheduleVerdict
from tuner.decide.turns import LoadTurn, load_turns, temperature_turns
from tuner.decide.verdict import Verdict
from tuner.measure.records import Load
from tuner.report.advice import verdict_word
from tuner.report.data import ReportInput
from tuner.report.figures import NOT_MEASURED, cell_text, figure, listed, loads_text, ms, ratio
from tuner.report.tables import Table, table


def turn_lines(data: ReportInput) -> tuple[str, ...]:
    """The load at which another setting takes over, and the temperature above which off is best; nothing without an
    advice that could turn."""
    if verdict_word(data) == "undecided":
        return ()
    return (*_loads(data), *_temperatures(data))


def load_turn_text(turn: LoadTurn) -> str:
    """One sentence without its end."""
    before, after = turn.before.label, turn.after.label
    if turn.after.is_off:
        what = f"{before} stops paying"
    elif turn.before.is_off:
        what = f"{after} begins to pay"
    else:
        what = f"{after} overtakes {before}"
    return f"at temperature {turn.temperature:g} {what} {_where(turn)}"


def _where(turn: LoadTurn) -> str:
    """The crossing is told only where it lies between the two loads whose advice differs."""
    at = turn.at
    between = f"between concurrency {turn.low} and {turn.high}"
    if at.load is None or not turn.low <= at.load <= turn.high:
        return f"{between}; no load between was measured"
    low = f"{at.low:.1f}" if at.low is not None else "below the least measured"
    high = f"{at.high:.1f}" if at.high is not None else "above the largest measured"
    return f"at about {at.load:.1f} requests in flight [{low}, {high}], by interpolation {between}"


def _loads(data: ReportInput) -> Iterator[str]:
    turns = load_turns(data.evidence, data.verdicts)
    yield from (f"Load: {load_turn_text(turn)}." for turn in turns)
    loads = {v.key.load for v in data.verdicts if v.key.load.concurrency}
    if not turns and len(loads) > 1:
        yield "Load: the advice is the same at every concurrency that was measured."


def _temperatures(data: ReportInput) -> Iterator[str]:
    said: dict[str, list[Load]] = {}
    for turn in temperature_turns([v for v in data.verdicts if _judged(v)]):
        switch = turn.switch
        if switch.first_off is not None and (switch.last_on is not None or switch.beyond):
            said.setdefault(switch.text, []).append(turn.load)
    for text, loads in said.items():
        yield f"Temperature: at {loads_text(loads)} {text}."
    judged = {v.key.temperature for v in data.verdicts if _judged(v)}
    if unjudged := sorted({v.key.temperature for v in data.verdicts} - judged):
        shown = listed(f"{t:g}" for t in unjudged)
        yield f"Temperature: no lossless setting was measured at {shown}, so what it does to the advice is not told."
    temperatures = judged
    if not said and len(temperatures) > 1:
        shown = ", ".join(f"{t:g}" for t in sorted(temperatures))
        yield f"Temperature: whether to speculate does not depend on it at any load measured (temperatures {shown})."


def _judged(verdict: Verdict) -> bool:
    """Whether anything but lossy settings was there to be advised."""
    tried = [c for c in verdict.comparisons if not c.spec.is_off]
    return not tried or any(not c.lossy for c in tried)


def schedule_lines(data: ReportInput) -> tuple[str, ...]:
    """One sentence an arm: the schedule, whether it is deployed, and why."""
    return tuple(_schedule_line(told) for told in data.schedules)


def _schedule_line(told: ScheduleVerdict) -> str:
    if told.spec is None:
        return f"{told.way}: no N by load was tried: {told.reason}."
    what = f"{told.way}, {stretches_text(told.stretches)}"
    state = "deployed" if told.deployed else "not deployed" if told.over_static else "not measured"
    return f"{what}: **{state}**: {told.reason}."


def schedule_table(data: ReportInput) -> Table:
    """A row a cell of every launched schedule: what was predicted before its launch, and what was measured."""
    rows = []
    for told in (told for told in data.schedules if told.spec is not None and told.over_off is not None):
        assert told.spec is not None
        for cell in told.cells:
            one = data.evidence.best_trial(told.spec, cell.key)
            seen = one.cells[cell.key] if one else None
            gain = next(
                (c.ratio for v in data.verdicts for c in v.comparisons if c.spec == told.spec and c.key == cell.key),
                None,
            )
            n = str(cell.n) if cell.n else "off"
            rows.append((told.spec.label, cell_text(cell.key), n, ms(cell.tpot_s),
                         ms(seen.tpot_mean_s) if seen else NOT_MEASURED, figure(cell.throughput_tok_s),
                         figure(seen.throughput_tok_s if seen else None), ratio(gain)))  # fmt: skip
    columns = ("setting", "cell", "N here", "mean TPOT predicted, ms", "mean TPOT measured, ms",
               "throughput predicted, tok/s", "throughput measured, tok/s", "measured against off")  # fmt: skip
    return table(columns, rows)
