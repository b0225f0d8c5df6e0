"""Synthetic truths: step times and acceptance that are known, and measurements of them with noise, request by request.

A truth has three loads of 1 to 64, two drafts with weights and a text lookup, N = 1..8 each: with off, 25 settings.
Step times are linear, convex or MoE-like (they rise early and level off) in the tokens verified, plus a start cost of
drafting and a price per drafted token. Acceptance is constant, decaying or rising by position, and differs between
requests. Every setting runs the same prompts, so that measurements are paired as the tuner pairs them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tuner.measure.records import Cell, CellKey, ClientHealth, Load, RequestRecord, SpecSteps, Trial
from tuner.spec.candidates import Arm
from tuner.spec.speculation import OFF, SpecConfig

Array = NDArray[np.float64]
NS = tuple(range(1, 9))
ARMS = (Arm("eagle3", "head", ns=NS), Arm("draft_model", "small", ns=NS), Arm("ngram", ns=NS))
SETTINGS = (OFF, *(spec for arm in ARMS for spec in arm.chains))
#: Fewer requests than a workload has where it says nothing (32, or three times the concurrency), and as many tokens.
REQUESTS, WAVES, TOKENS, POPULATION = 32, 1, 256, 1500
HEALTHY = ClientHealth(0.001, 0.001, 0.1)


@dataclass(frozen=True)
class Draft:
    """One arm. `alpha`: conditional acceptance by position; `share`: of verify steps that draft (1 but for lookups);
    `per_token`, `start`: drafting cost as shares of a plain step; `spread`: of requests' alphas, in logits."""

    alpha: Array
    share: float
    per_token: float
    start: float
    spread: float

    def accepted_law(self, latent: Array, n: int) -> Array:
        """[requests, 0..n]: probability that a drafting step accepts exactly j tokens."""
        logits = np.log(self.alpha[:n] / (1 - self.alpha[:n]))[None, :] + self.spread * latent[:, None]
        a = np.cumprod(1 / (1 + np.exp(-logits)), axis=1)
        edges = np.concatenate([np.ones((len(latent), 1)), a, np.zeros((len(latent), 1))], axis=1)
        return edges[:, :-1] - edges[:, 1:]


@dataclass(frozen=True)
class Truth:
    """`noise`: standard deviation of a request's TPOT around its steps, as a share."""

    seed: int
    kind: str
    loads: tuple[int, ...]
    plain_s: float
    saturation: float
    growth: float
    drafts: tuple[Draft, ...]
    noise: float
    _seen: dict[tuple[SpecConfig, int], tuple[list[Array], list[Array], list[Array]]] = field(default_factory=dict)

    def step_s(self, arm: int, n: int, b: int) -> float:
        """L(b, n), averaged over verify steps that draft and ones that do not."""
        plain = self._verify_s(b)
        if arm < 0:
            return plain
        draft = self.drafts[arm]
        drafting = self._verify_s(b * (n + 1)) + self.plain_s * (draft.start + draft.per_token * n) * (1 + b / 128)
        return draft.share * drafting + (1 - draft.share) * plain

    def _verify_s(self, tokens: float) -> float:
        x = tokens / self.saturation
        if self.kind == "moe":
            return self.plain_s * (1 + self.growth * (1 - np.exp(-4 * x)) + x)
        return float(self.plain_s * (1 + x ** (self.growth if self.kind == "convex" else 1.0)))

    @cached_property
    def medians_s(self) -> dict[SpecConfig, Array]:
        """True median TPOT of every setting by load, from a large population of requests."""
        return {spec: np.median(tpots, axis=1) for spec, tpots in self._population.items()}

    @cached_property
    def means_s(self) -> dict[SpecConfig, Array]:
        return {spec: tpots.mean(axis=1) for spec, tpots in self._population.items()}

    @cached_property
    def _population(self) -> dict[SpecConfig, Array]:
        rng = np.random.default_rng([self.seed, 1])
        latent = rng.standard_normal(POPULATION)
        return {spec: np.stack(self._tpots(spec, [latent] * len(self.loads), rng)[0]) for spec in SETTINGS}

    @cached_property
    def prompts(self) -> list[Array]:
        """How hard each prompt is, by load: the same ones in every arm, and a heavier load sends more of them."""
        latent = np.random.default_rng([self.seed, 2]).standard_normal(max(REQUESTS, WAVES * max(self.loads)))
        return [latent[: max(REQUESTS, WAVES * b)] for b in self.loads]

    def measure(self, spec: SpecConfig, again: int = 0) -> tuple[list[Array], list[Array], list[Array]]:
        """By load: TPOT of every request, histograms of accepted tokens, verify steps."""
        if (spec, again) not in self._seen:
            rng = np.random.default_rng([self.seed, 3, SETTINGS.index(spec), again])
            self._seen[spec, again] = self._tpots(spec, self.prompts, rng)
        return self._seen[spec, again]

    def _tpots(
        self, spec: SpecConfig, prompts: list[Array], rng: np.random.Generator
    ) -> tuple[list[Array], list[Array], list[Array]]:
        arm = next((i for i, one in enumerate(ARMS) if spec in one.chains), -1)
        tpots, histograms, all_steps = [], [], []
        for b, latent in zip(self.loads, prompts, strict=True):
            noise = np.exp(self.noise * rng.standard_normal(len(latent)) - self.noise**2 / 2)
            if arm < 0:
                histogram, drafting = np.zeros((len(latent), 1)), np.zeros(len(latent))
                steps = np.full(len(latent), TOKENS - 1.0)
            else:
                law = self.drafts[arm].accepted_law(latent, spec.n)
                tau = 1 + self.drafts[arm].share * (law @ np.arange(spec.n + 1))
                steps = np.maximum(1, np.round((TOKENS - 1) / tau))
                drafting = rng.binomial(steps.astype(int), self.drafts[arm].share)
                histogram = rng.multinomial(drafting, law).astype(np.float64)
            emitted = steps + histogram @ np.arange(histogram.shape[1])
            tpots.append(self.step_s(arm, spec.n, b) * steps / emitted * noise)
            histograms.append(histogram)
            all_steps.append(steps)
        return tpots, histograms, all_steps

    def trial(self, spec: SpecConfig, number: int, role: str) -> Trial:
        """A launch of `spec` as the tuner would store it. Off again is another draw of off."""
        return self.trial_of(spec, number, role, *self.measure(spec, int(role == "baseline-again")))

    def trial_of(
        self,
        spec: SpecConfig,
        number: int,
        role: str,
        tpots: list[Array],
        histograms: list[Array],
        steps: list[Array],
    ) -> Trial:
        cells = tuple(
            Cell(key, (0.0, 1e9), _records(tpots[i], histograms[i], steps[i], spec), HEALTHY)
            for i, key in enumerate(self.keys)
        )
        return Trial(number, spec, "synthetic", cells, ready_s=60.0, role=role)

    @property
    def keys(self) -> tuple[CellKey, ...]:
        return tuple(CellKey(Load(concurrency=b), 0.0) for b in self.loads)


