"""The list of all nights and studies, for people and machines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from tuner.run.history_runs import Run


def history_text(runs: Sequence[Run]) -> str:
    """What `tuner history` prints."""
    if not runs:
        return "no runs yet: `tuner sweep` and `tuner recommend` make some"
    headers = ("run", "name", "status", "state", "engines", "launches", "failed", "cells", "tags")
    rows = [
        (run.id, run.name, run.status.partition(":")[0], run.state or "-", run.engines or "-", str(run.trials),
         str(run.failed), str(run.cells), " ".join(run.tags) or "-")
        for run in runs
    ]  # fmt: skip
    return padded(headers, rows)


def history_json(runs: Sequence[Run]) -> str:
    return json.dumps([asdict(run) for run in runs], indent=2)


def padded(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they must be, two blanks between them."""
    lines = [tuple(headers), *(tuple(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(headers))]
    return "\n".join(
        "  ".join(value.ljust(w) for value, w in zip(line, widths, strict=True)).rstrip() for line in lines
    )
