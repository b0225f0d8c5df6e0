"""`workload.yaml`: what people type. Strict and frozen; every field has a unit in its name or a line that gives it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic.config import JsonDict

from tuner.spec.speculation import AUTOREGRESSIVE_METHODS, DRAFT_METHODS, LOOKUP_METHODS

Scalar = str | int | float | bool
Text = Annotated[str, Field(min_length=1)]
PositiveInt = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
Method = Literal["ngram", "suffix", "draft_model", "eagle", "eagle3", "medusa", "mtp", "dflash", "dspark"]

UNIQUE: JsonDict = {"uniqueItems": True}
#: Keys of an engine's speculative config that have a key of their own here.
OWN_OPTIONS = {"method": "method", "model": "model", "num_speculative_tokens": "n"}
#: A variable whose name ends so is a secret, and a workload is stored with every study and report.
SECRET_WORDS = ("TOKEN", "KEY", "SECRET", "PASSWORD", "CREDENTIALS")


class Misfit(ValueError):
    """A key whose value does not go with another key's; `key` is the one to look at."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


class Strict(BaseModel):
    """Base of everything typed by hand: an unknown key is an error, nothing is converted, a value never changes."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def no_repeats(values: Sequence[Any] | None) -> Sequence[Any] | None:
    for i, value in enumerate(values or ()):
        if value in (values or ())[:i]:
            raise ValueError(f"{value} stands there twice: remove one")
    return values


def _when(key: str, values: Sequence[str], then: JsonDict) -> JsonDict:
    """A rule between keys, as JSON Schema says it; a validator beside it says it in words."""
    return {"if": {"properties": {key: {"enum": [*values]}}, "required": [key]}, "then": then}


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
        _when("method", sorted(DRAFT_METHODS), {"required": ["model"], "properties": {"model": {"type": "string"}}}),
        _when("method", sorted(LOOKUP_METHODS), {"properties": {"model": {"type": "null"}}}),
        _when("method", _CHAINS_ONLY, {"properties": {"tree": {"type": "null"}}}),
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


class PromptShare(Strict):
    """A prompt set and its share of the traffic."""

    set: Text = Field(description="A set that comes with tuner, or a file of JSON lines (relative to this file).")
    share: PositiveFloat = Field(1.0, description="Relative: 3 and 1 mean three of four requests.")


_SOME_LOAD: JsonDict = {
    "anyOf": [
        {"required": [key], "properties": {key: {"type": "array", "minItems": 1}}} for key in ("concurrency", "rates")
    ],
    **_when("endpoint", ["completions"], {"properties": {"chat_template_kwargs": {"maxProperties": 0}}}),
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
        return self


class Sampling(Strict):
    """Sampling sent with every request; fields not given are left to the engine."""

    temperatures: list[Annotated[float, Field(ge=0, le=2)]] = Field(
        [0.0],
        min_length=1,
        json_schema_extra=UNIQUE,
        description="Each is measured and judged on its own: acceptance falls as temperature rises.",
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

    def body(self, temperature: float) -> dict[str, object]:
        """The request fields for one temperature; fields not set are left to the engine."""
        fields = self.model_dump(exclude={"temperatures", "ignore_eos"}, exclude_none=True)
        fields["temperature"] = temperature
        if self.ignore_eos:
            fields["ignore_eos"] = True
        return fields


class Slo(Strict):
    """Service-level objectives. A request is good when it meets all; a setting is feasible when its percentiles do."""

    ttft_p50_ms: PositiveFloat | None = Field(None, description="Time to the first token, median, milliseconds.")
    ttft_p95_ms: PositiveFloat | None = None
    ttft_p99_ms: PositiveFloat | None = None
    tpot_p50_ms: PositiveFloat | None = Field(
        None, description="Time per output token after the first, median over requests, milliseconds."
    )
    tpot_p95_ms: PositiveFloat | None = None
    tpot_p99_ms: PositiveFloat | None = None
    chunk_gap_p50_ms: PositiveFloat | None = Field(
        None, description="Pause between pieces of the stream, median, milliseconds; a piece may hold several tokens."
    )
    chunk_gap_p95_ms: PositiveFloat | None = None
    e2e_p50_ms: PositiveFloat | None = Field(None, description="Whole answer, median, milliseconds.")
    e2e_p95_ms: PositiveFloat | None = None
    e2e_p99_ms: PositiveFloat | None = None

    def limits(self) -> dict[str, float]:
        """The objectives that were set, milliseconds."""
        return {name: float(value) for name, value in self.model_dump(exclude_none=True).items()}


class Budget(Strict):
    """What a study may cost; it stops at whichever comes first and reports what it has."""

    launches: PositiveInt = Field(8, description="Starts of the engine, those of `off` included.")
    minutes: PositiveFloat = Field(60.0, description="Wall-clock minutes, engine starts included.")


class Measure(Strict):
    """How much is measured in each cell (one load level at one temperature)."""

    requests: PositiveInt = Field(32, description="Measured requests per cell, at least.")
    waves: PositiveInt = Field(3, description="And at least this many times the concurrency.")
    warmup_requests: PositiveInt | None = Field(
        None, description="Requests sent before, and not counted; at least the concurrency. Default: 8."
    )
    request_timeout_s: PositiveFloat = Field(300.0, description="Seconds after which a request counts as failed.")


class EngineOptions(Strict):
    """Passed to the engine untouched, the same in every arm."""

    args: list[str] = Field([], description="Further arguments, one list item each: [--dtype, bfloat16].")
    env: dict[str, str] = Field(
        {}, description="Environment variables. Secrets do not belong here: the engine inherits your shell's."
    )
    max_running_requests: PositiveInt | None = Field(
        None, description="Requests the engine may run at once. Default: the largest concurrency, or 64 with rates."
    )
    max_model_len: PositiveInt | None = Field(None, description="Tokens of prompt and answer together.")
    tensor_parallel: PositiveInt = Field(1, description="GPUs that share the target's weights.")
    prefix_caching: bool = Field(False, description="Off while measuring, so that repeated prompts stay comparable.")
    port: Annotated[int, Field(ge=1, le=65535)] | None = Field(None, description="Default: a free one on loopback.")
    ready_timeout_s: PositiveFloat = Field(900.0, description="Seconds the engine may take until it serves.")

    @field_validator("env")
    @classmethod
    def _no_secrets(cls, env: dict[str, str]) -> dict[str, str]:
        for name in env:
            if name.upper().split("_")[-1] in SECRET_WORDS:
                raise ValueError(
                    f"{name} looks like a secret, and a workload is stored with its reports: export it in the shell, "
                    "from which the engine inherits it"
                )
        return env


class Workload(Strict):
    """One question: this model, this traffic, these objectives; which setting, if any."""

    model_config = ConfigDict(
        json_schema_extra=_when(
            "objective", ["goodput"], {"required": ["slo"], "properties": {"slo": {"minProperties": 1}}}
        )
    )

    name: str = Field(
        pattern=r"^[a-z0-9][a-z0-9._-]*$",
        max_length=64,
        description="lower-case letters, digits, '.', '_' and '-', at most 64; it names the study's folder",
    )
    description: str = Field("", description="One sentence for the report.")
    model: Text = Field(description="The target: a name from `tuner model list`, a folder, or a hub id.")
    engine: Text | Annotated[list[Text], Field(min_length=1, json_schema_extra=UNIQUE)] = Field(
        description="A name from `tuner engine list`, or a list of them to compare."
    )
    drafts: Annotated[list[Draft], Field(min_length=1)] | Literal["auto"] = Field(
        "auto", description="The ways to draft that are tried against `off`; auto tries what needs no weights."
    )
    traffic: Traffic
    sampling: Sampling = Sampling()
    slo: Slo = Slo()
    objective: Literal["tpot_p50", "throughput", "goodput"] = Field(
        "tpot_p50",
        description="What is made best: median time per output token, output tokens per second, or requests per "
        "second that meet the slo.",
    )
    budget: Budget = Budget()
    measure: Measure = Measure()
    engine_options: EngineOptions = EngineOptions()
    seed: int = Field(0, description="Of the prompt order, the arrivals, the engine and the sampling of requests.")

    @field_validator("engine")
    @classmethod
    def _each_engine_once(cls, engine: str | list[str]) -> str | list[str]:
        if isinstance(engine, list):
            no_repeats(engine)
        return engine

    @model_validator(mode="after")
    def _goodput_needs_slo(self) -> Workload:
        if self.objective == "goodput" and not self.slo.limits():
            raise Misfit("objective", "goodput counts requests that meet the slo: give at least one slo")
        most = self.engine_options.max_model_len
        if most is not None and most <= self.traffic.max_output_tokens:
            raise Misfit(
                "engine_options",
                f"max_model_len {most} leaves no room for a prompt beside traffic.max_output_tokens "
                f"{self.traffic.max_output_tokens}: raise the one or lower the other",
            )
        return self

    @property
    def engines(self) -> tuple[str, ...]:
        return (self.engine,) if isinstance(self.engine, str) else tuple(self.engine)

    @property
    def running_limit(self) -> int:
        """Requests the engine may run at once, the same in every arm."""
        explicit = self.engine_options.max_running_requests
        return explicit or max([*self.traffic.concurrency, 64 if self.traffic.rates else 1])
