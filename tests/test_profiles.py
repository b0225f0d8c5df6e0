"""The shipped profiles, the head among them, and the workloads and schemas the command makes from them."""

from __future__ import annotations

import hashlib
import json
import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tuner.cli import main
from tuner.engines.vllm_versions import check_method, speculative_args
from tuner.errors import UserError
from tuner.prompts import vendored_sets
from tuner.spec.candidates import arm_of
from tuner.spec.json_schema import all_keys, schema_of
from tuner.spec.load import load_workload, resolve_path
from tuner.spec.profiles import profile_path, profile_paths, profiles_dir, starter
from tuner.spec.workload import Workload

ROOT = Path(__file__).resolve().parents[1]
PROFILES = ROOT / "profiles"
HEAD = PROFILES / "smollm2-135m" / "eagle3"
ASKED_FOR = {
    "chat", "code", "json-sql", "long-form", "rewrite", "creative-high-temperature", "llama-70b-h100", "both-engines",
    "smollm2-chat-cpu",
}  # fmt: skip
NAMES = sorted(profile_paths())


def typed(name: str) -> dict[str, Any]:
    data = yaml.safe_load((PROFILES / f"{name}.yaml").read_text(encoding="utf-8"))
    assert isinstance(data, dict)
    return data


# The files


def test_the_profiles_people_look_for_are_there() -> None:
    assert set(NAMES) >= ASKED_FOR
    assert profiles_dir() == PROFILES


