"""A draft model: a smaller Llama with the target's tokenizer, distilled from the target's distributions."""

from typing import Any

import torch
import torch.nn.functional as F

from draft_trainer.corpus import Batch, Corpus
from draft_trainer.heads import Draft, Effort, Outcome, ReducedVocabulary, alike
from draft_trainer.job import Job
from draft_trainer.losses import soft_cross_entropy
from draft_trainer.sampled import Columns, loss_columns
from draft_trainer.target import EMBEDDING, OUTPUT, Target

#: Rows of a batch whose logits over the whole vocabulary are held at once.
LOGIT_ROWS = 512
#: Starts of drafting in a held-out answer are this far apart: each is a generation of its own.
STRIDE = 8


class DraftModel(Draft):
    """Where its width is the target's, embedding and layers begin as the target's; where it is smaller, the embedding
    begins as the target's in its largest directions. The embedding is the output matrix too."""

    def __init__(self, job: Job, target: Target, corpus: Corpus) -> None:
        super().__init__(job, target)
        from transformers import LlamaConfig, LlamaForCausalLM

        self.dtype = torch.bfloat16 if job.precision == "bf16" else torch.float32
        self.whole = target.tensor(OUTPUT).to(self.dtype)
        # Counted for the record alone: a draft model drafts every token.
        self.vocabulary = ReducedVocabulary(job, target, corpus)
        torch.manual_seed(job.seed)
        self.model = LlamaForCausalLM(LlamaConfig(**smaller_config(job, target)))
        with torch.no_grad():
            self._begin(target)

    def _begin(self, target: Target) -> None:
        embedding = target.tensor(EMBEDDING)
        inner = self.model.model
        if self.job.hidden == target.hidden:
            inner.embed_tokens.weight.copy_(embedding)
            for index, layer in enumerate(inner.layers):
                source = f"model.layers.{kept_layers(target.layers, len(inner.layers))[index]}."
                for name, parameter in layer.named_parameters():
                    parameter.copy_(target.tensor(source + name))
            return
        values, vectors = torch.linalg.eigh(embedding.T @ embedding)
        largest = vectors[:, values.argsort(descending=True)[: self.job.hidden]]
        inner.embed_tokens.weight.copy_(embedding @ largest)

    def loss(self, batch: Batch, effort: Effort) -> Outcome:
        """At each row's next place, over the commonest tokens and a draw of the others."""
        hidden = self.model.model(batch.tokens, use_cache=False).last_hidden_state.flatten(0, 1)[batch.rows + 1]
        last = batch.states.flatten(0, 1)[batch.rows + 1][:, -self.target.hidden :].to(self.dtype)
        columns = self._columns(effort)
        ids = torch.arange(len(self.whole)) if columns is None else columns.ids
        shift = torch.zeros(len(ids)) if columns is None else columns.shift
        total, hits = torch.zeros(()), (0, 0)
        for part in torch.arange(len(batch.rows)).split(LOGIT_ROWS):
            wanted = F.linear(last[part], self.whole[ids])
            logits = F.linear(hidden[part], self.model.lm_head.weight[ids])
            weight = torch.full((len(part),), 1 / len(batch.rows))
            sharp, here = self.job.sharpness, torch.arange(len(part))
            total = total + soft_cross_entropy(logits + shift, wanted + shift / sharp, here, weight, sharp)
            if effort.counted:
                drafted, same = alike(logits, wanted, torch.ones(len(part), dtype=torch.bool))
                hits = (hits[0] + drafted, hits[1] + same)
        return Outcome(total, len(batch.rows), (hits,) if effort.counted else ())

    def _columns(self, effort: Effort) -> Columns | None:
        """Few of 49,152 stand for many, and what is wrong among the common ones must be seen every time."""
        if not self.job.loss_tokens:
            return None
        return loss_columns(self.vocabulary.kept, len(self.whole), self.job.loss_tokens, effort.draw)

    @torch.no_grad()
    def drafted(self, batch: Batch, steps: int) -> torch.Tensor:
        """Every eighth row drafts by itself; the others are marked with -1."""
        found = torch.full((len(batch.rows), steps), -1)
        for index in range(0, len(batch.rows), STRIDE):
            row = int(batch.rows[index])
            document, place = divmod(row, batch.width)
            ids = batch.tokens[document : document + 1, : place + 2]
            cache = None
            for step in range(steps):
                out = self.model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
                cache, ids = out.past_key_values, out.logits[:, -1:].argmax(-1)
                found[index, step] = ids[0, 0]
        return found

    def tensors(self) -> dict[str, torch.Tensor]:
        return {name: value for name, value in self.model.state_dict().items() if name != OUTPUT}

    def config(self) -> dict[str, Any]:
        stated = smaller_config(self.job, self.target)
        rotary = stated.pop("rope_parameters")
        return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16"} | stated | {
            "rope_theta": rotary["rope_theta"]
        }  # fmt: skip


def smaller_config(job: Job, target: Target) -> dict[str, Any]:
    """The target's shape with fewer layers and, where asked, a smaller width: heads and MLP shrink with it."""
    heads = max(1, target.heads * job.hidden // target.hidden)
    kv_heads = max(k for k in range(1, heads + 1) if heads % k == 0 and k <= max(1, heads // 3))
    if job.hidden == target.hidden:
        kv_heads = target.kv_heads
    keys = ("hidden_act", "max_position_embeddings", "bos_token_id", "eos_token_id", "pad_token_id")
    return {
        "hidden_size": job.hidden,
        "intermediate_size": target.intermediate * job.hidden // target.hidden,
        "num_hidden_layers": job.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": target.head_dim,
        "vocab_size": target.vocabulary,
        "rms_norm_eps": target.eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": target.theta},
        "tie_word_embeddings": True,
    } | {key: target.config[key] for key in keys if target.config.get(key) is not None}


def kept_layers(whole: int, kept: int) -> list[int]:
    """Evenly spread over the target's layers, the first and the last among them."""
    if kept == 1:
        return [0]
    return [round(index * (whole - 1) / (kept - 1)) for index in range(kept)]
