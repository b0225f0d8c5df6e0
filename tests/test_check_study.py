"""Preflight inside the main job: errors refuse before any launch, settings fall away, warnings reach the report."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import yaml
from cells import cell, off_trial, request, spec_trial
from conftest import Bench, save_model

from tuner.engines.environments import Environment
from tuner.engines.preflight.asked import Demand
from tuner.engines.sglang_cpu.packages import cpu_machine
from tuner.errors import UserError
from tuner.measure.records import CellKey, EngineFacts, Load
from tuner.prompts import Prompt
from tuner.report.capacity import capacity_cautions
from tuner.run.demand import demand_of, long_prompt
from tuner.run.planning import plan_study
from tuner.run.preflight import look, read_question, settle
from tuner.run.question import Question
from tuner.spec.speculation import SpecConfig
from tuner.spec.workload import Workload


@pytest.fixture
def home(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setenv("TUNER_HOME", str(bench.home))
    monkeypatch.chdir(bench.folder)
    return bench


def save(bench: Bench, name: str, **config: object) -> None:
    (bench.folder / name / "config.json").write_text(json.dumps(config), encoding="utf-8")


def test_an_error_refuses_before_anything_is_launched(bench: Bench) -> None:
    save(bench, "head", architectures=["LlamaForCausalLMEagle3"], hidden_size=16, vocab_size=48)
    done = bench.tuner("recommend", bench.workload())
    assert done.returncode == 2
    assert done.stderr.startswith("tuner: preflight found 2 errors:")
    assert "eagle3: ./head" not in done.stderr  # the resolved folder is named
    assert "has a vocabulary of 48 and the target one of 32" in done.stderr
    assert "reads hidden states of 16 and the target's have 8" in done.stderr
    assert done.stderr.count("hidden states of 16") == 1  # once for four N
    assert bench.studies() == []


def test_medusa_is_tried_up_to_its_heads(home: Bench) -> None:
    """C12: a sweep over 1, 3, 5 of a file with three heads loses 5, and says so."""
    save_model(home.folder / "medusa", model_type="medusa", num_heads=3, hidden_size=8)
    question = read_question(home.workload(drafts=[{"method": "medusa", "model": "./medusa", "n": [1, 3, 5]}]))
    assert [spec.n for arm in question.arms for spec in arm.configs] == [1, 3]
    [gone] = question.removed
    assert gone.what == "medusa N=5"
    assert "use n <= 3" in gone.reason


def test_no_setting_left_is_an_error(home: Bench) -> None:
    save_model(home.folder / "medusa", model_type="medusa", num_heads=1, hidden_size=8)
    with pytest.raises(UserError, match=r"no setting of medusa is left: n = 3 needs as many Medusa heads"):
        read_question(home.workload(drafts=[{"method": "medusa", "model": "./medusa", "n": [3, 5]}]))


def test_a_warning_is_a_caution_of_its_engine(home: Bench) -> None:
    save(home, "target", architectures=["LlamaForCausalLM"], hidden_size=8, vocab_size=32, num_hidden_layers=4,
         max_position_embeddings=8192)  # fmt: skip
    save(home, "head", architectures=["LlamaForCausalLMEagle3"], hidden_size=8, vocab_size=32,
         max_position_embeddings=16)  # fmt: skip
    question = read_question(home.workload())
    [(engine, sentence)] = question.cautions
    assert engine == "mock"
    assert sentence.startswith("eagle3: ")
    assert "has 16 positions, the target 8192" in sentence


def test_cautions_are_stored_and_printed_in_the_report(bench: Bench) -> None:
    save(bench, "head", architectures=["LlamaForCausalLMEagle3"], hidden_size=8, vocab_size=32,
         max_position_embeddings=16)  # fmt: skip
    workload = bench.workload(traffic={"concurrency": [1], "prompts": [{"set": "chat"}], "max_output_tokens": 8})
    done = bench.tuner("recommend", workload, "--launches", 3, "--json")
    assert done.returncode == 0, done.stderr
    assert any("has 16 positions" in caution for caution in json.loads(done.stdout)["cautions"])
    (study,) = bench.studies()
    assert "has 16 positions" in (study / "report.md").read_text(encoding="utf-8")
    again = bench.tuner("report", study, "--json")
    assert any("has 16 positions" in caution for caution in json.loads(again.stdout)["cautions"])


def test_forced_lengths_are_refused(home: Bench) -> None:
    with pytest.raises(UserError, match="no alpha or N measured there is your traffic's"):
        read_question(home.workload(sampling={"ignore_eos": True}))


def test_an_engine_is_planned_with_the_corrections_it_will_be_installed_with(
    home: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sglang-cpu drafts with the kernels that `tuner engine add` puts into it."""
    monkeypatch.setattr(cpu_machine, "GPU_DEVICES", ())
    workload = home.workload(engine="sglang-cpu", drafts=[{"method": "eagle3", "model": "./head", "n": [2]}])
    plan = plan_study(workload, home.folder / "reports")
    assert plan.removed == ()
    assert any("EAGLE3" in launch.command for launch in plan.launches)


