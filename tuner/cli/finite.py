"""What every option with a fractional number shares: nan and inf are refused, for they pass any `<` and `>`."""

from __future__ import annotations

import math
from typing import Any

import typer


def finite(value: Any) -> Any:
    """Of an option, or of one that may be given several times."""
    for one in value if isinstance(value, (list, tuple)) else [value]:
        if one is not None and not math.isfinite(one):
            raise typer.BadParameter(f"{one} is no number to go by: give a finite one")
    return value
