"""`recommendation.json`: the advice for machines, as `recommendation.schema.json` describes it. Seconds and ratios."""

from __future__ import annotations

import json
from pathlib import Path

from tuner.decide.rank import Comparison, Verdict
from tuner.decide.schedule_verdict import ScheduleVerdict
from tuner.decide.tasks import TaskAdvice
from tuner.report.advice import headline, verdict_word
from tuner.report.calibration import confirmations
from tuner.report.changes import what_would_change
from tuner.report.data import EnginesCompared, ReportInput
from tuner.report.derived import BreakEvenPoint
from tuner.report.draft_json import need_json, recipe_json
from tuner.report.draft_needs import draft_needs
from tuner.report.json_parts import Json, config, estimate, place
from tuner.report.redact import shown_argv
from tuner.report.step_account import step_account
from tuner.report.sureness import how_sure
from tuner.report.training import recipes
from tuner.report.turns_text import turn_lines
from tuner.report.why import steps, why
from tuner.spec.speculation import SpecConfig

SCHEMA_VERSION = 1
SCHEMA_PATH = Path(__file__).with_name("recommendation.schema.json")


def recommendation_json(data: ReportInput) -> str:
    return json.dumps(as_dict(data), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def as_dict(data: ReportInput) -> Json:
    header, needs = data.header, draft_needs(data)
    return {
        "schema_version": SCHEMA_VERSION,
        "study": {"id": header.id, "created": header.created, "status": data.status, "seed": header.seed},
        "workload": {"name": header.name, "hash": header.workload_hash, "model": data.workload.model},
        "objective": data.evidence.objective,
        "verdict": verdict_word(data),
        "headline": headline(data),
        "why": list(why(data)),
        "how_sure": list(how_sure(data)),
        "losslessness": data.losslessness,
        "best": _best(data),
        "engines": _engines(data.engines),
        "cells": [_cell(data, verdict) for verdict in data.verdicts],
        "tasks": [_task(advice) for advice in data.tasks],
        "schedules": [_schedule(told) for told in data.schedules],
        "turns": list(turn_lines(data)),
        "draft_needs": [need_json(one) for one in needs],
        "training": [recipe_json(recipe) for recipe in recipes(data, needs)],
        "steps": list(steps(data)),
        "launch": [_launch(data, spec) for spec in data.advised],
        "environment": _environment(data),
        "host": header.host.to_dict(),
        "predictions": _predictions(data),
        "failed_trials": _failed(data),
        "cautions": list(data.cautions),
        "would_change": list(what_would_change(data)),
    }


def _best(data: ReportInput) -> Json:
    overall = data.recommendation.overall
    worst = {"cell": place(overall.worst[0]), "ratio": overall.worst[1]} if overall.worst else None
    lost = overall.worst_loss
    return {
        "config": config(overall.best),
        "ratio": estimate(overall.ratio),
        "worst": worst,
        "regret": overall.regret,
        "worst_loss": {"cell": place(lost[0]), "loss": lost[1]} if lost else None,
        "reason": overall.reason,
    }


def _engines(compared: EnginesCompared | None) -> Json | None:
    """`ratio`: how many times better `second` is, each at its own advice, with the luck of both launches in it."""
    if compared is None:
        return None
    duels = [
        {"first": duel.first, "second": duel.second, "ratio": estimate(duel.claim), "winner": duel.winner}
        for duel in compared.duels
    ]
    return {"sentence": compared.sentence, "best": compared.best, "duels": duels}


def _cell(data: ReportInput, verdict: Verdict) -> Json:
    return {
        "cell": place(verdict.key),
        "on": verdict.on,
        "config": config(verdict.best),
        "ratio": estimate(verdict.ratio),
        "reason": verdict.reason,
        "ties": [config(spec) for spec in verdict.ties],
        "drift": estimate(verdict.drift),
        "comparisons": [_comparison(data, c) for c in verdict.comparisons],
    }


def _task(advice: TaskAdvice) -> Json:
    lost = advice.worst_loss
    return {
        "task": advice.task,
        "share": advice.share,
        "best": config(advice.own.best),
        "gain_of_best_for_all": estimate(advice.gain),
        "regret": advice.regret,
        "worst_loss": {"cell": place(lost[0]), "loss": lost[1]} if lost else None,
        "cells": [
            {"cell": place(v.key), "config": config(v.best), "ratio": estimate(v.ratio), "reason": v.reason}
            for v in advice.verdicts
        ],
    }


def _schedule(told: ScheduleVerdict) -> Json:
    """`n_by_load`: [first, last, N] by running requests."""
    return {
        "method": told.way,
        "deployed": told.deployed,
        "reason": told.reason,
        "config": config(told.spec) if told.spec else None,
        "n_by_load": [[s.start, s.end, s.n] for s in told.stretches],
        "static": config(told.static) if told.static else None,
        "over_static": estimate(told.over_static),
        "over_off": estimate(told.over_off),
        "expected": estimate(told.expected),
        "cells": [
            {
                "cell": place(c.key),
                "n": c.n,
                "predicted_tpot_s": estimate(c.tpot_s),
                "predicted_throughput_tok_s": estimate(c.throughput_tok_s),
                "predicted_goodput": estimate(c.goodput),
            }
            for c in told.cells
        ],
    }


def _comparison(data: ReportInput, comparison: Comparison) -> Json:
    one = data.evidence.best_trial(comparison.spec, comparison.key)
    cell = one.cells[comparison.key] if one else None
    account = None if comparison.spec.is_off else step_account(data, comparison)
    # Below 1 it is noise or drift, and no target.
    defined = account is not None and account.reading != "undefined"
    return {
        "config": config(comparison.spec),
        "ratio": estimate(comparison.ratio),
        "feasible": comparison.feasible,
        "missed_slos": list(comparison.missed_slos),
        "believed": comparison.believed,
        "tpot_p50_s": estimate(cell.tpot_p50_s if cell else None),
        "ttft_p50_s": estimate(cell.ttft_p50_s if cell else None),
        "throughput_tok_s": estimate(cell.throughput_tok_s if cell else None),
        "tau": estimate(cell.tau if cell else None),
        "alpha": estimate(cell.alpha if cell else None),
        "break_even": _break_even(account.point) if account and defined else None,
    }


def _break_even(point: BreakEvenPoint) -> Json:
    return {"tau": estimate(point.tau), "alpha": point.alpha[0] if point.alpha_defined else None}


def _launch(data: ReportInput, spec: SpecConfig) -> Json:
    argv = data.deploy.get(spec)
    return {"config": config(spec), "argv": list(shown_argv(argv)) if argv is not None else None}


def _environment(data: ReportInput) -> Json | None:
    env = data.environment
    if env is None:
        return None
    fields = ("name", "engine", "version", "device")
    return {name: getattr(env, name) for name in fields} | {
        "corrections": list(env.corrections),
        "notes": list(env.notes),
    }


def _predictions(data: ReportInput) -> list[Json]:
    """Mean TPOT, seconds, predicted before the launch and measured by it."""
    return [
        {
            "config": config(c.spec),
            "cell": place(c.key),
            "predicted_s": estimate(c.predicted_s),
            "measured_s": estimate(c.measured_s),
            "error": c.error,
        }
        for c in confirmations(data.evidence)
    ]


def _failed(data: ReportInput) -> list[Json]:
    trials = [one.trial for one in data.evidence.tried if not one.trial.ok]
    return [{"number": t.number, "config": config(t.spec), "status": t.status} for t in trials]
