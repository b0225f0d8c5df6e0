"""Medusa: one residual block for each drafted token, all on the target's last state, under one output matrix."""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from draft_trainer.corpus import Batch, Corpus
from draft_trainer.decoder import matrix
from draft_trainer.heads import Draft, Effort, Outcome, ReducedVocabulary, alike
from draft_trainer.job import Job
from draft_trainer.target import Target


class Medusa(Draft):
    """Block h drafts the token h + 2 places on: the one before it is the target's own, which the engine has by then.

    With fewer tokens than the target's, vLLM reads `token_map`; its loader then counts that as a weight that it did not
    find, unless it is told not to (`--model-loader-extra-config '{"enable_weights_track": false}'`).
    """

    def __init__(self, job: Job, target: Target, corpus: Corpus) -> None:
        super().__init__(job, target)
        draw = torch.Generator().manual_seed(job.seed)
        self.vocabulary = ReducedVocabulary(job, target, corpus)
        self.dtype = torch.bfloat16 if job.precision == "bf16" else torch.float32
        self.blocks = nn.ModuleList(matrix(target.hidden, target.hidden, draw, spread=0.01) for _ in range(job.heads))
        self.lm_head = nn.utils.skip_init(nn.Linear, target.hidden, len(self.vocabulary.ids), bias=False)
        with torch.no_grad():
            self.lm_head.weight.copy_(self.vocabulary.output)

    def _logits(self, batch: Batch, head: int, ids: torch.Tensor | None = None) -> torch.Tensor:
        state = batch.states.flatten(0, 1)[batch.rows][:, -self.target.hidden :].float()
        weight = self.lm_head.weight
        return F.linear(state + F.silu(self.blocks[head](state)).float(), weight if ids is None else weight[ids])

    def loss(self, batch: Batch, effort: Effort) -> Outcome:
        wanted, mass = self.vocabulary.wanted(batch, batch.rows, self.dtype)
        total, hits = torch.zeros(()), []
        entropy = self.vocabulary.entropy(wanted, effort.draw, self.job)
        for head in range(self.job.heads):
            index, there = batch.drafted_at(batch.rows, head)
            weight = there / there.sum().clamp_min(1) * self.job.decay**head * mass[index]
            total = total + entropy(partial(self._logits, batch, head), index, weight)
            if effort.counted:
                hits.append(alike(self._logits(batch, head), wanted[index], there))
        return Outcome(total, len(batch.rows), tuple(hits))

    @torch.no_grad()
    def drafted(self, batch: Batch, steps: int) -> torch.Tensor:
        count = min(steps, self.job.heads)
        columns = [self.vocabulary.kept[self._logits(batch, head).argmax(-1)] for head in range(count)]
        return torch.stack(columns, 1)

    def tensors(self) -> dict[str, torch.Tensor]:
        tensors = {f"blocks.{head}.layers.0.weight": block.weight for head, block in enumerate(self.blocks)}
        tensors["lm_head.weight"] = self.lm_head.weight
        if len(self.vocabulary.ids) < self.target.vocabulary:
            tensors["token_map"] = self.vocabulary.kept
        return tensors

    def config(self) -> dict[str, Any]:
        """No other key with `num` and `heads` in it: vLLM takes the last such key for the number of heads."""
        reduced = len(self.vocabulary.ids)
        less = {"truncated_vocab_size": reduced} if reduced < self.target.vocabulary else {}
        return {
            "architectures": ["MedusaModel"],
            "model_type": "medusa",
            "hidden_size": self.target.hidden,
            "vocab_size": self.target.vocabulary,
            "medusa_num_heads": self.job.heads,
            "medusa_num_layers": 1,
            "medusa_fc_bias": False,
            "original_lm_head": True,
            "torch_dtype": "bfloat16",
        } | less
