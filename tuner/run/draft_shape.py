"""N or a tree from what was typed and what the checkpoint says: field cases C11 and C14."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tuner.engines.checkpoint import Checkpoint
from tuner.engines.preflight.finding import Finding, error, note, warning
from tuner.engines.preflight.kinds import mtp_layers
from tuner.engines.preflight.medusa import trained_heads
from tuner.engines.preflight.shape import section
from tuner.spec.speculation import Tree

_C14 = "https://github.com/sgl-project/SpecForge/issues/310"
_C11 = "vllm/config/speculative.py (0.32)"


class Lengths(Protocol):
    """What a user may give on how far to draft."""

    @property
    def n(self) -> int | None: ...
    @property
    def steps(self) -> int | None: ...
    @property
    def topk(self) -> int | None: ...
    @property
    def nodes(self) -> int | None: ...


@dataclass(frozen=True, slots=True)
class Shaped:
    """A chain of `n` or a tree; neither where nothing settles it. `findings`: what was rewritten, missing, assumed."""

    n: int | None = None
    tree: Tree | None = None
    findings: tuple[Finding, ...] = ()


def shaped(typed: Lengths, method: str, engine: str, target: Checkpoint | None, draft: Checkpoint | None) -> Shaped:
    triple = (typed.steps, typed.topk, typed.nodes)
    if any(part is not None for part in triple):
        return _of_triple(typed, *triple)
    if typed.n is not None or method == "off":
        return Shaped(typed.n)
    stated = _stated(method, target, draft)
    if stated is not None:
        return Shaped(stated, findings=(note("n.default", f"n is not given: {stated}, which the checkpoint says"),))
    if method == "mtp" and engine == "vllm":
        return Shaped(
            findings=(
                error(
                    "n.missing",
                    "n is not given, and the checkpoint has no n_predict (number of MTP layers) to take it from: "
                    "give n",
                    _C11,
                ),
            )
        )
    usual = _usual(method)
    if usual is None:
        return Shaped()
    return Shaped(usual, findings=(note("n.default", f"n is not given: {usual} is looked at"),))


def _of_triple(typed: Lengths, steps: int | None, topk: int | None, nodes: int | None) -> Shaped:
    """SGLang's three knobs: all or none; with topk 1 the third is steps + 1 whatever it says."""
    if steps is None or topk is None or nodes is None:
        return Shaped(
            steps,
            findings=(
                error(
                    "tree.half",
                    "steps, topk and nodes go together: give all three, or n for a chain (SGLang dies with an "
                    "assertion or a TypeError when some are missing)",
                    "sglang/srt/arg_groups/speculative_hook.py (0.5.23)",
                ),
            ),
        )
    if typed.n is not None and typed.n != steps:
        clash = error(
            "tree.and_n", f"n = {typed.n} and steps = {steps} are two lengths for one draft: give one of them"
        )
        return Shaped(steps, findings=(clash,))
    if topk > 1:
        return Shaped(tree=Tree(steps, topk, nodes))
    if nodes == steps + 1:
        return Shaped(steps)
    rewritten = warning(
        "tree.is_a_chain",
        f"with topk 1 a tree is the chain n = {steps}: nodes {nodes} is rewritten to {steps + 1}, and a sweep over "
        f"nodes is one setting, {steps}/1/{steps + 1}",
        _C14,
    )
    return Shaped(steps, findings=(rewritten,))


def _stated(method: str, target: Checkpoint | None, draft: Checkpoint | None) -> int | None:
    """The length that a checkpoint was trained or published for."""
    source = draft or target
    if source is None:
        return None
    config: Mapping[str, Any] = source.config
    if method == "mtp":
        return mtp_layers(config)
    if draft is None:
        return None
    if method == "medusa":
        return trained_heads(config)
    block = config.get("block_size")
    if method in ("dflash", "dspark") and isinstance(block, int):
        return block - 1 if method == "dflash" else block
    proposals = section(config, "speculators_config").get("proposal_methods")
    first = proposals[0] if isinstance(proposals, list) and proposals else None
    tokens = first.get("speculative_tokens") if isinstance(first, dict) else None
    return tokens if isinstance(tokens, int) else None


def _usual(method: str) -> int | None:
    """The middle of what is tried where a workload names nothing."""
    from tuner.spec.candidates import DEFAULT_N

    usual = DEFAULT_N.get(method)
    return usual[len(usual) // 2] if usual else None
