"""What all kinds of draft have in common for the loop: a loss with its hits, weights and config for an engine."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from draft_trainer.corpus import Batch, Corpus
from draft_trainer.decoder import DecoderLayer, RmsNorm, matrix
from draft_trainer.job import Job
from draft_trainer.losses import soft_cross_entropy
from draft_trainer.sampled import LIKELY, Columns, loss_columns
from draft_trainer.target import EMBEDDING, OUTPUT, Target
from draft_trainer.unroll import unroll
from draft_trainer.vocabulary import choose


@dataclass(frozen=True)
class Outcome:
    """`hits`: for each drafted step, (drafted, where draft and target like the same token best) in this batch."""

    loss: torch.Tensor
    rows: int
    hits: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Effort:
    """How one optimiser step is made: unrolled steps, the step's own randomness, whether hits are counted."""

    unrolled: int
    draw: torch.Generator
    counted: bool


class Draft(nn.Module):
    """Parameters are what is learned; the target's own matrices are plain attributes."""

    def __init__(self, job: Job, target: Target) -> None:
        super().__init__()
        self.job, self.target = job, target

    def loss(self, batch: Batch, effort: Effort) -> Outcome:
        raise NotImplementedError

    def drafted(self, batch: Batch, steps: int) -> torch.Tensor:
        """[rows, steps]: the tokens that each row drafts greedily, as long as all before them were accepted."""
        raise NotImplementedError

    def tensors(self) -> dict[str, torch.Tensor]:
        raise NotImplementedError

    def config(self) -> dict[str, Any]:
        raise NotImplementedError


