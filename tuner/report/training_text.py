"""What a training run ended with, for people and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tuner.run.training import Trained

#: tau is told for chains of so many drafted tokens.
TOLD_N = 3


def training_json(trained: Trained) -> str:
    """`out`, `training` (training.json as it is) and preflight's `findings`."""
    findings = [{"severity": f.severity, "rule": f.rule, "message": f.message} for f in trained.findings]
    return json.dumps({"out": str(trained.out), "training": trained.record, "findings": findings}, indent=2)


def training_text(trained: Trained) -> str:
    """Where it is, what was spent, and a line a held-out set."""
    record = trained.record
    spent = f"{record['steps']:,} steps, {record['rows']:,} rows, {record['minutes']:g} minutes"
    lines = [f"{record['method']} draft in {trained.out}: {record['parameters']:,} parameters, {spent}"]
    covered = record["vocabulary"]["coverage"]
    if covered is not None:
        lines.append(
            f"can draft {record['vocabulary']['tokens']:,} tokens, {covered:.1%} of what held-out answers hold"
        )
    lines.append("held-out prompts, greedy, without an engine (an engine's starts are others; measure it there):")
    for name, shares in record["held_out"]["without_engine"].items():
        lines.append(f"  {name}: {_line(shares)}")
    lines += [f"{finding.severity}: {finding.message}" for finding in trained.findings if finding.severity != "note"]
    return "\n".join(lines)


def tau(accepted: Sequence[float | None], n: int = TOLD_N) -> float | None:
    """1 + a_1 + ... + a_n; None where a place was not measured."""
    first = accepted[:n]
    if len(first) < n or any(share is None for share in first):
        return None
    return 1.0 + sum(share for share in first if share is not None)


def _line(shares: Mapping[str, Any]) -> str:
    told = tau(shares["a"])
    whole = f"tau {told:.2f} at N = {TOLD_N}" if told is not None else "tau not measured"
    alpha = " ".join("–" if share is None else f"{share:.3f}" for share in shares["alpha"])
    return f"{whole}, alpha_k {alpha} ({shares['starts']:,} starts)"
