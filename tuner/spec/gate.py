"""Gates of a sweep: the sentence people type, e.g. `tpot_p50 regress > 3 %`, and what it means."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

#: What a gate may ask of: the unit people type beside an absolute limit, and how many of them make one of ours.
UNITS: Mapping[str, tuple[str, float]] = MappingProxyType(
    {
        "tpot_p50": ("ms", 1000.0),
        "ttft_p50": ("ms", 1000.0),
        "throughput": ("tok/s", 1.0),
        "goodput": ("%", 100.0),
        "tau": ("", 1.0),
        "speedup": ("", 1.0),
    }
)
#: Less is better for these; of the others more is.
LOWER_IS_BETTER = frozenset({"tpot_p50", "ttft_p50"})
HOW = (
    "write `METRIC regress > 3 %`, `METRIC drop > 5 %`, `METRIC < LIMIT`, `METRIC > LIMIT` or `verify failed`; metrics "
    f"are {', '.join(UNITS)}"
)
_NUMBER = r"(\d+(?:\.\d+)?)"
_CHANGE = re.compile(rf"(\w+)\s+(regress|drop)\s*>\s*{_NUMBER}\s*%")
_LIMIT = re.compile(rf"(\w+)\s*([<>])\s*{_NUMBER}\s*(%|ms|tok/s|x)?")
_VERIFY = re.compile(r"verify\s+failed")


@dataclass(frozen=True, slots=True)
class Gate:
    """The condition that must not hold. `kind`: `regress` (worse than the baseline by more than `limit`, a share),
    `above` or `below` (tonight's own figure against `limit`, seconds or tokens or a share), `verify`."""

    text: str
    kind: str
    metric: str = ""
    limit: float = 0.0


def parse_gate(text: str) -> Gate:
    """ValueError, with what may be written, for anything else."""
    plain = " ".join(text.split())
    if _VERIFY.fullmatch(plain):
        return Gate(plain, "verify")
    if change := _CHANGE.fullmatch(plain):
        metric, word, limit = change.groups()
        _known(metric, plain)
        if word == "drop" and metric in LOWER_IS_BETTER:
            raise ValueError(f"'{plain}': a drop of {metric} is an improvement: write {metric} regress > {limit} %")
        return Gate(plain, "regress", metric, float(limit) / 100)
    if limit_ := _LIMIT.fullmatch(plain):
        metric, sign, limit, unit = limit_.groups()
        _known(metric, plain)
        expected, per_one = UNITS[metric]
        if (unit or "") not in {expected, "x" if metric == "speedup" else expected}:
            raise ValueError(f"'{plain}': {metric} is given {f'in {expected}' if expected else 'without a unit'}")
        return Gate(plain, "above" if sign == ">" else "below", metric, float(limit) / per_one)
    raise ValueError(f"'{plain}' is no gate: {HOW}")


def _known(metric: str, text: str) -> None:
    if metric not in UNITS:
        raise ValueError(f"'{text}': {metric} is no metric of a gate: use one of {', '.join(UNITS)}")
