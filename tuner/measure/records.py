"""Measured facts as frozen records: a request, a cell, a trial. They hold what was seen, and derive nothing."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

from tuner.spec.speculation import SpecConfig

#: warmup and filler requests keep the load up; only measured ones enter a figure (DEFINITIONS, Statistics).
PHASES = ("warmup", "measured", "filler")


@dataclass(frozen=True, slots=True)
class SpecSteps:
    """What one request's verify steps did, as its engine told.

    `histogram[j]`: drafting steps that accepted exactly j tokens. `drafted`: tokens drafted in all.
    `accepted_by_step` and `drafted_by_step`: one entry a drafting step, in order; None where the engine keeps none.
    `verify_steps`: verify steps, drafting or not; None where the engine does not count them.
    """

    histogram: tuple[int, ...]
    drafted: int | None = None
    accepted_by_step: tuple[int, ...] | None = None
    drafted_by_step: tuple[int, ...] | None = None
    verify_steps: int | None = None

    @property
    def drafting_steps(self) -> int:
        return sum(self.histogram)

    @property
    def accepted(self) -> int:
        return sum(j * count for j, count in enumerate(self.histogram))


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request. Times are seconds: `scheduled_s` and `sent_s` from the cell's zero, the rest from `sent_s`.

    `chunks`: (arrival, output tokens so far) for every stream chunk that brought tokens. `ended_s`: end of the stream.
    `error` is None exactly when the stream ended with a finish reason.
    """

    index: int
    prompt: str
    task: str
    phase: str
    scheduled_s: float
    sent_s: float
    ended_s: float
    chunks: tuple[tuple[float, int], ...]
    n_in: int | None
    n_out: int
    finish: str | None
    error: str | None = None
    spec: SpecSteps | None = None
    language: str = "en"
    text: str = ""

    @property
    def ok(self) -> bool:
        return self.error is None

    @property
    def lateness_s(self) -> float:
        """How long the client held the request back after its schedule."""
        return self.sent_s - self.scheduled_s

    @property
    def ttft_s(self) -> float | None:
        """From the scheduled time to the first chunk with tokens."""
        return self.chunks[0][0] + self.lateness_s if self.chunks else None

    @property
    def e2e_s(self) -> float | None:
        """From the scheduled time to the last chunk with tokens."""
        return self.chunks[-1][0] + self.lateness_s if self.chunks else None

    @property
    def tpot_s(self) -> float | None:
        """(last - first arrival) / (tokens after the first chunk); None when no token came after it."""
        if not self.chunks or self.chunks[-1][1] == self.chunks[0][1]:
            return None
        (first_s, first_n), (last_s, last_n) = self.chunks[0], self.chunks[-1]
        return (last_s - first_s) / (last_n - first_n)

    @property
    def chunk_gaps_s(self) -> tuple[float, ...]:
        times = [t for t, _ in self.chunks]
        return tuple(b - a for a, b in itertools.pairwise(times))


@dataclass(frozen=True, slots=True)
class Load:
    """One load level: `concurrency` requests in flight (closed loop), or `rate` requests per second (open loop)."""

    concurrency: int | None = None
    rate: float | None = None

    @property
    def label(self) -> str:
        return f"c{self.concurrency}" if self.concurrency else f"r{self.rate:g}"

    @property
    def text(self) -> str:
        return f"concurrency {self.concurrency}" if self.concurrency else f"{self.rate:g} requests/s"


@dataclass(frozen=True, slots=True)
class CellKey:
    """Where in the workload a cell sits."""

    load: Load
    temperature: float

    @property
    def label(self) -> str:
        return f"{self.load.label}-t{self.temperature:g}"


@dataclass(frozen=True, slots=True)
class ClientHealth:
    """Whether the client kept up: event-loop lag and send lateness (seconds), process CPU as a share of one core."""

    loop_lag_p99_s: float
    send_lateness_p99_s: float
    cpu_share: float

    @property
    def limited(self) -> bool:
        return self.loop_lag_p99_s > 0.05 or self.send_lateness_p99_s > 0.05 or self.cpu_share > 0.6


