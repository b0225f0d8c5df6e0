"""Answers from the model in plain PyTorch, for environments without vLLM: slower, and the same by seed."""

from collections.abc import Sequence

import torch

from draft_trainer.job import Job

Completion = tuple[list[int], bool]
#: Sequences that share one key-value cache.
TOGETHER = 32


class TorchTarget:
    def __init__(self, job: Job, rank: int) -> None:
        from transformers import AutoModelForCausalLM

        dtype = torch.bfloat16 if job.precision == "bf16" else torch.float32
        self._model = AutoModelForCausalLM.from_pretrained(job.target, dtype=dtype).eval()
        end = self._model.generation_config.eos_token_id
        self._end = set(end if isinstance(end, list) else [] if end is None else [end])
        self._draw = torch.Generator().manual_seed(job.data_seed * 1_000 + rank)

    def complete(self, prompts: Sequence[Sequence[int]], temperatures: Sequence[float], most: int) -> list[Completion]:
        """Token ids with the end token, and whether the answer ended by itself."""
        done: list[Completion] = []
        for start in range(0, len(prompts), TOGETHER):
            part = slice(start, start + TOGETHER)
            done += self._together(prompts[part], torch.tensor(temperatures[part]), most)
        return done

    @torch.inference_mode()
    def _together(self, prompts: Sequence[Sequence[int]], heat: torch.Tensor, most: int) -> list[Completion]:
        width = max(map(len, prompts))
        ids = torch.zeros(len(prompts), width, dtype=torch.long)
        mask = torch.zeros(len(prompts), width, dtype=torch.long)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1
        answers: list[list[int]] = [[] for _ in prompts]
        alive, cache = [True] * len(prompts), None
        for _ in range(most):
            positions = (mask.cumsum(-1) - 1).clamp_min(0)[:, -ids.shape[1] :]
            out = self._model(ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            drawn = self._drawn(out.logits[:, -1].float(), heat)
            for row, token in enumerate(drawn.tolist()):
                if alive[row]:
                    answers[row].append(token)
                    alive[row] = token not in self._end
            if not any(alive):
                break
            ids, mask = drawn[:, None], torch.cat([mask, mask.new_ones(len(prompts), 1)], -1)
        return list(zip(answers, [not going for going in alive], strict=True))

    def _drawn(self, logits: torch.Tensor, heat: torch.Tensor) -> torch.Tensor:
        likely = torch.softmax(logits / heat.clamp_min(1e-6)[:, None], -1)
        sampled = torch.multinomial(likely, 1, generator=self._draw).squeeze(1)
        return torch.where(heat > 0, sampled, logits.argmax(-1))
