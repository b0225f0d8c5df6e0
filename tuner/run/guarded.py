"""The tuner's side of a guard: give the order, hear what it tells, have the engine ended; what an engine inherits."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tuner.run import guard

#: How long a guard may take beyond the engine's grace; past that it is stuck or gone.
MARGIN_S = guard.STRAY_GRACE_S + 2 * guard.GIVE_UP_S
POLL_S = 0.1
#: The tuner's own Python must not reach into the engine's: their packages exclude each other. And an engine that may
#: not keep its bytecode compiles thousands of files at every start.
NOT_INHERITED = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__", "PYTHONDONTWRITEBYTECODE")
SECRET_WORDS = ("TOKEN", "KEY", "SECRET", "PASSWORD", "CREDENTIALS")
#: Descriptors of locks that a guard keeps too, so that they last until its engine is gone, whoever kills the tuner.
KEPT_LOCKS: set[int] = set()


class Guarded:
    """A guard and the engine behind it.

    `ended` is set once the engine's first process is gone, `closed` once the guard is. `pid` is 0 until the engine
    runs; `exit_code` is known when it ended by itself (minus the signal that ended it); `failed` says why it could not
    be executed at all.
    """

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], secrets: Sequence[str], log: Path) -> None:
        self.pid = 0
        self.exit_code: int | None = None
        self.failed: str | None = None
        self.ended, self.closed = asyncio.Event(), asyncio.Event()
        self._left: list[int] | None = None
        self._told = b""
        self._engine: guard.Process | None = None
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", guard.__file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,
                bufsize=0,
                pass_fds=sorted(KEPT_LOCKS),
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._from = self._process.stdin, self._process.stdout
        os.set_blocking(self._from.fileno(), False)
        asyncio.get_running_loop().add_reader(self._from.fileno(), self._hear)
        # The order holds the environment, secrets included: it goes through the pipe, and no command line shows it.
        order = {"argv": argv, "env": env, "log": str(log.absolute()), "secrets": secrets, "tuner": os.getpid()}
        self._say(json.dumps(order))

    async def end(self, grace_s: float) -> list[int]:
        """SIGTERM, `grace_s`, SIGKILL to everything the engine started; the pids that stayed even so."""
        self._say(json.dumps({"grace_s": grace_s}))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.closed.wait(), grace_s + MARGIN_S)
        left = self._left
        if left is None:
            self._process.kill()
            left = await self._end_session(grace_s)
        self._to.close()
        asyncio.get_running_loop().remove_reader(self._from.fileno())
        self._from.close()
        self._process.wait(timeout=guard.GIVE_UP_S)
        self.ended.set()
        return left

    def _say(self, line: str) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._to.write(line.encode() + b"\n")

    def _hear(self) -> None:
        part = self._from.read(65536)
        if part is None:
            return
        *lines, self._told = (self._told + part).split(b"\n")
        for line in lines:
            self._note(json.loads(line))
        if not part:
            asyncio.get_running_loop().remove_reader(self._from.fileno())
            self.ended.set()
            self.closed.set()

    def _note(self, told: dict[str, object]) -> None:
        match told:
            case {"pid": int(pid)}:
                self.pid, self._engine = pid, guard.find_process(pid)
                return
            case {"failed": str(why)}:
                self.failed, self._left = why, []
            case {"exit": int(code)}:
                self.exit_code = code
            case {"left": list(pids)}:
                self._left = pids
        self.ended.set()

    async def _end_session(self, grace_s: float) -> list[int]:
        """The guard was killed: end what is left of the session it made for the engine."""
        for number, patience_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, guard.GIVE_UP_S)):
            deadline_s = asyncio.get_running_loop().time() + patience_s
            for pid in self._session():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            while self._session() and asyncio.get_running_loop().time() < deadline_s:
                await asyncio.sleep(POLL_S)
        return self._session()

    def _session(self) -> list[int]:
        """Living members of the engine's session; none when its number has passed to a stranger meanwhile."""
        leader = guard.find_process(self.pid)
        if self._engine is None or (leader is not None and leader.started != self._engine.started):
            return []
        return [p.pid for p in guard.processes() if p.session == self.pid and p.alive]


def inherited_env() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}


def secret_values(env: Mapping[str, str], declared: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """What must not stand in a log: declared secrets, and long values of variables that are named like one."""
    named = [v for k, v in env.items() if k.upper().split("_")[-1] in SECRET_WORDS and len(v) >= 8]
    values = {*named, *(value for _, value in declared if value)}
    return tuple(sorted(values, key=len, reverse=True))


def without(secrets: Iterable[str], text: str) -> str:
    for secret in secrets:
        text = text.replace(secret, "***")
    return text
