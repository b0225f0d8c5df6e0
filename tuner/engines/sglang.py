"""The SGLang adapter: commands, per-request acceptance and facts, by version."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tuner.engines.base import Launch, LaunchOptions
from tuner.engines.environments import CPU_KERNELS, Environment
from tuner.engines.preflight.check import refuse_misfits
from tuner.engines.sglang_commands import is_adaptive, speculative_args
from tuner.engines.sglang_cpu.packages.cpu_machine import gpu_device
from tuner.engines.sglang_limits import (
    check_adaptive,
    check_args,
    check_numbers,
    check_parallel,
    check_sampling,
    check_tree,
    flag_value,
)
from tuner.engines.sglang_log import read_facts, root_cause
from tuner.engines.sglang_lossy import lossy_reason
from tuner.engines.sglang_versions import (
    EAGLE_FAMILY,
    PER_REQUEST_DETAILS,
    READY_PATH,
    Version,
    check_method,
    check_version,
    parse_version,
    version_text,
)
from tuner.errors import UserError
from tuner.measure.records import EngineFacts, SpecSteps
from tuner.spec.speculation import SpecConfig

SERVED_NAME = "target"
KEY_VARIABLE = "SGLANG_API_KEY"
START = Path(__file__).parent / "sglang_start" / "serve.py"
#: KV tokens on CPU, where SGLang would otherwise take nearly all memory: this many, or all requests at full length.
CPU_KV_TOKENS = 8192
CPU_CONTEXT = 2048
#: One thread, and no binding to a core that is not there. A list such as 0,1 in engine_options.env takes two.
CPU_ENV = (("SGLANG_CPU_OMP_THREADS_BIND", "0"), ("SGLANG_USE_CPU_ENGINE", "1"), ("TORCHDYNAMO_DISABLE", "1"))


@dataclass(frozen=True, slots=True)
class SglangEngine:
    """SGLang run from its own environment."""

    environment: Environment

    @property
    def version(self) -> Version:
        return parse_version(self.environment.version)

    @property
    def on_cpu(self) -> bool:
        return self.environment.device == "cpu"

    def preflight(self, target: str, spec: SpecConfig, options: LaunchOptions) -> None:
        refuse_misfits(self, target, spec, options)

    def check_arguments(self, target: str, spec: SpecConfig, options: LaunchOptions) -> None:
        check_version(self.version)
        check_args(options.args)
        if self.on_cpu:
            self._check_cpu(spec, options)
        if spec.is_off:
            return
        check_method(spec, self.version)
        check_tree(spec, options, self.environment.device)
        check_parallel(spec, options)
        check_adaptive(spec)
        check_numbers(spec, options)
        check_sampling(spec)
        compiler = dict(options.env).get("CXX", "c++")
        if spec.method == "ngram" and self.environment.python and not shutil.which(compiler):
            raise UserError(f"SGLang compiles its n-gram index at the start, and there is no {compiler}: install g++")

    def _check_cpu(self, spec: SpecConfig, options: LaunchOptions) -> None:
        if spec.method in ("dflash", "dspark"):
            raise UserError(f"SGLang runs {spec.method} on GPUs only: measure it there, or draft with eagle3 or ngram")
        if CPU_KERNELS in self.environment.corrections:
            device = gpu_device()
            if device is not None:
                raise UserError(
                    f"engine '{self.environment.name}' computes in plain PyTorch for machines without a GPU, and this "
                    f"one has {device}: install the stock engine with `tuner engine add sglang`"
                )
            if options.tensor_parallel > 1:
                raise UserError("SGLang computing in plain PyTorch runs in one process: set tensor_parallel to 1")
        elif spec.method in EAGLE_FAMILY and not self.environment.url and not _has_cpu_kernels(self.environment):
            raise UserError(
                f"engine '{self.environment.name}' has no CPU kernels for the drafts of {spec.method}, and SGLang ends "
                "at its first decode without them: `tuner engine add sglang-cpu` installs an engine that has them"
            )

    def launch(self, target: str, spec: SpecConfig, options: LaunchOptions, port: int, api_key: str) -> Launch:
        if not self.environment.python:
            raise UserError(
                f"engine '{self.environment.name}' is an address that already serves: it cannot be launched"
            )
        argv = [self.environment.python, str(START), "--model-path", target, "--host", "127.0.0.1", "--port", str(port)]
        argv += ["--served-model-name", SERVED_NAME, *self._limits(options), "--random-seed", str(options.seed)]
        # The access log would hold a line for every request and every question whether the server is ready.
        argv += ["--enable-metrics", "--log-level-http", "warning"]
        if not options.prefix_caching:
            argv.append("--disable-radix-cache")
        argv += [*options.args, *speculative_args(spec, target)]
        env = self._env(target, spec) | dict(options.env)
        secret = ((KEY_VARIABLE, api_key),)
        return Launch(tuple(argv), tuple(sorted(env.items())), secret, f"http://127.0.0.1:{port}", SERVED_NAME)

    def deploy_command(self, target: str, spec: SpecConfig, options: LaunchOptions) -> tuple[str, ...]:
        head = ("python", "-m", "sglang.launch_server", "--model-path", target)
        return (*head, *self._limits(options), *options.args, *speculative_args(spec, target))

    def _limits(self, options: LaunchOptions) -> list[str]:
        # With speculation SGLang admits 48 requests when nothing is said, without it thousands.
        args = ["--max-running-requests", str(options.max_running_requests)]
        if options.max_model_len:
            args += ["--context-length", str(options.max_model_len)]
        if options.tensor_parallel > 1:
            args += ["--tp-size", str(options.tensor_parallel)]
        if self.on_cpu:
            args += ["--device", "cpu"]
            if flag_value(options.args, "--max-total-tokens") is None:
                tokens = options.max_running_requests * (options.max_model_len or CPU_CONTEXT)
                args += ["--max-total-tokens", str(max(CPU_KV_TOKENS, tokens))]
            # There are none on CPU, but adaptive speculation would build them all the same (0.5.23).
            args.append("--disable-cuda-graph")
        return args

    def _env(self, target: str, spec: SpecConfig) -> dict[str, str]:
        env = dict(CPU_ENV) if self.on_cpu else {}
        if self.version < READY_PATH:
            env["SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"] = "0"
        if all(Path(path).is_dir() for path in (target, spec.draft) if path):
            env["HF_HUB_OFFLINE"] = "1"
        return env

    def ready_path(self) -> str:
        # /health generates a token, unless the environment above forbids it, which it does before there was /ready.
        return "/ready" if self.version >= READY_PATH else "/health"

    def info_path(self) -> str | None:
        return "/server_info"

    def request_extras(self, spec: SpecConfig) -> dict[str, Any]:
        told = not spec.is_off and self.version >= PER_REQUEST_DETAILS
        return {"return_spec_tokens_details": True} if told else {}

    def read_spec_steps(self, events: Sequence[Mapping[str, Any]], spec: SpecConfig) -> SpecSteps | None:
        for event in reversed(events):
            told = (event.get("sglext") or {}).get("spec_tokens_details")
            if told:
                return spec_steps(told, spec)
        return None

    def read_facts(self, log: str, server_info: Mapping[str, Any] | None = None) -> EngineFacts:
        facts = read_facts(log, server_info)
        if CPU_KERNELS in self.environment.corrections:
            facts = replace(facts, runner="CPU kernels in plain PyTorch")
        if self.version < PER_REQUEST_DETAILS:
            facts = replace(facts, warnings=(*facts.warnings, _no_details(self.version)))
        return facts

    def root_cause(self, log: str) -> str | None:
        return root_cause(log)

    def lossy(
        self, spec: SpecConfig, options: LaunchOptions, temperature: float, sampling: Mapping[str, Any] | None = None
    ) -> str | None:
        """Why this arm's output is not the target's own at this temperature; None where nothing is known against it."""
        return lossy_reason(spec, options, self.environment.computes_on, temperature, sampling or {})


def _has_cpu_kernels(environment: Environment) -> bool:
    """SGLang's own, which it builds from source under this name; the package index has none (0.5.23)."""
    if not environment.python:
        return False
    folder = Path(environment.python).parent.parent
    return any(folder.glob("lib/python3*/site-packages/sglang_kernel_cpu-*.dist-info"))


