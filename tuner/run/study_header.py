"""`study.json`: what was asked, of which machine and engines. Written once, when a study is created."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from tuner.run.host import HostFacts
from tuner.run.journaled import read_header

#: Raised when an older tuner would misread a study.
SCHEMA = 1
#: What people call a workload does not change what is measured.
NAMES_ONLY = ("name", "description")
#: What a study may cost is not part of what it asks.
COST_ONLY = ("budget",)


@dataclass(frozen=True, slots=True)
class StudyHeader:
    """`workload_text`: as typed; `workload`: resolved, with every default. `environments`: one object an engine."""

    id: str
    created: str
    name: str
    workload_hash: str
    workload: dict[str, Any]
    workload_text: str
    seed: int
    host: HostFacts
    environments: tuple[dict[str, Any], ...]

    @classmethod
    def new(
        cls, workload: dict[str, Any], workload_text: str, host: HostFacts, environments: tuple[dict[str, Any], ...]
    ) -> Self:
        """A header for now. `workload`: its `model_dump(mode="json")`. The id sorts by time and can name the folder."""
        created = datetime.now().astimezone()
        return cls(
            id=f"{created:%Y%m%d-%H%M%S}-{workload['name']}",
            created=created.isoformat(timespec="seconds"),
            name=workload["name"],
            workload_hash=workload_hash(workload),
            workload=workload,
            workload_text=workload_text,
            seed=workload["seed"],
            host=host,
            environments=environments,
        )

    @classmethod
    def read(cls, path: Path) -> Self:
        return read_header(path, "study", SCHEMA, cls.from_dict)

    def to_dict(self) -> dict[str, Any]:
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {"schema": SCHEMA} | fields | {"host": self.host.to_dict(), "environments": list(self.environments)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        fields = {f.name: data[f.name] for f in dataclasses.fields(cls)}
        parsed = {"host": HostFacts.from_dict(data["host"]), "environments": tuple(data["environments"])}
        return cls(**fields | parsed)


def question_hash(workload: Mapping[str, Any]) -> str:
    """`workload_hash` of what is asked alone: a study goes on with more minutes or launches as the same one."""
    return workload_hash({key: value for key, value in workload.items() if key not in COST_ONLY})


def workload_hash(workload: dict[str, Any]) -> str:
    """Twelve hex digits; equal for workloads that ask the same, whatever they are called."""
    asked = {key: value for key, value in workload.items() if key not in NAMES_ONLY}
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:12]
