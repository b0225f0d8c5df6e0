"""`*.alpha.json` of a study: the acceptance profile of every drafting launch, beside its report, for other planners."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from tuner.decide.evidence import Tried
from tuner.measure.alpha_file import AlphaFile
from tuner.measure.profile import profiles
from tuner.report.data import ReportInput
from tuner.run.files import write_atomic
from tuner.spec.speculation import LOOKUP_METHODS


def write_alpha_files(data: ReportInput, folder: Path) -> None:
    """One file a setting; a file of an earlier report that this one has not is removed."""
    made = dict(alpha_files(data))
    for old in folder.glob("*.alpha.json"):
        if old.name not in made:
            old.unlink()
    for name, file in made.items():
        text = json.dumps(file.to_dict(), indent=1, ensure_ascii=False, allow_nan=False)
        write_atomic(folder / name, text + "\n")


def alpha_files(data: ReportInput) -> Iterator[tuple[str, AlphaFile]]:
    """(file name, profile) of every chain that was measured, from cells that enter the ranking."""
    seen = set()
    for one in data.evidence.tried:
        file = _of(data, one) if one.spec.n and not one.spec.by_load and one.spec not in seen else None
        if file is not None:
            seen.add(one.spec)
            slug = re.sub(r"[^a-z0-9]+", "-", one.spec.label.lower()).strip("-")
            yield f"{slug}-{one.spec.key}.alpha.json", file


def _of(data: ReportInput, one: Tried) -> AlphaFile | None:
    cells = [cell for key in one.cells if (cell := one.trial.cell(key)) is not None]
    lookup = one.spec.method in LOOKUP_METHODS
    buckets = profiles(cells, one.spec.n, data.header.seed, lookup=lookup)
    if not buckets:
        return None
    workload, environment = data.workload, data.environment
    return AlphaFile(
        target=workload.model,
        method=one.spec.method,
        draft=one.spec.draft,
        n=one.spec.n,
        engine=environment.engine if environment else one.trial.engine,
        engine_version=environment.version if environment else one.trial.facts.version,
        sampling=workload.sampling.model_dump(mode="json", exclude_none=True),
        prompts=tuple(share.model_dump(mode="json") for share in workload.traffic.prompts),
        buckets=buckets,
    )