def _records(tpots: Array, histogram: Array, steps: Array, spec: SpecConfig) -> tuple[RequestRecord, ...]:
    records = []
    for i, tpot_s in enumerate(tpots):
        counts = tuple(int(c) for c in histogram[i])
        told = None if spec.is_off else SpecSteps(counts, verify_steps=int(steps[i]))
        tokens = 1 + int(steps[i]) + sum(j * c for j, c in enumerate(counts))
        last_s = 0.2 + float(tpot_s) * (tokens - 1)
        records.append(RequestRecord(
            index=i, prompt=f"p/{i}", task="synthetic", phase="measured", scheduled_s=0.0, sent_s=0.0, ended_s=last_s,
            chunks=((0.2, 1), (last_s, tokens)), n_in=100, n_out=tokens, finish="length", spec=told,
        ))  # fmt: skip
    return tuple(records)


def truth(seed: int) -> Truth:
    """The truth of a seed."""
    rng = np.random.default_rng([seed, 0])
    kind = ("linear", "convex", "moe")[int(rng.integers(3))]
    growth = {"linear": 1.0, "convex": rng.uniform(1.2, 1.8), "moe": rng.uniform(0.3, 1.2)}[kind]
    levels = sorted(int(b) for b in rng.choice([1, 2, 4, 8, 16, 32, 64], size=3, replace=False))
    return Truth(
        seed, kind, tuple(levels), float(np.exp(rng.uniform(np.log(0.005), np.log(0.1)))),
        float(np.exp(rng.uniform(np.log(32), np.log(1024)))), float(growth),
        (_draft(rng, 0.02, 0.08, 0.05), _draft(rng, 0.05, 0.2, 0.05), _lookup(rng)),
        float(np.exp(rng.uniform(np.log(0.01), np.log(0.10)))),
    )  # fmt: skip


def _draft(rng: np.random.Generator, least: float, most: float, start: float) -> Draft:
    first, slope = rng.uniform(0.4, 0.9), rng.uniform(0.85, 1.02)
    alpha = np.clip(first * slope ** np.arange(len(NS)), 0.02, 0.97)
    return Draft(alpha, 1.0, float(rng.uniform(least, most)), float(rng.uniform(0, 2 * start)), 0.4)


def _lookup(rng: np.random.Generator) -> Draft:
    alpha = np.clip(rng.uniform(0.3, 0.7) + 0.03 * np.arange(len(NS)), 0.02, 0.95)
    return Draft(alpha, float(rng.uniform(0.1, 0.5)), 0.0, 0.01, 0.5)
