"""Settings that are known to change the output, told from the configuration before anything is measured."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tuner.engines.base import LaunchOptions
from tuner.engines.environments import EXPAND_CORRECTION, Environment
from tuner.engines.sglang import SglangEngine
from tuner.engines.sglang_lossy import resolved_reason
from tuner.engines.vllm import VllmEngine
from tuner.run import gate
from tuner.run.verify_labels import known_lossy
from tuner.spec.speculation import OFF, SpecConfig
from tuner.spec.traffic import Sampling

VLLM = Environment("v", "vllm", "0.32.0", "/py", None, "gpu")
SGLANG = Environment("s", "sglang", "0.5.23", "/py", None, "gpu")
OPTIONS = LaunchOptions(max_running_requests=8)


def eagle3(**options: Any) -> SpecConfig:
    return SpecConfig("eagle3", n=3, draft="/d", options=tuple(options.items()))


def vllm(spec: SpecConfig, temperature: float, env: Environment = VLLM, **variables: str) -> str | None:
    return VllmEngine(env).lossy(spec, replace(OPTIONS, env=tuple(variables.items())), temperature, {})


def sglang(spec: SpecConfig, temperature: float, device: str = "gpu", **sampling: float) -> str | None:
    return SglangEngine(replace(SGLANG, device=device)).lossy(spec, OPTIONS, temperature, sampling)


@pytest.mark.parametrize(
    ("spec", "at_0", "at_1"),
    [
        (OFF, None, None),
        (eagle3(), None, None),
        (eagle3(rejection_sample_method="block"), None, None),  # exact
        (eagle3(draft_sample_method="probabilistic"), None, None),  # exact
        (eagle3(rejection_sample_method="synthetic"), "synthetic", "synthetic"),
        (eagle3(rejection_sample_method="fly"), "fly", "fly"),
        (eagle3(acceptance_method="typical_acceptance_sampler"), None, "typical_acceptance_sampler"),
    ],
)
def test_vllm(spec: SpecConfig, at_0: str | None, at_1: str | None) -> None:
    for expected, temperature in ((at_0, 0.0), (at_1, 1.0)):
        told = vllm(spec, temperature)
        assert (told is None) if expected is None else (expected in str(told))


def test_vllms_cpu_build_with_its_correction_and_without() -> None:
    corrected = replace(VLLM, device="cpu", corrections=(EXPAND_CORRECTION,))
    assert vllm(eagle3(), 1.0, corrected) is None
    assert "uninitialised temperature" in str(vllm(eagle3(), 1.0, corrected, TUNER_CORRECTIONS="off"))
    assert "uninitialised temperature" in str(vllm(eagle3(), 1.0, replace(corrected, corrections=())))
    assert vllm(eagle3(), 0.0, replace(corrected, corrections=())) is None


@pytest.mark.parametrize(
    ("told", "word"),
    [
        (sglang(eagle3(), 1.0), None),
        (sglang(eagle3(), 1.0, "cpu"), "argmax"),
        (sglang(eagle3(), 0.0, "cpu"), None),
        (sglang(SpecConfig("ngram", n=4), 1.0, "xpu"), "argmax"),
        (sglang(eagle3(), 1.0, "hip"), "argmax"),
        (sglang(eagle3(use_rejection_sampling=True), 1.0, "hip"), None),
        (sglang(eagle3(accept_threshold_single=0.9), 1.0), "accept_threshold_single below 1"),
        (sglang(eagle3(accept_threshold_acc=0.5), 1.0), "accept_threshold_acc below 1"),
        (sglang(eagle3(), 1.0, min_p=0.1), "ignores min_p"),
        (sglang(eagle3(), 0.0, presence_penalty=0.5), "penalties"),
        (sglang(eagle3(), 0.0, repetition_penalty=1.1), "repetition penalty"),
        (sglang(OFF, 1.0, "cpu", min_p=0.1), None),
    ],
)
def test_sglang(told: str | None, word: str | None) -> None:
    assert (told is None) if word is None else (word in str(told))


@pytest.mark.parametrize(
    ("resolved", "temperature", "word"),
    [
        ({"speculative_algorithm": None, "device": "cpu"}, 1.0, None),
        ({"speculative_algorithm": "None", "device": "cpu"}, 1.0, None),  # as text, out of a log
        ({"speculative_algorithm": "EAGLE3", "device": "cpu"}, 1.0, "argmax"),
        ({"speculative_algorithm": "EAGLE3", "device": "cpu"}, 0.0, None),
        ({"speculative_algorithm": "EAGLE3", "device": "cuda"}, 1.0, None),
        ({"speculative_algorithm": "EAGLE", "device": "hip", "speculative_use_rejection_sampling": "True"}, 1.0, None),
        (
            {"speculative_algorithm": "EAGLE3", "device": "cuda", "speculative_accept_threshold_single": 0.8},
            1.0,
            "accept_threshold_single below 1",
        ),
    ],
)
def test_a_running_sglang_server_by_what_it_resolved(
    resolved: dict[str, Any], temperature: float, word: str | None
) -> None:
    told = resolved_reason(resolved, temperature)
    assert (told is None) if word is None else (word in str(told))


def test_under_argmax_the_first_token_is_still_sampled() -> None:
    """It comes from prefill; only those after it are verified."""
    said = (
        "on CPU SGLang verifies drafts by argmax: temperature 1 and top_p are ignored under speculation and every "
        "token after the first is the greedy one"
    )
    assert sglang(eagle3(), 1.0, "cpu") == said
    assert resolved_reason({"speculative_algorithm": "EAGLE3", "device": "cpu"}, 1.0) == said


@pytest.mark.parametrize(("accelerator", "word"), [("hip", "on ROCm"), ("xpu", "on XPU"), ("cuda", None), (None, None)])
def test_the_kind_of_gpu_that_was_registered_labels_before_anything_is_measured(
    accelerator: str | None, word: str | None
) -> None:
    """And behind a server that calls ROCm `cuda`, as torch does."""
    environment = replace(SGLANG, accelerator=accelerator)
    told = SglangEngine(environment).lossy(eagle3(), OPTIONS, 1.0, {})
    resolved = resolved_reason({"speculative_algorithm": "EAGLE3", "device": "cuda"}, 1.0, accelerator)
    for why in (told, resolved if accelerator != "xpu" else told):
        assert (why is None) if word is None else (word in str(why))
    assert SglangEngine(replace(environment, device="cpu")).lossy(eagle3(), OPTIONS, 1.0, {}) is not None


def test_what_a_running_server_resolved_labels_it_too_and_its_options_first() -> None:
    engine, cuda = SglangEngine(replace(SGLANG, accelerator="hip")), {"speculative_algorithm": "EAGLE3"}
    plain = SglangEngine(SGLANG)
    assert known_lossy(plain, eagle3(), OPTIONS, 1.0, {}, {}) is None  # an entry without its kind of GPU, nothing asked
    assert "on XPU" in str(known_lossy(plain, eagle3(), OPTIONS, 1.0, {}, {**cuda, "device": "xpu:0"}))
    assert "on ROCm" in str(known_lossy(engine, eagle3(), OPTIONS, 1.0, {}, {**cuda, "device": "cuda"}))
    loose = {**cuda, "device": "cuda", "speculative_accept_threshold_acc": "0.5"}
    assert "accept_threshold_acc below 1" in str(known_lossy(plain, eagle3(), OPTIONS, 1.0, {}, loose))
    assert known_lossy(plain, OFF, OPTIONS, 1.0, {}, loose) is None
    assert "ignores min_p" in str(known_lossy(plain, eagle3(), OPTIONS, 1.0, {"min_p": 0.1}, {**cuda, "device": "xpu"}))


def test_the_gate_of_a_study_labels_by_what_the_server_resolved() -> None:
    sampling = Sampling(temperatures=[0.0, 1.0])
    question = SimpleNamespace(options=lambda environment: OPTIONS, workload=SimpleNamespace(sampling=sampling))
    resolved = {"speculative_algorithm": "EAGLE3", "device": "xpu"}
    ((at, why),) = gate._labels(question, SGLANG, eagle3(), resolved)  # type: ignore[arg-type]
    assert at == 1.0
    assert "on XPU" in why
    assert gate._labels(question, SGLANG, eagle3(), {}) == []  # type: ignore[arg-type]
