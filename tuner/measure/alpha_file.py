"""`*.alpha.json`: an acceptance profile as plain data, for other planners. `alpha.schema.json` describes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.errors import UserError
from tuner.measure.profile import AcceptanceProfile, Bucket, Figure

SCHEMA_VERSION = 1
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class AlphaFile:
    """Whose acceptance it is, and its profiles. `sampling` and `prompts` are as the workload has them."""

    target: str
    method: str
    draft: str | None
    n: int
    engine: str
    engine_version: str | None
    sampling: Mapping[str, Any]
    prompts: tuple[Mapping[str, Any], ...]
    buckets: tuple[Bucket, ...]

    def to_dict(self) -> Json:
        return {
            "schema_version": SCHEMA_VERSION,
            "target": self.target,
            "method": self.method,
            "draft": self.draft,
            "n": self.n,
            "engine": {"name": self.engine, "version": self.engine_version},
            "sampling": dict(self.sampling),
            "prompts": [dict(one) for one in self.prompts],
            "profiles": [_bucket(bucket) for bucket in self.buckets],
        }

    @classmethod
    def from_dict(cls, data: Json) -> AlphaFile:
        """UserError for what is no such file, or one from a later version."""
        try:
            if data["schema_version"] > SCHEMA_VERSION:
                raise UserError(f"the acceptance profile has schema {data['schema_version']}: upgrade tuner to read it")
            return cls(
                target=data["target"], method=data["method"], draft=data["draft"], n=data["n"],
                engine=data["engine"]["name"], engine_version=data["engine"]["version"], sampling=data["sampling"],
                prompts=tuple(data["prompts"]), buckets=tuple(_read_bucket(one) for one in data["profiles"]),
            )  # fmt: skip
        except (KeyError, TypeError) as error:
            raise UserError(f"this is no acceptance profile ({error!r}): `tuner schema alpha` shows its form") from None

    def tau(self, n: int, temperature: float) -> Figure | None:
        """tau(n) of all the traffic at a temperature; None where the file does not tell it."""
        for bucket in self.buckets:
            if bucket.by == "all" and bucket.temperature == temperature and 1 <= n <= bucket.profile.n:
                return bucket.profile.tau[n - 1]
        return None


def _bucket(bucket: Bucket) -> Json:
    profile = bucket.profile
    return {
        "temperature": bucket.temperature,
        "by": bucket.by,
        "name": bucket.name,
        "n": profile.n,
        "drafting_steps": profile.drafting_steps,
        "prompts": profile.units,
        "a": [_figure(f) for f in profile.a],
        "alpha_by_position": [_figure(f) for f in profile.alpha_by_position],
        "alpha": _figure(profile.alpha),
        "tau": [_figure(f) for f in profile.tau],
        "drafting_share": _figure(profile.drafting_share),
    }


def _read_bucket(data: Json) -> Bucket:
    profile = AcceptanceProfile(
        n=data["n"], drafting_steps=data["drafting_steps"], units=data["prompts"], a=_read_all(data["a"]),
        alpha_by_position=tuple(_read(one) for one in data["alpha_by_position"]), alpha=_read(data["alpha"]),
        tau=_read_all(data["tau"]), drafting_share=_read(data["drafting_share"]),
    )  # fmt: skip
    return Bucket(data["temperature"], data["by"], data["name"], profile)


def _figure(figure: Figure | None) -> Json | None:
    return {"value": figure.value, "low": figure.low, "high": figure.high} if figure else None


def _read(data: Json | None) -> Figure | None:
    return Figure(data["value"], data["low"], data["high"]) if data else None


def _read_all(data: Sequence[Json]) -> tuple[Figure, ...]:
    return tuple(figure for one in data if (figure := _read(one)) is not None)
