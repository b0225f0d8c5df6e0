"""One launch as typed on the command line, brought to preflight: engine, target, draft, method, N or tree, demand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tuner.engines import ENGINES, engine_for
from tuner.engines.base import LaunchOptions
from tuner.engines.checkpoint import Checkpoint, read_checkpoint
from tuner.engines.environments import Environment, load_environments, on_device
from tuner.engines.models import find_model
from tuner.engines.preflight.architecture import fitting_method, mlp_speculator
from tuner.engines.preflight.asked import Demand
from tuner.engines.preflight.check import check
from tuner.engines.preflight.finding import Finding, error
from tuner.engines.preflight.kinds import MLP_SPECULATOR, has_mtp_layers
from tuner.errors import UserError
from tuner.run.draft_shape import Shaped, shaped
from tuner.spec.speculation import METHODS, Scalar, SpecConfig

#: Versions that are assumed where none is given and no environment is named.
NEWEST = {"vllm": "0.32.0", "sglang": "0.5.23"}
#: What engines call the methods that have another name here.
ALIASES = {"nextn": "mtp", "standalone": "draft_model", "[ngram]": "ngram", "draft-model": "draft_model"}
NO_DRAFT = "none"
DEFAULT_RUNNING = 64


@dataclass(frozen=True, slots=True)
class Typed:
    """As typed; None: not given. `options`: key=value of the engine's speculative config. `args`: its other flags."""

    target: str
    method: str | None
    engine: str
    draft: str | None = None
    engine_version: str | None = None
    device: str | None = None
    n: int | None = None
    steps: int | None = None
    topk: int | None = None
    nodes: int | None = None
    tensor_parallel: int | None = None
    workload: Path | None = None
    options: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    max_model_len: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    concurrency: int | None = None
    kv_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Checked:
    """`method`: the one that `argv` launches; it differs from the one asked where the draft is of another kind."""

    engine: str
    version: str
    setting: str
    method: str | None
    argv: tuple[str, ...] | None
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        return not any(finding.is_error for finding in self.findings)


def check_typed(typed: Typed) -> Checked:
    """Everything preflight says on one launch. UserError for what cannot be looked at: no such engine, no such path."""
    environment = _environment(typed)
    target = find_model(typed.target)
    draft = find_model(typed.draft) if typed.draft not in (None, NO_DRAFT) else None
    options, demand = _launch(typed, environment)
    chosen = _options(typed.options)
    files = _read(target), _read(draft) if draft else None
    wanted = _method(typed.method, *files)
    outcome = shaped(typed, wanted, environment.engine, *files)
    findings = list(outcome.findings)
    if wanted not in METHODS:
        findings.append(_unknown(wanted, draft, options.tensor_parallel))
        return Checked(environment.engine, environment.version, wanted, None, None, tuple(findings))
    try:
        spec = _spec(wanted, draft, outcome, chosen)
    except UserError as refusal:
        findings.append(error("setting.possible", str(refusal)))
        return Checked(environment.engine, environment.version, wanted, wanted, None, tuple(findings))
    findings += check(engine_for(environment), target, spec, options, demand, typed.kv_tokens)
    emitted = replace(spec, method=fitting_method(wanted, files[1]))
    argv = _command(environment, target, emitted, options)
    return Checked(
        environment.engine, environment.version, spec.label, emitted.method, argv, tuple(dict.fromkeys(findings))
    )


def _environment(typed: Typed) -> Environment:
    """A registered environment by its name, or an engine by its kind: then the newest version tuner knows, on a GPU."""
    registered = load_environments().get(typed.engine)
    if registered is not None:
        known = registered
    elif typed.engine in ENGINES:
        known = Environment(typed.engine, typed.engine, NEWEST[typed.engine], None, None, "gpu")
    else:
        names = ", ".join(dict.fromkeys([*ENGINES, *load_environments()]))
        raise UserError(f"engine {typed.engine!r} is neither an engine nor registered: give one of {names}")
    known = replace(known, version=typed.engine_version or known.version)
    return on_device(known, typed.device) if typed.device else known


def _launch(typed: Typed, environment: Environment) -> tuple[LaunchOptions, Demand]:
    """Launch options and demand of the workload, if one is given, with what was typed on top."""
    options, demand = LaunchOptions(max_running_requests=typed.concurrency or DEFAULT_RUNNING), Demand()
    if typed.workload is not None:
        # Workloads need pydantic, which takes as long to import as all the rest.
        from tuner.run.demand import demand_of
        from tuner.run.question import launch_options, workload_prompts
        from tuner.spec.load import load_workload

        workload = load_workload(typed.workload)
        options = launch_options(workload, environment.name)
        demand = demand_of(workload, workload_prompts(workload, typed.workload.resolve().parent))
    demand = replace(
        demand,
        prompt_tokens=typed.prompt_tokens or demand.prompt_tokens,
        estimated=demand.estimated and typed.prompt_tokens is None,
        output_tokens=typed.output_tokens or demand.output_tokens,
        concurrency=typed.concurrency or demand.concurrency,
    )
    options = replace(
        options,
        tensor_parallel=typed.tensor_parallel or options.tensor_parallel,
        max_model_len=typed.max_model_len or options.max_model_len,
        max_running_requests=typed.concurrency or options.max_running_requests,
        args=(*options.args, *typed.args),
    )
    return options, demand


def _read(model: str) -> Checkpoint | None:
    """None also for a config that cannot be read: preflight says what is wrong with it."""
    try:
        return read_checkpoint(model)
    except UserError:
        return None


def _method(asked: str | None, target: Checkpoint | None, draft: Checkpoint | None) -> str:
    """The method by our name; where none is given, what the draft was made for, or what needs no draft."""
    if asked is not None:
        name = asked.lower().replace("-", "_")
        return "mtp" if name.endswith("_mtp") else ALIASES.get(asked.lower(), ALIASES.get(name, name))
    if draft is not None:
        return fitting_method("draft_model", draft)
    return "mtp" if target is not None and has_mtp_layers(target.config) else "ngram"


def _unknown(method: str, draft: str | None, tensor_parallel: int) -> Finding:
    if method == MLP_SPECULATOR:
        return mlp_speculator(draft or "the draft", tensor_parallel)
    return error("method.known", f"unknown method '{method}': use one of {', '.join(METHODS)}")


def _options(given: Sequence[str]) -> tuple[tuple[str, Scalar], ...]:
    """`key=value`, values as JSON has them; a list stays text, as in a workload."""
    pairs = []
    for item in given:
        key, equals, text = item.partition("=")
        if not equals or not key:
            raise UserError(f"--option {item!r} is not key=value, such as draft_tensor_parallel_size=1")
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        pairs.append((key, value if isinstance(value, str | int | float | bool) else text))
    return tuple(pairs)


def _spec(method: str, draft: str | None, outcome: Shaped, options: tuple[tuple[str, Scalar], ...]) -> SpecConfig:
    if method == "off":
        return SpecConfig()
    return SpecConfig(method, n=0 if outcome.tree else outcome.n or 0, draft=draft, tree=outcome.tree, options=options)


def _command(environment: Environment, target: str, spec: SpecConfig, options: LaunchOptions) -> tuple[str, ...] | None:
    try:
        return engine_for(environment).deploy_command(target, spec, options)
    except UserError:
        return None