class ReducedVocabulary:
    """The tokens that can be drafted, and the target's output rows for them."""

    def __init__(self, job: Job, target: Target, corpus: Corpus) -> None:
        size = job.vocabulary or target.vocabulary
        ends = target.config.get("eos_token_id")
        always = ends if isinstance(ends, list) else [] if ends is None else [ends]
        answered, asked = corpus.counts(target.vocabulary)
        self.ids = choose(answered, asked, size, always)
        self.kept = torch.tensor(self.ids)
        self._holds = torch.zeros(target.vocabulary).index_fill(0, self.kept, 1.0)
        self.output = target.tensor(OUTPUT)[self.kept].contiguous()

    def wanted(self, batch: Batch, rows: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """(the target's logits for the token after next of each row, 1 where the answer's own can be drafted, else 0).

        The answer's token is a draw from the target's distribution: over draws its being among these tokens is their
        probability, and at temperature 0 it is all that counts.
        """
        hidden = self.output.shape[1]
        last = batch.states.flatten(0, 1)[rows + 1][:, -hidden:].to(dtype)
        logits = torch.nn.functional.linear(last, self.output.to(dtype))
        return logits, self._holds[batch.token_after(rows, 2)]

    def entropy(self, wanted: torch.Tensor, draw: torch.Generator, job: Job) -> "Entropy":
        """What the drafts of one batch are held against: `wanted` as it is, or at the columns of one draw."""
        size = wanted.shape[1]
        likely = wanted.topk(min(LIKELY, size), -1).indices
        return Entropy(wanted, loss_columns(likely, size, job.loss_tokens, draw), job.sharpness)


class Entropy:
    """Cross-entropy of drafted steps against the target's distributions, over all tokens or over columns."""

    def __init__(self, wanted: torch.Tensor, columns: Columns | None, sharpness: float) -> None:
        self._columns, self._sharpness = columns, sharpness
        self._wanted = (
            wanted if columns is None else wanted[:, columns.ids] + columns.shift.to(wanted.dtype) / sharpness
        )

    def __call__(self, logits: Callable[..., torch.Tensor], index: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """`logits`: gives a step's, for indices of tokens or for all; `index`: whose distribution each row drafts."""
        if self._columns is None:
            return soft_cross_entropy(logits(), self._wanted, index, weight, self._sharpness)
        shifted = logits(self._columns.ids) + self._columns.shift
        return soft_cross_entropy(shifted, self._wanted, index, weight, self._sharpness)


def alike(logits: torch.Tensor, wanted: torch.Tensor, there: torch.Tensor) -> tuple[int, int]:
    """(drafted, where draft and target like the same token best) of the rows that are there."""
    same = (logits.argmax(-1) == wanted.argmax(-1)) & there
    return int(there.sum()), int(same.sum())


#: Drafted tokens never stand further behind the longest answer.
FURTHEST = 64


class EagleHead(Draft):
    """One decoder layer that drafts step after step; EAGLE-1 and EAGLE-3 differ in what they read and in the loss."""

    def __init__(self, job: Job, target: Target, corpus: Corpus, reads: int) -> None:
        super().__init__(job, target)
        self.draw = torch.Generator().manual_seed(job.seed)
        most = job.prompt_tokens + job.answer_tokens + FURTHEST
        self.vocabulary = ReducedVocabulary(job, target, corpus)
        self.dtype = torch.bfloat16 if job.precision == "bf16" else torch.float32
        self.embedding = target.tensor(EMBEDDING).to(self.dtype)
        self.layer = DecoderLayer(target, reads, job.intermediate or target.intermediate, self.draw, most)

    def new_norm(self) -> RmsNorm:
        return RmsNorm(self.target.hidden, self.target.eps)

    def new_matrix(self, reads: int) -> nn.Linear:
        return matrix(reads, self.target.hidden, self.draw)

    def logits(self, hidden: torch.Tensor, ids: torch.Tensor | None = None) -> torch.Tensor:
        """Over all tokens that can be drafted, or those with these indices."""
        raise NotImplementedError

    def step_loss(self, batch: Batch, hidden: torch.Tensor, index: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """What a step costs beside the cross-entropy."""
        return torch.zeros(())

    token_weight = 1.0

    def loss(self, batch: Batch, effort: Effort) -> Outcome:
        wanted, mass = self.vocabulary.wanted(batch, batch.rows, self.dtype)
        kept = None
        if self.job.share < 1 and effort.unrolled > 1:
            picked = torch.rand(len(batch.rows), generator=effort.draw) < self.job.share
            kept = picked.nonzero().squeeze(1)
        total, hits = torch.zeros(()), []
        entropy = self.vocabulary.entropy(wanted, effort.draw, self.job)
        for step in unroll(self, batch, effort.unrolled, kept):
            index, there = batch.drafted_at(step.rows, step.number)
            weight = there / there.sum().clamp_min(1) * self.job.decay**step.number
            tokens = entropy(partial(self.logits, step.hidden), index, weight * mass[index])
            total = total + self.token_weight * tokens + self.step_loss(batch, step.hidden, index, weight)
            if effort.counted:
                hits.append(alike(self.logits(step.hidden), wanted[index], there))
        return Outcome(total, len(batch.rows), tuple(hits))

    @torch.no_grad()
    def drafted(self, batch: Batch, steps: int) -> torch.Tensor:
        columns = [self.vocabulary.kept[self.logits(s.hidden).argmax(-1)] for s in unroll(self, batch, steps)]
        return torch.stack(columns, 1)

    def layer_tensors(self, prefix: str) -> dict[str, torch.Tensor]:
        layer = self.layer
        attention = {f"{prefix}self_attn.{n}.weight": getattr(layer, n).weight for n in _ATTENTION}
        mlp = {f"{prefix}mlp.{n}.weight": getattr(layer, n).weight for n in _MLP}
        return attention | mlp | {f"{prefix}post_attention_layernorm.weight": layer.post_attention_layernorm.weight}

    def config(self) -> dict[str, Any]:
        return like_target(self.target) | {
            "intermediate_size": self.layer.gate_proj.out_features,
            "num_hidden_layers": 1,
            "tie_word_embeddings": False,
        }


_ATTENTION: Sequence[str] = ("q_proj", "k_proj", "v_proj", "o_proj")
_MLP: Sequence[str] = ("gate_proj", "up_proj", "down_proj")


def like_target(target: Target) -> dict[str, Any]:
    """Keys that a head's config takes over; one place for rotary positions, in the spelling that both engines read."""
    names = ("hidden_act", "max_position_embeddings", "bos_token_id", "eos_token_id")
    return {
        "model_type": "llama",
        "hidden_size": target.hidden,
        "num_attention_heads": target.heads,
        "num_key_value_heads": target.kv_heads,
        "head_dim": target.head_dim,
        "vocab_size": target.vocabulary,
        "rms_norm_eps": target.eps,
        "rope_theta": target.theta,
        "torch_dtype": "bfloat16",
    } | {name: target.config[name] for name in names if target.config.get(name) is not None}
