"""What a check says."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence about a cell. `blocks`: its figures are shown and enter no ranking."""

    rule: str
    text: str
    blocks: bool = False
