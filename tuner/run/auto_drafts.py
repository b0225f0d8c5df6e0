"""What `drafts: auto` tries: text lookup, the target's own MTP layers, and what the catalogue knows for the target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tuner.engines.checkpoint import find_folder, read_checkpoint
from tuner.engines.environments import Environment
from tuner.engines.preflight.kinds import has_mtp_layers
from tuner.spec.candidates import Removed
from tuner.spec.catalogue import KnownDraft, known_drafts
from tuner.spec.draft import Draft

#: Each set of weights costs a launch at the least; a study that wants more names them.
MOST_WEIGHTS = 2
SUFFIX_PACKAGE = "arctic_inference"


@dataclass(frozen=True, slots=True)
class AutoDrafts:
    """`drafts` with models that can be launched; `removed`: what was thought of, and why it is not tried."""

    drafts: tuple[Draft, ...]
    removed: tuple[Removed, ...]


def auto_drafts(target: str, environments: Sequence[Environment]) -> AutoDrafts:
    """Drafts for a target by its resolved folder or hub id, that every one of the engines can run."""
    engines = {environment.engine for environment in environments}
    known = known_drafts(names_of(target))
    lookups = ["ngram"]
    if engines == {"vllm"} and all(has_suffix(environment) for environment in environments):
        lookups.append("suffix")
    drafts = [Draft(method="suffix" if method == "suffix" else "ngram") for method in lookups]
    if _has_mtp(target, known, engines):
        drafts.append(Draft(method="mtp"))
        lookups.append("mtp")
    removed = []
    for draft in known:
        if draft.model is None:
            continue
        reason = _reason_against(draft, engines, target, [d.method for d in drafts if d.model])
        if reason is None:
            drafts.append(Draft(method=draft.method, model=draft.place))
        else:
            removed.append(Removed(f"{draft.method} {draft.model}", reason))
    if not any(draft.model for draft in known):
        reason = (
            f"the catalogue of drafts knows none for {target}; tried instead: {', '.join(lookups)}, which need none of "
            "their own; name a head in drafts if you have one"
        )
        removed.append(Removed("a draft with weights", reason))
    return AutoDrafts(tuple(drafts), tuple(removed))


def names_of(target: str) -> tuple[str, ...]:
    """What a target may be called: its path or hub id, the name it was saved under, the hub id in its config."""
    return tuple(_names(target))


def _names(target: str) -> Iterator[str]:
    yield target
    checkpoint = read_checkpoint(target)
    if checkpoint is not None:
        yield str(checkpoint.config.get("_name_or_path") or "")


def has_suffix(environment: Environment) -> bool:
    """Whether an environment holds the package that vLLM's suffix decoding is in."""
    if environment.python is None:
        return False
    packages = Path(environment.python).parents[1].glob(f"lib/python3*/site-packages/{SUFFIX_PACKAGE}")
    return any(path.is_dir() for path in packages)


def _has_mtp(target: str, known: Sequence[KnownDraft], engines: set[str]) -> bool:
    """By the target's own config where it is on this machine, else by the catalogue."""
    checkpoint = read_checkpoint(target)
    if checkpoint is not None:
        return has_mtp_layers(checkpoint.config)
    return any(d.method == "mtp" and d.model is None and engines <= set(d.engines) for d in known)


def _reason_against(draft: KnownDraft, engines: set[str], target: str, taken: Sequence[str]) -> str | None:
    strangers = engines - set(draft.engines)
    if strangers:
        return f"{min(strangers)} is not known to load its format ({draft.format})"
    if draft.method in taken:
        return f"auto tries one draft for {draft.method}: name it in drafts to try it"
    if len(taken) >= MOST_WEIGHTS:
        return f"auto tries {MOST_WEIGHTS} drafts with weights: name it in drafts to try it"
    here = draft.place is not None and find_folder(draft.place) is not None
    if not here and Path(target).is_dir():
        return (
            "it is not on this machine, and neither is the target taken from the hub: download it, or name it in drafts"
        )
    return None
