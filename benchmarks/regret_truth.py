"""Synthetic truths: step times and acceptance that are known, and measurements of them with noise, request by request.

A truth has three loads of 1 to 64, a head, a draft model and a text lookup, N = 1..8 each: with off, 25 settings.
Step times are linear, convex or MoE-like (they rise early and level off) in the tokens verified, plus a start cost of
drafting and a price per drafted token. Every setting runs the same prompts, so that measurements are paired as the
tuner pairs them. How wide each figure is drawn, and after which published figures, stands in `regret_draw.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from regret_draw import NS, Chain, Draft, Laws, draw_laws
from scipy.special import ndtri

from tuner.measure.records import Cell, CellKey, ClientHealth, Load, RequestRecord, SpecSteps, Trial
from tuner.spec.candidates import Arm
from tuner.spec.speculation import OFF, SpecConfig

Array = NDArray[np.float64]
ARMS = (Arm("eagle3", "head", ns=NS), Arm("draft_model", "small", ns=NS), Arm("ngram", ns=NS))
SETTINGS = (OFF, *(spec for arm in ARMS for spec in arm.chains))
PLACES = {spec: (arm, spec.n) for arm, one in enumerate(ARMS) for spec in one.chains} | {OFF: (-1, 0)}
#: Requests a cell: the least a workload measures where it says nothing, and fewer waves than that (3). Tokens each.
REQUESTS, WAVES, TOKENS, POPULATION = 32, 1, 256, 800
HEALTHY = ClientHealth(0.001, 0.001, 0.1)


@dataclass(frozen=True)
class Seen:
    """One load of one launch: TPOT of every request, histograms of accepted tokens, verify steps, tokens emitted."""

    tpots_s: Array
    histogram: Array
    steps: Array
    emitted: Array


@dataclass(frozen=True)
class Truth:
    """`launch_noise`: standard deviation by which a launch is faster or slower as a whole, as a share."""

    seed: int
    laws: Laws
    launch_noise: float = 0.0
    _seen: dict[tuple[SpecConfig, int], list[Seen]] = field(default_factory=dict)

    @property
    def loads(self) -> tuple[int, ...]:
        return self.laws.loads

    @property
    def keys(self) -> tuple[CellKey, ...]:
        return tuple(CellKey(Load(concurrency=b), 0.0) for b in self.loads)

    def step_s(self, arm: int, n: int, b: int) -> float:
        """L(b, n), averaged over verify steps that draft and ones that do not."""
        plain = self.laws.verify_s(b)
        if arm < 0:
            return plain
        draft = self.laws.drafts[arm]
        drafting = self.laws.verify_s(b * (n + 1)) + self.laws.drafting_s(draft, n, b)
        share = draft.drafting_share(n)
        return share * drafting + (1 - share) * plain

    @cached_property
    def medians_s(self) -> dict[SpecConfig, Array]:
        """True median TPOT of every setting by load."""
        return {spec: self._steps_s(spec) * np.median(per_step) for spec, per_step in self._population.items()}

    @cached_property
    def means_s(self) -> dict[SpecConfig, Array]:
        return {spec: self._steps_s(spec) * per_step.mean() for spec, per_step in self._population.items()}

    def _steps_s(self, spec: SpecConfig) -> Array:
        arm, n = PLACES[spec]
        return np.array([self.step_s(arm, n, b) for b in self.loads])

    @cached_property
    def _population(self) -> dict[SpecConfig, Array]:
        """TPOT over L of a large population of requests. Their noise is the same under every setting, so that it does
        not decide which is best."""
        rng = np.random.default_rng([self.seed, 1])
        latent = rng.permutation(ndtri((np.arange(POPULATION) + 0.5) / POPULATION))
        noise = self._noise(rng, POPULATION)
        found = {OFF: noise}
        for arm, draft in enumerate(self.laws.drafts):
            for n, (_, steps, emitted) in zip(NS, draft.runs(rng, latent, NS, TOKENS - 1), strict=True):
                found[ARMS[arm].at(n)] = steps / emitted * noise
        return found

    def _noise(self, rng: np.random.Generator, requests: int) -> Array:
        noise = self.laws.noise
        return np.exp(noise * rng.standard_normal(requests) - noise**2 / 2)

    @cached_property
    def prompts(self) -> list[Array]:
        """How hard each prompt is, by load: the same ones in every arm, and a heavier load sends more of them."""
        latent = np.random.default_rng([self.seed, 2]).standard_normal(max(REQUESTS, WAVES * max(self.loads)))
        return [latent[: max(REQUESTS, WAVES * b)] for b in self.loads]

    def measure(self, spec: SpecConfig, again: int = 0) -> list[Seen]:
        """By load. Off again is another launch of off."""
        if (spec, again) not in self._seen:
            rng = np.random.default_rng([self.seed, 3, SETTINGS.index(spec), again])
            self._seen[spec, again] = self._launch(spec, rng)
        return self._seen[spec, again]

    def _launch(self, spec: SpecConfig, rng: np.random.Generator) -> list[Seen]:
        arm, n = PLACES[spec]
        slower = float(np.exp(self.launch_noise * rng.standard_normal())) if self.launch_noise else 1.0
        found = []
        for b, latent in zip(self.loads, self.prompts, strict=True):
            if arm < 0:
                steps = emitted = np.full(len(latent), TOKENS - 1.0)
                histogram = np.zeros((len(latent), 1))
            else:
                ((histogram, steps, emitted),) = self.laws.drafts[arm].runs(rng, latent, (n,), TOKENS - 1)
            tpots_s = self.step_s(arm, n, b) * slower * steps / emitted * self._noise(rng, len(latent))
            found.append(Seen(tpots_s, histogram, steps, emitted))
        return found

    def trial(self, spec: SpecConfig, number: int, role: str) -> Trial:
        """A launch of `spec` as the tuner would store it."""
        return self.trial_of(spec, number, role, self.measure(spec, int(role == "baseline-again")))

    def trial_of(self, spec: SpecConfig, number: int, role: str, seen: list[Seen]) -> Trial:
        cells = tuple(
            Cell(key, (0.0, 1e9), _records(one, spec), HEALTHY) for key, one in zip(self.keys, seen, strict=True)
        )
        return Trial(number, spec, "synthetic", cells, ready_s=60.0, role=role)


def _records(seen: Seen, spec: SpecConfig) -> tuple[RequestRecord, ...]:
    records = []
    for i, tpot_s in enumerate(seen.tpots_s.tolist()):
        steps, tokens = int(seen.steps[i]), 1 + int(seen.emitted[i])
        told = None if spec.is_off else SpecSteps(tuple(map(int, seen.histogram[i])), verify_steps=steps)
        last_s = 0.2 + tpot_s * (tokens - 1)
        records.append(RequestRecord(
            index=i, prompt=f"p/{i}", task="synthetic", phase="measured", scheduled_s=0.0, sent_s=0.0, ended_s=last_s,
            chunks=((0.2, 1), (last_s, tokens)), n_in=100, n_out=tokens, finish="length", spec=told,
        ))  # fmt: skip
    return tuple(records)


def truth(seed: int, launch_noise: float = 0.0) -> Truth:
    """The truth of a seed."""
    return Truth(seed, draw_laws(np.random.default_rng([seed, 0])), launch_noise)


__all__ = ["ARMS", "NS", "SETTINGS", "Array", "Chain", "Draft", "Seen", "Truth", "truth"]
