"""What is recorded of the machine."""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path

import pytest

from tuner import __version__
from tuner.run import host
from tuner.run.host import Gpu, HostFacts


def test_facts_of_this_machine_are_those_of_the_kernel() -> None:
    facts = HostFacts.read()
    assert facts.tuner == __version__
    assert facts.cores == len(os.sched_getaffinity(0))
    total_gib = int(Path("/proc/meminfo").read_text().split()[1]) / 2**20  # the first line: MemTotal: N kB
    assert 0 < facts.memory_gib <= total_gib + 0.1
    assert f"Linux {os.uname().release}" in facts.system
    assert facts.cpu
    assert datetime.fromisoformat(facts.at).utcoffset() is not None
    assert HostFacts.from_dict(json.loads(json.dumps(facts.to_dict()))) == facts


def test_gpus_are_read_from_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "nvidia-smi"
    fake.write_text(
        '#!/bin/sh\n[ "$1" = --query-gpu=name,memory.total,driver_version,power.limit ] || exit 6\n'
        'echo "NVIDIA H100 80GB HBM3, 81559, 550.54.15, 700.00"\necho "NVIDIA GB10, [N/A], 580.95.05, [N/A]"\n'
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    facts = HostFacts.read()
    assert facts.gpus == (
        Gpu("NVIDIA H100 80GB HBM3", 81559, "550.54.15", 700.0),
        Gpu("NVIDIA GB10", None, "580.95.05", None),
    )
    assert HostFacts.from_dict(facts.to_dict()) == facts


@pytest.mark.parametrize("script", ["exit 9", "echo 'NVIDIA-SMI has failed'"])
def test_no_gpu_where_the_driver_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    fake = tmp_path / "nvidia-smi"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert HostFacts.read().gpus == ()


def test_no_gpu_without_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert HostFacts.read().gpus == ()


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),  # 150 ms of CPU time every 100 ms
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 0.5),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({}, None),
    ],
)
def test_a_containers_cpu_quota(tmp_path: Path, files: dict[str, str], expected: float | None) -> None:
    (tmp_path / "cpu").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert host._cpu_quota(tmp_path) == expected


def test_a_containers_memory_limit(tmp_path: Path) -> None:
    whole = host._memory_bytes(tmp_path)
    (tmp_path / "memory.max").write_text("max\n")
    assert host._memory_bytes(tmp_path) == whole
    (tmp_path / "memory.max").write_text("1073741824\n")
    assert host._memory_bytes(tmp_path) == 2**30
