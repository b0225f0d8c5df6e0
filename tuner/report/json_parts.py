"""The parts that the project's JSON files are made of: a figure with its interval, a setting, a cell."""

from __future__ import annotations

from typing import Any

from tuner.measure.records import CellKey
from tuner.measure.statistics import Estimate
from tuner.spec.speculation import SpecConfig

Json = dict[str, Any]


def estimate(value: Estimate | None) -> Json | None:
    return {"value": value.value, "low": value.low, "high": value.high, "n": value.n} if value else None


def config(spec: SpecConfig) -> Json:
    return {"label": spec.label, "key": spec.key, **spec.to_dict()}


def place(key: CellKey) -> Json:
    return {"concurrency": key.load.concurrency, "rate": key.load.rate, "temperature": key.temperature}
