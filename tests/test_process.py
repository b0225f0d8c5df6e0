"""Engines are owned: real small processes, killed and crashed in every way, and nothing of them may stay."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tuner.engines.base import Launch
from tuner.errors import UserError
from tuner.run import guard
from tuner.run.process import EngineProcess, EngineStartError, free_port, port_is_busy

# A stand-in for an engine: each word on its command line adds a habit.
ENGINE = """
import http.server, os, signal, subprocess, sys, time
port, habits = int(sys.argv[1]), sys.argv[2:]
print("engine says", os.environ.get("ENGINE_KEY"), os.environ.get("PYTHONPATH"), sys.dont_write_bytecode, flush=True)
STUBBORN = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(120)"
signal.alarm(120)  # should a test fail, its processes go by themselves
def child(own_session):
    process = subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, start_new_session=own_session)
    process.stdout.readline()
    print("child", process.pid, flush=True)
if "stubborn" in habits:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "worker" in habits:
    child(own_session=False)
if "daemon" in habits:
    child(own_session=True)
if "crash" in habits:
    raise RuntimeError("no room for the KV cache")
if "silent" in habits:
    time.sleep(120)
asked = 0
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        global asked
        asked += 1
        if self.path == "/crash":
            os._exit(7)
        starting = "slow" in habits and asked < 3
        wrong_key = "locked" in habits and self.headers["Authorization"] != "Bearer sesame"
        self.send_response(503 if starting else 401 if wrong_key else 200)
        self.end_headers()
    def log_message(self, *_):
        pass
http.server.HTTPServer(("127.0.0.1", port), Answer).serve_forever()
"""

# A stand-in for tuner: starts the engine it is told to, names the pids, then measures for ever.
TUNER = """
import asyncio, os, sys
from pathlib import Path
from tuner.engines.base import Launch
from tuner.run.process import EngineProcess
from tuner.run.signals import unwinding_signals
script, port, log, *habits = sys.argv[1:]
argv = (sys.executable, script, port, *habits)
async def main():
    launch = Launch(argv, (), (), f"http://127.0.0.1:{port}", "target")
    async with EngineProcess(launch, Path(log), ready_path="/", ready_timeout_s=60, grace_s=30) as engine:
        print(engine.pid, flush=True)
        await asyncio.sleep(600)
try:
    with unwinding_signals():
        asyncio.run(main())
except KeyboardInterrupt:
    sys.exit(130)
"""

Start = Callable[..., EngineProcess]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "engine.py"
    path.write_text(ENGINE)
    return path


@pytest.fixture
def engine(script: Path, tmp_path: Path) -> Start:
    def build(*habits: str, **options: object) -> EngineProcess:
        port = options.pop("port", None) or free_port()
        argv = options.pop("argv", (sys.executable, str(script), str(port), *habits))
        launch = Launch(argv, (), options.pop("secret_env", ()), f"http://127.0.0.1:{port}", "target")
        settings = {"ready_path": "/", "ready_timeout_s": 60.0, "grace_s": 0.3} | options
        return EngineProcess(launch, tmp_path / "logs" / "engine.log", **settings)

    return build


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """Somebody else's process: it must live through every test that asks for it."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    yield process
    assert process.poll() is None
    process.kill()
    process.wait()


def alive(pid: int) -> bool:
    found = guard.find_process(pid)
    return found is not None and found.alive


