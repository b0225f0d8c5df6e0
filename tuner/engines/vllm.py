"""The vLLM adapter: commands, per-request acceptance and log facts, by version."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tuner.engines.base import Launch, LaunchOptions
from tuner.engines.environments import Environment, known_defects
from tuner.engines.preflight.check import refuse_misfits
from tuner.engines.vllm_limits import check_args, check_device, check_draft, check_options
from tuner.engines.vllm_loader import loader_args
from tuner.engines.vllm_log import read_facts, root_cause
from tuner.engines.vllm_versions import (
    PER_REQUEST_METRICS,
    PREFIX_CACHING_DEFAULT,
    Version,
    check_method,
    parse_version,
    speculative_args,
)
from tuner.errors import UserError
from tuner.measure.records import EngineFacts, SpecSteps
from tuner.spec.speculation import SpecConfig

SERVED_NAME = "target"
#: Values of rejection_sample_method whose output is not distributed as the target's (synthetic 0.19, fly 0.33).
LOSSY_REJECTION = frozenset({"synthetic", "fly"})

#: vLLM's V0 engine had it (to 0.8); greedily it accepts the target's own choice alone.
TYPICAL = "typical_acceptance_sampler"


@dataclass(frozen=True, slots=True)
class VllmEngine:
    """vLLM run from its own environment."""

    environment: Environment

    def preflight(self, target: str, spec: SpecConfig, options: LaunchOptions) -> None:
        refuse_misfits(self, target, spec, options)

    def check_arguments(self, target: str, spec: SpecConfig, options: LaunchOptions) -> None:
        version = parse_version(self.environment.version)
        check_args(options.args)
        if spec.is_off:
            return
        check_method(spec, version)
        check_device(spec, self.environment.device)
        check_options(spec, options)
        check_draft(target, spec)
        # Built once: what cannot be written down is refused here, and not when off has been measured.
        speculative_args(spec, version)

    def launch(self, target: str, spec: SpecConfig, options: LaunchOptions, port: int, api_key: str) -> Launch:
        if not self.environment.python:
            raise UserError(
                f"engine '{self.environment.name}' is an address that already serves: it cannot be launched"
            )
        argv = [self.environment.python, "-m", "vllm.entrypoints.openai.api_server", "--model", target]
        argv += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", SERVED_NAME]
        version = parse_version(self.environment.version)
        argv += [*self._shared_args(options), *_prefix_caching(options.prefix_caching, version)]
        argv += [*loader_args(spec, options.args, version), *speculative_args(spec, version)]
        if not spec.is_off and version >= PER_REQUEST_METRICS:
            argv += ["--per-request-spec-decode-metrics", "detailed"]
        env = self._env(target, spec) | dict(options.env)
        secret = (("VLLM_API_KEY", api_key),)
        return Launch(tuple(argv), tuple(sorted(env.items())), secret, f"http://127.0.0.1:{port}", SERVED_NAME)

    def deploy_command(self, target: str, spec: SpecConfig, options: LaunchOptions) -> tuple[str, ...]:
        # The CPU build's distribution has another name, and the `vllm` script refuses to start under it.
        cpu = self.environment.device == "cpu"
        head = ["python", "-m", "vllm.entrypoints.openai.api_server", "--model"] if cpu else ["vllm", "serve"]
        version = parse_version(self.environment.version)
        own_args, spec_args = loader_args(spec, options.args, version), speculative_args(spec, version)
        return (*head, target, *self._shared_args(options), *own_args, *spec_args)

    def _shared_args(self, options: LaunchOptions) -> list[str]:
        args = ["--max-num-seqs", str(options.max_running_requests), "--seed", str(options.seed)]
        if options.max_model_len:
            args += ["--max-model-len", str(options.max_model_len)]
        if options.tensor_parallel > 1:
            args += ["--tensor-parallel-size", str(options.tensor_parallel)]
        return args

    def _env(self, target: str, spec: SpecConfig) -> dict[str, str]:
        env = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
        if self.environment.device == "cpu":
            env["VLLM_CPU_KVCACHE_SPACE"] = "1"
            env |= _intel_openmp(self.environment.python)
        if all(Path(path).is_dir() for path in (target, spec.draft) if path):
            env["HF_HUB_OFFLINE"] = "1"
        return env

    def ready_path(self) -> str:
        return "/health"

    def info_path(self) -> str | None:
        return None

    def request_extras(self, spec: SpecConfig) -> dict[str, Any]:
        return {}

    def read_spec_steps(self, events: Sequence[Mapping[str, Any]], spec: SpecConfig) -> SpecSteps | None:
        for event in reversed(events):
            told = (event.get("metrics") or {}).get("speculative_decoding")
            if told:
                return _spec_steps(told)
        return None

    def lossy(
        self, spec: SpecConfig, options: LaunchOptions, temperature: float, sampling: Mapping[str, Any] | None = None
    ) -> str | None:
        if spec.is_off:
            return None
        method = dict(spec.options).get("rejection_sample_method")
        if method in LOSSY_REJECTION:
            return f"rejection_sample_method '{method}' does not sample from the target"
        if temperature == 0:
            return None
        if dict(spec.options).get("acceptance_method") == TYPICAL:
            return f"{TYPICAL} accepts what is likely enough, not what the target would have sampled"
        environment = self.environment
        if dict(options.env).get("TUNER_CORRECTIONS", "").lower() == "off":
            environment = replace(environment, corrections=())
        return next(iter(known_defects(environment)), None)

    def read_facts(self, log: str, server_info: Mapping[str, Any] | None = None) -> EngineFacts:
        return read_facts(log)

    def root_cause(self, log: str) -> str | None:
        return root_cause(log)


def _intel_openmp(python: str | None) -> dict[str, str]:
    """vLLM's own advice for speculative decoding on x86: libiomp5 loaded first, where its package put one beside the
    interpreter. Both arms get it; what the user preloads is left as it is."""
    library = Path(python or "").parent.parent / "lib" / "libiomp5.so"
    if not python or not library.is_file() or os.environ.get("LD_PRELOAD"):
        return {}
    return {"LD_PRELOAD": str(library)}


def _prefix_caching(wanted: bool, version: Version) -> tuple[str, ...]:
    """Explicit in every arm; vLLM before its V1 engine has it off unless asked for, and no flag that says so."""
    if wanted:
        return ("--enable-prefix-caching",)
    return ("--no-enable-prefix-caching",) if version >= PREFIX_CACHING_DEFAULT else ()


def _spec_steps(told: Mapping[str, Any]) -> SpecSteps:
    accepted, drafted = told.get("per_step_accepted"), told.get("per_step_drafted")
    return SpecSteps(
        histogram=tuple(told["acceptance_histogram"]),
        drafted=told["num_draft_tokens"],
        accepted_by_step=tuple(accepted) if accepted is not None else None,
        drafted_by_step=tuple(drafted) if drafted is not None else None,
    )


def resolved_json(spec: SpecConfig, version: str) -> str:
    """The speculative config as shown to people: the JSON, or `off`."""
    args = speculative_args(spec, parse_version(version))
    return json.dumps(json.loads(args[1])) if len(args) == 2 else " ".join(args) or "off"
