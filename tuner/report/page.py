"""`report.md`: everything a template needs, from the advice down to the commands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner.report import fact_tables, measured_tables, verdict_tables
from tuner.report.advice import headline, leave_off, one_setting, verdict_word
from tuner.report.changes import what_would_change
from tuner.report.data import ReportInput
from tuner.report.differences import differences
from tuner.report.draft_needs import draft_needs
from tuner.report.draft_text import need_lines, need_table
from tuner.report.launch_script import shell_block
from tuner.report.lossless_table import lossless_table
from tuner.report.lossless_text import summary
from tuner.report.rendering import render
from tuner.report.sureness import how_sure
from tuner.report.tasks_text import task_lines, task_table
from tuner.report.ties import ties
from tuner.report.training import kind_sentence, recipes
from tuner.report.turns_text import schedule_lines, schedule_table, turn_lines
from tuner.report.why import steps, why

#: Cautions shown at the top; all of them stand in their own section.
MOST_CAUTIONS = 6


def page(data: ReportInput, plots: Mapping[str, bytes | None]) -> str:
    """`plots`: by file name; None where there was nothing to draw."""
    context: dict[str, Any] = {
        "data": data,
        "plots": plots,
        "headline": headline(data),
        "one_setting": one_setting(data) if verdict_word(data) != "undecided" else "",
        "how_sure": how_sure(data, summary(data.verified, f"{data.header.name}.yaml")),
        "lossless_table": lossless_table(data.verified),
        "cautions": data.cautions,
        "most_cautions": MOST_CAUTIONS,
        "ties": ties(data),
        "leave_off": leave_off(data),
        "launches": launches(data),
        "differences": differences(data, data.recommendation.overall.best),
        "environment": data.environment,
        "objective": data.evidence.objective,
        "what_would_change": what_would_change(data),
        "why": why(data),
        "steps": steps(data),
        "turns": turn_lines(data),
        "one_label": data.recommendation.overall.best.label,
        "task_table": task_table(data),
        "task_lines": task_lines(data),
        "schedule_lines": schedule_lines(data),
        "schedule_table": schedule_table(data),
    }
    return render("report.md.j2", context | _decision(data) | _drafts(data) | _measured(data) | _facts(data))


def launches(data: ReportInput) -> tuple[tuple[str, str | None], ...]:
    """(title, shell text) of every advised setting, the one for all traffic first."""
    overall = data.recommendation.overall.best
    role = "since no advice can be given" if verdict_word(data) == "undecided" else "the one setting for all traffic"
    found = []
    for spec in data.advised:
        title = f"{spec.label}, {role} (`launch.sh`)" if spec == overall else spec.label
        found.append((title, shell_block(data, spec)))
    return tuple(found)


def environment_text(data: ReportInput) -> str:
    env = data.environment
    return f"{env.engine} {env.version} ({env.device})" if env else "an engine that is not registered any more"


def machine_text(data: ReportInput) -> str:
    host, gpus = data.header.host, [gpu.name for gpu in data.header.host.gpus]
    return f"{host.cpu}, {host.cores} cores, {f'{len(gpus)} x {gpus[0]}' if gpus else 'no GPU'}"


def _decision(data: ReportInput) -> dict[str, Any]:
    return {
        "verdict_table": verdict_tables.verdict_table(data),
        "slos": ", ".join(f"{name.removesuffix('_ms')} {limit:g} ms" for name, limit in data.evidence.slo_ms),
        "slo_table": verdict_tables.slo_table(data),
        "break_even_table": verdict_tables.break_even_table(data),
        "prediction_table": verdict_tables.prediction_table(data),
        "drift_table": verdict_tables.drift_table(data),
    }


def _drafts(data: ReportInput) -> dict[str, Any]:
    needs = draft_needs(data)
    return {
        "need_table": need_table(needs),
        "need_lines": need_lines(data, needs),
        "recipes": recipes(data, needs),
        "kind_sentence": kind_sentence(needs),
    }


def _measured(data: ReportInput) -> dict[str, Any]:
    return {
        "latency_table": measured_tables.latency_table(data),
        "acceptance_table": measured_tables.acceptance_table(data),
        "position_table": measured_tables.position_table(data),
        "cell_position_table": measured_tables.cell_position_table(data),
    }


def _facts(data: ReportInput) -> dict[str, Any]:
    return {
        "client": fact_tables.client_sentence(data),
        "failed_trials": fact_tables.failed_trials(data),
        "blocked_cells": fact_tables.blocked_cells(data),
        "failed_requests": fact_tables.failed_requests(data),
        "corrections": fact_tables.corrections(data),
        "launch_table": fact_tables.launch_table(data),
        "warnings": fact_tables.engine_warnings(data),
        "resolved": fact_tables.resolved(data),
        "workload_yaml": fact_tables.workload_yaml(data).rstrip(),
        "host_table": fact_tables.host_table(data),
        "commands": fact_tables.commands(data),
        "prompts_table": fact_tables.prompts_table(data),
    }
