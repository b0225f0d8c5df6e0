"""What doctor finds: one line each, with what to do where something is not well."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Checkup:
    """`remedy`: what to do; empty where all is well. `fail` means that something tuner does will not work."""

    status: Status
    what: str
    text: str
    remedy: str = ""


def ok(what: str, text: str) -> Checkup:
    return Checkup("ok", what, text)


def warn(what: str, text: str, remedy: str) -> Checkup:
    return Checkup("warn", what, text, remedy)


def fail(what: str, text: str, remedy: str) -> Checkup:
    return Checkup("fail", what, text, remedy)
