"""EAGLE-3: tapped states joined by `fc`, one layer on embedding and state together, its own small output matrix."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from draft_trainer.corpus import Batch, Corpus
from draft_trainer.heads import EagleHead
from draft_trainer.job import Job
from draft_trainer.target import LAST_NORM, Target
from draft_trainer.vocabulary import offsets

#: Answers that scales are estimated from, and from which multiple of the median size on a place is an outlier.
SAMPLED, OUTLIER = 40, 4.0
SMALLEST_SCALE = 1e-3


class Eagle3(EagleHead):
    """Norms as llama_eagle3.py of both engines has them: `input_layernorm` on the embedding, `hidden_norm` on the state
    that attention reads, none on the state that the residual and the next step get."""

    def __init__(self, job: Job, target: Target, corpus: Corpus) -> None:
        super().__init__(job, target, corpus, reads=2 * target.hidden)
        taps = len(job.taps)
        self.input_layernorm, self.hidden_norm, self.norm = self.new_norm(), self.new_norm(), self.new_norm()
        self.fc_norm = nn.ModuleList(self.new_norm() for _ in range(taps)) if job.feature_norm else None
        self.scale = feature_scale(corpus, target, taps, job)
        self.fc = self.new_matrix(taps * target.hidden)
        self.lm_head = nn.utils.skip_init(nn.Linear, target.hidden, len(self.vocabulary.ids), bias=False)
        with torch.no_grad():
            self._begin(target)

    def _begin(self, target: Target) -> None:
        """`fc` hands the last tap on, at the size it has over its own mean; the output matrix is the target's rows."""
        size = target.hidden
        last = self.scale[-size:]
        self.fc.weight.mul_(0.5)
        self.fc.weight[:, -size:] += torch.diag(last / last.pow(2).mean().sqrt())
        self.norm.weight.copy_(target.tensor(LAST_NORM))
        self.lm_head.weight.copy_(self.vocabulary.output)

    def first_states(self, batch: Batch) -> torch.Tensor:
        size = self.target.hidden
        states = batch.states.flatten(0, 1)[:, :-size].float()
        if self.fc_norm is not None:
            parts = zip(self.fc_norm, states.split(size, -1), strict=True)
            states = torch.cat([norm(part) for norm, part in parts], -1)
        return self.fc(states / self.scale).float()

    def joined(self, tokens: torch.Tensor, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        read = torch.cat([self.input_layernorm(self.embedding[tokens]), self.hidden_norm(states)], -1)
        return read, states

    def logits(self, hidden: torch.Tensor, ids: torch.Tensor | None = None) -> torch.Tensor:
        weight = self.lm_head.weight
        return F.linear(self.norm(hidden), weight if ids is None else weight[ids])

    def tensors(self) -> dict[str, torch.Tensor]:
        norms = ("input_layernorm", "hidden_norm")
        tensors = self.layer_tensors("midlayer.") | {f"midlayer.{n}.weight": getattr(self, n).weight for n in norms}
        tensors |= {"fc.weight": self.fc.weight / self.scale, "norm.weight": self.norm.weight}
        for index, norm in enumerate(self.fc_norm or ()):
            tensors[f"fc_norm.{index}.weight"] = norm.weight
        tensors["lm_head.weight"] = self.lm_head.weight
        whole = self.target.vocabulary
        if len(self.vocabulary.ids) < whole:
            tensors["d2t"] = torch.tensor(offsets(self.vocabulary.ids))
            tensors["t2d"] = torch.zeros(whole, dtype=torch.bool).index_fill(0, self.vocabulary.kept, True)
        return tensors

    def config(self) -> dict[str, Any]:
        """Taps that engines take by themselves are not listed: the two count them differently where they are."""
        eagle: dict[str, Any] = {"use_aux_hidden_state": True}
        if self.job.taps != self.target.usual_taps:
            eagle["eagle_aux_hidden_state_layer_ids"] = list(self.job.taps)
        made = {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": len(self.vocabulary.ids)}
        more = {"fc_norm": True} if self.fc_norm is not None else {}
        return made | super().config() | more | {"eagle_config": eagle}


def feature_scale(corpus: Corpus, target: Target, taps: int, job: Job) -> torch.Tensor:
    """Root mean square of each tapped dimension, without places of massive activations; folded into `fc` when saved.

    Deep layers give a place or two of each text states hundreds of times larger than all others; scales that count
    them leave everything else near zero.
    """
    size = taps * target.hidden
    draw = torch.Generator().manual_seed(job.seed)
    chosen = torch.randperm(len(corpus.documents), generator=draw)[:SAMPLED]
    # The last token's states are not there.
    states = torch.cat([corpus.states(corpus.documents[i])[:-1, :size] for i in chosen.tolist()]).float()
    if job.feature_norm:
        normed = [part * torch.rsqrt(part.pow(2).mean(-1, keepdim=True)) for part in states.split(target.hidden, -1)]
        states = torch.cat(normed, -1)
    sizes = states[:, -target.hidden :].pow(2).mean(1).sqrt()
    usual = states[sizes < OUTLIER * sizes.median()]
    return usual.pow(2).mean(0).sqrt().clamp_min(SMALLEST_SCALE)
