"""Acceptance between two metric dumps, for people and as JSON."""

from __future__ import annotations

import json
from typing import Any

from tuner.measure.counters import CounterDelta

UNDEFINED = "undefined"


def acceptance_json(delta: CounterDelta) -> str:
    """One object; a figure that is undefined is null, and `reasons` says why."""
    return json.dumps(acceptance_dict(delta), indent=2)


def acceptance_dict(delta: CounterDelta) -> dict[str, Any]:
    counts = delta.counts
    reached = counts is not None and bool(counts.reached)
    return {
        "drafts": delta.drafts,
        "drafted": counts.drafted if counts else None,
        "accepted": counts.accepted if counts else None,
        "n": counts.n if counts and reached else None,
        "tau": counts.tau if counts else delta.tau_only,
        "alpha": counts.alpha if counts else None,
        "draft_acceptance_rate": counts.draft_acceptance_rate if counts else None,
        "a": list(counts.a or ()) if counts and reached else None,
        "alpha_by_position": list(counts.alpha_by_position or ()) if counts and reached else None,
        "reasons": list(delta.reasons),
    }


def acceptance_text(delta: CounterDelta) -> str:
    """A short table; every figure with its name from the definitions, every gap with its reason."""
    told = acceptance_dict(delta)
    lines = [
        f"drafting steps         {_number(told['drafts'])}",
        f"tokens drafted         {_number(told['drafted'])}",
        f"tokens accepted        {_number(told['accepted'])}",
        f"tau                    {_figure(told['tau'])}   tokens per verify step, bonus included",
        f"alpha                  {_figure(told['alpha'])}   accepted / (accepted + steps that ended in a rejection)",
        f"draft acceptance rate  {_figure(told['draft_acceptance_rate'])}   accepted / drafted; falls as N grows",
    ]
    if told["a"]:
        lines.append("")
        lines.append("  k    a_k     alpha_k")
        for k, (a, alpha) in enumerate(zip(told["a"], told["alpha_by_position"], strict=True), start=1):
            lines.append(f"  {k:<3}  {_figure(a)}   {_figure(alpha)}")
    lines += [f"note: {reason}" for reason in delta.reasons]
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return UNDEFINED if value is None else f"{value:,.0f}"


def _figure(value: float | None) -> str:
    return UNDEFINED if value is None else f"{value:.3f}"
