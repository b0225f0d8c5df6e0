"""How good a draft must be, for machines: a part of `recommendation.json`."""

from __future__ import annotations

from tuner.decide.break_even import Need
from tuner.report.draft_needs import DraftNeed
from tuner.report.json_parts import Json, config, estimate, place
from tuner.report.training import Recipe


def need_json(one: DraftNeed) -> Json:
    """`targets` are empty where a verify step was measured quicker than a plain one: nothing can be asked then."""
    defined = one.reading != "undefined"
    return {
        "cell": place(one.key),
        "config": config(one.spec),
        "basis": one.basis,
        "reading": one.reading,
        "cost": estimate(one.cost),
        "gain_if_all_accepted": estimate(one.most if defined else None),
        "tau": estimate(one.tau),
        "predicted_tau": one.predicted_tau,
        "alpha_of_tau": one.own_alpha,
        "targets": [_target(one, need, least) for need, least in zip(one.needs, one.least, strict=True)]
        if defined
        else [],
    }


def recipe_json(recipe: Recipe) -> Json:
    """`run_here` is False: nobody ran these commands."""
    one = recipe.trainer
    return {
        "tool": one.name,
        "engine": one.engine,
        "version": one.version,
        "sources": list(one.sources),
        "commands": list(recipe.commands),
        "run_here": False,
    }


def _target(one: DraftNeed, need: Need, least: tuple[int, float] | None) -> Json:
    value, low, high = need.alpha if one.alpha_defined else (None, None, None)
    return {
        "gain": need.gain,
        "tau": estimate(need.tau),
        "alpha": value,
        "alpha_low": low,
        "alpha_high": high,
        "reachable": need.reachable,
        "missing_tau": need.missing(one.tau_value),
        "standing": one.standing(need.gain),
        "least_asked": {"n": least[0], "alpha": least[1]} if least else None,
    }
