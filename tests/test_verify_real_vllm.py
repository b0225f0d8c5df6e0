"""Losslessness on a real vLLM: sound settings pass greedily and at temperature 1; the build as shipped does not."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import real_vllm

from tuner.engines.base import LaunchOptions
from tuner.engines.vllm import VllmEngine
from tuner.measure.lossless import Structured, Verified
from tuner.measure.lossless_greedy import TIE_32_BIT
from tuner.measure.lossless_levels import ALPHA
from tuner.report.lossless_text import line
from tuner.run.process import EngineProcess, free_port
from tuner.run.stream import Server
from tuner.run.verify_probe import probe_off, verify_server
from tuner.run.verify_task import Effort, Task, plain_task
from tuner.spec.speculation import OFF, SpecConfig

pytestmark = [pytest.mark.real_vllm, pytest.mark.timeout(1800)]

EAGLE3 = SpecConfig("eagle3", n=3, draft=str(real_vllm.HEAD))
NGRAM = SpecConfig("ngram", n=3, options=(("prompt_lookup_max", 4), ("prompt_lookup_min", 1)))
AS_SHIPPED, NGRAM_TOP_K = "eagle3 as shipped", "ngram with top_k"
RUNNING = 32


#: Short whatever a small model thinks: what can be wrong with an answer is how it is bound.
SCHEMA = {
    "type": "object", "required": ["likes", "count"], "additionalProperties": False,
    "properties": {"likes": {"enum": ["yes", "no"]}, "count": {"type": "integer", "minimum": 0, "maximum": 9}},
}  # fmt: skip


def task() -> Task:
    plain = plain_task(Effort(prompts=6, tokens=24, samples=192, k=4), (1.0,), RUNNING, 0, TIE_32_BIT)
    bound = {"type": "json_schema", "json_schema": {"name": "pet", "schema": SCHEMA}}
    questions = [f"How many {animals} do you like? Answer as JSON." for animals in ("cats", "dogs", "newts", "owls")]
    structured = tuple(
        (
            text,
            {
                "messages": [{"role": "user", "content": text}],
                "max_tokens": 48, "temperature": 0.0, "response_format": bound,
            },
        )
        for text in questions
    )  # fmt: skip
    return dataclasses.replace(plain, engine="vllm", structured=structured)


@contextlib.asynccontextmanager
async def serving(spec: SpecConfig, log: Path, env: Mapping[str, str]) -> AsyncIterator[Server]:
    engine = VllmEngine(real_vllm.environment())
    options = LaunchOptions(RUNNING, max_model_len=2048, args=real_vllm.ARGS, env=tuple(env.items()))
    launch = engine.launch(str(real_vllm.target()), spec, options, free_port(), real_vllm.KEY)
    ready = engine.ready_path()
    async with EngineProcess(launch, log, ready_path=ready, ready_timeout_s=real_vllm.READY_S):
        yield Server(launch.url, real_vllm.KEY, launch.served_name)


async def verify_all(folder: Path) -> dict[str, Verified]:
    found, asked, began_s = {}, task(), time.monotonic()
    async with serving(OFF, folder / "off.log", {}) as server:
        off = await probe_off(server, asked)
    assert [answer.wrong for answer in off.structured] == [None] * 4
    runs = {AS_SHIPPED: (EAGLE3, {"TUNER_CORRECTIONS": "off"}), EAGLE3.label: (EAGLE3, {}), NGRAM.label: (NGRAM, {})}
    for name, (spec, env) in runs.items():
        async with serving(spec, folder / f"{name}.log", env) as server:
            own = without_top_k(asked) if spec == NGRAM else asked
            found[name] = await verify_server(server, own, off, name, alpha=ALPHA / len(runs))
            passed = "lossless" if found[name].ok else "NOT lossless"
            print(f"{name}: {passed}, {time.monotonic() - began_s:.0f} s after the start")
            if spec == NGRAM:
                again = dataclasses.replace(asked, greedy=(), sampled=with_top_k_alone(asked))
                found[NGRAM_TOP_K] = await verify_server(server, again, off, NGRAM_TOP_K)
    for one in found.values():
        print(line(one))
    return found


def without_top_k(asked: Task) -> Task:
    return dataclasses.replace(asked, sampled=tuple(one for one in asked.sampled if "top_k" not in one[1]))


def with_top_k_alone(asked: Task) -> tuple[tuple[str, Mapping[str, Any], bool], ...]:
    """A request with top_p in the same step would take another path through the sampler, and survive."""
    return tuple(one for one in asked.sampled if "top_k" in one[1])


@pytest.fixture(scope="module")
def verified(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Verified]:
    return asyncio.run(verify_all(tmp_path_factory.mktemp("verify")))


@pytest.mark.parametrize("label", [EAGLE3.label, NGRAM.label])
def test_a_corrected_engine_passes_and_states_its_power(verified: dict[str, Verified], label: str) -> None:
    one = verified[label]
    assert list(one.faults()) == [], line(one)
    assert one.greedy is not None
    assert (one.greedy.prompts, one.greedy.floor_prompts) == (6, 6)
    assert all(d.gap is not None for d in one.greedy.divergences)  # every divergence is told apart from a fault
    (sampled,) = one.sampled
    assert sampled.second >= 192
    assert sampled.caught is not None
    assert sampled.caught < 0.6
    assert one.drafted is not None
    assert one.drafted > 50  # the equality was put to the test
    assert f"would have been caught with probability {sampled.power():.2g}" in line(one)


def test_answers_bound_to_a_schema_are_whole_under_speculation(verified: dict[str, Verified]) -> None:
    for label in (EAGLE3.label, NGRAM.label):
        assert verified[label].structured == Structured(asked=4, whole=4, off_whole=4)


def test_the_build_as_shipped_is_caught_above_temperature_0_alone(verified: dict[str, Verified]) -> None:
    """Its sampler reads uninitialised temperatures and top-k under speculation: junk, or the engine dies of it. Greedy
    verification does not use them."""
    one = verified[AS_SHIPPED]
    assert {at for at, _ in one.faults()} == {1.0}, line(one)
    assert one.fault(0.0) is None
    assert one.unsafe is not None or [sampled.failed for sampled in one.sampled] == [True]
    assert all(sampled.look < 3 for sampled in one.sampled)  # an obvious fault ends the sampling early


def test_ngram_with_top_k_kills_the_engine_and_is_called_unsafe(verified: dict[str, Verified]) -> None:
    """vLLM 0.32's V1 runner: in a step in which no request drafts, apply_top_k_only takes the maximum of nothing."""
    one = verified[NGRAM_TOP_K]
    assert {at for at, _ in one.faults()} == {1.0}, line(one)
    assert one.unsafe is not None
    assert "EngineCore" in one.unsafe


def test_off_agrees_with_itself_by_the_same_test(verified: dict[str, Verified]) -> None:
    assert [control.failed for control in verified[EAGLE3.label].controls] == [False]
