"""Heads over GPUs, and a draft's own number of them. Field case C09; the rest of it is checked with the options."""

from __future__ import annotations

from collections.abc import Iterator

from tuner.engines.checkpoint import Checkpoint
from tuner.engines.preflight.asked import Asked
from tuner.engines.preflight.finding import Finding, error
from tuner.engines.preflight.shape import shape_of

_SAME = "vllm/v1/spec_decode/draft_model.py:62 (0.32)"


def draft_splits_alike(asked: Asked) -> Iterator[Finding]:
    """A draft model of its own number of GPUs, which vLLM's first model runner ends at."""
    shared, own = asked.options.tensor_parallel, asked.chosen.get("draft_tensor_parallel_size")
    if _splits_alike(asked) and own == 1 != shared:
        yield error(
            "parallel.draft",
            f"vLLM's first model runner, which {asked.engine_text} takes here, ends at its start with a draft model on "
            f"1 GPU and the target on {shared}: leave draft_tensor_parallel_size out",
            _SAME,
        )


def _splits_alike(asked: Asked) -> bool:
    return asked.on_vllm and asked.method == "draft_model" and asked.v1_runner


def heads_divide(asked: Asked) -> Iterator[Finding]:
    """Attention heads of target and draft by the GPUs that share each."""
    shared = asked.options.tensor_parallel
    own = asked.chosen.get("draft_tensor_parallel_size", shared) if asked.on_vllm else shared
    yield from _divides(asked, asked.target, shared)
    if asked.method != "medusa" and isinstance(own, int):
        yield from _divides(asked, asked.draft, own)


def _divides(asked: Asked, checkpoint: Checkpoint | None, gpus: int) -> Iterator[Finding]:
    heads = shape_of(checkpoint.config).heads if checkpoint else None
    if checkpoint is None or not heads or gpus < 1 or heads % gpus == 0:
        return
    remedy = "SGLang splits target and draft alike"
    if asked.on_vllm:
        remedy = "give a number that divides it"
        if checkpoint is asked.draft:
            remedy = "set draft_tensor_parallel_size to 1, which puts the draft on one GPU"
            if _splits_alike(asked):
                remedy = "vLLM's first model runner splits both alike, so take a number that divides both, or a head"
    yield error(
        "parallel.heads",
        f"{checkpoint.name} has {heads} attention heads, which tensor_parallel {gpus} does not divide: {remedy}",
    )
