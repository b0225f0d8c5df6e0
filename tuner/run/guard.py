"""The guard: a small process between tuner and one engine, so that no engine outlives its tuner, however that one ends.

guarded.py starts it as a script (`python -I -S guard.py`, standard library only) in a session of its own, sends one
JSON line (argv, env, log, secrets, tuner: its pid) through a pipe and keeps the pipe open. A second line
{"grace_s": 10}, or the pipe's end (the tuner is gone, SIGKILL included), makes the guard end the engine's process
group, then whatever else descends from the engine. It tells, one JSON line each: {"pid": 7} or {"failed": "why"},
{"exit": code} when the engine ended by itself, {"left": [pids it could not end]} at last.

It signals its own unreaped children only, so a pid can never have passed to a stranger. Limits: a guard that is itself
killed with SIGKILL takes the engine's first process along (SIGTERM, the kernel's parent-death signal), and a living
tuner ends the rest of the session; when both are killed at once, the engine's other processes are on their own.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

ORPHAN_GRACE_S = 4.0  # the tuner is gone: its engine is to be gone within 10 s, whatever grace it asked for
STRAY_GRACE_S = 1.0
GIVE_UP_S = 90.0  # after SIGKILL: the kernel was seen to take 35 s for a vLLM worker that died in a step
POLL_S = 0.05
TUNER_CHECK_S = 1.0
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class Process:
    """One row of /proc; `started` is in clock ticks since boot and tells a reused pid apart."""

    pid: int
    parent: int
    group: int
    session: int
    started: int
    alive: bool


def processes() -> Iterator[Process]:
    for name in os.listdir("/proc"):
        if name.isdigit() and (found := find_process(int(name))):
            yield found


def find_process(pid: int) -> Process | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
    except OSError:
        return None
    # The command's name is in brackets and may hold anything; the fields that count come after the last one.
    fields = stat[stat.rindex(b")") + 2 :].split()
    parent, group, session = (int(field) for field in fields[1:4])
    return Process(pid, parent, group, session, started=int(fields[19]), alive=fields[0] not in (b"Z", b"X"))


class Inbox:
    """Lines from the tuner, read by hand: a buffered file would hide from select what it has swallowed."""

    def __init__(self) -> None:
        self.received = b""

    def receive(self) -> bool:
        """Take what is there; False at the pipe's end."""
        part = os.read(0, 65536)
        self.received += part
        return part != b""

    def has_line(self) -> bool:
        return b"\n" in self.received

    def read_line(self) -> dict[str, Any]:
        line, _, self.received = self.received.partition(b"\n")
        return dict(json.loads(line))


class Guard:
    """One engine, from start to the end of its last process."""

    def __init__(self, inbox: Inbox) -> None:
        self.inbox = inbox
        self.order = inbox.read_line()
        self.stopping = False
        self.waker = wake_on_signals(self)

    def run(self) -> None:
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        try:
            self.engine = subprocess.Popen(
                self.order["argv"],
                env=self.order["env"],
                stdin=subprocess.DEVNULL,
                stdout=2,  # the log, as is stderr
                start_new_session=True,
                preexec_fn=dying_with(os.getpid()),
            )
        except OSError as error:
            tell(failed=str(error))
            return
        tell(pid=self.engine.pid)
        grace_s = self.watch()
        if (code := self.exit_code()) is not None:
            tell(exit=code)
        left = self.end(grace_s)
        with contextlib.suppress(OSError):  # the user may have removed the folder
            withhold(self.order["log"], [secret.encode() for secret in self.order["secrets"]])
        tell(left=left)

    def watch(self) -> float:
        """Until the engine ends, the tuner says so or the tuner is gone; the grace to give, seconds."""
        while not self.stopping and self.exit_code() is None and not self.tuner_gone():
            if self.inbox.has_line():
                return float(self.inbox.read_line()["grace_s"])
            ready, _, _ = select.select([0, self.waker], [], [], TUNER_CHECK_S)
            if 0 in ready and not self.inbox.receive():
                break
            if self.waker in ready:
                os.read(self.waker, 4096)
                self.reap()
        return ORPHAN_GRACE_S

    def end(self, grace_s: float) -> list[int]:
        """SIGTERM and SIGKILL to the group, then to what left it; the pids that survived even that."""
        self.signal_group(signal.SIGTERM)
        self.wait_until(lambda: not self.group(), grace_s)
        self.signal_group(signal.SIGKILL)
        self.wait_until(lambda: not self.group(), GIVE_UP_S)
        self.end_strays()
        left = [*self.group(), *self.children()]
        if not left:
            self.engine.wait()
        return left

    def end_strays(self) -> None:
        """Descendants with a session of their own: as their parents die they become children of the guard."""
        started, warned = time.monotonic(), set[int]()
        while (strays := self.children()) and time.monotonic() - started < GIVE_UP_S:
            for pid in strays:
                if time.monotonic() - started > STRAY_GRACE_S:
                    os.kill(pid, signal.SIGKILL)
                elif pid not in warned:
                    os.kill(pid, signal.SIGTERM)
                    warned.add(pid)
            time.sleep(POLL_S)
            self.reap()

    def wait_until(self, done: Callable[[], bool], patience_s: float) -> None:
        deadline = time.monotonic() + patience_s
        while not done() and time.monotonic() < deadline:
            if self.tuner_gone():
                deadline = min(deadline, time.monotonic() + ORPHAN_GRACE_S)
            time.sleep(POLL_S)
            self.reap()

    def exit_code(self) -> int | None:
        """The engine's exit code (minus the signal that ended it), its zombie kept so that its pid stays ours."""
        seen = os.waitid(os.P_PID, self.engine.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if seen is None:
            return None
        return seen.si_status if seen.si_code == os.CLD_EXITED else -seen.si_status

    def signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.engine.pid, number)

    def group(self) -> list[int]:
        return [p.pid for p in processes() if p.group == self.engine.pid and p.alive]

    def children(self) -> list[int]:
        return [p.pid for p in processes() if p.parent == os.getpid() and p.alive and p.group != self.engine.pid]

    def reap(self) -> None:
        for p in processes():
            if p.parent == os.getpid() and not p.alive and p.pid != self.engine.pid:
                os.waitpid(p.pid, os.WNOHANG)

    def tuner_gone(self) -> bool:
        return os.getppid() != int(self.order["tuner"])


def wake_on_signals(guard: Guard) -> int:
    """A descriptor that turns readable with every signal. Handlers and not SIG_IGN, which the engine would inherit."""

    def stop(*_: object) -> None:
        guard.stopping = True

    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    for number in (signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    return reader


def prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def dying_with(guard_pid: int) -> Callable[[], None]:
    def before_exec() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != guard_pid:  # it died before the call above
            os._exit(1)

    return before_exec


def tell(**fields: object) -> None:
    with contextlib.suppress(BrokenPipeError):
        os.write(1, json.dumps(fields).encode() + b"\n")


def withhold(log: str, secrets: list[bytes]) -> None:
    """Rewrite the log without the secrets the engine printed, if it printed any."""
    with open(log, "rb") as file:
        if not any(secret in line for line in file for secret in secrets):
            return
        file.seek(0)
        with open(f"{log}.tmp", "wb") as clean:
            for line in file:
                for secret in secrets:
                    line = line.replace(secret, b"***")
                clean.write(line)
    os.replace(f"{log}.tmp", log)


def main() -> None:
    inbox = Inbox()
    while not inbox.has_line():
        if not inbox.receive():
            return
    Guard(inbox).run()


if __name__ == "__main__":
    main()
