"""TPOT, throughput and goodput at an N that was not launched: L(b, N) / tau(N), request by request, with intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tuner.decide.outlook import Outlook, Stretch
from tuner.decide.step_line import StepLine, StepPoint, fit_line
from tuner.measure.records import CellKey
from tuner.measure.rows import RequestRows
from tuner.measure.statistics import Array, Estimate, resampling
from tuner.measure.summary import CellSummary
from tuner.spec.speculation import LOOKUP_METHODS, SpecConfig

RESAMPLES = 500


@dataclass(frozen=True, slots=True)
class Prediction:
    """A chain in one cell. `tpot_s`: mean over requests, seconds. `gain`: in the objective, over what it is set against
    (off unless asked otherwise), above 1 is better. `source`: the launch whose requests it is made of; `shape`: what
    the step time was taken for between the measured N. None: it cannot be predicted.
    """

    spec: SpecConfig
    key: CellKey
    tpot_s: Estimate
    tau: float
    step_s: float
    gain: Estimate | None = None
    throughput_tok_s: Estimate | None = None
    goodput: Estimate | None = None
    missed_slos: tuple[str, ...] = ()
    source: SpecConfig | None = None
    shape: str = "linear"


@dataclass(frozen=True, slots=True)
class Terms:
    """On which terms predictions are compared: as `Evidence` has them. `stray`: more relative standard deviation."""

    objective: str = "tpot_p50"
    slo_ms: Mapping[str, float] | None = None
    seed: int = 0
    stray: float = 0.0


def predict(off: CellSummary, measured: Sequence[CellSummary], spec: SpecConfig) -> Prediction | None:
    """One chain; see `predict_chains`."""
    found = predict_chains(off, measured, [spec])
    return found[0] if found else None


def predict_chains(
    off: CellSummary,
    measured: Sequence[CellSummary],
    specs: Sequence[SpecConfig],
    terms: Terms = Terms(),
    against: CellSummary | None = None,
) -> tuple[Prediction, ...]:
    """`measured`: cells of the specs' own arm, load and temperature; what cannot be predicted from them is left out.

    Every request of the nearest longer launch is carried over: its TPOT times its own tau there over its own tau(N)
    (by the rule of its method), times L(N) over L there; what other requests' prefills add to a token stays. L is the
    line through off and every measured N (`step_line`); N beyond the largest measured is refused. Intervals resample
    requests, all arms alike, and add what the line leaves open.
    """
    base = _base(off, measured, against or off, terms)
    if base is None:
        return ()
    sources = _sources(base, specs)
    return tuple(_predicted(base, source, spec, terms) for spec, source in sources.items())


def predict_gains(
    off: CellSummary, measured: Sequence[CellSummary], specs: Sequence[SpecConfig], terms: Terms, against: CellSummary
) -> dict[SpecConfig, tuple[Estimate, tuple[str, ...]]]:
    """Of `predict_chains` the gain and the missed SLOs, where a gain is defined: what choosing a launch needs."""
    base = _base(off, measured, against, terms)
    if base is None:
        return {}
    found = {}
    for spec, source in _sources(base, specs).items():
        outlook = _outlook(base, source, spec, terms)[0]
        gain = outlook.gain(terms.objective, terms.slo_ms or {})
        if gain is not None:
            found[spec] = (gain, outlook.missed(terms.slo_ms or {}))
    return found


@dataclass(frozen=True, slots=True)
class _Base:
    """What all predictions of one arm in one cell share. `steps`, `step_draws`: of the line's points."""

    off: CellSummary
    chains: tuple[CellSummary, ...]
    rows: Mapping[int, RequestRows]
    against: RequestRows
    line: StepLine
    steps: Array
    step_draws: Array
    weights: Array


