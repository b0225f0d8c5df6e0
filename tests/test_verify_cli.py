"""`tuner verify` as people run it: real processes and HTTP, mock engines with injected faults, exit codes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import threading
from collections.abc import AsyncIterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import SIM, Bench
from heads import write_safetensors
from mock_engine import mock_process

from tuner.engines.base import LaunchOptions
from tuner.engines.environments import EXPAND_CORRECTION, Environment
from tuner.errors import EngineError, UserError
from tuner.measure.lossless import Verified
from tuner.measure.lossless_levels import ALPHA
from tuner.measure.lossless_records import OffProbe
from tuner.run.host import HostFacts, available_gib
from tuner.run.progress import Event
from tuner.run.stream import Server
from tuner.run.verify import _word, chosen_settings, verify_addresses, verify_workload
from tuner.run.verify_launch import room_for_two
from tuner.run.verify_task import Effort, plain_task
from tuner.spec.speculation import SpecConfig

FAST = {**SIM, "base_s": 0.001, "slope": 0.0, "prefill_s": 0.0}
FEW = ("--prompts", 8, "--tokens", 24, "--samples", 1024)


def workload(bench: Bench, *faults: str, **changes: object) -> Path:
    env = {"MOCK_ENGINE_SIM": json.dumps(FAST), "MOCK_ENGINE_FAULTS": ",".join(faults)}
    traffic = {"concurrency": [1, 32], "prompts": [{"set": "chat"}], "max_output_tokens": 24}
    return bench.workload(**{"engine_options": {"env": env}, "traffic": traffic, **changes})


def engines_left(bench: Bench) -> list[str]:
    alive = subprocess.run(["ps", "-wweo", "stat,args"], capture_output=True, text=True, check=True).stdout
    return [line for line in alive.splitlines() if "mock_engine.py" in line and str(bench.folder) in line]


def test_sound_settings_pass_and_are_stored(bench: Bench) -> None:
    done = bench.tuner("verify", workload(bench), *FEW, "--json", timeout_s=500)
    assert done.returncode == 0, done.stderr + done.stdout
    told = json.loads(done.stdout)
    assert told["ok"] is True
    assert [one["setting"] for one in told["settings"]] == ["ngram N=3", "eagle3 N=4"]
    for one in told["settings"]:
        assert one["greedy"]["prompts"] == 8
        assert one["greedy"]["tokens"] == 8 * 24
        assert one["greedy"]["divergences"] == []
        assert one["drafted"] > 0
        (sampled,) = one["sampled"]
        assert sum(test["second"] for test in sampled["tests"]) >= 1024
    (folder,) = (bench.folder / "reports").glob("verify-mock-*")
    assert json.loads((folder / "verify.json").read_text()) == told
    assert len(json.loads((folder / "off.json").read_text())["greedy"]) == 8
    assert engines_left(bench) == []


#: Two engines beside each other are given 10 GiB of three quarters of the memory.
roomy = pytest.mark.skipif(
    min(0.75 * HostFacts.read().memory_gib, available_gib()) < 9, reason="two engines have no room on this machine"
)


def on_cpu(bench: Bench) -> None:
    """The bench's engine computes on the CPU, and its target's weights are here: two engines have room."""
    path = bench.home / "engines" / "mock.json"
    entry = json.loads(path.read_text()) | {"device": "cpu", "corrections": [EXPAND_CORRECTION]}
    path.write_text(json.dumps(entry))
    write_safetensors(bench.folder / "target" / "model.safetensors", {"a": np.zeros((2, 2), dtype=np.float32)})


@roomy
def test_where_two_engines_fit_off_is_launched_once_and_stays_up(bench: Bench) -> None:
    on_cpu(bench)
    path = workload(bench, drafts=[{"method": "ngram", "n": [2, 3]}])
    chosen = ("--setting", "ngram N=2", "--setting", "ngram N=3")
    done = bench.tuner("verify", path, *FEW, *chosen, "--json", timeout_s=500)
    assert done.returncode == 0, done.stderr + done.stdout
    told = json.loads(done.stdout)
    assert [(one["setting"], one["greedy"]["prompts"]) for one in told["settings"]] == [
        ("ngram N=2", 8), ("ngram N=3", 8)
    ]  # fmt: skip
    (folder,) = (bench.folder / "reports").glob("verify-mock-*")
    assert sorted(log.name for log in folder.glob("*.log")) == ["001-off.log", "002-ngram.log", "003-ngram.log"]
    assert len(json.loads((folder / "off.json").read_text())["greedy"]) == 8
    asked = [line.split(maxsplit=1)[1] for line in done.stderr.splitlines() if "is asked" in line]
    small, whole = (
        "2 prompts greedily, 64 samples at temperature 1",
        "8 prompts greedily, 1,024 samples at temperature 1",
    )
    assert asked == [
        f"off is asked: {small}", f"ngram N=2 is asked the same: {small}",
        f"off is asked: {whole}", f"ngram N=2 is asked the same: {whole}",
        f"ngram N=3 is asked the same: {small}", f"ngram N=3 is asked the same: {whole}",
    ]  # fmt: skip
    assert engines_left(bench) == []


@roomy
def test_where_two_engines_fit_a_glance_finds_what_is_obvious(bench: Bench) -> None:
    on_cpu(bench)
    path = workload(bench, "spec_greedy", drafts=[{"method": "ngram", "n": 3}])
    done = bench.tuner("verify", path, "--json", timeout_s=500)  # of 32 prompts and 8,192 samples a server
    assert done.returncode == 1, done.stderr
    (one,) = json.loads(done.stdout)["settings"]
    (sampled,) = one["sampled"]
    assert 64 <= sum(test["first"] for test in sampled["tests"]) <= 128
    assert "8,192 samples" not in done.stderr
    assert one["greedy"]["prompts"] == 2
    assert engines_left(bench) == []


@roomy
def test_where_two_engines_fit_none_is_left_when_one_does_not_start(bench: Bench) -> None:
    on_cpu(bench)
    path = workload(bench, "die_at_start", drafts=[{"method": "ngram", "n": 3}])
    done = bench.tuner("verify", path, *FEW)
    assert done.returncode == 3, done.stdout
    assert "the engine exited" in done.stderr
    assert "Traceback" not in done.stderr
    (folder,) = (bench.folder / "reports").glob("verify-mock-*")
    assert sorted(log.name for log in folder.glob("*.log")) == ["001-off.log", "002-ngram.log"]
    assert engines_left(bench) == []


@pytest.mark.parametrize(
    ("device", "port", "weights_gib", "memory_gib", "room"),
    [
        ("cpu", None, 0.5, 16.0, True),  # two of 2 x 0.5 + 4 GiB in three quarters of 16
        ("cpu", None, 0.5, 13.0, False),
        ("cpu", None, 8.0, 48.0, False),
        ("cpu", None, 8.0, 64.0, True),
        ("cpu", 8000, 0.5, 64.0, False),
        ("gpu", None, 0.5, 640.0, False),
        ("cpu", None, None, 64.0, False),  # weights that are not on this machine cannot be counted
    ],
)
def test_room_for_two_engines(
    monkeypatch: pytest.MonkeyPatch, device: str, port: int | None, weights_gib: float | None, memory_gib: float,
    room: bool,
) -> None:  # fmt: skip
    found = None if weights_gib is None else SimpleNamespace(nbytes=int(weights_gib * 2**30))
    monkeypatch.setattr("tuner.run.verify_launch.read_checkpoint", lambda _: found)
    monkeypatch.setattr(
        "tuner.run.verify_launch.HostFacts", SimpleNamespace(read=lambda: SimpleNamespace(memory_gib=memory_gib))
    )
    question = SimpleNamespace(target="m", workload=SimpleNamespace(engine_options=SimpleNamespace(port=port)))
    here = Environment("e", "vllm", "0.32.0", "python", None, device)
    monkeypatch.setattr("tuner.run.verify_launch.available_gib", lambda: 1000.0)
    specs = [SpecConfig("ngram", n=1)]
    assert room_for_two(question, here, LaunchOptions(4), specs) is room  # type: ignore[arg-type]
    monkeypatch.setattr("tuner.run.verify_launch.available_gib", lambda: 9.0)
    assert room_for_two(question, here, LaunchOptions(4), specs) is False  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("engine", "options", "room"),
    [
        ("vllm", LaunchOptions(4, env=(("VLLM_CPU_KVCACHE_SPACE", "1"),)), True),
        ("vllm", LaunchOptions(4, env=(("VLLM_CPU_KVCACHE_SPACE", "40"),)), False),
        ("vllm", LaunchOptions(4, args=("--kv-cache-memory-bytes", "9000000000")), False),
        ("sglang", LaunchOptions(4, max_model_len=2048), True),  # 8,192 tokens
        ("sglang", LaunchOptions(64, max_model_len=4096), False),
        ("sglang", LaunchOptions(64, max_model_len=4096, args=("--max-total-tokens", "8192")), True),
    ],
)
def test_a_cache_of_a_size_of_its_own_leaves_no_room(
    monkeypatch: pytest.MonkeyPatch, engine: str, options: LaunchOptions, room: bool
) -> None:
    monkeypatch.setattr("tuner.run.verify_launch.read_checkpoint", lambda _: SimpleNamespace(nbytes=2**28))
    monkeypatch.setattr(
        "tuner.run.verify_launch.HostFacts", SimpleNamespace(read=lambda: SimpleNamespace(memory_gib=64.0))
    )
    monkeypatch.setattr("tuner.run.verify_launch.available_gib", lambda: 64.0)
    question = SimpleNamespace(target="m", workload=SimpleNamespace(engine_options=SimpleNamespace(port=None)))
    here = Environment("e", engine, "0.5.23", "python", None, "cpu")
    assert room_for_two(question, here, options, [SpecConfig("ngram", n=1)]) is room  # type: ignore[arg-type]


def test_a_faulty_setting_is_exit_code_1_and_says_where(bench: Bench) -> None:
    done = bench.tuner(
        "verify", workload(bench, "spec_greedy"), *FEW, "--setting", "eagle3 N=2", "--temperature", 0.8, timeout_s=500
    )
    assert done.returncode == 1, done.stderr
    assert "eagle3 N=2: NOT LOSSLESS: at temperature 0.8 the first 5 tokens are not drawn from" in done.stdout
    assert "ngram" not in done.stdout


def test_sglang_is_spoken_to_in_its_own_words(bench: Bench) -> None:
    path = workload(bench, engine="mock-sglang", drafts=[{"method": "eagle3", "model": "./head", "n": 3}])
    done = bench.tuner("verify", path, *FEW, "--temperature", 0, "--json", timeout_s=500)
    assert done.returncode == 0, done.stderr + done.stdout
    (one,) = json.loads(done.stdout)["settings"]
    assert one["greedy"]["divergences"] == []
    assert one["sampled"] == []


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        ((), "give a workload, or both --off-url and --spec-url"),
        (("--off-url", "http://localhost:9"), "give a workload, or both"),
        (("absent.yaml",), "absent.yaml"),
        (("--off-url", "http://127.0.0.1:9", "--spec-url", "http://127.0.0.1:9"), "does not answer"),
    ],
)
def test_bad_input_is_one_sentence(bench: Bench, argv: tuple[str, ...], sentence: str) -> None:
    done = bench.tuner("verify", *argv)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("told", ['{"data": []}', '{"models": ["m"]}', '["m"]', '{"data": ["m"]}'])
def test_an_address_that_serves_something_else_is_one_sentence(told: str) -> None:
    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(told.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Other)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    try:
        with pytest.raises(UserError, match=r"/v1/models (lists no model|does not answer)"):
            asyncio.run(verify_addresses(url, url, plain_task(Effort(), [], 1, 0, 0.5)))
    finally:
        server.shutdown()
        server.server_close()


def test_what_was_found_stays_when_a_later_setting_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = plain_task(Effort(), [1.0], 1, 0, 0.5)
    question = SimpleNamespace(
        options=lambda _: LaunchOptions(1), target="m",
        workload=SimpleNamespace(name="w", sampling=SimpleNamespace(body=lambda _: {})),
    )  # fmt: skip

    @contextlib.asynccontextmanager
    async def serving(self: object, spec: SpecConfig, number: int) -> AsyncIterator[tuple[Server, dict[str, str]]]:
        if number == 3:
            raise EngineError("ngram N=2: the engine exited")
        yield Server("http://x", None, "m"), {}

    async def probed(*_: object) -> OffProbe:
        return OffProbe()

    async def verified(*given: object) -> Verified:
        # Two settings, and temperatures 0 and 1 of each: four chances to err.
        assert given[5] == ALPHA / 4
        return Verified(str(given[3]), unsafe="it died")

    engine = SimpleNamespace(lossy=lambda *_: None, environment=SimpleNamespace(engine="vllm"))
    for name, fake in (
        ("verify.engine_for", lambda _: engine), ("verify.task_of", lambda *_: asked), ("verify.probe_off", probed),
        ("verify.room_for_two", lambda *_: False), ("verify_reference.verify_server", verified),
        ("verify_launch.Launcher.serving", serving),
    ):  # fmt: skip
        monkeypatch.setattr(f"tuner.run.{name}", fake)
    specs = [SpecConfig("ngram", n=n) for n in (1, 2)]
    events: list[Event] = []
    here = Environment("vllm-cpu", "vllm", "0.32.0", "python", None, "cpu")
    with pytest.raises(EngineError, match="ngram N=2: the engine exited"):
        asyncio.run(verify_workload(question, here, specs, Effort(), tmp_path, events.append))  # type: ignore[arg-type]
    (stored,) = tmp_path.glob("verify-w-*/verify.json")
    assert [one["setting"] for one in json.loads(stored.read_text())["settings"]] == ["ngram N=1"]
    assert [event.text for event in events if event.kind == "trial"] == ["NOT the target's output"]
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(UserError, match="choose another --reports"):
        asyncio.run(verify_workload(question, here, specs, Effort(), file, events.append))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("one", "word"),
    [
        (Verified("a", labels=((1.0, "verified by argmax"),)), "NOT the target's output"),
        (Verified("a", drafted=0), "output not tested"),
    ],
)
def test_progress_claims_no_more_than_the_verdict(one: Verified, word: str) -> None:
    assert _word(one) == word


def test_nothing_to_verify_is_no_pass() -> None:
    with pytest.raises(UserError, match="no setting of the workload is left to verify"):
        chosen_settings((), ())


def test_a_setting_that_the_workload_has_not(bench: Bench) -> None:
    done = bench.tuner("verify", workload(bench), "--setting", "eagle3 N=9")
    assert done.returncode == 2
    assert "no setting 'eagle3 N=9': it has ngram N=3, eagle3 N=1" in done.stderr
    done = bench.tuner("verify", workload(bench), "--engine", "mock-sglang")
    assert done.returncode == 2
    assert "no engine 'mock-sglang': it has mock" in done.stderr


def test_an_engine_that_does_not_start_is_exit_code_3(bench: Bench) -> None:
    done = bench.tuner("verify", workload(bench, "die_at_start"), *FEW)
    assert done.returncode == 3
    assert "off: the engine exited" in done.stderr
    assert "Traceback" not in done.stderr


def test_two_addresses(bench: Bench) -> None:
    spec = json.dumps({"method": "eagle3", "model": "/d", "num_speculative_tokens": 3})
    sim, few = json.dumps(FAST), (*FEW, "--concurrency", 32)
    with mock_process("--sim", sim) as (off, _), mock_process("--sim", sim, "--speculative-config", spec) as (url, _):
        done = bench.tuner("verify", "--off-url", off, "--spec-url", url, *few, timeout_s=500)
        assert done.returncode == 0, done.stderr + done.stdout
        assert f"{url}: lossless, as far as tested" in done.stdout
        assert "would have caught" in done.stdout or "would have been caught" in done.stdout
    broken = ("--fault", "bonus_bias=3", "--speculative-config", spec)
    with mock_process("--sim", sim) as (off, _), mock_process("--sim", sim, *broken) as (url, _):
        done = bench.tuner("verify", "--off-url", off, "--spec-url", url, *few, timeout_s=500)
        assert done.returncode == 1, done.stdout
        assert "NOT LOSSLESS: at temperature 1" in done.stdout
