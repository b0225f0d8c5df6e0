"""`tuner check`: its contract, exit codes, the command it emits, and what it never imports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import real_vllm
from conftest import Bench
from pairs import write_model

import tuner
from tuner.cli import app
from tuner.errors import UserError

HEAD = Path(tuner.__file__).parents[1] / "profiles" / "smollm2-135m" / "eagle3"
#: The target of the shipped head, as its files on the hub describe it.
SMOLLM2: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "vocab_size": 49152,
    "max_position_embeddings": 8192, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
}  # fmt: skip


def run(capsys: pytest.CaptureFixture[str], *argv: object, expected: int = 0) -> dict[str, Any]:
    """The JSON of `tuner check … --json`; arguments behind `--` stay at the end."""
    words = ["check", *map(str, argv)]
    place = words.index("--") if "--" in words else len(words)
    words.insert(place, "--json")
    with pytest.raises(SystemExit) as ended:
        app(words)
    assert ended.value.code == expected
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


def rules(told: dict[str, Any], severity: str) -> set[str]:
    return {finding["rule"] for finding in told["findings"] if finding["severity"] == severity}


@pytest.fixture
def target(tmp_path: Path) -> Path:
    write_model(tmp_path / "smollm2", {"config": SMOLLM2})
    return tmp_path / "smollm2"


@pytest.mark.parametrize(
    ("engine", "word"), [("vllm", '"method": "eagle3"'), ("sglang", "--speculative-algorithm EAGLE3")]
)
def test_the_shipped_head_fits(capsys: pytest.CaptureFixture[str], target: Path, engine: str, word: str) -> None:
    told = run(capsys, "--target", target, "--draft", HEAD, "--method", "eagle3", "--engine", engine, "--n", 4)
    assert told["ok"] is True
    assert told["method"] == "eagle3"
    assert word in told["command"]
    assert rules(told, "error") == set()
    assert "d2t.unread" not in rules(told, "note")  # its 8,192 offsets were read
    assert set(told["findings"][0]) == {"severity", "rule", "message", "source"}


@pytest.mark.real_vllm
def test_the_real_target_takes_the_shipped_head(capsys: pytest.CaptureFixture[str]) -> None:
    for engine in ("vllm", "sglang"):
        told = run(
            capsys, "--target", real_vllm.target(), "--draft", HEAD, "--method", "eagle3", "--engine", engine, "--n", 4
        )
        assert told["ok"] is True


def test_newest_versions_are_assumed(capsys: pytest.CaptureFixture[str], target: Path) -> None:
    for engine, version in (("vllm", "0.32.0"), ("sglang", "0.5.23")):
        told = run(capsys, "--target", target, "--draft", "none", "--method", "ngram", "--engine", engine, "--n", 4)
        assert (told["engine"], told["engine_version"]) == (engine, version)


def test_c01_the_emitted_method_is_the_heads(capsys: pytest.CaptureFixture[str], target: Path) -> None:
    told = run(
        capsys, "--target", target, "--draft", HEAD, "--method", "eagle", "--engine", "sglang", "--n", 3, expected=1
    )
    assert told["ok"] is False
    assert told["method"] == "eagle3"
    assert "--speculative-algorithm EAGLE3" in told["command"]
    assert "use method eagle3" in told["findings"][0]["message"]


def test_the_method_is_the_drafts_where_none_is_given(capsys: pytest.CaptureFixture[str], target: Path) -> None:
    assert run(capsys, "--target", target, "--draft", HEAD, "--n", 3)["method"] == "eagle3"
    assert run(capsys, "--target", target, "--n", 3)["method"] == "ngram"
    write_model(target.parent / "mtp", {"config": SMOLLM2 | {"num_nextn_predict_layers": 1}})
    told = run(capsys, "--target", target.parent / "mtp")
    assert (told["method"], told["setting"]) == ("mtp", "mtp N=1")


@pytest.mark.parametrize(
    ("version", "command"),
    [
        ("0.6.3", ["--speculative-model '[ngram]'", "--num-speculative-tokens 5", "--ngram-prompt-lookup-max 4"]),
        ("0.8.3", ['"method": "ngram"', '"num_speculative_tokens": 5', '"prompt_lookup_max": 4']),
        ("0.11.0", ['"method": "ngram"', '"num_speculative_tokens": 5', '"prompt_lookup_max": 4']),
    ],
)
def test_c13_flags_by_version(
    capsys: pytest.CaptureFixture[str], target: Path, version: str, command: list[str]
) -> None:
    told = run(
        capsys, "--target", target, "--draft", "none", "--method", "ngram", "--engine", "vllm", "--n", 5,
        "--engine-version", version, "--option", "prompt_lookup_max=4",
    )  # fmt: skip
    for word in command:
        assert word in told["command"]
    assert ("--speculative-config" in told["command"]) is (version != "0.6.3")


def test_options_that_look_like_lists(capsys: pytest.CaptureFixture[str], target: Path) -> None:
    argv = ("--target", target, "--draft", HEAD, "--method", "eagle3", "--engine", "vllm", "--n", 2)
    told = run(capsys, *argv, "--engine-version", "0.20.0", "--option", "speculative_token_tree=[(0,), (0, 0)]")
    assert '"speculative_token_tree": "[(0,), (0, 0)]"' in told["command"]
    told = run(capsys, *argv, "--option", "num_speculative_tokens_per_batch_size=1,8,3", expected=1)
    assert (told["setting"], told["command"]) == ("eagle3 N=up to 2 by load", None)
    assert rules(told, "error") == {"launch.arguments"}


def test_c14_topk_1_makes_nodes_a_dummy(capsys: pytest.CaptureFixture[str], target: Path) -> None:
    seen = set()
    for nodes in (5, 8, 16, 24):
        told = run(
            capsys, "--target", target, "--draft", HEAD, "--method", "eagle3", "--engine", "sglang",
            "--steps", 4, "--topk", 1, "--nodes", nodes,
        )  # fmt: skip
        seen.add((told["setting"], told["command"]))
        assert ("tree.is_a_chain" in rules(told, "warning")) is (nodes != 5)
    [(setting, command)] = seen
    assert setting == "eagle3 N=4"
    assert command.endswith("--speculative-num-steps 4 --speculative-eagle-topk 1 --speculative-num-draft-tokens 5")


def test_c14_half_a_triple(capsys: pytest.CaptureFixture[str], target: Path) -> None:
    for half in (("--topk", 4), ("--steps", 4), ("--nodes", 8), ("--steps", 4, "--topk", 4)):
        told = run(
            capsys, "--target", target, "--draft", HEAD, "--method", "eagle3", "--engine", "sglang", *half, expected=1
        )
        assert "tree.half" in rules(told, "error")
        assert "give all three, or n" in told["findings"][0]["message"]


def test_two_lengths_for_one_draft(capsys: pytest.CaptureFixture[str], target: Path) -> None:
    told = run(
        capsys, "--target", target, "--draft", HEAD, "--method", "eagle3", "--engine", "sglang", "--n", 3,
        "--steps", 5, "--topk", 1, "--nodes", 6, expected=1,
    )  # fmt: skip
    assert "tree.and_n" in rules(told, "error")


def test_a_tree_that_cannot_be_filled(capsys: pytest.CaptureFixture[str], target: Path) -> None:
    """Depth 1, topk 4: 1 + 4 nodes at most."""
    told = run(
        capsys, "--target", target, "--draft", HEAD, "--method", "eagle3", "--engine", "sglang",
        "--steps", 1, "--topk", 4, "--nodes", 8, expected=1,
    )  # fmt: skip
    assert rules(told, "error") == {"setting.possible"}
    assert told["command"] is None
    assert "allows at most 5" in told["findings"][0]["message"]


def test_c11_n_from_the_checkpoint_or_not_at_all(capsys: pytest.CaptureFixture[str], target: Path) -> None:
    write_model(target.parent / "three", {"config": {"n_predict": 3}})
    write_model(target.parent / "none", {"config": {}})
    told = run(capsys, "--target", target, "--draft", target.parent / "three", "--method", "mtp")
    assert told["setting"] == "mtp N=3"
    told = run(capsys, "--target", target, "--draft", target.parent / "none", "--method", "mtp", expected=1)
    assert "n.missing" in rules(told, "error")


def test_n_that_checkpoints_state(capsys: pytest.CaptureFixture[str], target: Path) -> None:
    drafts: dict[str, tuple[str, dict[str, Any], str]] = {
        "a": ("medusa", {"model_type": "medusa", "num_heads": 4, "hidden_size": 576}, "medusa N=4"),
        "b": ("dflash", {"dflash_config": {"target_layer_ids": [1]}, "block_size": 16}, "dflash N=15"),
        "c": ("dspark", {"architectures": ["Qwen3DSparkModel"], "block_size": 7}, "dspark N=7"),
        "d": (
            "eagle3",
            {
                "speculators_model_type": "eagle3",
                "speculators_config": {"proposal_methods": [{"speculative_tokens": 5}]},
                "transformer_layer_config": {},
            },
            "eagle3 N=5",
        ),
    }  # fmt: skip
    for name, (method, config, setting) in drafts.items():
        write_model(target.parent / name, {"config": config})
        told = run(capsys, "--target", target, "--draft", target.parent / name, "--method", method)
        assert told["setting"] == setting


def test_methods_under_their_engines_names(capsys: pytest.CaptureFixture[str], target: Path) -> None:
    for name, method in (("EAGLE3", "eagle3"), ("eagle-3", None)):
        argv = ("--target", target, "--draft", HEAD, "--method", name, "--engine", "sglang", "--n", 3)
        told = run(capsys, *argv, expected=0 if method else 1)
        assert told["method"] == method
    assert "unknown method 'eagle_3': use one of" in told["findings"][0]["message"]
    write_model(target.parent / "small", {"config": SMOLLM2 | {"num_hidden_layers": 2}})
    argv = ("--target", target, "--draft", target.parent / "small", "--method", "STANDALONE", "--engine", "sglang")
    assert run(capsys, *argv)["method"] == "draft_model"


def test_c09_an_mlp_speculator_by_its_method(capsys: pytest.CaptureFixture[str], target: Path) -> None:
    argv = ("--target", target, "--draft", HEAD, "--method", "mlp_speculator", "--n", 3, "--tp", 4)
    told = run(capsys, *argv, expected=1)
    assert rules(told, "error") == {"method.gone"}
    assert "tensor_parallel 4 forced" in told["findings"][0]["message"]


def test_engine_arguments_behind_two_dashes(capsys: pytest.CaptureFixture[str], target: Path) -> None:
    tree = ("--target", target, "--draft", HEAD, "--method", "eagle3", "--engine", "sglang", "--steps", 3, "--topk", 4)
    told = run(capsys, *tree, "--nodes", 8, "--", "--page-size", "64", "--attention-backend", "trtllm_mla", expected=1)
    assert "flashinfer or fa3 or triton" in told["findings"][0]["message"]
    told = run(capsys, *tree, "--nodes", 8, "--", "--page-size", "64", "--attention-backend", "flashinfer")
    assert "--page-size 64" in told["command"]


def test_memory_and_lengths_from_the_command_line(capsys: pytest.CaptureFixture[str], target: Path) -> None:
    """The target keeps 2 x 30 x 3 x 64 x 2 B = 23,040 B a token, the head 768 B and 19.7 MB: 400,000 tokens become
    (400,000 x 23,040 - 19.7e6) / 23,808 = 386,270, of which 75 requests of 5,120 fit where 78 did."""
    told = run(
        capsys, "--target", target, "--draft", HEAD, "--method", "eagle3", "--n", 4, "--kv-tokens", 400_000,
        "--prompt-tokens", 4096, "--output-tokens", 1024, "--concurrency", 76,
    )  # fmt: skip
    [capacity] = [f["message"] for f in told["findings"] if f["rule"] == "memory.capacity"]
    assert "from 400,000 to about 386,2" in capacity
    assert "78 requests fit the KV cache without speculation and 75 with it: 76 at once no longer fit" in capacity


def test_what_is_not_on_this_machine_is_said(
    capsys: pytest.CaptureFixture[str], target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(target.parent))
    told = run(capsys, "--target", target, "--draft", "org/head", "--method", "eagle3", "--n", 3)
    [note] = [f["message"] for f in told["findings"] if f["rule"] == "checkpoint.elsewhere"]
    assert "org/head is no folder on this machine, and not in the hub's cache: the engine will ask the hub" in note
    assert "write ./org/head if a folder is meant" in note


def test_a_method_the_engine_has_not_is_all_that_is_said_of_the_draft(
    capsys: pytest.CaptureFixture[str], target: Path
) -> None:
    """An EAGLE-3 head called medusa fits in nothing, which helps nobody who asked SGLang for medusa."""
    told = run(capsys, "--target", target, "--draft", HEAD, "--method", "medusa", "--engine", "sglang", expected=1)
    [only] = [finding for finding in told["findings"] if finding["rule"] != "n.default"]
    assert only["message"].startswith("SGLang has no medusa: measure it with vLLM (0.32 or earlier), or use one of")


@pytest.mark.parametrize("option", ["--steps", "--topk", "--nodes"])
def test_a_tree_of_nothing_is_refused(option: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tuner", "check", "--target", "t", option, "0"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert option in done.stderr


def test_a_config_that_cannot_be_read(capsys: pytest.CaptureFixture[str], target: Path) -> None:
    (target.parent / "bad").mkdir()
    (target.parent / "bad" / "config.json").write_text("{")
    argv = ("--target", target, "--draft", target.parent / "bad", "--method", "eagle3", "--n", 3)
    told = run(capsys, *argv, "--engine", "sglang", expected=1)
    assert rules(told, "error") == {"checkpoint.config"}


def test_a_workloads_sampling_counts(capsys: pytest.CaptureFixture[str], bench: Bench, target: Path) -> None:
    workload = bench.workload(sampling={"temperatures": [0.8], "min_p": 0.05}, drafts="auto")
    argv = ("--target", target, "--draft", HEAD, "--method", "eagle3", "--n", 3, "--workload", workload)
    told = run(capsys, *argv, "--engine", "vllm", expected=1)
    assert rules(told, "error") == {"sampling.refused"}
    assert "--max-num-seqs 4" in told["command"]  # the workload's highest concurrency
    told = run(capsys, *argv, "--engine", "sglang")
    assert "lossless" in rules(told, "warning")


def test_a_whole_workload(bench: Bench) -> None:
    """On a registered engine: off, ngram and four N of the head, each with its findings."""
    done = bench.tuner("check", "--workload", bench.workload(), "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["ok"] is True
    assert [check["setting"] for check in told["checks"]] == [
        "off", "ngram N=3", "eagle3 N=1", "eagle3 N=2", "eagle3 N=3", "eagle3 N=4",
    ]  # fmt: skip
    refused = bench.tuner("check", "--workload", bench.workload(sampling={"min_p": 0.1}))
    assert refused.returncode == 1
    assert "off on mock (vllm 0.32.0): ok" in refused.stdout
    assert "error  sampling.refused" in refused.stdout


@pytest.mark.parametrize(
    ("argv", "word"),
    [
        (("--target", "./nowhere"), "no model folder at ./nowhere"),
        (("--target", "{target}", "--engine", "tgi"), "engine 'tgi' is neither an engine nor registered"),
        (("--target", "{target}", "--option", "k"), "is not key=value"),
        (("--draft", "none"), "give --target and --draft, or --workload alone"),
        (("--target", "{target}", "--device", "tpu"), "--device is one of cpu, gpu, hip, xpu, cuda"),
    ],
)
def test_what_cannot_be_looked_at_is_the_users_error(target: Path, argv: tuple[str, ...], word: str) -> None:
    with pytest.raises(UserError, match=word):
        app(["check", *(item.format(target=target) for item in argv)])


def test_text_for_people(capsys: pytest.CaptureFixture[str], target: Path) -> None:
    argv = [
        "check",
        "--target",
        str(target),
        "--draft",
        str(HEAD),
        "--method",
        "eagle",
        "--engine",
        "sglang",
        "--n",
        "3",
    ]
    with pytest.raises(SystemExit):
        app(argv)
    out = capsys.readouterr().out
    assert out.startswith("eagle N=3 on SGLang 0.5.23: 2 errors, ")
    assert "\nerror  method.fits\n  " in out
    assert "\n  source: https://github.com/sgl-project/sglang/pull/21272\n" in out
    assert "command (method eagle3):\npython -m sglang.launch_server" in out


def test_nothing_heavy_is_imported(target: Path) -> None:
    """No torch, and none of the libraries that take longer than the check itself."""
    argv = [
        "check",
        "--target",
        str(target),
        "--draft",
        str(HEAD),
        "--method",
        "eagle3",
        "--engine",
        "vllm",
        "--n",
        "4",
    ]
    script = (
        f"import sys, tuner.cli\ntry: tuner.cli.app({argv!r})\nexcept SystemExit: pass\n"
        "heavy = ('torch', 'transformers', 'numpy', 'scipy', 'pandas', 'matplotlib', 'aiohttp', 'yaml', 'rich')\n"
        "print([m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
