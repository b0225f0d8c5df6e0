"""An answer of `tuner theory` as text, CSV or JSON; nothing is computed here beyond laying it out."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import dataclass
from typing import Any, Literal

Form = Literal["text", "csv", "json"]


@dataclass(frozen=True, slots=True)
class Answer:
    """`data` is the JSON; `rows` under `header` are the table of the text and the CSV; `notes` close the text."""

    data: dict[str, Any]
    header: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    notes: tuple[str, ...] = ()


def rendered(answer: Answer, form: Form) -> str:
    if form == "json":
        return json.dumps(_finite(answer.data), indent=2, allow_nan=False)
    if form == "csv":
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([answer.header, *answer.rows])
        return text.getvalue().rstrip("\n")
    cells = [answer.header, *(tuple(cell(value) for value in row) for row in answer.rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(answer.header))]
    left = [i for i in range(len(widths)) if any(isinstance(row[i], str) for row in answer.rows)]
    lines = [
        "  ".join(
            text.ljust(width) if i in left else text.rjust(width)
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
    return "\n".join([*lines, *([""] if answer.notes else []), *answer.notes])


def cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) and abs(value) >= 1000.0:
        return f"{value:.1f}"
    if isinstance(value, float):
        return f"{value:.4f}" if value == 0.0 or abs(value) >= 1e-3 else f"{value:.1e}"
    return str(value)


def _finite(value: Any) -> Any:
    """JSON knows no infinity: an infinite statistic (an impossible text was seen) becomes null."""
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
