"""Medusa heads of a reduced vocabulary in vLLM: its loader counts their `token_map` as a weight that no file had.

models/medusa.py makes token_map a parameter and leaves it out of what it says it loaded, and default_loader.py (line
507) then ends the start. One option turns that check off, for the target too: both are loaded with the same options.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tuner.engines.checkpoint import read_checkpoint
from tuner.engines.vllm_versions import Version
from tuner.errors import UserError
from tuner.spec.speculation import SpecConfig

#: Releases whose source was read for it; medusa left in 0.33.
COUNTS_TOKEN_MAP = ((0, 32), (0, 33))
FLAG = "--model-loader-extra-config"
TRACKS = "enable_weights_track"
#: Load formats of the loader that has the option (model_loader/__init__.py, 0.32); all others refuse the key.
DEFAULT_LOADER = frozenset(
    {"auto", "hf", "fastsafetensors", "instanttensor", "mistral", "npcache", "pt", "safetensors"}
)
#: vLLM's own size where a Medusa config has none.
_ASSUMED_VOCABULARY = 32001


def reduced_vocabulary(config: Mapping[str, Any]) -> int | None:
    """How many tokens a Medusa head drafts, where they are fewer than its vocabulary."""
    size, whole = config.get("truncated_vocab_size"), config.get("vocab_size", _ASSUMED_VOCABULARY)
    return size if isinstance(size, int) and isinstance(whole, int) and size < whole else None


def counts_token_map(version: Version) -> bool:
    return COUNTS_TOKEN_MAP[0] <= version < COUNTS_TOKEN_MAP[1]


def loader_args(spec: SpecConfig, args: Sequence[str], version: Version) -> tuple[str, ...]:
    """The engine's arguments, with the option where this draft needs it; what the user sets in it stays."""
    if spec.method != "medusa" or not spec.draft or not counts_token_map(version):
        return tuple(args)
    draft = read_checkpoint(spec.draft)
    if draft is None or reduced_vocabulary(draft.config) is None:
        return tuple(args)
    given, others = loader_config(args)
    return (*others, FLAG, json.dumps({TRACKS: False} | given))


def loader_config(args: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """(what the arguments give the loader, the other arguments). `FLAG.key value` outweighs `FLAG`, as in vLLM."""
    plain: dict[str, Any] = {}
    dotted: dict[str, Any] = {}
    others: list[str] = []
    words = iter(args)
    for word in words:
        name, equals, value = word.partition("=")
        flag, _, key = name.partition(".")
        if flag.replace("_", "-") != FLAG:
            others.append(word)
            continue
        text = value if equals else next(words, "")
        if key:
            dotted[key] = _read(text, text)
            continue
        plain = _read(text, None)
        if not isinstance(plain, dict):
            raise UserError(f"{FLAG} is {text!r}: give a JSON object, such as '{{\"{TRACKS}\": false}}'")
    return dotted or plain, others


def _read(text: str, otherwise: Any) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return otherwise
