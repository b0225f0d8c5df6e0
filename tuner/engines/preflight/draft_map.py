"""The map of a reduced draft vocabulary: `d2t` holds offsets, target id = draft id + d2t[draft id]."""

from __future__ import annotations

import sys
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from tuner.engines.checkpoint import Checkpoint, Tensor
from tuner.engines.preflight.asked import Asked
from tuner.engines.preflight.finding import Finding, error, note, warning

_SOURCE = "vllm/model_executor/models/llama_eagle3.py (0.32)"
_MAPPED = frozenset({"eagle3", "dflash", "dspark"})


def reduced_size(asked: Asked) -> int | None:
    """How many tokens the head can draft; the target's whole vocabulary where the config names no smaller one."""
    draft = asked.draft
    size = draft.config.get("draft_vocab_size") if draft else None
    return size if isinstance(size, int) else asked.draft_shape.vocab or asked.target_shape.vocab


def map_fits(asked: Asked) -> Iterator[Finding]:
    """A map where one is needed and only there, every target id in range and none twice."""
    draft, size = asked.draft, reduced_size(asked)
    whole = asked.target_shape.vocab or asked.draft_shape.vocab
    if draft is None or asked.method not in _MAPPED or not draft.tensors or size is None or whole is None:
        return
    d2t = draft.tensors.get("d2t")
    if size > whole:
        yield error("d2t.size", f"{draft.name} drafts {size} tokens and the target has {whole}: another target's head")
    elif d2t is None and size != whole:
        yield error(
            "d2t.missing",
            f"{draft.name} drafts {size} of {whole} tokens and holds no d2t: engines then take draft ids for target "
            "ids and acceptance collapses without an error; export the head again with its map",
            _SOURCE,
        )
    elif d2t is not None and size == whole and asked.on_vllm and asked.method == "eagle3":
        yield error(
            "d2t.superfluous",
            f"{draft.name} drafts the whole vocabulary ({size}) and holds d2t, for which vLLM then has no place (no "
            "module or parameter named 'draft_id_to_target_id'): remove d2t from its weights",
            _SOURCE,
        )
    elif d2t is not None:
        yield from _values(draft, d2t, size, whole)
        yield from _mask(draft, size, whole)


def _values(draft: Checkpoint, d2t: Tensor, size: int, whole: int) -> Iterator[Finding]:
    if d2t.dtype != "I64" or d2t.shape != (size,):
        yield error(
            "d2t.shape",
            f"d2t of {draft.name} is {d2t.dtype} {list(d2t.shape)} and must be I64 [{size}], one offset a draft token",
        )
        return
    data = d2t.read()
    if data is None:
        yield note("d2t.unread", f"{d2t.file} holds headers only: the values of d2t were not checked")
        return
    offsets = array("q", data)
    if sys.byteorder == "big":
        offsets.byteswap()
    yield from map_values(draft.name, offsets, whole)


def map_values(name: str, offsets: Sequence[int], whole: int) -> Iterator[Finding]:
    """At most one finding on the ids that these offsets give."""
    ids = [i + offset for i, offset in enumerate(offsets)]
    outside = next((i for i, token in enumerate(ids) if not 0 <= token < whole), None)
    hint = _absolute(offsets, whole)
    if outside is not None:
        yield error(
            "d2t.range",
            f"d2t of {name} sends draft token {outside} to {ids[outside]}, outside the target's {whole} tokens{hint}",
            _SOURCE,
        )
    elif len(set(ids)) < len(ids):
        twice = next(token for token, count in Counter(ids).items() if count > 1)
        yield error(
            "d2t.twice", f"d2t of {name} sends two draft tokens to {twice}: one of them is never right{hint}", _SOURCE
        )


def _absolute(offsets: Sequence[int], whole: int) -> str:
    """Ids in place of offsets rise strictly and stay in range; offsets repeat while ids run on."""
    rising = all(a < b for a, b in pairwise(offsets))
    if rising and offsets and offsets[0] >= 0 and offsets[-1] < whole:
        return "; its values look like token ids, and offsets (id - index) are wanted"
    return "; export the head again"


def _mask(draft: Checkpoint, size: int, whole: int) -> Iterator[Finding]:
    """`t2d` is read by no engine; it is a copy of the same fact, and so a check of it."""
    t2d = draft.tensors.get("t2d")
    if t2d is None:
        return
    data = t2d.read() if t2d.dtype in ("BOOL", "U8") and t2d.shape == (whole,) else None
    marked = None if data is None else sum(map(bool, data))
    if t2d.shape != (whole,):
        yield warning("t2d.shape", f"t2d of {draft.name} has shape {list(t2d.shape)}; the target has {whole} tokens")
    elif marked is not None and marked != size:
        yield warning("t2d.count", f"t2d of {draft.name} marks {marked} tokens and it drafts {size}: its maps disagree")
