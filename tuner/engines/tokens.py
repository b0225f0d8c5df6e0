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
    """`marked`: ids that the file itself calls special."""

    file: Path
    by_id: Mapping[int, str]
    marked: frozenset[int]

    def is_special(self, token_id: int) -> bool:
        """Control tokens, by the file's own mark or by their spelling."""
        return token_id in self.marked or _CONTROL.fullmatch(self.by_id.get(token_id, "")) is not None


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
            found = _read(name, path.read_bytes())
            return Tokens(path, *found) if found else None
    return None


def difference(target: Tokens, draft: Tokens) -> Difference:
    """Ids whose tokens differ, or that one of the two lacks; control tokens are counted apart."""
    ids = sorted({i for i, _token in target.by_id.items() ^ draft.by_id.items()})
    special = tuple(i for i in ids if target.is_special(i) or draft.is_special(i))
    ordinary = [i for i in ids if i not in set(special)]
    first = (ordinary[0], target.by_id.get(ordinary[0]), draft.by_id.get(ordinary[0])) if ordinary else None
    return Difference(first, len(ordinary), special)


@lru_cache(maxsize=4)
def _read(name: str, content: bytes) -> tuple[dict[int, str], frozenset[int]] | None:
    """By content: two models of one family often have the same file, and a study asks for it at every setting."""
    try:
        data = json.loads(content)
        by_id, marked = _vocab_json(data) if name == "vocab.json" else _tokenizer_json(data)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return by_id, frozenset(marked)


def _vocab_json(data: Mapping[str, int]) -> tuple[dict[int, str], set[int]]:
    return {int(i): token for token, i in data.items()}, set()


def _tokenizer_json(data: Mapping[str, Any]) -> tuple[dict[int, str], set[int]]:
    """BPE and WordPiece map token to id; Unigram lists [token, score] in the order of ids. Added tokens come on top."""
    vocab = data["model"]["vocab"]
    if isinstance(vocab, dict):
        by_id: dict[int, str] = dict(zip(vocab.values(), vocab, strict=True))
    else:
        by_id = {i: str(token) for i, (token, _score) in enumerate(vocab)}
    added = data.get("added_tokens") or []
    by_id |= {int(item["id"]): str(item["content"]) for item in added}
    return by_id, {int(item["id"]) for item in added if item.get("special")}
