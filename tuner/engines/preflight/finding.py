"""One thing that preflight found, and what becomes of it: errors refuse a launch, warnings go with its figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from tuner.errors import UserError

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """`rule`: a stable name for machines. `message`: what, where, and what to do. `source`: where the fact is from."""

    severity: Severity
    rule: str
    message: str
    source: str = ""

    @property
    def is_error(self) -> bool:
        return self.severity == "error"


def error(rule: str, message: str, source: str = "") -> Finding:
    return Finding("error", rule, message, source)


def warning(rule: str, message: str, source: str = "") -> Finding:
    return Finding("warning", rule, message, source)


def note(rule: str, message: str, source: str = "") -> Finding:
    return Finding("note", rule, message, source)


def told(rule: str, check: Callable[[], object], source: str = "") -> Iterator[Finding]:
    """The sentence of a check that refuses by raising, as a finding."""
    try:
        check()
    except UserError as refusal:
        yield error(rule, str(refusal), source)


def refuse(findings: Iterable[Finding]) -> None:
    """Raise a UserError with the first error, if there is one."""
    for finding in findings:
        if finding.is_error:
            raise UserError(finding.message)
