"""How many tokens a draft may propose: by its own training and by the engine. Field cases C14 and C17."""

from __future__ import annotations

from collections.abc import Iterator

from tuner.engines.preflight.asked import Asked
from tuner.engines.preflight.finding import Finding, error, note, warning

_C17 = "https://github.com/sgl-project/sglang/pull/34290"
SGLANG_ADMITS = 48


def block_length(asked: Asked) -> Iterator[Finding]:
    """Block drafters fill a fixed block: DFlash one anchor and block - 1 drafted tokens, DSpark block drafted ones."""
    draft = asked.draft
    if draft is None or asked.method not in ("dflash", "dspark"):
        return
    flash = draft.config.get("dflash_config")
    block = draft.config.get("block_size", flash.get("block_size") if isinstance(flash, dict) else None)
    if not isinstance(block, int):
        return
    trained = block - 1 if asked.method == "dflash" else block
    if asked.spec.n > trained:
        yield error(
            "block.size",
            f"n = {asked.spec.n} is more than the block of {draft.name} holds (block_size {block}): use n = {trained}",
        )
    elif asked.spec.n < trained and asked.method == "dspark" and not asked.on_vllm:
        yield error(
            "block.size",
            f"SGLang takes DSpark's length from the checkpoint (block_size {block}) and refuses n = {asked.spec.n}: "
            f"use n = {trained}",
        )
    elif asked.spec.n < trained:
        yield warning(
            "block.size",
            f"n = {asked.spec.n} is less than {draft.name} was trained to fill at once ({trained}, block_size "
            f"{block}): another block may be drafted worse, so measure both",
        )


def tree_depth(asked: Asked) -> Iterator[Finding]:
    """A tree with fewer nodes than its depth can never accept to its end."""
    tree = asked.spec.tree
    if tree is not None and tree.nodes < tree.depth + 1:
        yield warning(
            "tree.depth",
            f"a tree of depth {tree.depth} with {tree.nodes} nodes cannot hold one whole path: at most {tree.nodes} "
            f"tokens come out of a step; give nodes >= {tree.depth + 1}, or depth {tree.nodes - 1}",
            "sglang/srt/speculative/eagle_utils.py (0.5.23)",
        )


def admission(asked: Asked) -> Iterator[Finding]:
    """C17: the limit that SGLang sets by itself once speculation is on."""
    limit = asked.options.max_running_requests
    if not asked.on_vllm and not asked.spec.is_off and limit > SGLANG_ADMITS:
        yield note(
            "sglang.admission",
            f"SGLang admits {SGLANG_ADMITS} requests at once when speculation is on and nothing is said: "
            f"--max-running-requests {limit} is set, and off must be measured with the same",
            _C17,
        )
