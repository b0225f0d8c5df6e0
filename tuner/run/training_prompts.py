"""The prompts a draft learns from, and those that are kept out: told apart by hash, written down once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.errors import UserError
from tuner.prompts import Prompt, load_set
from tuner.prompts.written import written_questions

#: So many words in a row that a held-out prompt has too make a prompt a copy of it.
PHRASE_WORDS = 8
#: The name under which questions by template are asked for among prompt sets.
WRITTEN = "written"


@dataclass(frozen=True, slots=True)
class Source:
    """A set or file as it was named; `sha256`: over the hashes of its prompts, in order."""

    name: str
    prompts: int
    sha256: str


@dataclass(frozen=True, slots=True)
class TrainingPrompts:
    """`dropped`: prompts that were named for training and are held out, or are in it twice."""

    training: tuple[Prompt, ...]
    held_out: tuple[Prompt, ...]
    sources: tuple[Source, ...]
    held_sources: tuple[Source, ...]
    dropped: int

    @property
    def held_hashes(self) -> tuple[str, ...]:
        return tuple(sorted(prompt_hash(prompt) for prompt in self.held_out))


def prompt_hash(prompt: Prompt) -> str:
    """SHA-256 of roles and texts; runs of white space count as one space, and upper and lower case are one."""
    plain = [[role, " ".join(text.split()).lower()] for role, text in prompt.messages]
    return hashlib.sha256(json.dumps(plain, ensure_ascii=False).encode()).hexdigest()


def training_prompts(names: Sequence[str], held: Sequence[str], written: int, seed: int) -> TrainingPrompts:
    """Read every set. What is held out is in no training set, whatever was asked for, nor is what shares eight words in
    a row with it; UserError if nothing is left."""
    held_sets = {name: load_set(name) for name in held}
    kept_out = {prompt_hash(prompt): prompt for prompts in held_sets.values() for prompt in prompts}
    if not kept_out:
        raise UserError("no prompts are held out, so nothing would tell how good the draft is: give --held-out")
    sets = {name: written_questions(written, seed) if name == WRITTEN else load_set(name) for name in names}
    taken: dict[str, Prompt] = {}
    phrases = {phrase for prompt in kept_out.values() for phrase in _phrases(prompt)}
    for prompts in sets.values():
        for prompt in prompts:
            if (digest := prompt_hash(prompt)) not in kept_out and phrases.isdisjoint(_phrases(prompt)):
                taken.setdefault(digest, prompt)
    named = sum(map(len, sets.values()))
    if named and not taken:
        raise UserError("every prompt that was named for training is held out: name other sets with --prompts")
    return TrainingPrompts(
        tuple(taken.values()), tuple(kept_out.values()), _sources(sets), _sources(held_sets), named - len(taken)
    )


def _phrases(prompt: Prompt) -> set[tuple[str, ...]]:
    words = " ".join(text for role, text in prompt.messages if role == "user").lower().split()
    return {tuple(words[i : i + PHRASE_WORDS]) for i in range(len(words) - PHRASE_WORDS + 1)}


def _sources(sets: dict[str, tuple[Prompt, ...]]) -> tuple[Source, ...]:
    def digest(prompts: Iterable[Prompt]) -> str:
        return hashlib.sha256("".join(map(prompt_hash, prompts)).encode()).hexdigest()

    return tuple(Source(Path(name).name, len(prompts), digest(prompts)) for name, prompts in sets.items())


def prompt_lines(prompts: TrainingPrompts) -> str:
    """One JSON object a line, as the trainer in the engine's environment reads them."""
    rows = [_row(prompt, held=True) for prompt in prompts.held_out]
    rows += [_row(prompt, held=False) for prompt in prompts.training]
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _row(prompt: Prompt, held: bool) -> dict[str, Any]:
    return {
        "id": prompt.id,
        "set": prompt.id.partition("/")[0],
        "held": held,
        "hash": prompt_hash(prompt),
        "messages": [list(message) for message in prompt.messages],
    }
