"""`report.md` of a night: the headline, gates, changes, suspects, failures and trend, in Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from tuner.decide.nights_gates import shown
from tuner.report.night_rows import HEADERS, change_row, gate_lines, suspect_lines
from tuner.report.tables import table
from tuner.run.files import write_atomic
from tuner.run.nights import Compared, NightData
from tuner.run.sweep_night import Outcome


def write_night_report(outcome: Outcome) -> None:
    write_atomic(outcome.folder / "report.md", night_page(outcome))


def night_page(outcome: Outcome) -> str:
    """`report.md` of a night."""
    return "\n".join(_page(outcome)).rstrip() + "\n"


def _page(outcome: Outcome) -> Iterator[str]:
    data, compared = outcome.data, outcome.data.compared
    yield f"# {compared.after.name}, {compared.after.created[:16].replace('T', ' ')}\n"
    yield f"{outcome.headline}\n"
    yield "## Gates\n"
    yield "\n".join(gate_lines(compared)) or "The sweep has no gates."
    yield "\n## What changed since the baseline\n"
    yield from _changes(compared)
    yield "\n## Suspects\n"
    yield "\n".join(suspect_lines(compared)) or "Engine, drafts, arguments and machine are as they were."
    yield "\n## Failures\n"
    yield from _failures(data)
    yield "\n## Trend\n"
    yield _trend(data)
    yield f"\n## How to reproduce\n\n`tuner sweep FILE` with the file in {outcome.folder.name}/sweep.json, on the"
    yield "machine it names; `tuner compare` makes the table above again from the stored records."


def _changes(compared: Compared) -> Iterator[str]:
    comparison = compared.comparison
    if comparison is None:
        yield "There is no baseline yet."
        return
    noise = comparison.noise
    drift = "not measured" if noise.launch is None else f"{noise.launch:.1%} (from {noise.n} drifts of off)"
    yield f"Against {comparison.before}, on the same prompts. What two launches differ by: {drift}. Intervals hold that"
    yield "noise and the number of comparisons; the narrow ones of the prompts alone are in the JSON.\n"
    yield _markdown(HEADERS, [change_row(change) for change in comparison.changes])
    yield from (f"\n- {sentence}" for sentence in comparison.missing)


def _failures(data: NightData) -> Iterator[str]:
    if not data.failures:
        yield "None."
    for one in data.failures:
        where = f" at {one.cell}" if one.cell else ", before it served"
        yield f"- {one.study}, launch {one.launch}, {one.setting}{where}: {one.cause}\n"
        yield "\n".join(["  ```", *(f"  {line}" for line in one.log_tail[-10:]), "  ```"])


def _trend(data: NightData) -> str:
    """The last nights, figure by figure of the heaviest cells is for the plots; here one line a night."""
    rows = []
    for run, own in data.trend[-14:]:
        values = [[one.value for one in own if one.metric == metric] for metric in ("tpot_p50", "tau", "speedup")]
        shown_values = [
            shown(metric, sum(v) / len(v)) if v else "not measured"
            for metric, v in zip(("tpot_p50", "tau", "speedup"), values, strict=True)
        ]
        rows.append((run.id, run.state or "-", *shown_values))
    return _markdown(("night", "state", "TPOT p50, mean of cells", "tau, mean", "speed-up, mean"), rows)


def _markdown(headers: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    return table(headers, rows).markdown
