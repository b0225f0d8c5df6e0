"""Does the method that was asked for fit the checkpoint, and can this engine load it? Field cases C01 and C21."""

from __future__ import annotations

from collections.abc import Iterator

from tuner.engines.checkpoint import Checkpoint
from tuner.engines.preflight.asked import Asked
from tuner.engines.preflight.finding import Finding, error, note, warning
from tuner.engines.preflight.kinds import (
    MLP_SPECULATOR,
    WHOLE_MODEL,
    has_mtp_layers,
    is_speculators,
    kind_of,
    verifier_of,
)
from tuner.engines.preflight.known import (
    VLLM_EAGLE3_HEADS,
    VLLM_EAGLE_HEADS,
    VLLM_READ,
    takes_eagle3,
)
from tuner.engines.preflight.mtp import has_class
from tuner.engines.preflight.sglang_heads import head_refusals
from tuner.spec.speculation import DRAFT_METHODS, LOOKUP_METHODS, METHODS

_WORDS = {
    "eagle3": "an EAGLE-3 head",
    "eagle": "an EAGLE-1 or EAGLE-2 head",
    "medusa": "a set of Medusa heads",
    "dflash": "a DFlash drafter",
    "dspark": "a DSpark drafter",
    "mtp": "a multi-token-prediction module",
    WHOLE_MODEL: "a whole language model",
}
#: Methods whose drafts a whole model can be, by its config alone.
_MAY_BE_WHOLE = frozenset({"draft_model", "eagle3", "eagle", "mtp"})


def fitting_method(method: str, draft: Checkpoint | None) -> str:
    """The method to emit: what the checkpoint is, where that is plain and not what was asked."""
    kind = kind_of(draft) if draft else None
    if kind == WHOLE_MODEL:
        return "draft_model" if method == "medusa" else method
    return kind if kind in METHODS and method in DRAFT_METHODS else method


def target_is_whole(asked: Asked) -> Iterator[Finding]:
    """C21: a head given as the target runs as an ordinary model in one engine, or swaps in its verifier in another."""
    if asked.target is None:
        return
    kind = kind_of(asked.target)
    if kind in DRAFT_METHODS or kind == MLP_SPECULATOR:
        made_for = verifier_of(asked.target.config)
        instead = f"give {made_for} as the target" if made_for else "give the model it was made for as the target"
        yield error(
            "target.is_a_draft",
            f"{asked.target_name} is {_WORDS.get(str(kind), 'a draft')} and not a model to serve: {instead}, and this "
            "as the draft; served alone it would not speculate",
            "https://github.com/vllm-project/vllm/pull/25250",
        )


def method_fits(asked: Asked) -> Iterator[Finding]:
    """The method against what the draft is."""
    if asked.spec.draft and asked.method in LOOKUP_METHODS:
        yield error(
            "method.fits", f"{asked.method} drafts from the text alone: leave {asked.spec.draft} out (--draft none)"
        )
    if asked.draft is None or asked.method in LOOKUP_METHODS:
        return
    if not asked.on_vllm:
        yield from head_refusals(asked.spec, asked.draft)
        return
    kind, method = kind_of(asked.draft), asked.method
    if kind == MLP_SPECULATOR:
        yield mlp_speculator(asked.draft.name, asked.options.tensor_parallel)
    elif kind == WHOLE_MODEL and method == "medusa":
        yield error("method.fits", f"{_said(asked)}, with no Medusa heads: use method draft_model")
    elif kind not in (None, method, WHOLE_MODEL) or (kind == WHOLE_MODEL and method not in _MAY_BE_WHOLE):
        other = "draft_model" if kind == WHOLE_MODEL else kind
        yield error("method.fits", f"{_said(asked)}: {_what_happens(asked, str(kind))}use method {other}", _C01)
    elif kind == WHOLE_MODEL and method == "mtp" and not _drafts_ahead(asked.draft):
        yield error("method.fits", f"{_said(asked)}, without MTP layers: use method draft_model")
    elif kind == WHOLE_MODEL and method in ("eagle", "eagle3") and asked.draft.tensors:
        yield error(
            "method.fits",
            f"{_said(asked)}, and its files hold no fc.weight, which every EAGLE head has: use method draft_model",
        )


def _drafts_ahead(draft: Checkpoint) -> bool:
    return has_mtp_layers(draft.config) or has_class(draft)


_C01 = "https://github.com/sgl-project/sglang/pull/21272"


