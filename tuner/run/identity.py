"""What a study's names stood for when it began: versions, files and texts may change under one name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import astuple

from tuner.errors import UserError
from tuner.run.question import Question
from tuner.run.sweep_fingerprint import DIGITS, fingerprint

#: The field of the journal's `resolved` event that holds it.
IDENTITY = "identity"
PROMPTS = "the prompts' texts"


def identity_of(question: Question) -> dict[str, str]:
    """By what people call it: each engine's version, the digits of each model's files and of all prompts' texts."""
    drafts = dict.fromkeys(arm.draft for arm in question.arms if arm.draft)
    models = [(question.target, False), *((draft, True) for draft in drafts)]
    return {
        **{f"engine {one.name}": one.version for one in question.environments},
        **{f"model {name}": digits for name, whole in models if (digits := fingerprint(name, whole=whole))},
        PROMPTS: prompts_digest(question),
    }


def prompts_digest(question: Question) -> str:
    told = json.dumps([astuple(prompt) for prompt in question.prompts], ensure_ascii=True)
    return hashlib.sha256(told.encode()).hexdigest()[:DIGITS]


def refuse_changed(study: str, began: Mapping[str, str], now: Mapping[str, str]) -> None:
    """UserError where a name stands for something else than when the study began."""
    for name, was in began.items():
        if name in now and now[name] != was:
            raise UserError(
                f"{name} was {was} when {study} was begun and is {now[name]} now, and figures of two are not mixed: "
                "bring the first back, or run without --resume"
            )
