"""`tuner draft train` without torch: prompts and what is kept out, schedules, vocabularies, job files, refusals."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engine_fakes import fake_python
from hypothesis import given
from hypothesis import strategies as st

import tuner.engines
from tuner.cli import app
from tuner.engines.environments import Environment, save_environment
from tuner.engines.equipped import Work, equipped_environment
from tuner.errors import EngineError, Interrupted, UserError
from tuner.prompts import load_set
from tuner.prompts.written import written_questions
from tuner.report.training_text import tau, training_text
from tuner.run.training import SCRIPT, train_draft
from tuner.run.training_plan import DataPlan, TrainingPlan, check_plan, run_name, target_shape
from tuner.run.training_prompts import prompt_hash, prompt_lines, training_prompts

sys.path.insert(0, str(Path(tuner.engines.__file__).parent / "training_scripts"))
from draft_trainer.job import read_job
from draft_trainer.prompt_hash import prompt_hash as trainers_hash
from draft_trainer.schedule import Budget, learning_rate, unrolled_steps
from draft_trainer.vocabulary import choose, coverage, offsets

PACKAGES = {"torch": "2.13.0", "transformers": "5.19.0", "safetensors": "0.8.0"}
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 32, "num_hidden_layers": 8, "vocab_size": 128,
    "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "hidden_act": "silu",
}  # fmt: skip


# Prompts


def test_written_questions_are_different_seeded_and_a_third_of_each_kind() -> None:
    asked = written_questions(601, 7)
    assert asked == written_questions(601, 7)
    assert asked != written_questions(601, 8)
    assert len({prompt.messages for prompt in asked}) == 601
    kinds = [prompt.task for prompt in asked]
    # 601 = 201 + 200 + 200, the rest going to the first by name.
    assert [kinds.count(f"written-{kind}") for kind in ("chat", "code", "maths")] == [201, 200, 200]
    assert not any("{" in prompt.messages[0][1] for prompt in asked if "code" not in prompt.task)


def test_templates_that_are_used_up_say_so() -> None:
    with pytest.raises(
        UserError, match=r"templates for chat give .* different questions and not 100000: ask for fewer"
    ):
        written_questions(300_000, 0)


def test_no_written_question_is_one_that_is_measured_with() -> None:
    measured = {prompt_hash(prompt) for name in ("chat", "maths", "code") for prompt in load_set(name)}
    assert not measured & {prompt_hash(prompt) for prompt in written_questions(6000, 0)}


def test_a_prompt_that_is_held_out_is_never_trained_on(tmp_path: Path) -> None:
    """Told by its text, whatever its id, case and white space are; and one that is there twice is there once."""
    first = load_set("chat")[0].messages[0][1]
    rows = [{"turns": [f"  {first.upper()}\n"]}, {"turns": ["Only here."]}, {"turns": ["only  here."]}]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    prompts = training_prompts((str(tmp_path / "mine.jsonl"),), ("chat",), 0, 0)
    assert [prompt.messages for prompt in prompts.training] == [(("user", "Only here."),)]
    assert prompts.dropped == 2
    assert len(prompts.held_out) == len(prompts.held_hashes) == 30
    assert [source.name for source in prompts.sources] == ["mine.jsonl"]
    lines = [json.loads(line) for line in prompt_lines(prompts).splitlines()]
    assert [line["held"] for line in lines] == [True] * 30 + [False]
    assert {line["hash"] for line in lines if line["held"]} == set(prompts.held_hashes)


def test_a_prompt_with_eight_words_of_a_held_out_one_is_a_copy_of_it(tmp_path: Path) -> None:
    held, file = tmp_path / "held.jsonl", tmp_path / "mine.jsonl"
    held.write_text(json.dumps({"turns": ["Solve the equation x^2 - 6x + 4 = 0 for x."]}) + "\n", encoding="utf-8")
    copy = "Please solve the equation x^2 - 6x + 4 = 0, and show each step."
    other = "Please solve the equation x^2 - 8x + 15 = 0, and show each step."
    file.write_text("".join(json.dumps({"turns": [text]}) + "\n" for text in (copy, other)), encoding="utf-8")
    found = training_prompts([str(file)], [str(held)], 0, 0)
    assert [prompt.messages[0][1] for prompt in found.training] == [other]
    assert found.dropped == 1


def test_where_everything_is_held_out_nothing_is_trained() -> None:
    with pytest.raises(UserError, match="every prompt that was named for training is held out"):
        training_prompts(("chat",), ("chat",), 0, 0)
    with pytest.raises(UserError, match="give --held-out"):
        training_prompts(("chat",), (), 0, 0)


@given(st.lists(st.tuples(st.sampled_from(["user", "system"]), st.text(max_size=30)), min_size=1, max_size=3))
def test_the_trainer_tells_prompts_apart_as_the_tuner_does(messages: list[tuple[str, str]]) -> None:
    prompt = replace(load_set("chat")[0], messages=tuple(messages))
    assert trainers_hash(messages) == prompt_hash(prompt)


# Schedules and vocabularies


def test_a_budget_ends_by_steps_or_by_time_whichever_is_first() -> None:
    assert Budget(200, None).done(50, 1e9) == 0.25
    assert Budget(None, 2.0).done(10**9, 30.0) == 0.25  # 30 s of 120
    assert Budget(200, 2.0).done(50, 90.0) == 0.75
    assert Budget(200, None).left_s(0.25, 30.0) == 90.0  # three quarters at the pace of the first
    assert Budget(200, None).left_s(0.0, 30.0) is None


def test_the_rate_warms_up_and_falls_along_a_cosine() -> None:
    assert learning_rate(1.0, 0, 0.0) == pytest.approx(1 / 40)
    assert learning_rate(1.0, 39, 0.0) == 1.0
    assert learning_rate(1.0, 400, 0.5) == pytest.approx(0.03 + 0.97 * 0.5)
    assert learning_rate(2.0, 400, 1.0) == pytest.approx(0.06)
    assert learning_rate(2.0, 400, 7.0) == pytest.approx(0.06)
    falling = [learning_rate(1.0, 400, done / 10) for done in range(11)]
    assert falling == sorted(falling, reverse=True)


def test_unrolling_begins_short() -> None:
    assert [unrolled_steps(4, done) for done in (0.0, 0.29, 0.3, 1.0)] == [2, 2, 4, 4]
    assert [unrolled_steps(1, done) for done in (0.0, 0.9)] == [1, 1]


def test_the_commonest_tokens_can_be_drafted() -> None:
    answered, asked = [0, 5, 2, 0, 2, 0], [9, 0, 0, 3, 0, 0]
    # By answers 1, then 2 and 4; then by prompts 0 (9), 3 (3); 5 is nowhere.
    assert choose(answered, asked, 3) == [1, 2, 4]
    assert choose(answered, asked, 4) == [0, 1, 2, 4]
    assert choose(answered, asked, 3, always=[5]) == [1, 2, 5]
    assert coverage(answered, [1, 2]) == pytest.approx(7 / 9)
    assert coverage([0, 0], [1]) is None
    with pytest.raises(ValueError, match="a draft vocabulary of 7 does not fit between 0 and 6 tokens"):
        choose(answered, asked, 7)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=60), st.data())
def test_offsets_lead_from_draft_tokens_to_the_targets(answered: list[int], data: st.DataObject) -> None:
    size = data.draw(st.integers(1, len(answered)))
    kept = choose(answered, [0] * len(answered), size)
    assert len(set(kept)) == size
    assert [index + offset for index, offset in enumerate(offsets(kept))] == kept
    left = min((answered[token] for token in kept), default=0)
    assert all(answered[token] <= left for token in set(range(len(answered))) - set(kept))


# Plans


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TUNER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TUNER_LOCKS", str(tmp_path / "locks"))
    python = fake_python(tmp_path / "engine", PACKAGES)
    save_environment(Environment("engine", "vllm", "0.32.0", str(python), None, "cpu"))
    folder = tmp_path / "small-llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    return folder


def plan(target: Path, **changes: Any) -> TrainingPlan:
    data = DataPlan(written=9, own_questions=0)
    made = TrainingPlan(str(target), "eagle3", target.parent / "out", data, steps=4, vocabulary=64)
    return replace(made, **changes)


VLLM = Environment("engine", "vllm", "0.32.0", "/python", None, "cpu")
SGLANG = replace(VLLM, engine="sglang", version="0.5.23")


@pytest.mark.parametrize(
    ("changes", "env", "said"),
    [
        ({"method": "ngram"}, VLLM, "no draft is trained for the method 'ngram'"),
        ({"method": "medusa"}, SGLANG, "SGLang serves no Medusa heads"),
        ({"precision": "fp8"}, VLLM, "--precision is one of auto, bf16, float32"),
        ({"steps": None}, VLLM, "say how long to train: --minutes, or --steps"),
        ({"minutes": 0.0}, VLLM, "--minutes 0 trains nothing: give more than 0"),
        ({"vocabulary": 129}, VLLM, "--draft-vocab 129 is more than the target's 128 tokens"),
        ({"taps": (2, 4, 8)}, VLLM, "--taps 2,4,8 must ascend from 0 to 7"),
        ({"taps": (4, 2, 5)}, VLLM, "--taps 4,2,5 must ascend"),
        ({"method": "draft_model", "layers": 9}, VLLM, "a draft model of 9 layers, 0 wide, is larger than its target"),
        ({"data": DataPlan(temperatures=())}, VLLM, "--temperatures needs a value"),
    ],
)
def test_what_cannot_work_is_refused_in_a_sentence(
    target: Path, changes: dict[str, Any], env: Environment, said: str
) -> None:
    with pytest.raises(UserError) as refused:
        check_plan(plan(target, **changes), target_shape(str(target)), env)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("option", "typed", "said"),
    [
        ("--temperatures", "0,warm", "--temperatures is a list of numbers with commas between them, not '0,warm'"),
        ("--temperatures", "0,-1", "--temperatures takes finite numbers from 0, not '0,-1'"),
        ("--taps", "two", "--taps is a list of numbers with commas between them, not 'two'"),
        ("--method", "mtp", "no draft is trained for the method 'mtp'"),
    ],
)
def test_what_is_typed_wrongly_is_told(target: Path, option: str, typed: str, said: str) -> None:
    words = ["draft", "train", "--target", str(target), "--out", str(target.parent / "out"), "--minutes", "1"]
    words += ["--method", "eagle3"] if option != "--method" else []
    with pytest.raises(UserError) as refused:
        app([*words, option, typed])
    assert said in str(refused.value)


def test_a_target_of_another_family_is_refused(target: Path) -> None:
    (target / "config.json").write_text(json.dumps(LLAMA | {"architectures": ["MambaForCausalLM"]}), encoding="utf-8")
    with pytest.raises(UserError, match="drafts are trained for LlamaForCausalLM alone"):
        target_shape(str(target))
    with pytest.raises(UserError, match="is not a folder: training reads the target's weights"):
        target_shape("someone/model")


# The command around the trainer, with a stand-in for the children


class FakeStages:
    """Notes the stages it is asked for; `train` leaves the draft that training would."""

    def __init__(self, draft: Callable[[Path], None] | None = None, fails: str = "") -> None:
        self.stages: list[str] = []
        self.draft, self.fails = draft or shipped_shape, fails

    def __call__(self, argv: Sequence[str], log: Path, **_options: Any) -> int:
        assert argv[1:3] == ["-I", str(SCRIPT)]
        stage, job = argv[3], read_job(Path(argv[4]))
        self.stages.append(stage)
        with log.open("a", encoding="utf-8") as file:
            file.write(f"\n$ {stage}\nworking\n")
            if stage == self.fails:
                file.write(f"error: {stage} rank 0: ValueError: the loss is nan at step 3: lower the learning rate\n")
        if stage == self.fails:
            return 1
        if stage == "train":
            (Path(job.work) / "checkpoint.pt").touch()
            self.draft(Path(job.work) / "draft")
        return 0


def shipped_shape(folder: Path) -> None:
    """An EAGLE-3 head of random weights in the shape of the target above, 64 of its 128 tokens."""
    import numpy as np
    from heads import write_safetensors

    folder.mkdir(parents=True, exist_ok=True)
    config = LLAMA | {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "draft_vocab_size": 128,
                      "tie_word_embeddings": False, "model_type": "llama"}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    shapes = {
        "fc.weight": (32, 96), "norm.weight": (32,), "lm_head.weight": (128, 32),
        "midlayer.hidden_norm.weight": (32,), "midlayer.input_layernorm.weight": (32,),
        "midlayer.post_attention_layernorm.weight": (32,), "midlayer.self_attn.q_proj.weight": (32, 64),
        "midlayer.self_attn.k_proj.weight": (16, 64), "midlayer.self_attn.v_proj.weight": (16, 64),
        "midlayer.self_attn.o_proj.weight": (32, 32), "midlayer.mlp.gate_proj.weight": (64, 32),
        "midlayer.mlp.up_proj.weight": (64, 32), "midlayer.mlp.down_proj.weight": (32, 64),
    }  # fmt: skip
    write_safetensors(folder / "model.safetensors", {name: np.zeros(s, np.float32) for name, s in shapes.items()})
    (folder / "training.json").write_text(json.dumps(RECORD), encoding="utf-8")


SHARES = {"starts": 200, "a": [0.5, 0.25, 0.125, 0.1], "alpha": [0.5, 0.5, 0.5, 0.8]}
RECORD = {
    "method": "eagle3", "parameters": 9_808_128, "steps": 851, "rows": 2_190_000, "minutes": 22.0,
    "vocabulary": {"tokens": 8192, "coverage": 0.97},
    "held_out": {"without_engine": {"all": SHARES}, "in_engine": None},
}  # fmt: skip


def run(target: Path, stages: FakeStages, **changes: Any) -> Any:
    return train_draft(plan(target, **changes), tell=lambda line: None, run=stages)


def test_data_is_made_once_and_every_draft_of_a_target_learns_from_it(target: Path) -> None:
    first, second = FakeStages(), FakeStages()
    trained = run(target, first)
    assert first.stages == ["respond", "train"]
    assert sorted(path.name for path in trained.out.iterdir()) == ["config.json", "model.safetensors", "training.json"]
    run(target, second, out=target.parent / "another", seed=3)
    assert second.stages == ["train"]
    data = target.parent / "home" / "training" / "small-llama"
    assert sorted(path.name for path in data.iterdir() if path.suffix != ".lock") == [
        ".lock", "data.json", "prompts.jsonl", "respond.done", "runs",
    ]  # fmt: skip
    assert not list(data.glob("runs/*/checkpoint.pt"))


def test_data_of_other_settings_is_not_taken(target: Path) -> None:
    run(target, FakeStages())
    with pytest.raises(UserError, match=r"holds data of other settings \(answer_tokens\): name another with --data"):
        run(
            target,
            FakeStages(),
            out=target.parent / "another",
            data=DataPlan(written=9, own_questions=0, answer_tokens=9),
        )


def test_a_draft_that_is_there_is_replaced_only_on_demand(target: Path) -> None:
    out = target.parent / "out"
    run(target, FakeStages())
    (out / "README.md").write_text("kept", encoding="utf-8")
    with pytest.raises(UserError, match=r"holds model\.safetensors already: name another folder, or give --replace"):
        run(target, FakeStages())
    run(target, FakeStages(), replace=True)
    assert (out / "README.md").read_text(encoding="utf-8") == "kept"


def test_a_stage_that_fails_gives_the_trainers_own_line(target: Path) -> None:
    with pytest.raises(EngineError, match="train failed: error: train rank 0: ValueError: the loss is nan at step 3"):
        run(target, FakeStages(fails="train"))
    assert not (target.parent / "out").exists()


def test_a_draft_that_does_not_fit_is_not_kept(target: Path) -> None:
    def narrow(folder: Path) -> None:
        shipped_shape(folder)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 100}), encoding="utf-8")

    with pytest.raises(EngineError, match=r"does not fit its target: .*vocabulary of 100"):
        run(target, FakeStages(narrow))
    assert not (target.parent / "out").exists()


def test_interrupted_it_says_how_to_go_on_and_then_does(target: Path) -> None:
    def interrupt(folder: Path) -> None:
        raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="the same command with --resume goes on from there"):
        run(target, FakeStages(interrupt))
    with pytest.raises(UserError, match="was begun: add --resume, or delete"):
        run(target, FakeStages())
    stages = FakeStages()
    run(target, stages, resume=True)
    assert stages.stages == ["train"]


def test_resumed_when_all_is_done_it_starts_nothing(target: Path) -> None:
    """As `make heads RESUME=--resume` does for the drafts that were finished."""

    def finished(folder: Path) -> None:
        shipped_shape(folder)
        weights = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
        settings = read_job(folder.parent / "job.json").settings
        record = RECORD | {"settings": settings, "sha256": {"model.safetensors": weights}}
        (folder / "training.json").write_text(json.dumps(record), encoding="utf-8")

    run(target, FakeStages(finished))
    again = FakeStages()
    assert run(target, again, resume=True).record["steps"] == 851
    assert again.stages == []
    with pytest.raises(UserError, match="holds another draft: name another folder, or give --replace"):
        run(target, again, resume=True, seed=5)
    run(target, again, resume=True, replace=True, seed=5)
    assert again.stages == ["train"]


def test_the_trainer_reads_what_the_tuner_wrote(target: Path) -> None:
    jobs = []

    def note(folder: Path) -> None:
        shipped_shape(folder)
        jobs.append(read_job(folder.parent / "job.json"))

    run(target, FakeStages(note), sharpness=1.5, minutes=12.5, seed=4)
    (job,) = jobs
    assert (job.taps, job.sharpness, job.budget, job.rate) == ((2, 4, 5), 1.5, Budget(4, 12.5), 8e-4)
    assert (job.engine, job.hidden) == ("vllm", 32)
    assert (job.seed, job.data_seed) == (4, 0)
    assert job.settings["data"]["held_out"] == ["chat", "maths", "code"]
    assert not any("/" in str(value) for key, value in job.settings.items() if key != "data")
    assert run_name(plan(target)) in job.work


# What is told at the end


def test_tau_is_told_where_all_its_shares_were_measured() -> None:
    assert tau([0.5, 0.25, 0.125, 0.1]) == pytest.approx(1.875)
    assert tau([0.5, 0.25]) is None
    assert tau([0.5, None, 0.1]) is None


def test_the_text_gives_a_line_a_set(target: Path) -> None:
    told = training_text(run(target, FakeStages()))
    assert "eagle3 draft in" in told
    assert "851 steps, 2,190,000 rows, 22 minutes" in told
    assert "can draft 8,192 tokens, 97.0% of what held-out answers hold" in told
    assert "all: tau 1.88 at N = 3, alpha_k 0.500 0.500 0.500 0.800 (200 starts)" in told


def test_an_environment_of_the_preferred_engine_is_taken_first(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {
        name: Environment(name, engine, "1", "/p", None, "cpu") for name, engine in (("a", "sglang"), ("b", "vllm"))
    }
    monkeypatch.setattr("tuner.engines.equipped.load_environments", lambda: found)
    monkeypatch.setattr("tuner.engines.equipped.missing_packages", lambda _env, _packages: [])
    assert equipped_environment(None, Work("training", "the training", ("torch",), prefers="vllm")).name == "b"
    assert equipped_environment(None, Work("converting", "the conversion", ("torch",))).name == "a"
    monkeypatch.setattr("tuner.engines.equipped.missing_packages", lambda env, _: ["torch"] if env.name == "b" else [])
    assert equipped_environment(None, Work("training", "the training", ("torch",), prefers="vllm")).name == "a"
