"""A plan for people and for machines."""

from __future__ import annotations

import json

from tuner.report.figures import listed, loads_text
from tuner.report.json_parts import config, place
from tuner.report.redact import shown_argv
from tuner.run.planning import Plan, PlannedLaunch


def plan_text(plan: Plan) -> str:
    lines = [f"{note}" for note in plan.notes]
    lines += [""] if lines else []
    for number, launch in enumerate(plan.launches, 1):
        lines.append(f"{number}. {launch.ask.spec.label} on {launch.engine}, {_minutes(launch)}, {_cells(launch)}")
        lines.append(f"   {launch.ask.why}")
    for engine, following in plan.then:
        lines.append(f"{engine}: {following}.")
    lines += [f"Not tried: {gone.what}: {gone.reason}" for gone in plan.removed]
    lines.append(f"Budget: {plan.launches_budget} launches, {plan.minutes_budget:g} minutes. Nothing was launched.")
    return "\n".join(lines)


def plan_json(plan: Plan) -> str:
    made = {
        "launches": [_launch(launch) for launch in plan.launches],
        "removed": [{"spec": gone.what, "reason": gone.reason} for gone in plan.removed],
        "then": [{"engine": engine, "why": following} for engine, following in plan.then],
        "notes": list(plan.notes),
        "budget": {"launches": plan.launches_budget, "minutes": plan.minutes_budget},
    }
    return json.dumps(made, indent=2, ensure_ascii=False, allow_nan=False)


def _launch(launch: PlannedLaunch) -> dict[str, object]:
    return {
        "engine": launch.engine,
        "role": launch.ask.role,
        "spec": config(launch.ask.spec),
        "command": list(shown_argv(launch.command)),
        "env": dict(launch.env),
        "cells": [place(key) for key in launch.cells],
        "why": launch.ask.why,
        "minutes": round(launch.minutes, 2),
        "minutes_from": "launches that were timed" if launch.measured else "the budget's even share: not measured yet",
    }


def _minutes(launch: PlannedLaunch) -> str:
    return f"about {launch.minutes:.1f} min" if launch.measured else f"{launch.minutes:.1f} min of the budget"


def _cells(launch: PlannedLaunch) -> str:
    count = f"{len(launch.cells)} cell{'s' if len(launch.cells) > 1 else ''}"
    loads = loads_text(dict.fromkeys(key.load for key in launch.cells))
    temperatures = listed(f"{t:g}" for t in dict.fromkeys(key.temperature for key in launch.cells))
    return f"{count} ({loads}; temperature {temperatures})"
