"""`sweep.yaml`: several workloads, engines and axes in one file, what they may cost, and which changes are an alarm."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from tuner.errors import UserError
from tuner.spec.draft import Method, TreeAxes
from tuner.spec.gate import Gate, parse_gate
from tuner.spec.load import validated
from tuner.spec.speculation import AUTOREGRESSIVE_METHODS
from tuner.spec.strict import UNIQUE, PositiveFloat, PositiveInt, Strict, Text, no_repeats
from tuner.spec.workload import Workload
from tuner.spec.yaml_document import parse_document, read_text

NAME = r"^[a-z0-9][a-z0-9._-]*$"
BASELINE = r"^(last-green|tag:[A-Za-z0-9._-]+|run:[A-Za-z0-9._-]+)$"
Mode = Literal["planned", "exhaustive"]


class Axes(Strict):
    """What is varied; each given axis takes the place of the workload's own, with the shares of the levels it keeps."""

    n: list[PositiveInt] | None = Field(
        None, min_length=1, json_schema_extra=UNIQUE, description="N of every draft that is tried."
    )
    tree: TreeAxes | None = Field(None, description="Draft trees, of the drafts that can draft them (SGLang).")
    temperature: list[Annotated[float, Field(ge=0, le=2)]] | None = Field(
        None, min_length=1, json_schema_extra=UNIQUE, description="A request parameter: it needs no launch."
    )
    concurrency: list[PositiveInt] | None = Field(
        None, json_schema_extra=UNIQUE, description="Closed loop: requests in flight; every level is measured."
    )
    rates: list[PositiveFloat] | None = Field(
        None, json_schema_extra=UNIQUE, description="Open loop: requests per second, each measured."
    )

    @field_validator("n", "temperature", "concurrency", "rates")
    @classmethod
    def _unique(cls, values: list[Any] | None) -> list[Any] | None:
        no_repeats(values or [])
        return values


class SweepStudy(Strict):
    """One workload of the sweep; it becomes a study for every engine that it names."""

    workload: Text = Field(description="A workload.yaml, relative to this file.")
    name: str | None = Field(
        None,
        pattern=NAME,
        max_length=40,
        description="lower-case letters, digits, '.', '_' and '-', at most 40. Default: the workload file's name",
    )
    engines: list[Text] | None = Field(
        None,
        min_length=1,
        json_schema_extra=UNIQUE,
        description="Instead of the workload's: registered names, or vllm and sglang for all that are registered.",
    )
    versions: list[Text] | None = Field(
        None, min_length=1, json_schema_extra=UNIQUE, description="Only engines of these versions, e.g. '0.32.*'."
    )
    drafts: list[Method] | None = Field(
        None, min_length=1, json_schema_extra=UNIQUE, description="Only these methods of the workload's drafts."
    )
    axes: Axes = Axes()
    mode: Mode | None = Field(None, description="Instead of the sweep's.")
    launches: PositiveInt | None = Field(
        None, description="Starts of each engine. Default: the workload's budget when planned, all when exhaustive."
    )
    share: PositiveFloat = Field(1.0, description="Of the sweep's minutes, relative to the other studies.")

    @property
    def label(self) -> str:
        return self.name or Path(self.workload).stem


class SweepBudget(Strict):
    """What a night may cost."""

    minutes: PositiveFloat = Field(
        60.0, description="Wall-clock minutes of running, engine starts included; no cell begins after them."
    )


class Retention(Strict):
    """What is kept of older nights of this sweep: always tagged ones, the last green one and a baseline named by id."""

    nights: PositiveInt | None = Field(None, description="Folders of this many nights. Default: all.")
    records_nights: PositiveInt | None = Field(
        None, description="Request records and engine logs of this many; their figures stay. Default: all."
    )


