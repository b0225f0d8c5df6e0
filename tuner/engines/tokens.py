"""The tokens of a model by id, read from tokenizer.json or vocab.json, to compare two vocabularies token by token."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

#: How control tokens are spelled: <|im_end|>, <unused12>, [PAD].
_CONTROL = re.compile(r"<\|.*\|>|<[^<>\s]+>|\[[A-Z_0-9]+\]")


@dataclass(frozen=True, slots=True)
class Tokens:
    """`special`: ids of control tokens, by the file's own mark or by their spelling."""

    file: Path
    by_id: Mapping[int, str]
    special: frozenset[int]


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two vocabularies part. `first`: the lowest ordinary id that differs, with both its tokens."""

    first: tuple[int, str | None, str | None] | None
    ordinary: int
    special: tuple[int, ...]

    @property
    def none(self) -> bool:
        return not self.ordinary and not self.special


def read_tokens(folder: Path) -> Tokens | None:
    """The vocabulary of a model's folder; None where it keeps none in a format that can be read."""
    for name in ("tokenizer.json", "vocab.json"):
        path = folder / name
        if path.is_file():
            found = path.stat()
            return _read(path, found.st_mtime_ns, found.st_size)
    return None


def difference(target: Tokens, draft: Tokens) -> Difference:
    """Ids whose tokens differ, or that one of the two lacks; control tokens are counted apart."""
    ids = [i for i in sorted({*target.by_id, *draft.by_id}) if target.by_id.get(i) != draft.by_id.get(i)]
    special = tuple(i for i in ids if i in target.special | draft.special)
    ordinary = [i for i in ids if i not in target.special | draft.special]
    first = (ordinary[0], target.by_id.get(ordinary[0]), draft.by_id.get(ordinary[0])) if ordinary else None
    return Difference(first, len(ordinary), special)


@lru_cache(maxsize=8)
def _read(path: Path, _modified: int, _size: int) -> Tokens | None:
    """Modification time and size are in the key of the cache, so that a file that was replaced is read again."""
    try:
        data = json.loads(path.read_bytes())
        by_id, marked = _vocab_json(data) if path.name == "vocab.json" else _tokenizer_json(data)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    spelled = {i for i, token in by_id.items() if _CONTROL.fullmatch(token)}
    return Tokens(path, by_id, frozenset(marked | spelled))


def _vocab_json(data: Mapping[str, int]) -> tuple[dict[int, str], set[int]]:
    return {int(i): token for token, i in data.items()}, set()


def _tokenizer_json(data: Mapping[str, Any]) -> tuple[dict[int, str], set[int]]:
    """BPE and WordPiece map token to id; Unigram lists [token, score] in the order of ids. Added tokens come on top."""
    vocab = data["model"]["vocab"]
    if isinstance(vocab, dict):
        by_id = {int(i): str(token) for token, i in vocab.items()}
    else:
        by_id = {i: str(token) for i, (token, _score) in enumerate(vocab)}
    added = data.get("added_tokens") or []
    by_id |= {int(item["id"]): str(item["content"]) for item in added}
    return by_id, {int(item["id"]) for item in added if item.get("special")}
