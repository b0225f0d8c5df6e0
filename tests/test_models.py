"""Names for model folders: what a workload's `model:` may be, and what is said when it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.engines.models import find_model, load_models, register_folder, remove_model
from tuner.errors import UserError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TUNER_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "my-model"
    path.mkdir()
    (path / "config.json").write_text("{}")
    return path


def test_a_registered_name_is_its_folder(folder: Path) -> None:
    register_folder("mine", folder)
    assert find_model("mine") == str(folder)
    assert [(model.name, model.path, model.made) for model in load_models().values()] == [("mine", str(folder), False)]


def test_a_relative_folder_is_registered_by_its_full_path(folder: Path) -> None:
    assert register_folder("mine", Path("my-model")).path == str(folder)


@pytest.mark.parametrize("name", ["HuggingFaceTB/SmolLM2-135M-Instruct", "gpt2"])
def test_a_hub_id_is_returned_as_it_is(name: str) -> None:
    assert find_model(name) == name


def test_an_existing_folder_is_returned_as_it_is(folder: Path) -> None:
    assert find_model(str(folder)) == str(folder)
    assert find_model("my-model") == "my-model"


@pytest.mark.parametrize("name", ["/nowhere/model", "./nowhere", "../nowhere", "~/nowhere", "a/b/c", "nowhere/"])
def test_a_path_that_is_not_there_is_an_error_before_any_launch(name: str) -> None:
    with pytest.raises(UserError, match="no model folder at "):
        find_model(name)


def test_a_file_is_no_model_folder(folder: Path) -> None:
    with pytest.raises(UserError, match=r"no model folder at my-model/config\.json"):
        find_model("my-model/config.json")


def test_a_model_tuner_can_make_is_not_taken_for_a_hub_id() -> None:
    with pytest.raises(UserError, match="run `tuner model add smollm2-135m`"):
        find_model("smollm2-135m")


def test_a_registered_folder_that_went_away_is_said(folder: Path) -> None:
    register_folder("mine", folder)
    folder.rename(folder.with_name("moved"))
    with pytest.raises(UserError, match=r"registered as .*my-model, which is not there.*tuner model remove mine"):
        find_model("mine")


def test_only_a_folder_with_a_config_is_registered(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"it has no config\.json"):
        register_folder("mine", tmp_path)


def test_a_name_is_not_taken_over(folder: Path, tmp_path: Path) -> None:
    register_folder("mine", folder)
    register_folder("mine", folder)
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text("{}")
    with pytest.raises(UserError, match=r"registered as .*my-model; run `tuner model remove mine` first"):
        register_folder("mine", other)


def test_remove_leaves_the_users_folder(folder: Path) -> None:
    register_folder("mine", folder)
    assert remove_model("mine") is None
    assert (folder / "config.json").is_file()
    assert load_models() == {}
    with pytest.raises(UserError, match="no model is registered as 'mine'"):
        remove_model("mine")
