"""Are the draft's tokens the target's? By size, and token by token. Field cases C03 and C05."""

from __future__ import annotations

from collections.abc import Iterator

from tuner.engines.checkpoint import Checkpoint
from tuner.engines.preflight.asked import Asked
from tuner.engines.preflight.finding import Finding, error, note, warning
from tuner.engines.tokens import Difference, difference, read_tokens

#: vLLM maps tokens between vocabularies from here on: draft models only, drafted greedily, first model runner.
MIXED_VOCABULARY = (0, 26)
#: SGLang's STANDALONE refuses tokenizers that differ in any token; seen in 0.5.15, not in 0.5.12.
SGLANG_COMPARES = (0, 5, 15)
#: Control tokens may differ between releases of one family; more than this is another family.
MOST_SPECIAL = 256
_C03 = "https://github.com/vllm-project/vllm/issues/7252"
_C05 = "https://github.com/ggml-org/llama.cpp/pull/3812"
#: Methods whose config gives the target's vocabulary under `vocab_size`; Medusa's is overwritten by vLLM.
_WITH_OWN_SIZE = frozenset({"draft_model", "eagle", "eagle3", "mtp", "dflash", "dspark"})


def same_size(asked: Asked) -> Iterator[Finding]:
    """vocab_size of both configs."""
    target, draft = asked.target, asked.draft
    if target is None or draft is None or asked.method not in _WITH_OWN_SIZE:
        return
    ours, theirs = asked.target_shape.vocab, asked.draft_shape.vocab
    if ours is None or theirs is None or ours == theirs:
        return
    said = (
        f"{draft.name} has a vocabulary of {theirs} and the target one of {ours} ({draft.folder / 'config.json'}, "
        f"{target.folder / 'config.json'})"
    )
    if asked.method == "draft_model" and asked.on_vllm and asked.chosen.get("use_heterogeneous_vocab"):
        yield warning(
            "vocabulary.mixed",
            f"{said}: use_heterogeneous_vocab drafts only tokens that both have, greedily, and with vLLM's first model "
            "runner",
        )
    elif asked.method == "draft_model":
        yield error("vocabulary.size", f"{said}: {_relation(target, draft)}{_ways_out(asked)}", _C03)
    else:
        yield error(
            "vocabulary.size", f"{said}: a head needs the target's tokens; take one that was made for this target"
        )


def _relation(target: Checkpoint, draft: Checkpoint) -> str:
    ours, theirs = read_tokens(target.folder), read_tokens(draft.folder)
    if ours is None or theirs is None:
        return "a draft needs the target's tokens; "
    shared = len(ours.by_id.keys() & theirs.by_id.keys())
    if difference(ours, theirs).none:
        return f"same family; the difference is padding, for the tokenizers agree on all {shared} tokens; "
    return "a draft needs the target's tokens, and the tokenizers differ; "


def _ways_out(asked: Asked) -> str:
    ways = f"take a draft with {asked.target_shape.vocab}, or use ngram or an EAGLE head"
    if not asked.on_vllm:
        return ways
    if asked.version >= MIXED_VOCABULARY:
        return f"{ways}, or the option use_heterogeneous_vocab: true (draft models only, drafted greedily)"
    return f"{ways}; vLLM 0.26 and later can mix vocabularies (use_heterogeneous_vocab)"


def same_tokens(asked: Asked) -> Iterator[Finding]:
    """Token by token, where both folders keep a tokenizer and the sizes are equal."""
    target, draft = asked.target, asked.draft
    if target is None or draft is None or asked.method not in _WITH_OWN_SIZE:
        return
    if asked.target_shape.vocab != asked.draft_shape.vocab or asked.chosen.get("use_heterogeneous_vocab"):
        return
    ours, theirs = read_tokens(target.folder), read_tokens(draft.folder)
    if ours is None or theirs is None:
        if asked.method == "draft_model":
            missing = target.name if ours is None else draft.name
            yield note("vocabulary.unread", f"{missing} has no tokenizer.json: tokens were not compared, sizes only")
        return
    found = difference(ours, theirs)
    if found.first is not None or len(found.special) > MOST_SPECIAL:
        yield _other_tokens(asked, found)
    elif found.special:
        yield _other_special(asked, found)


def _other_tokens(asked: Asked, found: Difference) -> Finding:
    assert asked.draft is not None
    where = f"{len(found.special)} control tokens differ"
    if found.first:
        i, ours, theirs = found.first
        where = f"id {i} is {_shown(ours)} in the target and {_shown(theirs)} in the draft, {found.ordinary} ids in all"
    if asked.method == "draft_model":
        return error(
            "vocabulary.tokens",
            f"{asked.draft.name} has as many tokens as the target and other ones: {where}; nothing it drafts would be "
            "accepted, so take a draft of the target's family, or use ngram",
            _C05,
        )
    return warning(
        "vocabulary.tokens",
        f"the tokenizer beside {asked.draft.name} is not the target's: {where}; engines never read it, but it says "
        "that the head was made for another model",
        _C05,
    )


def _other_special(asked: Asked, found: Difference) -> Finding:
    assert asked.draft is not None
    ids = ", ".join(map(str, found.special[:5])) + (", ..." if len(found.special) > 5 else "")
    said = f"{asked.draft.name} and the target differ in control tokens only (ids {ids})"
    if not asked.on_vllm and asked.method == "draft_model" and asked.version >= SGLANG_COMPARES:
        return error(
            "vocabulary.tokens",
            f"{said}, and SGLang's STANDALONE ends at the start when the tokenizers differ at all: copy the target's "
            "tokenizer files over the draft's if those tokens never occur, or use vLLM",
            "sglang/srt/speculative/standalone_worker_v2.py (0.5.15 to 0.5.23)",
        )
    return warning("vocabulary.special", f"{said}: texts with those tokens are drafted worse, others are not", _C05)


def _shown(token: str | None) -> str:
    return "no token" if token is None else repr(token)
