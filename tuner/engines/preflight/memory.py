"""What a draft costs beside the target: room for its weights and its KV, and time for its size. Cases C23 and S05."""

from __future__ import annotations

from collections.abc import Iterator
from math import floor

from tuner.engines.preflight.asked import Asked
from tuner.engines.preflight.finding import Finding, note, warning
from tuner.engines.preflight.sizes import active_parameters, kv_bytes_per_token, parameters_by_config

MIB, KIB = 2**20, 2**10
#: A draft should be this many times smaller than what of the target a token passes through.
LEAST_RATIO = 4
_C23 = "https://github.com/vllm-project/vllm/issues/9995"
_S05 = "https://github.com/ml-explore/mlx-lm/issues/1132"


def requests_that_fit(kv_tokens: float, prompt_tokens: int, output_tokens: int) -> int:
    """Whole requests at full length in a KV cache of this many tokens."""
    return floor(kv_tokens / (prompt_tokens + output_tokens))


def capacity_with_draft(kv_tokens: int, target_kv: int, draft_kv: int, draft_weights: int, copies: float = 1) -> float:
    """KV tokens left: (tokens * target's bytes - draft's weights) / (target's + draft's bytes a token).

    `copies`: how often the draft is held for one target, tensor_parallel / the draft's own. Bytes over all GPUs.
    """
    return max(0.0, kv_tokens * target_kv - copies * draft_weights) / (target_kv + copies * draft_kv)


def crowding(
    off_tokens: float, spec_tokens: float, concurrency: int, prompt_tokens: int, output_tokens: int
) -> str | None:
    """The sentence for a load that fits without speculation and not with it; None where that is not so."""
    before, after = (requests_that_fit(tokens, prompt_tokens, output_tokens) for tokens in (off_tokens, spec_tokens))
    if not after < concurrency <= before:
        return None
    return (
        f"at {prompt_tokens} + {output_tokens} tokens a request {before} requests fit the KV cache without speculation "
        f"and {after} with it: {concurrency} at once no longer fit, so some wait or are preempted"
    )


def room_for_draft(asked: Asked) -> Iterator[Finding]:
    """The draft's own bytes, and what they do to the number of requests at once."""
    draft = asked.draft
    if draft is None:
        return
    weights, own = _weights(asked), kv_bytes_per_token(asked.draft_shape) if asked.method != "medusa" else 0
    theirs = kv_bytes_per_token(asked.target_shape)
    if weights is None or own is None:
        return
    beside = f" beside the target's {theirs / KIB:.1f} KiB" if theirs else ""
    yield note(
        "memory.draft",
        f"{draft.name} takes {weights / MIB:,.0f} MiB for weights and {own / KIB:.1f} KiB of KV cache a token{beside}: "
        "by config and headers, in the format they are stored in",
    )
    demand = asked.demand
    if asked.kv_tokens and theirs:
        after = capacity_with_draft(asked.kv_tokens, theirs, own, weights, _copies(asked))
        yield from _fits(asked, after)
    elif demand.concurrency and demand.tokens:
        yield note(
            "memory.unknown",
            "how many requests still fit is not known: give --kv-tokens, the engine's 'GPU KV cache size' without a "
            "draft, or compare that line in both arms of a study",
        )


def _fits(asked: Asked, after: float) -> Iterator[Finding]:
    demand, before = asked.demand, asked.kv_tokens or 0
    text = f"the KV cache shrinks from {before:,} to about {after:,.0f} tokens with this draft"
    if demand.prompt_tokens is None or demand.concurrency is None:
        yield note("memory.capacity", text)
        return
    crowded = crowding(before, after, demand.concurrency, demand.prompt_tokens, demand.output_tokens or 0)
    fits = requests_that_fit(after, demand.prompt_tokens, demand.output_tokens or 0)
    if crowded:
        yield warning("memory.capacity", f"{text}: {crowded}", _C23)
    else:
        yield note("memory.capacity", f"{text}: {fits} requests of the workload fit at once")


def _weights(asked: Asked) -> int | None:
    """Bytes as stored, or by the config where no header could be read."""
    draft = asked.draft
    if draft is not None and draft.tensors:
        return draft.nbytes
    count = parameters_by_config(asked.draft_shape)
    return None if count is None else count * asked.draft_shape.dtype_bytes


def _copies(asked: Asked) -> float:
    own = asked.chosen.get("draft_tensor_parallel_size")
    return asked.options.tensor_parallel / own if isinstance(own, int) and own > 0 else 1


def draft_is_small(asked: Asked) -> Iterator[Finding]:
    """S05: what of the target a token passes through, against the draft."""
    if asked.draft is None or asked.target is None or asked.method == "medusa":
        return
    ours, theirs = active_parameters(asked.target), active_parameters(asked.draft)
    if ours and theirs and ours / theirs < LEAST_RATIO:
        yield warning(
            "size.ratio",
            f"a token passes through {_billions(ours)} parameters of the target and {_billions(theirs)} of "
            f"{asked.draft.name}, a ratio of {ours / theirs:.1f}: below {LEAST_RATIO} drafting rarely pays; expect "
            "that off wins, or take a smaller draft",
            _S05,
        )


def _billions(count: int) -> str:
    return f"{count / 1e9:.1f} B" if count >= 1e9 else f"{count / 1e6:.0f} M"
