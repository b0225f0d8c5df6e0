"""`*.alpha.json` of a study: the acceptance profile of every drafting launch, beside its report, for other planners."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from tuner.measure.alpha_file import AlphaFile
from tuner.measure.profile import profiles
from tuner.report.data import ReportInput
from tuner.run.files import write_atomic
from tuner.spec.speculation import LOOKUP_METHODS, SpecConfig


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
    """(file name, profile) of every chain that was measured, from cells that enter the ranking; none of answers of
    forced length, whose acceptance is nobody's traffic's."""
    if data.workload.sampling.ignore_eos:
        return
    for spec in data.evidence.specs():
        file = _of(data, spec) if spec.n and not spec.by_load else None
        if file is not None:
            slug = re.sub(r"[^a-z0-9]+", "-", spec.label.lower()).strip("-")
            yield f"{slug}-{spec.key}.alpha.json", file


def _of(data: ReportInput, spec: SpecConfig) -> AlphaFile | None:
    """Over all its launches: one that was cut and went on later has some of the cells in each."""
    ranked = {key: one for key in data.evidence.keys if (one := data.evidence.best_trial(spec, key)) is not None}
    cells = [cell for key, one in ranked.items() if (cell := one.trial.cell(key)) is not None]
    buckets = profiles(cells, spec.n, data.header.seed, lookup=spec.method in LOOKUP_METHODS)
    if not buckets:
        return None
    first = next(iter(ranked.values())).trial
    workload, environment = data.workload, data.environment
    return AlphaFile(
        target=workload.model,
        method=spec.method,
        draft=spec.draft,
        n=spec.n,
        engine=environment.engine if environment else first.engine,
        engine_version=environment.version if environment else first.facts.version,
        sampling=workload.sampling.model_dump(mode="json", exclude_none=True),
        prompts=tuple(share.model_dump(mode="json") for share in workload.traffic.prompts),
        buckets=buckets,
    )
