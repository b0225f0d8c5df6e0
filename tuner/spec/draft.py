"""The `drafts` of a workload: what is tried against `off`."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import ConfigDict, Field, field_validator, model_validator
from pydantic.config import JsonDict

from tuner.spec.speculation import AUTOREGRESSIVE_METHODS, DRAFT_METHODS, LOOKUP_METHODS
from tuner.spec.strict import UNIQUE, Misfit, PositiveInt, Scalar, Strict, Text, no_repeats, rule_when

Method = Literal["ngram", "suffix", "draft_model", "eagle", "eagle3", "medusa", "mtp", "dflash", "dspark"]

#: Keys of an engine's speculative config that have a key of their own here.
OWN_OPTIONS = {"method": "method", "model": "model", "num_speculative_tokens": "n"}


class TreeAxes(Strict):
    """Draft trees to try (SGLang): every combination of the three that a tree can have is a candidate."""

    depth: list[PositiveInt] = Field(
        min_length=1, json_schema_extra=UNIQUE, description="Levels of drafted tokens; SGLang: num-steps."
    )
    topk: list[PositiveInt] = Field(
        min_length=1, json_schema_extra=UNIQUE, description="Branches of a node; SGLang: eagle-topk. 1 is a chain."
    )
    nodes: list[Annotated[int, Field(ge=2)]] = Field(
        min_length=1,
        json_schema_extra=UNIQUE,
        description="Nodes verified per step, the root included; SGLang: num-draft-tokens.",
    )

    _unique = field_validator("depth", "topk", "nodes")(no_repeats)


_CHAINS_ONLY = sorted(set(get_args(Method)) - AUTOREGRESSIVE_METHODS)
_DRAFT_RULES: JsonDict = {
    "allOf": [
        rule_when(
            "method", sorted(DRAFT_METHODS), {"required": ["model"], "properties": {"model": {"type": "string"}}}
        ),
        rule_when("method", sorted(LOOKUP_METHODS), {"properties": {"model": {"type": "null"}}}),
        rule_when("method", _CHAINS_ONLY, {"properties": {"tree": {"type": "null"}}}),
    ]
}


class Draft(Strict):
    """One way to draft, with the N (tokens drafted per verify step) or the trees worth trying."""

    model_config = ConfigDict(json_schema_extra=_DRAFT_RULES)

    method: Method = Field(description="How tokens are drafted. `off` is always measured and is not listed.")
    model: Text | None = Field(
        None,
        description="The draft's weights: a folder (./ is the folder of this file), a registered name or a hub id. "
        "None for ngram and suffix; mtp reads the target's own unless a model is given.",
    )
    n: PositiveInt | Annotated[list[PositiveInt], Field(min_length=1)] | None = Field(
        None, description="Candidates for N, one or a list. Default: what is usual for the method."
    )
    tree: TreeAxes | None = Field(None, description="Draft trees to try, beside the chains of `n` (SGLang).")
    options: dict[str, Scalar] = Field(
        {}, description="More keys of the engine's own speculative config, e.g. draft_tensor_parallel_size."
    )

    @field_validator("method", mode="before")
    @classmethod
    def _off_is_not_a_draft(cls, value: object) -> object:
        if value == "off":
            raise ValueError("off is always measured, first and last: remove this draft")
        return value

    @field_validator("options")
    @classmethod
    def _no_own_keys(cls, options: dict[str, Scalar]) -> dict[str, Scalar]:
        for key in options.keys() & OWN_OPTIONS:
            raise ValueError(f"{key} is set by the draft's own key {OWN_OPTIONS[key]}: move it there")
        return options

    @model_validator(mode="after")
    def _fits_its_method(self) -> Draft:
        if self.method in DRAFT_METHODS and self.model is None:
            raise Misfit("model", f"method {self.method} needs it: give the folder or hub id of its weights")
        if self.method in LOOKUP_METHODS and self.model is not None:
            raise Misfit("model", f"method {self.method} drafts from the text alone: remove model")
        if self.tree and self.method not in AUTOREGRESSIVE_METHODS:
            allowed = ", ".join(sorted(AUTOREGRESSIVE_METHODS))
            raise Misfit("tree", f"method {self.method} drafts no tree ({allowed} do): remove tree and give n")
        return self
