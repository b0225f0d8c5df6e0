"""The target as it answers many prompts at once, its states kept on the way: no second pass reads them."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import torch
import torch.nn.functional as F

from draft_trainer.job import Job
from draft_trainer.target import Target

#: Answers that are finished leave the batch when so many are left, of those it holds.
KEPT_SHARE = 0.8


@dataclass(frozen=True)
class Completion:
    """`ids`: with the end token. `states` [tokens of prompt and answer, width], bf16; zero at the last one, which the
    target did not read."""

    ids: list[int]
    ended: bool
    states: torch.Tensor


class Cache:
    """Keys and values by layer, [texts, places, kv_heads, head_dim]; what lies behind a text's place is not read."""

    def __init__(self, layers: int, shape: Sequence[int], dtype: torch.dtype) -> None:
        self.pairs = [(torch.zeros(*shape, dtype=dtype), torch.zeros(*shape, dtype=dtype)) for _ in range(layers)]

    def write(self, layer: int, places: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        rows = torch.arange(len(places))[:, None]
        for kept, new in zip(self.pairs[layer], (keys, values), strict=True):
            kept[rows, places] = new

    def begin_with(self, other: "Cache", places: int) -> None:
        for mine, theirs in zip(self.pairs, other.pairs, strict=True):
            for kept, given in zip(mine, theirs, strict=True):
                kept[:, :places] = given[:, :places]

    def keep(self, rows: torch.Tensor) -> None:
        self.pairs = [(keys[rows], values[rows]) for keys, values in self.pairs]


class AnsweringTarget:
    """Modules and weights are those of transformers; attention is over a cache that is written in place."""

    def __init__(self, job: Job, rank: int) -> None:
        from transformers import AutoModelForCausalLM
        from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

        self._dtype = torch.bfloat16 if job.precision == "bf16" else torch.float32
        self._model = AutoModelForCausalLM.from_pretrained(job.target, dtype=self._dtype).eval()
        self._turn, self._taps = apply_rotary_pos_emb, job.taps
        self.width = Target(job.target).width(job.taps)
        config, end = self._model.config, self._model.generation_config.eos_token_id
        self._heads, self._kv_heads = config.num_attention_heads, config.num_key_value_heads
        self._head_dim = self._model.model.layers[0].self_attn.head_dim
        self._end = set(end if isinstance(end, list) else [] if end is None else [end])
        self._draw = torch.Generator().manual_seed(job.data_seed * 1_000 + rank)

    @torch.inference_mode()
    def complete(self, prompts: Sequence[Sequence[int]], temperatures: Sequence[float], most: int) -> list[Completion]:
        """At most `most` tokens for each; what all prompts begin with is passed through once."""
        lengths, heat = torch.tensor([len(prompt) for prompt in prompts]), torch.tensor(temperatures)
        states = torch.zeros(len(prompts), int(lengths.max()) + most, self.width, dtype=torch.bfloat16)
        cache = self._cache(len(prompts), states.shape[1])
        last = self._read_prompts(prompts, lengths, cache, states)
        answers: list[list[int]] = [[] for _ in prompts]
        going = torch.arange(len(prompts))
        for step in range(most):
            drawn = self._drawn(self._model.lm_head(last).float(), heat[going])
            for row, token in zip(going.tolist(), drawn.tolist(), strict=True):
                if not self._ended(answers[row]):
                    answers[row].append(token)
            left = torch.tensor([i for i, row in enumerate(going.tolist()) if not self._ended(answers[row])])
            if not len(left) or step + 1 == most:
                break
            if len(left) <= KEPT_SHARE * len(going):
                cache.keep(left)
                going, drawn = going[left], drawn[left]
            places = lengths[going] + step
            read, last = self._passed(drawn[:, None], places, cache)
            states[going, places], last = read[:, 0], last[:, 0]
        ends = [len(prompt) + len(answer) for prompt, answer in zip(prompts, answers, strict=True)]
        for row, end in enumerate(ends):
            states[row, end - 1] = 0
        return [Completion(ids, self._ended(ids), states[row, : ends[row]]) for row, ids in enumerate(answers)]

    def _ended(self, answer: Sequence[int]) -> bool:
        return bool(answer) and answer[-1] in self._end

    def _cache(self, texts: int, places: int) -> Cache:
        shape = (texts, places, self._kv_heads, self._head_dim)
        return Cache(len(self._model.model.layers), shape, self._dtype)

    def _read_prompts(
        self, prompts: Sequence[Sequence[int]], lengths: torch.Tensor, cache: Cache, states: torch.Tensor
    ) -> torch.Tensor:
        """[texts, hidden] at each prompt's last token. Padding stands on the right, and answers overwrite it."""
        prefix = shared_prefix(prompts)
        before = len(prefix)
        if prefix:
            once = self._cache(1, before)
            states[:, :before] = self._passed(torch.tensor([prefix]), torch.zeros(1, dtype=torch.long), once)[0]
            cache.begin_with(once, before)
        ids = torch.zeros(len(prompts), int(lengths.max()) - before, dtype=torch.long)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt) - before] = torch.tensor(prompt[before:])
        read, last = self._passed(ids, torch.full((len(prompts),), before), cache)
        states[:, before : before + read.shape[1]] = read
        return last[torch.arange(len(prompts)), lengths - before - 1]

    def _passed(self, ids: torch.Tensor, starts: torch.Tensor, cache: Cache) -> tuple[torch.Tensor, torch.Tensor]:
        """ids [texts, tokens] from place `starts` on: (states in bf16, the last one as the output matrix reads it)."""
        model = self._model.model
        places = starts[:, None] + torch.arange(ids.shape[1])
        seen = torch.arange(int(places.max()) + 1) <= places[..., None]
        hidden, read = model.embed_tokens(ids), []
        turns = model.rotary_emb(hidden, places)
        for number, layer in enumerate(model.layers):
            if number in self._taps:
                read.append(hidden)
            normed = layer.input_layernorm(hidden)
            hidden = hidden + layer.self_attn.o_proj(self._attended(number, normed, turns, places, seen, cache))
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        last = model.norm(hidden)
        return torch.cat([*read, last], -1).to(torch.bfloat16), last

    def _attended(
        self,
        number: int,
        normed: torch.Tensor,
        turns: tuple[torch.Tensor, torch.Tensor],
        places: torch.Tensor,
        seen: torch.Tensor,
        cache: Cache,
    ) -> torch.Tensor:
        """[texts, tokens, heads * head_dim]. The query heads of one kv head go as so many queries of it."""
        attention, (texts, tokens) = self._model.model.layers[number].self_attn, places.shape
        query, keys, values = (
            part(normed).view(texts, tokens, -1, self._head_dim)
            for part in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        query, keys = self._turn(query, keys, *turns, unsqueeze_dim=2)
        cache.write(number, places, keys, values)
        group = self._heads // self._kv_heads
        query = query.view(texts, tokens, self._kv_heads, group, -1).permute(0, 2, 1, 3, 4).flatten(2, 3)
        kept = [pair[:, : seen.shape[-1]].transpose(1, 2) for pair in cache.pairs[number]]
        mask = seen.repeat_interleave(group, 1)[:, None]
        found = F.scaled_dot_product_attention(query, *kept, attn_mask=mask)
        return found.unflatten(2, (tokens, group)).permute(0, 2, 1, 3, 4).reshape(texts, tokens, -1)

    def _drawn(self, logits: torch.Tensor, heat: torch.Tensor) -> torch.Tensor:
        """Greedy where heat is 0. One uniform number a draw: `multinomial` takes one for each token there is."""
        drawn, warm = logits.argmax(-1), (heat > 0).nonzero().squeeze(1)
        if len(warm):
            below = torch.softmax(logits[warm] / heat[warm, None], -1).cumsum(-1)
            at = torch.rand(len(warm), 1, generator=self._draw) * below[:, -1:]
            drawn[warm] = torch.searchsorted(below, at, right=True).squeeze(1).clamp_max(logits.shape[1] - 1)
        return drawn


def shared_prefix(prompts: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """What all prompts begin with, short of the last token of the shortest one."""
    shortest = min(map(len, prompts))
    by_place = zip(*(prompt[: shortest - 1] for prompt in prompts), strict=True)
    shared = takewhile(lambda tokens: len(set(tokens)) == 1, by_place)
    return tuple(tokens[0] for tokens in shared)
