"""The files of one finished cell: its requests as JSON lines, and the engine's counters as the engine wrote them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from tuner.errors import UserError
from tuner.measure.records import Cell, CellKey, ClientHealth, Load, RequestRecord, request_from_dict, request_to_dict
from tuner.run.files import json_line, write_atomic


def write_cell(folder: Path, cell: Cell, zero_unix: float | None) -> dict[str, Any]:
    """Everything of the cell that is long, on the disk; the short rest is returned, for the journal."""
    label = _unused_label(folder, cell.key.label)
    key = {"concurrency": cell.key.load.concurrency, "rate": cell.key.load.rate, "temperature": cell.key.temperature}
    head = {"zero_unix": zero_unix, "key": key, "requests": len(cell.requests)}
    for path, text in zip(_counter_paths(folder, label), (cell.counters_before, cell.counters_after), strict=True):
        if text is not None:
            write_atomic(path, text)
    lines = [json_line(head), *(json_line(request_to_dict(request)) for request in cell.requests)]
    write_atomic(_requests_path(folder, label), b"".join(lines))
    counters = [cell.counters_before is not None, cell.counters_after is not None]
    short: dict[str, Any] = {"window_s": cell.window_s, "health": dataclasses.asdict(cell.health), "counters": counters}
    short["lossy"] = cell.lossy
    return {"label": label, **head, **short}


def read_cell(folder: Path, short: dict[str, Any]) -> Cell:
    """The inverse of `write_cell`, `short` being what it returned."""
    key, label = short["key"], short["label"]
    before, after = (
        _read(path).decode() if kept else None
        for path, kept in zip(_counter_paths(folder, label), short["counters"], strict=True)
    )
    return Cell(
        key=CellKey(Load(key["concurrency"], key["rate"]), key["temperature"]),
        window_s=(short["window_s"][0], short["window_s"][1]),
        requests=_read_requests(_requests_path(folder, label), short["requests"]),
        health=ClientHealth(**short["health"]),
        counters_before=before,
        counters_after=after,
        lossy=short.get("lossy"),
    )


def _read_requests(path: Path, count: int) -> tuple[RequestRecord, ...]:
    try:
        requests = tuple(request_from_dict(json.loads(line)) for line in _read(path).split(b"\n")[1:-1])
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} holds a line that is no request ({error!r}): restore it from a copy") from None
    if len(requests) != count:
        raise UserError(f"{path} holds {len(requests)} of {count} requests: restore it from a copy")
    return requests


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}): restore it from a copy") from None


def _requests_path(folder: Path, label: str) -> Path:
    return folder / f"requests-{label}.jsonl"


def _counter_paths(folder: Path, label: str) -> tuple[Path, Path]:
    return folder / f"counters-{label}-before.prom", folder / f"counters-{label}-after.prom"


def _unused_label(folder: Path, label: str) -> str:
    """Labels round, and a cell may be measured twice: what is there is never overwritten."""
    unused, number = label, 1
    while _requests_path(folder, unused).exists():
        number += 1
        unused = f"{label}-{number}"
    return unused
