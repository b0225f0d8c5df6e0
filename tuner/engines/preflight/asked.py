"""What preflight judges: target, draft, speculative configuration, engine by version, and what requests will ask."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tuner.engines.base import LaunchOptions
from tuner.engines.checkpoint import Checkpoint
from tuner.engines.preflight.shape import Shape, shape_of
from tuner.spec.speculation import Scalar, SpecConfig

Version = tuple[int, ...]
#: Versions from which vLLM's second model runner takes a method by itself; the others from 0.29 on.
SECOND_RUNNER: Mapping[str, Version] = {"draft_model": (0, 31), "ngram": (0, 32)}


@dataclass(frozen=True, slots=True)
class Demand:
    """What requests will ask. `prompt_tokens`: 95th percentile; `estimated`: from the text's length, not counted.

    `sampling`: request fields other than temperature. `constrained`: the field that constrains answers to a grammar.
    """

    temperatures: tuple[float, ...] = ()
    sampling: Mapping[str, Any] = field(default_factory=dict)
    endpoint: str = "chat"
    prompt_tokens: int | None = None
    estimated: bool = False
    output_tokens: int | None = None
    concurrency: int | None = None
    constrained: str | None = None

    @property
    def tokens(self) -> int | None:
        """Prompt and answer of a long request together."""
        if self.prompt_tokens is None:
            return None
        return self.prompt_tokens + (self.output_tokens or 0)


@dataclass(frozen=True, slots=True)
class Asked:
    """`target` and `draft` are None where this machine does not hold the files; `target_name` is what was given.

    `kv_tokens`: KV cache tokens that the engine told without speculation; None: not known.
    """

    engine: str
    version: Version
    device: str
    spec: SpecConfig
    options: LaunchOptions
    target_name: str
    target: Checkpoint | None
    draft: Checkpoint | None
    demand: Demand = Demand()
    kv_tokens: int | None = None

    @property
    def method(self) -> str:
        return self.spec.method

    @property
    def on_vllm(self) -> bool:
        return self.engine == "vllm"

    @property
    def engine_text(self) -> str:
        name = {"vllm": "vLLM", "sglang": "SGLang"}[self.engine]
        return f"{name} {'.'.join(map(str, self.version))}"

    @property
    def chosen(self) -> dict[str, Scalar]:
        """Options of the engine's speculative config."""
        return dict(self.spec.options)

    @property
    def target_shape(self) -> Shape:
        return shape_of(self.target.config) if self.target else Shape()

    @property
    def draft_shape(self) -> Shape:
        return shape_of(self.draft.config) if self.draft else Shape()

    @property
    def served_tokens(self) -> int | None:
        """The longest sequence the engine will admit."""
        return self.options.max_model_len or self.target_shape.positions

    @property
    def v1_runner(self) -> bool:
        """Whether vLLM runs this with its first model runner: on CPU, before the second came, for what that lacks."""
        own = self.method in ("suffix", "medusa") or bool(
            self.chosen.get("parallel_drafting") or self.chosen.get("use_heterogeneous_vocab")
        )
        asked = dict(self.options.env).get("VLLM_USE_V2_MODEL_RUNNER") == "0"
        return self.device == "cpu" or own or asked or self.version < SECOND_RUNNER.get(self.method, (0, 29))
