"""Runs one short-lived child (pip, a converter) in its own process group; whatever ends the tuner's wait ends the group."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

HEARTBEAT_S = 20.0
TERMINATION_S = 5.0


def run_logged(
    argv: Sequence[str],
    log: Path,
    *,
    extra_env: Mapping[str, str] | None = None,
    inherit: Sequence[int] = (),
    waiting: Callable[[], None] | None = None,
) -> int:
    """Run to the end with all output appended to `log`; returns the exit code. `waiting` is called every 20 s."""
    with log.open("ab") as output:
        output.write(f"\n$ {' '.join(argv)}\n".encode())
        output.flush()
        child = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(extra_env or {})},
            start_new_session=True,
            pass_fds=tuple(inherit),
        )
    try:
        while True:
            try:
                return child.wait(HEARTBEAT_S)
            except subprocess.TimeoutExpired:
                if waiting is not None:
                    waiting()
    finally:
        end_group(child)


def end_group(child: subprocess.Popen[bytes]) -> None:
    """SIGTERM, then SIGKILL, to the whole group of a child that this process started."""
    for number, patience_s in ((signal.SIGTERM, TERMINATION_S), (signal.SIGKILL, TERMINATION_S)):
        try:
            os.killpg(child.pid, number)
        except ProcessLookupError:
            break
        if not group_ends(child, patience_s):
            continue
        break
    child.wait()


def group_ends(child: subprocess.Popen[bytes], patience_s: float) -> bool:
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        child.poll()
        try:
            os.killpg(child.pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


@contextlib.contextmanager
def termination_unwinds() -> Iterator[None]:
    """Inside, SIGTERM and SIGHUP raise KeyboardInterrupt, so that `finally` blocks end children and undo half-done work."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    previous = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def last_line(log: Path) -> str:
    """The last line with text in it, without pip's drawing; empty if there is none."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 4096))
        tail = file.read().decode("utf-8", "replace").replace("\r", "\n").splitlines()
    return next((line.strip() for line in reversed(tail) if line.strip()), "")


def error_line(log: Path) -> str:
    """The last `ERROR:` line, else the last line: pip writes the cause there."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [line.strip() for line in lines if line.lstrip().startswith(("ERROR:", "error:"))]
    return errors[-1] if errors else last_line(log)
