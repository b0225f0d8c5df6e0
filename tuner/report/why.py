"""Why the advice is what it is: what a verify step emits and what it costs; and how the study came to it."""

from __future__ import annotations

from tuner.decide.rank import Comparison
from tuner.measure.records import Trial
from tuner.report.advice import decisive, verdict_word
from tuner.report.data import ReportInput
from tuner.report.derived import break_even_point
from tuner.report.figures import cell_text, ratio
from tuner.spec.speculation import SpecConfig


def why(data: ReportInput) -> tuple[str, ...]:
    """Where the setting that matters does best and worst: tokens a verify step against what the step costs."""
    if verdict_word(data) == "undecided":
        return ()
    spec = _shown(data)
    seen = [c for v in data.verdicts for c in v.comparisons if c.spec == spec and c.ratio]
    seen.sort(key=lambda c: -(c.ratio.value if c.ratio else 0.0))
    return tuple(line for one in dict.fromkeys((seen[0], seen[-1])) if (line := _line(data, one)) is not None)


def steps(data: ReportInput) -> tuple[str, ...]:
    """The launches in order, each with the reason it was made: the very words of `tuner plan`."""
    return (*(_step(one.trial) for one in data.evidence.tried), _ended(data))


def _shown(data: ReportInput) -> SpecConfig:
    """The one setting for all traffic, or the one that came nearest where that is off."""
    best = data.recommendation.overall.best
    if not best.is_off and not best.by_load:
        return best
    found = [c for v in data.verdicts if (c := decisive(v)) is not None]
    return max(found, key=lambda c: c.ratio.value if c.ratio else 0.0).spec


def _line(data: ReportInput, shown: Comparison) -> str | None:
    one = data.evidence.best_trial(shown.spec, shown.key)
    point = break_even_point(data.evidence, one, shown.key) if one else None
    tau = one.cells[shown.key].tau if one else None
    if point is None or tau is None:
        return None
    return (
        f"{cell_text(shown.key)}: with {shown.spec.label} a step emits {tau.value:.2f} tokens and takes "
        f"{point.tau.value:.2f} times as long as a plain one; it pays where the first is larger. Measured: "
        f"{ratio(shown.ratio)}."
    )


def _step(trial: Trial) -> str:
    outcome = "" if trial.ok else f" ({trial.status})"
    return f"{trial.spec.label}: {trial.why}{outcome}"


def _ended(data: ReportInput) -> str:
    if data.left_to_try is not None:
        return f"Not launched, and it might have changed the advice: {data.left_to_try}"
    return "Then nothing untested could win by more than a tie."
