"""Nights in the terminal: the outcome of one, and two compared."""

from __future__ import annotations

from tuner.report.history_text import padded
from tuner.report.night_rows import HEADERS, change_row, drifts_text, gate_lines, suspect_lines
from tuner.run.nights import Compared
from tuner.run.sweep_night import Outcome

#: Rows of a comparison in the terminal; the report has all of them.
MOST_ROWS = 40


def outcome_text(outcome: Outcome) -> str:
    """What `tuner sweep` prints."""
    lines = [outcome.headline, "", *gate_lines(outcome.data.compared), *suspect_lines(outcome.data.compared)]
    lines += [f"failed: {one.study}, launch {one.launch}, {one.setting}: {one.cause}" for one in outcome.data.failures]
    return "\n".join([*lines, *outcome.let_go, f"report: {outcome.folder / 'report.md'} and report.html"])


def compared_text(compared: Compared) -> str:
    """What `tuner compare` prints."""
    comparison = compared.comparison
    assert comparison is not None
    noise = comparison.noise
    drift = "not measured" if noise.launch is None else f"{noise.launch:.1%} a launch, {drifts_text(noise)}"
    shown_rows = [change for change in comparison.changes if change.worse is not None][:MOST_ROWS]
    lines = [f"{comparison.before} -> {comparison.after}; noise between launches: {drift}", ""]
    if compared.nothing:
        lines += ["Nothing could be compared: no figure was measured in both.", ""]
    else:
        lines += [padded(HEADERS, [change_row(change) for change in shown_rows]), ""]
    if len(comparison.changes) > len(shown_rows):
        lines += [f"{len(comparison.changes) - len(shown_rows)} more rows: --json has all", ""]
    lines += [*comparison.missing, *gate_lines(compared), *suspect_lines(compared)]
    return "\n".join(lines).rstrip()
