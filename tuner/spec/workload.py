"""`workload.yaml`: what people type. Strict and frozen; every field has a unit in its name or a line that gives it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Scalar = str | int | float | bool
PositiveInt = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0)]


class Strict(BaseModel):
    """Base of everything typed by hand: an unknown key is an error, a value never changes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class TreeAxes(Strict):
    """Draft trees to try (SGLang): every combination that is possible is a candidate."""

    depth: list[PositiveInt] = Field(min_length=1)
    topk: list[PositiveInt] = Field(min_length=1)
    nodes: list[PositiveInt] = Field(min_length=1, description="verified nodes, the root included")


class Draft(Strict):
    """One way to draft, with the N (tokens per verify step) or trees worth trying."""

    method: Literal["ngram", "suffix", "draft_model", "eagle", "eagle3", "medusa", "mtp", "dflash", "dspark"]
    model: str | None = Field(None, description="draft weights: a folder (relative to this file) or a hub id")
    n: PositiveInt | list[PositiveInt] | None = Field(None, description="candidates for N; default by method")
    tree: TreeAxes | None = None
    options: dict[str, Scalar] = Field({}, description="keys of the engine's own speculative config")


class PromptShare(Strict):
    """A prompt set and its share of the traffic."""

    set: str = Field(description="name of a vendored set, or a path to JSON lines (relative to this file)")
    share: PositiveFloat = 1.0


class Traffic(Strict):
    """How requests arrive and what they ask."""

    concurrency: list[PositiveInt] = Field([], description="closed loop: requests kept in flight")
    rates: list[PositiveFloat] = Field([], description="open loop: Poisson arrivals, requests per second")
    prompts: list[PromptShare] = Field([PromptShare(set="chat")], min_length=1)
    max_output_tokens: PositiveInt = 256
    endpoint: Literal["chat", "completions"] = "chat"
    chat_template_kwargs: dict[str, Scalar] = {}

    @model_validator(mode="after")
    def _some_load(self) -> Traffic:
        if not self.concurrency and not self.rates:
            raise ValueError("give concurrency (requests in flight) or rates (requests per second), or both")
        return self


class Sampling(Strict):
    """Sampling sent with every request; each temperature is measured on its own."""

    temperatures: list[Annotated[float, Field(ge=0, le=2)]] = Field([0.0], min_length=1)
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: int | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    stop: list[str] | None = None
    ignore_eos: bool = False

    def body(self, temperature: float) -> dict[str, object]:
        """The request fields for one temperature; fields not set are left to the engine."""
        fields = self.model_dump(exclude={"temperatures", "ignore_eos"}, exclude_none=True)
        fields["temperature"] = temperature
        if self.ignore_eos:
            fields["ignore_eos"] = True
        return fields


class Slo(Strict):
    """Service-level objectives. A request is good when it meets all; a setting is feasible when its percentiles do."""

    ttft_p50_ms: PositiveFloat | None = None
    ttft_p95_ms: PositiveFloat | None = None
    ttft_p99_ms: PositiveFloat | None = None
    tpot_p50_ms: PositiveFloat | None = None
    tpot_p95_ms: PositiveFloat | None = None
    tpot_p99_ms: PositiveFloat | None = None
    chunk_gap_p50_ms: PositiveFloat | None = None
    chunk_gap_p95_ms: PositiveFloat | None = None
    e2e_p50_ms: PositiveFloat | None = None
    e2e_p95_ms: PositiveFloat | None = None
    e2e_p99_ms: PositiveFloat | None = None

    def limits(self) -> dict[str, float]:
        """The objectives that were set, milliseconds."""
        return {name: float(value) for name, value in self.model_dump(exclude_none=True).items()}


class Budget(Strict):
    """What a study may cost; it stops at whichever comes first and reports what it has."""

    launches: PositiveInt = 8
    minutes: PositiveFloat = 60.0


class Measure(Strict):
    """How much is measured in each cell (one load level at one temperature)."""

    requests: PositiveInt = Field(32, description="measured requests per cell, at least")
    waves: PositiveInt = Field(3, description="and at least this many times the concurrency")
    warmup_requests: PositiveInt | None = Field(None, description="default: max(concurrency, 8)")
    request_timeout_s: PositiveFloat = 300.0


class EngineOptions(Strict):
    """Passed to the engine untouched, the same in every arm."""

    args: list[str] = []
    env: dict[str, str] = {}
    max_running_requests: PositiveInt | None = Field(None, description="default: the largest concurrency, or 64")
    max_model_len: PositiveInt | None = None
    tensor_parallel: PositiveInt = 1
    prefix_caching: bool = Field(False, description="off while measuring, so that repeated prompts stay comparable")
    port: Annotated[int, Field(ge=1, le=65535)] | None = Field(None, description="default: a free one")
    ready_timeout_s: PositiveFloat = 900.0


class Workload(Strict):
    """One question: this model, this traffic, these objectives; which setting, if any."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")
    description: str = ""
    model: str = Field(description="a name from `tuner model list`, a folder, or a hub id")
    engine: str | list[str] = Field(description="a name from `tuner engine list`, or several to compare")
    drafts: list[Draft] | Literal["auto"] = "auto"
    traffic: Traffic
    sampling: Sampling = Sampling()
    slo: Slo = Slo()
    objective: Literal["tpot_p50", "throughput", "goodput"] = "tpot_p50"
    budget: Budget = Budget()
    measure: Measure = Measure()
    engine_options: EngineOptions = EngineOptions()
    seed: int = 0

    @model_validator(mode="after")
    def _goodput_needs_slo(self) -> Workload:
        if self.objective == "goodput" and not self.slo.limits():
            raise ValueError("objective goodput counts requests that meet the slo: give at least one slo")
        return self

    @property
    def engines(self) -> tuple[str, ...]:
        return (self.engine,) if isinstance(self.engine, str) else tuple(self.engine)

    @property
    def running_limit(self) -> int:
        """Requests the engine may run at once, the same in every arm."""
        explicit = self.engine_options.max_running_requests
        return explicit or max([*self.traffic.concurrency, 64 if self.traffic.rates else 1])
