"""Medusa heads of a reduced vocabulary: the option they load with, and what is refused because no option helps."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from pairs import Shapes, write_model, write_weights

from tuner.engines.base import LaunchOptions
from tuner.engines.environments import Environment
from tuner.engines.preflight.check import check
from tuner.engines.preflight.finding import Finding
from tuner.engines.vllm import VllmEngine
from tuner.engines.vllm_loader import FLAG, loader_args, loader_config
from tuner.errors import UserError
from tuner.spec.speculation import OFF, SpecConfig

TARGET = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8, "intermediate_size": 16,
    "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "vocab_size": 32,
    "max_position_embeddings": 128, "torch_dtype": "bfloat16",
}  # fmt: skip
HEAD: dict[str, Any] = {
    "model_type": "medusa", "medusa_num_heads": 2, "medusa_num_layers": 1, "hidden_size": 8, "vocab_size": 32,
    "truncated_vocab_size": 4, "original_lm_head": True,
}  # fmt: skip
OFF_CHECK = '{"enable_weights_track": false}'
V32 = (0, 32, 0)


def head(folder: Path, token_map: tuple[int, ...] = (0, 5, 9, 31), **changes: Any) -> SpecConfig:
    """Two blocks, one output matrix of `rows` rows under `matrix`, and the map."""
    rows, matrix = changes.pop("rows", 4), changes.pop("matrix", "lm_head.weight")
    draft = write_model(folder / "heads", {"config": {k: v for k, v in {**HEAD, **changes}.items() if v is not None}})
    shapes: Shapes = {f"blocks.{i}.layers.0.weight": ("BF16", [8, 8]) for i in range(2)}
    shapes |= {matrix: ("BF16", [rows, 8]), "token_map": ("I64", [len(token_map)])}
    write_weights(Path(draft), (shapes, {"token_map": struct.pack(f"<{len(token_map)}q", *token_map)}))
    return SpecConfig("medusa", n=2, draft=draft)


def engine(version: str = "0.32.0") -> VllmEngine:
    return VllmEngine(Environment("vllm", "vllm", version, "/py", None, "gpu"))


def look(folder: Path, spec: SpecConfig, *args: str, version: str = "0.32.0") -> list[Finding]:
    target = folder / "target"
    if not target.exists():
        write_model(target, {"config": TARGET})
    found = check(engine(version), str(target), spec, LaunchOptions(8, args=args))
    return [f for f in found if f.rule.startswith(("medusa.", "tensors.", "launch."))]


def told(found: list[Finding], rule: str) -> tuple[str, str]:
    (one,) = [f for f in found if f.rule == rule]
    return one.severity, one.message


def test_a_reduced_medusa_head_is_launched_with_the_option_that_lets_it_load(tmp_path: Path) -> None:
    spec, options = head(tmp_path), LaunchOptions(8, args=("--dtype", "float32"))
    launched = engine().launch("/m", spec, options, 8001, "key").argv
    deployed = engine().deploy_command("/m", spec, options)
    for argv in (launched, deployed):
        at = argv.index(FLAG)
        assert argv[at - 2 : at + 3] == ("--dtype", "float32", FLAG, OFF_CHECK, "--speculative-config")
    assert FLAG not in engine().launch("/m", OFF, options, 8001, "key").argv
    assert FLAG not in engine("0.31.0").deploy_command("/m", spec, options)  # not read there: told, and not guessed


def test_only_a_reduced_medusa_head_gets_the_option(tmp_path: Path) -> None:
    whole = head(tmp_path, truncated_vocab_size=None, rows=32)
    assert loader_args(whole, ("--x",), V32) == ("--x",)
    assert loader_args(SpecConfig("eagle3", n=2, draft=whole.draft), (), V32) == ()
    assert loader_args(SpecConfig("medusa", n=2, draft="org/not-here"), (), V32) == ()


@pytest.mark.parametrize(
    ("given", "merged"),
    [
        ((FLAG, '{"num_threads": 2}'), {"enable_weights_track": False, "num_threads": 2}),
        ((f'{FLAG}={{"num_threads": 2}}',), {"enable_weights_track": False, "num_threads": 2}),
        (("--model_loader_extra_config", '{"num_threads": 2}'), {"enable_weights_track": False, "num_threads": 2}),
        ((f"{FLAG}.num_threads", "2"), {"enable_weights_track": False, "num_threads": 2}),
        ((f"{FLAG}.num_threads=2", FLAG, "{}"), {"enable_weights_track": False, "num_threads": 2}),
        ((FLAG, '{"enable_weights_track": true}'), {"enable_weights_track": True}),  # theirs to set
        ((f"{FLAG}.enable_weights_track=true",), {"enable_weights_track": True}),
        ((), {"enable_weights_track": False}),
    ],
)
def test_the_users_own_loader_options_are_kept_and_outweigh_ours(
    tmp_path: Path, given: tuple[str, ...], merged: dict[str, Any]
) -> None:
    args = loader_args(head(tmp_path), ("--dtype", "float32", *given, "--enforce-eager"), V32)
    assert args[:-1] == ("--dtype", "float32", "--enforce-eager", FLAG)
    assert json.loads(args[-1]) == merged


def test_loader_options_that_are_no_object_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is 'fast': give a JSON object"):
        loader_config([FLAG, "fast"])
    severity, message = told(look(tmp_path, head(tmp_path), FLAG, "[1]"), "medusa.medusa_fits")
    assert severity == "error"
    assert "give a JSON object" in message


def test_check_passes_a_reduced_medusa_head_and_says_what_its_option_gives_up(tmp_path: Path) -> None:
    found = look(tmp_path, head(tmp_path))
    assert [f.severity for f in found] == ["note"]
    assert told(found, "medusa.loader")[1].endswith(
        f"so the command has {FLAG} '{OFF_CHECK}': vLLM then no longer notices missing weights, the target's among "
        "them, and tuner checked the draft's alone"
    )
    assert told(look(tmp_path, SpecConfig("medusa", n=2, draft=str(tmp_path / "heads")), version="0.31.0"),
                "medusa.loader")[0] == "warning"  # fmt: skip


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (("--load-format", "runai_streamer"), "an option that --load-format runai_streamer refuses"),
        (("--load-format=dummy",), "--load-format dummy refuses"),
        (("--load_format", "ipc_cache"), "--load-format ipc_cache refuses"),
        ((FLAG, '{"enable_weights_track": true}'), "set it to false"),
    ],
)
def test_check_refuses_a_reduced_medusa_head_where_the_option_cannot_work(
    tmp_path: Path, args: tuple[str, ...], word: str
) -> None:
    severity, message = told(look(tmp_path, head(tmp_path), *args), "medusa.loader")
    assert severity == "error"
    assert word in message
    fine = look(tmp_path, SpecConfig("medusa", n=2, draft=str(tmp_path / "heads")), "--load-format", "safetensors")
    assert [f.severity for f in fine] == ["note"]


def test_check_refuses_a_reduced_medusa_head_with_output_matrices_of_its_own(tmp_path: Path) -> None:
    """vLLM makes room for 32 rows, cuts what it reads to 4, and asserts that they are 32."""
    found = look(tmp_path, head(tmp_path, original_lm_head=None, matrix="lm_heads.0.weight"))
    assert told(found, "medusa.own_heads")[0] == "error"


@pytest.mark.parametrize(
    ("changes", "rule", "word"),
    [
        ({}, None, ""),
        ({"rows": 32}, None, ""),  # cut by the map
        ({"matrix": "lm_heads.0.weight"}, None, ""),  # which vLLM takes for it
        ({"matrix": "other.lm_head"}, "tensors.missing", "holds no lm_head.weight"),
        ({"rows": 5}, "tensors.shape", "is [5, 8] and must be [4, 8]"),
        ({"truncated_vocab_size": None, "rows": 32}, None, ""),
        ({"truncated_vocab_size": None, "rows": 4}, "tensors.shape", "is [4, 8] and must be [32, 8]"),
        ({"truncated_vocab_size": None, "matrix": "other.lm_head"}, "tensors.missing", "holds no lm_head.weight"),
        ({"token_map": (0, 5, 9)}, "tensors.shape", "token_map of"),
        ({"token_map": (0, 5, 9, 32)}, "medusa.token_map", "holds 32 and the target has 32 tokens"),
        ({"token_map": (0, -5, 9, 3)}, "medusa.token_map", "holds -5"),
    ],
)
def test_the_shared_output_matrix_of_a_medusa_head_and_its_map_are_there_and_fit(
    tmp_path: Path, changes: dict[str, Any], rule: str | None, word: str
) -> None:
    errors = [f for f in look(tmp_path, head(tmp_path, **changes)) if f.is_error]
    assert [f.rule for f in errors] == ([rule] if rule else [])
    assert all(word in f.message for f in errors)


def test_a_medusa_map_that_holds_a_token_twice_is_a_warning(tmp_path: Path) -> None:
    assert told(look(tmp_path, head(tmp_path, (0, 5, 5, 9))), "medusa.token_map")[0] == "warning"
