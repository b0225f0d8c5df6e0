"""Why the advice is what it is: what a verify step emits and what it costs, where that comes to what was measured; and
how the study came to it."""

from __future__ import annotations

from tuner.decide.rank import Comparison
from tuner.measure.records import Trial
from tuner.report.advice import decisive, verdict_word
from tuner.report.data import ReportInput
from tuner.report.figures import cell_text, listed, ratio
from tuner.report.step_account import explains, step_account
from tuner.spec.speculation import SpecConfig


def why(data: ReportInput) -> tuple[str, ...]:
    """Where the setting that matters does best and worst: tokens a verify step against what the step costs. Where it
    is lossy, that comes last."""
    if verdict_word(data) == "undecided":
        return ()
    spec = _shown(data)
    seen = [c for v in data.verdicts for c in v.comparisons if c.spec == spec and c.ratio]
    seen.sort(key=lambda c: -(c.ratio.value if c.ratio else 0.0))
    sound, lossy = [c for c in seen if not c.lossy], [c for c in seen if c.lossy]
    return tuple(_line(data, one) for one in dict.fromkeys((*sound[:1], *sound[-1:], *lossy[:1])))


def steps(data: ReportInput) -> tuple[str, ...]:
    """The launches in order, each with the reason it was made: the very words of `tuner plan`."""
    return (*(_step(one.trial) for one in data.evidence.tried), _ended(data))


def _shown(data: ReportInput) -> SpecConfig:
    """The one setting for all traffic, or the one that came nearest where that is off."""
    best = data.recommendation.overall.best
    if not best.is_off and not best.by_load:
        return best
    found = [c for v in data.verdicts if (c := decisive(v)) is not None]
    found = found or [c for v in data.verdicts for c in v.comparisons if c.ratio]
    return max(found, key=lambda c: c.ratio.value if c.ratio else 0.0).spec


def _line(data: ReportInput, shown: Comparison) -> str:
    account = step_account(data, shown)
    where = cell_text(shown.key)
    if account is None or shown.lossy or not explains(account, shown):
        return f"{where}: {_as_measured(data, shown)}."
    return (
        f"{where}: with {shown.spec.label} a step emits {account.tau.value:.2f} tokens and takes "
        f"{account.point.tau.value:.2f} times as long as a plain one; it pays where the first is larger. Measured: "
        f"{ratio(shown.ratio)}."
    )


def _as_measured(data: ReportInput, shown: Comparison) -> str:
    """What the requests themselves say, where step times do not come to it."""
    assert shown.ratio is not None
    label, value = shown.spec.label, shown.ratio.value
    if shown.lossy:
        return f"{label} measured {ratio(shown.ratio)}, and is not advised: {shown.lossy}"
    if shown.missed_slos:
        return f"{label} measured {ratio(shown.ratio)}, and misses the SLO ({'; '.join(shown.missed_slos)})"
    if shown.believed or shown.ratio.high < 1:
        return f"{label} measured {ratio(shown.ratio)}; step times do not explain it"
    if value <= 1:
        return f"{label} looks slower at {ratio(shown.ratio)}, but its interval holds 1: it is not told apart from off"
    return f"{label} looks {value:.2f}x as good as off, but {listed(_doubts(data, shown))}: it is not believed"


def _doubts(data: ReportInput, shown: Comparison) -> list[str]:
    """Why a gain above 1 is not believed."""
    assert shown.ratio is not None
    found, drift = [], next((v.drift for v in data.verdicts if v.key == shown.key), None)
    if shown.ratio.low <= 1:
        found.append(f"its interval [{shown.ratio.low:.2f}, {shown.ratio.high:.2f}] (n = {shown.ratio.n}) holds 1")
    if drift is not None and abs(drift.value - 1) >= shown.ratio.value - 1:
        found.append(f"off itself moved by {abs(drift.value - 1):.1%} between its two runs")
    return found or ["that is no more than chance and a relaunch may give"]


def _step(trial: Trial) -> str:
    outcome = "" if trial.ok else f" ({trial.status})"
    return f"{trial.spec.label}: {trial.why}{outcome}"


def _ended(data: ReportInput) -> str:
    if data.left_to_try is not None:
        return f"Not launched, and it might have changed the advice: {data.left_to_try}"
    return "Then nothing untested could win by more than a tie."
