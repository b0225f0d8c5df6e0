"""What SGLang would refuse late, or silently change: checked before a launch, each with the values that are allowed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tuner.engines.base import LaunchOptions
from tuner.engines.sglang_commands import adaptive_table, candidate_steps, is_adaptive
from tuner.engines.sglang_lossy import SIMULATED, THRESHOLDS, number
from tuner.engines.sglang_versions import EAGLE_FAMILY
from tuner.errors import UserError
from tuner.spec.speculation import SGLANG_SCHEDULE, SpecConfig

#: Flags that tuner sets itself, in every arm alike, with all their spellings.
OWN_FLAGS = frozenset(
    {
        "--model-path", "--model", "--host", "--port", "--api-key", "--served-model-name", "--max-running-requests",
        "--context-length", "--tp-size", "--tensor-parallel-size", "--tp", "--random-seed", "--disable-radix-cache",
        "--device",
    }
)  # fmt: skip
#: Backends that can check a tree in pages of more than one token (0.5.23); for n-gram trees only the first.
TREE_BACKENDS = ("flashinfer", "fa3", "triton")
#: Backends that force pages of 16 tokens and more whatever --page-size says, and are none of the above.
PAGED_BACKENDS = frozenset({"trtllm_mla", "trtllm_mha", "flashmla", "cutedsl_mla", "hpc_ops"})
_PIPELINE_ENV = "SGLANG_ENABLE_PP_SPEC"


def check_args(args: Sequence[str]) -> None:
    """Refuse pass-through flags that would change what tuner itself decides."""
    for flag in (arg.split("=")[0] for arg in args if arg.startswith("--")):
        if flag.startswith("--spec") or flag == "--enable-multi-layer-eagle":
            raise UserError(
                f"engine_options.args has {flag}: speculation is set by drafts, where every arm gets its own; remove it"
            )
        if flag in OWN_FLAGS:
            raise UserError(f"engine_options.args has {flag}, which tuner sets itself: remove it")
        if flag == "--config":
            raise UserError("engine_options.args has --config, whose flags tuner cannot see: give the flags themselves")


def flag_value(args: Sequence[str], *names: str) -> str | None:
    """The last value given for any of these spellings, as argparse would take it."""
    found = None
    for position, arg in enumerate(args):
        name, equals, value = arg.partition("=")
        if name in names:
            found = value if equals else (args[position + 1] if position + 1 < len(args) else None)
    return found


def flag_number(args: Sequence[str], *names: str) -> int:
    """The same as a whole number, 1 where it is not given. UserError where it is no number."""
    given = flag_value(args, *names)
    try:
        return int(given or 1)
    except ValueError:
        raise UserError(f"{' or '.join(names)} in engine_options.args is {given!r}: give a whole number") from None


def check_parallel(spec: SpecConfig, options: LaunchOptions) -> None:
    """Attention data parallelism and pipelines, which only some methods survive (0.5.23)."""
    attention_dp = "--enable-dp-attention" in options.args or flag_number(options.args, "--attn-dp-size") > 1
    if attention_dp and spec.method in ("draft_model", "ngram"):
        raise UserError(
            f"SGLang runs no {spec.method} drafts with attention data parallelism: remove --enable-dp-attention and "
            "--attn-dp-size, or draft with eagle, eagle3 or mtp"
        )
    if attention_dp and is_adaptive(spec):
        raise UserError(
            "SGLang switches adaptive speculation off under attention data parallelism: remove one of the two"
        )
    stages = flag_number(options.args, "--pp-size", "--pipeline-parallel-size")
    eagle_pipeline = spec.method in ("eagle", "mtp") and dict(options.env).get(_PIPELINE_ENV) == "1"
    if stages > 1 and not eagle_pipeline:
        raise UserError(
            f"SGLang does not speculate over {stages} pipeline stages with {spec.method}: use --pp-size 1 (only eagle "
            f"and mtp can try it, with {_PIPELINE_ENV}=1 in engine_options.env)"
        )


def check_tree(spec: SpecConfig, options: LaunchOptions, device: str) -> None:
    """Attention backend and page size under a tree (topk > 1). The tree's own bounds are SpecConfig's."""
    if spec.tree is None:
        return
    if spec.method not in EAGLE_FAMILY | {"ngram"}:
        raise UserError(f"{spec.method} drafts one chain of tokens and no tree: give n")
    if spec.method == "ngram" and spec.tree.depth != spec.tree.nodes - 1:
        raise UserError(
            f"SGLang's n-gram tree has no limit of depth: with {spec.tree.nodes} nodes it can go {spec.tree.nodes - 1} "
            f"deep, so give depth {spec.tree.nodes - 1}, not {spec.tree.depth}"
        )
    default = "intel_amx" if device == "cpu" else None
    overall = flag_value(options.args, "--attention-backend") or default
    phases = [flag_value(options.args, f"--{phase}-attention-backend") for phase in ("prefill", "decode")]
    drafting = dict(spec.options).get("draft_attention_backend")
    backends = {str(name) for name in (overall, *phases, drafting) if name}
    allowed = TREE_BACKENDS[:1] if spec.method == "ngram" else TREE_BACKENDS
    page = flag_number(options.args, "--page-size")
    paged = sorted(backends & PAGED_BACKENDS)
    if paged or (page > 1 and backends - set(allowed)):
        why = f"{paged[0]} works in pages of many tokens" if paged else f"--page-size is {page}"
        raise UserError(
            f"topk {spec.tree.topk} needs pages of one token, or attention backend {' or '.join(allowed)}, but {why} "
            f"and the backend is {', '.join(sorted(backends))}: change one of them, or use topk 1"
        )


def check_adaptive(spec: SpecConfig) -> None:
    """The table of N by batch size: readable, for a chain, and never above this configuration's N."""
    options = dict(spec.options)
    path, text = options.get("adaptive_config"), options.get(SGLANG_SCHEDULE)
    if path is None and text is None:
        return
    if spec.tree is not None:
        raise UserError("SGLang switches adaptive speculation off for trees: give n instead of a tree")
    steps = candidate_steps(str(text) if text is not None else _table(str(path), spec.n))
    if max(steps) != spec.n:
        named = f"adaptive_config {path}" if path is not None else "its table"
        raise UserError(
            f"{named} goes up to N = {max(steps)}, but this configuration has n = {spec.n}: they must be the same"
        )


def _table(path: str, n: int) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        example = adaptive_table({1: n, 32: 0})
        raise UserError(f"cannot read adaptive_config {path} ({why}): write a table like {example}") from None


def check_numbers(spec: SpecConfig, options: LaunchOptions) -> None:
    """What SGLang reads as a number once it is launched."""
    chosen, env = dict(spec.options), dict(options.env)
    for key in THRESHOLDS:
        if key in chosen and number(chosen[key]) is None:
            raise UserError(f"{key} is {chosen[key]!r}: give a number from 0 to 1")
    length = env.get(SIMULATED)
    if length and number(length) is None:
        raise UserError(f"{SIMULATED} in engine_options.env is {length!r}: give a number of tokens, or remove it")


def check_sampling(spec: SpecConfig) -> None:
    """Rejection sampling and block verification are for chains with exact thresholds."""
    options = dict(spec.options)
    asked = next((k for k in ("use_rejection_sampling", "use_block_verification") if options.get(k)), None)
    if asked is None:
        return
    if spec.tree is not None:
        raise UserError(f"{asked} needs topk 1: give n instead of a tree")
    loose = [key for key in THRESHOLDS if number(options.get(key, 1)) != 1]
    if loose:
        raise UserError(f"{asked} does not go with {loose[0]}: it takes no thresholds")
