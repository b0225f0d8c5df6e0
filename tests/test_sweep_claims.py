"""Which GPUs a launch holds and claims: locks, Ray's nodes, waits that end; Ray itself is not needed."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from study_fixture import study_header

from tuner.decide.plan import Ask
from tuner.engines.base import LaunchOptions
from tuner.engines.environments import Environment
from tuner.engines.spread import gpus_of
from tuner.errors import UserError
from tuner.run.device_lock import MOST_GPUS, devices_of, holding
from tuner.run.ray_worker import CLAIMED, RETURNED
from tuner.run.store import StudyStore
from tuner.run.sweep_clock import Deadline
from tuner.run.sweep_ray import RayExecutor, refuse_on
from tuner.run.trial import NOT_STARTED, TrialPlan
from tuner.spec.speculation import SpecConfig

GPU = Environment("vllm", "vllm", "0.32.0", "python", None, "gpu")
NGRAM = SpecConfig("ngram", n=2)


@pytest.fixture(autouse=True)
def _nothing_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


# How many


@pytest.mark.parametrize(
    ("engine", "args", "gpus"),
    [
        ("vllm", (), 2),
        ("vllm", ("-pp", "2", "--data-parallel-size=3"), 12),
        ("vllm", ("--pipeline_parallel_size", "2"), 4),
        ("vllm", ("-dp", "16", "--data-parallel-size-local", "4"), 8),
        ("vllm", ("--enable-expert-parallel", "-dp", "4"), 8),
        ("vllm", ("--decode-context-parallel-size", "2"), 2),  # it shares the tensor ranks
        ("sglang", ("--pp-size", "2", "--dp-size", "2"), 8),
        ("sglang", ("--dp-size", "2", "--enable-dp-attention"), 2),
    ],
)
def test_pipeline_stages_and_replicas_count(engine: str, args: tuple[str, ...], gpus: int) -> None:
    assert gpus_of(engine, LaunchOptions(8, tensor_parallel=2, args=args)) == gpus


# Locks


def held(gpus: int, **env: str) -> set[str]:
    return set(devices_of([(GPU, LaunchOptions(8, env=tuple(env.items())))], gpus))


def test_the_engines_own_variable_is_before_that_of_the_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert held(4) == {"gpu-0"}
    assert held(4, CUDA_VISIBLE_DEVICES="2,3") == {"gpu-2", "gpu-3"}
    both = [(GPU, LaunchOptions(8)), (GPU, LaunchOptions(8, env=(("CUDA_VISIBLE_DEVICES", "1"),)))]
    assert devices_of(both, 4) == ("gpu-0", "gpu-1")


def test_where_no_driver_counts_the_gpus_one_by_its_index_and_any_of_them_are_held_alike(tmp_path: Path) -> None:
    assert held(0, CUDA_VISIBLE_DEVICES="0") == {"gpu-0"}
    assert len(held(0)) == MOST_GPUS
    assert held(0, CUDA_VISIBLE_DEVICES="0") < held(0)


def test_numbers_that_something_renumbers_may_be_any(monkeypatch: pytest.MonkeyPatch) -> None:
    every = {f"gpu-{i}" for i in range(4)}
    assert held(4, HIP_VISIBLE_DEVICES="1") == {"gpu-1"}
    assert held(4, HIP_VISIBLE_DEVICES="1", CUDA_VISIBLE_DEVICES="1") == {"gpu-1"}
    assert held(4, HIP_VISIBLE_DEVICES="1", CUDA_VISIBLE_DEVICES="2") == every
    assert held(4, CUDA_VISIBLE_DEVICES="0", ROCR_VISIBLE_DEVICES="3") == every


def test_one_that_may_be_any_is_refused_beside_one_by_its_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNER_LOCKS", str(tmp_path))
    one, any_of_them = sorted(held(0, CUDA_VISIBLE_DEVICES="0")), sorted(held(0))
    with holding(one, "first"), pytest.raises(UserError, match=r"GPU 0 is in use by first"), holding(any_of_them, "x"):
        pass


# Ray


def planned(label: str = "chat", port: int | None = None, device: str = "gpu", **options: Any) -> Any:
    chosen = LaunchOptions(8, **options)
    return SimpleNamespace(
        label=label, options=chosen, environment=dataclasses.replace(GPU, device=device),
        workload=SimpleNamespace(engine_options=SimpleNamespace(port=port)),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("nodes", "study", "sentence"),
    [
        ([4.0, 2.0], {"tensor_parallel": 8}, "chat asks for 8 GPUs a launch, and the largest node .* has 4: lower"),
        ([4.0], {"tensor_parallel": 4, "args": ("-pp", "2")}, "asks for 8 GPUs a launch"),
        ([], {}, "asks for 1 GPUs a launch, and the largest node of this Ray cluster has 0"),
        ([4.0], {"env": (("CUDA_VISIBLE_DEVICES", "1"),)}, "of chat has CUDA_VISIBLE_DEVICES, and .* remove it"),
        ([4.0], {"port": 8000, "tensor_parallel": 2}, "fixes engine_options.port 8000, and a node .* room for two"),
    ],
)
def test_what_can_never_run_is_one_sentence_before_any_launch(
    nodes: list[float], study: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        refuse_on([{"CPU": 8.0, "GPU": gpus} for gpus in nodes], [planned(**study)])


def test_what_can_run_is_not_refused() -> None:
    four = [{"CPU": 8.0, "GPU": 4.0}, {"CPU": 8.0}]
    refuse_on(four, [planned(tensor_parallel=4), planned(port=8000, tensor_parallel=3)])
    # A CPU engine has a node to itself, and sees no GPU.
    refuse_on([{"CPU": 8.0}], [planned(device="cpu", port=8000, env=(("CUDA_VISIBLE_DEVICES", ""),))])
    refuse_on(four, [planned(port=8000, tensor_parallel=3), planned(port=8001, tensor_parallel=3)])
    with pytest.raises(UserError, match=r"fixes engine_options\.port 8000"):
        refuse_on(four, [planned(port=8000, tensor_parallel=3), planned("two", port=8000, tensor_parallel=1)])


class FakeRay:
    """What an executor needs of Ray: a task is a stream of what its worker tells, or of nothing for ever."""

    class exceptions:
        class RayError(Exception): ...

        class RayTaskError(RayError): ...

    def __init__(self, *told: object, waits: bool = False) -> None:
        self.told, self.waits, self.claims, self.cancelled = told, waits, [], []  # type: ignore[var-annotated]

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {"GPU": 4.0, "CPU": 8.0}}, {"Alive": False, "Resources": {"GPU": 64.0}}]

    def remote(self, **_: object) -> Callable[[object], FakeRay]:
        return lambda _: self._task()

    def _task(self) -> Any:
        return SimpleNamespace(options=self._options)

    def _options(self, **claim: float) -> Any:
        self.claims.append(claim)
        return SimpleNamespace(remote=lambda *_: self._stream())

    async def _stream(self) -> AsyncIterator[Any]:
        if self.waits:
            await asyncio.sleep(3600)
        for one in self.told:
            ready: asyncio.Future[object] = asyncio.get_running_loop().create_future()
            ready.set_result(one)
            yield ready

    def cancel(self, told: object, *, force: bool) -> None:
        self.cancelled.append((told, force))


def asked(folder: Path, ray: FakeRay, left_s: float, start_s: float = 0.0) -> tuple[str, int]:
    question: Any = SimpleNamespace(options=lambda _: LaunchOptions(8, tensor_parallel=2, args=("-pp", "2")))
    plan = TrialPlan(1, Ask(NGRAM, "explore", "why"), GPU, (), Deadline(time.time() + left_s), start_s)
    with StudyStore.create(folder / "study", study_header()) as store:
        status = asyncio.run(RayExecutor(ray).run(question, plan, store, lambda _: None))
        return status, len(store.trials())


def test_a_claim_counts_every_gpu_of_a_launch_and_its_end_is_told(tmp_path: Path) -> None:
    ray = FakeRay((CLAIMED, ({"node": "n", "gpus": ["0"], "worker": 1},)), (RETURNED, ("ok",)))
    assert asked(tmp_path, ray, 60) == ("ok", 0)
    assert ray.claims == [{"num_gpus": 4, "num_cpus": 1}]
    assert ray.cancelled == []


def test_a_claim_that_is_not_met_is_let_go_when_its_engine_could_not_start_any_more(tmp_path: Path) -> None:
    ray = FakeRay(waits=True)
    began_s = time.monotonic()
    assert asked(tmp_path, ray, 60, start_s=59.5) == (NOT_STARTED, 0)
    assert time.monotonic() - began_s < 50
    assert [force for _, force in ray.cancelled] == [True]


def test_what_is_too_late_is_not_handed_over(tmp_path: Path) -> None:
    ray = FakeRay()
    assert asked(tmp_path, ray, 10, start_s=20) == (NOT_STARTED, 0)
    assert ray.claims == []


def test_a_node_that_is_gone_meets_no_claim() -> None:
    with pytest.raises(UserError, match="the largest node of this Ray cluster has 4"):
        RayExecutor(FakeRay()).refuse([planned(tensor_parallel=8)])


def test_an_interruption_ends_what_runs_in_a_worker(tmp_path: Path) -> None:
    ray = FakeRay(waits=True)

    async def cut(store: StudyStore) -> None:
        question: Any = SimpleNamespace(options=lambda _: LaunchOptions(8))
        plan = TrialPlan(1, Ask(NGRAM, "explore", "why"), GPU, ())
        running = asyncio.ensure_future(RayExecutor(ray).run(question, plan, store, lambda _: None))
        await asyncio.sleep(0.05)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    with StudyStore.create(tmp_path / "study", study_header()) as store:
        asyncio.run(cut(store))
    assert [force for _, force in ray.cancelled] == [True]
