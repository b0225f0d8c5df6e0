"""Progress of a study for people: a live line on a terminal, plain lines elsewhere. Always on stderr."""

from __future__ import annotations

import sys
import time

from tuner.run.progress import Event

WAITING_EVERY_S = 15.0


class PlainProgress:
    """One line per launch, readiness, cell and end; a line every 15 s while an engine starts."""

    def __init__(self) -> None:
        self._started_s = time.monotonic()
        self._said_s = 0.0

    def __enter__(self) -> PlainProgress:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def __call__(self, event: Event) -> None:
        if event.kind == "requests":
            return
        if event.kind == "waiting":
            if event.done - self._said_s < WAITING_EVERY_S:
                return
            self._said_s = event.done
        elif event.kind == "launch":
            self._said_s = 0.0
        self._say(line(event))

    def _say(self, text: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - self._started_s), 60)
        print(f"{minutes:02d}:{seconds:02d} {text}", file=sys.stderr, flush=True)


class LiveProgress(PlainProgress):
    """The same lines, and below them a spinner with what is going on now."""

    def __enter__(self) -> LiveProgress:
        from rich.console import Console

        self._console = Console(stderr=True)
        self._status = self._console.status("starting")
        self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._status.stop()

    def __call__(self, event: Event) -> None:
        if event.kind in ("requests", "waiting"):
            self._status.update(line(event))
        else:
            super().__call__(event)

    def _say(self, text: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - self._started_s), 60)
        self._console.print(f"{minutes:02d}:{seconds:02d} {text}", markup=False, highlight=False)


def line(event: Event) -> str:
    """The event as people read it."""
    match event.kind:
        case "launch":
            return f"launch {event.done:.0f}: {event.text}"
        case "waiting":
            return f"  {event.text} ({event.done:.0f} s)"
        case "requests":
            return f"  {event.text}: {event.done:.0f} of {event.total:.0f} requests"
        case "cell":
            return f"  cell {event.done:.0f} of {event.total:.0f} done: {event.text}"
        case "trial":
            return f"launch {event.done:.0f}: {event.text}"
        case _:
            return f"  {event.text}"


def progress() -> PlainProgress:
    """Live on a terminal, plain lines in a log."""
    return LiveProgress() if sys.stderr.isatty() else PlainProgress()
