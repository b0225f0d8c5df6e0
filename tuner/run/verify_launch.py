"""The engines that `tuner verify` launches: one after another, or off beside the others where there is room."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tuner.engines.base import Engine, LaunchOptions
from tuner.engines.checkpoint import read_checkpoint
from tuner.engines.environments import Environment
from tuner.engines.sglang import CPU_CONTEXT, CPU_KV_TOKENS
from tuner.engines.sglang_limits import flag_value
from tuner.errors import EngineError
from tuner.run.host import HostFacts, available_gib
from tuner.run.process import EngineProcess, EngineStartError, free_port
from tuner.run.progress import Event, Notify
from tuner.run.question import Question
from tuner.run.server_facts import get_json
from tuner.run.stream import Server
from tuner.run.trial import why_failed
from tuner.spec.speculation import SpecConfig

#: What an engine on a CPU takes besides its weights, GiB: its libraries, its KV cache (1 by default), activations.
BESIDE_WEIGHTS_GIB = 4.0

Serving = tuple[Server, dict[str, str]]


@dataclass(frozen=True, slots=True)
class Launcher:
    """Launches what one engine of a workload is to serve; logs go to `folder`."""

    question: Question
    environment: Environment
    engine: Engine
    options: LaunchOptions
    folder: Path
    notify: Notify

    @contextlib.asynccontextmanager
    async def serving(self, spec: SpecConfig, number: int) -> AsyncIterator[Serving]:
        """A launched engine and its resolved arguments; it is gone when this ends, whatever way."""
        port = self.question.workload.engine_options.port or free_port()
        key = secrets.token_urlsafe(24)
        launch = self.engine.launch(self.question.target, spec, self.options, port, key)
        log = self.folder / f"{number:03d}-{spec.method}.log"
        process = EngineProcess(
            launch,
            log,
            ready_path=self.engine.ready_path(),
            ready_timeout_s=self.question.workload.engine_options.ready_timeout_s,
            on_wait=_waiting(self.notify),
        )
        try:
            async with process:
                server = Server(launch.url, key, launch.served_name)
                path = self.engine.info_path()
                info = await get_json(server, path) if path else None
                yield server, dict(self.engine.read_facts(process.log_text(), info).resolved)
        except EngineStartError as error:
            raise EngineError(f"{spec.label}: {why_failed(self.engine, log, error)}") from None


def room_for_two(
    question: Question, environment: Environment, options: LaunchOptions, specs: Sequence[SpecConfig]
) -> bool:
    """Whether two engines fit beside each other: on a CPU with memory for both, on ports of their own.

    Weights are counted in 32 bits, which many CPUs compute in. What cannot be counted has no room: a checkpoint that is
    not here, a KV cache of a size of its own.
    """
    if environment.device != "cpu" or question.workload.engine_options.port is not None:
        return False
    if _sizes_its_cache(environment, options):
        return False
    drafts = {spec.draft for spec in specs if spec.draft}
    found = [read_checkpoint(model) for model in (question.target, *drafts)]
    weights = [one.nbytes for one in found if one is not None and one.nbytes]
    if len(weights) < len(found):
        return False
    needed_gib = 2 * (2 * sum(weights) / 2**30 + BESIDE_WEIGHTS_GIB)
    return needed_gib < min(0.75 * HostFacts.read().memory_gib, available_gib())


def _sizes_its_cache(environment: Environment, options: LaunchOptions) -> bool:
    """vLLM on a CPU takes 1 GiB of KV where nothing is said; SGLang what all requests at full length need."""
    if environment.engine == "vllm":
        asked = dict(options.env).get("VLLM_CPU_KVCACHE_SPACE", "1")
        return asked not in ("", "0", "1") or flag_value(options.args, "--kv-cache-memory-bytes") is not None
    tokens = flag_value(options.args, "--max-total-tokens")
    asked_tokens = (
        int(tokens)
        if tokens and tokens.isdigit()
        else options.max_running_requests * (options.max_model_len or CPU_CONTEXT)
    )
    return asked_tokens > CPU_KV_TOKENS


def _waiting(notify: Notify) -> Callable[[float], None]:
    return lambda waited_s: notify(Event("waiting", "engine starts", waited_s))
