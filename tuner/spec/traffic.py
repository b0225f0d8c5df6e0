"""The `traffic` and `sampling` of a workload: how requests arrive, what they ask and how answers are drawn."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator
from pydantic.config import JsonDict

from tuner.spec.strict import UNIQUE, Misfit, PositiveFloat, PositiveInt, Scalar, Strict, Text, no_repeats, rule_when


class PromptShare(Strict):
    """A prompt set and its share of the traffic."""

    set: Text = Field(description="A set that comes with tuner, or a file of JSON lines (relative to this file).")
    share: PositiveFloat = Field(1.0, description="Relative: 3 and 1 mean three of four requests.")


_SOME_LOAD: JsonDict = {
    "anyOf": [
        {"required": [key], "properties": {key: {"type": "array", "minItems": 1}}} for key in ("concurrency", "rates")
    ],
    **rule_when("endpoint", ["completions"], {"properties": {"chat_template_kwargs": {"maxProperties": 0}}}),
}


class Traffic(Strict):
    """How requests arrive and what they ask."""

    model_config = ConfigDict(json_schema_extra=_SOME_LOAD)

    concurrency: list[PositiveInt] = Field(
        [], json_schema_extra=UNIQUE, description="Closed loop: requests kept in flight; every level is measured."
    )
    rates: list[PositiveFloat] = Field(
        [], json_schema_extra=UNIQUE, description="Open loop: Poisson arrivals in requests per second, each measured."
    )
    load_shares: list[PositiveFloat] | None = Field(
        None,
        description="Share of the traffic at each level, relative: first those of concurrency, then those of rates, in "
        "their order. The one setting for all traffic is chosen by them. Default: all alike.",
    )
    prompts: list[PromptShare] = Field(
        [PromptShare(set="chat")], min_length=1, description="What is asked. Your own traffic gives the truest answer."
    )
    max_output_tokens: PositiveInt = Field(
        256, description="Cap on the answer's tokens; a prompt's own lower cap is kept."
    )
    endpoint: Literal["chat", "completions"] = Field(
        "chat",
        description="chat applies the model's chat template; completions sends bare text, which is for base models.",
    )
    chat_template_kwargs: dict[str, Scalar] = Field(
        {}, description="Arguments of the chat template, e.g. enable_thinking: another mode is another workload."
    )

    _unique = field_validator("concurrency", "rates")(no_repeats)

    @field_validator("prompts")
    @classmethod
    def _each_set_once(cls, prompts: list[PromptShare]) -> list[PromptShare]:
        no_repeats([item.set for item in prompts])
        return prompts

    @model_validator(mode="after")
    def _some_load(self) -> Traffic:
        if not self.concurrency and not self.rates:
            raise ValueError("give concurrency (requests in flight) or rates (requests per second), or both")
        if self.endpoint == "completions" and self.chat_template_kwargs:
            raise Misfit(
                "chat_template_kwargs", "endpoint completions applies no chat template: remove them, or use chat"
            )
        levels = len(self.concurrency) + len(self.rates)
        if self.load_shares is not None and len(self.load_shares) != levels:
            raise Misfit("load_shares", f"{len(self.load_shares)} shares for {levels} levels: give one for each level")
        return self


class Sampling(Strict):
    """Sampling sent with every request; fields not given are left to the engine."""

    temperatures: list[Annotated[float, Field(ge=0, le=2)]] = Field(
        [0.0],
        min_length=1,
        json_schema_extra=UNIQUE,
        description="Each is measured and judged on its own: acceptance falls as temperature rises.",
    )
    temperature_shares: list[PositiveFloat] | None = Field(
        None, description="Share of the traffic at each temperature, relative, in their order. Default: all alike."
    )
    top_p: Annotated[float, Field(gt=0, le=1)] | None = Field(None, description="Nucleus sampling.")
    top_k: Annotated[int, Field(ge=-1)] | None = Field(None, description="Keep the k likeliest tokens; -1 keeps all.")
    min_p: Annotated[float, Field(ge=0, le=1)] | None = Field(
        None, description="Keep tokens at least this likely, relative to the likeliest."
    )
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: PositiveFloat | None = Field(None, description="1 is none.")
    stop: list[Text] | None = Field(None, description="Texts that end an answer.")
    ignore_eos: bool = Field(
        False,
        description="Forces every answer to max_output_tokens. Acceptance past the true end is not your traffic's.",
    )

    _unique = field_validator("temperatures")(no_repeats)

    @model_validator(mode="after")
    def _a_share_each(self) -> Sampling:
        shares = self.temperature_shares
        if shares is not None and len(shares) != len(self.temperatures):
            raise Misfit(
                "temperature_shares",
                f"{len(shares)} shares for {len(self.temperatures)} temperatures: give one for each temperature",
            )
        return self

    def body(self, temperature: float) -> dict[str, object]:
        """The request fields for one temperature; fields not set are left to the engine."""
        fields = self.model_dump(exclude={"temperatures", "temperature_shares", "ignore_eos"}, exclude_none=True)
        fields["temperature"] = temperature
        if self.ignore_eos:
            fields["ignore_eos"] = True
        return fields