def spec_steps(told: Mapping[str, Any], spec: SpecConfig) -> SpecSteps:
    """Per-request details as SGLang 0.5.19 and later send them; names before 0.5.21 are read as well.

    Every verify step carries drafted tokens, so the histogram covers all of them; it is ragged and padded here. What
    was drafted in all is told as verify steps times (nodes - 1): that is not so when N moves, nor for n-grams, whose
    misses are filled up with padding. Where N moves, steps that were to draft nothing are in the histogram, as steps
    that accepted nothing (0.5.23 on CPU); verify steps follow from the tokens, which holds either way.
    """
    histogram = list(_first(told, "spec_correct_drafts_histogram", "spec_accept_histogram") or ())
    histogram += [0] * (spec.depth + 1 - len(histogram))
    proposed = _first(told, "spec_num_proposed_drafts", "spec_proposed_drafts", "spec_draft_token_num")
    steady = spec.method != "ngram" and not is_adaptive(spec)
    return SpecSteps(
        histogram=tuple(histogram),
        drafted=proposed if steady else None,
        verify_steps=None if is_adaptive(spec) else told.get("spec_verify_ct"),
    )


def _first(told: Mapping[str, Any], *names: str) -> Any:
    return next((told[name] for name in names if name in told), None)


def _no_details(version: Version) -> str:
    return (
        f"SGLang {version_text(version)} tells no acceptance by request over its OpenAI routes: use "
        f"{version_text(PER_REQUEST_DETAILS)} or later for alpha, a_k and tau"
    )
