"""Nights with a known truth: TPOT of a prompt in a launch is base * its ease * luck of launch and cell * noise.

Prompts and their ease are the same every night; luck and noise are not. tau comes from verify steps drawn one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from tuner.decide.nights_sample import CellSample, NightSample, StudyFacts
from tuner.measure.records import CellKey, Load

STUDY = "chat-vllm"
#: Acceptance of each drafted token, and tokens drafted.
ALPHA: Mapping[str, tuple[float, int]] = {"off": (0.0, 0), "eagle3 N=3 eagle3": (0.6, 3), "ngram N=3": (0.3, 3)}
BASE_S: Mapping[str, float] = {"off": 0.020, "eagle3 N=3 eagle3": 0.012, "ngram N=3": 0.017}
FACTS = StudyFacts(
    "vllm", "0.32.0", "question", (("/models/target", "t1"), ("/models/eagle3", "d1")),
    (("cores", "8"), ("cpu", "EPYC")), (("dtype", "bfloat16"),), 0.3,
)  # fmt: skip


@dataclass(frozen=True)
class Truth:
    """`slower`: by setting, what TPOT is multiplied with; `launch_sd`, `cell_sd`: luck, in logs; `alpha`: replaces."""

    slower: Mapping[str, float] = field(default_factory=dict)
    alpha: Mapping[str, float] = field(default_factory=dict)
    launch_sd: float = 0.004
    cell_sd: float = 0.003
    noise_sd: float = 0.03
    prompts: int = 32
    loads: tuple[int, ...] = (1, 8)
    good: float = 0.98


def night(run: str, seed: int, truth: Truth = Truth(), facts: StudyFacts = FACTS) -> NightSample:
    rng = np.random.default_rng(seed)
    cells = [cell for setting in BASE_S for cell in _launch(setting, rng, truth)]
    agains = _launch("off", rng, truth, again=True)
    return NightSample(run, tuple(cells), tuple(agains), {STUDY: facts})


def _launch(setting: str, rng: np.random.Generator, truth: Truth, again: bool = False) -> list[CellSample]:
    luck = rng.normal(0, truth.launch_sd)
    return [_cell(setting, load, luck, rng, truth, again) for load in truth.loads]


def _cell(setting: str, load: int, luck: float, rng: np.random.Generator, truth: Truth, again: bool) -> CellSample:
    count = truth.prompts
    ease = np.random.default_rng(99).normal(0, 0.15, count)
    logs = ease + luck + rng.normal(0, truth.cell_sd) + rng.normal(0, truth.noise_sd, count)
    tpot = BASE_S[setting] * (1 + 0.02 * load) * np.exp(logs) * truth.slower.get(setting, 1.0)
    n_out = np.full(count, 96.0)
    alpha, n = ALPHA[setting]
    alpha = truth.alpha.get(setting, alpha)
    steps = np.full(count, 40.0)
    accepted = sum(rng.binomial(40, alpha**k, count) for k in range(1, n + 1)) if n else np.full(count, np.nan)
    return CellSample(
        STUDY, setting, CellKey(Load(load), 0.0), tuple((i, f"chat/{i:03d}") for i in range(count)), tpot,
        tpot * 5, tpot * 100, n_out, np.asarray(accepted, dtype=float), steps if n else np.full(count, np.nan),
        (rng.random(count) < truth.good).astype(float), again, draft="/models/eagle3" if "eagle3" in setting else "",
    )  # fmt: skip
