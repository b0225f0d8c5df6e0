"""`launch.sh`: the advised command, one flag a line, ready to run in the engine's environment."""

from __future__ import annotations

import shlex

from tuner.report.advice import advice, verdict_word
from tuner.report.command import command_lines
from tuner.report.data import ReportInput
from tuner.report.differences import differences
from tuner.report.engine_cautions import correction_text
from tuner.spec.speculation import SGLANG_SCHEDULE, SpecConfig

#: N by load for SGLang, which reads it from a file: it lies beside the script.
TABLE_FILE = "adaptive.json"


def launch_script(data: ReportInput) -> str | None:
    """The script for the one setting advised for all traffic; None where no command is known."""
    spec = data.recommendation.overall.best
    argv = data.deploy.get(spec)
    if argv is None:
        return None
    lines = ["#!/usr/bin/env bash", *_comments(data, spec), "set -euo pipefail", *exports(data)]
    if adaptive_table(data):
        lines.append(f'cd "$(dirname "$0")"  # {TABLE_FILE}, the table of N by load, lies beside this script')
    return "\n".join([*lines, f'exec {command_lines(argv)} \\\n  "$@"', ""])


def adaptive_table(data: ReportInput) -> str | None:
    """What `adaptive.json` holds; None where the advised command reads no such file."""
    table = dict(data.recommendation.overall.best.options).get(SGLANG_SCHEDULE)
    return str(table) if table is not None else None


def shell_block(data: ReportInput, spec: SpecConfig) -> str | None:
    """What to type for a setting: the workload's variables, then the command; None where no command is known."""
    argv = data.deploy.get(spec)
    return None if argv is None else "\n".join([*exports(data), command_lines(argv)])


def exports(data: ReportInput) -> list[str]:
    """The variables the workload gives its engine."""
    env = data.workload.engine_options.env
    return [f"export {name}={shlex.quote(value)}" for name, value in sorted(env.items())]


def _comments(data: ReportInput, spec: SpecConfig) -> list[str]:
    header, env = data.header, data.environment
    undecided = verdict_word(data) == "undecided"
    role = "since no advice can be given" if undecided else "the one setting advised for all measured traffic"
    facts = [
        f"{header.name}: {spec.label}, {role}.",
        advice(data),
        f"Measured by tuner, study {header.id}, {header.created}.",
    ]
    if env:
        facts.append(f"Run it in an environment with {env.engine} {env.version} (measured: {env.name}, {env.device}).")
        facts += [f"{env.name}: {correction_text(name)}." for name in env.corrections]
    facts += differences(data, spec)
    facts.append('Further flags on the command line are passed on, e.g. "./launch.sh --port 8080".')
    return [f"# {' '.join(fact.split())}" for fact in facts]