def _base(off: CellSummary, measured: Sequence[CellSummary], against: CellSummary, terms: Terms) -> _Base | None:
    chains = tuple(sorted((c for c in measured if c.step_s and c.a and c.rows), key=lambda c: c.spec.n))
    if off.step_s is None or off.rows is None or against.rows is None or not chains:
        return None
    arms = [off.rows, against.rows, *(c.rows for c in chains if c.rows)]
    shared = set.intersection(*(set(rows.ids) for rows in arms))
    ids = [one for one in off.rows.ids if one in shared]
    if len(ids) < 2:
        return None
    rows = {c.spec.n: c.rows.take(ids) for c in chains if c.rows}
    weights = resampling(len(ids), terms.seed, RESAMPLES)
    places = {0: off.rows.take(ids)} | rows
    points = [StepPoint(1, 0, off.step_s), *(StepPoint(1, c.spec.n, c.step_s) for c in chains if c.step_s)]
    line = fit_line(points)
    totals = [np.stack([places[n].clear_s, places[n].clear_steps], axis=1) for n in line.ns]
    draws = [weights @ one for one in totals]
    return _Base(
        off, chains, rows, against.rows.take(ids), line,
        np.array([one[:, 0].sum() / one[:, 1].sum() for one in totals]),
        np.stack([one[:, 0] / one[:, 1] for one in draws], axis=1), weights,
    )  # fmt: skip


def _sources(base: _Base, specs: Sequence[SpecConfig]) -> dict[SpecConfig, CellSummary]:
    """The nearest launch that is as long, by spec; a spec longer than all is left out."""
    found = {}
    for spec in specs:
        source = next((c for c in base.chains if c.spec.n >= spec.n > 0), None)
        if source is not None:
            found[spec] = source
    return found


def _outlook(base: _Base, source: CellSummary, spec: SpecConfig, terms: Terms) -> tuple[Outlook, float]:
    """The source's requests as `spec` would run them, and its L."""
    rows, n = base.rows[source.spec.n], spec.n
    place, at = base.line.ns.index(source.spec.n), base.line.weights(n)
    step_s = float(base.steps @ at)
    stray = np.hypot(base.line.stray_s(n) / step_s, terms.stray if n != source.spec.n else 0.0)
    noise = _noise(terms.seed, n, len(base.weights))
    factor = step_s / float(base.steps[place])
    factors = base.step_draws @ at / base.step_draws[:, place] * np.exp(stray * noise)
    # What other requests' prefills added to a token stays; N changes decoding.
    clear = min(1.0, rows.steps.sum() * base.steps[place] / rows.decode_s.sum())
    tpot_s = clear * rows.tpot_s * rows.tau[:, source.spec.n - 1] / rows.tau[:, n - 1]
    stretch = Stretch(rows, tpot_s, (1 - clear) * rows.tpot_s, factor, factors)
    return Outlook(stretch, base.against, base.weights), step_s


@lru_cache(maxsize=64)
def _noise(seed: int, n: int, draws: int) -> Array:
    return np.random.default_rng([seed, n]).standard_normal(draws)


def _predicted(base: _Base, source: CellSummary, spec: SpecConfig, terms: Terms) -> Prediction:
    outlook, step_s = _outlook(base, source, spec, terms)
    rows = base.rows[source.spec.n]
    return Prediction(
        spec=spec,
        key=base.off.key,
        tpot_s=outlook.tpot_s(),
        tau=_pooled_tau(rows, spec),
        step_s=step_s,
        gain=outlook.gain(terms.objective, terms.slo_ms or {}),
        throughput_tok_s=outlook.throughput(source.throughput_tok_s),
        goodput=outlook.goodput(terms.slo_ms or {}),
        missed_slos=outlook.missed(terms.slo_ms or {}),
        source=source.spec,
        shape=base.line.shape,
    )


def _pooled_tau(rows: RequestRows, spec: SpecConfig) -> float:
    """Over all verify steps. A lookup takes more of them at a smaller N and drafts in the same places."""
    own = rows.tau[:, spec.n - 1]
    if spec.method in LOOKUP_METHODS:
        tokens = rows.steps * rows.tau[:, -1]
        return float(tokens.sum() / (tokens / own).sum())
    return float(rows.steps @ own / rows.steps.sum())
