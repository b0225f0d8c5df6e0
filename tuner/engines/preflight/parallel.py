"""Heads over GPUs. Field case C09; the draft's own tensor_parallel is checked with the engine's options."""

from __future__ import annotations

from collections.abc import Iterator

from tuner.engines.checkpoint import Checkpoint
from tuner.engines.preflight.asked import Asked
from tuner.engines.preflight.finding import Finding, error
from tuner.engines.preflight.shape import shape_of


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
    yield error(
        "parallel.heads",
        f"{checkpoint.name} has {heads} attention heads, which tensor_parallel {gpus} does not divide: {remedy}",
    )
