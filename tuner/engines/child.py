"""Runs one short-lived child (pip, a converter) in its own process group; whatever ends the wait ends the group."""

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
        shown = " ".join(" ".join(argv).split())
        output.write(f"\n$ {shown}\n".encode())
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
    """Inside, SIGTERM and SIGHUP raise KeyboardInterrupt, so that every `finally` runs and children are ended."""
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
    """The last line of the last command's output that is no warning."""
    lines = [line for line in last_output(log) if not line.startswith("WARNING:")]
    return lines[-1] if lines else "still working"


def error_line(log: Path) -> str:
    """The last `ERROR:` line of the last command's output, where pip writes the cause; else its last line.

    A lost connection is only a warning to pip, whose error then says that it found nothing: both are given.
    """
    lines = last_output(log)
    errors = [line for line in lines if line.upper().startswith("ERROR:")]
    lost = [line.partition("connection broken by ")[2] for line in lines if "connection broken by " in line]
    cause = f" ({lost[-1][:200]})" if errors and lost else ""
    return (errors or lines or ["no output"])[-1] + cause


def last_output(log: Path) -> list[str]:
    """What the last command wrote, stripped lines with text in them."""
    text = log.read_text(encoding="utf-8", errors="replace").rpartition("\n$ ")[2]
    return [line.strip() for line in text.splitlines()[1:] if line.strip()]
