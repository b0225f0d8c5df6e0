"""The narrow waist between tuner and an engine: how to start it, ask it, and read what it says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tuner.engines.environments import Environment
from tuner.measure.records import EngineFacts, SpecSteps
from tuner.spec.speculation import SpecConfig


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """Limits and pass-through, equal in every arm of a study."""

    max_running_requests: int
    max_model_len: int | None = None
    tensor_parallel: int = 1
    prefix_caching: bool = False
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Launch:
    """What is run. Secrets are in `secret_env` only: it is never stored, logged or shown."""

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    secret_env: tuple[tuple[str, str], ...]
    url: str
    served_name: str


class Engine(Protocol):
    """One engine, by version. Stateless: everything it needs is in the arguments."""

    @property
    def environment(self) -> Environment: ...

    def check_arguments(self, target: str, spec: SpecConfig, options: LaunchOptions) -> None:
        """Raise UserError for arguments that this engine and version would refuse or silently change."""

    def preflight(self, target: str, spec: SpecConfig, options: LaunchOptions) -> None:
        """Raise UserError with the first error of `tuner.engines.preflight.check`: arguments, draft and target."""

    def launch(self, target: str, spec: SpecConfig, options: LaunchOptions, port: int, api_key: str) -> Launch:
        """The command that is run to measure: loopback, one port, per-request acceptance on."""

    def deploy_command(self, target: str, spec: SpecConfig, options: LaunchOptions) -> tuple[str, ...]:
        """The command a user would run in production: no harness flags."""

    def ready_path(self) -> str:
        """A path that answers 200 once requests are served, and generates nothing."""

    def info_path(self) -> str | None:
        """A path that answers JSON about the resolved configuration, for `read_facts`; None where there is none."""

    def lossy(
        self, spec: SpecConfig, options: LaunchOptions, temperature: float, sampling: Mapping[str, Any] | None = None
    ) -> str | None:
        """Why output at this temperature is known not to be the target's own; None: nothing is known against it."""

    def request_extras(self, spec: SpecConfig) -> dict[str, Any]:
        """Fields to add to every request body so that per-request acceptance comes back."""

    def read_spec_steps(self, events: Sequence[Mapping[str, Any]], spec: SpecConfig) -> SpecSteps | None:
        """Per-request acceptance from the last events of a stream; None when the engine sent none."""

    def read_facts(self, log: str, server_info: Mapping[str, Any] | None = None) -> EngineFacts:
        """KV capacity, runner, resolved configuration and warnings, from the engine's log."""

    def root_cause(self, log: str) -> str | None:
        """The line of a failed start's log that says why; None when nothing is recognised."""