@pytest.mark.parametrize("name", NAMES)
def test_a_profile_is_valid_and_named_as_its_file(name: str) -> None:
    path = PROFILES / f"{name}.yaml"
    workload = load_workload(path)

    assert workload.name == name
    assert workload.description.endswith(".")
    jsonschema.Draft202012Validator(schema_of(Workload)).validate(typed(name))
    first = path.read_text(encoding="utf-8").splitlines()[0]
    assert (path.parent / first.removeprefix("# yaml-language-server: $schema=")).resolve() == (
        ROOT / "schema" / "workload.schema.json"
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_draft_of_a_profile_has_settings_to_try(name: str) -> None:
    workload = load_workload(PROFILES / f"{name}.yaml")
    assert workload.drafts != "auto"
    arms = [arm_of(draft, draft.model)[0] for draft in workload.drafts]

    assert all(arm.configs for arm in arms)
    # One launch a method and `off` twice is the least a study makes.
    assert workload.budget.launches >= len(arms) + 2
    assert max([0, *workload.traffic.concurrency]) <= workload.running_limit


@pytest.mark.parametrize("name", [name for name in NAMES if "vllm" in str(typed(name)["engine"])])
def test_vllm_takes_every_setting_of_a_profile(name: str) -> None:
    workload = load_workload(PROFILES / f"{name}.yaml")
    assert workload.drafts != "auto"
    for draft in workload.drafts:
        for spec in arm_of(draft, draft.model)[0].configs:
            check_method(spec, (0, 32, 0))
            assert f'"num_speculative_tokens":{spec.n}' in "".join(speculative_args(spec, (0, 32, 0))).replace(" ", "")
    # vLLM answers 400 to a request with min_p once speculation is on.
    assert not workload.sampling.min_p


def keys_in(value: Any, place: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for item in value if isinstance(value, list) else []:
        yield from keys_in(item, place)
    for key, child in value.items() if isinstance(value, dict) else []:
        yield (*place, key)
        yield from keys_in(child, (*place, key))


def test_every_key_stands_in_some_profile() -> None:
    shown = {way for name in NAMES for way in keys_in(typed(name))}
    assert set(all_keys(schema_of(Workload))) - shown == set()


def test_every_prompt_set_stands_in_some_profile_and_no_other() -> None:
    used = {item["set"] for name in NAMES for item in typed(name)["traffic"]["prompts"]}
    assert used == set(vendored_sets())


def test_every_profile_stands_in_the_list() -> None:
    listed = re.findall(r"^\| \[([\w-]+)\]\(([\w.-]+)\)", (PROFILES / "README.md").read_text(encoding="utf-8"), re.M)
    assert sorted(listed) == [(name, f"{name}.yaml") for name in NAMES]


def test_the_demonstration_asks_what_it_promises() -> None:
    demo = load_workload(PROFILES / "smollm2-chat-cpu.yaml")

    assert demo.drafts != "auto"
    assert [draft.method for draft in demo.drafts] == ["eagle3", "ngram"]
    assert demo.traffic.concurrency == [1, 4, 8]
    assert demo.sampling.temperatures == [0, 1]
    assert "--enforce-eager" in demo.engine_options.args
    assert resolve_path(PROFILES, "./smollm2-135m/eagle3") == str(HEAD)
    # The folder of the head has the model's name and is not the model.
    assert resolve_path(PROFILES, demo.model) == "smollm2-135m"


# The head


def test_the_head_is_the_one_its_readme_describes() -> None:
    weights = (HEAD / "model.safetensors").read_bytes()
    readme = (HEAD / "README.md").read_text(encoding="utf-8")
    config = json.loads((HEAD / "config.json").read_text(encoding="utf-8"))

    assert hashlib.sha256(weights).hexdigest() in readme
    (length,) = struct.unpack("<Q", weights[:8])
    tensors = json.loads(weights[8 : 8 + length])
    # fc 576*1728, lm_head 8192*576, attention 576*1152 + 2*192*1152 + 576*576, MLP 3*576*1536, norms 4*576:
    # 995328 + 4718592 + 1437696 + 2654208 + 2304 = 9808128. d2t and t2d are maps, no parameters.
    size = 0
    for name, tensor in tensors.items():
        if tensor.get("dtype") == "BF16":
            assert name not in ("d2t", "t2d")
            rows, columns = [*tensor["shape"], 1][:2]
            size += rows * columns
    assert size == 9_808_128
    assert "9,808,128 parameters" in readme
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert tensors["d2t"]["shape"] == [config["draft_vocab_size"]] == [8192]
    assert tensors["t2d"]["shape"] == [config["vocab_size"]] == [49152]
    assert "Apache-2.0" in readme


def test_the_heads_figures_agree_with_each_other() -> None:
    readme = (HEAD / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| [\w -]+ \| [01] \| [\d,]+ \| ([\d.]+) \|((?: \.\d+ \|){7})$", readme, re.M)

    assert len(rows) == 4
    for tau, by_position in rows:
        a = [float(text) for text in by_position.strip(" |").split(" | ")]
        assert a == sorted(a, reverse=True)
        assert float(tau) == pytest.approx(1 + sum(a), abs=5e-4)


# tuner init


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of the command in this process."""
    previous, sys.argv = sys.argv, ["tuner", *args]
    try:
        main()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        sys.argv = previous
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_init_writes_a_workload_with_its_comments(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "init")

    assert (code, err) == (0, "")
    assert out.splitlines()[0] == "wrote workload.yaml from the profile chat"
    assert load_workload(here / "workload.yaml") == load_workload(PROFILES / "chat.yaml")
    kept = set((PROFILES / "chat.yaml").read_text().splitlines()[1:])
    assert kept <= set((here / "workload.yaml").read_text().splitlines())
    # No editor looks for a schema that is not there: the line is told, not set.
    assert not re.search(r"^#\s+yaml-language-server", (here / "workload.yaml").read_text(), re.M)


def test_init_never_overwrites_unasked(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "workload.yaml").write_text("mine")

    assert run(capsys, "init") == (
        2, "", "tuner: workload.yaml exists: choose another name, or replace it with --force\n",
    )  # fmt: skip
    assert (here / "workload.yaml").read_text() == "mine"
    assert run(capsys, "init", "--force")[0] == 0
    assert load_workload(here / "workload.yaml").name == "chat"


def test_init_for_a_model_and_engines_of_ones_own(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "my model").mkdir()
    (here / "sub").mkdir()
    code, out, _ = run(
        capsys, "init", "sub/bot.yaml", "--from", "code", "--model", "./my model", "--engine", "a", "--engine", "b"
    )
    workload = load_workload(here / "sub" / "bot.yaml")

    assert code == 0
    assert workload.name == "bot"
    assert workload.model == str(here / "my model")
    assert workload.engine == ["a", "b"]
    # The head and the small model were Qwen3 8B's: only what needs no weights is left.
    assert workload.drafts != "auto"
    assert [draft.method for draft in workload.drafts] == ["ngram"]
    assert "  # - method: eagle3\n  #   model: AngelSlim/Qwen3-8B_eagle3\n" in (here / "sub" / "bot.yaml").read_text()
    assert out.count("left out: ") == 2
    assert "left out: draft_model Qwen/Qwen3-0.6B" in out


def test_init_names_the_shipped_head_by_its_full_path(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "init", "--from", "smollm2-chat-cpu")[0] == 0
    workload = load_workload(here / "workload.yaml")

    assert workload.drafts != "auto"
    assert workload.drafts[0].model == str(HEAD)


@pytest.mark.parametrize("model", [None, "org/other"])
@pytest.mark.parametrize("name", NAMES)
def test_a_starter_of_every_profile_can_be_loaded(name: str, model: str | None, tmp_path: Path) -> None:
    target = tmp_path / "workload.yaml"
    made = starter(name, target, model, ["mine"])
    target.write_text(made.text, encoding="utf-8")
    original, workload = load_workload(PROFILES / f"{name}.yaml"), load_workload(target)

    assert workload.engine == "mine"
    assert workload.model == (model or original.model)
    assert workload.traffic == original.traffic
    assert original.drafts != "auto"
    weights = sum(draft.model is not None for draft in original.drafts)
    assert len(made.unfit) == (weights if model else 0)


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--from", "json"], "there is no profile json: did you mean json-sql?"),
        (["--from", "zzz"], "there is no profile zzz: use one of " + ", ".join(NAMES)),
        (["--model", "./gone"], "./gone does not exist"),
        (["gone/workload.yaml"], "the folder gone does not exist: make it, or choose another"),
        (["."], ". is not a file: choose another name"),
    ],
)
def test_init_refuses_in_a_sentence(
    args: list[str], sentence: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "init", *args)

    assert (code, out) == (2, "")
    assert err.startswith(f"tuner: {sentence}")
    assert err.count("\n") == 1
    assert list(here.iterdir()) == []


def test_init_lists_the_profiles(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "init", "--list")

    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == NAMES
    assert list(here.iterdir()) == []


def test_an_installed_package_brings_its_own_profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site-packages" / "tuner"
    (package / "spec").mkdir(parents=True)
    monkeypatch.setattr("tuner.spec.profiles.__file__", str(package / "spec" / "profiles.py"))
    with pytest.raises(UserError, match="install it again"):
        profiles_dir()

    (package / "profiles").mkdir()
    (package / "profiles" / "chat.yaml").write_text((PROFILES / "chat.yaml").read_text())
    (package / "profiles" / "drafts.yaml").write_text("# no workload\n")
    assert profile_paths() == {"chat": package / "profiles" / "chat.yaml"}
    assert profile_path("chat").is_file()


def test_the_wheel_has_the_profiles_in_the_package() -> None:
    import tomllib

    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert set(wheel["only-include"]) == {"tuner", "profiles"}
    assert wheel["sources"] == {"profiles": "tuner/profiles"}


# tuner schema


def test_schema_prints_and_writes_the_same(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shipped = (ROOT / "schema" / "workload.schema.json").read_text(encoding="utf-8")

    assert run(capsys, "schema") == (0, shipped, "")
    assert run(capsys, "schema", "workload", "--output", "s.json") == (0, "wrote s.json\n", "")
    assert (here / "s.json").read_text(encoding="utf-8") == shipped


def test_a_link_is_followed_and_stays(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "real.json").write_text("old")
    (here / "link.json").symlink_to("real.json")

    assert run(capsys, "schema", "--output", "link.json")[0] == 0
    assert (here / "link.json").is_symlink()
    assert (here / "real.json").read_text(encoding="utf-8").startswith("{")


def test_schema_of_the_recommendation(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "schema", "recommendation")

    assert code == 0
    jsonschema.Draft202012Validator.check_schema(json.loads(out))


def test_the_command_starts_without_the_libraries_it_may_need_later(tmp_path: Path) -> None:
    code = "import sys, tuner.cli; print([m for m in ('pydantic', 'yaml', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout == "[]\n"
