"""SGLang's spelling of a speculative configuration, and its table of draft lengths by batch size."""

from __future__ import annotations

import json
from collections.abc import Mapping

from tuner.engines.sglang_versions import ALGORITHMS, EAGLE_FAMILY
from tuner.errors import UserError
from tuner.spec.speculation import SGLANG_SCHEDULE, Scalar, SpecConfig

#: SGLang's n-gram trie keeps this many levels unless told otherwise; a match takes at least one of them (0.5.23).
DEFAULT_TRIE_DEPTH = 18
#: Where a command looks for a table that its configuration carries as text: SGLang reads files only.
TABLE_FILE = "adaptive.json"


def speculative_args(spec: SpecConfig, target: str) -> tuple[str, ...]:
    """The speculative flags; none for `off`. A chain of N is N steps and N + 1 verified nodes, the root included.

    All three of steps, topk and nodes are given for the EAGLE family: with some of them SGLang dies, and with none
    it picks a tree of its own for Llama targets.
    """
    if spec.is_off:
        return ()
    args = ["--speculative-algorithm", ALGORITHMS[spec.method][0]]
    # Without a path SGLang looks into the target for MTP layers for some architectures only; with the target's, always.
    draft = target if spec.method == "mtp" and not spec.draft else spec.draft
    if draft:
        args += ["--speculative-draft-model-path", draft]
    args += _shape_args(spec)
    for key, value in spec.options:
        args += _option_args(key, value)
    return tuple(args)


def verified_nodes(spec: SpecConfig) -> int:
    """What SGLang calls draft tokens: nodes checked in one verify step, the root included."""
    return spec.tree.nodes if spec.tree else spec.n + 1


def _shape_args(spec: SpecConfig) -> list[str]:
    nodes, topk = verified_nodes(spec), spec.tree.topk if spec.tree else 1
    if spec.method == "dflash":
        return ["--speculative-dflash-block-size", str(nodes)]
    if spec.method == "dspark":
        return ["--speculative-dspark-block-size", str(spec.n)]
    if spec.method == "ngram":
        # 10 is SGLang's breadth when none is given, and makes a tree of every n-gram draft.
        shape = ["--speculative-num-draft-tokens", str(nodes), "--speculative-ngram-max-bfs-breadth", str(topk)]
        if nodes > DEFAULT_TRIE_DEPTH and "ngram_max_trie_depth" not in dict(spec.options):
            shape += ["--speculative-ngram-max-trie-depth", str(nodes + DEFAULT_TRIE_DEPTH)]
        return shape
    assert spec.method in EAGLE_FAMILY
    return [
        *("--speculative-num-steps", str(spec.tree.depth if spec.tree else spec.n)),
        *("--speculative-eagle-topk", str(topk)),
        *("--speculative-num-draft-tokens", str(nodes)),
    ]


def _option_args(key: str, value: Scalar) -> list[str]:
    if key == SGLANG_SCHEDULE:
        return _option_args("adaptive_config", TABLE_FILE)
    flag = f"--speculative-{key.replace('_', '-')}"
    if value is True:
        return [flag]
    if value is False:
        return []
    extra = ["--speculative-adaptive"] if key == "adaptive_config" else []
    return [*extra, flag, str(value)]


def is_adaptive(spec: SpecConfig) -> bool:
    """Whether N moves while the engine runs, so that what was drafted in all is not N times the steps."""
    return bool({"adaptive_config", SGLANG_SCHEDULE} & set(dict(spec.options)))


def adaptive_table(n_by_batch: Mapping[int, int]) -> str:
    """JSON for --speculative-adaptive-config: {batch size from which it holds: N}; N = 0 drafts nothing.

    Each row is a list of one candidate, so the engine follows the table and adapts nothing by itself. Batches below
    the first key use its row.
    """
    if not n_by_batch or min(n_by_batch) < 1 or min(n_by_batch.values()) < 0:
        raise UserError(f"a table of N by batch size needs batch sizes >= 1 and N >= 0, got {dict(n_by_batch)}")
    if not any(n_by_batch.values()):
        raise UserError("a table whose N are all 0 never drafts: leave speculation off instead")
    return json.dumps({str(size): {"candidate_steps": [n_by_batch[size]]} for size in sorted(n_by_batch)})


def candidate_steps(table: str) -> tuple[int, ...]:
    """Every N that a table of this kind can choose, ascending; UserError if it is not such a table."""
    try:
        rows = [row for key, row in json.loads(table).items() if key.isdigit()]
        steps = sorted({step for row in rows for step in row["candidate_steps"]})
    except (ValueError, AttributeError, TypeError, KeyError) as error:
        raise UserError(
            f"not a table of candidate steps by batch size ({error!r}): give one like {adaptive_table({1: 3, 8: 1})}"
        ) from None
    if not steps or not all(isinstance(step, int) and step >= 0 for step in steps):
        raise UserError(f"candidate steps must be whole numbers >= 0, at least one of them: got {steps}")
    return tuple(steps)