class Sweep(Strict):
    """What runs unattended, night after night."""

    name: str = Field(
        pattern=NAME,
        max_length=64,
        description="lower-case letters, digits, '.', '_' and '-', at most 64; it names the nights' folders",
    )
    description: str = Field("", description="One sentence for the report.")
    studies: list[SweepStudy] = Field(min_length=1, description="The workloads, with what is varied in each.")
    mode: Mode = Field(
        "planned", description="planned: what can still win, as `tuner recommend`; exhaustive: every setting."
    )
    budget: SweepBudget = SweepBudget()
    baseline: str = Field(
        "last-green",
        pattern=BASELINE,
        description="what tonight is compared with: last-green, tag:NAME or run:ID",
    )
    gates: list[Text] = Field(
        [], json_schema_extra=UNIQUE, description="What must not happen, e.g. tpot_p50 regress > 3 %."
    )
    retention: Retention = Retention()
    resume_within_hours: PositiveFloat = Field(
        20.0, description="--resume goes on with an unfinished night that is no older; an older one is left as it is."
    )

    @field_validator("gates")
    @classmethod
    def _gates_are_gates(cls, gates: list[str]) -> list[str]:
        no_repeats(gates)
        for text in gates:
            parse_gate(text)
        return gates

    @field_validator("studies")
    @classmethod
    def _each_study_once(cls, studies: list[SweepStudy]) -> list[SweepStudy]:
        for i, study in enumerate(studies):
            if study.label in [other.label for other in studies[:i]]:
                raise ValueError(f"two studies are called {study.label}: give one of them a name")
        return studies

    @model_validator(mode="after")
    def _keeps_records_of_kept_nights(self) -> Sweep:
        kept, whole = self.retention.nights, self.retention.records_nights
        if kept is not None and whole is not None and whole > kept:
            raise ValueError(f"retention.records_nights {whole} is more than retention.nights {kept}: lower it")
        return self

    @property
    def parsed_gates(self) -> tuple[Gate, ...]:
        return tuple(parse_gate(text) for text in self.gates)


def load_sweep(path: Path) -> Sweep:
    """The sweep in a file. UserError names every problem by file, line and key."""
    return validated(parse_document(read_text(path), path), Sweep)


def workload_of(study: SweepStudy, workload: Workload, engine: str, where: str) -> Workload:
    """The workload with the study's axes in it, on one engine. `where`: what errors name."""
    data = workload.model_dump(mode="json", exclude_unset=True)
    axes, traffic = study.axes, workload.traffic
    data |= {"engine": engine, "name": _name(study.label, engine)}
    extras = data.get("engine_options", {}).get("by_engine", {})
    if extras:
        data["engine_options"]["by_engine"] = {name: own for name, own in extras.items() if name == engine}
    if axes.temperature is not None:
        shares = _shares_of(workload.sampling.temperature_shares, workload.sampling.temperatures, axes.temperature)
        data["sampling"] = data.get("sampling", {}) | {"temperatures": axes.temperature, "temperature_shares": shares}
    if axes.concurrency is not None or axes.rates is not None:
        loads = [*((c, "concurrency") for c in axes.concurrency or []), *((r, "rate") for r in axes.rates or [])]
        stated = [*((c, "concurrency") for c in traffic.concurrency), *((r, "rate") for r in traffic.rates)]
        data["traffic"] |= {
            "concurrency": axes.concurrency or [],
            "rates": axes.rates or [],
            "load_shares": _shares_of(traffic.load_shares, stated, loads),
        }
    if study.drafts is not None or axes.n is not None or axes.tree is not None:
        data["drafts"] = _drafts(study, workload, where)
    try:
        return Workload.model_validate(data)
    except ValueError as error:
        raise UserError(f"{where}: {study.workload} with these axes is no workload: {_first(error)}") from None


def _shares_of(
    shares: list[float] | None, stated: Sequence[Hashable], wanted: Sequence[Hashable]
) -> list[float] | None:
    """Shares of the wanted levels; None (all alike) where the workload states none for one of them."""
    if shares is None or not set(wanted) <= set(stated):
        return None
    by_level = dict(zip(stated, shares, strict=True))
    return [by_level[level] for level in wanted]


def _drafts(study: SweepStudy, workload: Workload, where: str) -> list[dict[str, Any]]:
    if workload.drafts == "auto":
        raise UserError(f"{where}: {study.workload} has drafts: auto: name its drafts before choosing or varying them")
    axes, kept = study.axes, []
    for draft in workload.drafts:
        if study.drafts is not None and draft.method not in study.drafts:
            continue
        data = draft.model_dump(mode="json", exclude_unset=True)
        trees = axes.tree if draft.method in AUTOREGRESSIVE_METHODS else None
        if axes.n is not None:
            data["n"] = axes.n
        elif trees is not None:
            data.pop("n", None)
        if axes.n is not None or trees is not None:
            data["tree"] = trees.model_dump(mode="json") if trees else None
        kept.append(data)
    if not kept:
        raise UserError(f"{where}: {study.workload} has no draft of {', '.join(study.drafts or [])}: correct drafts")
    return kept


def _name(label: str, engine: str) -> str:
    """The study's name with the engine's, as a name of a workload may be."""
    return re.sub(r"[^a-z0-9._-]+", "-", f"{label}-{engine}".lower())[:64]


def _first(error: ValueError) -> str:
    from pydantic import ValidationError

    if isinstance(error, ValidationError):
        one = error.errors(include_url=False)[0]
        return f"{'.'.join(map(str, one['loc']))}: {one['msg'].removeprefix('Value error, ')}"
    return str(error)
