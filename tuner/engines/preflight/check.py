"""Every rule on one launch, in one list: read it to know what is checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from tuner.engines import sglang_versions, vllm_versions
from tuner.engines.base import Engine, LaunchOptions
from tuner.engines.checkpoint import Checkpoint, read_checkpoint
from tuner.engines.preflight import (
    architecture,
    draft_map,
    layers,
    lengths,
    medusa,
    memory,
    mtp,
    parallel,
    positions,
    quantisation,
    requests,
    sglang_launch,
    tensors,
    vllm_launch,
    vocabulary,
)
from tuner.engines.preflight.asked import Asked, Demand
from tuner.engines.preflight.finding import Finding, error, refuse, told, warning
from tuner.errors import UserError
from tuner.spec.speculation import SpecConfig

Rule = Callable[[Asked], Iterable[Finding]]
RULES: tuple[Rule, ...] = (
    architecture.target_is_whole,
    architecture.method_fits,
    architecture.engine_loads,
    architecture.target_is_supported,
    mtp.layers_are_there,
    architecture.made_for_this_target,
    vocabulary.same_size,
    vocabulary.same_tokens,
    layers.config_is_readable,
    layers.states_fit,
    layers.layers_exist,
    layers.layers_mean_the_same,
    tensors.weights_are_there,
    tensors.tensors_fit,
    draft_map.map_fits,
    medusa.medusa_fits,
    mtp.mtp_length,
    lengths.block_length,
    lengths.tree_depth,
    positions.positions_suffice,
    parallel.heads_divide,
    parallel.draft_splits_alike,
    quantisation.draft_gets,
    quantisation.one_format,
    vllm_launch.launch_allowed,
    vllm_launch.config_allowed,
    sglang_launch.adapters_allowed,
    sglang_launch.whole_vocabulary,
    sglang_launch.block_verification,
    requests.sampling_allowed,
    requests.top_k_with_lookups,
    requests.answers_are_real,
    requests.temperature_counts,
    requests.template_is_used,
    requests.images,
    requests.constrained,
    memory.room_for_draft,
    memory.draft_is_small,
    lengths.admission,
)
#: Findings of one setting alone: the others of the same draft go on without it.
ONE_SETTING = frozenset({"medusa.heads", "mtp.multiple", "block.size"})
#: Told in every report by other means: cells that are known to be lossy carry it.
LOSSLESS = "lossless"
_VERSIONS = {"vllm": vllm_versions.parse_version, "sglang": sglang_versions.parse_version}
_HAS_METHOD = {"vllm": vllm_versions.has_method, "sglang": sglang_versions.has_method}
#: The newest release whose flags tuner knows.
NEWEST = {"vllm": "0.33.0", "sglang": "0.5.23"}
_WITHOUT_DEMAND = (0.0, 1.0)
#: Raised where an option, an argument or an entry of a config.json is not what a rule reads it as.
_UNREADABLE = (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, OSError)


def check(
    engine: Engine,
    target: str,
    spec: SpecConfig,
    options: LaunchOptions,
    demand: Demand | None = None,
    kv_tokens: int | None = None,
) -> tuple[Finding, ...]:
    """All findings on one launch, in the order of the rules. Reads files; starts nothing and raises nothing."""
    demand = demand or Demand()
    refusals = partial(told, "launch.arguments", lambda: engine.check_arguments(target, spec, options))
    found = list(_judged("launch.arguments", refusals))
    environment = engine.environment
    unreadable = list(told("engine.version", lambda: _VERSIONS[environment.engine](environment.version)))
    if unreadable:
        return tuple(unreadable)
    version = _VERSIONS[environment.engine](environment.version)
    if found and not spec.is_off and not _HAS_METHOD[environment.engine](spec.method, version):
        return tuple(found)  # what else may be wrong with the draft is of no use then
    checkpoints, problems = _read(target, spec)
    asked = Asked(
        environment.engine, version, environment.device, spec, options, target, *checkpoints, demand, kv_tokens
    )
    found += _newer(asked)
    found += problems
    for rule in RULES:
        found += _judged(f"{rule.__module__.rpartition('.')[2]}.{rule.__name__}", partial(rule, asked))
    found += _judged("lossless.known", partial(_lossless, engine, asked))
    return tuple(dict.fromkeys(found))


def _judged(rule: str, look: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """What a rule finds, and an error in its name for what it cannot read."""
    try:
        yield from look()
    except UserError as refusal:
        yield error(rule, str(refusal))
    except _UNREADABLE as trouble:
        yield error(
            rule,
            f"the rule {rule} cannot read a value ({type(trouble).__name__}: {trouble}): correct it in the options, "
            "the arguments or the config.json it is from",
        )


def refuse_misfits(engine: Engine, target: str, spec: SpecConfig, options: LaunchOptions) -> None:
    """UserError with the first error, for whoever launches without having looked at the findings."""
    refuse(check(engine, target, spec, options))


def _read(target: str, spec: SpecConfig) -> tuple[tuple[Checkpoint | None, Checkpoint | None], list[Finding]]:
    """Target and draft as far as they are on this machine, and what keeps them from being read."""
    options = dict(spec.options)
    revision = options.get("revision") or options.get("draft_model_revision")
    read: list[Checkpoint | None] = []
    problems: list[Finding] = []
    for name, wanted in ((target, None), (spec.draft, str(revision) if revision else None)):
        checkpoint = None
        try:
            checkpoint = read_checkpoint(name, wanted) if name else None
        except UserError as refusal:
            problems.append(error("checkpoint.config", str(refusal)))
        else:
            if name and checkpoint is None:
                problems.append(_elsewhere(name))
        read.append(checkpoint)
    return (read[0], read[1]), problems


def _elsewhere(name: str) -> Finding:
    """A hub id whose files are not here: the engine asks the hub for it, if it may."""
    return warning(
        "checkpoint.elsewhere",
        f"{name} is no folder on this machine, and not in the hub's cache: the engine will ask the hub for it, and "
        f"what its files would tell was not checked; download it first, or write ./{name} if a folder is meant",
    )


def _newer(asked: Asked) -> Iterator[Finding]:
    if asked.version > _VERSIONS[asked.engine](NEWEST[asked.engine]):
        yield warning(
            "engine.newer",
            f"{asked.engine_text} is newer than the newest whose flags tuner knows ({NEWEST[asked.engine]}): flags may "
            "have changed since",
        )


def _lossless(engine: Engine, asked: Asked) -> Iterator[Finding]:
    """Settings whose output is known not to be the target's own."""
    temperatures = asked.demand.temperatures or _WITHOUT_DEMAND
    reasons = {t: engine.lossy(asked.spec, asked.options, t, asked.demand.sampling) for t in temperatures}
    for reason in dict.fromkeys(reason for reason in reasons.values() if reason):
        at = [t for t in temperatures if reasons[t] == reason]
        where = "" if len(at) == len(temperatures) else f"at temperature {', '.join(f'{t:g}' for t in at)}: "
        yield warning(LOSSLESS, f"{where}not lossless: {reason}")
