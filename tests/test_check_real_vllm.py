"""Preflight against vLLM's own parser: what passes here resolves there, what vLLM refuses is refused here.

The other direction does not hold, which is what preflight is for: vLLM takes most of the wrong pairs, and dies or
drafts nonsense once it serves.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import real_vllm
from pairs import Pair, look, pairs

from tuner.engines.vllm_versions import speculative_args
from tuner.errors import UserError
from tuner.spec.speculation import SpecConfig

pytestmark = [pytest.mark.real_vllm, pytest.mark.timeout(1500)]

#: Configs that hold what a case is about and not what Transformers wants to read, and what this machine lacks.
INCOMPLETE = {
    "a multimodal target": "no model_type",
    "DFlash for a target deep enough (C07, second part)": "no model_type",
    "less than a DFlash block": "no model_type",
    "adaptive verification with all that it needs": "no model_type",
    "a quantised target with a plain head": "no group size",
    "block on a method of the first runner": "arctic-inference is not installed",
    "suffix needs a package": "arctic-inference is not installed",
    "MTP in the target's own files": "no latent attention",
    "MTP layers behind the last one, known by their place alone": "no experts",
}


def whole(pair: Pair) -> bool:
    """vLLM as it is installed, and a target that Transformers can read."""
    data = pair.data
    newest = data.get("engine", "vllm") == "vllm" and "version" not in data and "tree" not in data
    return newest and "model_type" in data["target"]["config"] and pair.name not in INCOMPLETE


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[list[str], str | None]]:
    """For each pair: the errors of preflight, and vLLM's own."""
    found: dict[str, list[str]] = {}
    commands: dict[str, list[str]] = {}
    for number, pair in enumerate(filter(whole, pairs())):
        folder = tmp_path_factory.mktemp("pair") / str(number)
        errors = [finding.rule for finding in look(pair, folder) if finding.is_error]
        try:
            commands[pair.name] = command(pair.data, folder)
        except UserError:
            continue  # tuner has no command for it
        found[pair.name] = errors
    answers: dict[str, Any] = real_vllm.resolve(commands)["commands"]
    return {name: (found[name], answers[name].get("error")) for name in found}


def command(data: Any, folder: Path) -> list[str]:
    draft = str(folder / data.get("draft_folder", "draft")) if data.get("draft") else None
    spec = SpecConfig(data["method"], n=data.get("n", 3), draft=draft, options=tuple(data.get("options", {}).items()))
    length = ["--max-model-len", str(data["max_model_len"])] if "max_model_len" in data else []
    return [
        "--model", str(folder / data.get("target_folder", "target")), "--tokenizer", str(real_vllm.target()),
        "--max-num-seqs", str(data.get("running", 8)), "--tensor-parallel-size", str(data.get("tp", 1)), *length,
        *data.get("args", ()), *speculative_args(spec, (0, 32, 0)),
    ]  # fmt: skip


def test_what_passes_here_resolves_there(told: dict[str, tuple[list[str], str | None]]) -> None:
    valid = {name: theirs for name, (ours, theirs) in told.items() if not ours}
    assert len(valid) >= 30
    assert {name: error for name, error in valid.items() if error} == {}


def test_what_vllm_refuses_is_refused_here(told: dict[str, tuple[list[str], str | None]]) -> None:
    refused = {name: ours for name, (ours, theirs) in told.items() if theirs}
    assert len(refused) >= 10
    assert {name for name, ours in refused.items() if not ours} == set()


def test_most_wrong_pairs_are_taken_by_vllm(told: dict[str, tuple[list[str], str | None]]) -> None:
    """Missing norms, maps out of range, another width: its parser has no word against them."""
    silent = {rule for ours, theirs in told.values() if ours and not theirs for rule in ours}
    assert silent >= {"tensors.missing", "d2t.range", "d2t.missing", "hidden.size", "layers.exist", "medusa.bias"}
