"""What a study tells while it runs: one event type, one callback. Nothing here prints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Event:
    """`kind`: launch, waiting, ready, requests, cell, trial or note; `done` of `total` where it counts something."""

    kind: str
    text: str
    done: float = 0.0
    total: float = 0.0


Notify = Callable[[Event], None]


def silent(event: Event) -> None:
    """Tell nobody."""