# --- drafts: auto ---------------------------------------------------------------------------------------------------


def test_auto_offers_what_needs_no_weights_for_an_unknown_target(home: Bench) -> None:
    question = read_question(home.workload(drafts="auto"))
    assert [arm.method for arm in question.arms] == ["ngram"]
    [gone] = question.removed
    assert gone.what == "a draft with weights"
    assert "the catalogue of drafts knows none for" in gone.reason
    assert "tried instead: ngram" in gone.reason


def test_auto_finds_mtp_in_the_target_and_suffix_in_the_engine(home: Bench) -> None:
    save(home, "target", architectures=["DeepseekV3ForCausalLM"], vocab_size=32, num_hidden_layers=4,
         num_nextn_predict_layers=1)  # fmt: skip
    entry = home.home / "engines" / "mock.json"
    data = json.loads(entry.read_text())
    environment = home.home / "environment"
    (environment / "lib" / "python3.11" / "site-packages" / "arctic_inference").mkdir(parents=True)
    entry.write_text(json.dumps(data | {"python": str(environment / "bin" / "python")}))
    question = read_question(home.workload(drafts="auto"))
    assert [arm.method for arm in question.arms] == ["ngram", "suffix", "mtp"]
    assert "tried instead: ngram, suffix, mtp" in question.removed[0].reason


def test_auto_takes_the_shipped_head_for_its_target(home: Bench) -> None:
    save(home, "target", architectures=["LlamaForCausalLM"], hidden_size=576, vocab_size=49152, num_hidden_layers=30,
         _name_or_path="HuggingFaceTB/SmolLM2-135M-Instruct")  # fmt: skip
    question = read_question(home.workload(drafts="auto"))
    assert [arm.method for arm in question.arms] == ["ngram", "eagle3"]
    assert str(question.arms[1].draft).endswith("profiles/smollm2-135m/eagle3")
    assert question.removed == ()


def test_auto_drops_what_does_not_fit_where_a_named_draft_would_refuse(home: Bench) -> None:
    """The shipped head beside a target of another width: by name an error, by auto left out with its reason."""
    save(home, "target", architectures=["LlamaForCausalLM"], hidden_size=64, vocab_size=49152, num_hidden_layers=30,
         _name_or_path="smollm2-135m")  # fmt: skip
    question = read_question(home.workload(drafts="auto"))
    assert [arm.method for arm in question.arms] == ["ngram"]
    assert "hidden states of 576 and the target's have 64" in question.removed[0].reason
    head = str(Path(__file__).parents[1] / "profiles" / "smollm2-135m" / "eagle3")
    with pytest.raises(UserError, match="hidden states of 576"):
        read_question(home.workload(drafts=[{"method": "eagle3", "model": head, "n": 3}]))