def gone_within(seconds: float, *pids: int) -> bool:
    deadline = time.monotonic() + seconds
    while any(alive(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def children_named_in(log: str) -> list[int]:
    return [int(line.split()[1]) for line in log.splitlines() if line.startswith("child ")]


def guards() -> list[int]:
    return [p.pid for p in guard.processes() if p.parent == os.getpid() and b"guard.py" in cmdline(p.pid)]


def cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_an_engine_serves_inside_and_is_gone_outside(engine: Start) -> None:
    async def use() -> int:
        async with engine("slow") as running:
            assert running.alive()
            assert running.ready_s > 0
            assert running.exit_code is None
            assert port_is_busy(int(running.url.rsplit(":")[-1]))
            assert os.getpgid(running.pid) == os.getsid(running.pid) == running.pid != os.getpgid(0)
            pid = running.pid
        assert not running.alive()
        assert not port_is_busy(int(running.url.rsplit(":")[-1]))
        return pid

    assert not alive(asyncio.run(use()))
    assert guards() == []


def test_waiting_is_told_and_an_answer_below_200_is_no_readiness(engine: Start) -> None:
    waits: list[float] = []

    async def use() -> None:
        async with engine("slow", on_wait=waits.append):
            pass

    asyncio.run(use())
    assert len(waits) >= 2  # "slow" answers 503 twice
    assert waits == sorted(waits)


def test_readiness_can_carry_a_key(engine: Start) -> None:
    async def use() -> None:
        async with engine("locked", ready_headers={"Authorization": "Bearer sesame"}):
            pass

    asyncio.run(use())
    with pytest.raises(EngineStartError, match=r"not ready within 1\.5 s \(GET /\)"):
        asyncio.run(engine("locked", ready_timeout_s=1.5).__aenter__())


def test_sigterm_ignored_workers_and_daemons_end_all_the_same(
    engine: Start, bystander: subprocess.Popen[bytes]
) -> None:
    async def use() -> list[int]:
        async with engine("stubborn", "worker", "daemon") as running:
            pids = [running.pid, *children_named_in(running.log_text())]
            assert all(alive(pid) for pid in pids)
        return pids

    pids = asyncio.run(use())
    assert len(pids) == 3
    assert not any(alive(pid) for pid in pids)


def test_a_crash_at_start_is_told_at_once_with_the_log(engine: Start) -> None:
    running, began = engine("worker", "crash"), time.monotonic()
    with pytest.raises(
        EngineStartError, match=r"exited with code 1 after \d+ s, before it was ready: see .*engine\.log"
    ) as e:
        asyncio.run(running.__aenter__())
    assert time.monotonic() - began < 15  # of the 60 s it had
    assert e.value.exit_code == 3
    assert e.value.log_tail.endswith("RuntimeError: no room for the KV cache")
    assert "Traceback" in e.value.log_tail
    assert running.exit_code == 1
    assert not any(alive(pid) for pid in children_named_in(running.log_text()))


def test_the_log_tail_is_fifty_lines(engine: Start) -> None:
    running = engine(argv=(sys.executable, "-c", "for n in range(200): print('line', n)\nraise SystemExit(2)"))
    with pytest.raises(EngineStartError) as e:
        asyncio.run(running.__aenter__())
    assert e.value.log_tail.splitlines() == [f"line {n}" for n in range(150, 200)]


def test_an_engine_that_cannot_be_executed(engine: Start) -> None:
    with pytest.raises(EngineStartError, match=r"could not be executed .*No such file or directory: '/no/such/python'"):
        asyncio.run(engine(argv=("/no/such/python", "-m", "vllm")).__aenter__())
    assert guards() == []


def test_an_engine_that_never_serves_is_ended(engine: Start) -> None:
    running = engine("silent", "stubborn", ready_timeout_s=1.0)
    with pytest.raises(EngineStartError, match=r"not ready within 1 s \(GET /\): see .*, or raise ready_timeout_s"):
        asyncio.run(running.__aenter__())
    assert running.pid
    assert not alive(running.pid)


def test_a_busy_port_starts_nothing_and_touches_nobody(engine: Start, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UserError, match=f"port {port} is in use by another process"):
            asyncio.run(engine(port=port).__aenter__())
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    assert not (tmp_path / "logs").exists()
    assert not port_is_busy(port)


def test_an_engine_that_dies_later_is_noticed(engine: Start) -> None:
    async def use() -> None:
        async with engine("worker") as running:
            _reader, writer = await asyncio.open_connection("127.0.0.1", int(running.url.rsplit(":")[-1]))
            writer.write(b"GET /crash HTTP/1.0\r\n\r\n")
            await asyncio.wait_for(running.wait(), 10)
            writer.close()
            assert not running.alive()
            assert running.exit_code == 7
            workers = children_named_in(running.log_text())
            assert len(workers) == 1
        assert not alive(workers[0])

    asyncio.run(use())


def test_cancelling_a_start_or_a_measurement_unwinds(engine: Start) -> None:
    async def cancel_after(running: EngineProcess, ready: bool) -> None:
        async def measure() -> None:
            async with running:
                await asyncio.sleep(600)

        task = asyncio.create_task(measure())
        while not (running.pid and (not ready or hasattr(running, "ready_s"))):
            await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.sleep(0.1)
        task.cancel()  # a second Ctrl-C must not cut the first one's clean-up short
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not alive(running.pid)

    asyncio.run(cancel_after(engine("silent", "stubborn"), ready=False))
    asyncio.run(cancel_after(engine("stubborn"), ready=True))


def test_a_killed_guard_leaves_no_engine(engine: Start, bystander: subprocess.Popen[bytes]) -> None:
    async def use() -> list[int]:
        async with engine("stubborn", "worker") as running:
            pids = [running.pid, *children_named_in(running.log_text())]
            (guard_pid,) = guards()
            os.kill(guard_pid, signal.SIGKILL)
            await asyncio.wait_for(running.wait(), 10)
            assert not running.alive()
        return pids

    pids = asyncio.run(use())
    assert len(pids) == 2
    assert not any(alive(pid) for pid in pids)


def test_secrets_stay_out_of_command_lines_and_logs(engine: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/not/for/the/engine")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")

    async def use() -> EngineProcess:
        async with engine(secret_env=(("ENGINE_KEY", "hunter2-very-secret"),)) as running:
            assert running.log_text() == "engine says *** None False\n"
            for pid in (running.pid, *guards()):
                assert b"hunter2" not in cmdline(pid)
        return running

    running = asyncio.run(use())
    assert running.log_path.read_text() == "engine says *** None False\n"
    again = asyncio.run(use())  # a second launch appends, and its text starts where it started
    assert again.log_path.read_text() == "engine says *** None False\n" * 2
    assert again.log_text() == "engine says *** None False\n"


def start_tuner(script: Path, tmp_path: Path, *habits: str) -> tuple[subprocess.Popen[str], list[int], int]:
    """A tuner of its own with a ready engine; (tuner, every pid of its engine, port)."""
    port, log = free_port(), tmp_path / "engine.log"
    command = [sys.executable, "-W", "error", "-c", TUNER, str(script), str(port), str(log), *habits]
    tuner = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert tuner.stdout is not None
    first = tuner.stdout.readline()
    assert first, tuner.communicate()[1]
    return tuner, [int(first), *children_named_in(log.read_text())], port


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 130), (signal.SIGHUP, 130), (signal.SIGINT, 130)])
def test_polite_signals_to_the_tuner_unwind(script: Path, tmp_path: Path, number: signal.Signals, code: int) -> None:
    tuner, pids, port = start_tuner(script, tmp_path, "daemon")
    tuner.send_signal(number)
    _, complaint = tuner.communicate(timeout=30)
    assert (tuner.returncode, complaint) == (code, "")
    assert len(pids) == 2
    assert not any(alive(pid) for pid in pids)
    assert not port_is_busy(port)


