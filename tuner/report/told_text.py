"""Advice from results that others measured, for people and for machines."""

from __future__ import annotations

import json
from typing import Any

from tuner.decide.told_advice import CellAdvice, ToldAdvice, place_text
from tuner.decide.told_costs import Cost

HEADLINES = {
    "on": "Turn it on: {best}.",
    "off": "Leave it off.",
    "mixed": "It depends on the {what}; one setting for all of it: {best}.",
    "undecided": "Whether to speculate cannot be said from these rows. Best of them: {best}.",
}
#: Where no setting is the best of all.
WITHOUT_BEST = {
    "mixed": "It depends on the {what}; there is no one setting for all of it.",
    "undecided": "Whether to speculate cannot be said from these rows.",
}
#: What a cell's place is made of.
PLACE = ("load", "temperature", "number of GPUs", "load")


def headline(advice: ToldAdvice) -> str:
    places = zip(*(cell.place for cell in advice.cells), strict=True)
    differing = [name for name, values in zip(PLACE, places, strict=False) if len(set(values)) > 1]
    text = HEADLINES[advice.verdict] if advice.best else WITHOUT_BEST[advice.verdict]
    return text.format(best=advice.best, what=" and the ".join(dict.fromkeys(differing)))


def told_text(advice: ToldAdvice) -> str:
    lines = [headline(advice), ""]
    if advice.ties:
        lines.append(f"Tied with it: {', '.join(advice.ties)}.")
    lines += [f"- {reason}" for reason in advice.reasons]
    lines += [f"- refused, {refused.what}: {refused.reason}" for refused in advice.refused]
    for cell in advice.cells:
        lines += ["", f"{place_text(cell.place)}:"]
        lines += [f"  {_cost(cell, cost)}" for cost in sorted(cell.costs, key=lambda c: c.value)]
    return "\n".join(lines)


def told_json(advice: ToldAdvice) -> str:
    made: dict[str, Any] = {
        "verdict": advice.verdict,
        "best": advice.best,
        "ties": list(advice.ties),
        "reasons": list(advice.reasons),
        "predicted": _predicted(advice),
        "refused": [{"row": refused.what, "reason": refused.reason} for refused in advice.refused],
        "cells": [_cell(cell) for cell in advice.cells],
        "worst_loss": [{"setting": label, "loss": loss} for label, loss in advice.single],
    }
    return json.dumps(made, indent=2, ensure_ascii=False, allow_nan=False)


def _predicted(advice: ToldAdvice) -> list[dict[str, Any]]:
    """Every figure here that nobody measured, and what it is read off: between measured N, or beyond them."""
    return [
        {"setting": cost.row.label, "where": place_text(cell.place), "basis": cost.predicted}
        for cell in advice.cells
        for cost in cell.costs
        if cost.predicted
    ]


def _cell(cell: CellAdvice) -> dict[str, Any]:
    concurrency, temperature, tp, rate = cell.place
    off = next((c.value for c in cell.costs if c.row.is_off), None)
    settings = [
        {"setting": c.row.label, "speedup": off / c.value if off else None, "predicted": c.predicted}
        for c in cell.costs
    ]
    return {
        "concurrency": concurrency, "rate": rate, "temperature": temperature, "tp": tp,
        "best": cell.best.row.label if cell.best else None, "ties": [c.row.label for c in cell.ties],
        "speedup": cell.gain, "settings": settings,
    }  # fmt: skip


def _cost(cell: CellAdvice, cost: Cost) -> str:
    off = next((c.value for c in cell.costs if c.row.is_off), None)
    if off:
        shown = f"{off / cost.value:.2f}x off"
    elif len({c.row.draft for c in cell.costs if c.row.method == cost.row.method}) > 1:
        shown = f"no ratio, since {cost.row.method} was measured with different drafts and off was not"
    else:
        shown = f"{min(c.value for c in cell.costs) / cost.value:.1%} of the best"
    return f"{cost.row.label}: {shown}" + (f" (predicted, {cost.predicted})" if cost.predicted else "")
