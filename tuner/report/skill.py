"""`skill-eagle3-tuner.md`: the advice as an Agent Skill, for assistants that deploy or tune this model."""

from __future__ import annotations

from typing import Any

import yaml

from tuner.report.advice import advice, headline, leave_off, one_setting, verdict_word
from tuner.report.changes import measured_range, what_would_change
from tuner.report.data import ReportInput
from tuner.report.differences import differences
from tuner.report.draft_needs import draft_needs
from tuner.report.draft_text import one_line
from tuner.report.fact_tables import workload_yaml
from tuner.report.figures import cells_text
from tuner.report.lossless_text import unseen
from tuner.report.page import environment_text, launches, machine_text
from tuner.report.rendering import render
from tuner.report.sureness import how_sure
from tuner.report.tasks_text import task_lines, task_table
from tuner.report.ties import ties
from tuner.report.turns_text import schedule_lines, turn_lines
from tuner.report.verdict_tables import break_even_table, verdict_table
from tuner.report.why import why
from tuner.spec.speculation import SpecConfig

#: Limits of the Agent Skill format.
NAME, MOST_DESCRIPTION = "eagle3-tuner", 1024


def skill(data: ReportInput) -> str:
    context: dict[str, Any] = {
        "data": data,
        "front_matter": front_matter(data),
        "model": data.workload.model,
        "engine": environment_text(data),
        "headline": headline(data),
        "engines": data.engines.sentence if data.engines else None,
        "why": why(data),
        "when": _when(data),
        "when_not": _when_not(data),
        "verdict_table": verdict_table(data),
        "strategy": _strategy(data),
        "launches": launches(data),
        "differences": differences(data, data.recommendation.overall.best),
        "speculates": any(not spec.is_off for spec in data.advised),
        "turns": turn_lines(data),
        "schedule_lines": [line.replace("**", "") for line in schedule_lines(data)],
        "task_table": task_table(data),
        "task_lines": task_lines(data),
        "break_even_table": break_even_table(data),
        "draft_line": one_line(draft_needs(data)),
        "how_sure": how_sure(data),
        "cautions": data.cautions,
        "what_would_change": what_would_change(data),
        "workload_yaml": workload_yaml(data).rstrip(),
    }
    return render("skill.md.j2", context)


def front_matter(data: ReportInput) -> str:
    """YAML; angle brackets are not allowed in a skill's description, nor is more than 1024 characters."""
    text = (
        f"Measured advice on speculative decoding (EAGLE-3, ngram and others) for serving {data.workload.model} with "
        f"{environment_text(data)}. {advice(data)} Use when deploying or tuning this model, when asked whether to turn "
        "speculative decoding on, which draft and how many draft tokens to use, at which concurrency or temperature to "
        "switch it off, or when its TPOT or acceptance looks wrong."
    )
    description = " ".join(text.replace("<", "").replace(">", "").split())
    if len(description) > MOST_DESCRIPTION:
        description = description[: MOST_DESCRIPTION - 3].rstrip() + "..."
    fields = {
        "name": NAME,
        "description": description,
        "metadata": {"study": data.header.id, "measured": data.header.created, "verdict": verdict_word(data)},
    }
    dumped: str = yaml.safe_dump(fields, sort_keys=False, allow_unicode=True, width=10_000)
    return dumped.rstrip()


def _when(data: ReportInput) -> list[str]:
    return [
        f"Serving {data.workload.model} with {environment_text(data)} on a machine like the measured one "
        f"({machine_text(data)}).",
        f"Traffic like the measured one, which is what this advice applies to: {measured_range(data)}.",
    ]


def _when_not(data: ReportInput) -> list[str]:
    lines = list(leave_off(data))
    if verdict_word(data) == "off":
        where = cells_text([v.key for v in data.verdicts], ())
        lines.append(f"Do not turn speculation on at {where}: the table below says why.")
    lines.append("Loads, temperatures, prompts, models, drafts or engine versions other than those: measure again.")
    if data.losslessness is None:
        lines.append("Where output must be proven to be the target's own: that was not verified in this study.")
    if weak := unseen(data.verified):
        lines.append(
            f"Where output must be proven to be the target's own: {weak}; run `tuner verify {data.header.name}.yaml` "
            "first."
        )
    return lines


def _strategy(data: ReportInput) -> list[str]:
    lines = [one_setting(data).replace("**", "")] if verdict_word(data) != "undecided" else []
    lines += [f"{spec.label}: {_described(spec)}" for spec in data.advised if not spec.is_off]
    if all(spec.is_off for spec in data.advised):
        lines.append("Serve without speculation: the plain command below.")
    return lines + [f"Tie: {line}" for line in ties(data)]


def _described(spec: SpecConfig) -> str:
    if spec.tree:
        shape = f"a tree of depth {spec.tree.depth}, branching {spec.tree.topk}, {spec.tree.nodes} verified nodes"
    else:
        shape = f"a chain of N = {spec.n} tokens per verify step"
    options = ", ".join(f"{name} = {value}" for name, value in spec.options)
    return f"draft type {spec.method}, {shape}, draft {spec.draft or 'none (from the text itself)'}" + (
        f", {options}." if options else "."
    )