def test_two_engines_are_told_apart(home: Bench) -> None:
    """A head named for SGLang's EAGLE: vLLM has no such class, SGLang loads it; the refusal names the setting once."""
    save(home, "head", architectures=["LlamaForCausalLMEagle"], hidden_size=8, vocab_size=32)
    drafts = [{"method": "eagle", "model": "./head", "n": 2}]
    question = read_unsettled(home.workload(drafts=drafts))
    sglang = Environment("s", "sglang", "0.5.23", "/nowhere/python", None, "gpu")
    both = dataclasses.replace(question, environments=(*question.environments, sglang))
    errors = {(one.environment.name, one.spec.label): [f.rule for f in one.errors] for one in look(both)}
    assert errors == {
        ("mock", "off"): [], ("mock", "eagle N=2"): ["architecture.known"], ("s", "off"): [], ("s", "eagle N=2"): [],
    }  # fmt: skip
    with pytest.raises(UserError, match=r"^mock: eagle N=2: .*EagleLlamaForCausalLMEagle"):
        settle(both)


def read_unsettled(path: Path) -> Question:
    from tuner.run.question import resolve
    from tuner.spec.load import load_workload

    return resolve(load_workload(path), path)


# --- demand ---------------------------------------------------------------------------------------------------------


def prompt(text: str, **sampling: object) -> Prompt:
    return Prompt("p", "chat", None, (("user", text),), sampling=tuple(sorted(sampling.items())))


def demand(prompts: list[Prompt], **changes: object) -> Demand:
    data = {"name": "w", "model": "m", "engine": "e", "traffic": {"concurrency": [1, 8], "max_output_tokens": 100}}
    return demand_of(Workload.model_validate(yaml.safe_load(yaml.safe_dump(data | changes))), prompts)


def test_long_prompts_by_their_bytes() -> None:
    """Bytes 4, 8, ... 80: the 95th percentile lies at 0.95 x 19 = 18.05 steps, 4 x 19.05 = 76.2 bytes, 19 tokens."""
    assert long_prompt([prompt("x" * 4 * i) for i in range(1, 21)]) == 19
    assert long_prompt([prompt("é" * 40)]) == 20  # two bytes each


def test_what_a_workload_demands() -> None:
    found = demand([prompt("x" * 400)], sampling={"temperatures": [0, 0.8], "min_p": 0.1, "stop": ["\n"]})
    assert found.temperatures == (0, 0.8)
    assert dict(found.sampling) == {"min_p": 0.1, "stop": ["\n"]}
    assert (found.prompt_tokens, found.estimated, found.output_tokens, found.concurrency) == (100, True, 100, 8)
    assert found.constrained is None


def test_rows_of_prompts_have_a_say() -> None:
    found = demand([prompt("a"), prompt("b", logit_bias={"1": 2}, response_format={"type": "json_object"})])
    assert found.sampling["logit_bias"] == {"1": 2}
    assert found.constrained == "response_format"
    assert demand([prompt("a", response_format={"type": "text"})]).constrained is None


# --- C23, from the engines' own logs --------------------------------------------------------------------------------


def test_a_load_that_no_longer_fits_is_told_once() -> None:
    """400,000 / (4,096 + 1,024) = 78 without a draft, 300,000 / 5,120 = 58 with it: 64 fits before and not after."""
    key = CellKey(Load(concurrency=64), 0.0)
    long = cell([dataclasses.replace(request(i, 0.01), n_in=4096) for i in range(4)], key)
    off = dataclasses.replace(off_trial([0.01], key=key), cells=(long,), facts=EngineFacts(kv_cache_tokens=400_000))
    spec = SpecConfig("eagle3", 3, "org/head")
    on = dataclasses.replace(spec_trial(spec, 0.02, [[1]], key=key), facts=EngineFacts(kv_cache_tokens=300_000))
    more = dataclasses.replace(on, number=3, spec=dataclasses.replace(spec, n=2))
    [told] = capacity_cautions([off, on, more], 1024)
    assert told == (
        "eagle3: the KV cache shrank from 400,000 to 300,000 tokens: at 4096 + 1024 tokens a request 78 requests fit "
        "the KV cache without speculation and 58 with it: 64 at once no longer fit, so some wait or are preempted"
    )
    roomy = dataclasses.replace(on, facts=EngineFacts(kv_cache_tokens=390_000))
    assert list(capacity_cautions([off, roomy], 1024)) == []
    assert list(capacity_cautions([dataclasses.replace(off, facts=EngineFacts()), on], 1024)) == []
