"""What every model of hand-written YAML shares: strictness, the plain types, and how a rule between keys is said."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

Scalar = str | int | float | bool
Text = Annotated[str, Field(min_length=1)]
PositiveInt = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0)]

UNIQUE: JsonDict = {"uniqueItems": True}


class Misfit(ValueError):
    """A key whose value does not go with another key's; `key` is the one to look at."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


class Strict(BaseModel):
    """Base of everything typed by hand: an unknown key is an error, nothing is converted, a value never changes."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def no_repeats(values: Sequence[Any]) -> Sequence[Any]:
    for i, value in enumerate(values):
        if value in values[:i]:
            raise ValueError(f"{value} stands there twice: remove one")
    return values


def rule_when(key: str, values: Sequence[str], then: JsonDict) -> JsonDict:
    """A rule between keys, as JSON Schema says it; a validator beside it says it in words."""
    return {"if": {"properties": {key: {"enum": [*values]}}, "required": [key]}, "then": then}
