"""The acceptance profile of a draft: a_k, alpha_k, alpha and tau of every N up to the one that ran, with intervals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tuner.measure.acceptance import AcceptanceCounts, pool, request_counts
from tuner.measure.records import Cell, RequestRecord
from tuner.measure.split_rule import split_taus
from tuner.measure.statistics import TIE_MARGIN, Array, interval, resampling, share_bounds

#: Without intervals (counters, published figures) the prefix sum may be off by so much (field case P07).
WITHOUT_INTERVAL = 0.05
#: Upper bounds of the context buckets, tokens of the prompt.
CONTEXT_EDGES = (512, 2048, 8192, 32768)


@dataclass(frozen=True, slots=True)
class Figure:
    """A value with its 95 percent interval; no interval where the source counts no requests (DEFINITIONS, Statistics:
    the unit of resampling is the request)."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class AcceptanceProfile:
    """`a[k-1]` is a_k; `tau[N-1]` is tau(N) over all verify steps, drafting or not: a prefix sum, or for lookups by
    `split_rule`.

    `units`: prompts that were resampled, None for counters. Figures are None from the position no step reached.
    """

    n: int
    drafting_steps: int
    units: int | None
    a: tuple[Figure, ...]
    alpha_by_position: tuple[Figure | None, ...]
    alpha: Figure | None
    tau: tuple[Figure, ...]
    drafting_share: Figure | None


@dataclass(frozen=True, slots=True)
class Bucket:
    """The part of the traffic a profile is of. `by`: all, task, language or context; `name`: which one."""

    temperature: float
    by: str
    name: str
    profile: AcceptanceProfile


def profile_of(counts: Sequence[AcceptanceCounts], seed: int = 0, *, lookup: bool = False) -> AcceptanceProfile | None:
    """From one count a request (or prompt), however its engine told it. None where no step drafted."""
    total = pool(counts)
    if total is None or not total.drafting_steps or not total.reached:
        return None
    rows = np.array([_row(one, total.n, lookup) for one in counts])
    drawn = resampling(len(rows), seed) @ rows if len(rows) > 1 else None
    with np.errstate(divide="ignore", invalid="ignore"):
        here = _figures(rows.sum(axis=0), total.n)
        draws = _figures(drawn, total.n) if drawn is not None else None
    n, trials = total.n, _trials(rows.sum(axis=0), total.n)
    made = [
        _bounded(here[:, i], draws[..., i] if draws is not None else None, len(rows), trials.get(i, 0.0))
        for i in range(here.shape[1])
    ]
    share = made[3 * n + 1] if total.verify_steps else None
    return AcceptanceProfile(
        n=n,
        drafting_steps=total.drafting_steps,
        units=len(rows) if drawn is not None else None,
        a=tuple(f for f in made[:n] if f),
        alpha_by_position=tuple(made[n : 2 * n]),
        alpha=made[3 * n],
        tau=tuple(f for f in made[2 * n : 3 * n] if f),
        drafting_share=share,
    )


def profiles(cells: Iterable[Cell], n: int, seed: int = 0, *, lookup: bool = False) -> tuple[Bucket, ...]:
    """Profiles of one launch by temperature, and within it by task, language and context. `lookup`: of its method.

    Loads are pooled: acceptance does not move with them (DEFINITIONS, Formulas). A prompt that ran at several loads is
    one unit, since its steps are no news the second time.
    """
    by_temperature: dict[float, list[RequestRecord]] = {}
    for cell in cells:
        by_temperature.setdefault(cell.key.temperature, []).extend(cell.completed)
    found = []
    for temperature, requests in by_temperature.items():
        for by, groups in _groups(requests).items():
            for name, members in groups.items():
                profile = profile_of(by_prompt(members, n), seed, lookup=lookup)
                if profile is not None:
                    found.append(Bucket(temperature, by, name, profile))
    return tuple(found)


def by_prompt(requests: Sequence[RequestRecord], n: int) -> list[AcceptanceCounts]:
    """One count a prompt."""
    told: dict[str, list[AcceptanceCounts]] = {}
    for request in requests:
        counts = request_counts(request, n)
        if counts is not None:
            told.setdefault(request.prompt, []).append(counts)
    return [total for several in told.values() if (total := pool(several)) is not None]


def context_bucket(tokens: int | None) -> str | None:
    """`<512`, `512-2047`, ... `>=32768` tokens of prompt."""
    if tokens is None:
        return None
    for low, high in zip((0, *CONTEXT_EDGES), CONTEXT_EDGES, strict=False):
        if tokens < high:
            return f"<{high}" if not low else f"{low}-{high - 1}"
    return f">={CONTEXT_EDGES[-1]}"


