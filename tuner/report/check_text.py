"""Findings of preflight, for people and as JSON."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tuner.engines.preflight.finding import Finding
from tuner.report.command import command_lines
from tuner.report.redact import shown_argv

if TYPE_CHECKING:
    # Both lead to pydantic, which a check of two folders does without.
    from tuner.run.checking import Checked
    from tuner.run.preflight import Looked

ORDER = ("error", "warning", "note")
NAMES = {"vllm": "vLLM", "sglang": "SGLang"}


def check_json(checked: Checked) -> str:
    """ok, method, command, findings; `command` is null where none can be built."""
    return json.dumps(
        {
            "ok": checked.ok,
            "engine": checked.engine,
            "engine_version": checked.version,
            "setting": checked.setting,
            "method": checked.method,
            "command": shlex.join(shown_argv(checked.argv)) if checked.argv else None,
            "findings": [_finding(finding) for finding in in_order(checked.findings)],
        },
        indent=2,
        ensure_ascii=False,
    )


def check_text(checked: Checked) -> str:
    """A line of outcome, a paragraph a finding, the command."""
    head = f"{checked.setting} on {NAMES[checked.engine]} {checked.version}: {_outcome(checked.findings)}"
    lines = [head, *_paragraphs(checked.findings)]
    if checked.argv:
        fixed = "" if checked.method in (None, checked.setting.split()[0]) else f" (method {checked.method})"
        lines += ["", f"command{fixed}:", command_lines(checked.argv)]
    return "\n".join(lines)


def workload_json(looked: Sequence[Looked]) -> str:
    """As `check_json`, with one entry of `checks` for every setting on every engine."""
    checks = [
        {
            "engine": one.environment.name,
            "engine_version": one.environment.version,
            "setting": one.spec.label,
            "method": one.spec.method,
            "ok": not one.errors,
            "findings": [_finding(finding) for finding in in_order(one.findings)],
        }
        for one in looked
    ]
    return json.dumps({"ok": all(check["ok"] for check in checks), "checks": checks}, indent=2, ensure_ascii=False)


def workload_text(looked: Sequence[Looked]) -> str:
    """One line a setting, and every finding once, behind the settings it is about."""
    lines = [
        f"{one.spec.label} on {one.environment.name} ({one.environment.engine} {one.environment.version}): "
        f"{_outcome(one.findings)}"
        for one in looked
    ]
    return "\n".join([*lines, *_paragraphs([finding for one in looked for finding in one.findings])])


def in_order(findings: Sequence[Finding]) -> list[Finding]:
    """Errors first; each finding once."""
    return sorted(dict.fromkeys(findings), key=lambda finding: ORDER.index(finding.severity))


def _outcome(findings: Sequence[Finding]) -> str:
    counts = {severity: sum(f.severity == severity for f in findings) for severity in ORDER}
    said = [f"{count} {severity}{'s' if count > 1 else ''}" for severity, count in counts.items() if count]
    return ", ".join((["ok"] if not counts["error"] else []) + said)


def _paragraphs(findings: Sequence[Finding]) -> list[str]:
    lines = []
    for finding in in_order(findings):
        lines += ["", f"{finding.severity}  {finding.rule}", f"  {finding.message}"]
        if finding.source:
            lines.append(f"  source: {finding.source}")
    return lines


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "severity": finding.severity,
        "rule": finding.rule,
        "message": finding.message,
        "source": finding.source or None,
    }
