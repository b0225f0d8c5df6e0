"""How sure the advice is, in sentences: pairs, drift, the luck of a launch, predictions, what is missing."""

from __future__ import annotations

import math

from tuner.decide.launch_luck import PRIOR_SD, launch_luck
from tuner.report.advice import OBJECTIVES
from tuner.report.calibration import confirmations, worst_error
from tuner.report.data import ReportInput
from tuner.report.differences import flags_of
from tuner.report.drift import drift_sentence, largest_move
from tuner.report.figures import cell_text, change, listed, loads_text
from tuner.report.redact import shown_argv

#: Flags that say what is speculated with begin so, on both engines.
SAYS_SPECULATION = "--spec"


def how_sure(data: ReportInput, output: str | None = None) -> tuple[str, ...]:
    """What stands behind the advice, and what does not. `output`: other words on whether it is still the target's."""
    ratios = [c.ratio for v in data.verdicts for c in v.comparisons if c.ratio]
    lines = []
    if ratios:
        least, most = min(r.n for r in ratios), max(r.n for r in ratios)
        pairs = f"{least}" if least == most else f"{least} to {most}"
        lines.append(
            f"Every gain is a ratio over {pairs} requests that both arms ran with the same prompts; in brackets its "
            "95 percent interval from a bootstrap over requests."
        )
    lines += [*_one_wave(data), *_uneven(data)]
    lines.append(drift_sentence(data.evidence, data.verdicts))
    lines.append(_relaunch(data))
    worst = worst_error(confirmations(data.evidence))
    if worst:
        lines.append(
            f"What was predicted of a setting before its launch missed mean TPOT by {change(worst.error)} at most "
            f"({worst.spec.label}, {cell_text(worst.key)})."
        )
    if data.status != "complete":
        lines.append(
            f"The study is not complete ({data.status}): settings it did not reach could still be better.{_more(data)}"
        )
    lines.append(f"Output still the target's: {output or data.losslessness or 'not verified in this study'}.")
    return tuple(lines)


def _one_wave(data: ReportInput) -> list[str]:
    """Requests that all ran at once shared every step: they are hardly several witnesses of what a step takes."""
    cells = [cell for one in data.evidence.tried for cell in one.cells.values()]
    loads = [c.key.load for c in cells if c.key.load.concurrency and 1 < c.requests <= c.key.load.concurrency]
    if not loads:
        return []
    return [
        f"At {loads_text(dict.fromkeys(loads))} a cell is one wave, whose requests shared their steps: its intervals "
        "hold how they differ and not how another wave would; more measure.waves would tell."
    ]


def _uneven(data: ReportInput) -> list[str]:
    """Flags that only launches with speculation carried, beside those that say the speculation itself."""
    commands = {one.spec.is_off: flags_of(shown_argv(one.trial.command)) for one in data.evidence.tried}
    if set(commands) != {True, False}:
        return []
    equal = {flag.partition(" ")[0] for flag in commands[True]}
    names = [(flag.partition(" ")[0], flag) for flag in commands[False]]
    more = [flag for name, flag in names if name not in equal and not name.startswith(SAYS_SPECULATION)]
    if not more:
        return []
    shown = listed([f"`{flag}`" for flag in more])
    return [f"Launches with speculation alone carried {shown}: what that costs is in their figures."]


def _relaunch(data: ReportInput) -> str:
    move, objective = largest_move(data.verdicts), OBJECTIVES[data.evidence.objective]
    source = f"the {PRIOR_SD:.0%} that is held beforehand" + (f" and off's drift of {move} at most" if move else "")
    return (
        "Each setting but off was launched once, on one machine, and the intervals hold the spread between requests. "
        f"A relaunch alone is held to move {objective} by {launch_luck(data.evidence):.1%} (one standard deviation, "
        f"from {source}): a gain is believed where its interval, with that in it, stays above 1."
    )


def _more(data: ReportInput) -> str:
    """The command that goes on, where the minutes ended the study."""
    if data.in_night or "minutes of the budget" not in data.status:
        return ""
    minutes = math.ceil(2 * data.workload.budget.minutes / 10) * 10
    again = f"`tuner recommend {data.header.name}.yaml --resume --minutes {minutes}`"
    return f" It goes on from here with {again} (the budget was {data.workload.budget.minutes:g} minutes)."
