"""`figures.json` of a study whose request records were let go: its rows of the index, all but the requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tuner.errors import UserError
from tuner.run.files import write_atomic
from tuner.run.history_rows import StudyRows, study_rows
from tuner.run.store import StudyStore
from tuner.run.sweep_store import KEPT_FIGURES, NightStore

__all__ = ["KEPT_FIGURES", "keep_figures", "kept_rows"]


def keep_figures(folder: Path, reports: Path) -> None:
    """Write them, from records that are still there."""
    night = NightStore.read(folder.parent)
    told = next(study for study in night.header.studies if study["folder"] == folder.name)
    name = folder.relative_to(reports).as_posix()
    rows = study_rows(
        StudyStore.read(folder), folder.parent.name, str(told["label"]), name, {"models": told["models"]}, ""
    )
    kept = {"studies": rows.studies, "trials": rows.trials, "cells": rows.cells}
    write_atomic(folder / KEPT_FIGURES, json.dumps(kept, ensure_ascii=False) + "\n")


def kept_rows(folder: Path, stamp: str) -> StudyRows | None:
    """The rows of a study whose records were let go; None where they are there."""
    path = folder / KEPT_FIGURES
    if not path.exists():
        return None
    try:
        data: dict[str, list[list[Any]]] = json.loads(path.read_text(encoding="utf-8"))
        studies = [(*row[:-1], stamp) for row in data["studies"]]
        return StudyRows(studies, [tuple(row) for row in data["trials"]], [tuple(row) for row in data["cells"]])
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} does not hold a study's figures ({error!r}): restore it from a copy") from None
