"""What would change the advice, from the distance of each cell to its break-even and from what was not measured."""

from __future__ import annotations

from collections.abc import Iterator

from tuner.engines.sglang_lossy import BY_ARGMAX
from tuner.measure.lossless import UNSAFE
from tuner.measure.records import CellKey
from tuner.report.advice import decisive, gain_word
from tuner.report.data import ReportInput
from tuner.report.derived import BreakEvenPoint
from tuner.report.figures import alphas, cell_text, cells_text, figure, listed, loads_text
from tuner.report.step_account import step_account
from tuner.report.ties import could_part
from tuner.spec.speculation import LOOKUP_METHODS


def what_would_change(data: ReportInput) -> tuple[str, ...]:
    untried = [f"Not launched yet: {data.left_to_try}."] if data.left_to_try else []
    return (*untried, *_acceptance(data), *_lossy(data), *could_part(data), *_outside(data))


def measured_range(data: ReportInput) -> str:
    """Loads, temperatures and prompts the advice is made for."""
    traffic, keys = data.workload.traffic, data.evidence.keys
    loads = loads_text(dict.fromkeys(key.load for key in keys)) if keys else "no load"
    temperatures = listed(f"{t:g}" for t in dict.fromkeys(key.temperature for key in keys))
    sets = listed(f"`{share.set}`" for share in traffic.prompts)
    return f"{loads}; temperature {temperatures}; prompts {sets}; at most {traffic.max_output_tokens} output tokens"


def alpha_text(point: BreakEvenPoint) -> str:
    """The break-even alpha with its interval; why not, where there is none. Lookups draft in some steps only: no alpha
    is set against theirs."""
    if point.spec.method in LOOKUP_METHODS:
        return ""
    if not point.alpha_defined:
        return "not defined (one alpha does not give its tau)"
    if point.alpha[0] is None:
        return f"none: needs tau over {point.spec.depth + 1}"
    return f"{alphas(point.alpha)}, n = {point.tau.n}"


#: What acceptance cannot tell, by what was found: step times that do not come to what was measured.
UNTOLD = {
    "undefined": "a verify step was measured quicker than a plain one, which is noise or drift, so no break-even is "
    "defined: go by the measured",
    "contradicts": "step times do not explain what was measured: go by the measured",
    "pays": "by its step times it pays already, but its measured gain is not believed; more requests or a quieter "
    "machine would tell, not a better draft: go by the measured",
}


def _acceptance(data: ReportInput) -> Iterator[str]:
    """How far acceptance may fall, or must rise: a sentence a cell; a sentence a setting where it cannot tell."""
    untold: dict[tuple[str, str], list[CellKey]] = {}
    for verdict in data.verdicts:
        rests_on = decisive(verdict)
        account = step_account(data, rests_on) if rests_on else None
        if account is None:
            continue
        point = account.point
        pays = account.reading == "agrees" and account.gain > 1 and not verdict.on
        reading: str = "pays" if pays else account.reading
        if reading in UNTOLD:
            untold.setdefault((point.spec.label, reading), []).append(verdict.key)
            continue
        alpha = f", alpha {alpha_text(point)}" if point.alpha_defined else ""
        turns = "stops paying below" if verdict.on else "begins to pay above"
        yield (
            f"{cell_text(verdict.key)}: {point.spec.label} {turns} tau {figure(point.tau, decimals=2)}{alpha}; "
            f"measured tau {figure(account.tau, decimals=2)}."
        )
    keys = [v.key for v in data.verdicts]
    for (label, reading), where in untold.items():
        yield f"{label} at {cells_text(where, keys)}: {UNTOLD[reading]} {gain_word(data)}."


def _lossy(data: ReportInput) -> Iterator[str]:
    """No sample makes a setting lossless, and no gain makes it advice."""
    found: dict[tuple[str, str, str], list[CellKey]] = {}
    for one in (c for verdict in data.verdicts for c in verdict.comparisons if c.lossy):
        word, other = "lossy", "only a build or an option whose output is the target's own would change that"
        if BY_ARGMAX in str(one.lossy):
            other = "only an engine build that verifies by sampling would change that"
        elif UNSAFE in str(one.lossy):
            word, other = "unsafe", "find out why first, with `tuner verify`"
        found.setdefault((one.spec.label, word, other), []).append(one.key)
    keys = [v.key for v in data.verdicts]
    for (label, word, other), where in found.items():
        yield f"{label} is {word} at {cells_text(where, keys)}, whatever it gains: {other}."


def _outside(data: ReportInput) -> Iterator[str]:
    yield f"Anything outside what was measured: {measured_range(data)}."
    env = data.environment
    engine = f"{env.engine} {env.version}" if env else "the engine"
    yield f"Another machine, another model or draft, a version other than {engine}, or other engine options."
