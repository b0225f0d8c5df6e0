"""The shipped catalogue of drafts: facts with sources, and how a target is recognised."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.engines.environments import Environment
from tuner.errors import UserError
from tuner.run.auto_drafts import auto_drafts
from tuner.spec.catalogue import known_drafts, read_catalogue
from tuner.spec.speculation import DRAFT_METHODS

VLLM = Environment("v", "vllm", "0.32.0", None, None, "gpu")
SGLANG = Environment("s", "sglang", "0.5.23", None, None, "gpu")
ENTRIES = [(target.target, draft) for target in read_catalogue().targets for draft in target.drafts]


def test_every_entry_is_a_fact_with_its_source() -> None:
    assert len(ENTRIES) > 50
    for target, draft in ENTRIES:
        assert draft.source.startswith("https://") or (Path(__file__).parents[1] / draft.source).is_file(), target
        assert (draft.model is not None) is (draft.method in DRAFT_METHODS) or draft.method == "mtp", target
        if draft.format in ("speculators", "medusa", "eagle"):
            assert draft.engines == ["vllm"], f"{draft.model}: SGLang does not load this format"


def test_no_pair_and_no_target_is_listed_twice() -> None:
    targets = [target.target.lower() for target in read_catalogue().targets]
    assert len(set(targets)) == len(targets)
    pairs = [(target, draft.method, draft.model) for target, draft in ENTRIES]
    assert len(set(pairs)) == len(pairs)


def test_shipped_drafts_are_there() -> None:
    shipped = [draft for _target, draft in ENTRIES if draft.model and draft.model.startswith("./")]
    assert len(shipped) == 1
    assert (Path(str(shipped[0].place)) / "config.json").is_file()


@pytest.mark.parametrize(
    "name",
    ["Qwen/Qwen3-8B", "qwen/qwen3-8b", "/data/models/Qwen3-8B", "mirror/Qwen3-8B/", "Qwen3-8B"],
)
def test_a_target_goes_by_the_last_part_of_its_name(name: str) -> None:
    models = [draft.model for draft in known_drafts([name])]
    assert "AngelSlim/Qwen3-8B_eagle3" in models
    assert "Qwen/Qwen3-0.6B" in models
    assert known_drafts(["Qwen3-8B-AWQ"]) == ()  # another checkpoint: its heads are not these


def test_auto_from_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One draft a method that every engine loads, two at the most; the others stay named with their reason."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    found = auto_drafts("meta-llama/Llama-3.1-8B-Instruct", [VLLM, SGLANG])
    assert [(draft.method, draft.model) for draft in found.drafts] == [
        ("ngram", None),
        ("eagle3", "lmsys/SGLang-EAGLE3-Llama-3.1-8B-Instruct-SpecForge"),
        ("dflash", "z-lab/LLaMA3.1-8B-Instruct-DFlash-UltraChat"),
    ]
    reasons = {gone.what: gone.reason for gone in found.removed}
    assert (
        "sglang is not known to load its format" in reasons["eagle3 RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3"]
    )
    alone = auto_drafts("meta-llama/Llama-3.1-8B-Instruct", [VLLM])
    assert (
        "one draft for eagle3"
        in {gone.what: gone.reason for gone in alone.removed}["eagle3 RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3"]
    )
    bundled = auto_drafts("deepseek-ai/DeepSeek-V3", [VLLM])
    assert [draft.method for draft in bundled.drafts] == ["ngram", "mtp"]


def test_auto_downloads_nothing_for_a_local_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    target = tmp_path / "Qwen3-8B"
    target.mkdir()
    (target / "config.json").write_text('{"architectures": ["Qwen3ForCausalLM"]}')
    found = auto_drafts(str(target), [VLLM])
    assert [draft.method for draft in found.drafts] == ["ngram"]
    assert {gone.what for gone in found.removed} >= {"eagle3 AngelSlim/Qwen3-8B_eagle3", "draft_model Qwen/Qwen3-0.6B"}
    assert all("download it, or name it in drafts" in gone.reason for gone in found.removed)
    snapshot = tmp_path / "hub" / "models--Qwen--Qwen3-0.6B" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    here = auto_drafts(str(target), [VLLM])
    assert [(draft.method, draft.model) for draft in here.drafts] == [
        ("ngram", None),
        ("draft_model", "Qwen/Qwen3-0.6B"),
    ]


def test_a_mistake_in_a_catalogue_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "drafts.yaml"
    path.write_text(
        "targets:\n  - target: org/m\n    drafts:\n"
        "      - {method: eagel3, format: eagle3, engines: [vllm], source: s}\n"
    )
    with pytest.raises(
        UserError, match=r"drafts.yaml:4: targets\[0\].drafts\[0\].method must be .*did you mean eagle3"
    ):
        read_catalogue(path)
