"""The machine a study ran on, as far as it explains a figure; cheap to read, and nothing that names its owner."""

from __future__ import annotations

import csv
import dataclasses
import os
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tuner import __version__
from tuner.run.journal import now

GPU_QUERY = ("name", "memory.total", "driver_version", "power.limit")
NVIDIA_SMI_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Gpu:
    """One NVIDIA device as its driver describes it; None: the driver does not say."""

    name: str
    memory_mib: int | None
    driver: str
    power_limit_w: float | None


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What was found when a study began.

    `cores`: logical CPUs this process may use. `cpu_quota`: CPUs' worth of time its container grants, None: no limit;
    `memory_gib` respects the container's limit too. `load_1m`: the load average before anything was started.
    """

    at: str
    tuner: str
    cpu: str
    cores: int
    cpu_quota: float | None
    memory_gib: float
    load_1m: float
    system: str
    python: str
    gpus: tuple[Gpu, ...] = ()

    @classmethod
    def read(cls) -> Self:
        return cls(
            at=now(),
            tuner=__version__,
            cpu=_cpu_model(),
            cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
            cpu_quota=_cpu_quota(Path("/sys/fs/cgroup")),
            memory_gib=round(_memory_bytes(Path("/sys/fs/cgroup")) / 2**30, 1),
            load_1m=round(os.getloadavg()[0], 2),
            system=f"{platform.system()} {platform.release()} {platform.machine()}",
            python=platform.python_version(),
            gpus=_gpus(),
        )

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"gpus": [dataclasses.asdict(gpu) for gpu in self.gpus]}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        return cls(**data | {"gpus": tuple(Gpu(**gpu) for gpu in data["gpus"])})


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    """Rows of `nvidia-smi --query-gpu=… --format=csv,noheader,nounits`; '[N/A]' and its kin become None."""
    rows = [[field.strip() for field in row] for row in csv.reader(text.splitlines())]
    return tuple(
        Gpu(name, int(memory) if memory.isdigit() else None, driver, _number(power))
        for name, memory, driver, power in (row for row in rows if len(row) == len(GPU_QUERY))
    )


def _gpus() -> tuple[Gpu, ...]:
    command = ["nvidia-smi", f"--query-gpu={','.join(GPU_QUERY)}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=NVIDIA_SMI_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    return parse_gpus(answer.stdout)


def _cpu_model() -> str:
    named = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def _cpu_quota(cgroup: Path) -> float | None:
    """Version 2 says `quota period` in one file, version 1 in two; `max` and -1 are no limit."""
    two = _lines(cgroup / "cpu.max") or [""]
    quota, _, period = two[0].partition(" ")
    if not period:
        one = [_lines(cgroup / "cpu" / f"cpu.cfs_{name}_us") or [""] for name in ("quota", "period")]
        quota, period = one[0][0], one[1][0]
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else None


def _memory_bytes(cgroup: Path) -> int:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [_lines(cgroup / "memory.max"), _lines(cgroup / "memory" / "memory.limit_in_bytes")]
    return min([total, *(int(limit[0]) for limit in limits if limit and limit[0].isdigit())])


def available_gib() -> float:
    """What may be taken now without swapping, by the kernel; no bound where it does not say."""
    told = [line.split() for line in _lines("/proc/meminfo") if line.startswith("MemAvailable:")]
    return int(told[0][1]) / 2**20 if told and told[0][1].isdigit() else float("inf")


def _lines(path: str | Path) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
