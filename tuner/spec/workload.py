"""`workload.yaml`: what people type. Strict and frozen; every field has a unit in its name or a line that gives it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field, field_validator, model_validator

from tuner.spec.draft import Draft, TreeAxes
from tuner.spec.strict import UNIQUE, Misfit, PositiveFloat, PositiveInt, Strict, Text, no_repeats, rule_when
from tuner.spec.traffic import PromptShare, Sampling, Traffic

__all__ = [
    "Budget", "Draft", "EngineExtras", "EngineOptions", "Measure", "PromptShare", "Sampling", "Slo", "Traffic",
    "TreeAxes", "Workload",
]  # fmt: skip

#: A variable whose name ends so is a secret, and a workload is stored with every study and report.
SECRET_WORDS = ("TOKEN", "KEY", "SECRET", "PASSWORD", "CREDENTIALS")


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


def _no_secrets(env: dict[str, str]) -> dict[str, str]:
    for name in env:
        if name.upper().split("_")[-1] in SECRET_WORDS:
            raise ValueError(
                f"{name} looks like a secret, and a workload is stored with its reports: export it in the shell, "
                "from which the engine inherits it"
            )
    return env


EngineEnv = Annotated[dict[str, str], AfterValidator(_no_secrets)]


class EngineExtras(Strict):
    """What one engine gets besides: engines have no flags in common."""

    args: list[str] = Field([], description="Arguments for this engine alone.")
    env: EngineEnv = Field({}, description="Environment variables for this engine alone.")


class EngineOptions(Strict):
    """Passed to the engine untouched, the same in every arm."""

    args: list[str] = Field([], description="Further arguments, one list item each: [--dtype, bfloat16].")
    env: EngineEnv = Field(
        {}, description="Environment variables. Secrets do not belong here: the engine inherits your shell's."
    )
    by_engine: dict[str, EngineExtras] = Field(
        {}, description="Arguments and variables for one of several engines, by the name it has under `engine`."
    )
    max_running_requests: PositiveInt | None = Field(
        None, description="Requests the engine may run at once. Default: the largest concurrency, or 64 with rates."
    )
    max_model_len: PositiveInt | None = Field(None, description="Tokens of prompt and answer together.")
    tensor_parallel: PositiveInt = Field(1, description="GPUs that share the target's weights.")
    prefix_caching: bool = Field(False, description="Off while measuring, so that repeated prompts stay comparable.")
    port: Annotated[int, Field(ge=1, le=65535)] | None = Field(None, description="Default: a free one on loopback.")
    ready_timeout_s: PositiveFloat = Field(900.0, description="Seconds the engine may take until it serves.")


class Workload(Strict):
    """One question: this model, this traffic, these objectives; which setting, if any."""

    model_config = ConfigDict(
        json_schema_extra=rule_when(
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
        "auto",
        description="The ways to draft that are tried against `off`; auto tries text lookup, the target's own MTP "
        "layers and what profiles/drafts.yaml lists for the target.",
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
        if self.objective == "throughput" and self.traffic.rates:
            raise Misfit(
                "objective",
                "throughput at traffic.rates is the rate that is sent, whatever the setting: choose tpot_p50 or "
                "goodput, or give traffic.concurrency alone",
            )
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
