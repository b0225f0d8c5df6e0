"""Stage `train`: optimiser steps until the budget is spent, checkpoints on the way, the draft and its record after."""

import math
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from draft_trainer.corpus import Corpus
from draft_trainer.draft_model import DraftModel
from draft_trainer.eagle1 import Eagle1
from draft_trainer.eagle3 import Eagle3
from draft_trainer.heads import Draft, Effort, Outcome
from draft_trainer.job import Job
from draft_trainer.medusa import Medusa
from draft_trainer.optimiser import Optimiser
from draft_trainer.processes import minutes_left, say
from draft_trainer.ranks import Ranks
from draft_trainer.schedule import learning_rate, unrolled_steps
from draft_trainer.target import Target

KINDS: dict[str, type[Any]] = {"eagle3": Eagle3, "eagle": Eagle1, "medusa": Medusa, "draft_model": DraftModel}
CHECKPOINT = "checkpoint.pt"
#: Steps between two lines of progress, and between two counts of hits.
SHOWN = 10


@dataclass
class Run:
    """What a checkpoint keeps beside weights: steps done, seconds spent, and what was seen on the way."""

    step: int = 0
    spent_s: float = 0.0
    rows: float = 0.0
    resumed: int = 0
    losses: list[tuple[int, float]] = field(default_factory=list)
    hits: list[tuple[int, list[float | None]]] = field(default_factory=list)


class Trainer:
    def __init__(self, job: Job, ranks: Ranks) -> None:
        self.job, self.ranks = job, ranks
        self.target = Target(job.target)
        self.corpus = Corpus(Path(job.data), False, self.target.width(job.taps))
        self.draft: Draft = KINDS[job.method](job, self.target, self.corpus)
        self.optimiser = Optimiser(self.draft)
        self.run = Run()
        self.checkpoint = Path(job.work) / CHECKPOINT
        if job.resume:
            self._restore()

    def train(self) -> None:
        stream = self.corpus.stream(self.job.rows, self.job.seed, self.ranks.rank, self.ranks.count, self.run.step)
        before_s, began_s, saved_s = self.run.spent_s, monotonic(), monotonic()
        done = self.job.budget.done(self.run.step, before_s)
        while done < 1:
            outcome = self._gradients(next(stream), done)
            spent_s = before_s + monotonic() - began_s
            loss, rows, self.run.spent_s = self._exchanged(outcome, spent_s)
            if not math.isfinite(loss):
                raise ValueError(f"the loss is {loss} at step {self.run.step}: lower the learning rate")
            self.optimiser.step(learning_rate(self.job.rate, self.run.step, done))
            self.run.step += 1
            self.run.rows += rows
            done = self.job.budget.done(self.run.step, self.run.spent_s)
            self._note(outcome, loss, done)
            if self.ranks.first and monotonic() - saved_s > self.job.checkpoint_s:
                self._save()
                saved_s = monotonic()
        if self.ranks.first:
            self._save()

    def _gradients(self, chosen: list[int], done: float) -> Outcome:
        self.optimiser.forget_gradients()
        draw = torch.Generator().manual_seed((self.job.seed * 1_000_003 + self.run.step) * 64 + self.ranks.rank)
        effort = Effort(unrolled_steps(self.job.ttt, done), draw, self.run.step % SHOWN == 0)
        with self.precision():
            outcome = self.draft.loss(self.corpus.batch(chosen), effort)
        outcome.loss.backward()
        return outcome

    def precision(self) -> AbstractContextManager[Any]:
        return torch.autocast("cpu", torch.bfloat16, enabled=self.job.precision == "bf16")

    def _exchanged(self, outcome: Outcome, spent_s: float) -> tuple[float, float, float]:
        """(mean loss, rows of all ranks, the first rank's clock), the same on every rank."""
        clock = spent_s * self.ranks.count if self.ranks.first else 0.0
        told = torch.tensor([float(outcome.loss.detach()), float(outcome.rows), clock])
        loss, rows, agreed_s = self.ranks.average(self.optimiser.parameters, told).tolist()
        return loss, rows * self.ranks.count, agreed_s

    def _note(self, outcome: Outcome, loss: float, done: float) -> None:
        self.run.losses.append((self.run.step, loss))
        if not outcome.hits:
            return
        alike = [hits / tried if tried else None for tried, hits in outcome.hits]
        self.run.hits.append((self.run.step, alike))
        if self.ranks.first:
            pace = self.run.rows / self.run.spent_s
            shown = " ".join("–" if share is None else f"{share:.2f}" for share in alike)
            left = minutes_left(self.job.budget.left_s(done, self.run.spent_s))
            told = f"step {self.run.step}, {done:.0%}, loss {loss:.3f}, alike {shown}, {pace:.0f} rows/s{left}"
            say(f"{self.job.method} {told}")

    def _save(self) -> None:
        partial = self.checkpoint.with_suffix(".partial")
        kept = {
            "settings": self.job.settings,
            "run": vars(self.run),
            "draft": self.draft.state_dict(),
            "optimiser": self.optimiser.state(),
        }
        torch.save(kept, partial)
        partial.replace(self.checkpoint)

    def _restore(self) -> None:
        if not self.checkpoint.exists():
            return
        kept = torch.load(self.checkpoint, weights_only=True)
        if kept["settings"] != self.job.settings:
            changed = [key for key, value in self.job.settings.items() if kept["settings"].get(key) != value]
            raise ValueError(
                f"this run was begun with other settings ({', '.join(changed)}): start one in another --out"
            )
        self.draft.load_state_dict(kept["draft"])
        self.optimiser.restore(kept["optimiser"])
        self.run = Run(**kept["run"])
        self.run.resumed += 1
