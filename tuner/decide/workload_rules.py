"""What a workload, or a set of trials, cannot tell: rules on the evidence as a whole, in words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tuner.decide.evidence import Evidence
from tuner.measure.finding import Finding
from tuner.measure.records import Load
from tuner.spec.workload import Workload

#: Names of models that were tuned on a chat template.
TUNED = re.compile(r"(^|[-_./])(instruct|chat|it)($|[-_.])", re.IGNORECASE)


def workload_findings(workload: Workload) -> Iterator[Finding]:
    """Before anything is measured: what the figures of this workload will not mean. With one that blocks they give no
    advice."""
    if workload.sampling.ignore_eos:
        yield Finding(
            "forced-length",
            "ignore_eos forces answers beyond their end, where text repeats: acceptance and the best N are not those "
            "of your traffic; only latency at that acceptance is. Measure real prompts without it",
            blocks=True,
        )
    if workload.traffic.endpoint == "completions" and TUNED.search(workload.model):
        yield Finding(
            "no-chat-template",
            f"{workload.model} was tuned on a chat template and endpoint completions sends none: acceptance falls "
            "towards 1; use endpoint chat unless your traffic does so too",
        )


def evidence_findings(evidence: Evidence, served_temperatures: Sequence[float] = ()) -> Iterator[Finding]:
    """Of all trials together: temperatures that were not measured, and loads at which a setting died."""
    measured = sorted({key.temperature for key in evidence.keys})
    for temperature in served_temperatures:
        if measured and temperature not in measured:
            shown = ", ".join(f"{t:g}" for t in measured)
            text = f"measured at temperature {shown} only: acceptance falls as it rises, so nothing is said of "
            yield Finding("other-temperature", f"{text}{temperature:g}", blocks=True)
    for one in evidence.tried:
        lost = died_at(evidence, one.trial.number)
        if lost is not None:
            text = f"{one.spec.label} died at {lost.text} ({one.trial.status}): it is not advised there or above"
            yield Finding("died-under-load", text)


def died_at(evidence: Evidence, number: int) -> Load | None:
    """The least load of off that a failed launch ended without, and that no other launch of the setting measured; None
    for one that measured all, or nothing at all."""
    one = next(tried for tried in evidence.tried if tried.trial.number == number)
    if not one.trial.status.startswith("failed") or not one.trial.cells:
        return None
    loads = {cell.key.load for tried in evidence.tried if tried.spec == one.spec for cell in tried.trial.cells}
    missing = {key.load for off in evidence.baselines for key in off.cells} - loads
    return min(missing, key=lambda load: (load.concurrency or 0, load.rate or 0), default=None)
