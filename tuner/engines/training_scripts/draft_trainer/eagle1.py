"""EAGLE-1: embedding and last state joined by `fc`, one layer that drafts the target's next state and its token."""

from typing import Any

import torch
import torch.nn.functional as F

from draft_trainer.corpus import Batch, Corpus
from draft_trainer.heads import EagleHead, Effort, Outcome
from draft_trainer.job import Job
from draft_trainer.target import OUTPUT, Target

#: Weight of the token loss beside the regression, and half-width of the noise on states, as in the paper's code.
TOKEN_WEIGHT, NOISE = 0.1, 0.1


class Eagle1(EagleHead):
    """Names and norms as llama_eagle.py of vLLM has them: no norm before attention, none after the layer.

    Embedding and output matrix are the target's and are not saved. The token loss is over the commonest tokens.
    """

    token_weight = TOKEN_WEIGHT

    def __init__(self, job: Job, target: Target, corpus: Corpus) -> None:
        super().__init__(job, target, corpus, reads=target.hidden)
        self.fc = self.new_matrix(2 * target.hidden)
        with torch.no_grad():
            self.fc.weight[:, target.hidden :] += torch.eye(target.hidden)
        self._noise: torch.Generator | None = None
        self._whole = target.tensor(OUTPUT)

    def loss(self, batch: Batch, effort: Effort) -> Outcome:
        self._noise = effort.draw
        try:
            return super().loss(batch, effort)
        finally:
            self._noise = None

    def first_states(self, batch: Batch) -> torch.Tensor:
        states = batch.states.flatten(0, 1)[:, -self.target.hidden :].float()
        if self._noise is not None:
            states = states + (torch.rand(states.shape, generator=self._noise) * 2 - 1) * NOISE
        return states

    def joined(self, tokens: torch.Tensor, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        read = self.fc(torch.cat([self.embedding[tokens].to(states.dtype), states], -1)).float()
        return read, read

    def logits(self, hidden: torch.Tensor, ids: torch.Tensor | None = None) -> torch.Tensor:
        output = self.vocabulary.output if ids is None else self.vocabulary.output[ids]
        return F.linear(hidden.to(self.dtype), output.to(self.dtype))

    def step_loss(self, batch: Batch, hidden: torch.Tensor, index: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """The distance to the target's own last state at the place whose token is drafted."""
        wanted = batch.states.flatten(0, 1)[batch.rows[index] + 1][:, -self.target.hidden :].float()
        return F.smooth_l1_loss(hidden, wanted, reduction="none").mean(-1) @ weight

    @torch.no_grad()
    def drafted(self, batch: Batch, steps: int) -> torch.Tensor:
        """Over the whole vocabulary, as engines draft with the target's own output matrix."""
        from draft_trainer.unroll import unroll

        columns = [F.linear(step.hidden, self._whole).argmax(-1) for step in unroll(self, batch, steps)]
        return torch.stack(columns, 1)

    def tensors(self) -> dict[str, torch.Tensor]:
        tensors = {"fc.weight": self.fc.weight} | self.layer_tensors("layers.0.")
        if self.job.engine == "sglang":
            # Its `fc` has a bias whether the file has one or not; one that is missing stays as torch draws it.
            tensors["fc.bias"] = torch.zeros(self.target.hidden)
        return tensors

    def config(self) -> dict[str, Any]:
        name = "LlamaForCausalLMEagle" if self.job.engine == "sglang" else "LlamaForCausalLM"
        return {"architectures": [name]} | super().config()
