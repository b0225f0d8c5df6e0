"""One engine process, owned: started behind a guard, waited for, and ended with its whole group whatever happens."""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

from tuner.errors import EngineError, UserError
from tuner.run.files import make_folder
from tuner.run.guarded import Guarded, inherited_env, secret_values, without

if TYPE_CHECKING:
    import aiohttp

    from tuner.engines.base import Launch

POLL_S = 0.25
ANSWER_TIMEOUT_S = 5.0
PORT_RELEASE_S = 3.0
TAIL_LINES = 50


class EngineStartError(EngineError):
    """The engine exited or stayed silent before it served; `log_tail` holds the last 50 lines it wrote."""

    def __init__(self, message: str, log_tail: str) -> None:
        super().__init__(message)
        self.log_tail = log_tail


class EngineSlow(EngineStartError):
    """It runs, and did not serve within the seconds it was given."""


class EngineProcess:
    """An engine from its start to its last process: `async with EngineProcess(launch, log, ready_path="/health", …)`.

    Entering waits until GET `ready_path` answers 200 (EngineStartError otherwise; UserError for a busy port) and calls
    `on_wait` with the seconds waited, a few times a second. Leaving always stops it. The log is appended to.
    """

    ready_s: float  #: from the start of the process to the first 200

    def __init__(
        self,
        launch: Launch,
        log_path: Path,
        *,
        ready_path: str,
        ready_timeout_s: float,
        on_wait: Callable[[float], None] | None = None,
        grace_s: float = 10.0,
        ready_headers: Mapping[str, str] | None = None,
    ) -> None:
        self.launch, self.log_path, self.url = launch, log_path, launch.url
        self.ready_path, self.ready_timeout_s, self.grace_s = ready_path, ready_timeout_s, grace_s
        self._on_wait = on_wait or (lambda _waited_s: None)
        self._ready_headers = dict(ready_headers or {})
        self._env = inherited_env() | dict(launch.env) | dict(launch.secret_env)
        self._secrets = secret_values(self._env, launch.secret_env)
        self._port = urlsplit(launch.url).port or 80
        self._log_from = 0
        self._process: Guarded | None = None

    @property
    def pid(self) -> int:
        """The engine's first process and, as it leads them, its group and session; 0 before it runs."""
        return self._process.pid if self._process else 0

    @property
    def exit_code(self) -> int | None:
        """How it ended by itself (minus the signal that ended it); None while it runs, and when it was stopped."""
        return self._process.exit_code if self._process else None

    def alive(self) -> bool:
        return self._process is not None and self._process.pid != 0 and not self._process.ended.is_set()

    async def wait(self) -> None:
        """Until the engine is gone, of itself or stopped: what a measurement can race against."""
        if self._process:
            await self._process.ended.wait()

    def log_text(self) -> str:
        """What this launch wrote so far, secrets withheld."""
        try:
            with self.log_path.open("rb") as file:
                file.seek(self._log_from)
                return without(self._secrets, file.read().decode("utf-8", "replace"))
        except FileNotFoundError:
            return ""

    async def __aenter__(self) -> Self:
        if port_is_busy(self._port):
            raise UserError(
                f"port {self._port} is in use by another process: end that one, or choose another port for the engine"
            )
        make_folder(self.log_path.parent)
        self._log_from = self.log_path.stat().st_size if self.log_path.exists() else 0
        started_s = time.perf_counter()
        self._process = Guarded(self.launch.argv, self._env, self._secrets, self.log_path)
        try:
            await self._until_ready(self._process, started_s)
        except BaseException as error:
            await self._end(self._process, error)
            raise
        self.ready_s = time.perf_counter() - started_s
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process:
            await self._end(self._process, error)

    async def _until_ready(self, process: Guarded, started_s: float) -> None:
        ready, ended = asyncio.ensure_future(self._poll_ready(started_s)), asyncio.ensure_future(process.ended.wait())
        try:
            await asyncio.wait({ready, ended}, timeout=self.ready_timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if process.ended.is_set():
                why = f"{_ending(process)} after {time.perf_counter() - started_s:.0f} s, before it was ready"
                raise EngineStartError(f"the engine {why}: see {self.log_path}", self._log_tail())
            if not ready.done():
                raise EngineSlow(
                    f"the engine was not ready within {self.ready_timeout_s:g} s (GET {self.ready_path}): see "
                    f"{self.log_path}, or raise ready_timeout_s",
                    self._log_tail(),
                )
            ready.result()
        finally:
            ready.cancel()
            ended.cancel()
            await asyncio.gather(ready, ended, return_exceptions=True)

    async def _poll_ready(self, started_s: float) -> None:
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout, headers=self._ready_headers) as session:
            while not await _answers(session, self.url + self.ready_path):
                self._on_wait(time.perf_counter() - started_s)
                await asyncio.sleep(POLL_S)

    async def _end(self, process: Guarded, error: BaseException | None) -> None:
        """Stop to the end even when cancelled meanwhile; what would not end is raised, or noted on `error`."""
        stopping, cancelled = asyncio.ensure_future(self._stop(process)), None
        while not stopping.done():
            try:
                await asyncio.wait({stopping})
            except asyncio.CancelledError as cancel:
                cancelled = cancel
        trouble = stopping.result()
        if trouble and error is not None:
            error.add_note(trouble)
        elif trouble:
            raise EngineError(trouble)
        if cancelled is not None:
            raise cancelled

    async def _stop(self, process: Guarded) -> str | None:
        """End the engine; one sentence when something stayed."""
        if left := await process.end(self.grace_s):
            pids = ", ".join(map(str, left))
            return f"the engine's processes {pids} did not end after SIGKILL: they are stuck in the kernel"
        deadline_s = time.monotonic() + PORT_RELEASE_S
        while process.pid and port_is_busy(self._port):
            if time.monotonic() > deadline_s:
                return f"port {self._port} is in use after the engine ended: another process has taken it"
            await asyncio.sleep(POLL_S)
        return None

    def _log_tail(self) -> str:
        return "\n".join(self.log_text().splitlines()[-TAIL_LINES:])


async def _answers(session: aiohttp.ClientSession, url: str) -> bool:
    import aiohttp

    try:
        async with session.get(url) as response:
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False


def _ending(process: Guarded) -> str:
    if process.failed is not None:
        return f"could not be executed ({process.failed})"
    if process.exit_code is None:
        return "lost its guard, which another process killed,"
    if process.exit_code < 0:
        return f"was ended by {signal.Signals(-process.exit_code).name}"
    return f"exited with code {process.exit_code}"


def free_port() -> int:
    """A loopback port nobody listens on now; another process may still take it before the engine does."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def port_is_busy(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a connection in TIME_WAIT does not count
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False
