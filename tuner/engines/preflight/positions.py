"""Sequences longer than the draft has positions for. Field case C08."""

from __future__ import annotations

from collections.abc import Iterator

from tuner.engines.preflight.asked import Asked
from tuner.engines.preflight.finding import Finding, error, warning
from tuner.spec.speculation import DRAFT_METHODS

LONGER = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
_C08 = "https://github.com/vllm-project/vllm/issues/48894"
_SGLANG = "sglang/srt/configs/model_config.py, _derive_context_length (0.5.18 to 0.5.23)"


def positions_suffice(asked: Asked) -> Iterator[Finding]:
    """Requests of the workload, or all that the engine would admit, against the draft's max_position_embeddings."""
    own, served = asked.draft_shape.positions, asked.served_tokens
    if asked.draft is None or own is None or asked.method not in DRAFT_METHODS | {"mtp"}:
        return
    needed = asked.demand.tokens
    if not asked.on_vllm and served is not None and own < served and not _allowed(asked):
        yield error(
            "positions.start",
            f"{asked.draft.name} has {own} positions and sequences of up to {served} tokens are served: SGLang ends at "
            f"the start; give max_model_len {own} or less, or {LONGER}=1 in engine_options.env and mind its acceptance "
            f"on long texts{_requests(asked)}",
            _SGLANG,
        )
    elif needed is not None and needed > own:
        yield warning("positions.requests", _sentence(asked, own, _requests(asked)), _C08)
    elif needed is None and served is not None and served > own:
        yield warning("positions.served", _sentence(asked, own, f"; up to {served} tokens are served"), _C08)


def _allowed(asked: Asked) -> bool:
    return dict(asked.options.env).get(LONGER, "0").lower() in ("1", "true")


def _requests(asked: Asked) -> str:
    demand = asked.demand
    if demand.prompt_tokens is None:
        return ""
    about = "about " if demand.estimated else ""
    return (
        f"; a long request of the workload has {about}{demand.prompt_tokens} prompt tokens (95th percentile) and "
        f"{demand.output_tokens or 0} of answer"
    )


def _sentence(asked: Asked, own: int, beyond: str) -> str:
    assert asked.draft is not None
    target = asked.target_shape.positions
    theirs = f", the target {target}" if target else ""
    stretch = {
        "draft_model": f"vLLM drafts nothing beyond {own}",
        "eagle": "newer vLLM stretches the number silently, so that a start proves nothing",
        "eagle3": "newer vLLM stretches the number silently, so that a start proves nothing",
    }
    engine = stretch.get(asked.method, "a start proves nothing") if asked.on_vllm else "the override is given"
    return (
        f"{asked.draft.name} has {own} positions{theirs}{beyond}: {engine}, and acceptance can fall toward nothing "
        "there; measure with prompts of the real length (the config may also understate what it was trained on)"
    )
