"""What would change the advice, from the distance of each cell to its break-even and from what was not measured."""

from __future__ import annotations

from collections.abc import Iterator

from tuner.decide.rank import Verdict
from tuner.measure.summary import CellSummary
from tuner.report.advice import decisive
from tuner.report.data import ReportInput
from tuner.report.derived import BreakEvenPoint, break_even_point
from tuner.report.figures import cell_text, figure, listed, loads_text


def what_would_change(data: ReportInput) -> tuple[str, ...]:
    return (*_acceptance(data), *_ties(data), *_outside(data))


def measured_range(data: ReportInput) -> str:
    """Loads, temperatures and prompts the advice is made for."""
    traffic, keys = data.workload.traffic, data.evidence.keys
    loads = loads_text(dict.fromkeys(key.load for key in keys)) if keys else "no load"
    temperatures = listed(f"{t:g}" for t in dict.fromkeys(key.temperature for key in keys))
    sets = listed(f"`{share.set}`" for share in traffic.prompts)
    return f"{loads}; temperature {temperatures}; prompts {sets}; at most {traffic.max_output_tokens} output tokens"


def alpha_text(point: BreakEvenPoint) -> str:
    """The break-even alpha with its interval; why not, where there is none."""
    if not point.alpha_defined:
        return "not defined (one alpha does not give its tau)"
    value, low, high = (None if a is None else f"{a:.3f}" for a in point.alpha)
    if value is None:
        return f"none: needs tau over {point.spec.depth + 1}"
    return f"{value} [{low}, {high or 'none'}], n = {point.tau.n}"


def _acceptance(data: ReportInput) -> Iterator[str]:
    """One sentence a cell: how far acceptance may fall, or must rise."""
    for verdict in data.verdicts:
        found = _point(data, verdict)
        if found is None:
            continue
        point, cell = found
        alpha = f", alpha {alpha_text(point)}" if point.alpha_defined else ""
        turns = "stops paying below" if verdict.on else "begins to pay above"
        yield (
            f"{cell_text(verdict.key)}: {point.spec.label} {turns} tau {figure(point.tau)}{alpha}; measured tau "
            f"{figure(cell.tau)}."
        )


def _point(data: ReportInput, verdict: Verdict) -> tuple[BreakEvenPoint, CellSummary] | None:
    rests_on = decisive(verdict)
    one = data.evidence.best_trial(rests_on.spec, verdict.key) if rests_on else None
    point = break_even_point(data.evidence, one, verdict.key) if one else None
    return (point, one.cells[verdict.key]) if point and one else None


def _ties(data: ReportInput) -> Iterator[str]:
    for verdict in data.verdicts:
        if verdict.ties:
            yield (
                f"{cell_text(verdict.key)}: more requests could part {verdict.best.label} from "
                f"{listed(spec.label for spec in verdict.ties)}, which are tied now."
            )


def _outside(data: ReportInput) -> Iterator[str]:
    yield f"Anything outside what was measured: {measured_range(data)}."
    env = data.environment
    engine = f"{env.engine} {env.version}" if env else "the engine"
    yield f"Another machine, another model or draft, a version other than {engine}, or other engine options."
