"""Medusa heads in vLLM (0.32 and earlier): keys that it renames, biases that it drops, heads that are not there."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Mapping
from typing import Any

from tuner.engines.checkpoint import Checkpoint
from tuner.engines.preflight.asked import Asked
from tuner.engines.preflight.expected import Dims, Expected
from tuner.engines.preflight.finding import Finding, error, note, warning
from tuner.engines.preflight.tensors import compare
from tuner.engines.sglang_limits import flag_value
from tuner.engines.vllm_loader import (
    DEFAULT_LOADER,
    FLAG,
    TRACKS,
    counts_token_map,
    loader_config,
    reduced_vocabulary,
)

_CONFIG = "vllm/transformers_utils/configs/medusa.py (0.32)"
_MODEL = "vllm/model_executor/models/medusa.py (0.32)"
_LOADER = "vllm/model_executor/model_loader/default_loader.py:507 (0.32)"
_C12 = "https://github.com/vllm-project/vllm/pull/4978"
#: vLLM's own hidden size where the config has none.
_ASSUMED_HIDDEN = 4096
_OLD_NAME = re.compile(r"(\d+)\.(\d+)\.(linear\.)?(\w+)")


def trained_heads(config: Mapping[str, Any]) -> int | None:
    """How many heads the checkpoint says it holds."""
    stated = config.get("medusa_num_heads", config.get("num_heads"))
    return stated if isinstance(stated, int) else None


def heads_vllm_takes(config: Mapping[str, Any]) -> tuple[str, int] | None:
    """(key, value) that ends up as num_heads: vLLM renames every key with `num` and `heads`, and the last one wins."""
    keys = [key for key in config if "num" in key and "heads" in key and isinstance(config[key], int)]
    return (keys[-1], config[keys[-1]]) if keys else None


def medusa_fits(asked: Asked) -> Iterator[Finding]:
    draft = asked.draft
    if draft is None or asked.method != "medusa":
        return
    yield from _heads(asked, draft.config)
    yield from _config(asked, draft)
    if (reduced := reduced_vocabulary(draft.config)) is not None:
        yield from _reduced(asked, draft, reduced)
    if draft.tensors and asked.draft_shape.hidden:
        held = {_renamed(name): tensor.shape for name, tensor in draft.tensors.items()}
        if draft.config.get("original_lm_head") and "lm_heads.0.weight" in held:
            held.setdefault("lm_head.weight", held["lm_heads.0.weight"])
        yield from _biases(draft, held)
        yield from compare(asked, _wanted(asked, draft.config, held), held)


def _heads(asked: Asked, config: Mapping[str, Any]) -> Iterator[Finding]:
    trained, taken = trained_heads(config), heads_vllm_takes(config)
    if trained is not None and asked.spec.n > trained:
        yield error(
            "medusa.heads",
            f"n = {asked.spec.n} needs as many Medusa heads and {asked.spec.draft} has {trained}: use n <= {trained}",
            _C12,
        )
    if trained is not None and taken is not None and taken[1] != trained:
        yield error(
            "medusa.key_order",
            f"config.json of {asked.spec.draft} has {taken[0]}: {taken[1]} after its {trained} Medusa heads, and vLLM "
            f"takes the last such key for the number of heads: remove {taken[0]}",
            _CONFIG,
        )


def _config(asked: Asked, draft: Checkpoint) -> Iterator[Finding]:
    ours = asked.target_shape.hidden
    if "hidden_size" not in draft.config and ours is not None and ours != _ASSUMED_HIDDEN:
        # A config alone may be an excerpt; beside weights it is what vLLM will read.
        say = error if draft.tensors else warning
        yield say(
            "medusa.hidden",
            f"config.json of {draft.name} has no hidden_size, and vLLM assumes {_ASSUMED_HIDDEN}: add hidden_size: "
            f"{ours}, the target's",
            _CONFIG,
        )
    reduced = draft.config.get("truncated_vocab_size")
    whole = asked.target_shape.vocab
    if isinstance(reduced, int) and whole and reduced < whole and draft.tensors and "token_map" not in draft.tensors:
        yield error(
            "medusa.token_map",
            f"{draft.name} has truncated_vocab_size {reduced} of {whole} and no token_map: add the map to its weights",
            _MODEL,
        )


def _reduced(asked: Asked, draft: Checkpoint, reduced: int) -> Iterator[Finding]:
    """Whether a head of a reduced vocabulary loads, and what that takes."""
    if not draft.config.get("original_lm_head"):
        yield error(
            "medusa.own_heads",
            f"{draft.name} drafts {reduced} tokens through output matrices of its own, which vLLM cuts to as many rows "
            "and then wants whole: export one shared lm_head.weight and set original_lm_head: true",
            _MODEL,
        )
    yield from _map_values(asked, draft)
    off = f"{FLAG} '{{\"{TRACKS}\": false}}'"
    if not counts_token_map(asked.version):
        yield warning(
            "medusa.loader",
            f"whether {asked.engine_text} loads the token_map of {draft.name} was not looked at: 0.32 calls it not "
            f"initialized, and needs {off}",
            _LOADER,
        )
        return
    load_format = (flag_value(asked.options.args, "--load-format", "--load_format") or "auto").lower()
    given, _ = loader_config(asked.options.args)
    if load_format not in DEFAULT_LOADER:
        yield error(
            "medusa.loader",
            f"{draft.name} loads only with {TRACKS} off, an option that --load-format {load_format} refuses: use auto",
            _LOADER,
        )
    elif given.get(TRACKS, False):
        yield error(
            "medusa.loader",
            f"{FLAG} sets {TRACKS}, with which vLLM stops at the token_map of {draft.name}: set it to false",
            _LOADER,
        )
    else:
        yield note(
            "medusa.loader",
            f"vLLM 0.32 takes the token_map of {draft.name} for a weight that no file had, so the command has {off}: "
            "vLLM then no longer notices missing weights, the target's among them, and tuner checked the draft's alone",
            _LOADER,
        )


def _map_values(asked: Asked, draft: Checkpoint) -> Iterator[Finding]:
    """Target ids that do not exist end the first step; one that is there twice is drafted from its last place alone."""
    tensor, whole = draft.tensors.get("token_map"), asked.target_shape.vocab
    data = tensor.read() if tensor is not None and tensor.dtype == "I64" else None
    if not data or not whole:
        return
    ids = array("q", data)
    if wrong := [token for token in ids if not 0 <= token < whole]:
        yield error(
            "medusa.token_map",
            f"token_map of {draft.name} holds {wrong[0]} and the target has {whole} tokens: export the map again",
            _MODEL,
        )
    elif len(set(ids)) < len(ids):
        yield warning(
            "medusa.token_map", f"token_map of {draft.name} holds tokens twice, which waste places: export it again"
        )


def _biases(draft: Checkpoint, held: Mapping[str, Dims]) -> Iterator[Finding]:
    has = any(name.startswith("blocks.") and name.endswith(".bias") for name in held)
    if has and not draft.config.get("medusa_fc_bias"):
        yield error(
            "medusa.bias",
            f"{draft.name} holds biases of its blocks and its config.json has no medusa_fc_bias: true, so vLLM drops "
            "them without a word and the heads are not what was trained: add it",
            _MODEL,
        )


def _wanted(asked: Asked, config: Mapping[str, Any], held: Mapping[str, Dims]) -> Expected:
    """What N heads need; vLLM builds as many as it drafts, and leaves the rest of the file alone."""
    hidden, whole = asked.draft_shape.hidden, asked.target_shape.vocab
    assert hidden
    layers = config.get("medusa_num_layers", config.get("num_layers", 1))
    matrix: Dims | None = (config.get("truncated_vocab_size") or whole, hidden) if whole else None
    needed: dict[str, Dims] = {}
    for head in range(min(asked.spec.n, trained_heads(config) or asked.spec.n)):
        for layer in range(layers):
            needed[f"blocks.{head}.layers.{layer}.weight"] = (hidden, hidden)
            if config.get("medusa_fc_bias"):
                needed[f"blocks.{head}.layers.{layer}.bias"] = (hidden,)
        if matrix and not config.get("original_lm_head"):
            needed[f"lm_heads.{head}.weight"] = matrix
    reduced = reduced_vocabulary(config)
    if matrix and config.get("original_lm_head"):
        # vLLM cuts a matrix of the whole vocabulary by the map.
        cut = reduced is not None and held.get("lm_head.weight") == (whole, hidden)
        needed["lm_head.weight"] = (whole, hidden) if whole and cut else matrix
    allowed: dict[str, Dims] = {"token_map": (reduced,)} if reduced is not None else {}
    # Names that no parameter has are skipped here, and so is what belongs to further heads.
    return Expected(needed, allowed, ignored=("blocks.", "lm_head", "token_map", "linear", "base_model"))


def _renamed(name: str) -> str:
    """FasterDecoding's `{head}.{layer}.linear.weight` and `{head}.{layers}.weight` as vLLM renames them."""
    name = name.replace("medusa_heads.", "")
    old = _OLD_NAME.fullmatch(name)
    if old is None:
        return name
    head, layer, linear, part = old.groups()
    return f"blocks.{head}.layers.{layer}.{part}" if linear else f"lm_heads.{head}.{part}"