def _said(asked: Asked) -> str:
    assert asked.draft is not None
    kind = kind_of(asked.draft)
    named = ", ".join(asked.draft.architectures)
    return f"{asked.draft.name} is {_WORDS.get(str(kind), 'a draft')}{f' ({named})' if named else ''}"


def _what_happens(asked: Asked, kind: str) -> str:
    if {kind, asked.method} == {"eagle", "eagle3"}:
        return f"with method {asked.method} its weights do not load as trained, and nothing useful is drafted; "
    return f"method {asked.method} cannot load it; "


def mlp_speculator(draft: str, tensor_parallel: int) -> Finding:
    """C09, last part: what became of a method that only the old engine had."""
    forced = f", and with tensor_parallel {tensor_parallel} forced the draft's own to 1" if tensor_parallel > 1 else ""
    return error(
        "method.gone",
        f"{draft} is an MLP speculator, which vLLM loads no more: the class is commented out since the V1 "
        f"engine, and 0.33 has no such method; only the V0 engine (0.8 and earlier) ran it{forced}; use an EAGLE head, "
        "a draft model or ngram",
        "vllm/model_executor/models/registry.py (0.32)",
    )


def engine_loads(asked: Asked) -> Iterator[Finding]:
    """Whether vLLM's registry has the class it would look for. SGLang's names are checked with the method."""
    draft = asked.draft
    if draft is None or not asked.on_vllm or is_speculators(draft.config) or asked.method not in ("eagle", "eagle3"):
        return
    if kind_of(draft) not in (None, WHOLE_MODEL, asked.method):
        return
    known = VLLM_EAGLE3_HEADS if asked.method == "eagle3" else VLLM_EAGLE_HEADS
    for name in draft.architectures:
        wanted = _vllm_name(name, asked.method)
        if wanted not in known:
            say = error if asked.version == VLLM_READ else warning
            yield say("architecture.known", _unknown_head(asked, name, wanted, known), "vllm registry (0.32)")


def _vllm_name(architecture: str, method: str) -> str:
    """vLLM's own rewriting (transformers_utils/configs/eagle.py, 0.32)."""
    if method == "eagle3":
        keeps = architecture.startswith("Eagle3") or architecture.endswith("Eagle3")
        return architecture if keeps else f"Eagle3{architecture}"
    return architecture if architecture.startswith("Eagle") else f"Eagle{architecture}"


def _unknown_head(asked: Asked, name: str, wanted: str, known: frozenset[str]) -> str:
    plain = name.removesuffix("Eagle").removesuffix("Eagle3")
    rename = f"write {plain} into architectures of its config.json" if _vllm_name(plain, asked.method) in known else ""
    return (
        f"{asked.spec.draft} is a {name}, for which vLLM looks up {wanted}, and 0.32 has no such class: "
        f"{rename or 'it loads ' + ', '.join(sorted(known))}"
    )


def target_is_supported(asked: Asked) -> Iterator[Finding]:
    """EAGLE-3 and DFlash read hidden states out of the target's middle, which each target class must offer."""
    if asked.target is None or asked.method not in ("eagle3", "dflash"):
        return
    for name in asked.target.architectures:
        answer = takes_eagle3(asked.engine, asked.version, name)
        if answer is False:
            yield error(
                "target.taps",
                f"{name} gives no hidden states to {asked.method} drafts in {asked.engine_text}: use ngram"
                f"{', or mtp, whose layers it has' if has_mtp_layers(asked.target.config) else ' or a draft model'}",
                "classes with SupportsEagle3 (vLLM 0.32) or set_eagle3_layers_to_capture (SGLang 0.5.23)",
            )
        elif answer is None:
            yield warning(
                "target.taps",
                f"whether {name} gives hidden states to {asked.method} drafts in {asked.engine_text} is not known to "
                "tuner: if it does not, the engine ends at its start",
            )


def made_for_this_target(asked: Asked) -> Iterator[Finding]:
    """The target a speculators head names, by the last part of its name: folders and mirrors differ before that."""
    made_for = verifier_of(asked.draft.config) if asked.draft else None
    if made_for is None:
        return
    names = {asked.target_name.rstrip("/").rpartition("/")[2].lower()}
    if asked.target:
        names |= {str(asked.target.config.get(key, "")).rpartition("/")[2].lower() for key in ("_name_or_path",)}
    if made_for.rpartition("/")[2].lower() not in names:
        yield note(
            "draft.made_for",
            f"{asked.spec.draft} was made for {made_for}; the target is {asked.target_name}: with another model, or "
            "another quantisation of it, acceptance is not what its card says",
        )
