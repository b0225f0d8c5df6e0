"""What a cell sends: its prompts in order, and the body of each request."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tuner.measure.records import CellKey
from tuner.prompts.rows import Prompt


@dataclass(frozen=True, slots=True)
class CellPlan:
    """What one cell sends.

    `prompts`: warm-up first, then measured, in this order in every arm; they wrap for the fillers that keep load up.
    `extras`: the engine's request fields. `timeout_s`: for a request in a closed loop; in an open loop for the drain.
    `send_seed`: a seed per request when temperature > 0. It makes a run repeatable, and has a price in vLLM's V1
    runner: random draws request by request instead of one a batch, and FlashInfer's top-p/top-k sampler is bypassed.
    `cancel_fillers`: False lets them finish, so that the engine's counters cover no request without a full record.
    """

    key: CellKey
    prompts: tuple[Prompt, ...]
    warmup: int
    measured: int
    max_output_tokens: int
    sampling: Mapping[str, Any]
    endpoint: str
    chat_template_kwargs: Mapping[str, Any]
    extras: Mapping[str, Any]
    seed: int
    timeout_s: float
    send_seed: bool = True
    cancel_fillers: bool = True

    def __post_init__(self) -> None:
        if not self.prompts or self.measured < 1:
            raise ValueError("a cell needs prompts and at least one measured request")

    def phase(self, index: int) -> str:
        if index < self.warmup:
            return "warmup"
        return "measured" if index < self.warmup + self.measured else "filler"


def request_body(plan: CellPlan, prompt: Prompt) -> dict[str, Any]:
    """All fields but the model and the streaming ones.

    A prompt's own sampling wins over the workload's, but not over the cell's temperature nor the cap on tokens.
    """
    body: dict[str, Any] = {"max_tokens": min(prompt.max_tokens or plan.max_output_tokens, plan.max_output_tokens)}
    if plan.endpoint == "chat":
        body["messages"] = [{"role": role, "content": content} for role, content in prompt.messages]
        if plan.chat_template_kwargs:
            body["chat_template_kwargs"] = dict(plan.chat_template_kwargs)
    else:
        body["prompt"] = "\n\n".join(content for _, content in prompt.messages)
    body |= {**plan.sampling, **dict(prompt.sampling), "temperature": plan.key.temperature}
    if plan.send_seed and plan.key.temperature > 0:
        body["seed"] = request_seed(plan.seed, prompt.id)
    return body | dict(plan.extras)


def request_seed(seed: int, prompt_id: str) -> int:
    """31 bits that are the same in every arm, process and Python version."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{prompt_id}".encode()).digest()[:4]) & 0x7FFFFFFF
