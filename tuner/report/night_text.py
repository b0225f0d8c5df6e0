"""Nights in the terminal: the outcome of one, two compared, and the list of all."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.report.night_rows import HEADERS, change_row, gate_lines, suspect_lines
from tuner.run.history_query import Run
from tuner.run.nights import Compared
from tuner.run.sweep_night import Outcome

#: Rows of a comparison in the terminal; the report has all of them.
MOST_ROWS = 40


def outcome_text(outcome: Outcome) -> str:
    """What `tuner sweep` prints."""
    lines = [outcome.headline, "", *gate_lines(outcome.data.compared), *suspect_lines(outcome.data.compared)]
    lines += [f"failed: {one.study}, launch {one.launch}, {one.setting}: {one.cause}" for one in outcome.data.failures]
    return "\n".join([*lines, *outcome.let_go, f"report: {outcome.folder / 'report.md'}"])


def compared_text(compared: Compared) -> str:
    """What `tuner compare` prints."""
    comparison = compared.comparison
    assert comparison is not None
    noise = comparison.noise
    drift = "not measured" if noise.launch is None else f"{noise.launch:.1%} a launch, from {noise.n} drifts of off"
    shown_rows = [change for change in comparison.changes if change.worse is not None][:MOST_ROWS]
    lines = [f"{comparison.before} -> {comparison.after}; noise between launches: {drift}", ""]
    lines += [padded(HEADERS, [change_row(change) for change in shown_rows]), ""]
    if len(comparison.changes) > len(shown_rows):
        lines += [f"{len(comparison.changes) - len(shown_rows)} more rows: --json has all", ""]
    lines += [*comparison.missing, *gate_lines(compared), *suspect_lines(compared)]
    return "\n".join(lines).rstrip()


def history_text(runs: Sequence[Run]) -> str:
    """What `tuner history` prints."""
    if not runs:
        return "no runs yet: `tuner sweep` and `tuner recommend` make some"
    headers = ("run", "name", "status", "state", "engines", "launches", "failed", "cells", "tags")
    rows = [
        (run.id, run.name, run.status.partition(":")[0], run.state or "-", run.engines or "-", str(run.trials),
         str(run.failed), str(run.cells), " ".join(run.tags) or "-")
        for run in runs
    ]  # fmt: skip
    return padded(headers, rows)


def padded(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they must be, two blanks between them."""
    lines = [tuple(headers), *(tuple(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(headers))]
    return "\n".join(
        "  ".join(value.ljust(w) for value, w in zip(line, widths, strict=True)).rstrip() for line in lines
    )
