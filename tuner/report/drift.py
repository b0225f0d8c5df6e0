"""How far off itself moved between its first and its last run: what that does to every speed-up, in words."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.decide.evidence import Evidence
from tuner.decide.rank import Verdict
from tuner.measure.records import CellKey, Load
from tuner.measure.statistics import Estimate
from tuner.report.figures import change, listed, loads_text, moved

#: Above this the reader must hear of it before anything else.
MUCH = 0.10


def drifts_by_load(verdicts: Sequence[Verdict]) -> tuple[tuple[Load, Estimate | None], ...]:
    return tuple({v.key.load: v.drift for v in verdicts}.items())


def drift_caution(evidence: Evidence, verdicts: Sequence[Verdict]) -> str | None:
    """Where off moved by more than a tenth: by how much, which way, and whom that favours. None: nowhere."""
    much = [(load, d) for load, d in drifts_by_load(verdicts) if d is not None and abs(d.value - 1) > MUCH]
    if not much:
        return None
    shown = "; ".join(f"{load.text}{_temperature(evidence, load)} {moved(drift)}" for load, drift in much)
    better, worse = [load for load, d in much if d.value > 1], [load for load, d in much if d.value < 1]
    parts = []
    if better:
        parts.append(
            f"At {loads_text(better)} its last run was the better one: speed-ups are over the first, so they are "
            "flattered by as much at most, which favours speculation"
        )
    if worse:
        parts.append(
            f"At {loads_text(worse)} its last run was the worse one: speed-ups are over the first, so they are "
            "understated by as much at most, which favours off"
        )
    return f"Off itself moved between its first and its last run: {shown}. {'. '.join(parts)}"


def drift_sentence(evidence: Evidence, verdicts: Sequence[Verdict]) -> str:
    """The largest move, and the temperatures at which nobody looked."""
    seen = [(load, drift) for load, drift in drifts_by_load(verdicts) if drift is not None]
    if not seen:
        return "Off was not measured a second time, so drift is not measured and no gain could be held against it."
    load, drift = max(seen, key=lambda pair: abs(pair[1].value - 1))
    text = (
        f"Off was measured first and again last; its largest move was {moved(drift)} at "
        f"{load.text} (above 0 is better), and a gain no larger than its load's drift is not advised."
    )
    if missing := _not_repeated(evidence):
        text += (
            f" At temperature {listed(f'{t:g}' for t in missing)} off was not measured again: the drift at the other "
            "is held against gains there."
        )
    return text


def largest_move(verdicts: Sequence[Verdict]) -> str | None:
    """`+38.5%`; None where off was measured once."""
    seen = [drift.value - 1 for _, drift in drifts_by_load(verdicts) if drift is not None]
    return change(max(seen, key=abs)) if seen else None


def _repeated(evidence: Evidence) -> list[CellKey]:
    return [key for key in evidence.keys if sum(key in one.cells for one in evidence.baselines) > 1]


def _not_repeated(evidence: Evidence) -> list[float]:
    again = {key.temperature for key in _repeated(evidence)}
    return [t for t in dict.fromkeys(key.temperature for key in evidence.keys) if t not in again] if again else []


def _temperature(evidence: Evidence, load: Load) -> str:
    """Of the cell that the drift was taken from."""
    at = next((key.temperature for key in _repeated(evidence) if key.load == load), None)
    return "" if at is None else f" (temperature {at:g})"