def test_no_engine_survives_a_killed_tuner(script: Path, tmp_path: Path, bystander: subprocess.Popen[bytes]) -> None:
    tuner, pids, port = start_tuner(script, tmp_path, "stubborn", "worker", "daemon")
    tuner.kill()
    tuner.communicate()
    assert len(pids) == 3
    assert gone_within(10, *pids)  # although the engine ignores SIGTERM and was given 30 s
    assert not port_is_busy(port)


def test_a_tuner_killed_while_it_stops_its_engine(script: Path, tmp_path: Path) -> None:
    tuner, pids, _ = start_tuner(script, tmp_path, "stubborn", "daemon")
    tuner.send_signal(signal.SIGTERM)
    time.sleep(1)
    assert tuner.poll() is None  # it gives its engine 30 s
    tuner.kill()
    tuner.communicate()
    assert gone_within(10, *pids)


def test_tuner_and_guard_killed_at_once_take_the_first_process_along(script: Path, tmp_path: Path) -> None:
    tuner, pids, _ = start_tuner(script, tmp_path)
    parent = guard.find_process(pids[0])
    assert parent is not None
    assert b"guard.py" in cmdline(parent.parent)
    os.kill(parent.parent, signal.SIGKILL)  # first, or it would do its work
    tuner.kill()
    tuner.communicate()
    assert gone_within(10, *pids)


def test_a_guard_whose_tuner_is_already_gone_starts_nothing_for_long(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    order = {"argv": [sys.executable, "-c", "import time; time.sleep(600)"], "env": {}, "log": str(log), "secrets": []}
    with log.open("wb") as output:
        done = subprocess.run(
            [sys.executable, "-I", "-S", guard.__file__],
            input=json.dumps(order | {"tuner": 1}).encode() + b"\n",
            stdout=subprocess.PIPE,
            stderr=output,
            timeout=60,
            check=True,
        )
    started, left = (json.loads(line) for line in done.stdout.splitlines())
    assert left == {"left": []}
    assert not alive(started["pid"])
    assert log.read_text() == ""


def test_free_port_is_free_and_a_listener_makes_it_busy() -> None:
    port = free_port()
    assert not port_is_busy(port)
    with socket.create_server(("127.0.0.1", port)):
        assert port_is_busy(port)
    assert not port_is_busy(port)
