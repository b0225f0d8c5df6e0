"""What a stage was asked to do, as the tuner wrote it down. Pure, no torch."""

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from draft_trainer.schedule import Budget


@dataclass(frozen=True)
class Job:
    """One draft of one target. Paths are absolute; `settings` is what the tuner recorded of all this.

    `prompts`: the file of prompts. `rows`: padded tokens of a rank's batch. `loss_tokens`: over about how many a step's
    loss is taken, 0 for all. `share`: of rows that go on to further unrolled steps. `sharpness`: exponent of the
    target's probabilities, 1 for its own distribution. `vocabulary`: how many tokens the draft may draft, 0 for all.
    `batch`: prompts answered at once. `heads`: of Medusa; `layers`, `hidden`: of a draft model.
    """

    target: str
    method: str
    data: str
    work: str
    prompts: str
    engine: str
    seed: int
    steps: int | None
    minutes: float | None
    ranks: int
    precision: str
    ttt: int
    rows: int
    rate: float
    loss_tokens: int
    share: float
    decay: float
    sharpness: float
    vocabulary: int
    feature_norm: bool
    taps: tuple[int, ...]
    intermediate: int
    heads: int
    layers: int
    hidden: int
    temperatures: tuple[float, ...]
    answer_tokens: int
    prompt_tokens: int
    own_questions: int
    data_seed: int
    data_minutes: float | None
    batch: int
    checkpoint_s: float
    resume: bool
    settings: dict[str, Any]

    @property
    def budget(self) -> Budget:
        return Budget(self.steps, self.minutes)


def read_job(path: Path) -> Job:
    stored = json.loads(path.read_text(encoding="utf-8"))
    lists = {name: tuple(stored[name]) for name in ("taps", "temperatures")}
    return Job(**{field.name: stored[field.name] for field in fields(Job)} | lists)
