"""What a user may not read or write, and names no disk takes, are one sentence each and no traceback."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from study_fixture import study_header

from tuner.cli.chosen_file import write_chosen
from tuner.engines.environments import Environment, entry_path, load_environments, remove_environment, save_environment
from tuner.engines.home import engines_folder, models_folder
from tuner.engines.hub_cache import snapshot
from tuner.engines.model_package import add_model
from tuner.engines.models import find_model, load_models, register_folder, remove_model
from tuner.engines.provision import add_engine, remove_engine
from tuner.errors import UserError
from tuner.prompts import load_set
from tuner.run import doctor
from tuner.run.checkup import ok
from tuner.run.doctor import diagnose
from tuner.run.history import runs_of
from tuner.run.history_db import FILE, URL_VARIABLE
from tuner.run.imported import read_results
from tuner.run.journal import Journal
from tuner.run.store import StudyStore, find_studies
from tuner.run.sweep_store import find_nights, is_night
from tuner.spec.load import resolve_path

NOBODY = 65534
LONG = "x" * 300  # a name on a disk has at most 255


@contextlib.contextmanager
def bound_by_permissions() -> Iterator[None]:
    """Root may do everything: for a while this process is nobody."""
    if os.geteuid():
        yield
        return
    try:
        os.setresuid(NOBODY, NOBODY, 0)
    except OSError:
        pytest.skip("this root may not become another user")
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Where everybody may look: the folders that pytest makes are for their owner alone."""
    folder = Path(tempfile.mkdtemp(prefix="tuner-permissions-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    for path in (folder, *folder.rglob("*")):
        if path.is_dir():
            path.chmod(0o755)
    shutil.rmtree(folder)


@pytest.fixture
def home(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = open_folder / "home"
    folder.mkdir()
    monkeypatch.setenv("TUNER_HOME", str(folder))
    monkeypatch.setenv("HF_HUB_CACHE", str(open_folder / "hub"))
    return folder


def silent(_line: str) -> None: ...


def served(name: str = "far") -> None:
    save_environment(Environment(name, "vllm", "0.32.0", None, "http://127.0.0.1:9", "gpu"))


def model(folder: Path) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text("{}", encoding="utf-8")
    return folder


def closed(path: Path) -> Path:
    """Its owner's alone, and not even that where its owner runs the tests."""
    path.chmod(0o700 if os.geteuid() == 0 else 0o000)
    return path


# --- the data folder


def test_a_data_folder_that_takes_no_files_is_a_sentence_of_every_command_that_writes_there(home: Path) -> None:
    home.chmod(0o555)
    folder = model(home.parent / "model")
    with bound_by_permissions():
        with pytest.raises(UserError, match=r"cannot write .*/engines/\.vllm-cpu\.lock \(Permission denied\)"):
            add_engine("vllm-cpu", tell=silent)
        with pytest.raises(UserError, match=r"cannot write .*/engines/\.mine\.lock \(Permission denied\)"):
            remove_engine("mine", silent)
        with pytest.raises(UserError, match=r"cannot write .*/models/mine\.json \(Permission denied\)"):
            register_folder("mine", folder)


def test_an_entry_that_cannot_be_deleted_is_a_sentence(home: Path) -> None:
    served()
    register_folder("mine", model(home.parent / "model"))
    for registry in (engines_folder(), models_folder()):
        registry.chmod(0o555)
    with bound_by_permissions():
        with pytest.raises(UserError, match=r"cannot write .*/engines/far\.json \(Permission denied\)"):
            remove_environment("far")
        with pytest.raises(UserError, match=r"cannot write .*/models/mine\.json \(Permission denied\)"):
            remove_model("mine")
    assert entry_path("far").is_file()


def test_making_a_model_where_nothing_can_be_written_is_a_sentence(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.engines.model_package.equipped_environment", lambda _engine, _work: None)
    models_folder().mkdir()
    models_folder().chmod(0o555)
    with (
        bound_by_permissions(),
        pytest.raises(UserError, match=r"cannot write .*/models/\.smollm2-135m\.lock \(Permission denied\)"),
    ):
        add_model("smollm2-135m", tell=silent)


@pytest.mark.parametrize("load", [load_environments, load_models])
def test_a_registry_that_cannot_be_read_is_a_sentence(load: Callable[[], object], home: Path) -> None:
    served()
    register_folder("mine", model(home.parent / "model"))
    closed(home)
    with (
        bound_by_permissions(),
        pytest.raises(UserError, match=r"cannot read .*/home/(engines|models) \(Permission denied\): change its owner"),
    ):
        load()


def test_doctor_on_anothers_data_folder_says_so_first_and_goes_on(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # It looks at tuner's own files, which may lie where nobody looks.
    monkeypatch.setattr(doctor.machine, "clocks", lambda _package: iter([ok("clock", "")]))
    served()
    closed(home)
    (home.parent / "hub" / "models--a--b").mkdir(parents=True)
    closed(home.parent / "hub")
    with bound_by_permissions():
        told = diagnose(home / "reports" / LONG).checkups
    assert (told[0].what, told[0].status) == ("data folder", "fail")
    assert told[0].text == f"{home} cannot be written"
    assert [c.text.partition(" (")[0] for c in told if c.what in ("engine", "model")] == [
        f"cannot read {home}/engines", f"cannot read {home}/models",
    ]  # fmt: skip
    assert told[-1].what == "clock"


def test_doctor_names_a_registered_model_whose_files_cannot_be_read(home: Path) -> None:
    folder = model(home.parent / "model")
    register_folder("mine", folder)
    closed(folder)
    with bound_by_permissions():
        (told,) = doctor.installed.models()
    assert told.status == "fail"
    assert f"cannot read {folder} (Permission denied)" in told.text


# --- names


def test_a_name_too_long_for_a_file_names_no_engine_and_nomodel(home: Path) -> None:
    with pytest.raises(UserError, match=r"cannot name an engine: use letters, digits, '\.', '_' and '-', at most 96"):
        remove_engine(LONG, silent)
    with pytest.raises(UserError, match="no model folder at xxx"):
        find_model(LONG)
    with pytest.raises(UserError, match="no model folder at owner/xxx"):
        find_model(f"owner/{LONG}")
    with pytest.raises(UserError, match="xxx is no file or model folder in"):
        resolve_path(home, LONG)
    assert find_model("o" * 96) == "o" * 96
    assert snapshot(f"owner/{LONG}") is None


def test_files_with_names_too_long_are_told_by_every_reader(tmp_path: Path) -> None:
    assert not is_night(tmp_path / LONG)
    with pytest.raises(UserError, match=r"cannot read .*/study\.json \(File name too long\)"):
        StudyStore.read(tmp_path / LONG)
    with pytest.raises(UserError, match=r"cannot read .* \(File name too long\)"):
        read_results(tmp_path / LONG)
    with pytest.raises(UserError, match="there is no prompt set 'xxx"):
        load_set(LONG, tmp_path)
    with pytest.raises(UserError, match="does not exist: give the folder of your studies"):
        runs_of(tmp_path / LONG)
    assert find_studies(tmp_path / LONG) == []
    assert find_nights(tmp_path / LONG) == []


# --- files that are read and written where the user says


def test_a_file_to_write_in_anothers_folder_or_with_too_long_a_name_is_a_sentence(
    open_folder: Path, tmp_path: Path
) -> None:
    (open_folder / "closed").mkdir()
    folder = closed(open_folder / "closed")
    with (
        bound_by_permissions(),
        pytest.raises(UserError, match=r"cannot write .*/closed/w\.yaml \(Permission denied\)"),
    ):
        write_chosen(folder / "w.yaml", "name: x", replace=False)
    with pytest.raises(UserError, match=r"cannot write .* \(File name too long\)"):
        write_chosen(tmp_path / LONG, "name: x", replace=False)


def test_anothers_study_is_a_sentence(open_folder: Path) -> None:
    study = open_folder / "study"
    StudyStore.create(study, study_header()).close()
    closed(study / "journal.jsonl")
    with bound_by_permissions(), pytest.raises(UserError, match=r"cannot read .*journal\.jsonl \(Permission denied\)"):
        Journal(study / "journal.jsonl").events()
    closed(study)
    with bound_by_permissions():
        assert not is_night(study)
        with pytest.raises(UserError, match=r"cannot read .*study\.json \(Permission denied\): name a folder"):
            StudyStore.read(study)


def test_an_index_that_cannot_be_deleted_is_a_sentence(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(URL_VARIABLE, raising=False)
    (open_folder / FILE).touch()
    open_folder.chmod(0o555)
    with bound_by_permissions(), pytest.raises(UserError, match=rf"cannot write .*/{FILE} \(Permission denied\)"):
        runs_of(open_folder, again=True)