@dataclass(frozen=True, slots=True)
class Cell:
    """One measured (load, temperature) of one launch, over a window of full load.

    `window_s`: (start, end) from the cell's zero, warm-up and drain left out. `requests`: all of them, every phase.
    `counters_before`, `counters_after`: the engine's Prometheus text around the drained cell, None where it has none.
    `lossy`: why the output is known not to be the target's own; None where nothing is known against it.
    """

    key: CellKey
    window_s: tuple[float, float]
    requests: tuple[RequestRecord, ...]
    health: ClientHealth
    counters_before: str | None = None
    counters_after: str | None = None
    lossy: str | None = None

    @property
    def measured(self) -> tuple[RequestRecord, ...]:
        return tuple(r for r in self.requests if r.phase == "measured")

    @property
    def completed(self) -> tuple[RequestRecord, ...]:
        """Measured requests that ended well: the only ones figures are made of."""
        return tuple(r for r in self.measured if r.ok)


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What the engine said of itself while it started; None: it did not say."""

    version: str | None = None
    kv_cache_tokens: int | None = None
    runner: str | None = None
    resolved: tuple[tuple[str, str], ...] = ()
    warnings: tuple[str, ...] = ()


#: Roles of off's first launch and of its last one: everything is compared with the first, and drift is between them.
BASELINE, CLOSING = "baseline", "baseline-again"


@dataclass(frozen=True, slots=True)
class Trial:
    """One launch and its cells. `status`: ok, or why it failed; a failed trial is a row and never a hole."""

    number: int
    spec: SpecConfig
    engine: str
    cells: tuple[Cell, ...] = ()
    status: str = "ok"
    command: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    facts: EngineFacts = EngineFacts()
    ready_s: float | None = None
    role: str = "candidate"
    why: str = ""

    @property
    def ok(self) -> bool:
        return self.status == "ok"

    def cell(self, key: CellKey) -> Cell | None:
        return next((c for c in self.cells if c.key == key), None)


def request_to_dict(r: RequestRecord) -> dict[str, Any]:
    """The JSON line of a request: short names, times rounded to 10 microseconds."""
    spec = None
    if r.spec:
        spec = {"hist": list(r.spec.histogram), "drafted": r.spec.drafted, "steps": r.spec.verify_steps}
        if r.spec.accepted_by_step is not None:
            spec["acc"] = list(r.spec.accepted_by_step)
        if r.spec.drafted_by_step is not None:
            spec["drf"] = list(r.spec.drafted_by_step)
    return {
        "i": r.index, "prompt": r.prompt, "task": r.task, "lang": r.language, "phase": r.phase,
        "sched": round(r.scheduled_s, 5), "sent": round(r.sent_s, 5), "ended": round(r.ended_s, 5),
        "chunks": [[round(t, 5), n] for t, n in r.chunks],
        "n_in": r.n_in, "n_out": r.n_out, "finish": r.finish, "error": r.error, "spec": spec, "text": r.text,
    }  # fmt: skip


def request_from_dict(d: dict[str, Any]) -> RequestRecord:
    """The inverse of `request_to_dict`."""
    s = d.get("spec")
    spec = SpecSteps(
        histogram=tuple(s["hist"]),
        drafted=s.get("drafted"),
        accepted_by_step=tuple(s["acc"]) if "acc" in s else None,
        drafted_by_step=tuple(s["drf"]) if "drf" in s else None,
        verify_steps=s.get("steps"),
    ) if s else None  # fmt: skip
    return RequestRecord(
        index=d["i"], prompt=d["prompt"], task=d["task"], phase=d["phase"], scheduled_s=d["sched"],
        sent_s=d["sent"], ended_s=d["ended"], chunks=tuple((float(t), int(n)) for t, n in d["chunks"]),
        n_in=d["n_in"], n_out=d["n_out"], finish=d["finish"], error=d["error"], spec=spec,
        language=d.get("lang", "en"), text=d.get("text", ""),
    )  # fmt: skip


def percentile(values: list[float], share: float) -> float:
    """Linear interpolation between order statistics (numpy's default); `values` must not be empty."""
    ordered = sorted(values)
    position = (len(ordered) - 1) * share
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    if low == position or ordered[low] == ordered[high]:  # also where the next is no number to interpolate with
        return ordered[low]
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)
