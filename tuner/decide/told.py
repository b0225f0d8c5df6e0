"""Rows that somebody else measured: what each says, and why some are refused."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tuner.errors import UserError
from tuner.spec.speculation import Tree

#: (concurrency, temperature, GPUs, requests per second); None: not told.
Place = tuple[int | None, float | None, int | None, float | None]

#: With more failed requests than this the figures are those of another load.
MOST_FAILED = 0.5
#: A position accepted in fewer of the steps than this is as good as never accepted.
NEVER = 0.005
#: tau told and 1 + sum of a_k may differ by the rounding of published figures.
ROUNDING = 0.02
#: Figures that are a time, a rate or a share of something: nothing at all, or less, is none of these.
POSITIVE = (
    "tpot_ms", "throughput_tok_s", "ttft_p50_ms", "ttft_p95_ms", "e2e_p50_ms", "chunk_gap_p50_ms", "share",
    "concurrency", "rate", "tp",
)  # fmt: skip
#: Figures that may be 0.
NOT_NEGATIVE = ("tpot_se_ms", "throughput_se_tok_s", "temperature", "failed")
#: What is counted, not measured.
WHOLE = ("n", "concurrency", "tp")


@dataclass(frozen=True, slots=True)
class ToldRow:
    """One measured setting in one cell; None: not told. Units as in the names; `share`: of the task in the traffic.

    `tau` counts the bonus token. `where`: file and line, for people. `tp`: GPUs that share the target. `rate`: requests
    per second. `failed`: share of requests.
    """

    where: str
    method: str
    n: int = 0
    tree: Tree | None = None
    draft: str | None = None
    concurrency: int | None = None
    temperature: float | None = None
    task: str = "all"
    share: float | None = None
    tp: int | None = None
    tpot_ms: float | None = None
    tpot_se_ms: float | None = None
    throughput_tok_s: float | None = None
    throughput_se_tok_s: float | None = None
    ttft_p50_ms: float | None = None
    ttft_p95_ms: float | None = None
    e2e_p50_ms: float | None = None
    chunk_gap_p50_ms: float | None = None
    tau: float | None = None
    a: tuple[float, ...] = ()
    rate: float | None = None
    failed: float | None = None

    @property
    def is_off(self) -> bool:
        return self.method == "off"

    @property
    def label(self) -> str:
        name = f"{self.method} ({self.draft})" if self.draft else self.method
        if self.is_off:
            return "off"
        if self.tree:
            return f"{name} tree d={self.tree.depth} k={self.tree.topk} m={self.tree.nodes}"
        return f"{name} N={self.n}"

    @property
    def cell(self) -> Place:
        return (self.concurrency, self.temperature, self.tp, self.rate)

    @property
    def most_tau(self) -> int:
        """tau cannot be more: N + 1 on a chain, min(d + 1, m) on a tree."""
        return min(self.tree.depth + 1, self.tree.nodes) if self.tree else self.n + 1

    @property
    def last_accepted(self) -> int | None:
        """The last position of a chain whose tokens are accepted at times; None where its a_k are not all told."""
        if self.tree or not self.n or len(self.a) != self.n:
            return None
        return max((k for k, a in enumerate(self.a, start=1) if a >= NEVER), default=0)

    @property
    def drafted(self) -> int:
        """What decides a tie: tokens drafted per step."""
        return self.tree.nodes - 1 if self.tree else self.n


@dataclass(frozen=True, slots=True)
class Refused:
    """A row, or a figure, that is not believed, and why."""

    what: str
    reason: str


def with_bonus(value: float, bonus_included: bool) -> float:
    """tau from a tool's own 'acceptance length': some leave the bonus token out."""
    return value if bonus_included else value + 1


def believe(rows: Sequence[ToldRow]) -> tuple[tuple[ToldRow, ...], tuple[Refused, ...]]:
    """(rows that can be, refusals of those that cannot)."""
    kept, refused = [], []
    for row in rows:
        reason = _impossible(row)
        if reason is None:
            kept.append(row)
        else:
            refused.append(Refused(f"{row.where}: {row.label}", reason))
    return tuple(kept), tuple(refused)


def _impossible(row: ToldRow) -> str | None:
    wrong = next(_no_figures(row), None)
    if wrong is not None:
        return wrong
    if row.failed is not None and row.failed > MOST_FAILED:
        return f"{row.failed:.0%} of its requests failed, or it was cancelled"
    if row.is_off:
        return None
    if row.tree is None and row.n < 1:
        return "a drafting method needs n of at least 1"
    if row.tree is not None and min(row.tree.depth, row.drafted) < 1:
        return "a tree needs steps of at least 1 and nodes of at least 2"
    if row.tau is not None and not 1 <= row.tau <= row.most_tau + 1e-9:
        note = "; is it without the bonus token?" if 0 <= row.tau < 1 else ""
        return f"tau {row.tau:g} is outside 1..{row.most_tau}{note}"
    if any(not 0 <= a <= 1 for a in row.a):
        return "a_k are shares: each must lie in 0..1"
    if any(later > earlier + 1e-9 for earlier, later in zip(row.a, row.a[1:], strict=False)):
        return "a_k grow with k: marginal acceptance cannot (are these conditional rates?)"
    if len(row.a) == row.n and row.a and row.tau is not None and abs((1 + sum(row.a)) / row.tau - 1) > ROUNDING:
        return f"tau {row.tau:g} and 1 + sum of a_k = {1 + sum(row.a):.3f} contradict each other"
    return None


def _no_figures(row: ToldRow) -> Iterator[str]:
    """A cell's load, its shares and its times must be such: 0 requests at once are no load, share 0 is no traffic."""
    for name in dict.fromkeys((*POSITIVE, *NOT_NEGATIVE, *WHOLE, "tau")):
        value = getattr(row, name)
        if value is None:
            continue
        if not math.isfinite(value):
            yield f"{name} {value:g} is no finite number"
        elif name in WHOLE and value != int(value):
            yield f"{name} {value:g} is not a whole number"
        elif (name in POSITIVE and value <= 0) or (name in NOT_NEGATIVE and value < 0):
            yield f"{name} {value:g} is impossible: it must be {'more than 0' if name in POSITIVE else '0 or more'}"
    if not all(math.isfinite(a) for a in row.a):
        yield "a_k must be finite numbers"


def one_unit(rows: Sequence[ToldRow], objective: str = "tpot_p50") -> str:
    """The figure that costs are compared in: the objective's own where off (or every row) has it, else the other."""
    names = ("throughput_tok_s", "tpot_ms") if objective == "throughput" else ("tpot_ms", "throughput_tok_s")
    for name in names:
        measured = [row for row in rows if getattr(row, name) is not None]
        off = [row for row in rows if row.is_off]
        if measured and all(getattr(row, name) is not None for row in off):
            return name
    raise UserError("no setting has a tpot_ms or a throughput_tok_s beside off: there is nothing to rank by")


def unit_reasons(rows: Sequence[ToldRow], unit: str, objective: str) -> tuple[str, ...]:
    """What `one_unit` chose, said where it is not plain TPOT, and why where it is not the objective's own figure."""
    objectives = {"tpot_p50": ("tpot_ms", "TPOT"), "throughput": ("throughput_tok_s", "throughput")}
    shown = dict(objectives.values())[unit]
    own, asked = objectives.get(objective, (None, objective))
    if own == unit:
        return () if unit == "tpot_ms" else (f"ranked by {shown}",)
    told = own is not None and any(getattr(row, own) is not None for row in rows)
    why = "not told beside every row of off" if told else "not in the rows"
    return (f"ranked by {shown}: {asked} is {why}",)
