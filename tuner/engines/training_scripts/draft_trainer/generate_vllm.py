"""Answers from vLLM's offline class: one engine a rank, on a core of its own where there is no GPU."""

import os
from collections.abc import Sequence

from draft_trainer.job import Job

Completion = tuple[list[int], bool]


class VllmTarget:
    """The whole batch is handed over at once; the engine's own scheduler keeps its slots full."""

    def __init__(self, job: Job, rank: int) -> None:
        cores = sorted(os.sched_getaffinity(0))
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", str(cores[rank % len(cores)]))
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        from vllm import LLM, SamplingParams

        self._params = SamplingParams
        self._model = LLM(
            job.target,
            max_model_len=job.prompt_tokens + job.answer_tokens,
            max_num_seqs=128,
            seed=job.data_seed * 1_000 + rank,
            dtype="bfloat16" if job.precision == "bf16" else "float32",
            enforce_eager=True,
        )

    def complete(self, prompts: Sequence[Sequence[int]], temperatures: Sequence[float], most: int) -> list[Completion]:
        """Token ids with the end token, and whether the answer ended by itself."""
        asked = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        params = [self._params(temperature=temperature, max_tokens=most) for temperature in temperatures]
        outputs = self._model.generate(asked, params, use_tqdm=False)
        return [(list(o.outputs[0].token_ids), o.outputs[0].finish_reason == "stop") for o in outputs]