@dataclass(frozen=True, slots=True)
class PrefixSum:
    """tau(n) as the run at `n` measured it, beside the prefix sum of a run at a larger N."""

    n: int
    longer: int
    measured: Figure
    summed: Figure

    @property
    def ratio(self) -> float:
        return self.summed.value / self.measured.value

    @property
    def holds(self) -> bool:
        """Refused where the two differ beyond both intervals and by more than a tie."""
        overlap = _overlap(self.measured, self.summed)
        return abs(self.ratio - 1) <= (WITHOUT_INTERVAL if overlap is None else TIE_MARGIN) or bool(overlap)

    @property
    def text(self) -> str:
        verdict = "the rule holds" if self.holds else "the rule is refused: every N must be measured"
        return (
            f"tau({self.n}) is {_shown(self.measured)} measured, and {_shown(self.summed)} as the run at N = "
            f"{self.longer} tells it: {verdict}"
        )


def prefix_sum(shorter: AcceptanceProfile, longer: AcceptanceProfile) -> PrefixSum:
    """Whether the run at the larger N tells tau of the smaller (DEFINITIONS, Formulas). ValueError for equal N."""
    if shorter.n >= longer.n:
        raise ValueError(f"the prefix sum goes from a larger N to a smaller one, not from {longer.n} to {shorter.n}")
    return PrefixSum(shorter.n, longer.n, shorter.tau[-1], longer.tau[shorter.n - 1])


def _row(counts: AcceptanceCounts, n: int, lookup: bool) -> list[float]:
    """[steps, verify steps, accepted, rejections, reached 1..n, tokens at 1..n, verify steps at 1..n]"""
    steps = counts.drafting_steps
    verify = counts.verify_steps if counts.verify_steps is not None else steps
    reached = [*counts.reached, *[0] * (n - counts.n)]
    if lookup and verify:
        tokens = [float(verify + counts.accepted)] * n
        at = [total / tau for total, tau in zip(tokens, split_taus(reached, steps, verify), strict=True)]
    else:
        tokens, at = [float(verify + sum(reached[:k])) for k in range(1, n + 1)], [float(verify)] * n
    return [float(value) for value in (steps, verify, counts.accepted, steps - counts.full, *reached, *tokens, *at)]


def _figures(totals: Array, n: int) -> Array:
    """[..., a_1..a_n, alpha_1..alpha_n, tau_1..tau_n, alpha, drafting share] of sums as `_row` lays them out."""
    totals = np.atleast_2d(totals)
    steps, verify, accepted, rejected = np.split(totals[:, :4], 4, axis=1)
    reached, tokens, at = np.split(totals[:, 4:], [n, 2 * n], axis=1)
    a = reached / steps
    conditional = reached / np.concatenate([steps, reached[:, :-1]], axis=1)
    return np.concatenate([a, conditional, tokens / at, accepted / (accepted + rejected), steps / verify], axis=1)


def _trials(totals: Array, n: int) -> dict[int, float]:
    """What each a_k, alpha_k and alpha is a share of, by its place among `_figures`."""
    steps, _, accepted, rejected, *reached = totals[: 4 + n].tolist()
    before = [steps, *reached[:-1]]
    return {**dict.fromkeys(range(n), steps), **{n + k: before[k] for k in range(n)}, 3 * n: accepted + rejected}


def _bounded(value: Array, draws: Array | None, n: int, trials: float) -> Figure | None:
    if not np.isfinite(value[0]):
        return None
    if draws is None or not np.isfinite(draws).any():
        return Figure(float(value[0]))
    low, high = interval(draws, n)
    return Figure(float(value[0]), *share_bounds(float(value[0]), min(low, value[0]), max(high, value[0]), trials))


def _groups(requests: Sequence[RequestRecord]) -> dict[str, dict[str, list[RequestRecord]]]:
    groups: dict[str, dict[str, list[RequestRecord]]] = {"all": {"all": list(requests)}}
    for request in requests:
        names = {"task": request.task, "language": request.language, "context": context_bucket(request.n_in)}
        for by, name in names.items():
            if name is not None:
                groups.setdefault(by, {}).setdefault(name, []).append(request)
    return groups


def _overlap(one: Figure, other: Figure) -> bool | None:
    """None where one of the two has no interval."""
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return None
    return one.low <= other.high and other.low <= one.high


def _shown(figure: Figure) -> str:
    if figure.low is None or figure.high is None:
        return f"{figure.value:.3f}"
    return f"{figure.value:.3f} [{figure.low:.3f}, {figure.high:.3f}]"
