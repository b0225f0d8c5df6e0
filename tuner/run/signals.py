"""How the tuner itself ends: every polite signal unwinds, so that engines are stopped and locks released."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def unwinding_signals() -> Iterator[None]:
    """Inside, SIGTERM and SIGHUP act as Ctrl-C: `finally` blocks run, asyncio.run cancels its task, exit code 130."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        on_ctrl_c = signal.getsignal(signal.SIGINT)
        if callable(on_ctrl_c):  # asyncio.run has one of its own, which cancels its task
            on_ctrl_c(number, frame)
        else:  # a background job of a shell ignores SIGINT
            raise KeyboardInterrupt

    # nohup makes a process ignore SIGHUP: that stays.
    taken = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, interrupt) for number in taken}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
