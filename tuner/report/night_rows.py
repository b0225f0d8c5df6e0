"""Rows and objects of a comparison of nights, for every face that shows them."""

from __future__ import annotations

import json
from typing import Any

from tuner.decide.nights import Change, NightComparison, percent_worse
from tuner.decide.nights_noise import ENOUGH_PAIRS, Noise
from tuner.run.nights import Compared
from tuner.run.sweep_night import Outcome

#: An interval that reaches this far holds anything: few launches of off tell little of what launches differ by.
TELLS_NOTHING = 10.0
HEADERS = ("study", "setting", "where", "metric", "change", "interval", "n", "state")


def change_row(change: Change) -> tuple[str, ...]:
    where = f"{change.key.load.text}, T {change.key.temperature:g}" if change.key else "over all cells"
    if change.worse is None:
        return (change.study, change.setting, where, change.metric, "not measured", "-", "-", change.reason)
    low, high = sorted(percent_worse(change.metric, bound) for bound in (change.low, change.high))
    moved = percent_worse(change.metric, change.worse.value)
    state = f"{change.state} ({change.reason})" if change.reason else change.state
    interval = f"[{low:+.1%}, {high:+.1%}]" if high < TELLS_NOTHING else "not known yet: too few pairs of launches"
    return (
        change.study, change.setting, where, change.metric, f"{moved:+.1%}", interval, str(change.worse.n), state,
    )  # fmt: skip


def _change_dict(change: Change) -> dict[str, Any]:
    cell = None
    if change.key is not None:
        load = change.key.load
        cell = {"concurrency": load.concurrency, "rate": load.rate, "temperature": change.key.temperature}
    told: dict[str, Any] = {
        "study": change.study, "setting": change.setting, "cell": cell, "metric": change.metric,
        "state": change.state, "reason": change.reason, "change": None, "interval": None, "n": None,
    }  # fmt: skip
    if change.worse is not None and change.low == change.low:
        bounds = sorted(percent_worse(change.metric, bound) for bound in (change.low, change.high))
        moved = percent_worse(change.metric, change.worse.value)
        told |= {"change": moved, "interval": bounds, "n": change.worse.n}
    return told


def drifts_text(noise: Noise) -> str:
    """What the noise between launches comes from, and what had to be taken for granted."""
    pairs = "1 pair" if noise.pairs == 1 else f"{noise.pairs} pairs"
    text = f"from {noise.drifts} {'drift' if noise.drifts == 1 else 'drifts'} of off in {pairs} of launches"
    if noise.common is None and noise.drifts > noise.pairs:
        text += f" (each pair counts as one drift: under {ENOUGH_PAIRS} pairs cannot tell how alike its loads drift)"
    return text


def _noise_dict(comparison: NightComparison) -> dict[str, Any]:
    """TPOT's noise between launches, and that of each metric compared as far as off's drifts tell it."""
    return _launch_dict(comparison.noise) | {"metrics": {m: _launch_dict(n) for m, n in comparison.noises.items()}}


def _launch_dict(noise: Noise) -> dict[str, Any]:
    known = noise.launch is not None
    return {
        "launch_sd": noise.launch, "drifts": noise.drifts, "launch_pairs": noise.pairs,
        "degrees_of_freedom": noise.degrees if known else None, "correlation_of_loads": noise.common,
    }  # fmt: skip


def gate_lines(compared: Compared) -> list[str]:
    lines = []
    for result in compared.gates:
        lines.append(f"- gate `{result.gate.text}`: {result.state}")
        lines += [f"  - {reason}" for reason in result.reasons]
    return lines


def suspect_lines(compared: Compared) -> list[str]:
    return [f"- {one.study}: {one.text}" for one in compared.suspects]


def outcome_json(outcome: Outcome) -> str:
    told = {
        "night": outcome.folder.name,
        "status": outcome.status,
        "state": outcome.state,
        "headline": outcome.headline,
    }
    failed = [
        {"study": one.study, "launch": one.launch, "setting": one.setting, "cell": one.cell, "cause": one.cause}
        for one in outcome.data.failures
    ]
    return json.dumps(told | {"failures": failed} | compared_dict(outcome.data.compared), indent=2)


def compared_dict(compared: Compared) -> dict[str, Any]:
    """Shares: `change` is of the metric itself, so that +0.08 of TPOT and -0.08 of tau are both worse."""
    comparison = compared.comparison
    return {
        "baseline": compared.before.id if compared.before else None,
        "noise": None if comparison is None else _noise_dict(comparison),
        "changes": [] if comparison is None else [_change_dict(change) for change in comparison.changes],
        "missing": [] if comparison is None else list(comparison.missing),
        "unmeasured": [
            {"study": one.study, "setting": one.setting, "cells": len(one.keys), "failed": one.failed}
            for one in compared.unmeasured
        ],
        "suspects": [{"study": one.study, "kind": one.kind, "text": one.text} for one in compared.suspects],
        "gates": [{"gate": g.gate.text, "state": g.state, "reasons": list(g.reasons)} for g in compared.gates],
    }


def compared_json(compared: Compared) -> str:
    return json.dumps({"run": compared.after.id} | compared_dict(compared), indent=2)
